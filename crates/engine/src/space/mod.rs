//! The memory of a store: one reserved region of windows, a hard budget, and the holder of each
//! window.
//!
//! **Invariants**
//! - S1: `budget.used()` is at least the memory of the region and the index arena that can be
//!   resident; it never exceeds the limit, except while memory is given back because the limit was
//!   lowered (budget::BU2).
//! - S2: a window is in exactly one state; only its holder changes it: `Unbacked → Head | Survivor
//!   → Closed → Victim → Retired → Backed (or Unbacked) → …`. A thread that demotes a segment to
//!   flash claims it as a victim, and closes it again when its memory is free.
//! - S3: a retired window is handed out again only when no session pinned before its retirement is
//!   still inside (epoch::E2).
//! - S4: the last `reserve` free windows go to survivors only, so that cleaning can always start.
//!   With a log, the windows just before these go to survivors and tombstones, so that deletes need
//!   not wait for cleaning.
//! - S5: a load may leave less than these reserves, if the store has more heads or cleaners than
//!   before, or less memory. Then the store is *scarce* until the reserves are whole: all sessions
//!   of a node append to its first head, and tombstones leave one window for cleaning. So two
//!   windows are enough for deletes, and cleaning frees more than their tombstones take. A load
//!   leaves two if it can, else one.
//!
//! **Layout**: a location is `region offset / 8`; the window number is the offset shifted by the
//! segment's size, so an address alone identifies its segment. The first [`SEGMENT_HEADER_BYTES`]
//! of each window stay free for the segment's header, so no entry has location 0.
//!
//! Paper: [Rumble14 §5.1] seglets; differs: segments are contiguous virtual windows and seglets are
//! the unit of backing, so an entry never straddles and a reader gets a plain slice.

pub mod budget;
mod expiring;
pub mod memory;
pub mod pool;
pub mod region;
pub mod reserves;
pub mod segment;

use crate::epoch::Epochs;
use crate::topology::Topology;
use crate::{Error, Options};
use budget::Budget;
use duramen_base::sync::{AtomicU32, Ordering};
use duramen_base::units::MIB;
use memory::Memory;
use pool::Pool;
use reserves::Reserves;
use segment::{Segment, State};
use std::sync::Arc;

/// The unit of backing: 64 KiB [Rumble14 §5.1].
pub const SEGLET_BYTES: usize = 64 << 10;
/// Bytes at the start of each window that are kept free for the segment's header on disk.
pub const SEGMENT_HEADER_BYTES: usize = duramen_format::segment::HEADER_BYTES;

const SEGMENT_BYTES_MAX: u64 = 8 * MIB;
/// Least bytes of a segment: it holds the longest entry (a little over 1 MiB) with room to spare.
pub const SEGMENT_BYTES_MIN: u64 = 2 * MIB;
/// Number of segments at which heads and survivors are a small part of the budget.
const SEGMENTS_WANTED: u64 = 512;
/// Maximum windows of a log on a large disk, in multiples of the budget: the segment table is part
/// of the budget.
const DISK_EXPANSION_MAX: u64 = 8;
/// Locations have 38 bits of 8-byte units.
const REGION_BYTES_MAX: u64 = 8 << 38;
/// Windows of each node that heads may take while memory is given back for a lowered limit: enough
/// that they rarely wait, and few enough that memory falls.
const SPARE_OF_LOWERING: usize = 4;
/// Free windows of each node that stay backed while memory is given back for a lowered limit.
const KEPT_OF_LOWERING: usize = 2;
/// Largest memory budget of a store, in bytes: half of the region.
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// Bytes of a segment in a store with this budget, unless its log was made with another size.
pub fn segment_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / SEGMENTS_WANTED)
        .next_power_of_two()
        .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

/// Bytes of a segment in a store with these options.
pub fn segment_bytes_of(options: &Options) -> u64 {
    let bytes = options.memory_bytes;
    let asked = options.log.as_ref().map_or(0, |log| log.segment_bytes);
    if asked == 0 && options.tiny && options.flash.is_some() {
        // A test gets enough segments for all users of segments.
        (bytes / 64)
            .next_power_of_two()
            .clamp(SEGLET_BYTES as u64, SEGMENT_BYTES_MIN)
    } else if asked == 0 {
        segment_bytes(bytes)
    } else {
        let minimum = match options.tiny {
            true => SEGLET_BYTES as u64,
            false => SEGMENT_BYTES_MIN,
        };
        let bytes = asked.next_power_of_two();
        bytes.clamp(minimum, SEGMENT_BYTES_MAX)
    }
}

