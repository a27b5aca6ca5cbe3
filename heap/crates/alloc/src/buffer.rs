//! The page buffer: the pages that are shown, the owner of each unit, and the order of eviction.
//!
//! **Invariants**
//! - B1: a thread that makes a unit busy owns it alone: its content in cache and on flash, and its
//!   pages. A thread that owns a busy unit waits for no other one.
//! - B2: a page is writable if and only if its unit marks it as dirty: a write to a clean page
//!   faults.
//! - B3: at most `pages_max` pages are shown, and one for each thread that is about to show one.
//! - B4: a page that is pinned for writing stays writable, and so dirty, until it is unpinned: the
//!   kernel or a device may write to it at any moment, without a fault.
//! - B5: the queue has at most three entries for each page of the buffer.
//!
//! **Concurrency** units lie in shards with a lock each. Locks of this file are held for moments
//! and never while a page of the arena is touched.
//!
//! Paper: [Badam11 §3.2, Page Buffer]: first in, first out.

use crate::chunk::Place;
use crate::regions::Regions;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;
/// Queue entries for each page of the buffer (B5): enough that only one fault in as many as the
/// buffer has pages tidies the queue.
const QUEUED_FOR_EACH: usize = 3;
/// Bytes of RAM for each page of the buffer: a queue and a sorted copy of it.
pub(crate) const QUEUE_BYTES: usize = QUEUED_FOR_EACH * 2 * size_of::<u64>();

/// The page buffer; see the file's head.
pub(crate) struct Buffer {
    shards: Box<[Shard]>,
    order: Mutex<Order>,
    shown: AtomicUsize,
    pub pages_max: usize,
    regions: Regions,
}

/// Pages in the order in which they were shown, each with its number within its unit; some may be
/// gone, and some may be in the queue twice.
struct Order {
    pages: VecDeque<u64>,
    /// Sorted copy for tidying: a fault handler allocates no memory.
    sorted: Vec<u64>,
    most: usize,
}

/// Pages are numbered by 40 bits (the cache relies on that too); the bits above hold the page's
/// number within its unit.
const PAGE_BITS: u32 = 40;
const PAGES: u64 = (1 << PAGE_BITS) - 1;
/// Marks a page as seen, in a sorted list.
const MET: u64 = 1 << 63;

impl Order {
    /// Drops pages for which `is_shown` is false, and all but the first entry of others.
    fn tidy(&mut self, is_shown: impl Fn(u64, u32) -> bool) {
        let Order { pages, sorted, .. } = self;
        sorted.clear();
        sorted.extend(pages.iter());
        sorted.sort_unstable();
        sorted.dedup();
        pages.retain(|page| {
            let place = sorted.binary_search_by_key(page, |entry| *entry & !MET);
            let place = place.expect("it was copied from here");
            let is_first = sorted[place] & MET == 0;
            sorted[place] |= MET;
            is_first && is_shown(*page & PAGES, (*page >> PAGE_BITS) as u32)
        });
    }
}

#[derive(Default)]
struct Shard {
    units: Mutex<HashMap<u64, Unit, BuildHasherDefault<Mix>>>,
    freed: Condvar,
}

/// Hashes one number.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A unit with a page that is shown or in work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unit {
    busy: bool,
    waited_for: bool,
    /// Its pages that are shown, and those that are writable (B2), one bit each.
    pub shown: u32,
    pub dirty: u32,
    pub pins: u32,
    /// Its pages that were pinned for writing, one bit each, until no page of it is pinned (B4).
    pub written_by_others: u32,
}

/// Required work on a page.
pub(crate) enum Claim {
    /// None, because another thread did the work: look again.
    Settled,
    /// The page is shown, but a write to it faulted; writes must be allowed. The caller owns the
    /// unit.
    Write(Unit),
    /// The page is not shown. The caller owns the unit.
    Show(Unit),
    /// The page is shown as required; if another thread did that, look again. If the program has
    /// taken the page away (`madvise`), it is missing nevertheless. The caller owns the unit.
    There(Unit),
}

/// The result of [`Buffer::try_own`].
pub(crate) enum Try {
    /// No page of the unit is shown.
    Gone,
    /// Another thread owns the unit, or the unit is pinned.
    Later,
    Own(Unit),
}

impl Buffer {
    /// A buffer of at most `pages_max` pages in an arena of `arena_pages` pages, with at most
    /// `tables_max` pages of the page table.
    pub fn new(
        pages_max: usize,
        tables_max: u64,
        arena_pages: u64,
        frees_tables: bool,
    ) -> std::io::Result<Buffer> {
        let shards: Box<[Shard]> = (0..SHARDS).map(|_| Shard::default()).collect();
        for shard in &shards {
            let mut units = shard.units.lock().unwrap_or_else(PoisonError::into_inner);
            units.reserve(pages_max / SHARDS * 2 + 8);
        }
        Ok(Buffer {
            shards,
            order: Mutex::new(Order {
                pages: VecDeque::with_capacity(QUEUED_FOR_EACH * pages_max),
                sorted: Vec::with_capacity(QUEUED_FOR_EACH * pages_max),
                most: QUEUED_FOR_EACH * pages_max,
            }),
            shown: AtomicUsize::new(0),
            pages_max,
            regions: Regions::new(arena_pages, tables_max, frees_tables)?,
        })
    }

