//! Promoted entries: copies in memory of cold entries that are read again and again.
//!
//! Copies lie in windows of the store's own region, appended one after the other; a table finds
//! them by the entry's location. An entry is copied when it is fetched for the second time within
//! about as many fetches as copies have room (`Seen`), or for the third while nearly all that is
//! copied goes on being read: what is read once, however much of it there is, pushes nothing out.
//! When their part of the memory is full, the oldest window is given up, and what was read of it
//! since it was filled moves on to a new one, which is taken first, beside their part.
//!
//! **Invariants**
//! - P1: a window is retired only after no slot of the table points into it; who found a slot is
//!   pinned (S3, E2).
//! - P2: the table and the windows are changed by who holds `shelf`; a reader's count is a
//!   compare-and-swap that fails if the slot was changed, so nothing comes back that was taken out.
//! - P3: a copy counts only for the location *and* incarnation that it was made of (F4).
//! - P4: copies take what memory the index, the open segments and their reserve leave, and give it
//!   back when these grow; half of the budget at most while more is written than copies serve.
//! - P5: memory that is given back is that of the least read copies among the oldest windows; that
//!   something else is wanted pushes out only what is oldest, and what was read of that moves on.
//!
//! Paper: [Yang23 S3-FIFO] FIFO queues, lazy counts, a memory of what was read once; differs: that
//! memory is all there is of the small queue, for what it would hold is on flash anyway.

use crate::epoch::Epochs;
use crate::space::segment::State;
use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Part of the budget that copies may take in any case, and the most that they are prepared for
/// (P4).
const MEMORY_PART: f64 = 0.5;
const MEMORY_PART_MAX: f64 = 0.9;
/// Bytes of copies for each slot of the table.
const BYTES_PER_SLOT: usize = 384;
const WAYS: usize = 8;
/// Bytes of copies for each entry that was fetched once and is remembered.
const BYTES_PER_SEEN: usize = 512;
const SEEN_PER_WORD: usize = 4;
const SEEN_BITS: u32 = u64::BITS / SEEN_PER_WORD as u32;
/// Of these, how often it was seen takes so many.
const SIGHTINGS_BITS: u32 = 2;
const SIGHTINGS_MAX: u64 = (1 << SIGHTINGS_BITS) - 1;
/// Fetches after which an entry is copied; and while of a window that is given up all but one of so
/// many parts move on.
const SIGHTINGS: u64 = 2;
const SIGHTINGS_CROWDED: u64 = 3;
const CROWDED_PART: usize = 4;
/// Counters that take turns, so that threads seldom meet.
const HIT_COUNTERS: usize = 16;
/// Location and incarnation, in front of the copy.
const LABEL_BYTES: usize = 16;
/// Of a window that is given up, all but one of so many parts may move on.
const DROPPED_PART: usize = 8;
/// So many of the oldest windows are looked at when one is given back.
const OLDEST: usize = 8;

const LOCATION_BITS: u32 = 38;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
const READ_SHIFT: u32 = LOCATION_BITS;
const READ_ONE: u64 = 1 << READ_SHIFT;
const READ_MASK: u64 = 0b11 << READ_SHIFT;
const TAG_SHIFT: u32 = READ_SHIFT + 2;
/// The most that is counted of how often a copy was read.
pub(super) const HEAT_MAX: u8 = (READ_MASK >> READ_SHIFT) as u8;

fn heat_of(slot: u64) -> u8 {
    ((slot & READ_MASK) >> READ_SHIFT) as u8
}

pub(crate) struct Promoted {
    /// Sets of `WAYS` slots: tag of the entry's location, times read, location of the copy; 0 =
    /// empty.
    table: Box<[AtomicU64]>,
    shelf: Mutex<Shelf>,
    seen: Seen,
    segment_bytes: usize,
    /// Windows that may be taken now (P4), that the table is made for, and that are always allowed
    /// as far as there is room.
    most: AtomicU64,
    prepared: u64,
    modest: u64,
    /// Windows taken.
    windows: AtomicU64,
    /// A copy found no room: a cleaner is to make some.
    wants: AtomicBool,
    /// Of the last that found none.
    lacking_bytes: AtomicU64,
    /// Nearly all that was copied is read still.
    crowded: AtomicBool,
    hits: [Hits; HIT_COUNTERS],
    /// Copies made, and their bytes.
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    /// Bytes copied, or asked to be, for what was known before, since that was asked last: as good
    /// as served.
    refilled_bytes: AtomicU64,
    /// Hits and appended bytes when it was last asked which of them is more.
    weighed: Mutex<(u64, u64)>,
}