/// Bytes of addresses for the segments of memory, and of a log.
fn addressed_bytes(options: &Options) -> u64 {
    let bytes_max = options.memory_bytes_max();
    // Twice the highest budget in address space: compacted segments leave the tails of their
    // windows unbacked. With a log more: memory may keep a short rest of every segment on disk in a
    // window.
    match &options.log {
        None => 2 * bytes_max,
        Some(log) => log
            .disk_segments_max
            .max(log.segments_found)
            .saturating_mul(segment_bytes_of(options))
            .saturating_add(bytes_max)
            .clamp(3 * bytes_max, DISK_EXPANSION_MAX * bytes_max)
            .min(REGION_BYTES_MAX),
    }
}

/// Slots of the flash device, each for a segment that keeps its window: not more than there are
/// addresses for.
pub fn flash_slots(options: &Options) -> u32 {
    let Some(flash) = &options.flash else {
        return 0;
    };
    let segment_bytes = segment_bytes_of(options);
    let most = REGION_BYTES_MAX.saturating_sub(addressed_bytes(options)) / segment_bytes;
    flash.slots(segment_bytes).min(most as u32)
}

/// The purpose of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Head,
    /// A head without free windows, for tombstones alone: deletes go on when writes cannot.
    Tombstones,
    /// A head, for writes that replace data of about the same size: they go on in memory when other
    /// writes cannot, up to a segment of live data more.
    Rewrite,
    Survivor,
    /// The kept entries of a compacted segment, which has its place on disk.
    Compacted,
    /// A segment of a side log, which gets no more than a head would.
    Side,
    /// Copies of entries that are on flash, which get what a head would get.
    Promoted,
}

impl Purpose {
    /// True if the window is for a head.
    pub fn is_for_head(self) -> bool {
        matches!(self, Purpose::Head | Purpose::Rewrite | Purpose::Tombstones)
    }
}

/// Region, budget, segment table and the pools of windows, one pool per NUMA node.
pub struct Space {
    pub memory: Memory,
    pub budget: Budget,
    pub segments: Box<[Segment]>,
    /// With a log: number of durable bytes of each window; `u32::MAX` = all, and none will follow.
    /// Without a log: empty.
    pub durable: Arc<[AtomicU32]>,
    pub reserves: Reserves,
    pools: Box<[Pool]>,
    segment_bytes: usize,
    windows_per_node: u32,
}

impl Space {
    /// `reserve`: windows per node that only survivors may take (S4). `tombstone_reserve`: windows
    /// per node before those, for tombstones.
    pub fn new(
        options: &Options,
        topology: &Topology,
        reserve: usize,
        tombstone_reserve: usize,
    ) -> Result<Space, Error> {
        let (bytes, bytes_max) = (options.memory_bytes, options.memory_bytes_max());
        let segment_bytes = segment_bytes_of(options);
        let nodes = topology.nodes();
        // Segments on flash keep their windows.
        let on_flash = u64::from(flash_slots(options)) * segment_bytes;
        let addressed = addressed_bytes(options) + on_flash;
        let windows_per_node = addressed.div_ceil(segment_bytes * nodes as u64) as u32;
        let windows = windows_per_node as usize * nodes;
        let memory = Memory::reserve(windows, segment_bytes as usize, options.huge_pages)?;
        for node in 0..nodes {
            let per_node = windows_per_node as usize * segment_bytes as usize;
            topology.prefer(node, memory.at(node * per_node), per_node);
        }
        let pools = (0..nodes as u32)
            .map(|n| Pool::new(n * windows_per_node..(n + 1) * windows_per_node, reserve));
        Ok(Space {
            budget: Budget::new(bytes, bytes_max),
            durable: (0..if options.log.is_some() { windows } else { 0 })
                .map(|_| AtomicU32::new(0))
                .collect(),
            reserves: Reserves::new(tombstone_reserve),
            segments: (0..windows).map(|_| Segment::default()).collect(),
            pools: pools.collect(),
            segment_bytes: segment_bytes as usize,
            windows_per_node,
            memory,
        })
    }

    pub fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    pub fn nodes(&self) -> usize {
        self.pools.len()
    }

