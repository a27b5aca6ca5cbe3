//! Chunks: a run of pages that were created together for objects of one size, with the object table
//! of their locations on flash.
//!
//! **Invariants**
//! - K1: a page belongs to at most one chunk, and no two chunks have one number. A holder of a
//!   chunk's number compares it: tables are numbered upwards, and after 2^32 of them by the next
//!   number that is free.
//! - K2: a unit is stored as one object: a page's content, or, for objects of fewer than
//!   [`UNIT_BYTES_LEAST`] bytes, as many pages' contents as give that many bytes. So four bytes of
//!   a table stand for at least 128 of data. An entry of a table with two lengths takes eight
//!   bytes, and stands for half a page or more.
//!
//! **Layout** objects of up to a page: one page each, at its beginning. Longer ones: consecutive
//! pages, each stored alone.
//!
//! Paper: [Badam11 §3.3, §3.4]; differs: a chunk's objects have one size, rounded up finely, so
//! that no length is stored for each object and a read of flash takes as few sectors as possible.

use crate::pager::PAGE_BYTES;
use duramen_flash::Owner;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Least bytes of data per entry of a table [Badam11 §3.3].
const UNIT_BYTES_LEAST: usize = 128;
/// Most pages of a unit: objects of 4 bytes.
pub(crate) const UNIT_PAGES_MAX: u64 = 32;
/// Chunks begin at multiples of this many pages, so that a translation is one load.
pub(crate) const GRANULE_PAGES: u64 = 128;

/// Bytes of flash for a unit's header.
pub(crate) const HEADER_BYTES: u64 = 24;

/// The way in which a chunk's objects are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One by one.
    Pool = 0,
    /// All of them at once, as one array.
    Array = 1,
    /// As bytes: pages of the coalescing allocator.
    Memory = 2,
}

/// A run of pages for objects of one size; see the file's head.
pub(crate) struct Chunk {
    /// The number of the chunk's object table.
    pub table: u32,
    pub first: u64,
    pub objects: u32,
    pub object_bytes: u32,
    pub kind: Kind,
    /// One bit per object of a pool: whether it is handed out.
    used: Box<[AtomicU64]>,
    free: AtomicU32,
    /// Objects from this number on were never handed out: they read as zeros.
    fresh: AtomicU32,
    /// Whether a thread frees the chunk as a whole.
    leaving: AtomicBool,
}

/// A unit, and a page's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The unit's first page, which is its name.
    pub unit: u64,
    /// Number of the page within the unit.
    pub nth: u32,
    pub owner: Owner,
    /// Offset and length of the page's content in the unit.
    pub from: usize,
    pub bytes: usize,
    pub unit_bytes: usize,
}

/// The size with which an object is stored.
pub(crate) fn rounded(bytes: usize) -> usize {
    let step = match bytes {
        0..=64 => 4,
        65..=512 => 16,
        513..=PAGE_BYTES => 64,
        _ => 512,
    };
    bytes.max(1).next_multiple_of(step)
}

impl Chunk {
    pub fn new(table: u32, first: u64, objects: u32, object_bytes: u32, kind: Kind) -> Chunk {
        let words = match kind {
            Kind::Pool => objects.div_ceil(64),
            Kind::Array | Kind::Memory => 0,
        };
        Chunk {
            table,
            first,
            objects,
            object_bytes,
            kind,
            used: (0..words).map(|_| AtomicU64::new(0)).collect(),
            free: AtomicU32::new(objects),
            fresh: AtomicU32::new(0),
            leaving: AtomicBool::new(false),
        }
    }

    /// Pages from one object to the next.
    pub fn stride(&self) -> u64 {
        (self.object_bytes as usize).div_ceil(PAGE_BYTES) as u64
    }

    pub fn pages(&self) -> u64 {
        u64::from(self.objects) * self.stride()
    }

    /// Pages of a unit (K2).
    pub fn unit_pages(&self) -> u64 {
        let bytes = self.object_bytes as usize;
        if bytes >= UNIT_BYTES_LEAST {
            return 1;
        }
        (UNIT_BYTES_LEAST.div_ceil(bytes) as u64).min(UNIT_PAGES_MAX)
    }

    /// Entries of its table.
    pub fn units(&self) -> u32 {
        self.pages().div_ceil(self.unit_pages()) as u32
    }

