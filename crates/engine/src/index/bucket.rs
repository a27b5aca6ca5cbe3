//! One cache line of the index: a control word and seven slots.
//!
//! **Layout**
//!
//! ```text
//! slot     | tag: 22 | access: 3 | check: 1 | location: 38 (8-byte units) |    0 = empty
//! control  | serial: 8 | - : 8 | reach: 16 | overflow: 12 | owner: 16 | - | MOVED | TRANSACTION | LOCKED |
//! ```
//!
//! **Invariants**
//! - B1: only the holder of the lock of a key's *home* bucket changes the key's slot, in whichever
//!   bucket the slot is. An empty slot is claimed by compare-and-swap, because holders of other
//!   homes may want it too. A flipped bit is put back without the lock (`core::slots`).
//! - B2: no key is moved between slots within a view. If a reader scans home and overflow and does
//!   not find the key, the key was absent at some moment of the scan. So the reader needs no
//!   version check, only single-word loads.
//! - B3: readers wait for a bucket whose TRANSACTION bit is set: the slots that the transaction has
//!   published so far are not yet visible. `serial` counts transactions (modulo 256), so a reader
//!   notices one that began during its scan.
//! - B4: MOVED is set, together with the lock, on *all* buckets of a view before the first slot is
//!   copied to the next view; the view's slots never change again.
//! - B5: `overflow` counts the keys homed here that are in other buckets, at most `reach` steps
//!   along the probe sequence. Both stay at their largest values once they reach them: "as many or
//!   more", and "anywhere". A view that is rebuilt counts anew.
//! - B6: a bucket takes any number of keys. A write for a client is refused if the bucket is
//!   crowded; an entry that was acknowledged elsewhere is always taken.
//! - B7: the number of ones in a slot is even, by its bit `check`. So a flipped bit shows in the
//!   slot, and in the exclusive or of all slots of its bucket. A search for a client or a load
//!   ([`View::find_or_damaged`]) takes a damaged slot as one that may be the key's. Searches and
//!   walks of other kinds skip it; those to whom the key must not look absent check for damage
//!   before ([`View::has_damage`]). A view with a damaged slot is not rebuilt: by a wrong tag the
//!   slot would go to another home, where no search for its key passes.
//!
//! Paper: [Merritt17 §3.1, Figure 4] cache-line buckets, optimistic readers; differs: by B2 a
//! reader need not retry because of a writer, only because of a transaction (B3); with tags a miss
//! costs one line.

pub use super::slot::{Slot, TAG_BITS};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::{AtomicU64, Ordering};
use duramen_base::waits::{LongWait, Resource};

pub const SLOTS: usize = 7;

const LOCKED: u64 = 1;
const TRANSACTION: u64 = 1 << 1;
const MOVED: u64 = 1 << 2;
const OWNER_SHIFT: u32 = 4;
const OWNER_MASK: u64 = 0xffff << OWNER_SHIFT;
const OVERFLOW_SHIFT: u32 = 20;
const OVERFLOW_ONE: u64 = 1 << OVERFLOW_SHIFT;
const OVERFLOW_MASK: u64 = 0xfff << OVERFLOW_SHIFT;
const REACH_SHIFT: u32 = 32;
const REACH_MASK: u64 = 0xffff << REACH_SHIFT;
/// Anywhere in the view (B5).
const REACH_MAX: usize = 0xffff;
/// Number of keys outside of their home bucket that makes it crowded. Seven are usual and thirty
/// are never seen: this many mean that the hash is broken, or that the seed is known. A reader of
/// one of these keys may have to look at the entries of all.
const CROWD: u64 = 1000;
const _: () = assert!(CROWD < OVERFLOW_MASK >> OVERFLOW_SHIFT);
const SERIAL_SHIFT: u32 = 56;
const SERIAL_ONE: u64 = 1 << SERIAL_SHIFT;
const SERIAL_MASK: u64 = 0xff << SERIAL_SHIFT;

/// Slots of one home that a walk keeps without allocating: more than almost all homes have.
const HOMED_FEW: usize = 16;

