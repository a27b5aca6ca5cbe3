//! The heap of a process: its layers, and the arrival and eviction of a page.
//!
//! **Invariants**
//! - A1: the newest content of a unit is, in this order: in its dirty pages, in the cache, on
//!   flash; nowhere: zeros.
//! - A2: RAM: pages shown, their page tables, cache, object tables and the memory of the flash
//!   store are within the budget; growth is taken from the cache before it is used.
//! - A3: allocated data fits on flash: it was counted before an address was handed out.
//! - A4: a page that the program has taken away (`madvise`) has its last saved content again when
//!   it is touched; no code waits for it, nor touches it. It must not take pages away while other
//!   calls of the library or faults use the same pages: the header says so.
//!
//! **Concurrency** a fault handler calls [`Heap::fault`] on the thread that faulted, which holds no
//! lock of ours: no code of the library faults on a page of the arena (touch::T1).
//!
//! Paper: [Badam11 §3.2, Figure 1].

pub(crate) mod checkpoint;
mod malloc;
pub(crate) mod oalloc;

use crate::atm::Atm;
use crate::batch::{self, Batch};
use crate::buffer::{self, Buffer, Claim, Unit};
use crate::cache::{self, Cache};
use crate::chunk::{Chunk, Kind, Place};
use crate::error::Error;
use crate::memory::Memory;
use crate::pager::lift::Lift;
use crate::pager::{Faults, PAGE_BYTES, Pager, REGION_PAGES};
use crate::pool::{self, Pools};
use crate::regions;
use duramen_disk::Error as DiskError;
use duramen_flash::{BLOCK_BYTES, Error as FlashError, ObjectStore, Scratch};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Addresses that a program may store for a later life [`crate::set_root`].
pub(crate) const ROOTS: usize = 16;
/// Part of flash that may be allocated, in percent. The collector needs the rest to continue
/// without copying too much.
const USABLE_PERCENT: u64 = 85;
/// Blocks of flash without objects of ours: the superblock's, and the collector's reserve.
const BLOCKS_APART: u64 = 16;
/// Fewest blocks with a useful amount of room: 3 MiB.
const BLOCKS_LEAST: u64 = 24;

/// Sizes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub ram: u64,
    /// The bytes that do not depend on the allocated amount.
    pub fixed: u64,
    pub flash: u64,
    pub pages: usize,
    /// Pages of the page table.
    pub tables: u64,
}

impl Budget {
    /// # Errors
    /// [`Error::Budget`].
    pub fn new(
        ram: u64,
        page_buffer: u64,
        device: u64,
        pages_max: Option<usize>,
    ) -> Result<Budget, Error> {
        let wanted = match page_buffer {
            0 => (ram / 24).min(25 << 20), // [Badam11 §3.2]
            bytes => bytes,
        };
        let pages = (wanted as usize / PAGE_BYTES).max(PAGES_LEAST);
        let pages = pages.min(pages_max.unwrap_or(usize::MAX));
        // A shown page may need a page of the page table of its own; other page tables are freed
        // several at once.
        let tables = pages + batch::AT_ONCE + regions::AT_ONCE;
        let shown = (pages + batch::AT_ONCE + tables) as u64 * PAGE_BYTES as u64;
        let queue = (pages * buffer::QUEUE_BYTES) as u64;
        let images = 11 * BLOCK_BYTES as u64;
        let blocks = device / BLOCK_BYTES as u64;
        let threads = 512 << 10;
        let fixed = shown + queue + images + blocks * 40 + threads;
        let needed = fixed + cache::BYTES_LEAST;
        if ram < needed {
            return Err(Error::Budget {
                budget_bytes: ram,
                needed_bytes: needed,
            });
        }
        if blocks < BLOCKS_LEAST {
            return Err(Error::Disk(DiskError::TooSmall {
                bytes: device,
                least: BLOCKS_LEAST * BLOCK_BYTES as u64,
            }));
        }
        let usable = (blocks - BLOCKS_APART) * BLOCK_BYTES as u64;
        Ok(Budget {
            ram,
            fixed,
            flash: usable / 100 * USABLE_PERCENT,
            pages,
            tables: tables as u64,
        })
    }
}

