//! Pages of the arena: their arrival, their eviction, and the units that they show.
//!
//! Pages and units keep heap::A1, heap::A2 and heap::A4.
//!
//! **Concurrency** a fault handler calls [`Paging::fault`] on the thread that faulted, which holds
//! no lock of ours: no code of the library faults on a page of the arena (touch::T1).
//!
//! Paper: [Badam11 §3.2, Figure 1].

mod evict;
mod pin;
#[cfg(test)]
mod probes;
mod touch;
mod units;
mod worker;

use crate::atm::Atm;
use crate::budget::Budget;
use crate::buffer::{Buffer, Claim, Unit};
use crate::cache::Cache;
use crate::chunk::{Chunk, Kind, Place};
use crate::error::Error;
use crate::pager::{Faults, PAGE_BYTES, Pager, REGION_PAGES};
use crate::regions;
use crate::stats::Stats;
use duramen_flash::ObjectStore;
use pin::Pins;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use units::Units;
use worker::Workers;

/// Outcome of a fault.
pub(crate) enum Fault {
    Served,
    NotOurs,
    Failed(Error),
}

/// Counts since the heap was made.
#[derive(Default)]
struct Counters {
    shown: AtomicU64,
    write_faults: AtomicU64,
    hidden: AtomicU64,
    saved: AtomicU64,
}

/// The pages; see the file's head.
pub(crate) struct Paging {
    pager: Pager,
    buffer: Buffer,
    units: Units,
    workers: Workers,
    pins: Pins,
    counters: Counters,
    /// Page tables that the budget holds.
    tables_max: u64,
    /// Page tables for which RAM was taken, because the kernel never takes them back.
    kept_tables: Mutex<u64>,
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

impl Paging {
    pub fn new(pager: Pager, store: ObjectStore, budget: &Budget, tables: Tables) -> Paging {
        let Tables { atm, buffer, cache } = tables;
        let workers = Workers::new(pager.kind() == Faults::Userfault);
        Paging {
            pager,
            buffer,
            units: Units::new(atm, cache, store, budget),
            workers,
            pins: Pins::default(),
            counters: Counters::default(),
            tables_max: budget.tables,
            kept_tables: Mutex::new(0),
        }
    }

    /// The arena of a heap that is given up.
    pub fn into_pager(self) -> Pager {
        self.pager
    }

    /// Names and saved contents of units.
    #[inline]
    pub fn units(&self) -> &Units {
        &self.units
    }

    /// The addresses of the arena.
    #[inline]
    pub fn arena(&self) -> Range<usize> {
        let start = self.pager.start();
        start..start + self.pager.bytes()
    }

    pub fn contains(&self, address: usize) -> bool {
        self.arena().contains(&address)
    }

    /// The page of an address of the arena.
    pub fn page_of(&self, address: usize) -> u64 {
        ((address - self.pager.start()) / PAGE_BYTES) as u64
    }

    pub fn address_of(&self, page: u64) -> usize {
        self.pager.start() + page as usize * PAGE_BYTES
    }

    /// The chunk at any address; `None`: nothing is allocated there.
    pub fn chunk_at(&self, address: usize) -> Option<Arc<Chunk>> {
        let page = self.contains(address).then(|| self.page_of(address))?;
        self.units.atm().chunk(page)
    }

