//! Promoted entries: copies in memory of cold entries that are read again and again.
//!
//! Copies are appended one after the other to windows of the store's own region; a table finds them
//! by the entry's location. An entry is copied when it is fetched for the second time within about
//! as many fetches as copies have room (`Sightings`), or for the third time while nearly all copies
//! go on being read. So entries that are read once evict nothing, however many there are. When the
//! copies' part of the memory is full, the oldest window is given up. Its copies that were read
//! since it was filled move to a new window, which is taken first, beside that part.
//!
//! **Invariants**
//! - P1: a window is retired only after no slot of the table points into it; a reader that found a
//!   slot is pinned (engine::space::S3, epoch::E2). Labels and copies are verified by the walk that
//!   empties the slots, as a bit of them may have flipped: after damage it goes by the table.
//! - P2: only the holder of `shelf` changes the table and the windows. A reader's count is a
//!   compare-and-swap that fails if the slot was changed, so no slot comes back that was taken out.
//! - P3: a copy is valid only for the location *and* incarnation that it was made of
//!   (core::flash::F4).
//! - P4: copies take the memory that the index, the open segments and their reserve leave, and give
//!   it back when these grow. While more bytes are written than copies serve, they take at most
//!   half of the budget.
//! - P5: a window that is given back is the one whose copies are read least among the oldest
//!   windows. A new copy evicts only the oldest window, and those of its copies that were read move
//!   on.
//!
//! Paper: [Yang23 S3-FIFO] FIFO queues, lazy counts, a memory of entries that were read once;
//! differs: there is no small queue but that memory, as the queue's entries are on flash anyway.

use crate::epoch::Epochs;
use crate::space::segment::State;
use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space};
use duramen_format::entry;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Part of the budget that copies may take in any case, and the maximum that the table is made for
/// (P4).
const MEMORY_PART: f64 = 0.5;
const MEMORY_PART_MAX: f64 = 0.9;
/// Bytes of copies for each slot of the table.
const BYTES_PER_SLOT: usize = 384;
const WAYS: usize = 8;
/// Bytes of copies for each remembered entry that was fetched once.
const BYTES_PER_SEEN: usize = 512;
const SEEN_PER_WORD: usize = 4;
const SEEN_BITS: u32 = u64::BITS / SEEN_PER_WORD as u32;
/// Bits of a mark that count how often its entry was seen.
const SIGHTINGS_BITS: u32 = 2;
const SIGHTINGS_MAX: u64 = (1 << SIGHTINGS_BITS) - 1;
/// Number of fetches after which an entry is copied: usually, and while copies are crowded. Copies
/// are crowded if less than one part in `CROWDED_PART` of the last window that was given up was
/// unread.
const SIGHTINGS: u64 = 2;
const SIGHTINGS_CROWDED: u64 = 3;
const CROWDED_PART: usize = 4;
/// Number of hit counters, chosen by location, so that threads seldom share one.
const HIT_COUNTERS: usize = 16;
/// Location and incarnation, in front of the copy, with a check of both.
const LABEL_BYTES: usize = 16;
/// A given up window drops at least its length divided by this, so that room is left.
const DROPPED_PART: usize = 8;
/// Number of the oldest windows that are compared when one is given back.
const OLDEST: usize = 8;

const LOCATION_BITS: u32 = 38;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
const READ_SHIFT: u32 = LOCATION_BITS;
const READ_ONE: u64 = 1 << READ_SHIFT;
const READ_MASK: u64 = 0b11 << READ_SHIFT;
const TAG_SHIFT: u32 = READ_SHIFT + 2;
/// Maximum count of a copy's reads.
pub(crate) const HEAT_MAX: u8 = (READ_MASK >> READ_SHIFT) as u8;

fn heat_of(slot: u64) -> u8 {
    ((slot & READ_MASK) >> READ_SHIFT) as u8
}

