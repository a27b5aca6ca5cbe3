//! Memory of any length: `ssd_malloc` and its kin. Best fit with coalescing over runs of pages.
//!
//! **Invariants**
//! - Y1: blocks of a run, free ones included, follow each other without gaps; a bit marks the
//!   beginning of each.
//! - Y2: two free blocks are never adjacent; each free block is in both maps, and nothing else is.
//! - Y3: a page that lies in free blocks wholly is neither in RAM nor on flash. Flash is counted
//!   for each other page, however few of its bytes are handed out.
//!
//! **Concurrency** one lock, held while pages are dropped, never while one is touched.
//!
//! **Layout** there is no header beside a block: freeing a block touches no page. One bit for 16
//! bytes, and two map entries per free block.
//!
//! Paper: [Badam11 §3.4, Coalescing Allocator]; differs: the allocator's own data is in RAM instead
//! of in headers on the pages.

use crate::chunk::{Chunk, HEADER_BYTES, Kind};
use crate::error::Error;
use crate::heap::Heap;
use crate::pager::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

const GRAIN_BYTES: usize = 16;
/// Pages of a run [Badam11 §3.4].
const RUN_PAGES: u32 = 10_000;
/// From this length on a block has a run of its own.
const LARGE_BYTES: usize = 1 << 20;
/// Longest block.
const BLOCK_BYTES_MAX: usize = 1 << 42;
/// Approximate RAM of two map entries; charged for [`ENTRIES_AT_ONCE`] at a time.
const ENTRY_BYTES: u64 = 96;
const ENTRIES_AT_ONCE: usize = 4096;

/// The runs and free blocks; see the file's head.
#[derive(Default)]
pub(crate) struct Memory {
    /// By first page.
    runs: BTreeMap<u64, Run>,
    /// Free blocks: by address, and by length (Y2).
    by_address: BTreeMap<usize, usize>,
    by_bytes: BTreeSet<(usize, usize)>,
    /// Free blocks whose map entries are charged.
    charged: usize,
}

/// Pages that contain blocks.
pub(crate) struct Run {
    pub chunk: Arc<Chunk>,
    start: usize,
    pub blocks: Blocks,
}

pub(crate) enum Blocks {
    /// One block of this many bytes.
    Large(usize),
    /// A bit for each grain: a block begins there (Y1).
    Many(Vec<u64>),
}

impl Run {
    fn bytes(&self) -> usize {
        self.chunk.objects as usize * PAGE_BYTES
    }

    fn mark(&mut self, address: usize, begins: bool) {
        let grain = (address - self.start) / GRAIN_BYTES;
        if let Blocks::Many(bits) = &mut self.blocks
            && let Some(word) = bits.get_mut(grain / 64)
        {
            let bit = 1 << (grain % 64);
            *word = if begins { *word | bit } else { *word & !bit };
        }
    }

    /// Addresses of its blocks, free ones included.
    fn starts(&self) -> impl Iterator<Item = usize> {
        let (large, many) = match &self.blocks {
            Blocks::Large(_) => (Some(self.start), None),
            Blocks::Many(bits) => (None, Some(bits)),
        };
        let words = many.into_iter().flatten().enumerate();
        let grains = words.flat_map(|(nth, word)| {
            let its = (0..64).filter(move |bit| word >> bit & 1 == 1);
            its.map(move |bit| nth * 64 + bit)
        });
        let many = grains.map(|grain| self.start + grain * GRAIN_BYTES);
        large.into_iter().chain(many)
    }

    fn begins(&self, address: usize) -> bool {
        let grain = (address - self.start) / GRAIN_BYTES;
        match &self.blocks {
            Blocks::Large(_) => grain == 0,
            Blocks::Many(bits) => bits[grain / 64] >> (grain % 64) & 1 == 1,
        }
    }

    /// Bytes of the block at this address.
    fn bytes_at(&self, address: usize) -> usize {
        let Blocks::Many(bits) = &self.blocks else {
            return self.bytes();
        };
        let grain = (address - self.start) / GRAIN_BYTES;
        let mut word = (grain + 1) / 64;
        let mut ahead = bits
            .get(word)
            .map_or(0, |bits| bits & (u64::MAX << ((grain + 1) % 64)));
        while ahead == 0 && word + 1 < bits.len() {
            word += 1;
            ahead = bits[word];
        }
        let end = match ahead {
            0 => self.bytes() / GRAIN_BYTES,
            bits => word * 64 + bits.trailing_zeros() as usize,
        };
        (end - grain) * GRAIN_BYTES
    }
}

