//! Supervision of the reactor threads: whether they come back to their loops, and whether they end
//! when the server stops.
//!
//! **Invariants**
//! - I1: a running thread has stamped its loop; a thread that sleeps in the kernel has marked that.
//!   So the age of a stamp is the time for which all clients of that thread wait.
//! - I2: a stop has a deadline: [`Ending::wait`] returns when all threads have ended, or when one
//!   did not end in time. Before the stop begins, data that is only in memory is written. This may
//!   take as long as it needs, unless a thread is stuck.
//!
//! **Concurrency.** A [`Beat`] is stored by its thread and loaded by any thread, relaxed: it shows
//! roughly the current state, and nothing else depends on it. [`Ending`] is locked at the start and
//! the end of threads and of the server.

use std::sync::atomic::{AtomicU64, Ordering};
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

    /// How long the thread has not come back; None: it sleeps, and comes back when it is woken.
    pub fn away_ms(&self, now_ms: u64) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            at_ms => Some(now_ms.saturating_sub(at_ms)),
        }
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
    /// A stop is requested, and data that must be on disk first is being written.
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

    /// Notes that a stop is requested which begins later (`true`), or that it was refused
    /// (`false`).
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

    /// How long the threads have been ordered to end; zero: they are not.
    pub fn since(&self) -> Duration {
        self.lock()
            .stop
            .map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// Waits until no thread runs. False: a stop took longer than `limit` allows for its kind, or a
    /// stop was requested and a thread is stuck.
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
