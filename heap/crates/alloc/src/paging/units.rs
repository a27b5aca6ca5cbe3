//! The units of objects: their names, their contents in the cache and on flash, and the RAM that
//! the cache shares with tables.
//!
//! **Concurrency** who reads or saves a unit owns it (buffer::B1). Tables take and return RAM from
//! any thread.
//!
//! Paper: [Badam11 §3.2, RAM Object Cache]; differs: see `cache`.

use super::worker::Worker;
use crate::atm::Atm;
use crate::budget::{Budget, add_up_to};
use crate::cache::{self, Cache};
use crate::chunk::{Chunk, Kind, Place};
use crate::error::Error;
use crate::stats::Stats;
use duramen_flash::{Error as FlashError, ObjectStore};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Names and saved contents of units; see the file's head.
pub(crate) struct Units {
    atm: Atm,
    cache: Cache,
    store: ObjectStore,
    next_table: AtomicU32,
    /// RAM of the whole heap, and the part of it that is neither tables nor cache.
    ram: u64,
    fixed: u64,
    /// RAM of object tables and similar structures.
    tables_bytes: AtomicU64,
    /// Held while RAM of tables is taken from the cache: the last thread to change it sees the sum
    /// of all.
    resizing: Mutex<()>,
    from_cache: AtomicU64,
    from_flash: AtomicU64,
    fresh: AtomicU64,
}

impl Units {
    pub fn new(atm: Atm, cache: Cache, store: ObjectStore, budget: &Budget) -> Units {
        Units {
            atm,
            cache,
            store,
            next_table: AtomicU32::new(1),
            ram: budget.ram,
            fixed: budget.fixed,
            tables_bytes: AtomicU64::new(0),
            resizing: Mutex::new(()),
            from_cache: AtomicU64::new(0),
            from_flash: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
        }
    }

    /// From an address to the name of its object.
    #[inline]
    pub fn atm(&self) -> &Atm {
        &self.atm
    }