    fn shard(&self, unit: u64) -> &Shard {
        let mut mix = Mix::default();
        mix.write_u64(unit);
        &self.shards[mix.finish() as usize % SHARDS]
    }

    /// Finds the work that a fault on a page requires. Waits if another thread works on the unit
    /// (B1).
    pub fn claim(&self, place: &Place, write: Option<bool>) -> Claim {
        let shard = self.shard(place.unit);
        let mut units = lock(&shard.units);
        let unit = units.entry(place.unit).or_default();
        if unit.busy {
            unit.waited_for = true;
            drop(self.wait(shard, units, place.unit));
            return Claim::Settled;
        }
        let bit = 1 << place.nth;
        if unit.shown & bit == 0 {
            unit.busy = true;
            return Claim::Show(*unit);
        }
        if write != Some(false) && unit.dirty & bit == 0 {
            unit.busy = true;
            return Claim::Write(*unit);
        }
        unit.busy = true;
        Claim::There(*unit)
    }

    /// The unit, owned by the caller alone.
    pub fn own(&self, unit: u64) -> Unit {
        let shard = self.shard(unit);
        let mut units = lock(&shard.units);
        loop {
            let found = units.entry(unit).or_default();
            if !found.busy {
                found.busy = true;
                return *found;
            }
            found.waited_for = true;
            units = self.wait(shard, units, unit);
        }
    }

    /// As [`own`](Self::own), but does not wait.
    pub fn try_own(&self, unit: u64) -> Try {
        let mut units = lock(&self.shard(unit).units);
        match units.get_mut(&unit) {
            None => Try::Gone,
            Some(found) if found.busy || found.pins > 0 => Try::Later,
            Some(found) => {
                found.busy = true;
                Try::Own(*found)
            }
        }
    }

    /// The units in this range of pages that have a page that is shown or in work.
    pub fn units_in(&self, pages: std::ops::Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let units = lock(&shard.units);
            found.extend(units.keys().filter(|unit| pages.contains(unit)));
        }
        found
    }

    /// Waits until the unit is not busy.
    fn wait<'s>(&self, shard: &'s Shard, mut units: Units<'s>, unit: u64) -> Units<'s> {
        while units.get(&unit).is_some_and(|unit| unit.busy) {
            let waited = shard.freed.wait(units);
            units = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(unit) = units.get_mut(&unit) {
                unit.waited_for |= unit.busy;
            }
        }
        units
    }

    /// Releases a unit, with its shown and dirty pages as they are now.
    pub fn release(&self, name: u64, now: Unit) {
        let shard = self.shard(name);
        let mut units = lock(&shard.units);
        let unit = units.get_mut(&name).expect("a busy unit is here (B1)");
        assert!(unit.busy, "a busy unit stays busy (B1)");
        let waited_for = unit.waited_for;
        if now.shown == 0 && now.pins == 0 {
            units.remove(&name);
        } else {
            *unit = Unit {
                busy: false,
                waited_for: false,
                ..now
            };
        }
        drop(units);
        if waited_for {
            shard.freed.notify_all();
        }
    }

    /// Counts a page that is about to be shown. Returns true if too many are shown now: the caller
    /// evicts some.
    pub fn enter(&self) -> bool {
        self.shown.fetch_add(1, Ordering::AcqRel) + 1 > self.pages_max
    }

    /// Uncounts pages that are not shown any more, or were not shown after all.
    pub fn leave(&self, pages: usize) {
        self.shown.fetch_sub(pages, Ordering::AcqRel);
    }

    pub fn shown(&self) -> usize {
        self.shown.load(Ordering::Acquire)
    }

    /// Queues a page: it will be evicted after the pages that were shown before.
    pub fn queue(&self, page: u64, place: &Place) {
        let mut order = lock(&self.order);
        if order.pages.len() >= order.most {
            order.tidy(|page, nth| self.is_shown(page - u64::from(nth), nth)); // B5
        }
        order
            .pages
            .push_back(page | u64::from(place.nth) << PAGE_BITS);
    }

    /// Entries in the queue.
    #[cfg(test)]
    pub fn queued(&self) -> usize {
        lock(&self.order).pages.len()
    }

    fn is_shown(&self, unit: u64, nth: u32) -> bool {
        let units = lock(&self.shard(unit).units);
        units
            .get(&unit)
            .is_some_and(|unit| unit.shown >> nth & 1 == 1)
    }

    /// The oldest pages, at most `count`.
    pub fn oldest(&self, count: usize, into: &mut Vec<u64>) {
        let mut order = lock(&self.order);
        let count = count.min(order.pages.len());
        into.extend(order.pages.drain(..count).map(|entry| entry & PAGES));
    }

    pub fn regions(&self) -> &Regions {
        &self.regions
    }
}

type Units<'s> = MutexGuard<'s, HashMap<u64, Unit, BuildHasherDefault<Mix>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