    /// Memory of a location.
    #[inline(always)]
    pub fn at(&self, location: u64) -> *mut u8 {
        self.memory.at(Space::offset(location))
    }

    /// Location of an offset in the region.
    #[inline(always)]
    pub fn location(offset: usize) -> u64 {
        (offset >> 3) as u64
    }

    /// Offset in the region of a location.
    #[inline(always)]
    pub fn offset(location: u64) -> usize {
        (location as usize) << 3
    }

    #[inline(always)]
    pub fn window_of(&self, location: u64) -> usize {
        self.memory.window_of(Space::offset(location))
    }

    /// Distance in bytes of a location from the start of its window.
    #[inline(always)]
    pub fn offset_in_window(&self, location: u64) -> u32 {
        ((location as usize) << 3 & (self.segment_bytes - 1)) as u32
    }

    /// True if the entry at a location could still be lost; never without a log.
    #[inline(always)]
    pub fn is_undurable(&self, location: u64) -> bool {
        match self.durable.get(self.window_of(location)) {
            // Relaxed: a thread that found the location has seen its window opened. Later values
            // are only larger.
            Some(durable) => self.offset_in_window(location) >= durable.load(Ordering::Relaxed),
            None => false,
        }
    }

    /// Offset in the region at which a window starts.
    pub fn offset_of(&self, window: u32) -> usize {
        self.memory.offset_of(window)
    }

    pub fn node_of(&self, window: u32) -> usize {
        (window / self.windows_per_node) as usize
    }

    pub fn windows_of_node(&self, node: usize) -> std::ops::Range<u32> {
        let first = node as u32 * self.windows_per_node;
        first..first + self.windows_per_node
    }

    /// Windows that a head on this node could take now without touching the reserve; the measure of
    /// memory pressure.
    pub fn free_windows(&self, node: usize) -> usize {
        self.free_windows_for(node, Purpose::Head)
    }

    pub fn free_windows_for(&self, node: usize, purpose: Purpose) -> usize {
        self.raw_free_windows(node)
            .saturating_sub(self.reserves.beside(&self.pools[node], purpose))
    }

    /// True if a survivor may take a window for good: it leaves one for each other context that
    /// cleans (S4), or one for all of them (S5).
    pub fn reserve_is_whole(&self, node: usize) -> bool {
        self.raw_free_windows(node) >= self.reserves.of_contexts(&self.pools[node])
    }

    /// Ends scarcity if the reserves are whole (S5). Called now and then.
    pub fn tend_scarcity(&self) {
        if self.reserves.are_scarce() && self.reserves_are_whole() {
            self.reserves.set_scarce(false);
        }
    }

    /// True if windows are free for all contexts that clean and for the tombstones of all heads.
    fn reserves_are_whole(&self) -> bool {
        let reserve = |node: usize| self.reserves.beside(&self.pools[node], Purpose::Head);
        let is_whole = |node| self.raw_free_windows(node) >= reserve(node);
        (0..self.nodes()).all(is_whole)
    }

    fn raw_free_windows(&self, node: usize) -> usize {
        let unbacked = self.budget.free() as usize / self.segment_bytes / self.pools.len();
        self.pools[node].backed() + unbacked
    }

    /// Takes a window for a head or a survivor, fully backed and charged. `None`: none is free now.
    /// Retired windows are free after [`reap`](Self::reap).
    pub fn acquire(&self, node: usize, purpose: Purpose, now_ms: u64, tick: u64) -> Option<u32> {
        let pool = &self.pools[node];
        let window = {
            // if two heads come at once, the second must see the windows that the first has left
            // (S4)
            let _turn = pool.turn();
            let is_cleaners = matches!(purpose, Purpose::Survivor | Purpose::Compacted);
            if !is_cleaners && self.free_windows_for(node, purpose) == 0 {
                return None;
            }
            pool.take_backed()
                .or_else(|| self.back_one(node, purpose))?
        };
        let state = match purpose {
            Purpose::Survivor | Purpose::Compacted | Purpose::Side => State::Survivor,
            Purpose::Head | Purpose::Rewrite | Purpose::Tombstones => State::Head,
            Purpose::Promoted => State::Promoted,
        };
        let segment = &self.segments[window as usize];
        segment.open(state, self.segment_bytes as u32, now_ms, tick);
        Some(window)
    }