    /// Bytes of its longest unit.
    pub fn unit_bytes_max(&self) -> usize {
        let page = (self.object_bytes as usize).min(PAGE_BYTES);
        page * self.unit_pages() as usize
    }

    /// Whether all units are of one length.
    pub fn has_one_length(&self) -> bool {
        self.stride() == 1 || (self.object_bytes as usize).is_multiple_of(PAGE_BYTES)
    }

    /// Bytes of flash that one object takes, headers included. For objects that share a unit, these
    /// are the bytes of the whole unit, which is stored as long as one of its objects is handed
    /// out.
    pub fn flash_bytes(&self) -> u64 {
        u64::from(self.object_bytes) * self.unit_pages() + self.stride() * HEADER_BYTES + 1
    }

    /// Bytes of flash that all objects take.
    pub fn flash_bytes_of_all(&self) -> u64 {
        self.flash_bytes() * u64::from(self.objects).div_ceil(self.unit_pages())
    }

    /// Bytes of flash that the objects of a pool take that are handed out.
    pub fn flash_bytes_used(&self) -> u64 {
        let firsts = (0..self.objects).step_by(self.unit_pages() as usize);
        let is_stored = |first: &u32| self.unit_of(*first).any(|object| self.is_used(object));
        self.flash_bytes() * firsts.filter(is_stored).count() as u64
    }

    /// The objects of an object's unit, itself included.
    fn unit_of(&self, object: u32) -> std::ops::Range<u32> {
        let pages = self.unit_pages() as u32;
        let first = object / pages * pages;
        first..self.objects.min(first + pages)
    }

    /// Whether another object of an object's unit is handed out.
    pub fn shares_unit(&self, object: u32) -> bool {
        self.unit_of(object)
            .any(|other| other != object && self.is_used(other))
    }

    /// The unit of a page of this chunk; `None`: the page is behind the last object.
    pub fn place(&self, page: u64) -> Option<Place> {
        let at = page.checked_sub(self.first)?;
        if at >= self.pages() {
            return None;
        }
        let (stride, unit_pages) = (self.stride(), self.unit_pages());
        let index = at / unit_pages;
        let owner = Owner {
            table: self.table,
            index: index as u32,
        };
        let page_bytes = (self.object_bytes as usize).min(PAGE_BYTES);
        let is_last = at % stride == stride - 1;
        let bytes = if stride > 1 && is_last {
            self.object_bytes as usize - (stride as usize - 1) * PAGE_BYTES
        } else {
            page_bytes
        };
        let nth = (at % unit_pages) as u32;
        Some(Place {
            unit: self.first + index * unit_pages,
            nth,
            owner,
            from: nth as usize * page_bytes,
            bytes,
            unit_bytes: bytes * unit_pages as usize,
        })
    }