impl Memory {
    fn add_free(&mut self, address: usize, bytes: usize) {
        self.by_address.insert(address, bytes);
        self.by_bytes.insert((bytes, address));
    }

    fn remove_free(&mut self, address: usize, bytes: usize) {
        self.by_address.remove(&address);
        self.by_bytes.remove(&(bytes, address));
    }

    /// `None`: the chunk was freed as a whole; another one may be in its place now.
    fn find_run(&mut self, chunk: &Chunk) -> Option<&mut Run> {
        let run = self.runs.get_mut(&chunk.first);
        run.filter(|run| run.chunk.table == chunk.table)
    }

    fn run_of(&mut self, chunk: &Chunk) -> &mut Run {
        let run = self.find_run(chunk);
        run.expect("a chunk of many blocks has a run for ever (Y1)")
    }

    /// Whether an address is in a free block.
    fn is_free(&self, address: usize) -> bool {
        let before = self.by_address.range(..=address).next_back();
        before.is_some_and(|(start, bytes)| address < start + bytes)
    }

    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values()
    }

    pub fn free_blocks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.by_address
            .iter()
            .map(|(address, bytes)| (*address, *bytes))
    }

    /// Adds a run from a checkpoint.
    pub fn restore_run(&mut self, chunk: Arc<Chunk>, start: usize, blocks: Blocks) {
        let run = Run {
            start,
            blocks,
            chunk: Arc::clone(&chunk),
        };
        self.runs.insert(chunk.first, run);
    }

    /// Adds a free block from a checkpoint.
    pub fn restore_free(&mut self, address: usize, bytes: usize) {
        self.add_free(address, bytes);
    }

    /// Bytes of all blocks that are handed out, and the flash that was counted for them. `None`: a
    /// free block does not begin and end with a block (Y1), or is adjacent to another one (Y2).
    pub fn allocated(&self) -> Option<(u64, u64)> {
        let (mut data, mut flash, mut free) = (0, 0, 0);
        for run in self.runs.values() {
            flash += flash_of(run.bytes() / PAGE_BYTES);
            let mut expected = run.start;
            let mut was_free = false;
            for start in run.starts() {
                let bytes = run.bytes_at(start);
                let is_free = self.by_address.get(&start) == Some(&bytes);
                let is_large = matches!(run.blocks, Blocks::Large(_));
                if start != expected || is_free && (was_free || is_large) {
                    return None;
                }
                (expected, was_free) = (start + bytes, is_free);
                if is_free {
                    free += 1;
                    flash -= flash_of(whole_pages(start, bytes));
                } else {
                    data += bytes as u64;
                }
            }
            if expected != run.start + run.bytes() {
                return None;
            }
        }
        (free == self.by_address.len()).then_some((data, flash))
    }
}

/// Bytes of flash for this many pages, headers included.
fn flash_of(pages: usize) -> u64 {
    pages as u64 * (PAGE_BYTES as u64 + HEADER_BYTES + 1)
}

/// Number of pages that lie wholly in these bytes.
fn whole_pages(start: usize, bytes: usize) -> usize {
    let first = start.next_multiple_of(PAGE_BYTES);
    ((start + bytes) / PAGE_BYTES * PAGE_BYTES).saturating_sub(first) / PAGE_BYTES
}

/// Pages for which flash must be counted if the first bytes of a free block are handed out.
fn pages_needed(start: usize, free: usize, bytes: usize) -> usize {
    whole_pages(start, free) - whole_pages(start + bytes, free - bytes)
}

