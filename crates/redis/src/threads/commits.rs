//! Announces commits to a reactor thread; a system call is made only if the thread sleeps.
//!
//! **Invariants**
//! - I1: no wake-up is lost. The thread sets `waits` before it reads the count for the last time.
//!   The writer counts a commit before it reads `waits`. All these accesses are `SeqCst`, so one of
//!   the two sees the other's store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of commits, and whether the owning thread wants to be woken at the next one.
#[derive(Debug, Default)]
pub struct Commits {
    count: AtomicU64,
    waits: AtomicBool,
}

impl Commits {
    /// Called by the owning thread: number of commits so far. If it has changed, the thread looks
    /// at its held replies.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Called by the owning thread before it sleeps. Returns true if it may sleep: the next commit
    /// wakes it. Returns false if there was a commit after `seen`.
    pub fn may_sleep(&self, seen: u64) -> bool {
        self.waits.store(true, Ordering::SeqCst);
        if self.count() == seen {
            return true;
        }
        self.waits.store(false, Ordering::SeqCst);
        false
    }

    /// Called by the owning thread after it woke.
    pub fn woke(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Called by the log writer after a commit. Returns true if the thread sleeps and must be
    /// woken.
    pub fn committed(&self) -> bool {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waits.load(Ordering::SeqCst) && self.waits.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_sleeper_is_woken_once_and_a_late_one_does_not_sleep() {
        let commits = Commits::default();
        assert!(!commits.committed());
        assert!(!commits.may_sleep(0));
        assert!(
            !commits.committed(),
            "a thread that does not sleep is not woken"
        );
        assert!(commits.may_sleep(2));
        assert!(commits.committed());
        assert!(!commits.committed());
    }

    /// A waiter either sees each commit or is woken for it. A lost wake-up would make this test
    /// wait for ever.
    #[test]
    fn no_commit_is_missed() {
        const COMMITS: u64 = 20_000;
        let commits = Arc::new(Commits::default());
        let (wake, woken) = std::sync::mpsc::channel();
        let (seen_by_waiter, acknowledged) = std::sync::mpsc::channel();
        let writer = {
            let commits = Arc::clone(&commits);
            std::thread::spawn(move || {
                for _ in 0..COMMITS {
                    if commits.committed() {
                        wake.send(()).expect("the waiter listens");
                    }
                    acknowledged.recv().expect("the waiter saw it");
                }
            })
        };
        let mut seen = 0;
        while seen < COMMITS {
            if commits.may_sleep(seen) {
                woken
                    .recv_timeout(std::time::Duration::from_secs(120))
                    .expect("a commit wakes");
            }
            let now = commits.count();
            for _ in seen..now {
                seen_by_waiter.send(()).expect("the writer listens");
            }
            seen = now;
        }
        writer.join().expect("the writer ends");
    }
}