    /// The object whose first page this is.
    pub fn object(&self, page: u64) -> Option<u32> {
        let at = page.checked_sub(self.first)?;
        let object = at / self.stride();
        (at.is_multiple_of(self.stride()) && object < u64::from(self.objects))
            .then_some(object as u32)
    }

    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.free() == self.objects
    }

    pub fn fresh(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed)
    }

    /// Whether an object of a pool is handed out; other chunks do not record this.
    pub fn is_used(&self, object: u32) -> bool {
        let word = self.used.get(object as usize / 64);
        word.is_none_or(|word| word.load(Ordering::Acquire) & bit(object) != 0)
    }

    /// Whether the object of a page is handed out.
    pub fn is_used_page(&self, page: u64) -> bool {
        self.is_used(((page - self.first) / self.stride()) as u32)
    }

    /// Hands out an object, under the pool's lock. The result also says whether the object was
    /// handed out before.
    pub fn take(&self) -> Option<(u32, bool)> {
        if self.free() == 0 {
            return None;
        }
        let fresh = self.fresh();
        let object = if fresh < self.objects {
            self.fresh.store(fresh + 1, Ordering::Relaxed);
            fresh
        } else {
            let words = self.used.iter().enumerate();
            let (nth, word) = words
                .map(|(nth, word)| (nth as u32, word.load(Ordering::Relaxed)))
                .find(|(nth, word)| {
                    (!word).trailing_zeros() + nth * 64 < self.objects.min(nth * 64 + 64)
                })?;
            nth * 64 + (!word).trailing_zeros()
        };
        self.used[object as usize / 64].fetch_or(bit(object), Ordering::AcqRel);
        self.free.fetch_sub(1, Ordering::Relaxed);
        Some((object, object < fresh))
    }

    /// Hands out an object, under the pool's lock, whose unit is already stored for other objects.
    pub fn take_shared(&self) -> Option<u32> {
        if self.unit_pages() == 1 || self.free() == 0 {
            return None;
        }
        let is_shared = |object: &u32| !self.is_used(*object) && self.shares_unit(*object);
        let fresh = self.fresh();
        let object = (0..self.objects.min(fresh + 1)).find(is_shared)?;
        self.fresh.store(fresh.max(object + 1), Ordering::Relaxed);
        self.used[object as usize / 64].fetch_or(bit(object), Ordering::AcqRel);
        self.free.fetch_sub(1, Ordering::Relaxed);
        Some(object)
    }

    /// Takes an object back. Returns false if it is not handed out.
    pub fn give_back(&self, object: u32) -> bool {
        let before = self.used[object as usize / 64].fetch_and(!bit(object), Ordering::AcqRel);
        let was = before & bit(object) != 0;
        self.free.fetch_add(u32::from(was), Ordering::Relaxed);
        was
    }

    /// Gives the caller alone the right to free the chunk as a whole. Returns false if another
    /// thread has it, or has used it.
    pub fn leave(&self) -> bool {
        !self.leaving.swap(true, Ordering::AcqRel)
    }

    /// Undoes [`leave`](Self::leave): the chunk was not freed.
    pub fn stay(&self) {
        self.leaving.store(false, Ordering::Release);
    }

    /// The bits of objects that are handed out, for a checkpoint.
    pub fn used_words(&self) -> impl Iterator<Item = u64> {
        self.used.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Restores the bits from a checkpoint.
    pub fn restore_used(&self, words: &[u64], fresh: u32) {
        let mut used = 0;
        for (word, found) in self.used.iter().zip(words) {
            word.store(*found, Ordering::Relaxed);
            used += found.count_ones();
        }
        self.free
            .store(self.objects.saturating_sub(used), Ordering::Relaxed);
        self.fresh.store(fresh.min(self.objects), Ordering::Relaxed);
    }

    /// Bytes of RAM of the chunk, its object table included.
    pub fn tables_bytes(&self) -> u64 {
        let entry_bytes = if self.has_one_length() { 4 } else { 8 };
        self.used.len() as u64 * 8 + 128 + u64::from(self.units()) * entry_bytes
    }
}

fn bit(object: u32) -> u64 {
    1 << (object % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_one_place_and_tables_stay_small() {
        for bytes in [4, 8, 60, 96, 112, 128, 500, 4096, 4100, 9000, 32768] {
            let chunk = Chunk::new(1, 256, 300, rounded(bytes) as u32, Kind::Pool);
            let mut seen = std::collections::BTreeMap::new();
            for page in 256..256 + chunk.pages() {
                let place = chunk.place(page).unwrap();
                assert!(place.from + place.bytes <= place.unit_bytes);
                assert!(place.unit_bytes <= chunk.unit_bytes_max());
                assert!(place.unit <= page && page < place.unit + chunk.unit_pages());
                assert!(place.owner.index < chunk.units());
                let other = seen.insert((place.owner.index, place.from), page);
                assert_eq!(other, None, "{bytes} bytes: two pages in one place");
            }
            assert_eq!(chunk.place(256 + chunk.pages()), None);
            let data = u64::from(chunk.object_bytes) * 300;
            assert!(
                u64::from(chunk.units()) * 4 * 32 <= data + 128 * 32,
                "{bytes} bytes: at most 1/32"
            );
        }
    }

    #[test]
    fn objects_are_handed_out_once() {
        let chunk = Chunk::new(1, 0, 130, 64, Kind::Pool);
        let mut taken: Vec<u32> = (0..130).map(|_| chunk.take().unwrap().0).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..130).collect::<Vec<_>>());
        assert_eq!(chunk.take(), None);
        assert!(chunk.give_back(129) && !chunk.give_back(129) && chunk.give_back(5));
        assert_eq!(chunk.take(), Some((5, true)));
        assert_eq!(chunk.take(), Some((129, true)));
        assert_eq!(chunk.take(), None);
    }
}