    /// Puts a page's content, and zeros behind it, into the worker's page (heap::A1).
    pub fn fill(&self, place: &Place, worker: &mut Worker) -> Result<(), Error> {
        let (into, behind) = worker.page.split_at_mut(place.bytes);
        behind[..worker.filled.saturating_sub(place.bytes)].fill(0);
        worker.filled = place.bytes;
        if self.cache.get(place.unit, place.from, into) {
            self.from_cache.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let Some(found) = self.store.read(place.owner, &mut worker.scratch)? else {
            into.fill(0);
            self.fresh.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        assert_eq!(
            found.len(),
            place.unit_bytes,
            "a unit is stored whole (heap::A1)"
        );
        into.copy_from_slice(&found[place.from..place.from + place.bytes]);
        self.from_flash.fetch_add(1, Ordering::Relaxed);
        // Caching it is optional; no data is lost, so the error is ignored.
        let _ = self.put(place.unit, found, false);
        Ok(())
    }

    /// Saves the content of one page of a unit in the cache.
    pub fn save(&self, place: &Place, content: &[u8], worker: &mut Worker) -> Result<(), Error> {
        if place.unit_bytes == place.bytes {
            self.put(place.unit, content, true)
        } else if self.cache.patch(place.unit, place.from, content) {
            Ok(())
        } else {
            self.save_part(place, content, worker)
        }
    }

    /// Saves one page of a unit of several pages that is not in the cache.
    fn save_part(&self, place: &Place, content: &[u8], worker: &mut Worker) -> Result<(), Error> {
        worker.filled = worker.filled.max(place.unit_bytes);
        let whole = &mut worker.page[..place.unit_bytes];
        match self.store.read(place.owner, &mut worker.scratch)? {
            Some(found) => whole.copy_from_slice(found),
            None => whole.fill(0),
        }
        whole[place.from..place.from + place.bytes].copy_from_slice(content);
        self.put(place.unit, whole, true)
    }

    /// Puts a whole unit into the cache; `dirty`: flash does not have it.
    pub fn put(&self, unit: u64, content: &[u8], dirty: bool) -> Result<(), Error> {
        self.cache.put(unit, content, dirty, &self.spill())
    }

    /// Writes an object to flash.
    fn spill(&self) -> impl Fn(u64, &[u8]) -> Result<(), Error> {
        |unit, bytes| {
            let Some(place) = self.atm.place(unit) else {
                return Ok(()); // freed meanwhile
            };
            match self.store.write(place.owner, bytes) {
                Err(FlashError::NoSuchOwner { .. }) => Ok(()), // as above
                done => done.map_err(Error::from),
            }
        }
    }

    /// Drops the content of a unit from cache and flash. It reads as zeros then.
    pub fn forget(&self, place: &Place) -> Result<(), Error> {
        self.cache.remove(place.unit);
        self.store.free(place.owner)?;
        Ok(())
    }

    /// Writes the dirty objects of the cache to flash.
    pub fn clean(&self) -> Result<(), Error> {
        self.cache.clean(&self.spill())
    }

    /// See [`ObjectStore::checkpoint`].
    pub fn checkpoint(&self, path: &Path, blob: &[u8]) -> Result<(), Error> {
        self.store.checkpoint(path, blob)?;
        Ok(())
    }

    /// See [`ObjectStore::give_up_old`].
    pub fn give_up_old(&self) -> Result<(), Error> {
        self.store.give_up_old()?;
        Ok(())
    }

    /// Takes RAM for tables from the cache (heap::A2).
    pub fn charge(&self, bytes: u64) -> Result<(), Error> {
        let most = self.ram - self.fixed - cache::BYTES_LEAST;
        let taken = add_up_to(&self.tables_bytes, bytes, most);
        taken.map_err(|taken| Error::Budget {
            budget_bytes: self.ram,
            needed_bytes: self.fixed + taken + bytes + cache::BYTES_LEAST,
        })?;
        self.resize_cache().inspect_err(|_| self.discharge(bytes)) // flash refused an object
    }

    /// Whether this RAM could be taken now: a request that will fail need not reserve flash for a
    /// moment, which others may need.
    pub fn could_charge(&self, bytes: u64) -> Result<(), Error> {
        let taken = self.tables_bytes.load(Ordering::Acquire);
        let needed = (self.fixed + taken + cache::BYTES_LEAST).saturating_add(bytes);
        if needed <= self.ram {
            return Ok(());
        }
        Err(Error::Budget {
            budget_bytes: self.ram,
            needed_bytes: needed,
        })
    }

    /// Returns the RAM of removed tables.
    pub fn discharge(&self, bytes: u64) {
        self.tables_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // The cache grows: no object has to leave.
        let _ = self.resize_cache();
    }

    /// Gives the cache the part of the budget that tables do not use (heap::A2).
    fn resize_cache(&self) -> Result<(), Error> {
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = self.tables_bytes.load(Ordering::Acquire);
        let left = self.ram - self.fixed - tables;
        self.cache.limit(left, &self.spill())
    }

    /// A number that no chunk has (chunk::K1). 0 is no table: a directory entry without a table has
    /// it.
    pub fn new_table(&self) -> u32 {
        loop {
            let table = self.next_table.fetch_add(1, Ordering::Relaxed);
            if table != 0 && self.objects_of(table).is_none() {
                return table;
            }
        }
    }

    /// The number at which the search for a free one continues.
    pub fn next_table(&self) -> u32 {
        self.next_table.load(Ordering::Relaxed)
    }

    pub fn set_next_table(&self, table: u32) {
        self.next_table.store(table, Ordering::Relaxed);
    }

    /// Objects of an object table, if there is such a table.
    pub fn objects_of(&self, table: u32) -> Option<u32> {
        self.store.objects_of(table)
    }

    /// Creates the object table of a new chunk.
    pub fn add_table(&self, chunk: &Chunk) -> Result<(), Error> {
        let (units, bytes) = (chunk.units(), chunk.unit_bytes_max());
        let added = if chunk.has_one_length() {
            self.store.add_table_of(chunk.table, units, bytes)
        } else {
            self.store.add_table(chunk.table, units, bytes)
        };
        added.map_err(Error::from)
    }

    /// Removes a chunk whose pages are not shown, with its addresses and all contents.
    pub fn remove_chunk(&self, chunk: &Chunk) {
        if chunk.kind != Kind::Pool {
            let unit_pages = chunk.unit_pages();
            for unit in 0..u64::from(chunk.units()) {
                self.cache.remove(chunk.first + unit * unit_pages);
            }
        } // else each object left the cache when it was freed
        self.store.remove_table(chunk.table);
        self.atm.remove(chunk);
        self.atm.give_back(chunk.first, chunk.pages());
        self.discharge(chunk.tables_bytes());
    }

    /// The counts of RAM, cache and flash; all others are 0.
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = self.cache.counts();
        let flash = self.store.stats();
        Stats {
            ram_budget_bytes: self.ram,
            cache_bytes: cache.bytes,
            cached_objects: cache.objects,
            table_bytes: of(&self.tables_bytes),
            fixed_bytes: self.fixed,
            from_cache: of(&self.from_cache),
            from_flash: of(&self.from_flash),
            fresh: of(&self.fresh),
            evicted_objects: cache.evicted,
            written_objects: cache.spilled,
            flash_written_bytes: flash.bytes_written,
            flash_relocated_bytes: flash.bytes_relocated,
            flash_capacity_bytes: flash.capacity_bytes,
            flash_live_bytes: flash.live_bytes,
            flash_held_bytes: flash.held_bytes,
            ..Stats::default()
        }
    }
}
