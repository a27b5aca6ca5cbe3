//! The coordinator's status of a recovery, read every few milliseconds.

use crate::harness::{Doing, Failure, Result};
use duramen_client::{Admin, AdminAnswer, Client, Options};
use duramen_wire::native::message::{RecoveryPhase, RecoveryStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(4);
/// Longest wait for the end of a recovery after its last key was served.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ends of phases, in seconds since the kill, and the bytes replayed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phases {
    pub detected: f64,
    pub fenced: f64,
    pub replayed: f64,
    pub done: f64,
    pub partitions: u32,
    pub bytes: u64,
    pub entries: u64,
}

/// Each status, with its time.
type Seen = Vec<(Instant, RecoveryStatus)>;

pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen>>,
}

impl Watch {
    pub(super) fn begin(coordinator: &str) -> Result<Watch> {
        let mut options = Options::new([coordinator.to_owned()]);
        options.deadline = Duration::from_secs(10);
        let client = Client::new(options).doing("watching the recovery")?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::new();
            let mut until = None;
            loop {
                let answer = client
                    .admin(Admin::Recoveries)
                    .doing("watching the recovery")?;
                let AdminAnswer::Recoveries(recoveries) = answer else {
                    return Err(Failure::new("watching the recovery", "a strange answer"));
                };
                let now = Instant::now();
                if let Some(recovery) = recoveries.into_iter().next_back() {
                    let is_done = recovery.phase == RecoveryPhase::Done;
                    if seen.last().is_none_or(|(_, last)| *last != recovery) {
                        seen.push((now, recovery));
                    }
                    if is_done && is_over.load(Ordering::Relaxed) {
                        return Ok(seen);
                    }
                }
                if is_over.load(Ordering::Relaxed) && now > *until.get_or_insert(now + PATIENCE) {
                    return Ok(seen);
                }
                std::thread::sleep(LOOK);
            }
        });
        Ok(Watch { stop, thread })
    }

    pub(super) fn end(self, killed: Instant) -> Result<Phases> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().expect("a watching thread")?;
        let since = |at: Instant| at.saturating_duration_since(killed).as_secs_f64();
        let first = seen
            .first()
            .ok_or("none was seen")
            .doing("watching the recovery")?;
        let begun = first
            .0
            .checked_sub(Duration::from_millis(first.1.elapsed_ms));
        let detected = since(begun.unwrap_or(first.0));
        // The first status with a later phase.
        let left = |phases: &[RecoveryPhase]| {
            let mut after = seen.iter().skip_while(|(_, s)| phases.contains(&s.phase));
            after.next().map_or(f64::NAN, |(at, _)| since(*at))
        };
        let collecting = [RecoveryPhase::Collecting, RecoveryPhase::Incomplete];
        let replaying = [collecting.as_slice(), &[RecoveryPhase::Replaying]].concat();
        let waiting = [replaying.as_slice(), &[RecoveryPhase::WaitingForLease]].concat();
        let last = seen.last().map(|(_, status)| status.clone());
        let last = last.ok_or("none was seen").doing("watching the recovery")?;
        Ok(Phases {
            detected,
            fenced: left(&collecting),
            replayed: left(&replaying),
            done: left(&waiting),
            partitions: last.partitions,
            bytes: last.bytes,
            entries: last.entries,
        })
    }
}