/// What became of a copy that is made because its entry was hot before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// There is one now, or others in its place that are no colder.
    Done,
    /// It lacks a window that it may have: again when a cleaner thread has found one.
    Later,
    /// Copies have what memory they may have now.
    Full,
}

#[derive(Default)]
#[repr(align(128))]
struct Hits(AtomicU64);

/// Entries that were fetched, until as many others were that fall into the same word: four marks,
/// the newest lowest, each with how often it was seen below it.
struct Seen(Box<[AtomicU64]>);

impl Seen {
    /// How often this entry was met since it is remembered, this time included; as many as are
    /// counted.
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
                    // Two at once: one of them is forgotten, here and below.
                    place.store(marks + (1 << shift), Ordering::Relaxed);
                }
                return (sightings + 1).min(SIGHTINGS_MAX);
            }
        }
        place.store(marks << SEEN_BITS | mark | 1, Ordering::Relaxed);
        1
    }
}

/// A copy in a window that is given up, which is read still.
struct Kept {
    location: u64,
    incarnation: u32,
    /// In the region, of its label.
    at: usize,
    bytes: usize,
    reads: u64,
}

/// A copy that the table points to.
struct Copied<'a> {
    place: &'a AtomicU64,
    location: u64,
    incarnation: u32,
    /// In the region, of its label.
    at: usize,
    bytes: usize,
}

#[derive(Default)]
struct Shelf {
    /// The window that is filled, and where (offsets in the region).
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
    /// True if the window that is filled has room for so many bytes.
    fn fits(&self, bytes: usize) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|open| open.end - open.cursor >= bytes)
    }
}

/// Set and tag of an entry's location.
fn place_of(location: u64, sets: usize) -> (usize, u64) {
    // Fibonacci hashing: the high bits depend on all of the location.
    let mixed = location.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let set = (mixed >> 20) as usize % sets;
    (set * WAYS, mixed >> TAG_SHIFT)
}

