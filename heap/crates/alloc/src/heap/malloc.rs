//! `ssd_malloc` and its kin: blocks of [`Memory`], with their flash, RAM and pages.
//!
//! **Concurrency** as in `memory`.

use super::Heap;
use crate::chunk::{Chunk, Kind};
use crate::error::Error;
use crate::memory::{Blocks, GRAIN_BYTES, Memory, bits_of, flash_of, pages_needed};
use crate::pager::PAGE_BYTES;
use std::sync::{Arc, MutexGuard, PoisonError};

/// Pages of a run [Badam11 §3.4].
const RUN_PAGES: u32 = 10_000;
/// From this length on a block has a run of its own.
const LARGE_BYTES: usize = 1 << 20;
/// Longest block.
const BLOCK_BYTES_MAX: usize = 1 << 42;
/// Approximate RAM of two map entries; charged for [`ENTRIES_AT_ONCE`] at a time.
const ENTRY_BYTES: u64 = 96;
const ENTRIES_AT_ONCE: usize = 4096;

impl Heap {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of at least `bytes` bytes at a multiple of 16.
    pub fn allocate_memory(&self, bytes: usize) -> Result<usize, Error> {
        if bytes > BLOCK_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "{bytes} bytes: at most {BLOCK_BYTES_MAX} can be allocated at once"
            )));
        }
        let bytes = bytes.max(1).next_multiple_of(GRAIN_BYTES);
        let bytes = if bytes >= LARGE_BYTES {
            bytes.next_multiple_of(PAGE_BYTES)
        } else {
            bytes
        };
        let address = self.allocate(|| match bytes >= LARGE_BYTES {
            true => self.allocate_large(bytes),
            false => self.allocate_block(bytes),
        })?;
        self.usage.count(bytes as u64);
        Ok(address)
    }

    fn allocate_large(&self, bytes: usize) -> Result<usize, Error> {
        let pages = (bytes / PAGE_BYTES) as u32;
        let flash = flash_of(pages as usize);
        self.reserve_flash(flash, u64::from(pages) * 4)?;
        let added = self
            .paging
            .add_chunk(pages, PAGE_BYTES as u32, Kind::Memory);
        let chunk = added.inspect_err(|_| self.usage.release(flash))?;
        let start = self.paging.address_of(chunk.first);
        self.memory()
            .restore_run(chunk, start, Blocks::Large(bytes));
        Ok(start)
    }

    fn allocate_block(&self, bytes: usize) -> Result<usize, Error> {
        let mut memory = self.memory();
        let needed = |(free, start): (usize, usize)| flash_of(pages_needed(start, free, bytes));
        let mut fitting = memory.by_bytes.range((bytes, 0)..).copied();
        let (found, start) = match fitting.next() {
            Some(best) => match self.reserve_flash(needed(best), 0) {
                Ok(()) => best,
                // A block may still fit on pages that are counted already.
                Err(full) => fitting.find(|free| needed(*free) == 0).ok_or(full)?,
            },
            None => {
                let flash = flash_of(bytes.div_ceil(PAGE_BYTES));
                self.reserve_flash(flash, 0)?;
                let added = self.add_run(&mut memory);
                added.inspect_err(|_| self.usage.release(flash))?
            }
        };
        memory.remove_free(start, found);
        if found > bytes {
            let rest = start + bytes;
            let chunk = self.paging.chunk_at(start).expect("a run has a chunk");
            memory.run_of(&chunk).mark(rest, true);
            memory.add_free(rest, found - bytes);
        }
        Ok(start)
    }

    fn add_run(&self, memory: &mut Memory) -> Result<(usize, usize), Error> {
        let bits = bits_of(RUN_PAGES);
        self.paging.units().charge(bits as u64 * 8)?;
        let chunk = self
            .paging
            .add_chunk(RUN_PAGES, PAGE_BYTES as u32, Kind::Memory);
        let chunk = chunk.inspect_err(|_| self.paging.units().discharge(bits as u64 * 8))?;
        let start = self.paging.address_of(chunk.first);
        memory.restore_run(chunk, start, Blocks::Many(vec![0; bits]));
        let page = self.paging.page_of(start);
        memory
            .runs
            .get_mut(&page)
            .expect("just added")
            .mark(start, true);
        let bytes = RUN_PAGES as usize * PAGE_BYTES;
        memory.add_free(start, bytes);
        Ok((bytes, start))
    }

    /// Frees a block; [`Heap::free`] has verified that the address is in this chunk.
    pub(super) fn free_memory(&self, address: usize, chunk: &Chunk) -> Result<(), Error> {
        let mut memory = self.memory();
        let bytes = memory.block_bytes(address, chunk)?;
        let mut pages = bytes / PAGE_BYTES;
        let large = matches!(memory.run_of(chunk).blocks, Blocks::Large(_));
        let run = large.then(|| memory.runs.remove(&chunk.first)).flatten();
        if let Some(run) = run {
            drop(memory); // a later look-up finds that it is freed
            if let Err(error) = self.paging.remove_chunk(chunk) {
                self.memory().runs.insert(chunk.first, run);
                return Err(error);
            }
        } else {
            pages = self.coalesce(&mut memory, address, bytes, chunk);
            // Freeing works without RAM for the maps, which take it later, when there is some.
            let _ = self.charge_entries(&mut memory);
            drop(memory);
        }
        self.usage.release(flash_of(pages));
        self.usage.uncount(bytes as u64);
        Ok(())
    }

    /// Joins a freed block with its free neighbours, and drops the pages that are now wholly free
    /// (memory::Y2, memory::Y3). Returns their number.
    fn coalesce(&self, memory: &mut Memory, address: usize, bytes: usize, chunk: &Chunk) -> usize {
        let run = memory.run_of(chunk);
        let (run_start, run_end) = (run.start, run.start + run.bytes());
        let (mut start, mut end) = (address, address + bytes);
        let behind = (end < run_end)
            .then(|| memory.by_address.get(&end).copied())
            .flatten();
        if let Some(behind) = behind {
            memory.remove_free(end, behind);
            memory.run_of(chunk).mark(end, false);
            end += behind;
        }
        let before = memory.by_address.range(run_start..address).next_back();
        if let Some((before, its)) = before.map(|(before, its)| (*before, *its))
            && before + its == address
        {
            memory.remove_free(before, its);
            memory.run_of(chunk).mark(address, false);
            start = before;
        }
        memory.add_free(start, end - start);
        let first = start.max(address / PAGE_BYTES * PAGE_BYTES);
        let last = end.min((address + bytes).next_multiple_of(PAGE_BYTES));
        let pages = first.next_multiple_of(PAGE_BYTES)..last / PAGE_BYTES * PAGE_BYTES;
        let count = pages.len() / PAGE_BYTES;
        for address in pages.step_by(PAGE_BYTES) {
            let page = self.paging.page_of(address);
            let place = chunk.place(page).expect("a page of this chunk");
            // If the kernel refuses, the page stays like a used one.
            let _ = self.paging.forget(&place);
        }
        count
    }

    /// Takes the maps' RAM from the cache, for several entries at once.
    pub(super) fn charge_entries(&self, memory: &mut Memory) -> Result<(), Error> {
        let units = self.paging.units();
        let wanted = memory.by_address.len().next_multiple_of(ENTRIES_AT_ONCE);
        let bytes = ENTRY_BYTES * ENTRIES_AT_ONCE as u64;
        if wanted > memory.charged {
            units.charge(ENTRY_BYTES * (wanted - memory.charged) as u64)?;
            memory.charged = wanted;
        } else if wanted + 2 * ENTRIES_AT_ONCE <= memory.charged {
            units.discharge(bytes);
            memory.charged -= ENTRIES_AT_ONCE;
        }
        Ok(())
    }

    /// Removes a run that is one free block, and returns the RAM of map entries that are gone.
    /// False: there is no such run.
    pub(super) fn remove_empty_run(&self) -> bool {
        let mut memory = self.memory();
        let wanted = memory.by_address.len().next_multiple_of(ENTRIES_AT_ONCE);
        let unused = memory.charged.saturating_sub(wanted);
        let units = self.paging.units();
        units.discharge(ENTRY_BYTES * unused as u64);
        memory.charged -= unused;
        let Some((bytes, start)) = memory.by_bytes.last().copied() else {
            return false;
        };
        let run = memory.runs.get(&self.paging.page_of(start));
        let run = run.filter(|run| run.start == start && run.bytes() == bytes);
        let Some(chunk) = run.map(|run| Arc::clone(&run.chunk)) else {
            return false;
        };
        if self.paging.remove_chunk(&chunk).is_err() {
            return false; // the kernel refused: the run stays
        }
        memory.remove_free(start, bytes);
        memory.runs.remove(&chunk.first);
        units.discharge(bits_of(chunk.objects) as u64 * 8);
        true
    }

    /// Bytes of the block at an address of this chunk, if one was handed out there.
    pub(super) fn memory_bytes(&self, address: usize, chunk: &Chunk) -> Option<usize> {
        self.memory().block_bytes(address, chunk).ok()
    }
}