/// Fewest pages of the buffer: with fewer, threads would evict pages that others are about to use.
const PAGES_LEAST: usize = 128;

/// Working memory of a thread that serves a fault.
pub(crate) struct Worker {
    pub scratch: Scratch,
    pub page: Box<[u8; PAGE_BYTES]>,
    /// Copy of a page that changes.
    pub copy: Vec<u8>,
    /// The bytes from here on are zeros.
    pub filled: usize,
    /// The lift; `None` while it is in use.
    pub lift: Option<Lift>,
    pub batch: Batch,
}

/// Workers that are kept for later faults. The first ones have a lift, which takes two descriptors
/// of the program; the others evict without one.
const WORKERS_KEPT: usize = 16;
/// Workers that are made at the start.
const WORKERS_READY: usize = 4;

impl Worker {
    fn new(lift: Option<Lift>) -> Worker {
        Worker {
            scratch: Scratch::new(PAGE_BYTES),
            page: Box::new([0; PAGE_BYTES]),
            copy: Vec::new(),
            filled: 0,
            lift,
            batch: Batch::new(),
        }
    }
}

/// Outcome of a fault.
pub(crate) enum Fault {
    Served,
    NotOurs,
    Failed(Error),
}

/// Counts since the heap was made.
#[derive(Default)]
pub(crate) struct Counters {
    pub shown: AtomicU64,
    pub from_cache: AtomicU64,
    pub from_flash: AtomicU64,
    pub fresh: AtomicU64,
    pub write_faults: AtomicU64,
    pub hidden: AtomicU64,
    pub saved: AtomicU64,
    pub allocated_bytes: AtomicU64,
    pub allocations: AtomicU64,
}

/// The heap; see the file's head.
pub(crate) struct Heap {
    pub pager: Pager,
    pub atm: Atm,
    pub buffer: Buffer,
    pub cache: Cache,
    pub store: ObjectStore,
    pub pools: Pools,
    pub memory: Mutex<Memory>,
    pub budget: Budget,
    pub counters: Counters,
    /// RAM of object tables and similar structures.
    pub tables_bytes: AtomicU64,
    /// Flash, as counted for allocations (A3).
    pub flash_bytes: AtomicU64,
    pub next_table: AtomicU32,
    pub roots: [AtomicUsize; ROOTS],
    /// Pages that must not be evicted.
    pub pinned: AtomicU64,
    /// The pinned pages that the library itself touches (touch::T1).
    pub touched: AtomicU64,
    /// Held while RAM of tables is taken from the cache: the last thread to change it sees the sum
    /// of all.
    resizing: Mutex<()>,
    /// Page tables for which RAM was taken, because the kernel never takes them back.
    kept_tables: Mutex<u64>,
    /// Held shared during an allocation or a free, exclusively by a checkpoint and by an allocation
    /// that finds no RAM or addresses.
    pub changing: RwLock<()>,
    workers: Mutex<Vec<Worker>>,
    /// Number of workers that were to have a lift.
    lifts: AtomicUsize,
}

/// A heap's memory of its own, which the kernel may refuse.
pub(crate) struct Tables {
    atm: Atm,
    buffer: Buffer,
    cache: Cache,
}

impl Tables {
    /// # Errors
    /// [`Error::Kernel`].
    pub fn reserve(pager: &Pager, budget: &Budget) -> Result<Tables, Error> {
        let arena_pages = (pager.bytes() / PAGE_BYTES) as u64;
        let made = Atm::new(arena_pages).and_then(|atm| {
            let frees_tables = pager.frees_tables();
            let buffer = Buffer::new(budget.pages, budget.tables, arena_pages, frees_tables)?;
            let cache = Cache::new(budget.ram - budget.fixed)?;
            Ok(Tables { atm, buffer, cache })
        });
        made.map_err(Error::kernel("reserving memory"))
    }
}

