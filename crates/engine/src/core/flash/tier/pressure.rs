//! Requests for demotions by users that lack memory which only a demotion frees.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Time in ms for which copies take no memory after another user lacked some.
const OTHERS_FIRST_MS: u64 = 200;

/// Requests for demotions although segments have enough memory.
#[derive(Default)]
pub(crate) struct Pressure {
    /// Whether the index or a writer lacks memory, and whether promoted copies do.
    by_others: AtomicBool,
    by_copies: AtomicBool,
    /// Time at which the index or a writer last lacked memory, in ms.
    others_ms: AtomicU64,
    /// A writer of a cache found no memory for the index: the entries of one victim have to be
    /// evicted.
    by_index: AtomicBool,
    /// Segments that cleaning had freed, and used for it, at the last demotion.
    freed: AtomicU64,
    used: AtomicU64,
}

impl Pressure {
    /// Requests the demotion of one segment for the index or a writer.
    pub(crate) fn press(&self, now_ms: u64) {
        self.others_ms.store(now_ms, Ordering::Relaxed);
        self.by_others.store(true, Ordering::Relaxed);
    }

    /// As [`press`](Self::press), for promoted copies.
    pub(crate) fn press_for_copies(&self) {
        self.by_copies.store(true, Ordering::Relaxed);
    }

    /// Whether a demotion is requested.
    pub(crate) fn is_on(&self) -> bool {
        self.is_by_others() || self.by_copies.load(Ordering::Relaxed)
    }

    /// Whether a demotion is requested for the index or a writer.
    pub(crate) fn is_by_others(&self) -> bool {
        self.by_others.load(Ordering::Relaxed)
    }

    /// Ends the requests: they were met, or cannot be.
    pub(crate) fn end(&self) {
        self.by_others.store(false, Ordering::Relaxed);
        self.by_copies.store(false, Ordering::Relaxed);
    }

    /// True if another user lacks memory, or has just got some and may need more: copies then take
    /// none.
    pub(crate) fn others_come_first(&self, now_ms: u64) -> bool {
        self.is_by_others() || now_ms < self.others_ms.load(Ordering::Relaxed) + OTHERS_FIRST_MS
    }

    /// Whether the entries of one victim have to be evicted for the index.
    pub(crate) fn is_by_index(&self) -> bool {
        self.by_index.load(Ordering::Relaxed)
    }

    pub(crate) fn set_by_index(&self, on: bool) {
        self.by_index.store(on, Ordering::Relaxed);
    }

    /// Segments that cleaning had freed, and used for it, at the last demotion.
    pub(crate) fn gain(&self) -> (u64, u64) {
        let freed = self.freed.load(Ordering::Relaxed);
        (freed, self.used.load(Ordering::Relaxed))
    }

    pub(crate) fn set_gain(&self, (freed, used): (u64, u64)) {
        self.freed.store(freed, Ordering::Relaxed);
        self.used.store(used, Ordering::Relaxed);
    }
}