impl Promoted {
    pub(super) fn new(memory_bytes: u64, segment_bytes: usize) -> Promoted {
        let windows = |part: f64| (memory_bytes as f64 * part) as usize / segment_bytes;
        let bytes_max = windows(MEMORY_PART_MAX) * segment_bytes;
        let slots = bytes_max / BYTES_PER_SLOT;
        Promoted {
            table: (0..slots.next_multiple_of(WAYS).max(WAYS))
                .map(|_| AtomicU64::new(0))
                .collect(),
            shelf: Mutex::default(),
            seen: Seen(
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

    pub(super) fn table_bytes(&self) -> u64 {
        (size_of_val(&*self.table) + size_of_val(&*self.seen.0)) as u64
    }

    /// Memory of the windows that copies lie in.
    pub(crate) fn bytes(&self) -> u64 {
        self.windows.load(Ordering::Relaxed) * self.segment_bytes as u64
    }

    pub(super) fn hits(&self) -> u64 {
        let hits = self.hits.iter();
        hits.map(|hits| hits.0.load(Ordering::Relaxed)).sum()
    }

    /// True if an entry that was fetched now is to be copied: it was before, and often enough.
    pub(super) fn wants_copy(&self, location: u64, incarnation: u32) -> bool {
        let enough = match self.crowded.load(Ordering::Relaxed) {
            true => SIGHTINGS_CROWDED,
            false => SIGHTINGS,
        };
        self.seen.meet(location, incarnation) >= enough
    }

    /// True if a copy lacks a window that it may have (P4).
    pub(super) fn lacks_window(&self) -> bool {
        self.wants.load(Ordering::Relaxed)
            && self.windows.load(Ordering::Relaxed) < self.most.load(Ordering::Relaxed)
    }

    /// Decides how many windows copies may take (P4), of `room`. `appended`: bytes that were
    /// written since the start.
    pub(super) fn weigh(&self, room: u64, appended: u64) {
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

    /// True if the copy there is of this entry.
    fn is_of(space: &Space, copy: u64, location: u64, incarnation: u32) -> bool {
        let label = space.at(copy).cast::<u64>();
        // SAFETY: a slot of the table points there: a label and a copy, complete before the slot
        // was stored (Release), and not reused before the caller's pin ends (P1), or under the
        // shelf's lock.
        unsafe { *label == location && *label.add(1) == u64::from(incarnation) }
    }

    /// The copy of an entry. The caller is pinned.
    pub(super) fn get(&self, space: &Space, location: u64, incarnation: u32) -> Option<*const u8> {
        let (set, tag) = self.set_of(location);
        for place in set {
            let slot = place.load(Ordering::Acquire);
            if slot >> TAG_SHIFT == tag
                && slot != 0
                && Self::is_of(space, slot & LOCATION_MASK, location, incarnation)
            {
                if slot & READ_MASK != READ_MASK {
                    let read = slot + READ_ONE;
                    let _ =
                        place.compare_exchange(slot, read, Ordering::Relaxed, Ordering::Relaxed); // P2
                }
                let counter = location as usize % HIT_COUNTERS;
                self.hits[counter].0.fetch_add(1, Ordering::Relaxed);
                let at = space.at(slot & LOCATION_MASK);
                return Some(at.wrapping_add(LABEL_BYTES));
            }
        }
        None
    }

    /// Where the copy of an entry probably is, for a prefetch.
    pub(super) fn peek(&self, space: &Space, location: u64) -> Option<*const u8> {
        let (set, tag) = self.set_of(location);
        let slots = set.iter().map(|place| place.load(Ordering::Relaxed));
        let mut like_it = slots.filter(|slot| *slot != 0 && slot >> TAG_SHIFT == tag);
        like_it.next().map(|slot| {
            let label: *const u8 = space.at(slot & LOCATION_MASK);
            label
        })
    }

    /// Keeps a copy of an entry. False: there is no room now.
    pub(super) fn put(&self, space: &Space, location: u64, incarnation: u32, entry: &[u8]) -> bool {
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
    pub(super) fn sets(&self) -> usize {
        self.table.len() / WAYS
    }

    /// Shows the copies of a set: how often each was read lately, 0 to [`HEAT_MAX`], and its entry.
    /// The caller is pinned.
    pub(super) fn each_in(&self, space: &Space, set: usize, mut show: impl FnMut(u8, *const u8)) {
        for place in &self.table[set * WAYS..][..WAYS] {
            let slot = place.load(Ordering::Acquire);
            if slot != 0 {
                let at = space.at(slot & LOCATION_MASK);
                show(heat_of(slot), at.wrapping_add(LABEL_BYTES));
            }
        }
    }

    /// True if there is a copy of the entry. That is not counted as a read of it. The caller is
    /// pinned, or has the shelf.
    pub(super) fn has(&self, space: &Space, location: u64, incarnation: u32) -> bool {
        let (set, tag) = self.set_of(location);
        set.iter().any(|place| {
            let slot = place.load(Ordering::Acquire);
            slot != 0
                && slot >> TAG_SHIFT == tag
                && Self::is_of(space, slot & LOCATION_MASK, location, incarnation)
        })
    }

    /// Keeps a copy of an entry that was hot before, as one that was read so often. It takes only
    /// room that nobody has.
    pub(super) fn put_hot(
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
                // Wanting a window would give up one of copies. What waits counts as served, or
                // `weigh` never heard of it.
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

    /// A copy of so many bytes finds no room.
    fn want(&self, bytes: usize) {
        self.lacking_bytes.store(bytes as u64, Ordering::Relaxed);
        self.wants.store(true, Ordering::Relaxed);
    }

    /// False: there is no room. `reads`: what is known of it already, at the place of a slot.
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
        // SAFETY: bytes just taken in a window that the shelf's holder alone appends to; nobody was
        // told of them yet.
        unsafe {
            let label = at.cast::<u64>();
            *label = location;
            *label.add(1) = u64::from(incarnation);
            at.add(LABEL_BYTES)
                .copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        }
        let (set, tag) = self.set_of(location);
        // An empty place, or that of a copy that nobody has read since it came.
        let value = |place: &&AtomicU64| {
            let slot = place.load(Ordering::Relaxed);
            (slot != 0, slot & READ_MASK)
        };
        let place = set.iter().min_by_key(value).expect("a set has ways");
        place.store(tag << TAG_SHIFT | reads | copy, Ordering::Release);
        true
    }

    /// Location of so many bytes of the window that is filled.
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
    pub(super) fn has_too_much(&self) -> bool {
        self.windows.load(Ordering::Relaxed) > self.most.load(Ordering::Relaxed)
    }

    /// Windows that copies may have whatever is written.
    pub(super) fn modest(&self) -> u64 {
        self.modest
    }

    /// Gives a window back: what is read in it most is lost, so one of little heat (P5). By a
    /// cleaner thread.
    pub(super) fn give_up(&self, space: &Space, epochs: &Epochs) {
        let mut shelf = self.shelf.lock().expect("promoted entries");
        if let Some(spare) = shelf.spare.take() {
            self.retire(space, spare, epochs);
        } else {
            let coldest = self.coldest(space, &shelf);
            self.give_up_one(space, &mut shelf, coldest, epochs);
        }
    }

    /// Makes room for copies if some are wanted: takes a window, and gives the oldest up for it if
    /// copies have all they may. By a cleaner thread.
    pub(super) fn tend(&self, space: &Space, node: usize, epochs: &Epochs, now_ms: u64) {
        let most = self.most.load(Ordering::Relaxed);
        if !self.wants.load(Ordering::Relaxed) || most == 0 {
            return;
        }
        let mut shelf = self.shelf.lock().expect("promoted entries");
        if shelf.spare.is_none() {
            let window = space.acquire(node, Purpose::Promoted, epochs, now_ms, 0);
            shelf.spare = window;
            if self.windows.load(Ordering::Relaxed) < most {
                self.crowded.store(false, Ordering::Relaxed);
            } else {
                // What moves on needs the new window. Without one it is lost, and the next round
                // has this one's memory.
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

    /// Of the oldest windows, the one whose copies were read least: its place, from the oldest on.
    fn coldest(&self, space: &Space, shelf: &Shelf) -> usize {
        let oldest = shelf.full.iter().take(OLDEST).enumerate();
        let heat = oldest.map(|(place, (window, end))| {
            let mut heat = 0;
            self.each_copy(space, *window, *end, |copy| {
                let slot = copy.place.load(Ordering::Relaxed);
                heat += u64::from(heat_of(slot)) * copy.bytes as u64;
            });
            (heat, place)
        });
        heat.min().map_or(0, |(_, place)| place)
    }

    /// Retires a full window, given by its place from the oldest on. What was read of it since it
    /// was filled moves on, but leaves room for what is wanted.
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
        self.each_copy(space, window, end, |copy| {
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
        kept
    }

    /// Shows the copies in a full window of the shelf that the table still points to.
    fn each_copy(&self, space: &Space, window: u32, end: usize, mut show: impl FnMut(Copied<'_>)) {
        let mut at = space.offset_of(window) + SEGMENT_HEADER_BYTES;
        while at < end {
            let copy = Space::location(at);
            let label = space.at(copy).cast::<u64>();
            // SAFETY: the window was filled with labels and copies up to `end`, and is the shelf's,
            // which the caller holds.
            let (location, incarnation, bytes) = unsafe {
                let entry = duramen_format::entry::header_trusted(label.add(2).cast());
                (*label, *label.add(1) as u32, entry.padded_bytes())
            };
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
    }

    fn retire(&self, space: &Space, window: u32, epochs: &Epochs) {
        debug_assert!(space.segments[window as usize].state() == State::Promoted);
        self.windows.fetch_sub(1, Ordering::Relaxed);
        space.retire(space.node_of(window), window, epochs); // P1
    }
}
