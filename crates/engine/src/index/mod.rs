//! The index of one table: hash → location, in partitions that grow and shrink one by one.
//!
//! A partition is a range of hashes. Its buckets are ordered by hash at every size, so the position
//! of a scan is a hash and survives any growth. A partition is rebuilt from its slots alone (a
//! slot's tag *is* the hash below the partition's bits), a few tens of thousands of slots at a
//! time: no pause that p99.9 shows, and never two whole tables.
//!
//! **Invariants**
//! - X1: `count` is at least the number of slots in use, and `count + reserved` at most the slots
//!   of the view less a twentieth; so an insert that has counted itself finds room.
//! - X2: a view is retired only after `view` points to its successor, and freed by reclaim epoch.
//! - X3: `floor` is larger than the object version of every deleted key of the partition: a
//!   re-created key starts there.
//! - X4: a removal is counted before the key can be found absent because of it; counts never wrap
//!   and outlive every view.
//!
//! **Concurrency**: readers load `view` and read optimistically; writers and cleaners lock home
//! buckets (`bucket`); a resizer holds `resizing` and then the locks of all buckets of the view
//! (bucket::B4). Order: `resizing`, then buckets; a holder of a bucket lock never waits for
//! `resizing`.
//!
//! Paper: [Merritt17 §3.1] resizes one table by doubling; differs: partitions that grow by an
//! eighth keep the load factor above three quarters at all times (11.3 bytes per object at most),
//! which doubling cannot.

#[cfg_attr(any(loom, shuttle), path = "arena_model.rs")]
pub mod arena;
pub mod bucket;
pub(crate) mod change;
mod defragment;
pub mod old;
pub(crate) mod prefetch;
pub mod slot;

use crate::epoch::Epochs;
use crate::space::Space;
use crate::{KeyHash, TableId};
use arena::Arena;
use bucket::{Bucket, Locking, SLOTS, TAG_BITS, View};
use duramen_base::ids::Level;
use duramen_base::sync::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use duramen_base::waits::{LongWait, Resource};
use duramen_format::hash::HASH_BITS;
use old::OldViews;

/// Grow when this part of the slots is used: beyond it, too many keys overflow their home buckets.
const LOAD_MAX: f64 = 0.90;
/// Load after growing or shrinking; (64 / 7) / 0.81 = 11.3 bytes per object.
const LOAD_AFTER: f64 = 0.81;
/// Views that were made larger for expected keys are moved at the end if their load is below this:
/// 12.2 bytes per object.
const LOAD_ROOMY: f64 = 0.75;
/// Shrink below this load: a much lower one would waste memory, a higher one would make it thrash.
const LOAD_MIN: f64 = 0.62;
/// Maximum bytes of budget per partition: about 30,000 objects of 100 bytes, rebuilt in 0.2 ms.
const BUDGET_PER_PARTITION: u64 = 4 << 20;
const PARTITIONS_MIN: u64 = 16;
const PARTITIONS_MAX: u64 = 1 << 18;
/// Counters of removals in a partition: as many as fill its four lines. A key can look as if it had
/// come and gone only because of removals of other keys with the same counter.
const REMOVAL_CLASSES: usize = 20;
/// Bits of a packed view that hold the number of buckets.
const COUNT_BITS: u32 = 22;

/// A range of hashes and its buckets. First the line that readers read, then those that inserts and
/// deletes write.
#[repr(align(128))]
pub struct Partition {
    /// Address of the first bucket (a multiple of 64) and number of buckets, packed; 0 = no buckets
    /// yet.
    view: AtomicU64,
    /// With a log: not 0 if the last removals from this partition are not known to be durable
    /// (`session::order`).
    last_removed: AtomicU64,
    counts: Counts,
}

#[repr(align(64))]
struct Counts {
    count: AtomicI64,
    reserved: AtomicI64,
    floor: AtomicU64,
    resizing: AtomicU32,
    /// Removals since the start, by tag. They show whether an absent key has come and gone (X4).
    removals: [AtomicU64; REMOVAL_CLASSES],
}

/// Result of a resize.
#[derive(Debug, PartialEq, Eq)]
pub enum Resize {
    Done,
    /// No memory for the larger view.
    NoMemory,
    /// A slot is damaged (bucket::B7): no memory helps before it is put back.
    Damaged,
    /// A transaction holds one of the buckets, or another thread resizes.
    Busy,
}