/// One cache line of the index.
#[repr(C, align(64))]
pub struct Bucket {
    control: AtomicU64,
    slots: [AtomicU64; SLOTS],
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    #[cfg(any(test, loom, shuttle))]
    pub fn empty() -> Bucket {
        Bucket {
            control: AtomicU64::new(0),
            slots: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Whether no bit of a slot has flipped, as far as the check bits tell (B7).
    fn is_whole(&self) -> bool {
        let words = self.slots.iter().map(|slot| slot.load(Ordering::Acquire));
        Slot(words.fold(0, |all, word| all ^ word)).is_whole()
    }

    /// Empties a bucket that a reader may still use, as its reuse would.
    #[cfg(any(loom, shuttle))]
    pub fn wipe(&self) {
        for word in self.slots.iter().chain([&self.control]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Result of a request for a bucket's lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Locking {
    /// The lock is taken; the caller unlocks.
    Taken,
    /// The caller's transaction holds it already; the caller must not unlock.
    Mine,
    /// The view has been replaced (B4): look up the new one.
    Moved,
    /// Another session's transaction holds it (only from [`View::try_lock`]).
    Busy,
}

/// The buckets of one partition at one size. Copyable: a pointer and a length.
#[derive(Clone, Copy)]
pub struct View<'a> {
    buckets: &'a [Bucket],
}

impl<'a> View<'a> {
    #[inline(always)]
    pub fn new(buckets: &'a [Bucket]) -> View<'a> {
        debug_assert!(buckets.len().is_multiple_of(2)); // whole pairs, for `probe`
        View { buckets }
    }

    pub fn len(self) -> usize {
        self.buckets.len()
    }

    /// Home bucket of a tag. Monotonic in the tag, so the order of buckets is the order of hashes
    /// at every size.
    #[inline(always)]
    pub fn home(self, tag: u64) -> usize {
        ((tag * self.buckets.len() as u64) >> TAG_BITS) as usize
    }

    /// The lowest tag whose home is `bucket`, for cursors.
    pub fn first_tag(self, bucket: usize) -> u64 {
        ((bucket as u64) << TAG_BITS).div_ceil(self.buckets.len() as u64)
    }

    #[inline(always)]
    pub fn line(self, bucket: usize) -> *const Bucket {
        &raw const self.buckets[bucket]
    }

    /// The `distance`-th bucket of a key's probe sequence: home, its neighbour in the same aligned
    /// pair of lines (which the processor tends to fetch together), then the following pairs,
    /// cyclically.
    #[inline(always)]
    fn probe(self, home: usize, distance: usize) -> usize {
        if distance < 2 {
            return home ^ distance;
        }
        let bucket = (home & !1) + distance;
        if bucket >= self.buckets.len() {
            bucket - self.buckets.len()
        } else {
            bucket
        }
    }

    /// Finds the slot with this tag for which `is_it` holds, reading optimistically (B2). `me`: the
    /// reader's owner number, as it need not wait for its own transaction (B3).
    #[inline(always)]
    pub fn find(
        self,
        tag: u64,
        me: u16,
        is_it: impl FnMut(Slot) -> bool,
    ) -> Option<(&'a AtomicU64, Slot)> {
        self.search::<false>(tag, me, is_it)
    }

    /// As [`find`](Self::find), but damaged slots are shown to `is_it` too (B7): those with this
    /// tag, and, where no slot of a bucket is it, those with any tag.
    #[inline(always)]
    pub fn find_or_damaged(
        self,
        tag: u64,
        me: u16,
        is_it: impl FnMut(Slot) -> bool,
    ) -> Option<(&'a AtomicU64, Slot)> {
        if has_bug(Bug::SlotsUnverified) {
            return self.search::<false>(tag, me, is_it);
        }
        self.search::<true>(tag, me, is_it)
    }

    #[inline(always)]
    fn search<const DAMAGED: bool>(
        self,
        tag: u64,
        me: u16,
        mut is_it: impl FnMut(Slot) -> bool,
    ) -> Option<(&'a AtomicU64, Slot)> {
        let home = self.home(tag);
        // Acquire pairs with Release in `unlock`: an overflowed key's count is seen if its writer
        // has finished.
        let mut control = self.buckets[home].control.load(Ordering::Acquire);
        loop {
            if control & TRANSACTION != 0 && owner_of(control) != me {
                control = self.wait_for_transaction(home);
            }
            let found = self.find_from::<DAMAGED>(home, control, tag, &mut is_it);
            // Slots were loaded with Acquire, so a reader that has seen a transaction's slot sees
            // here that it began (B3).
            let after = self.buckets[home].control.load(Ordering::Acquire);
            if (control ^ after) & SERIAL_MASK == 0 {
                return found;
            }
            control = after;
        }
    }

    /// True if `place`, found in this view for a key of this home, still points to the same
    /// location, and the view is current.
    #[inline(always)]
    pub fn still_holds(self, home: usize, place: &AtomicU64, slot: Slot) -> bool {
        let now = Slot(place.load(Ordering::Acquire));
        // The control word is read after the slot: a view that is not moved by now was current when
        // the slot was read.
        let control = self.buckets[home].control.load(Ordering::Acquire);
        now.with_access(0) == slot.with_access(0) && control & MOVED == 0
    }

    /// Finds the slot that points to `location`, without waiting for transactions. For cleaners,
    /// which only need to find out whether an entry is referenced, and must not wait for a
    /// transaction that may be waiting for them.
    pub fn find_location(self, tag: u64, location: u64) -> Option<(&'a AtomicU64, Slot)> {
        let home = self.home(tag);
        let control = self.buckets[home].control.load(Ordering::Acquire);
        self.find_from::<false>(home, control, tag, |slot| slot.location() == location)
    }

    #[inline(always)]
    fn find_from<const DAMAGED: bool>(
        self,
        home: usize,
        control: u64,
        tag: u64,
        mut is_it: impl FnMut(Slot) -> bool,
    ) -> Option<(&'a AtomicU64, Slot)> {
        let bucket = &self.buckets[home];
        if let Some(found) = find_in::<DAMAGED>(bucket, tag, &mut is_it) {
            return Some(found);
        }
        if control & OVERFLOW_MASK == 0 {
            return None;
        }
        (1..=self.reach(control))
            .find_map(|d| find_in::<DAMAGED>(&self.buckets[self.probe(home, d)], tag, &mut is_it))
    }

    /// Maximum distance of keys from their home, by the home's control word.
    #[inline(always)]
    fn reach(self, control: u64) -> usize {
        if control & OVERFLOW_MASK == 0 {
            return 0;
        }
        match ((control & REACH_MASK) >> REACH_SHIFT) as usize {
            REACH_MAX => self.buckets.len() - 1,
            reach => reach,
        }
    }

    /// True if the home bucket of a tag has more keys than chance explains (B6).
    #[inline]
    pub fn is_crowded(self, tag: u64) -> bool {
        self.is_crowded_at(self.home(tag))
    }

    /// As [`is_crowded`](Self::is_crowded), for a home bucket.
    pub fn is_crowded_at(self, home: usize) -> bool {
        let control = self.buckets[home].control.load(Ordering::Relaxed);
        (control & OVERFLOW_MASK) >> OVERFLOW_SHIFT >= CROWD
    }

    #[cold]
    fn wait_for_transaction(self, bucket: usize) -> u64 {
        let mut waiting = LongWait::new(Resource::Key, &[Resource::Pin]);
        loop {
            let control = self.buckets[bucket].control.load(Ordering::Acquire);
            // A moved view is frozen: it shows the state before the move, which precedes every
            // later change.
            if control & TRANSACTION == 0 || control & MOVED != 0 {
                return control;
            }
            waiting.wait();
        }
    }

    /// Location of the first slot with this tag: good for a prefetch only. Scans as far as `find`
    /// does: the cache misses of a few displaced keys overlap with other prefetches here, and would
    /// not in `find`.
    #[inline(always)]
    pub fn peek(self, tag: u64) -> Option<u64> {
        let home = self.home(tag);
        let control = self.buckets[home].control.load(Ordering::Relaxed);
        self.find_from::<false>(home, control, tag, |_| true)
            .map(|(_, slot)| slot.location())
    }

    /// Shows slots with this tag, without waiting for transactions: for prefetches.
    pub fn each_tagged(self, tag: u64, mut show: impl FnMut(Slot)) {
        let home = self.home(tag);
        let control = self.buckets[home].control.load(Ordering::Acquire);
        self.find_from::<false>(home, control, tag, |slot| {
            show(slot);
            false
        });
    }

    /// Shows every slot whose home is `bucket`, as [`find`](Self::find) sees them: none of a
    /// transaction that has not ended.
    pub fn each_homed(self, bucket: usize, me: u16, show: impl FnMut(Slot)) {
        let mut control = self.buckets[bucket].control.load(Ordering::Acquire);
        let (mut few, mut more) = ([Slot(0); HOMED_FEW], Vec::new());
        let count = loop {
            if control & TRANSACTION != 0 && owner_of(control) != me {
                control = self.wait_for_transaction(bucket);
            }
            let mut count = 0;
            more.clear();
            for d in 0..=self.reach(control) {
                for slot in &self.buckets[self.probe(bucket, d)].slots {
                    let slot = Slot(slot.load(Ordering::Acquire));
                    if slot.location() != 0 && self.home(slot.tag()) == bucket && slot.is_whole() {
                        match few.get_mut(count) {
                            Some(place) => *place = slot,
                            None => more.push(slot),
                        }
                        count += 1;
                    }
                }
            }
            let after = self.buckets[bucket].control.load(Ordering::Acquire);
            if (control ^ after) & SERIAL_MASK == 0 || has_bug(Bug::WalksShowHalves) {
                break count;
            }
            control = after;
        };
        let few = few.into_iter().take(count);
        few.chain(more).for_each(show);
    }

    /// Shows every slot in `bucket`, whichever home its key has.
    pub fn each_inside(self, bucket: usize, mut show: impl FnMut(Slot)) {
        for slot in &self.buckets[bucket].slots {
            let slot = Slot(slot.load(Ordering::Acquire));
            if slot.location() != 0 && slot.is_whole() {
                show(slot);
            }
        }
    }

    /// As [`each_inside`](Self::each_inside), with its place.
    pub fn each_place_inside(self, bucket: usize, mut show: impl FnMut(&AtomicU64, Slot)) {
        for place in &self.buckets[bucket].slots {
            let slot = Slot(place.load(Ordering::Acquire));
            if slot.location() != 0 && slot.is_whole() {
                show(place, slot);
            }
        }
    }

    /// Whether a bit has flipped in a slot that a search from this home passes (B7).
    pub fn has_damage(self, home: usize) -> bool {
        let control = self.buckets[home].control.load(Ordering::Acquire);
        let mut distances = 0..=self.reach(control);
        distances.any(|d| !self.buckets[self.probe(home, d)].is_whole())
    }

    /// Shows the damaged slots that a search from this home passes, and their places.
    pub fn each_damaged(self, home: usize, mut show: impl FnMut(&AtomicU64, Slot)) {
        let control = self.buckets[home].control.load(Ordering::Acquire);
        for d in 0..=self.reach(control) {
            for place in &self.buckets[self.probe(home, d)].slots {
                let slot = Slot(place.load(Ordering::Acquire));
                if !slot.is_whole() {
                    show(place, slot);
                }
            }
        }
    }

    /// Whether no bit of a slot has flipped, as far as the check bits tell (B7).
    pub fn is_whole(self) -> bool {
        self.buckets.iter().all(Bucket::is_whole)
    }

    /// Takes the lock of a home bucket, waiting for its holder.
    #[inline(always)]
    pub fn lock(self, bucket: usize, me: u16) -> Locking {
        self.take_lock::<true>(bucket, me)
    }

    /// As [`lock`](Self::lock), but gives up when a transaction of another session holds the
    /// bucket.
    #[inline]
    pub fn try_lock(self, bucket: usize, me: u16) -> Locking {
        self.take_lock::<false>(bucket, me)
    }

    #[inline(always)]
    fn take_lock<const WAIT_FOR_TRANSACTIONS: bool>(self, bucket: usize, me: u16) -> Locking {
        let control = &self.buckets[bucket].control;
        let seen = control.load(Ordering::Relaxed);
        // Acquire pairs with Release in `unlock`: the holder's changes are seen.
        if seen & (LOCKED | MOVED) == 0
            && control
                .compare_exchange(
                    seen,
                    seen | LOCKED | owner_bits(me),
                    Ordering::Acquire,
                    Ordering::Relaxed,
                )
                .is_ok()
        {
            return Locking::Taken;
        }
        if seen & (LOCKED | MOVED | TRANSACTION) == LOCKED | TRANSACTION && owner_of(seen) == me {
            return Locking::Mine;
        }
        self.lock_slowly(bucket, me, WAIT_FOR_TRANSACTIONS)
    }

    #[cold]
    fn lock_slowly(self, bucket: usize, me: u16, wait_for_transactions: bool) -> Locking {
        let control = &self.buckets[bucket].control;
        let mut waiting = LongWait::new(Resource::Key, &[Resource::Pin, Resource::Head]);
        loop {
            let seen = control.load(Ordering::Acquire);
            if seen & MOVED != 0 {
                return Locking::Moved;
            }
            if seen & LOCKED == 0 {
                let locked = seen | LOCKED | owner_bits(me);
                if control
                    .compare_exchange(seen, locked, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return Locking::Taken;
                }
            } else if seen & TRANSACTION != 0 {
                if owner_of(seen) == me {
                    return Locking::Mine;
                }
                if !wait_for_transactions {
                    return Locking::Busy;
                }
            }
            waiting.wait();
        }
    }

    /// Turns the caller's lock into one for which readers wait as well (B3).
    pub fn begin_transaction(self, bucket: usize) {
        let control = &self.buckets[bucket].control;
        debug_assert!(control.load(Ordering::Relaxed) & (LOCKED | TRANSACTION) == LOCKED);
        control.fetch_add(TRANSACTION + SERIAL_ONE, Ordering::AcqRel);
    }

    #[inline(always)]
    pub fn unlock(self, bucket: usize) {
        let control = &self.buckets[bucket].control;
        // Only the holder writes the word while it is locked, so a plain store is enough.
        let word = control.load(Ordering::Relaxed) & !(LOCKED | TRANSACTION | OWNER_MASK);
        control.store(word, Ordering::Release);
    }

    /// Marks a bucket whose lock the caller holds as moved (B4); its lock is never released.
    pub fn mark_moved(self, bucket: usize) {
        let control = &self.buckets[bucket].control;
        // Only the holder writes the word while it is locked, so a plain store is enough.
        control.store(control.load(Ordering::Relaxed) | MOVED, Ordering::Release);
    }

    /// Puts a new key's slot into its home bucket or the nearest later one with room. The caller
    /// holds the home's lock. Returns false if every slot is taken.
    pub fn insert(self, tag: u64, slot: Slot) -> bool {
        let home = self.home(tag);
        for d in 0..self.buckets.len() {
            let bucket = &self.buckets[self.probe(home, d)];
            for place in &bucket.slots {
                if place.load(Ordering::Relaxed) == 0
                    // Release pairs with Acquire in `find`: the entry's bytes are seen before its
                    // location. Acquire: everything noted before the slot was emptied is passed on
                    // to a reader that finds this key in it and no longer the other.
                    && place.compare_exchange(0, slot.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    if d > 0 {
                        self.note_overflow(home, d);
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Counts an overflowed key of this home, and how far from it the key is (B5).
    fn note_overflow(self, home: usize, distance: usize) {
        let control = &self.buckets[home].control;
        let mut word = control.load(Ordering::Relaxed);
        let reach = ((word & REACH_MASK) >> REACH_SHIFT).max(distance.min(REACH_MAX) as u64);
        word = word & !REACH_MASK | reach << REACH_SHIFT;
        if word & OVERFLOW_MASK != OVERFLOW_MASK {
            word += OVERFLOW_ONE;
        }
        control.store(word, Ordering::Release); // pairs with Acquire in `find`
    }

    /// Empties a slot found by [`find`](Self::find). The caller holds the home's lock.
    pub fn remove(self, tag: u64, place: &AtomicU64) {
        place.store(0, Ordering::Release);
        let bucket = &self.buckets[self.home(tag)];
        if bucket.slots.iter().any(|own| std::ptr::eq(own, place)) {
            return;
        }
        let mut word = bucket.control.load(Ordering::Relaxed);
        if word & OVERFLOW_MASK == OVERFLOW_MASK {
            return; // B5: as many or more
        }
        word -= OVERFLOW_ONE;
        if word & OVERFLOW_MASK == 0 {
            word &= !REACH_MASK;
        }
        bucket.control.store(word, Ordering::Release);
    }

    /// Copies every slot into `to`, which is empty and which no other thread sees yet. Returns
    /// false if `to` has no room.
    pub fn copy_into(self, to: View<'_>) -> bool {
        // Slots taken per bucket: a fresh view fills without holes, so no bucket is searched for
        // room.
        let mut taken = vec![0u8; to.len()];
        // Slots are copied in the order of buckets, which except for overflow is also the order of
        // the new buckets: so one view is read sequentially, and the other written.
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.slots);
        slots
            .map(|slot| Slot(slot.load(Ordering::Relaxed)))
            .filter(|slot| *slot != Slot::EMPTY)
            .all(|slot| to.fill(slot, &mut taken))
    }

    fn fill(self, slot: Slot, taken: &mut [u8]) -> bool {
        let home = self.home(slot.tag());
        let distances = 0..self.buckets.len();
        let room = distances
            .map(|d| (d, self.probe(home, d)))
            .find(|(_, bucket)| usize::from(taken[*bucket]) < SLOTS);
        let Some((distance, bucket)) = room else {
            return false;
        };
        self.buckets[bucket].slots[usize::from(taken[bucket])].store(slot.0, Ordering::Relaxed);
        taken[bucket] += 1;
        if distance > 0 {
            self.note_overflow(home, distance);
        }
        true
    }
}

#[inline(always)]
fn find_in<'a, const DAMAGED: bool>(
    bucket: &'a Bucket,
    tag: u64,
    is_it: &mut impl FnMut(Slot) -> bool,
) -> Option<(&'a AtomicU64, Slot)> {
    let mut all = 0;
    for place in &bucket.slots {
        // Acquire pairs with Release in `insert` and `publish`: the entry's bytes are seen.
        let slot = Slot(place.load(Ordering::Acquire));
        all ^= slot.0;
        let is_shown = slot.tag() == tag && slot.location() != 0 && (DAMAGED || slot.is_whole());
        if is_shown && is_it(slot) {
            return Some((place, slot));
        }
    }
    if DAMAGED && !Slot(all).is_whole() {
        return damaged_in(bucket, is_it);
    }
    None
}

/// The first damaged slot of a bucket for which `is_it` holds.
#[cold]
fn damaged_in<'a>(
    bucket: &'a Bucket,
    is_it: &mut impl FnMut(Slot) -> bool,
) -> Option<(&'a AtomicU64, Slot)> {
    for place in &bucket.slots {
        let slot = Slot(place.load(Ordering::Acquire));
        if !slot.is_whole() && is_it(slot) {
            return Some((place, slot));
        }
    }
    None
}

/// Replaces the location in a slot whose home lock the caller holds.
#[inline(always)]
pub fn publish(place: &AtomicU64, slot: Slot) {
    place.store(slot.0, Ordering::Release);
}

/// Counts a read of a slot (cache mode); gives way to any concurrent change.
#[inline(always)]
pub fn touch(place: &AtomicU64, slot: Slot) {
    if slot.access() < 7 {
        let touched = slot.with_access(slot.access() + 1);
        let _ = place.compare_exchange(slot.0, touched.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn owner_of(control: u64) -> u16 {
    (control >> OWNER_SHIFT) as u16
}

fn owner_bits(me: u16) -> u64 {
    u64::from(me) << OWNER_SHIFT
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn buckets(n: usize) -> Vec<Bucket> {
        (0..n).map(|_| Bucket::empty()).collect()
    }

    #[test]
    fn overflowing_keys_are_found_and_counted() {
        let memory = buckets(4);
        let view = View::new(&memory);
        let tag = view.first_tag(3); // the last bucket: overflow wraps
        for n in 1..=20 {
            assert_eq!(view.lock(3, 1), Locking::Taken);
            assert!(view.insert(tag, Slot::new(tag, n)));
            view.unlock(3);
        }
        for n in 1..=20 {
            assert!(
                view.find(tag, 1, |slot| slot.location() == n).is_some(),
                "{n}"
            );
        }
        let mut homed = 0;
        view.each_homed(3, 1, |_| homed += 1);
        assert_eq!(homed, 20);
        for n in 1..=20 {
            assert_eq!(view.lock(3, 1), Locking::Taken);
            let (place, _) = view.find(tag, 1, |slot| slot.location() == n).unwrap();
            view.remove(tag, place);
            view.unlock(3);
        }
        assert!(
            memory
                .iter()
                .all(|b| b.control.load(Ordering::Relaxed) == 0),
            "counts return to zero"
        );
        assert!(view.find(tag, 1, |_| true).is_none());
    }

    /// A server once ended by an assertion because of keys that were chosen to land in one bucket,
    /// and then each server that took them over.
    #[test]
    fn a_bucket_takes_any_number_of_keys() {
        let (small, large) = (buckets(800), buckets(900));
        let (view, next) = (View::new(&small), View::new(&large));
        let tag = view.first_tag(799);
        let keys = 5000;
        for n in 1..=keys {
            assert_eq!(view.is_crowded(tag), n > CROWD + SLOTS as u64);
            assert!(view.insert(tag, Slot::new(tag, n)));
        }
        let has = |view: View<'_>, n| view.find_location(tag, n).is_some();
        assert!((1..=keys).all(|n| has(view, n)));
        assert!(view.copy_into(next) && (1..=keys).all(|n| has(next, n)));
        for n in 1..=keys {
            let (place, _) = next.find_location(tag, n).unwrap();
            next.remove(tag, place);
            assert!(n == keys || has(next, keys), "{n} took others along");
        }
        assert!(next.find(tag, 1, |_| true).is_none());
        assert!(
            view.copy_into(next) && has(next, keys),
            "slots are free again"
        );
    }

    /// B7: for each of the 64 bits.
    #[test]
    fn a_flipped_bit_of_a_slot_shows() {
        let memory = buckets(4);
        let view = View::new(&memory);
        let tag = view.first_tag(2) + 5;
        let slot = Slot::new(tag, 77);
        assert!(view.insert(tag, slot));
        assert!(view.is_whole() && !view.has_damage(2));
        let (place, _) = view.find_location(tag, 77).unwrap();
        for bit in 0..64 {
            let flipped = Slot(slot.0 ^ 1 << bit);
            publish(place, flipped);
            assert!(!view.is_whole() && view.has_damage(2), "bit {bit}");
            assert!(view.find(tag, 1, |_| true).is_none(), "bit {bit}");
            let found = view.find_or_damaged(tag, 1, |_| true);
            assert!(found.is_some_and(|(_, slot)| slot == flipped), "bit {bit}");
            let before = flipped
                .before_flip(tag, 77)
                .map(|before| before.with_access(0));
            assert_eq!(before, Some(slot), "bit {bit}");
            let mut locations = flipped.locations_before_flip();
            assert!(locations.any(|location| location == 77), "bit {bit}");
        }
    }

    #[test]
    fn a_full_view_refuses() {
        let memory = buckets(2);
        let view = View::new(&memory);
        assert!((1..=14).all(|n| view.insert(0, Slot::new(0, n))));
        assert!(!view.insert(0, Slot::new(0, 15)));
    }

    #[test]
    fn first_tags_partition_the_tags() {
        for n in [2usize, 4, 6, 14, 1000, 1022] {
            let memory = buckets(n);
            let view = View::new(&memory);
            for bucket in 0..n {
                let first = view.first_tag(bucket);
                assert_eq!(view.home(first), bucket);
                assert!(first == 0 || view.home(first - 1) == bucket - 1);
            }
        }
    }

    #[test]
    fn copying_keeps_every_slot() {
        let (small, large) = (buckets(4), buckets(6));
        let (from, to) = (View::new(&small), View::new(&large));
        for n in 1..=20u64 {
            let tag = n * 199_999 % (1 << TAG_BITS);
            assert!(from.insert(tag, Slot::new(tag, n)));
        }
        assert!(from.copy_into(to));
        for n in 1..=20u64 {
            let tag = n * 199_999 % (1 << TAG_BITS);
            assert!(to.find(tag, 1, |slot| slot.location() == n).is_some());
        }
    }
}
