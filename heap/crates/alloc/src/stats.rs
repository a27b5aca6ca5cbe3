//! The heap's counts in one place; pinned pages.

use crate::error::Error;
use crate::heap::{Heap, add_up_to};
use crate::pager::{Faults, PAGE_BYTES};
use crate::session::Stats;
use std::sync::atomic::{AtomicU64, Ordering};

impl Heap {
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = self.cache.counts();
        let flash = self.store.stats();
        Stats {
            ram_budget_bytes: self.budget.ram,
            pages_shown_bytes: (self.buffer.shown() * PAGE_BYTES) as u64,
            page_table_bytes: self.buffer.regions().tables() * PAGE_BYTES as u64,
            cache_bytes: cache.bytes,
            cached_objects: cache.objects,
            table_bytes: of(&self.tables_bytes),
            fixed_bytes: self.budget.fixed,
            allocated_bytes: of(&self.counters.allocated_bytes),
            allocations: of(&self.counters.allocations),
            faults: of(&self.counters.shown),
            from_cache: of(&self.counters.from_cache),
            from_flash: of(&self.counters.from_flash),
            fresh: of(&self.counters.fresh),
            write_faults: of(&self.counters.write_faults),
            evicted_pages: of(&self.counters.hidden),
            evicted_dirty_pages: of(&self.counters.saved),
            evicted_objects: cache.evicted,
            written_objects: cache.spilled,
            flash_written_bytes: flash.bytes_written,
            flash_relocated_bytes: flash.bytes_relocated,
            flash_capacity_bytes: flash.capacity_bytes,
            flash_live_bytes: flash.live_bytes,
            flash_held_bytes: flash.held_bytes,
            fault_kind: match self.pager.kind() {
                Faults::Userfault => 1,
                Faults::Protect => 2,
            },
            page_tables_leaving_bytes: self.buffer.regions().in_limbo() * PAGE_BYTES as u64,
        }
    }

    /// See [`crate::pin`].
    pub fn pin(&self, address: usize, bytes: usize, write: bool) -> Result<(), Error> {
        let pages = self.pages_of(address, bytes)?;
        let count = pages.end - pages.start;
        // The library's own pins are beside the limit.
        let most = self.budget.pages as u64 / 2 + self.touched.load(Ordering::Acquire);
        add_up_to(&self.pinned, count, most).map_err(|pinned| {
            Error::Invalid(format!(
                "{count} pages to be pinned, {pinned} are, of {} in the page buffer: at most half",
                self.budget.pages
            ))
        })?;
        for page in pages.clone() {
            if let Err(error) = self.pin_page(page, write) {
                for pinned in pages.start..page {
                    self.unpin_page(pinned);
                }
                self.pinned.fetch_sub(pages.end - page, Ordering::AcqRel);
                return Err(error);
            }
        }
        Ok(())
    }

    pub fn pin_page(&self, page: u64, write: bool) -> Result<(), Error> {
        let place = self.atm.used_place(page).ok_or(Error::BadPointer {
            address: self.address_of(page),
            why: "nothing is allocated there",
        })?;
        let bit = 1 << place.nth;
        loop {
            self.bring(page, &place, Some(write))?;
            let mut unit = self.buffer.own(place.unit);
            let is_there = unit.shown & bit != 0 && (!write || unit.dirty & bit != 0);
            if is_there {
                unit.pins += 1;
                unit.written_by_others |= u32::from(write) << place.nth; // buffer::B4
            }
            self.buffer.release(place.unit, unit);
            if is_there {
                return Ok(());
            }
        }
    }

    pub fn unpin_page(&self, page: u64) -> bool {
        let place = self.atm.chunk(page).and_then(|chunk| chunk.place(page));
        let Some(place) = place else {
            return false;
        };
        let mut unit = self.buffer.own(place.unit);
        let was = unit.pins > 0;
        unit.pins -= u32::from(was);
        if unit.pins == 0 {
            unit.written_by_others = 0;
        }
        self.buffer.release(place.unit, unit);
        self.pinned.fetch_sub(u64::from(was), Ordering::AcqRel);
        was
    }

    /// See [`crate::unpin`].
    pub fn unpin(&self, address: usize, bytes: usize) -> Result<(), Error> {
        let mut all = true;
        for page in self.pages_of(address, bytes)? {
            all &= self.unpin_page(page);
        }
        if all {
            return Ok(());
        }
        Err(Error::BadPointer {
            address,
            why: "it is not pinned",
        })
    }

    fn pages_of(&self, address: usize, bytes: usize) -> Result<std::ops::Range<u64>, Error> {
        let last = address.checked_add(bytes.max(1) - 1);
        match last.filter(|last| self.contains(address) && self.contains(*last)) {
            Some(last) => Ok(self.page_of(address)..self.page_of(last) + 1),
            None => Err(Error::BadPointer {
                address,
                why: "it does not lie in memory of this library",
            }),
        }
    }
}