    /// Serves an access to the arena that the processor could not make.
    pub fn fault(&self, address: usize, write: Option<bool>) -> Fault {
        let page = self.page_of(address);
        let Some(place) = self.units.atm().used_place(page) else {
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

    /// Shows a page of a unit that the caller owns.
    fn show(&self, page: u64, place: &Place, writable: bool) -> Result<(), Error> {
        let mut worker = self.workers.take();
        let mut full = self.buffer.enter();
        for _ in 0..4 {
            if !full {
                break;
            }
            // If flash takes no more data, clean pages may still be evicted; the next thread that
            // evicts gets the error.
            let evicted = self.evict(&mut worker);
            if evicted.is_err() && self.buffer.shown() > 2 * self.buffer.pages_max {
                self.buffer.leave(1);
                self.workers.give_back(worker);
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
        let filled = self.units.fill(place, &mut worker);
        let shown = filled.and_then(|()| {
            let shown = self.pager.show(page, &worker.page, writable);
            shown.map_err(Error::kernel("showing a page"))
        });
        self.workers.give_back(worker);
        if shown.is_err() {
            self.buffer.regions().leave(page);
            self.buffer.leave(1);
        }
        self.counters.shown.fetch_add(1, Ordering::Relaxed);
        shown
    }

    /// Shows a page of an owned unit that the program has taken away, with its last saved content.
    fn show_again(&self, page: u64, place: &Place, writable: bool) -> Result<(), Error> {
        let mut worker = self.workers.take();
        let shown = self.units.fill(place, &mut worker).and_then(|()| {
            let shown = self.pager.show(page, &worker.page, writable);
            shown.map_err(Error::kernel("showing a page again"))
        });
        self.workers.give_back(worker);
        self.counters.shown.fetch_add(1, Ordering::Relaxed);
        shown
    }

    /// Drops a unit: shown pages, cache, flash. It reads as zeros then.
    pub fn forget(&self, place: &Place) -> Result<(), Error> {
        let unit = self.buffer.own(place.unit);
        if let Err(error) = self.hide_unit(place.unit, unit) {
            self.buffer.release(place.unit, unit);
            return Err(error); // it is unchanged
        }
        let freed = self.units.forget(place);
        self.buffer.release(place.unit, Unit::default());
        freed
    }

    /// Removes the pages of an owned unit, unsaved, and its pins.
    fn hide_unit(&self, name: u64, unit: Unit) -> Result<(), Error> {
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
        self.pins.remove(u64::from(unit.pins));
        for page in &pages[..count] {
            self.buffer.regions().leave(*page);
        }
        self.buffer.leave(count);
        Ok(())
    }

    /// Writes all dirty data to flash; pages stay shown. Pages that are pinned for writing stay
    /// dirty (buffer::B4).
    pub fn clean(&self) -> Result<(), Error> {
        let mut worker = self.workers.take();
        for name in self.buffer.units_in(0..u64::MAX) {
            let mut unit = self.buffer.own(name);
            let chunk = self.units.atm().chunk(name);
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
                self.workers.give_back(worker);
                return Err(error);
            }
        }
        self.workers.give_back(worker);
        self.units.clean()
    }

    /// Takes RAM, and with it RAM for the page tables of addresses up to this page, if the kernel
    /// never takes them back and there are more of them than may be beside the budget.
    fn charge_up_to(&self, end: u64, ram: u64) -> Result<(), Error> {
        if self.pager.frees_tables() {
            return self.units.charge(ram);
        }
        let mut kept = self
            .kept_tables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let beside = regions::BESIDE + self.tables_max;
        let wanted = end.div_ceil(REGION_PAGES).saturating_sub(beside);
        let more = wanted.saturating_sub(*kept);
        self.units.charge(more * PAGE_BYTES as u64 + ram)?;
        *kept = wanted.max(*kept);
        Ok(())
    }

    /// A new chunk, with addresses and an object table.
    pub fn add_chunk(
        &self,
        objects: u32,
        object_bytes: u32,
        kind: Kind,
    ) -> Result<Arc<Chunk>, Error> {
        let (units, atm) = (&self.units, self.units.atm());
        let table = units.new_table();
        let stride = (object_bytes as usize).div_ceil(PAGE_BYTES) as u64;
        let pages = u64::from(objects) * stride;
        let first = atm.reserve(pages).ok_or(Error::NoAddresses {
            arena_bytes: self.pager.bytes() as u64,
        })?;
        let chunk = Arc::new(Chunk::new(table, first, objects, object_bytes, kind));
        let ram = chunk.tables_bytes();
        let added = self.charge_up_to(first + pages, ram).and_then(|()| {
            let added = units.add_table(&chunk);
            added.inspect_err(|_| units.discharge(ram))
        });
        if let Err(error) = added {
            atm.give_back(first, pages);
            return Err(error);
        }
        atm.add(Arc::clone(&chunk));
        self.buffer.regions().use_up_to(first + pages);
        Ok(chunk)
    }

    /// Takes over the chunks of a checkpoint, whose object tables exist.
    pub fn restore(&self, chunks: Vec<Arc<Chunk>>) -> Result<(), Error> {
        let ends = chunks.iter().map(|chunk| chunk.first + chunk.pages());
        let end = ends.max().unwrap_or(0);
        self.charge_up_to(end, 0)?;
        self.buffer.regions().use_up_to(end);
        self.units.atm().restore(chunks);
        Ok(())
    }

    /// Removes a chunk with all of its objects, which are not used any more.
    pub fn remove_chunk(&self, chunk: &Chunk) -> Result<(), Error> {
        let pages = chunk.first..chunk.first + chunk.pages();
        for name in self.buffer.units_in(pages) {
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
        self.units.remove_chunk(chunk);
        Ok(())
    }

    /// All counts but those of allocations.
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let regions = self.buffer.regions();
        Stats {
            pages_shown_bytes: (self.buffer.shown() * PAGE_BYTES) as u64,
            page_table_bytes: regions.tables() * PAGE_BYTES as u64,
            faults: of(&self.counters.shown),
            write_faults: of(&self.counters.write_faults),
            evicted_pages: of(&self.counters.hidden),
            evicted_dirty_pages: of(&self.counters.saved),
            fault_kind: match self.pager.kind() {
                Faults::Userfault => 1,
                Faults::Protect => 2,
            },
            page_tables_leaving_bytes: regions.in_limbo() * PAGE_BYTES as u64,
            ..self.units.stats()
        }
    }
}

const _: () = assert!(REGION_PAGES as usize * PAGE_BYTES == 2 << 20);