/// The label of a copy. Its check differs after any single flipped bit.
fn label_of(location: u64, incarnation: u32) -> [u64; 2] {
    let mixed = (location ^ u64::from(incarnation) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [location, mixed >> 32 << 32 | u64::from(incarnation)]
}

pub(crate) struct Promoted {
    /// Sets of `WAYS` slots: tag of the entry's location, number of reads, location of the copy; 0
    /// = empty.
    table: Box<[AtomicU64]>,
    shelf: Mutex<Shelf>,
    seen: Sightings,
    segment_bytes: usize,
    /// Numbers of windows: those that may be taken now (P4), those that the table is made for, and
    /// those that are always allowed as far as there is room.
    most: AtomicU64,
    prepared: u64,
    modest: u64,
    /// Windows taken.
    windows: AtomicU64,
    /// A copy found no room: a cleaner has to make some.
    wants: AtomicBool,
    /// Bytes of the last copy that found no room.
    lacking_bytes: AtomicU64,
    /// Nearly all copies are still being read.
    crowded: AtomicBool,
    hits: [Hits; HIT_COUNTERS],
    /// Copies made, and their bytes.
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    /// Bytes that a refill copied, or had no room to copy, since the last weighing. They count as
    /// served.
    refilled_bytes: AtomicU64,
    /// Hits and appended bytes at the last weighing of one against the other.
    weighed: Mutex<(u64, u64)>,
}

/// Result of a copy that a refill makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// The copy exists now, or its place in the table is full of copies that are no colder.
    Done,
    /// Copies may have another window, and none is free yet: try again when a cleaner thread has
    /// found one.
    Later,
    /// Copies have all the memory that they may have now.
    Full,
}

#[derive(Default)]
#[repr(align(128))]
struct Hits(AtomicU64);

/// Remembers entries that were fetched, each until enough other entries have taken its place in its
/// word. A word has four marks, the newest lowest; the low bits of a mark count how often it was
/// seen.
struct Sightings(Box<[AtomicU64]>);

impl Sightings {
    /// Number of times that this entry was met since it was first remembered, this time included;
    /// at most the maximum of the count.
    fn meet(&self, location: u64, incarnation: u32) -> u64 {
        let entry = location | u64::from(incarnation) << LOCATION_BITS;
        let mixed = entry.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mark = mixed & ((1 << SEEN_BITS) - 1) & !SIGHTINGS_MAX;
        let place = &self.0[(mixed >> 32) as usize % self.0.len()];
        let marks = place.load(Ordering::Relaxed);
        for shift in (0..u64::BITS).step_by(SEEN_BITS as usize) {
            let sightings = marks >> shift & SIGHTINGS_MAX;
            if sightings > 0 && (marks >> shift ^ mark) & ((1 << SEEN_BITS) - 1) == sightings {
                if sightings < SIGHTINGS_MAX {
                    // If two threads update a word at once, one update may be lost, here and below.
                    place.store(marks + (1 << shift), Ordering::Relaxed);
                }
                return (sightings + 1).min(SIGHTINGS_MAX);
            }
        }
        place.store(marks << SEEN_BITS | mark | 1, Ordering::Relaxed);
        1
    }
}

/// A copy, still being read, of a window that is given up.
struct Kept {
    location: u64,
    incarnation: u32,
    /// Offset of its label in the region.
    at: usize,
    bytes: usize,
    reads: u64,
}

/// A copy that the table points to.
struct Copied<'a> {
    place: &'a AtomicU64,
    location: u64,
    incarnation: u32,
    /// Offset of its label in the region.
    at: usize,
    bytes: usize,
}

#[derive(Default)]
struct Shelf {
    /// The window that is being filled, and the position in it (offsets in the region).
    current: Option<Open>,
    spare: Option<u32>,
    full: VecDeque<(u32, usize)>,
}

struct Open {
    window: u32,
    cursor: usize,
    end: usize,
}

impl Shelf {
    /// True if the window that is being filled has room for `bytes`.
    fn fits(&self, bytes: usize) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|open| open.end - open.cursor >= bytes)
    }
}

/// Set and tag of an entry's location.
pub(crate) fn place_of(location: u64, sets: usize) -> (usize, u64) {
    // Fibonacci hashing: the high bits depend on all bits of the location.
    let mixed = location.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let set = (mixed >> 20) as usize % sets;
    (set * WAYS, mixed >> TAG_SHIFT)
}

