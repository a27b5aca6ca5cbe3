//! Threads that wait for the end of a commit, and calls that are made after each one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

/// Longest wait of a waiter between two checks, for a machine so busy that no thread commits.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Waiters {
    count: AtomicUsize,
    waiting: Mutex<()>,
    progress: Condvar,
    watchers: RwLock<Vec<Watcher>>,
}

type Watcher = Arc<dyn Fn() + Send + Sync>;

impl Waiters {
    /// Waits until a commit has ended since `before` was read from `ended` (writer::W2).
    pub fn wait(&self, ended: &AtomicU64, before: u64) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let guard = self.waiting.lock().expect("waiters");
        if ended.load(Ordering::SeqCst) == before {
            drop(self.progress.wait_timeout(guard, LOOK_AGAIN));
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// A commit has ended: wakes waiters and calls watchers.
    pub fn tell(&self) {
        if self.count.load(Ordering::SeqCst) > 0 {
            drop(self.waiting.lock().expect("waiters"));
            self.progress.notify_all();
        }
        let watchers = self.watchers.read().expect("watchers");
        for watcher in &*watchers {
            watcher();
        }
    }

    /// Calls `watcher` after each commit.
    pub fn watch(&self, watcher: Watcher) {
        self.watchers.write().expect("watchers").push(watcher);
    }
}