impl Heap {
    pub fn new(pager: Pager, store: ObjectStore, budget: Budget, tables: Tables) -> Heap {
        let Tables { atm, buffer, cache } = tables;
        let heap = Heap {
            pager,
            atm,
            buffer,
            cache,
            store,
            pools: Pools::default(),
            memory: Mutex::default(),
            budget,
            counters: Counters::default(),
            tables_bytes: AtomicU64::new(0),
            flash_bytes: AtomicU64::new(0),
            next_table: AtomicU32::new(1),
            roots: Default::default(),
            pinned: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            resizing: Mutex::new(()),
            kept_tables: Mutex::new(0),
            changing: RwLock::new(()),
            workers: Mutex::default(),
            lifts: AtomicUsize::new(0),
        };
        for _ in 0..WORKERS_READY {
            heap.give_back(Worker::new(heap.new_lift()));
        }
        heap
    }

    /// The arena of a heap that is given up.
    pub fn into_pager(self) -> Pager {
        self.pager
    }

    pub fn contains(&self, address: usize) -> bool {
        let start = self.pager.start();
        (start..start + self.pager.bytes()).contains(&address)
    }

    /// The page of an address of the arena.
    pub fn page_of(&self, address: usize) -> u64 {
        ((address - self.pager.start()) / PAGE_BYTES) as u64
    }

    pub fn address_of(&self, page: u64) -> usize {
        self.pager.start() + page as usize * PAGE_BYTES
    }

    /// Serves an access to the arena that the processor could not make.
    pub fn fault(&self, address: usize, write: Option<bool>) -> Fault {
        let page = self.page_of(address);
        let Some(place) = self.atm.used_place(page) else {
            return Fault::NotOurs;
        };
        match self.bring(page, &place, write) {
            Ok(()) => Fault::Served,
            Err(error) => Fault::Failed(error),
        }
    }

    /// Makes a page accessible.
    pub fn bring(&self, page: u64, place: &Place, write: Option<bool>) -> Result<(), Error> {
        let bit = 1 << place.nth;
        match self.buffer.claim(place, write) {
            Claim::Settled => Ok(()),
            Claim::There(unit) => {
                let back = match self.pager.is_gone(page) {
                    true => self.show_again(page, place, unit.dirty & bit != 0),
                    false => Ok(()),
                };
                self.buffer.release(place.unit, unit);
                back
            }
            Claim::Write(mut unit) => {
                let allowed = self.pager.allow_writes(page);
                if allowed.is_ok() {
                    unit.dirty |= bit;
                }
                self.buffer.release(place.unit, unit);
                self.counters.write_faults.fetch_add(1, Ordering::Relaxed);
                allowed.map_err(Error::kernel("allowing writes to a page"))
            }
            Claim::Show(mut unit) => {
                let writable = write == Some(true);
                let shown = self.show(page, place, writable);
                if shown.is_ok() {
                    unit.shown |= bit;
                    unit.dirty |= bit * u32::from(writable);
                }
                self.buffer.release(place.unit, unit);
                if shown.is_ok() {
                    self.buffer.queue(page, place);
                }
                shown
            }
        }
    }

    pub fn worker(&self) -> Worker {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = workers.pop();
        drop(workers);
        worker.unwrap_or_else(|| Worker::new(self.new_lift()))
    }

    fn new_lift(&self) -> Option<Lift> {
        if self.pager.kind() != Faults::Userfault
            || self.lifts.fetch_add(1, Ordering::Relaxed) >= WORKERS_KEPT
        {
            return None;
        }
        Lift::new()
    }

    pub fn give_back(&self, worker: Worker) {
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.lift.is_some() || workers.len() < WORKERS_KEPT {
            workers.push(worker);
        }
    }

    /// Shows a page of a unit that the caller owns.
    fn show(&self, page: u64, place: &Place, writable: bool) -> Result<(), Error> {
        let mut worker = self.worker();
        let mut full = self.buffer.enter();
        for _ in 0..4 {
            if !full {
                break;
            }
            // If flash takes no more data, clean pages may still be evicted; the next thread that
            // evicts gets the error.
            let evicted = self.evict(&mut worker);
            if evicted.is_err() && self.buffer.shown() > 2 * self.budget.pages {
                self.buffer.leave(1);
                self.give_back(worker);
                return evicted.map(drop);
            }
            full = self.buffer.shown() > self.buffer.pages_max;
        }
        self.buffer.regions().enter(page);
        if self.buffer.regions().are_many() {
            self.buffer.regions().wait_for_room();
            // If the kernel refuses, the tables stay; the regions are without pages nevertheless.
            let _ = self.hide(&[], &mut worker.batch.regions);
        }
        let filled = self.fill(place, &mut worker);
        let shown = filled.and_then(|()| {
            let shown = self.pager.show(page, &worker.page, writable);
            shown.map_err(Error::kernel("showing a page"))
        });
        self.give_back(worker);
        if shown.is_err() {
            self.buffer.regions().leave(page);
            self.buffer.leave(1);
        }
        self.counters.shown.fetch_add(1, Ordering::Relaxed);
        shown
    }

