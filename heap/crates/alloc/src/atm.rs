//! Address translation (the paper's address translation module): from an address to its chunk, and
//! the free and taken addresses.
//!
//! **Invariants**
//! - T1: a granule of a chunk names the chunk from before an address in it is handed out until the
//!   chunk is gone.
//!
//! **Concurrency** a look-up takes a shared lock for a moment and may run in a fault handler: no
//! thread touches a page of the arena while it holds a lock of this file.
//!
//! Paper: [Badam11 §3.3]; differs: a flat directory of granules instead of a balanced tree: one
//! load.

use crate::chunk::{Chunk, GRANULE_PAGES, Place};
use crate::mapping::Counters;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// The directory, the chunks and the free addresses; see the file's head.
pub(crate) struct Atm {
    /// For each granule, the index of its chunk in `chunks.all` plus one; 0: no chunk. Zeros that
    /// are never written take no memory.
    directory: Counters<AtomicU32>,
    chunks: RwLock<Chunks>,
    addresses: Mutex<Addresses>,
}

#[derive(Default)]
struct Chunks {
    all: Vec<Option<Arc<Chunk>>>,
    /// Indexes in `all` without a chunk: a million chunks are added without a search for each.
    free: Vec<usize>,
}

/// The directory, locked for look-ups.
pub(crate) struct Look<'a> {
    directory: &'a [AtomicU32],
    chunks: RwLockReadGuard<'a, Chunks>,
}

impl Look<'_> {
    pub fn chunk(&self, page: u64) -> Option<&Chunk> {
        let granule = self.directory.get((page / GRANULE_PAGES) as usize)?;
        let number = granule.load(Ordering::Acquire).checked_sub(1)?;
        self.chunks.all.get(number as usize)?.as_deref()
    }

    pub fn place(&self, page: u64) -> Option<Place> {
        self.chunk(page)?.place(page)
    }
}

/// Free addresses of the arena, in granules.
struct Addresses {
    next: u64,
    end: u64,
    /// Start and length of returned ranges, coalesced.
    free: BTreeMap<u64, u64>,
}

impl Atm {
    /// The directory of an arena of `pages` pages.
    pub fn new(pages: u64) -> std::io::Result<Atm> {
        let granules = pages / GRANULE_PAGES;
        Ok(Atm {
            directory: Counters::new(granules as usize)?,
            chunks: RwLock::default(),
            addresses: Mutex::new(Addresses {
                next: 0,
                end: granules,
                free: BTreeMap::new(),
            }),
        })
    }

    pub fn chunk(&self, page: u64) -> Option<Arc<Chunk>> {
        let granule = self.directory.all().get((page / GRANULE_PAGES) as usize)?;
        let number = granule.load(Ordering::Acquire).checked_sub(1)?;
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        chunks.all.get(number as usize)?.clone()
    }

    /// The unit of a page. Takes no reference count, for which all processors would compete.
    pub fn place(&self, page: u64) -> Option<Place> {
        self.look().place(page)
    }

    /// As [`place`](Self::place), but only for a page whose object is handed out.
    pub fn used_place(&self, page: u64) -> Option<Place> {
        let look = self.look();
        let chunk = look.chunk(page)?;
        let place = chunk.place(page)?;
        chunk.is_used_page(page).then_some(place)
    }

