//! The counters of one actor (a head or a cleaner). Its one owner writes them without atomic
//! read-modify-writes; readers of the figures add up all actors. So an overwrite writes no cache
//! line that another core writes.

use crate::TableId;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

#[repr(align(128))]
pub struct Counters {
    /// Padded bytes of all entries appended by writers; log time.
    appended: AtomicU64,
    /// Key and value bytes of these entries.
    payload: AtomicU64,
    /// Padded bytes of all entries that died.
    dead: AtomicU64,
    pub expired: AtomicU64,
    pub evicted: AtomicU64,
    /// Padded bytes of tombstones: appended by writers, less those dropped by cleaners (so the
    /// number of one actor may wrap). They count as appended and as dead at once: only objects are
    /// live.
    pub tombstones: AtomicU64,
    /// Largest object version this actor has assigned.
    version_max: AtomicU64,
    pub stalls: AtomicU64,
    pub stall_ns: AtomicU64,
    /// Objects created less objects removed, per index: parts are counted apart.
    objects: Box<[AtomicI64]>,
    /// The same of those objects that expire.
    expiring: Box<[AtomicI64]>,
    /// Padded bytes of entries that died, per window; only grows (see `Segment::dead_base`).
    dead_by_window: Box<[AtomicU64]>,
}

/// Adds to a counter that only the caller writes.
#[inline(always)]
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

/// Subtracts from a counter that only the caller writes, modulo 2^64.
#[inline(always)]
pub fn sub(counter: &AtomicU64, n: u64) {
    add(counter, n.wrapping_neg());
}

impl Counters {
    pub fn new(windows: usize) -> Counters {
        Counters {
            appended: AtomicU64::new(0),
            payload: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            tombstones: AtomicU64::new(0),
            version_max: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            stall_ns: AtomicU64::new(0),
            objects: (0..TableId::INDEX_PLACES)
                .map(|_| AtomicI64::new(0))
                .collect(),
            expiring: (0..TableId::INDEX_PLACES)
                .map(|_| AtomicI64::new(0))
                .collect(),
            dead_by_window: (0..windows).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    #[inline(always)]
    pub fn note_append(&self, entry_bytes: usize, payload_bytes: usize, version: u64) {
        add(&self.appended, entry_bytes as u64);
        add(&self.payload, payload_bytes as u64);
        if version > self.version_max.load(Ordering::Relaxed) {
            self.version_max.store(version, Ordering::Relaxed);
        }
    }

    /// A tombstone was appended. It counts as alive in its window until the cleaner drops it.
    pub fn note_tombstone(&self, entry_bytes: usize) {
        // Appended first: sums read the dead bytes first, and the difference must not be negative.
        add(&self.appended, entry_bytes as u64);
        add(&self.dead, entry_bytes as u64);
        add(&self.tombstones, entry_bytes as u64);
    }

    /// Entries moved between windows before any other thread saw them: moves the `dead` bytes that
    /// died in one window to the other.
    pub fn move_dead(&self, from: usize, to: usize, dead: u64) {
        let before = self.dead_in(from);
        self.dead_by_window[from].store(before.wrapping_sub(dead), Ordering::Relaxed);
        add(&self.dead_by_window[to], dead);
    }

    /// All live entries, in all windows, died.
    pub fn note_all_dead(&self, live_bytes: u64) {
        add(&self.dead, live_bytes);
    }

    /// An entry of `window` died. Called while pinned, before the window could be reused.
    #[inline(always)]
    pub fn note_dead(&self, window: usize, entry_bytes: usize) {
        add(&self.dead, entry_bytes as u64);
        add(&self.dead_by_window[window], entry_bytes as u64);
    }

    /// A live entry of `window` was moved elsewhere, and no longer counts here.
    pub fn note_moved(&self, window: usize, entry_bytes: usize) {
        add(&self.dead_by_window[window], entry_bytes as u64);
    }

    #[inline(always)]
    pub fn note_objects(&self, table: TableId, change: i64) {
        let counter = &self.objects[table.index_place()];
        counter.store(counter.load(Ordering::Relaxed) + change, Ordering::Relaxed);
    }

    /// The number of objects that expire changed. A change of 0 writes nothing.
    #[inline(always)]
    pub fn note_expiring(&self, table: TableId, change: i64) {
        if change != 0 {
            let counter = &self.expiring[table.index_place()];
            counter.store(counter.load(Ordering::Relaxed) + change, Ordering::Relaxed);
        }
    }

    pub fn appended(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }

    pub fn payload(&self) -> u64 {
        self.payload.load(Ordering::Relaxed)
    }

    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    /// An object came with an adopted segment: appended, but not by a write.
    pub fn note_loaded(&self, entry_bytes: usize) {
        add(&self.appended, entry_bytes as u64);
    }

    pub fn version_max(&self) -> u64 {
        self.version_max.load(Ordering::Relaxed)
    }

    pub fn objects(&self, table: TableId) -> i64 {
        self.objects[table.index_place()].load(Ordering::Relaxed)
    }

    pub fn expiring(&self, table: TableId) -> i64 {
        self.expiring[table.index_place()].load(Ordering::Relaxed)
    }

    pub fn dead_in(&self, window: usize) -> u64 {
        self.dead_by_window[window].load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        (size_of::<Counters>()
            + 2 * size_of_val(&*self.objects)
            + size_of_val(&*self.dead_by_window)) as u64
    }
}