impl Promoted {
    pub(crate) fn new(memory_bytes: u64, segment_bytes: usize) -> Promoted {
        let windows = |part: f64| (memory_bytes as f64 * part) as usize / segment_bytes;
        let bytes_max = windows(MEMORY_PART_MAX) * segment_bytes;
        let slots = bytes_max / BYTES_PER_SLOT;
        Promoted {
            table: (0..slots.next_multiple_of(WAYS).max(WAYS))
                .map(|_| AtomicU64::new(0))
                .collect(),
            shelf: Mutex::default(),
            seen: Sightings(
                (0..(bytes_max / BYTES_PER_SEEN / SEEN_PER_WORD).max(1))
                    .map(|_| AtomicU64::new(0))
                    .collect(),
            ),
            segment_bytes,
            most: AtomicU64::new(windows(MEMORY_PART) as u64),
            prepared: windows(MEMORY_PART_MAX) as u64,
            modest: windows(MEMORY_PART) as u64,
            windows: AtomicU64::new(0),
            wants: AtomicBool::new(false),
            lacking_bytes: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            hits: Default::default(),
            copies: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            refilled_bytes: AtomicU64::new(0),
            weighed: Mutex::default(),
        }
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        (size_of_val(&*self.table) + size_of_val(&*self.seen.0)) as u64
    }

    /// Memory of the copies' windows.
    pub(crate) fn bytes(&self) -> u64 {
        self.windows.load(Ordering::Relaxed) * self.segment_bytes as u64
    }

    pub(crate) fn hits(&self) -> u64 {
        let hits = self.hits.iter();
        hits.map(|hits| hits.0.load(Ordering::Relaxed)).sum()
    }

    /// True if an entry that was fetched now has to be copied: it was fetched often enough before.
    pub(crate) fn wants_copy(&self, location: u64, incarnation: u32) -> bool {
        let enough = match self.crowded.load(Ordering::Relaxed) {
            true => SIGHTINGS_CROWDED,
            false => SIGHTINGS,
        };
        self.seen.meet(location, incarnation) >= enough
    }