    /// Takes a window that backs only `bytes` (rounded up to seglets): for compaction when no whole
    /// window is left.
    pub fn acquire_partial(
        &self,
        node: usize,
        bytes: usize,
        now_ms: u64,
        tick: u64,
    ) -> Option<u32> {
        let bytes = bytes.next_multiple_of(SEGLET_BYTES).min(self.segment_bytes);
        self.budget.charge(bytes as u64).then_some(())?;
        let Some(window) = self.pools[node].take_unbacked() else {
            self.budget.release(bytes as u64);
            return None;
        };
        self.open_partial(window, State::Survivor, bytes, now_ms, tick);
        Some(window)
    }

    /// Takes a window of `bytes` for tombstones, if a scarce store has as much beside the window
    /// for cleaning and no further whole window is free (S5).
    pub fn acquire_short(&self, node: usize, bytes: usize, now_ms: u64, tick: u64) -> Option<u32> {
        let _turn = self.pools[node].turn();
        let spare = self.unbacked_reserve(node, Purpose::Tombstones);
        let left = self.budget.free().saturating_sub(spare) as usize;
        let got = (left.min(self.segment_bytes) / SEGLET_BYTES) * SEGLET_BYTES;
        let is_enough = self.reserves.are_scarce() && got >= SEGMENT_HEADER_BYTES + bytes;
        (is_enough && self.budget.charge_leaving(got as u64, spare)).then_some(())?;
        let Some(window) = self.pools[node].take_unbacked() else {
            self.budget.release(got as u64);
            return None;
        };
        self.open_partial(window, State::Head, got, now_ms, tick);
        Some(window)
    }

    /// Ends a load: the reserves fill up again before a head gets a window (S5).
    pub fn end_loading(&self) {
        self.reserves.end_loading();
        self.reserves.set_scarce(!self.reserves_are_whole());
    }

    /// As [`acquire_partial`](Self::acquire_partial), for a segment that is loaded.
    pub fn acquire_for_loading(&self, node: usize, bytes: usize, now_ms: u64) -> Option<u32> {
        let bytes = bytes.next_multiple_of(SEGLET_BYTES).min(self.segment_bytes);
        let missing = |pool: &Pool| self.reserves.missing_of_loading(pool);
        let missing: usize = match self.reserves.are_of_all_nodes() {
            true => self.pools.iter().map(missing).sum(),
            false => missing(&self.pools[node]),
        };
        let spare = (missing * self.segment_bytes) as u64;
        self.budget
            .charge_leaving(bytes as u64, spare)
            .then_some(())?;
        let Some(window) = self.pools[node].take_unbacked() else {
            self.budget.release(bytes as u64);
            return None;
        };
        self.open_partial(window, State::Survivor, bytes, now_ms, 0);
        Some(window)
    }

    fn open_partial(&self, window: u32, state: State, bytes: usize, now_ms: u64, tick: u64) {
        self.memory.back_no_more(window, bytes); // S1: no more than was charged
        self.segments[window as usize].open(state, bytes as u32, now_ms, tick);
    }

    /// Gives back a window that was acquired and that no other thread has seen.
    pub fn abandon(&self, node: usize, window: u32) {
        self.unback(window);
        self.pools[node].put_unbacked(window);
    }

    /// Bytes of the budget that are missing in the reserve (S4).
    fn unbacked_reserve(&self, node: usize, purpose: Purpose) -> u64 {
        let missing = self.reserves.missing(&self.pools[node], purpose);
        (missing * self.segment_bytes) as u64
    }

    /// Charges memory that is no part of a segment (index, tables). Does not touch the reserve,
    /// except during a load.
    #[must_use]
    pub fn charge_beside_segments(&self, bytes: u64) -> bool {
        let loading = self.reserves.spare_of_loading() > 0;
        let missing = self.pools.iter().map(|pool| match loading {
            true => self.reserves.missing_of_loading(pool),
            false => self.reserves.missing(pool, Purpose::Head),
        });
        let spare = missing.sum::<usize>() * self.segment_bytes;
        self.budget.charge_leaving(bytes, spare as u64)
    }

    /// Gives memory of a free window back to the budget, if there is one beyond the reserve.
    /// Returns whether there was one.
    pub fn release_one(&self, node: usize) -> bool {
        self.trim(
            node,
            self.reserves.beside(&self.pools[node], Purpose::Head),
            1,
        ) > 0
    }

