//! Supervision of the reactor threads: whether they come back to their loops, and whether they end
//! when the server stops.
//!
//! **Invariants**
//! - I1: a thread that runs has stamped its loop; a thread that sleeps in the kernel has marked
//!   that it sleeps. So the age of a stamp is the time for which all clients of that thread wait.
//! - I2: a stop has a deadline: [`Ending::wait`] returns when all threads have ended, or when one
//!   did not end in time. Before the stop begins, data that is only in memory is written. This may
//!   take as long as it needs, unless a thread is stuck.
//!
//! **Concurrency.** A [`Beat`] is stored by its thread and loaded by any thread, relaxed: it shows
//! roughly the current state, and nothing else depends on it. [`Ending`] is locked at the start and
//! the end of threads and of the server.

use duramen_config::clock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Kinds of a server's stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// The server runs on.
    No = 0,
    /// Stop accepting connections, write pending replies for at most `stop-timeout-ms`, then end.
    Graceful = 1,
    /// End without waiting for any client.
    AtOnce = 2,
}

/// When a thread last came back to its loop, in milliseconds of the server's clock; 0: it sleeps.
#[derive(Debug, Default)]
pub struct Beat(AtomicU64);

impl Beat {
    #[inline]
    pub fn sleeps(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub fn came_back(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }

    /// How long the thread has not come back; `None` if it sleeps, and comes back when it is woken.
    pub fn away_ms(&self, now_ms: u64) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            at_ms => Some(now_ms.saturating_sub(at_ms)),
        }
    }
}

/// A thread that has not come back to its loop for this long, in milliseconds, is stuck. The
/// requests of one client take less than 10 ms, and no thread waits in its loop for a disk or the
/// cluster.
const STUCK_AFTER_MS: u64 = 5_000;

/// The supervision of all threads of a server.
pub struct Watch {
    /// The loops of a member's threads: of the thread that stores replicas for others, and of the
    /// thread that talks to the cluster.
    keeper: Beat,
    node: Beat,
    stop: AtomicU8,
    /// The number of reactor threads that run.
    ending: Arc<Ending>,
    /// See `STUCK_AFTER_MS`; tests set a shorter time.
    stuck_after_ms: AtomicU64,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            keeper: Beat::default(),
            node: Beat::default(),
            stop: AtomicU8::new(Stop::No as u8),
            ending: Arc::default(),
            stuck_after_ms: AtomicU64::new(STUCK_AFTER_MS),
        }
    }
}

impl Watch {
    /// The loop of a member's thread that stores replicas for others.
    pub fn keeper(&self) -> &Beat {
        &self.keeper
    }

    /// The loop of a member's thread that talks to the cluster.
    pub fn node(&self) -> &Beat {
        &self.node
    }

    pub fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    /// Requests the server's stop. A later stop never becomes milder. The caller wakes the threads.
    pub(crate) fn stop(&self, how: Stop) {
        // Release: pairs with Acquire in `stopping`.
        self.stop.fetch_max(how as u8, Ordering::Release);
        self.ending.stop(how);
    }

    #[inline]
    pub fn stopping(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            0 => Stop::No,
            1 => Stop::Graceful,
            _ => Stop::AtOnce,
        }
    }

    pub fn stuck_after_ms(&self) -> u64 {
        self.stuck_after_ms.load(Ordering::Relaxed)
    }

    /// Sets the time after which a thread counts as stuck, for tests.
    pub fn set_stuck_after_ms(&self, ms: u64) {
        self.stuck_after_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether a thread is stuck. `reactors`: the loops of the reactor threads. `is_member`: the
    /// server has the threads of a member too.
    pub(crate) fn is_stuck<'s>(
        &'s self,
        reactors: impl Iterator<Item = &'s Beat>,
        is_member: bool,
    ) -> bool {
        let now_ms = clock::now_ms();
        let beats = self.beats(reactors, is_member);
        let mut away_ms = beats.filter_map(|(_, beat)| beat.away_ms(now_ms));
        away_ms.any(|away_ms| away_ms >= self.stuck_after_ms())
    }

    /// The state of each thread, as a table. `reactors`, `is_member`: as for
    /// [`is_stuck`](Self::is_stuck).
    pub(crate) fn table<'s>(
        &'s self,
        reactors: impl Iterator<Item = &'s Beat>,
        is_member: bool,
    ) -> String {
        let now_ms = clock::now_ms();
        let mut table = "thread        away_ms  state\n".to_owned();
        for (name, beat) in self.beats(reactors, is_member) {
            let (away_ms, state) = match beat.away_ms(now_ms) {
                None => (0, "waits for requests"),
                Some(away_ms) if away_ms < self.stuck_after_ms() => (away_ms, "runs"),
                Some(away_ms) => (away_ms, "has not come back to its loop"),
            };
            table.push_str(&format!("{name:<13} {away_ms:<8} {state}\n"));
        }
        table
    }

    /// The threads that others wait for, by name.
    fn beats<'s>(
        &'s self,
        reactors: impl Iterator<Item = &'s Beat>,
        is_member: bool,
    ) -> impl Iterator<Item = (String, &'s Beat)> {
        let reactors = reactors.enumerate();
        let reactors = reactors.map(|(number, beat)| (format!("reactor-{number}"), beat));
        let of_member = [("keeper", &self.keeper), ("node", &self.node)];
        let of_member = of_member.map(|(name, beat)| (name.to_owned(), beat));
        reactors.chain(of_member.into_iter().filter(move |_| is_member))
    }
}

/// Interval of the checks for a stuck thread while a stop is requested: rare, and far below the
/// time that a stop may take.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Number of threads that still run, and the time since which they should end.
#[derive(Debug, Default)]
pub struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Whether a stop is requested, while data that must be on disk first is being written.
    asked: bool,
    stop: Option<(Stop, Instant)>,
}

/// Marks a thread as running until it is dropped.
pub struct Running(Arc<Ending>);

impl Ending {
    pub fn begin(self: &Arc<Self>) -> Running {
        self.lock().running += 1;
        Running(Arc::clone(self))
    }

    /// Notes that a stop is requested which begins later (true), or that it was refused (false).
    pub(crate) fn ask(&self, asked: bool) {
        self.lock().asked = asked;
        self.changed.notify_all();
    }

    /// Orders the threads to end.
    pub(crate) fn stop(&self, how: Stop) {
        let mut state = self.lock();
        if state.stop.is_none_or(|(before, _)| before < how) {
            state.stop = Some((how, Instant::now()));
        }
        self.changed.notify_all();
    }

    /// How long ago the threads were ordered to end; zero: they were not.
    pub fn since(&self) -> Duration {
        self.lock()
            .stop
            .map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// Waits until no thread runs. Returns false if a stop took longer than `limit` allows for its
    /// kind, or if a stop was requested and a thread is stuck.
    pub fn wait(&self, limit: impl Fn(Stop) -> Duration, is_stuck: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        while state.running > 0 {
            let left = match state.stop {
                Some((how, since)) => limit(how).saturating_sub(since.elapsed()),
                None if state.asked && is_stuck() => Duration::ZERO,
                None if state.asked => LOOK_EVERY,
                None => {
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            };
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.changed.notify_all();
    }
}
