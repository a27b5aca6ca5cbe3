//! The level that is requested from the writer's thread, and the sleep that a request ends.

use duramen_base::ids::Level;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Demand {
    /// The highest level that was requested, as a number.
    level: AtomicU8,
    /// The thread sleeps, or is about to: it must be woken.
    asleep: AtomicBool,
    bell: Mutex<()>,
    ring: Condvar,
}

impl Demand {
    /// Requests `level` for all earlier appends.
    pub fn raise(&self, level: Level) {
        self.level.fetch_max(level as u8, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            drop(self.bell.lock().expect("the writer's bell"));
            self.ring.notify_one();
        }
    }

    /// The requested level, once; [`Level::Memory`]: none is.
    pub fn take(&self) -> Level {
        let level = Level::from_number(self.level.swap(0, Ordering::SeqCst));
        level.unwrap_or(Level::Memory)
    }

    /// Sleeps until the bell rings or the interval ends; returns whether the interval has ended.
    /// Does not sleep if a level is requested, or after `stop`.
    pub fn sleep(&self, time: Duration, stop: &AtomicBool) -> bool {
        let guard = self.bell.lock().expect("the writer's bell");
        self.asleep.store(true, Ordering::SeqCst);
        // SeqCst: either this sees the demand, or `wake` sees the sleep.
        if self.level.load(Ordering::SeqCst) > 0 || stop.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        let (_guard, timeout) = self
            .ring
            .wait_timeout_while(guard, time, |()| self.asleep.load(Ordering::SeqCst))
            .expect("the writer's bell");
        self.asleep.store(false, Ordering::SeqCst);
        timeout.timed_out()
    }
}