    fn back_one(&self, node: usize, purpose: Purpose) -> Option<u32> {
        let pool = &self.pools[node];
        let spare = self.unbacked_reserve(node, purpose);
        self.budget
            .charge_leaving(self.segment_bytes as u64, spare)
            .then_some(())?;
        let window = pool.take_unbacked();
        if window.is_none() {
            self.budget.release(self.segment_bytes as u64);
        }
        window
    }

    /// Touches the memory of one free window ahead of its use, so that no writer pays for first
    /// touches. Returns whether it did.
    pub fn prepare_one(&self, node: usize, wanted: usize) -> bool {
        let pool = &self.pools[node];
        if pool.backed() >= wanted || self.free_windows(node) <= wanted {
            return false;
        }
        let Some(window) = self.back_one(node, Purpose::Head) else {
            return false;
        };
        self.memory.populate(window);
        let segment = &self.segments[window as usize];
        segment.set_committed(self.segment_bytes as u32);
        segment.set_state(State::Backed);
        pool.put_backed(window);
        true
    }

    /// Retires a cleaned window (S2): it becomes free when its readers have left.
    pub fn retire(&self, node: usize, window: u32, epochs: &Epochs) {
        self.segments[window as usize].set_state(State::Retired);
        self.pools[node].retire(epochs.retire_stamp(), window);
    }

    /// Frees retired windows that no reader can see any more (S3), each after `forget` has dropped
    /// what is known about it. Returns their number.
    pub fn reap(&self, node: usize, epochs: &Epochs, forget: impl Fn(u32)) -> usize {
        let pool = &self.pools[node];
        if pool.retired() == 0 {
            return 0;
        }
        let quiet = epochs.quiet_before();
        pool.reap(quiet, |window| {
            forget(window);
            let segment = &self.segments[window as usize];
            let whole = segment.committed_bytes() as usize == self.segment_bytes;
            if whole {
                segment.set_state(State::Backed);
            } else {
                self.unback(window);
            }
            whole
        })
    }

    /// Gives the memory of free windows beyond `keep` back to the system, at most `limit` of them.
    /// Returns their number.
    pub fn trim(&self, node: usize, keep: usize, limit: usize) -> usize {
        let pool = &self.pools[node];
        let mut trimmed = 0;
        while trimmed < limit && pool.backed() > keep {
            let Some(window) = pool.take_backed() else {
                break;
            };
            self.unback(window);
            pool.put_unbacked(window);
            trimmed += 1;
        }
        trimmed
    }

    /// Gives memory of free windows of a node back to the system while the limit of the budget is
    /// below the memory in use, at most `limit` windows, and lets the ceiling follow.
    pub fn follow_limit(&self, node: usize, limit: usize) {
        if !self.budget.is_above_limit() {
            return;
        }
        self.trim(node, KEPT_OF_LOWERING, limit);
        let kept = (0..self.nodes()).map(|node| self.unbacked_reserve(node, Purpose::Head));
        let spare = self.nodes() * SPARE_OF_LOWERING * self.segment_bytes;
        self.budget.follow(kept.sum(), spare as u64);
    }

    /// The first bytes of a segment that the caller has claimed and that is in memory.
    pub fn bytes_of(&self, window: u32, length: usize) -> &[u8] {
        assert!(length <= self.segments[window as usize].committed_bytes() as usize);
        let at = self.memory.at(self.offset_of(window));
        // SAFETY: the segment is closed, so its bytes do not change, and claimed by the caller, so
        // its memory stays.
        unsafe { std::slice::from_raw_parts(at, length) }
    }

    /// A claimed segment's bytes are on flash, and no reader uses its memory any more: frees the
    /// memory and ends the claim.
    pub fn forget_memory(&self, window: u32) {
        let segment = &self.segments[window as usize];
        let committed = segment.committed_bytes();
        self.memory.decommit(window);
        segment.set_committed(0);
        self.budget.release(u64::from(committed));
        segment.unclaim();
    }

    /// Decommits a whole window.
    fn unback(&self, window: u32) {
        let segment = &self.segments[window as usize];
        let committed = segment.committed_bytes() as usize;
        self.memory.decommit(window);
        segment.set_committed(0);
        segment.set_state(State::Unbacked);
        self.budget.release(committed as u64);
    }