    /// Shows a page of an owned unit that the program has taken away, with its last saved content.
    fn show_again(&self, page: u64, place: &Place, writable: bool) -> Result<(), Error> {
        let mut worker = self.worker();
        let shown = self.fill(place, &mut worker).and_then(|()| {
            let shown = self.pager.show(page, &worker.page, writable);
            shown.map_err(Error::kernel("showing a page again"))
        });
        self.give_back(worker);
        self.counters.shown.fetch_add(1, Ordering::Relaxed);
        shown
    }

    /// Puts a page's content, and zeros behind it, into the worker's page (A1).
    fn fill(&self, place: &Place, worker: &mut Worker) -> Result<(), Error> {
        let (into, behind) = worker.page.split_at_mut(place.bytes);
        behind[..worker.filled.saturating_sub(place.bytes)].fill(0);
        worker.filled = place.bytes;
        if self.cache.get(place.unit, place.from, into) {
            self.counters.from_cache.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let Some(found) = self.store.read(place.owner, &mut worker.scratch)? else {
            into.fill(0);
            self.counters.fresh.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        assert_eq!(found.len(), place.unit_bytes, "a unit is stored whole (A1)");
        into.copy_from_slice(&found[place.from..place.from + place.bytes]);
        self.counters.from_flash.fetch_add(1, Ordering::Relaxed);
        // Caching it is optional; no data is lost, so the error is ignored.
        let _ = self.cache.put(place.unit, found, false, &self.spill());
        Ok(())
    }

    /// Writes an object to flash.
    pub fn spill(&self) -> impl Fn(u64, &[u8]) -> Result<(), Error> {
        |unit, bytes| {
            let Some(place) = self.atm.place(unit) else {
                return Ok(()); // the object was freed meanwhile
            };
            match self.store.write(place.owner, bytes) {
                Err(FlashError::NoSuchOwner { .. }) => Ok(()), // as above
                done => done.map_err(Error::from),
            }
        }
    }

    /// Drops a unit: its shown pages, and its content in the cache and on flash. The unit reads as
    /// zeros then.
    pub fn forget(&self, place: &Place) -> Result<(), Error> {
        let unit = self.buffer.own(place.unit);
        if let Err(error) = self.hide_unit(place.unit, unit) {
            self.buffer.release(place.unit, unit);
            return Err(error); // the unit is unchanged
        }
        self.cache.remove(place.unit);
        let freed = self.store.free(place.owner);
        self.buffer.release(place.unit, Unit::default());
        freed?;
        Ok(())
    }

    /// Removes the pages of an owned unit, unsaved, and its pins.
    pub fn hide_unit(&self, name: u64, unit: Unit) -> Result<(), Error> {
        let mut pages = [0; 32];
        let mut count = 0;
        for nth in (0..32).filter(|nth| unit.shown >> nth & 1 == 1) {
            pages[count] = name + nth;
            count += 1;
        }
        if count > 0 {
            let hidden = self.pager.hide(&pages[..count], &[]);
            hidden.map_err(Error::kernel("taking pages away"))?;
        }
        self.pinned
            .fetch_sub(u64::from(unit.pins), Ordering::AcqRel);
        for page in &pages[..count] {
            self.buffer.regions().leave(*page);
        }
        self.buffer.leave(count);
        Ok(())
    }

    /// Writes all dirty data to flash; pages stay shown. Pages that are pinned for writing stay
    /// dirty (buffer::B4).
    pub fn clean(&self) -> Result<(), Error> {
        let mut worker = self.worker();
        for name in self.buffer.units_in(0..u64::MAX) {
            let mut unit = self.buffer.own(name);
            let chunk = self.atm.chunk(name);
            let mut saved = Ok(());
            let dirty = unit.dirty;
            for nth in (0..32).filter(|nth| dirty >> nth & 1 == 1) {
                let page = name + nth;
                let place = chunk.as_ref().and_then(|chunk| chunk.place(page));
                let changes = unit.written_by_others >> nth & 1 == 1;
                saved = place.map_or(Ok(()), |place| {
                    if changes {
                        self.save_as_it_is(page, &place, &mut worker)
                    } else {
                        self.save(page, &place, &mut worker)
                    }
                });
                if saved.is_err() {
                    break;
                }
                unit.dirty &= !(u32::from(!changes) << nth);
            }
            self.buffer.release(name, unit);
            if let Err(error) = saved {
                self.give_back(worker);
                return Err(error);
            }
        }
        self.give_back(worker);
        self.cache.clean(&self.spill())
    }

    /// Takes RAM for tables from the cache (A2).
    pub fn charge(&self, bytes: u64) -> Result<(), Error> {
        let most = self.budget.ram - self.budget.fixed - cache::BYTES_LEAST;
        let taken = add_up_to(&self.tables_bytes, bytes, most);
        taken.map_err(|taken| Error::Budget {
            budget_bytes: self.budget.ram,
            needed_bytes: self.budget.fixed + taken + bytes + cache::BYTES_LEAST,
        })?;
        self.resize_cache().inspect_err(|_| self.discharge(bytes)) // flash refused an object
    }

    /// Whether this RAM could be taken now: a request that will fail need not reserve flash for a
    /// moment, which others may need.
    fn could_charge(&self, bytes: u64) -> Result<(), Error> {
        let taken = self.tables_bytes.load(Ordering::Acquire);
        let needed = (self.budget.fixed + taken + cache::BYTES_LEAST).saturating_add(bytes);
        if needed <= self.budget.ram {
            return Ok(());
        }
        Err(Error::Budget {
            budget_bytes: self.budget.ram,
            needed_bytes: needed,
        })
    }

    /// Returns the RAM of removed tables.
    pub fn discharge(&self, bytes: u64) {
        self.tables_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // The cache grows: no object has to leave.
        let _ = self.resize_cache();
    }

    /// Gives the cache the part of the budget that tables do not use (A2).
    fn resize_cache(&self) -> Result<(), Error> {
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        let tables = self.tables_bytes.load(Ordering::Acquire);
        let left = self.budget.ram - self.budget.fixed - tables;
        self.cache.limit(left, &self.spill())
    }

    /// Takes RAM, and with it RAM for the page tables of addresses up to this page, if the kernel
    /// never takes them back and there are more of them than may be beside the budget.
    pub fn charge_up_to(&self, end: u64, ram: u64) -> Result<(), Error> {
        if self.pager.frees_tables() {
            return self.charge(ram);
        }
        let mut kept = self
            .kept_tables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let beside = regions::BESIDE + self.budget.tables;
        let wanted = end.div_ceil(REGION_PAGES).saturating_sub(beside);
        let more = wanted.saturating_sub(*kept);
        self.charge(more * PAGE_BYTES as u64 + ram)?;
        *kept = wanted.max(*kept);
        Ok(())
    }

    /// Counts flash for an allocation (A3), if there is RAM for its tables.
    pub fn reserve_flash(&self, bytes: u64, tables_bytes: u64) -> Result<(), Error> {
        let full = |taken| Error::NoSpace {
            allocated_bytes: taken,
            wanted_bytes: bytes,
            capacity_bytes: self.budget.flash,
        };
        let taken = self.flash_bytes.load(Ordering::Acquire);
        if bytes > self.budget.flash.saturating_sub(taken) {
            return Err(full(taken));
        }
        self.could_charge(tables_bytes)?;
        add_up_to(&self.flash_bytes, bytes, self.budget.flash).map_err(full)
    }

    pub fn release_flash(&self, bytes: u64) {
        self.flash_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Allocates. If RAM or addresses do not suffice, removes the chunks without objects and tries
    /// again: an allocation never fails because of freed objects. Other threads neither allocate
    /// nor free meanwhile: they could take the RAM and leave it to empty chunks again.
    pub fn allocate(&self, once: impl Fn() -> Result<usize, Error>) -> Result<usize, Error> {
        let changing = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        let lacks = |done: &Result<usize, Error>| {
            matches!(done, Err(Error::Budget { .. } | Error::NoAddresses { .. }))
        };
        let mut done = once();
        if lacks(&done) {
            self.remove_empty_chunks(); // while other threads continue
            done = once();
        }
        if !lacks(&done) {
            return done;
        }
        drop(changing);
        let _alone = self
            .changing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.remove_empty_chunks();
        once()
    }

    /// Removes the chunks of pools and of memory without objects. The caller holds no lock of
    /// theirs, and each is held for one or two chunks here (pool::L1).
    fn remove_empty_chunks(&self) {
        for pool in self.pools.all() {
            let mut pool = pool::lock(&pool);
            while let Some(chunk) = pool.empty()
                && self.remove_chunk(&chunk).is_ok()
            {
                pool.forget(&chunk);
            }
        }
        while self.remove_empty_run() {}
    }

    /// A new chunk, with addresses and an object table.
    pub fn add_chunk(
        &self,
        objects: u32,
        object_bytes: u32,
        kind: Kind,
    ) -> Result<Arc<Chunk>, Error> {
        let table = self.new_table();
        let stride = (object_bytes as usize).div_ceil(PAGE_BYTES) as u64;
        let pages = u64::from(objects) * stride;
        let first = self.atm.reserve(pages).ok_or(Error::NoAddresses {
            arena_bytes: self.pager.bytes() as u64,
        })?;
        let chunk = Arc::new(Chunk::new(table, first, objects, object_bytes, kind));
        let ram = chunk.tables_bytes();
        let added = self.charge_up_to(first + pages, ram).and_then(|()| {
            let (units, bytes) = (chunk.units(), chunk.unit_bytes_max());
            let added = if chunk.has_one_length() {
                self.store.add_table_of(table, units, bytes)
            } else {
                self.store.add_table(table, units, bytes)
            };
            added
                .inspect_err(|_| self.discharge(ram))
                .map_err(Error::from)
        });
        if let Err(error) = added {
            self.atm.give_back(first, pages);
            return Err(error);
        }
        self.atm.add(Arc::clone(&chunk));
        self.buffer.regions().use_up_to(first + pages);
        Ok(chunk)
    }

    /// A number that no chunk has (chunk::K1). It is not 0, which stands for no table in the
    /// directory.
    fn new_table(&self) -> u32 {
        loop {
            let table = self.next_table.fetch_add(1, Ordering::Relaxed);
            if table != 0 && self.store.objects_of(table).is_none() {
                return table;
            }
        }
    }

    /// Removes a chunk with all of its objects, which are not used any more.
    pub fn remove_chunk(&self, chunk: &Chunk) -> Result<(), Error> {
        let pages = chunk.first..chunk.first + chunk.pages();
        for name in self.buffer.units_in(pages.clone()) {
            let unit = self.buffer.own(name);
            let hidden = self.hide_unit(name, unit);
            let left = if hidden.is_ok() {
                Unit::default()
            } else {
                unit
            };
            self.buffer.release(name, left);
            hidden?;
        }
        if chunk.kind != Kind::Pool {
            let unit_pages = chunk.unit_pages();
            for unit in 0..u64::from(chunk.units()) {
                self.cache.remove(chunk.first + unit * unit_pages);
            }
        } // objects of a pool left the cache when they were freed
        self.store.remove_table(chunk.table);
        self.atm.remove(chunk);
        self.atm.give_back(chunk.first, chunk.pages());
        self.discharge(chunk.tables_bytes());
        Ok(())
    }
}

/// Adds to a count that is at most `most`, without ever showing a greater value to other threads;
/// `Err`: the present value.
pub(crate) fn add_up_to(count: &AtomicU64, more: u64, most: u64) -> Result<(), u64> {
    let added = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
        now.checked_add(more).filter(|sum| *sum <= most)
    });
    added.map(drop)
}

const _: () = assert!(REGION_PAGES as usize * PAGE_BYTES == 2 << 20);

#[cfg(test)]
mod tests;
