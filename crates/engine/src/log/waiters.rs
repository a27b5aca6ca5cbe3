//! Threads that wait for commits, and the hook by which they request a commit from the consumer.

use crate::Error;
use duramen_base::sync::{AtomicUsize, Ordering};
use duramen_base::waits::{LongWait, Resource};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Longest pause of a waiter between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Default)]
pub struct Waiters {
    demand: OnceLock<Box<dyn Fn() + Send + Sync>>,
    count: AtomicUsize,
    waiting: Mutex<()>,
    progress: Condvar,
}

impl Waiters {
    /// Sets the hook that requests a commit; only the first one counts.
    pub fn on_demand(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.demand.set(Box::new(hook));
    }

    /// Requests a commit at level synced from the consumer.
    pub fn demand(&self) {
        if let Some(hook) = self.demand.get() {
            hook();
        }
    }

    /// Waits until the closure `is_there` says that the log has come far enough. `holding`:
    /// resources of the caller that others may want meanwhile.
    ///
    /// # Errors
    /// Those of `check`, when waiting cannot help.
    pub fn wait(
        &self,
        holding: &'static [Resource],
        is_there: impl Fn() -> bool,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut waiting = LongWait::new(Resource::Commit, holding);
        let mut rounds = 0;
        while !is_there() {
            check()?;
            self.demand();
            rounds += 1;
            if rounds < 8 || cfg!(any(loom, shuttle)) {
                waiting.wait();
                continue;
            }
            self.count.fetch_add(1, Ordering::SeqCst);
            let guard = self.waiting.lock().expect("waiters for the log");
            if !is_there() {
                drop(self.progress.wait_timeout(guard, LOOK_AGAIN));
            }
            self.count.fetch_sub(1, Ordering::SeqCst);
            waiting.look();
        }
        Ok(())
    }

    /// Wakes the waiters: the log has advanced, or waiting cannot help any more.
    pub fn wake(&self) {
        if self.count.load(Ordering::SeqCst) != 0 {
            drop(self.waiting.lock().expect("waiters for the log"));
            self.progress.notify_all();
        }
    }
}