/// The parts of the store that a resize uses.
#[derive(Clone, Copy)]
pub struct Resources<'a> {
    pub arena: &'a Arena,
    pub space: &'a Space,
    pub epochs: &'a Epochs,
}

impl Partition {
    pub fn new(floor: u64) -> Partition {
        Partition {
            view: AtomicU64::new(0),
            last_removed: AtomicU64::new(0),
            counts: Counts {
                count: AtomicI64::new(0),
                reserved: AtomicI64::new(0),
                floor: AtomicU64::new(floor),
                resizing: AtomicU32::new(0),
                removals: std::array::from_fn(|_| AtomicU64::new(0)),
            },
        }
    }

    /// The current buckets. The caller is pinned for as long as it uses them (X2).
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        // Acquire pairs with Release in `resize`: the slots copied into a new view are seen.
        View::new(unpack(self.view.load(Ordering::Acquire)))
    }

    pub fn count(&self) -> i64 {
        self.counts.count.load(Ordering::Relaxed)
    }

    pub fn floor(&self) -> u64 {
        self.counts.floor.load(Ordering::Relaxed)
    }

    /// 0: no removal from this partition can be lost. A reader that found a key absent sees here
    /// that the key may have been removed.
    #[inline(always)]
    pub fn last_removed(&self) -> u64 {
        self.last_removed.load(Ordering::Acquire)
    }

    /// A key was removed; `mark` distinguishes this removal, or at least its group, from all
    /// others.
    pub fn note_removal(&self, mark: u64) {
        // A swap: a thread that sees this mark has seen everything noted before the marks that it
        // replaced.
        self.last_removed.swap(mark, Ordering::AcqRel);
    }

    /// All removals that were noted up to this mark are durable.
    pub fn forget_removals(&self, mark: u64) {
        let last = &self.last_removed;
        let _ = last.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Records that an object with this version was deleted (X3).
    pub fn raise_floor(&self, deleted_version: u64) {
        self.counts
            .floor
            .fetch_max(deleted_version + 1, Ordering::Relaxed);
    }

    /// Counts an insert before it happens (X1). Returns false if there is no room: the caller
    /// resizes first.
    #[inline]
    pub fn count_insert(&self, buckets: usize, reserved_before: bool) -> bool {
        let counts = &self.counts;
        // SeqCst here and in `reserve`: of a concurrent insert and reservation, at least one sees
        // the other.
        let count = counts.count.fetch_add(1, Ordering::SeqCst) + 1;
        let fits = if reserved_before {
            // the slots are exceeded only if a transaction writes keys that it did not name
            count <= (buckets * SLOTS) as i64
        } else {
            count + counts.reserved.load(Ordering::SeqCst) <= room(buckets)
        };
        if fits {
            return true;
        }
        counts.count.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Takes a key out of its slot. The caller holds the home's lock.
    pub fn remove(&self, view: View<'_>, tag: u64, place: &AtomicU64) {
        // A thread that finds the slot empty sees this: `View::remove` empties it with Release.
        self.class_of(tag).fetch_add(1, Ordering::Relaxed); // X4: counted before the slot is empty
        view.remove(tag, place);
        self.counts.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Number of removals among the keys that are counted with this one. A caller reads it before
    /// it looks for the key, and again later: if both numbers are equal, a key that was absent both
    /// times was absent all the time.
    pub fn removals(&self, tag: u64) -> u64 {
        self.class_of(tag).load(Ordering::Acquire)
    }

    fn class_of(&self, tag: u64) -> &AtomicU64 {
        &self.counts.removals[tag as usize % REMOVAL_CLASSES]
    }

    /// Reserves room for inserts of a transaction. Returns false if the caller has to resize first.
    pub fn reserve(&self, inserts: i64) -> bool {
        let counts = &self.counts;
        let reserved = counts.reserved.fetch_add(inserts, Ordering::SeqCst) + inserts;
        if counts.count.load(Ordering::SeqCst) + reserved <= room(self.view().len()) {
            return true;
        }
        counts.reserved.fetch_sub(inserts, Ordering::Relaxed);
        false
    }

    /// True if the reserved room fits in the present view. The caller holds a bucket of the view,
    /// so the view stays.
    pub fn has_its_room(&self) -> bool {
        self.fits(self.view().len())
    }

    pub fn unreserve(&self, inserts: i64) {
        self.counts.reserved.fetch_sub(inserts, Ordering::Relaxed);
    }

    #[inline]
    pub fn wants_growth(&self, buckets: usize) -> bool {
        self.count() as f64 > LOAD_MAX * (buckets * SLOTS) as f64
    }

    #[inline]
    pub fn wants_shrinking(&self, buckets: usize) -> bool {
        buckets > 1
            && (self.count() as f64) < LOAD_MIN * (buckets * SLOTS) as f64
            && buckets != self.buckets_for(0)
    }

    /// True if the view has grown for keys that did not come.
    pub fn is_roomy(&self, buckets: usize) -> bool {
        buckets > 1
            && (self.count() as f64) < LOAD_ROOMY * (buckets * SLOTS) as f64
            && buckets != self.buckets_for(0)
    }

    /// Buckets for the present count and `extra` more keys.
    fn buckets_for(&self, extra: i64) -> usize {
        let keys =
            (self.count().max(0) + self.counts.reserved.load(Ordering::Relaxed) + extra) as f64;
        let buckets = (keys / (LOAD_AFTER * SLOTS as f64)).ceil() as usize;
        // Whole pairs of lines. Small views get slack: a few keys more than average in one bucket
        // are usual there.
        (if buckets < 8 { buckets + 1 } else { buckets }).next_multiple_of(2)
    }

    /// Locks the home bucket of a tag in the current view, and makes the first bucket if there is
    /// none.
    #[inline(always)]
    pub fn lock(
        &self,
        tag: u64,
        me: u16,
        with: Resources<'_>,
    ) -> Option<(View<'_>, usize, Locking)> {
        loop {
            let view = self.view();
            if view.len() != 0 {
                let home = view.home(tag);
                match view.lock(home, me) {
                    Locking::Moved => self.wait_for_move(view),
                    locking => return Some((view, home, locking)),
                }
            } else if self.resize(1, me, with) == Resize::NoMemory {
                return None;
            }
        }
    }

    /// Waits until a moved view has been replaced.
    #[cold]
    pub fn wait_for_move(&self, moved: View<'_>) {
        let mut waiting = LongWait::new(Resource::Partition, &[Resource::Pin, Resource::Head]);
        while std::ptr::eq(self.view().line(0), moved.line(0)) {
            waiting.wait();
        }
    }

    /// Moves the partition to a view with room for its keys and `extra` more. The caller is pinned
    /// and holds no bucket lock.
    #[cold]
    pub fn resize(&self, extra: i64, me: u16, with: Resources<'_>) -> Resize {
        self.exclude_resizers(|| {
            let buckets = self.buckets_for(extra);
            if buckets == self.view().len() {
                Resize::Done
            } else {
                self.move_to(buckets, me, with)
            }
        })
    }

    /// Moves the partition to a view with room for `expected` more keys, or for one if memory does
    /// not suffice for all. As [`resize`](Self::resize).
    pub fn grow(&self, expected: i64, me: u16, with: Resources<'_>) -> Resize {
        match self.resize(expected, me, with) {
            Resize::NoMemory if expected > 1 => self.resize(1, me, with),
            resized => resized,
        }
    }

    /// Moves the partition to another place at the same size. The caller is pinned and holds no
    /// bucket lock.
    pub fn replace(&self, me: u16, with: Resources<'_>) -> Resize {
        self.exclude_resizers(|| match self.view().len() {
            0 => Resize::Done,
            buckets => self.move_to(buckets, me, with),
        })
    }

    fn exclude_resizers(&self, work: impl FnOnce() -> Resize) -> Resize {
        let counts = &self.counts;
        if counts
            .resizing
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            let mut waiting = LongWait::new(Resource::Partition, &[Resource::Pin, Resource::Head]);
            while counts.resizing.load(Ordering::Acquire) != 0 {
                waiting.wait();
            }
            return Resize::Busy;
        }
        let result = work();
        counts.resizing.store(0, Ordering::Release);
        result
    }

    fn move_to(&self, mut buckets: usize, me: u16, with: Resources<'_>) -> Resize {
        let old = self.view();
        with.arena.reap(with.epochs.quiet_before());
        // Memory is taken before any bucket is locked, so that a full store does not pay for the
        // attempt.
        let Some(mut memory) = allocate(buckets, with) else {
            return Resize::NoMemory;
        };
        if !lock_all(old, me) {
            with.arena.retire(0, memory, buckets); // stamp 0: no reader has seen it
            return Resize::Busy;
        }
        // A model checker would try each of these loads as a step of its own.
        if !cfg!(any(loom, shuttle)) && !old.is_whole() {
            unlock_all(old);
            with.arena.retire(0, memory, buckets);
            return Resize::Damaged;
        }
        // The count is exact now; inserts went on until the last bucket was locked.
        while !self.fits(buckets) || !old.copy_into(view_of(memory, buckets)) {
            with.arena.retire(0, memory, buckets);
            buckets = (buckets + buckets / 8).next_multiple_of(2) + 2;
            let Some(larger) = allocate(buckets, with) else {
                unlock_all(old);
                return Resize::NoMemory;
            };
            memory = larger;
        }
        for bucket in 0..old.len() {
            old.mark_moved(bucket); // bucket::B4: all are locked
        }
        self.view.store(pack(memory, buckets), Ordering::Release);
        if old.len() != 0 {
            with.arena.retire(
                with.epochs.retire_stamp(),
                old.line(0).cast_mut(),
                old.len(),
            ); // X2
        }
        Resize::Done
    }

    fn fits(&self, buckets: usize) -> bool {
        self.count() + self.counts.reserved.load(Ordering::Relaxed) <= room(buckets)
    }

    /// Takes all buckets away; returns them packed. The caller is alone in the store.
    fn take(&self, floor: u64, removed: u64) -> u64 {
        self.last_removed.store(removed, Ordering::Release);
        for class in &self.counts.removals {
            class.fetch_add(1, Ordering::Relaxed);
        }
        self.counts.count.store(0, Ordering::Relaxed);
        self.counts.floor.fetch_max(floor, Ordering::Relaxed);
        self.view.swap(0, Ordering::AcqRel)
    }
}

fn allocate(buckets: usize, with: Resources<'_>) -> Option<*mut Bucket> {
    if buckets >= 1 << COUNT_BITS {
        None
    } else {
        let charge = |bytes| with.space.charge_beside_segments(bytes);
        with.arena.allocate(buckets, charge)
    }
}

/// A view of memory that the arena just gave.
fn view_of<'a>(memory: *mut Bucket, buckets: usize) -> View<'a> {
    // SAFETY: `allocate` gave zeroed memory for this many buckets, and zeroed buckets are empty
    // ones; no other thread has it.
    View::new(unsafe { std::slice::from_raw_parts(memory, buckets) })
}

/// Number of keys that a view of this many buckets takes before it must grow.
fn room(buckets: usize) -> i64 {
    (buckets * SLOTS - (buckets * SLOTS).div_ceil(20)) as i64
}

/// Locks every bucket, or none if a transaction holds one (which may itself be waiting for this
/// resize).
fn lock_all(view: View<'_>, me: u16) -> bool {
    for bucket in 0..view.len() {
        if view.try_lock(bucket, me) != Locking::Taken {
            (0..bucket).for_each(|locked| view.unlock(locked));
            return false;
        }
    }
    true
}

fn unlock_all(view: View<'_>) {
    (0..view.len()).for_each(|bucket| view.unlock(bucket));
}

fn pack(memory: *mut Bucket, buckets: usize) -> u64 {
    let address = memory as u64;
    debug_assert!(address < 1 << 48 && address.is_multiple_of(64) && buckets < 1 << COUNT_BITS);
    address >> 6 << COUNT_BITS | buckets as u64
}

#[inline(always)]
fn unpack<'a>(packed: u64) -> &'a [Bucket] {
    if packed == 0 {
        return &[];
    }
    let address = (packed >> COUNT_BITS << 6) as *const Bucket;
    // SAFETY: packed by `resize` from arena memory of that many buckets, which stays mapped while
    // the store lives and is reused only when no pinned session can hold this view (X2).
    unsafe { std::slice::from_raw_parts(address, (packed & ((1 << COUNT_BITS) - 1)) as usize) }
}

/// The index of one table.
pub struct Index {
    /// The table, once the index is in the registry of tables.
    pub(crate) table: TableId,
    partitions: Box<[Partition]>,
    /// Bits of the hash below the partition number.
    shift: u32,
    /// The number of the table's level; `NO_LEVEL` = the store's default.
    level: AtomicU8,
    /// When segments are loaded, entries of lower versions do not belong to this table.
    replay_floor: AtomicU64,
    /// With a log: the number of the last change that cleared the table; 0 = none.
    cleared: AtomicU64,
}

const NO_LEVEL: u8 = u8::MAX;

/// `shift`: bits of the hash below the partition number.
#[inline(always)]
fn tag_of(hash: KeyHash, shift: u32) -> u64 {
    hash.0 >> (shift - TAG_BITS) & ((1 << TAG_BITS) - 1)
}

impl Index {
    /// An index for a store with this budget; `floor` as in X3.
    pub fn new(memory_bytes: u64, floor: u64) -> Index {
        let partitions = (memory_bytes / BUDGET_PER_PARTITION)
            .next_power_of_two()
            .clamp(PARTITIONS_MIN, PARTITIONS_MAX);
        Index {
            table: TableId::DEFAULT,
            partitions: (0..partitions).map(|_| Partition::new(floor)).collect(),
            shift: HASH_BITS - partitions.trailing_zeros(),
            level: AtomicU8::new(NO_LEVEL),
            replay_floor: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub fn partition(&self, hash: KeyHash) -> &Partition {
        &self.partitions[(hash.0 >> self.shift) as usize]
    }

    #[inline(always)]
    pub fn tag(&self, hash: KeyHash) -> u64 {
        tag_of(hash, self.shift)
    }

    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Hash position of a tag in a partition: the cursor of a scan.
    pub fn position(&self, partition: usize, tag: u64) -> u64 {
        (partition as u64) << self.shift | tag << (self.shift - TAG_BITS)
    }

    /// Partition and tag at a hash position; `None` beyond the end.
    pub fn at_position(&self, position: u64) -> Option<(usize, u64)> {
        let partition = (position >> self.shift) as usize;
        (partition < self.partitions.len()).then(|| (partition, self.tag(KeyHash(position))))
    }

    /// Slots of all views, and keys in them.
    pub fn slots(&self) -> (u64, u64) {
        self.partitions.iter().fold((0, 0), |(slots, keys), p| {
            (
                slots + (p.view().len() * SLOTS) as u64,
                keys + p.count().max(0) as u64,
            )
        })
    }

    /// Forgets every key. Re-created keys get versions from `floor` on. `removed`: the number of
    /// this change in the log. The caller is alone in the store.
    pub fn clear(&self, floor: u64, removed: u64, with: Resources<'_>) {
        let old = self.take(floor, removed);
        (0..old.len()).for_each(|partition| old.give_back(partition, with));
    }

    /// As [`clear`](Self::clear), but returns the buckets to the caller.
    pub fn take(&self, floor: u64, removed: u64) -> OldViews {
        self.cleared.store(removed, Ordering::Release);
        let views = self.partitions.iter();
        let views = views.map(|partition| AtomicU64::new(partition.take(floor, removed)));
        OldViews::new(views.collect(), self.shift)
    }

    /// The number of the last change that cleared the table. Every guard that is inside entered
    /// after it (pairs with `take`).
    pub fn cleared(&self) -> u64 {
        self.cleared.load(Ordering::Acquire)
    }

    /// The table's own level.
    pub fn level(&self) -> Option<Level> {
        Level::from_number(self.level.load(Ordering::Relaxed))
    }

    pub fn set_level(&self, level: Option<Level>) {
        let number = level.map_or(NO_LEVEL, |level| level as u8);
        self.level.store(number, Ordering::Relaxed);
    }

    pub fn replay_floor(&self) -> u64 {
        self.replay_floor.load(Ordering::Relaxed)
    }

    /// Takes over the level, the replay floor and the last clear of the table whose parts it is
    /// for, before any thread sees it.
    pub(crate) fn follow(&self, whole: &Index) {
        self.set_level(whole.level());
        self.set_replay_floor(whole.replay_floor());
        self.cleared.store(whole.cleared(), Ordering::Relaxed);
    }

    /// Sets the lowest version that counts as an entry of the table, before segments are loaded.
    pub fn set_replay_floor(&self, floor: u64) {
        self.replay_floor.store(floor, Ordering::Relaxed);
    }

    pub fn overhead_bytes(&self) -> u64 {
        size_of_val(&*self.partitions) as u64
    }
}