    /// Locks the directory for several look-ups.
    pub fn look(&self) -> Look<'_> {
        Look {
            directory: self.directory.all(),
            chunks: self.chunks.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Reserves addresses for `pages` pages, and returns the first page: the best fit among
    /// returned ranges, or new addresses.
    pub fn reserve(&self, pages: u64) -> Option<u64> {
        let wanted = pages.div_ceil(GRANULE_PAGES);
        let mut addresses = self.addresses();
        let fits = addresses
            .free
            .iter()
            .filter(|(_, length)| **length >= wanted);
        let best = fits.min_by_key(|(_, length)| **length);
        if let Some((start, length)) = best.map(|(start, length)| (*start, *length)) {
            addresses.free.remove(&start);
            if length > wanted {
                addresses.free.insert(start + wanted, length - wanted);
            }
            return Some(start * GRANULE_PAGES);
        }
        let start = addresses.next;
        let end = start
            .checked_add(wanted)
            .filter(|end| *end <= addresses.end)?;
        addresses.next = end;
        Some(start * GRANULE_PAGES)
    }

    /// Returns addresses that belong to no chunk.
    pub fn give_back(&self, first: u64, pages: u64) {
        let mut addresses = self.addresses();
        let (mut start, mut length) = (first / GRANULE_PAGES, pages.div_ceil(GRANULE_PAGES));
        if let Some(behind) = addresses.free.remove(&(start + length)) {
            length += behind;
        }
        let before = addresses.free.range(..start).next_back();
        if let Some((before, its)) = before.map(|(before, its)| (*before, *its))
            && before + its == start
        {
            addresses.free.remove(&before);
            (start, length) = (before, length + its);
        }
        if start + length == addresses.next {
            addresses.next = start;
        } else {
            addresses.free.insert(start, length);
        }
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, Addresses> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a chunk's addresses to it (T1).
    pub fn add(&self, chunk: Arc<Chunk>) {
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        let number = chunks.free.pop().unwrap_or_else(|| {
            chunks.all.push(None);
            chunks.all.len() - 1
        });
        for granule in Atm::granules(&chunk) {
            self.directory.all()[granule].store(number as u32 + 1, Ordering::Release);
        }
        chunks.all[number] = Some(chunk);
    }

    /// Removes a chunk; its addresses may then be returned.
    pub fn remove(&self, chunk: &Chunk) {
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        for granule in Atm::granules(chunk) {
            let number = self.directory.all()[granule].swap(0, Ordering::AcqRel);
            if let Some(number) = number.checked_sub(1).map(|number| number as usize)
                && chunks.all[number].take().is_some()
            {
                chunks.free.push(number);
            }
        }
    }

    fn granules(chunk: &Chunk) -> std::ops::Range<usize> {
        let first = chunk.first / GRANULE_PAGES;
        let end = (chunk.first + chunk.pages()).div_ceil(GRANULE_PAGES);
        first as usize..end as usize
    }

    pub fn all(&self) -> Vec<Arc<Chunk>> {
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        chunks.all.iter().flatten().cloned().collect()
    }

    /// Restores these chunks from a checkpoint; all other addresses are free.
    pub fn restore(&self, mut chunks: Vec<Arc<Chunk>>) {
        chunks.sort_by_key(|chunk| chunk.first);
        let mut addresses = self.addresses();
        for chunk in &chunks {
            let range = Atm::granules(chunk);
            let (start, next) = (range.start as u64, addresses.next);
            if start > next {
                addresses.free.insert(next, start - next);
            }
            addresses.next = range.end as u64;
        }
        drop(addresses);
        for chunk in chunks {
            self.add(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Kind;

    #[test]
    fn addresses_are_found_given_back_and_coalesced() {
        let atm = Atm::new(100 * GRANULE_PAGES).unwrap();
        let add = |table, objects| {
            let first = atm.reserve(u64::from(objects)).unwrap();
            let chunk = Arc::new(Chunk::new(table, first, objects, 128, Kind::Array));
            atm.add(Arc::clone(&chunk));
            chunk
        };
        let chunks: Vec<_> = (0..10).map(|n| add(n, 1280)).collect();
        assert_eq!(atm.reserve(1), None, "the arena is full");
        for (n, chunk) in chunks.iter().enumerate() {
            assert_eq!(atm.chunk(chunk.first + 1279).unwrap().table, n as u32);
        }
        for n in [2, 4, 3] {
            atm.remove(&chunks[n]);
            assert!(atm.chunk(chunks[n].first).is_none());
            atm.give_back(chunks[n].first, chunks[n].pages());
        }
        assert_eq!(atm.reserve(30 * GRANULE_PAGES), Some(chunks[2].first));
        for n in [9, 8] {
            atm.remove(&chunks[n]);
            atm.give_back(chunks[n].first, chunks[n].pages());
        }
        assert_eq!(atm.reserve(20 * GRANULE_PAGES), Some(chunks[8].first));
        let again = Arc::new(Chunk::new(20, chunks[8].first, 1280, 128, Kind::Array));
        atm.add(again);
        assert_eq!(atm.chunk(chunks[9].first - 1).unwrap().table, 20);
        let known = atm.chunks.read().unwrap().all.len();
        assert_eq!(known, 10, "the index of a removed chunk is used again");
        assert!(atm.chunk(1 << 40).is_none());
    }
}
