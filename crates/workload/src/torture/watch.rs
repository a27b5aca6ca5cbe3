//! The watchdog of one run: times of replies, the first failure, and the server's memory.
//!
//! **Invariants**
//! - W1: a reply is late when it takes longer than the limit, not counting excused time.
//! - W2: excused time is the time in which the run itself stopped the server (a pause, a
//!   restart), and the time in which the whole machine stood still. Nothing else is excused.
//! - W3: the first failure ends the run; it is never overwritten by a later one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The interval at which the machine is watched and memory is sampled.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// A tick that is this late means that the machine stood still.
const STANDSTILL: Duration = Duration::from_millis(200);

/// The watchdog; shared by all clients of a run.
#[derive(Debug)]
pub(crate) struct Watch {
    limit: Duration,
    excuses: Mutex<Excuses>,
    failure: Mutex<Option<String>>,
    /// Written with Release by `fail` and `stop`, read with Acquire by every client.
    stopped: AtomicBool,
    /// Counters below are statistics: Relaxed is enough.
    pub(crate) operations: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) disconnections: AtomicU64,
    longest_us: AtomicU64,
    pub(crate) rss_max: AtomicU64,
}

#[derive(Debug, Default)]
struct Excuses {
    open: u32,
    since: Option<Instant>,
    total: Duration,
}

/// The moment at which a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    at: Instant,
    excused: Duration,
}

/// Time is excused until this is dropped.
#[derive(Debug)]
pub(crate) struct Excuse<'w>(&'w Watch);

impl Drop for Excuse<'_> {
    fn drop(&mut self) {
        let mut excuses = self.0.excuses();
        excuses.open -= 1;
        if excuses.open == 0
            && let Some(since) = excuses.since.take()
        {
            excuses.total += since.elapsed();
        }
    }
}

impl Watch {
    pub(crate) fn new(limit: Duration) -> Watch {
        Watch {
            limit,
            excuses: Mutex::default(),
            failure: Mutex::default(),
            stopped: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            disconnections: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            rss_max: AtomicU64::new(0),
        }
    }

    fn excuses(&self) -> MutexGuard<'_, Excuses> {
        self.excuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure_slot(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excuses the time from now until the guard is dropped (W2).
    pub(crate) fn excuse(&self) -> Excuse<'_> {
        let mut excuses = self.excuses();
        excuses.open += 1;
        excuses.since.get_or_insert_with(Instant::now);
        Excuse(self)
    }

    fn excused(&self) -> Duration {
        let excuses = self.excuses();
        excuses.total
            + excuses
                .since
                .map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(crate) fn sent(&self) -> Sent {
        Sent {
            at: Instant::now(),
            excused: self.excused(),
        }
    }

    fn taken(&self, sent: Sent) -> Duration {
        let excused = self.excused().saturating_sub(sent.excused);
        sent.at.elapsed().saturating_sub(excused)
    }

    /// Whether a reply to a request sent then is late (W1).
    pub(crate) fn is_late(&self, sent: Sent) -> bool {
        self.taken(sent) > self.limit
    }

    pub(crate) fn answered(&self, sent: Sent) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let taken = self.taken(sent).as_micros() as u64;
        self.longest_us.fetch_max(taken, Ordering::Relaxed);
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.load(Ordering::Relaxed))
    }

    /// Ends the run as failed (W3).
    pub(crate) fn fail(&self, sentence: String) {
        self.failure_slot().get_or_insert(sentence);
        self.stop();
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure_slot().clone()
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ticks until the run ends: excuses standstills of the machine, and calls `each` on each tick.
    pub(crate) fn tick(&self, mut each: impl FnMut()) {
        let mut last = Instant::now();
        while !self.is_stopped() {
            std::thread::sleep(TICK);
            let gap = last.elapsed().saturating_sub(TICK);
            last = Instant::now();
            if gap > STANDSTILL {
                let mut excuses = self.excuses();
                if excuses.open == 0 {
                    excuses.total += gap;
                }
            }
            each();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times are set, and lie so far apart that a busy machine does not matter.
    #[test]
    fn an_excused_pause_is_not_late_and_an_unexcused_one_is() {
        let ago = |seconds| {
            let at = Instant::now().checked_sub(Duration::from_secs(seconds));
            at.expect("this machine runs for minutes")
        };
        let watch = Watch::new(Duration::from_secs(20));
        let mut sent = watch.sent();
        sent.at = ago(50);
        let excuse = watch.excuse();
        watch.excuses().since = Some(ago(45));
        assert!(!watch.is_late(sent));
        drop(excuse);
        assert!(!watch.is_late(sent));
        sent.at = ago(90);
        assert!(watch.is_late(sent));
    }

    #[test]
    fn the_first_failure_stays() {
        let watch = Watch::new(Duration::from_secs(1));
        watch.fail("first".to_owned());
        watch.fail("second".to_owned());
        assert_eq!(watch.failure().as_deref(), Some("first"));
        assert!(watch.is_stopped());
    }
}
