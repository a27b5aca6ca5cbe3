//! Promoted entries: copies in memory of cold entries that are read again and again.
//!
//! Copies lie in windows of the store's own region, appended one after the other; a table finds them by the entry's
//! location. When their part of the memory is full, the oldest window is given up, and what was read of it since it was
//! filled moves on to the newest (a second chance).
//!
//! **Invariants**
//! - P1: a window is retired only after no slot of the table points into it; who found a slot is pinned (S3, E2).
//! - P2: the table and the windows are changed by who holds `shelf`; a reader's count is a compare-and-swap that fails if
//!   the slot was changed, so nothing comes back that was taken out.
//! - P3: a copy counts only for the location *and* incarnation that it was made of (F4).

use crate::epoch::Epochs;
use crate::space::segment::State;
use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Part of the budget that copies may take.
const MEMORY_PART: f64 = 0.5;
/// Bytes of copies for each slot of the table.
const BYTES_PER_SLOT: usize = 256;
const WAYS: usize = 8;
/// Location and incarnation, in front of the copy.
const LABEL_BYTES: usize = 16;
/// Of a window that is given up, at most this part moves on.
const KEPT_PART: usize = 2;

const LOCATION_BITS: u32 = 38;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
const READ_SHIFT: u32 = LOCATION_BITS;
const READ_MASK: u64 = 0b11 << READ_SHIFT;
const TAG_SHIFT: u32 = READ_SHIFT + 2;

pub(crate) struct Promoted {
    /// Sets of `WAYS` slots: tag of the entry's location, times read, location of the copy; 0 = empty.
    table: Box<[AtomicU64]>,
    shelf: Mutex<Shelf>,
    windows_max: usize,
    segment_bytes: usize,
    /// Windows taken.
    windows: AtomicU64,
    /// A copy found no room: a cleaner is to make some.
    wants: AtomicBool,
    hits: AtomicU64,
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

/// Set and tag of an entry's location.
fn place_of(location: u64, sets: usize) -> (usize, u64) {
    // Fibonacci hashing: the high bits depend on all of the location.
    let mixed = location.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let set = (mixed >> 20) as usize % sets;
    (set * WAYS, mixed >> TAG_SHIFT)
}

impl Promoted {
    pub(super) fn new(memory_bytes: u64, segment_bytes: usize) -> Promoted {
        let windows_max = (memory_bytes as f64 * MEMORY_PART) as usize / segment_bytes;
        let slots = windows_max * segment_bytes / BYTES_PER_SLOT;
        Promoted {
            table: (0..slots.next_multiple_of(WAYS).max(WAYS))
                .map(|_| AtomicU64::new(0))
                .collect(),
            shelf: Mutex::default(),
            windows_max,
            segment_bytes,
            windows: AtomicU64::new(0),
            wants: AtomicBool::new(false),
            hits: AtomicU64::new(0),
        }
    }

    pub(super) fn table_bytes(&self) -> u64 {
        size_of_val(&*self.table) as u64
    }

    /// Memory of the windows that copies lie in.
    pub(crate) fn bytes(&self) -> u64 {
        self.windows.load(Ordering::Relaxed) * self.segment_bytes as u64
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    fn set_of(&self, location: u64) -> (&[AtomicU64], u64) {
        let (first, tag) = place_of(location, self.table.len() / WAYS);
        (&self.table[first..first + WAYS], tag)
    }

    /// True if the copy there is of this entry.
    fn is_of(space: &Space, copy: u64, location: u64, incarnation: u32) -> bool {
        let label = space.at(copy).cast::<u64>();
        // SAFETY: a slot of the table points there: a label and a copy, complete before the slot was stored (Release), and
        // not reused before the caller's pin ends (P1), or under the shelf's lock.
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
                if slot & READ_MASK == 0 {
                    let read = slot | 1 << READ_SHIFT;
                    let _ =
                        place.compare_exchange(slot, read, Ordering::Relaxed, Ordering::Relaxed); // P2
                }
                self.hits.fetch_add(1, Ordering::Relaxed);
                let at = space.at(slot & LOCATION_MASK);
                return Some(at.wrapping_add(LABEL_BYTES));
            }
        }
        None
    }

    /// Keeps a copy of an entry. False: there is no room now.
    pub(super) fn put(&self, space: &Space, location: u64, incarnation: u32, entry: &[u8]) -> bool {
        let Ok(mut shelf) = self.shelf.try_lock() else {
            return false;
        };
        self.put_on(space, &mut shelf, location, incarnation, entry)
    }