    /// Decommits the unused tail of a segment that gets no more appends, in seglets. Called by its
    /// holder (S2).
    pub fn cut_tail(&self, window: u32) {
        let segment = &self.segments[window as usize];
        let committed = segment.committed_bytes() as usize;
        let needed = (segment.appended_bytes() as usize).next_multiple_of(SEGLET_BYTES);
        if needed < committed {
            self.memory.decommit_from(window, needed);
            segment.set_committed(needed as u32);
            self.budget.release((committed - needed) as u64);
        }
    }

    /// Number of windows that are retired and not yet free, and of free windows that are backed.
    pub fn waiting(&self, node: usize) -> (usize, usize) {
        (self.pools[node].retired(), self.pools[node].backed())
    }

    /// Bytes of the segment table and the pools.
    pub fn overhead_bytes(&self) -> u64 {
        let table = size_of_val(&*self.segments) + size_of_val(&*self.durable);
        table as u64 + self.segments.len() as u64 * 4
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A window that was prepared and given back without ever having been used once stayed charged.
    #[test]
    fn whatever_becomes_of_a_window_its_charge_goes_with_it() {
        let options = Options::new(16 * MIB);
        let space = Space::new(&options, &Topology::single(), 1, 0).unwrap();
        let epochs = Epochs::new(1, duramen_base::ticks::Ticks::counting());
        assert!(space.prepare_one(0, 2) && space.prepare_one(0, 2) && !space.prepare_one(0, 2));
        assert_eq!(space.budget.used(), 2 * space.segment_bytes() as u64);
        let head = space.acquire(0, Purpose::Head, 0, 0).unwrap();
        let partial = space.acquire_partial(0, 100_000, 0, 0).unwrap();
        assert_eq!(space.segments[partial as usize].committed_bytes(), 131_072);
        for window in [head, partial] {
            space.cut_tail(window);
            space.segments[window as usize].close();
            assert!(space.segments[window as usize].claim());
            space.retire(0, window, &epochs);
        }
        assert_eq!(space.reap(0, &epochs, |_| {}), 2);
        while space.trim(0, 0, 1) > 0 {}
        assert_eq!(space.budget.used(), 0);
        let states = space.segments.iter().map(|segment| segment.state());
        assert!(states.into_iter().all(|state| state == State::Unbacked));
    }

    /// S5: a load that left less than the reserves once left nothing for tombstones.
    #[test]
    fn a_load_leaves_windows_for_tombstones_and_cleaning_until_the_reserves_are_whole() {
        let space = Space::new(&Options::new(16 * MIB), &Topology::single(), 3, 2).unwrap();
        let epochs = Epochs::new(1, duramen_base::ticks::Ticks::counting());
        let whole = space.segment_bytes();
        space.reserves.begin_loading();
        let load = |bytes| space.acquire_for_loading(0, bytes, 0);
        let loaded: Vec<u32> = std::iter::from_fn(|| load(whole)).collect();
        assert_eq!(loaded.len(), 6, "two windows are left");
        space.reserves.leave_less();
        assert!(load(whole * 3 / 4).is_some() && load(whole).is_none());
        space.end_loading();
        assert!(space.reserves.are_scarce());
        let take = |purpose| space.acquire(0, purpose, 0, 0);
        assert_eq!(
            (take(Purpose::Head), take(Purpose::Tombstones)),
            (None, None)
        );
        assert!(space.acquire_short(0, whole / 2, 0, 0).is_none());
        let short = space.acquire_short(0, whole / 8, 0, 0).unwrap();
        let segment = &space.segments[short as usize];
        assert_eq!(segment.committed_bytes() as usize, whole / 4);
        assert_eq!(segment.state(), State::Head);
        assert!(
            space.acquire_short(0, 1, 0, 0).is_none(),
            "one is for cleaning"
        );
        let clean = |window: u32| {
            space.segments[window as usize].close();
            assert!(space.segments[window as usize].claim());
            space.retire(0, window, &epochs);
            space.reap(0, &epochs, |_| {});
            space.tend_scarcity();
        };
        clean(loaded[0]);
        assert!(take(Purpose::Tombstones).is_some() && take(Purpose::Tombstones).is_none());
        loaded[1..4].iter().for_each(|window| clean(*window));
        assert!(space.reserves.are_scarce());
        clean(loaded[4]);
        assert!(!space.reserves.are_scarce(), "five windows are free");
    }
}