    /// True if a copy lacks a window that copies may have (P4).
    pub(crate) fn lacks_window(&self) -> bool {
        self.wants.load(Ordering::Relaxed)
            && self.windows.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// Sets the number of windows that copies may take (P4), at most `room`. `appended`: bytes that
    /// were written since the start.
    pub(crate) fn weigh(&self, room: u64, appended: u64) {
        let mut weighed = self.weighed.lock().expect("what copies serve");
        let hits = self.hits();
        let copies = self.copies.load(Ordering::Relaxed).max(1);
        let entry_bytes = self.copied_bytes.load(Ordering::Relaxed) / copies;
        let served = (hits - weighed.0).saturating_mul(entry_bytes)
            + self.refilled_bytes.swap(0, Ordering::Relaxed);
        let written = appended.saturating_sub(weighed.1);
        *weighed = (hits, appended);
        let wanted = if served > 2 * written {
            self.prepared
        } else if written > 2 * served {
            self.modest
        } else {
            self.most.load(Ordering::Relaxed)
        };
        self.most.store(wanted.min(room), Ordering::Relaxed);
    }

    fn set_of(&self, location: u64) -> (&[AtomicU64], u64) {
        let (first, tag) = place_of(location, self.table.len() / WAYS);
        (&self.table[first..first + WAYS], tag)
    }

    /// True if the copy at `copy` is of this entry.
    fn is_of(space: &Space, copy: u64, location: u64, incarnation: u32) -> bool {
        let label = space.at(copy).cast::<u64>();
        // SAFETY: a slot of the table points there, so there are a label and a copy. They were
        // complete before the slot was stored (Release), and are not reused before the caller's pin
        // ends (P1), or the caller holds the shelf's lock.
        unsafe { [*label, *label.add(1)] == label_of(location, incarnation) }
    }

    /// The copy of an entry, and the bytes up to the end of its window. The caller is pinned.
    pub(crate) fn get(
        &self,
        space: &Space,
        location: u64,
        incarnation: u32,
    ) -> Option<(*const u8, usize)> {
        let (set, tag) = self.set_of(location);
        for place in set {
            let slot = place.load(Ordering::Acquire);
            if slot >> TAG_SHIFT == tag
                && slot != 0
                && Self::is_of(space, slot & LOCATION_MASK, location, incarnation)
            {
                if slot & READ_MASK != READ_MASK {
                    let read = slot + READ_ONE;
                    // P2: the read is not counted if the slot was changed meanwhile.
                    let _ =
                        place.compare_exchange(slot, read, Ordering::Relaxed, Ordering::Relaxed);
                }
                let counter = location as usize % HIT_COUNTERS;
                self.hits[counter].0.fetch_add(1, Ordering::Relaxed);
                let copy = slot & LOCATION_MASK;
                let begin = space.offset_in_window(copy) as usize + LABEL_BYTES;
                let at = space.at(copy).wrapping_add(LABEL_BYTES);
                return Some((at, space.segment_bytes() - begin));
            }
        }
        None
    }

    /// Probable address of an entry's copy, for a prefetch.
    pub(crate) fn peek(&self, space: &Space, location: u64) -> Option<*const u8> {
        let (set, tag) = self.set_of(location);
        let slots = set.iter().map(|place| place.load(Ordering::Relaxed));
        let mut like_it = slots.filter(|slot| *slot != 0 && slot >> TAG_SHIFT == tag);
        like_it.next().map(|slot| {
            let label: *const u8 = space.at(slot & LOCATION_MASK);
            label
        })
    }

    /// Makes a copy of an entry. Returns false if there is no room now.
    pub(crate) fn put(&self, space: &Space, location: u64, incarnation: u32, entry: &[u8]) -> bool {
        let bytes = LABEL_BYTES + entry.len();
        if bytes > self.segment_bytes - SEGMENT_HEADER_BYTES {
            return false;
        }
        let Ok(mut shelf) = self.shelf.try_lock() else {
            return false;
        };
        let is_put = self.put_on(space, &mut shelf, location, incarnation, entry, 0);
        if is_put {
            self.copies.fetch_add(1, Ordering::Relaxed);
            self.copied_bytes
                .fetch_add(entry.len() as u64, Ordering::Relaxed);
        } else {
            self.want(bytes);
        }
        is_put
    }

    /// Sets of the table, for [`each_in`](Self::each_in).
    pub(crate) fn sets(&self) -> usize {
        self.table.len() / WAYS
    }

    /// Shows the copies of a set: how often each was read lately, 0 to [`HEAT_MAX`], and its entry.
    /// The caller is pinned.
    pub(crate) fn each_in(&self, space: &Space, set: usize, mut show: impl FnMut(u8, *const u8)) {
        for place in &self.table[set * WAYS..][..WAYS] {
            let slot = place.load(Ordering::Acquire);
            if slot != 0 {
                let at = space.at(slot & LOCATION_MASK);
                show(heat_of(slot), at.wrapping_add(LABEL_BYTES));
            }
        }
    }

    /// True if there is a copy of the entry. Does not count as a read. The caller is pinned, or
    /// holds the shelf.
    pub(crate) fn has(&self, space: &Space, location: u64, incarnation: u32) -> bool {
        let (set, tag) = self.set_of(location);
        set.iter().any(|place| {
            let slot = place.load(Ordering::Acquire);
            slot != 0
                && slot >> TAG_SHIFT == tag
                && Self::is_of(space, slot & LOCATION_MASK, location, incarnation)
        })
    }

    /// Copies an entry that was hot before a restart, with this heat. Takes only free room.
    pub(crate) fn put_hot(
        &self,
        space: &Space,
        location: u64,
        incarnation: u32,
        entry: &[u8],
        heat: u8,
    ) -> Put {
        let mut shelf = self.shelf.lock().expect("promoted entries");
        let bytes = LABEL_BYTES + entry.len();
        let (set, _) = self.set_of(location);
        let is_hotter = |place: &AtomicU64| {
            let slot = place.load(Ordering::Relaxed);
            slot != 0 && heat_of(slot) >= heat
        };
        if bytes > self.segment_bytes - SEGMENT_HEADER_BYTES || set.iter().all(is_hotter) {
            return Put::Done;
        }
        if shelf.spare.is_none() && !shelf.fits(bytes) {
            if self.windows.load(Ordering::Relaxed) >= self.most.load(Ordering::Relaxed) {
                // A request for a window would give up one of the copies, so none is made. The
                // bytes that wait count as served, or `weigh` would never learn of them.
                self.refilled_bytes
                    .fetch_add(entry.len() as u64, Ordering::Relaxed);
                return Put::Full;
            }
            self.want(bytes);
            return Put::Later;
        }
        let reads = u64::from(heat.min(HEAT_MAX)) << READ_SHIFT;
        if self.put_on(space, &mut shelf, location, incarnation, entry, reads) {
            self.refilled_bytes
                .fetch_add(entry.len() as u64, Ordering::Relaxed);
        }
        Put::Done
    }

    /// Notes that a copy of `bytes` bytes finds no room.
    fn want(&self, bytes: usize) {
        self.lacking_bytes.store(bytes as u64, Ordering::Relaxed);
        self.wants.store(true, Ordering::Relaxed);
    }

    /// Adds a copy. Returns false if there is no room. `reads`: the copy's initial count, shifted
    /// to its place in a slot.
    fn put_on(
        &self,
        space: &Space,
        shelf: &mut Shelf,
        location: u64,
        incarnation: u32,
        entry: &[u8],
        reads: u64,
    ) -> bool {
        if self.has(space, location, incarnation) {
            return true;
        }
        let Some(copy) = self.take(space, shelf, LABEL_BYTES + entry.len()) else {
            return false;
        };
        let at = space.at(copy);
        // SAFETY: bytes that were just taken in a window to which only the shelf's holder appends;
        // no other thread has their address yet.
        unsafe {
            at.cast::<[u64; 2]>().write(label_of(location, incarnation));
            at.add(LABEL_BYTES)
                .copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        }
        let (set, tag) = self.set_of(location);
        // The slot is put into an empty place, or else into that of the copy that was read least.
        let value = |place: &&AtomicU64| {
            let slot = place.load(Ordering::Relaxed);
            (slot != 0, slot & READ_MASK)
        };
        let place = set.iter().min_by_key(value).expect("a set has ways");
        place.store(tag << TAG_SHIFT | reads | copy, Ordering::Release);
        true
    }

    /// Location of the next `bytes` of the window that is being filled.
    fn take(&self, space: &Space, shelf: &mut Shelf, bytes: usize) -> Option<u64> {
        if !shelf.fits(bytes) {
            let window = shelf.spare.take()?;
            if let Some(open) = shelf.current.take() {
                shelf.full.push_back((open.window, open.cursor));
            }
            let start = space.offset_of(window);
            shelf.current = Some(Open {
                window,
                cursor: start + SEGMENT_HEADER_BYTES,
                end: start + self.segment_bytes,
            });
        }
        let open = shelf.current.as_mut()?;
        let copy = Space::location(open.cursor);
        open.cursor += bytes;
        Some(copy)
    }

    /// True if copies have more windows than they may.
    pub(crate) fn has_too_much(&self) -> bool {
        self.windows.load(Ordering::Relaxed) > self.most.load(Ordering::Relaxed)
    }

    /// Number of windows that copies may have however much is written.
    pub(crate) fn modest(&self) -> u64 {
        self.modest
    }

    /// Gives a window back. Its copies are lost, so it is one whose copies are read little (P5).
    /// Called by a cleaner thread.
    pub(crate) fn give_up(&self, space: &Space, epochs: &Epochs) {
        let mut shelf = self.shelf.lock().expect("promoted entries");
        if let Some(spare) = shelf.spare.take() {
            self.retire(space, spare, epochs);
        } else {
            let coldest = self.coldest(space, &shelf);
            self.give_up_one(space, &mut shelf, coldest, epochs);
        }
    }

    /// Makes room for copies if some are wanted: takes a window, and gives up the oldest if copies
    /// have all they may. Called by a cleaner thread, which has reaped retired windows.
    pub(crate) fn tend(&self, space: &Space, node: usize, epochs: &Epochs, now_ms: u64) {
        let most = self.most.load(Ordering::Relaxed);
        if !self.wants.load(Ordering::Relaxed) || most == 0 {
            return;
        }
        let mut shelf = self.shelf.lock().expect("promoted entries");
        if shelf.spare.is_none() {
            let window = space.acquire(node, Purpose::Promoted, now_ms, 0);
            shelf.spare = window;
            if self.windows.load(Ordering::Relaxed) < most {
                self.crowded.store(false, Ordering::Relaxed);
            } else {
                // Copies that move on need the new window. Without one they are lost, and the next
                // round has this window's memory.
                let victim = match window {
                    Some(_) => 0,
                    None => self.coldest(space, &shelf),
                };
                self.give_up_one(space, &mut shelf, victim, epochs);
            }
            if window.is_none() {
                return;
            }
            self.windows.fetch_add(1, Ordering::Relaxed);
        }
        self.wants.store(false, Ordering::Relaxed);
    }

    /// The place, counted from the oldest on, of the window whose copies were read least among the
    /// oldest windows.
    fn coldest(&self, space: &Space, shelf: &Shelf) -> usize {
        let oldest = shelf.full.iter().take(OLDEST).enumerate();
        let heat = oldest.map(|(place, (window, end))| {
            let mut heat = 0;
            self.each_copy(space, *window, *end, false, |copy| {
                let slot = copy.place.load(Ordering::Relaxed);
                heat += u64::from(heat_of(slot)) * copy.bytes as u64;
            });
            (heat, place)
        });
        heat.min().map_or(0, |(_, place)| place)
    }

    /// Retires a full window, given by its place from the oldest on. Copies of it that were read
    /// since it was filled move on, as far as they leave room for the wanted copy.
    fn give_up_one(&self, space: &Space, shelf: &mut Shelf, place: usize, epochs: &Epochs) {
        if shelf.full.is_empty()
            && let Some(open) = shelf.current.take()
        {
            shelf.full.push_back((open.window, open.cursor));
        }
        let Some((window, end)) = shelf.full.remove(place) else {
            return;
        };
        let mut kept = self.take_out(space, window, end);
        let bytes: usize = kept.iter().map(|kept| LABEL_BYTES + kept.bytes).sum();
        let length = end - space.offset_of(window) - SEGMENT_HEADER_BYTES;
        self.crowded
            .store(bytes > length - length / CROWDED_PART, Ordering::Relaxed);
        let all = self.segment_bytes - SEGMENT_HEADER_BYTES;
        let lacking = self.lacking_bytes.load(Ordering::Relaxed) as usize;
        let mut room = all - (all / DROPPED_PART).max(lacking).min(all);
        if bytes > room {
            kept.sort_by_key(|kept| std::cmp::Reverse(kept.reads));
        }
        for kept in kept {
            let bytes = LABEL_BYTES + kept.bytes;
            if bytes <= room {
                room -= bytes;
                let start = space.at(Space::location(kept.at + LABEL_BYTES));
                // SAFETY: a whole copy in a window of this shelf, which is not retired yet (P1).
                let entry = unsafe { std::slice::from_raw_parts(start, kept.bytes) };
                let (location, incarnation) = (kept.location, kept.incarnation);
                let reads = kept.reads - READ_ONE;
                let _ = self.put_on(space, shelf, location, incarnation, entry, reads);
            }
        }
        self.retire(space, window, epochs);
    }

    /// Takes the copies of a window out of the table, and returns those that were read and may be
    /// read again.
    fn take_out(&self, space: &Space, window: u32, end: usize) -> Vec<Kept> {
        let mut kept = Vec::new();
        let is_whole = self.each_copy(space, window, end, true, |copy| {
            let reads = copy.place.swap(0, Ordering::Relaxed) & READ_MASK;
            let home = space.window_of(copy.location);
            if reads != 0 && space.segments[home].incarnation() == copy.incarnation {
                kept.push(Kept {
                    location: copy.location,
                    incarnation: copy.incarnation,
                    at: copy.at,
                    bytes: copy.bytes,
                    reads,
                });
            }
        });
        if !is_whole {
            self.forget(space, window);
        }
        kept
    }

    /// Empties all slots that point into a window of which a copy has damage.
    #[cold]
    fn forget(&self, space: &Space, window: u32) {
        for place in &self.table {
            if Self::points_into(space, place.load(Ordering::Relaxed), window) {
                place.store(0, Ordering::Relaxed);
            }
        }
    }

    fn points_into(space: &Space, slot: u64, window: u32) -> bool {
        slot != 0 && space.window_of(slot & LOCATION_MASK) == window as usize
    }

    /// Shows the copies in a full window of the shelf that the table still points to. `verifies`:
    /// each copy is verified by its checksum. Returns false if there is damage: copies behind it
    /// were not shown.
    fn each_copy(
        &self,
        space: &Space,
        window: u32,
        end: usize,
        verifies: bool,
        mut show: impl FnMut(Copied<'_>),
    ) -> bool {
        let mut at = space.offset_of(window) + SEGMENT_HEADER_BYTES;
        while at < end {
            let copy = Space::location(at);
            let Some(available) = (end - at).checked_sub(LABEL_BYTES) else {
                return false;
            };
            let label = space.at(copy).cast::<u64>();
            // SAFETY: the window was filled with labels and copies up to `end`, and belongs to the
            // shelf, which the caller holds. Nothing behind `end` is read, whatever bit flipped.
            let (location, mark, header) = unsafe {
                let entry: *const u8 = label.add(2).cast();
                let header = entry::header_at(entry, available);
                let header = header.filter(|_| !verifies || entry::is_sound(entry, available));
                (*label, *label.add(1), header)
            };
            let incarnation = mark as u32;
            let Some(header) =
                header.filter(|_| [location, mark] == label_of(location, incarnation))
            else {
                return false;
            };
            let bytes = header.padded_bytes();
            let (set, _) = self.set_of(location);
            let points = |place: &&AtomicU64| place.load(Ordering::Relaxed) & LOCATION_MASK == copy;
            if let Some(place) = set.iter().find(points) {
                show(Copied {
                    place,
                    location,
                    incarnation,
                    at,
                    bytes,
                });
            }
            at += LABEL_BYTES + bytes;
        }
        true
    }

    fn retire(&self, space: &Space, window: u32, epochs: &Epochs) {
        debug_assert!(space.segments[window as usize].state() == State::Promoted);
        self.windows.fetch_sub(1, Ordering::Relaxed);
        space.retire(space.node_of(window), window, epochs); // P1: no slot leads there any more
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Options;
    use crate::topology::Topology;
    use duramen_base::ids::SegmentId;
    use duramen_base::ticks::Ticks;
    use duramen_format::entry::NewObject;

    const MEMORY_BYTES: u64 = 16 << 20;
    const COPIES: usize = 50;
    const HEADER_BYTES: usize = 16;

    /// P1: a bit of the first label or header of a window flips. The walk that takes the copies out
    /// of the table went on in the middle of an entry, and slots that it never came to stayed.
    #[test]
    fn a_window_with_damage_leaves_no_slot_behind() {
        let object = NewObject {
            table: 0,
            version: 1,
            expires_at_ms: None,
            key: b"key",
            value: &[7; 100],
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let mut entry = vec![0; object.padded_bytes()];
        object.write_to(&mut entry);
        for bit in 0..8 * (LABEL_BYTES + HEADER_BYTES) {
            let options = Options {
                huge_pages: false,
                ..Options::new(MEMORY_BYTES)
            };
            let space = Space::new(&options, &Topology::single(), 0, 0).unwrap();
            let epochs = Epochs::new(1, Ticks::counting());
            let promoted = Promoted::new(MEMORY_BYTES, space.segment_bytes());
            let cold = space.offset_of(space.segments.len() as u32 - 1) + SEGMENT_HEADER_BYTES;
            let put = |n| promoted.put(&space, Space::location(cold + 8 * n), 1, &entry);
            assert!(!put(0), "there is no window yet");
            promoted.tend(&space, 0, &epochs, 0);
            assert!((0..COPIES).all(put));
            let slots = promoted.table.iter().map(|it| it.load(Ordering::Relaxed));
            let first = slots.filter(|slot| *slot != 0).map(|it| it & LOCATION_MASK);
            let at = space.at(first.min().unwrap());
            // SAFETY: a byte of the first label or copy, and no other thread has the space.
            unsafe { *at.add(bit / 8) ^= 1 << (bit % 8) };
            promoted.give_up(&space, &epochs);
            let mut slots = promoted.table.iter();
            assert!(slots.all(|it| it.load(Ordering::Relaxed) == 0), "bit {bit}");
            assert_eq!(promoted.bytes(), 0);
        }
    }
}
