//! The free windows of one node.

use duramen_base::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Windows by the work that is needed before they can be used again. Locked once per segment, never
/// per entry.
pub struct Pool {
    lists: Mutex<Lists>,
    /// Held while a thread counts the free windows and takes one.
    turn: Mutex<()>,
    /// Lengths of the lists, to be read without the lock.
    backed: AtomicUsize,
    retired: AtomicUsize,
    reserve: usize,
}

struct Lists {
    backed: Vec<u32>,
    /// Lowest window last, so that the store stays at the low end of its region.
    unbacked: Vec<u32>,
    /// Retired windows with their stamps, the oldest stamp first.
    retired: VecDeque<(u64, u32)>,
}

impl Pool {
    pub fn new(windows: Range<u32>, reserve: usize) -> Pool {
        let lists = Lists {
            backed: Vec::new(),
            unbacked: windows.rev().collect(),
            retired: VecDeque::new(),
        };
        Pool {
            lists: Mutex::new(lists),
            turn: Mutex::default(),
            backed: AtomicUsize::new(0),
            retired: AtomicUsize::new(0),
            reserve,
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Lists) -> R) -> R {
        let mut lists = self.lists.lock().expect("pool of windows");
        let result = f(&mut lists);
        self.backed.store(lists.backed.len(), Ordering::Relaxed);
        self.retired.store(lists.retired.len(), Ordering::Relaxed);
        result
    }

    /// Waits for the caller's turn to count and take.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().expect("turn at the pool")
    }

    pub fn reserve(&self) -> usize {
        self.reserve
    }

    pub fn backed(&self) -> usize {
        self.backed.load(Ordering::Relaxed)
    }

    pub fn retired(&self) -> usize {
        self.retired.load(Ordering::Relaxed)
    }

    pub fn take_backed(&self) -> Option<u32> {
        self.with(|lists| lists.backed.pop())
    }

    pub fn put_backed(&self, window: u32) {
        self.with(|lists| lists.backed.push(window));
    }

    pub fn take_unbacked(&self) -> Option<u32> {
        self.with(|lists| lists.unbacked.pop())
    }

    pub fn put_unbacked(&self, window: u32) {
        self.with(|lists| lists.unbacked.push(window));
    }

    /// Queues a window that sessions pinned before `stamp` may still see.
    pub fn retire(&self, stamp: u64, window: u32) {
        self.with(|lists| {
            let at = lists.retired.partition_point(|(other, _)| *other <= stamp);
            lists.retired.insert(at, (stamp, window));
        });
    }

    /// Frees the windows that were retired before `quiet`; `restore` returns whether a window stays
    /// backed. Returns their number.
    pub fn reap(&self, quiet: u64, mut restore: impl FnMut(u32) -> bool) -> usize {
        self.with(|lists| {
            let mut reaped = 0;
            while let Some((stamp, window)) = lists.retired.front().copied()
                && stamp < quiet
            {
                lists.retired.pop_front();
                if restore(window) {
                    lists.backed.push(window);
                } else {
                    lists.unbacked.push(window);
                }
                reaped += 1;
            }
            reaped
        })
    }
}
