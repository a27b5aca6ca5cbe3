//! A bell that ends the sleep of a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Wakes the background thread early: another thread waits for room.
#[derive(Default)]
pub(crate) struct Bell {
    /// SeqCst on both sides: a ring is either seen before the sleep, or ends it.
    rung: AtomicBool,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            drop(self.lock.lock().expect("the background's bell"));
            self.bell.notify_all();
        }
    }

    pub fn sleep(&self, time: Duration) {
        let guard = self.lock.lock().expect("the background's bell");
        let is_quiet = |_: &mut ()| !self.rung.load(Ordering::SeqCst);
        drop(self.bell.wait_timeout_while(guard, time, is_quiet));
        self.rung.store(false, Ordering::SeqCst);
    }
}