    fn put_on(
        &self,
        space: &Space,
        shelf: &mut Shelf,
        location: u64,
        incarnation: u32,
        entry: &[u8],
    ) -> bool {
        let (set, tag) = self.set_of(location);
        let known = set.iter().any(|place| {
            let slot = place.load(Ordering::Relaxed);
            slot != 0
                && slot >> TAG_SHIFT == tag
                && Self::is_of(space, slot & LOCATION_MASK, location, incarnation)
        });
        if known {
            return true;
        }
        let Some(copy) = self.take(space, shelf, LABEL_BYTES + entry.len()) else {
            self.wants.store(true, Ordering::Relaxed);
            return false;
        };
        let at = space.at(copy);
        // SAFETY: bytes just taken in a window that the shelf's holder alone appends to; nobody was told of them yet.
        unsafe {
            let label = at.cast::<u64>();
            *label = location;
            *label.add(1) = u64::from(incarnation);
            at.add(LABEL_BYTES)
                .copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        }
        // An empty place, or that of a copy that nobody has read since it came.
        let value = |place: &&AtomicU64| {
            let slot = place.load(Ordering::Relaxed);
            (slot != 0, slot & READ_MASK)
        };
        let place = set.iter().min_by_key(value).expect("a set has ways");
        place.store(tag << TAG_SHIFT | copy, Ordering::Release);
        true
    }

    /// Location of so many bytes of the window that is filled.
    fn take(&self, space: &Space, shelf: &mut Shelf, bytes: usize) -> Option<u64> {
        if bytes > self.segment_bytes - SEGMENT_HEADER_BYTES {
            return None;
        }
        let fits = |open: &Open| open.end - open.cursor >= bytes;
        if !shelf.current.as_ref().is_some_and(fits) {
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

    /// Makes room for copies if some are wanted: takes a window, or gives the oldest up. By a cleaner thread.
    pub(crate) fn tend(&self, space: &Space, node: usize, epochs: &Epochs, now_ms: u64) {
        if !self.wants.load(Ordering::Relaxed) {
            return;
        }
        let mut shelf = self.shelf.lock().expect("promoted entries");
        if shelf.spare.is_none() && self.windows.load(Ordering::Relaxed) >= self.windows_max as u64
        {
            self.give_up_oldest(space, &mut shelf, epochs);
        }
        if shelf.spare.is_none()
            && self.windows.load(Ordering::Relaxed) < self.windows_max as u64
            && let Some(window) = space.acquire(node, Purpose::Promoted, epochs, now_ms, 0)
        {
            self.windows.fetch_add(1, Ordering::Relaxed);
            shelf.spare = Some(window);
        }
        if shelf.spare.is_some() {
            self.wants.store(false, Ordering::Relaxed);
        }
    }

    fn give_up_oldest(&self, space: &Space, shelf: &mut Shelf, epochs: &Epochs) -> bool {
        let Some((window, end)) = shelf.full.pop_front() else {
            return false;
        };
        let mut at = space.offset_of(window) + SEGMENT_HEADER_BYTES;
        let mut kept = 0;
        while at < end {
            let copy = Space::location(at);
            let label = space.at(copy).cast::<u64>();
            // SAFETY: the window was filled with labels and copies up to `end`, and is this shelf's.
            let (location, incarnation, bytes) = unsafe {
                let entry = duramen_format::entry::header_trusted(label.add(2).cast());
                (*label, *label.add(1) as u32, entry.padded_bytes())
            };
            at += LABEL_BYTES + bytes;
            let (set, _) = self.set_of(location);
            let points = |place: &&AtomicU64| place.load(Ordering::Relaxed) & LOCATION_MASK == copy;
            let Some(place) = set.iter().find(points) else {
                continue;
            };
            let slot = place.swap(0, Ordering::Relaxed);
            let home = space.window_of(location);
            let is_current = space.segments[home].incarnation() == incarnation;
            if slot & READ_MASK != 0 && is_current && kept + bytes < self.segment_bytes / KEPT_PART
            {
                kept += bytes;
                // SAFETY: as above.
                let entry = unsafe { std::slice::from_raw_parts(label.add(2).cast::<u8>(), bytes) };
                let _ = self.put_on(space, shelf, location, incarnation, entry);
            }
        }
        self.retire(space, window, epochs);
        true
    }

    fn retire(&self, space: &Space, window: u32, epochs: &Epochs) {
        debug_assert!(space.segments[window as usize].state() == State::Promoted);
        self.windows.fetch_sub(1, Ordering::Relaxed);
        space.retire(space.node_of(window), window, epochs); // P1
    }
}