fn bits_of(pages: u32) -> usize {
    pages as usize * PAGE_BYTES / GRAIN_BYTES / 64
}

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
        let _changing = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.max(1).next_multiple_of(GRAIN_BYTES);
        let bytes = if bytes >= LARGE_BYTES {
            bytes.next_multiple_of(PAGE_BYTES)
        } else {
            bytes
        };
        let address = if bytes >= LARGE_BYTES {
            let flash = flash_of(bytes / PAGE_BYTES);
            self.reserve_flash(flash, bytes as u64 / PAGE_BYTES as u64 * 4)?;
            let allocated = self.allocate_large(bytes);
            allocated.inspect_err(|_| self.release_flash(flash))?
        } else {
            self.allocate_block(bytes)?
        };
        self.count(bytes as u64);
        Ok(address)
    }

    fn allocate_large(&self, bytes: usize) -> Result<usize, Error> {
        let pages = (bytes / PAGE_BYTES) as u32;
        let chunk = self.add_chunk(pages, PAGE_BYTES as u32, Kind::Memory)?;
        let start = self.address_of(chunk.first);
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
                // Room on pages that are counted already.
                Err(full) => fitting.find(|free| needed(*free) == 0).ok_or(full)?,
            },
            None => {
                let flash = flash_of(bytes.div_ceil(PAGE_BYTES));
                self.reserve_flash(flash, 0)?;
                let added = self.add_run(&mut memory);
                added.inspect_err(|_| self.release_flash(flash))?
            }
        };
        memory.remove_free(start, found);
        if found > bytes {
            let rest = start + bytes;
            let page = self.page_of(start);
            let chunk = self.atm.chunk(page).expect("a run has a chunk");
            memory.run_of(&chunk).mark(rest, true);
            memory.add_free(rest, found - bytes);
        }
        Ok(start)
    }

    fn add_run(&self, memory: &mut Memory) -> Result<(usize, usize), Error> {
        let bits = bits_of(RUN_PAGES);
        self.charge(bits as u64 * 8)?;
        let chunk = self.add_chunk(RUN_PAGES, PAGE_BYTES as u32, Kind::Memory);
        let chunk = chunk.inspect_err(|_| self.discharge(bits as u64 * 8))?;
        let start = self.address_of(chunk.first);
        memory.restore_run(chunk, start, Blocks::Many(vec![0; bits]));
        let page = self.page_of(start);
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
    pub fn free_memory(&self, address: usize, chunk: &Chunk) -> Result<(), Error> {
        let mut memory = self.memory();
        let bytes = self.block_bytes(&mut memory, address, chunk)?;
        let mut pages = bytes / PAGE_BYTES;
        let large = matches!(memory.run_of(chunk).blocks, Blocks::Large(_));
        let run = large.then(|| memory.runs.remove(&chunk.first)).flatten();
        if let Some(run) = run {
            drop(memory); // a later look-up finds that it is freed
            if let Err(error) = self.remove_chunk(chunk) {
                self.memory().runs.insert(chunk.first, run);
                return Err(error);
            }
        } else {
            pages = self.coalesce(&mut memory, address, bytes, chunk);
            // Freeing works without RAM; the maps take it later, when there is some.
            let _ = self.charge_entries(&mut memory);
            drop(memory);
        }
        self.release_flash(flash_of(pages));
        self.uncount(bytes as u64);
        Ok(())
    }

    /// Bytes of the block that was handed out at this address.
    fn block_bytes(
        &self,
        memory: &mut Memory,
        address: usize,
        chunk: &Chunk,
    ) -> Result<usize, Error> {
        if memory.is_free(address) {
            return Err(Error::DoubleFree { address });
        }
        let run = memory.find_run(chunk);
        let run = run.ok_or(Error::DoubleFree { address })?;
        let begins = address.is_multiple_of(GRAIN_BYTES) && run.begins(address);
        if !begins {
            return Err(Error::BadPointer {
                address,
                why: "it lies within a block",
            });
        }
        Ok(run.bytes_at(address))
    }

    /// Joins a freed block with its free neighbours, and drops the pages that are now wholly free
    /// (Y2, Y3). Returns their number.
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
        for page in pages.step_by(PAGE_BYTES).map(|page| self.page_of(page)) {
            let place = chunk.place(page).expect("a page of this chunk");
            // If the kernel refuses, the page stays like a used one.
            let _ = self.forget(&place);
        }
        count
    }

    /// Takes the maps' RAM from the cache, for several entries at once.
    pub fn charge_entries(&self, memory: &mut Memory) -> Result<(), Error> {
        let wanted = memory.by_address.len().next_multiple_of(ENTRIES_AT_ONCE);
        let bytes = ENTRY_BYTES * ENTRIES_AT_ONCE as u64;
        if wanted > memory.charged {
            self.charge(ENTRY_BYTES * (wanted - memory.charged) as u64)?;
            memory.charged = wanted;
        } else if wanted + 2 * ENTRIES_AT_ONCE <= memory.charged {
            self.discharge(bytes);
            memory.charged -= ENTRIES_AT_ONCE;
        }
        Ok(())
    }

    /// Bytes of the block at an address of this chunk, if one was handed out there.
    pub fn memory_bytes(&self, address: usize, chunk: &Chunk) -> Option<usize> {
        self.block_bytes(&mut self.memory(), address, chunk).ok()
    }
}
