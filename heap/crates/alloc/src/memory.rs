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

use crate::chunk::{Chunk, HEADER_BYTES};
use crate::error::Error;
use crate::pager::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) const GRAIN_BYTES: usize = 16;

/// The runs and free blocks; see the file's head.
#[derive(Default)]
pub(crate) struct Memory {
    /// The runs, by first page.
    pub runs: BTreeMap<u64, Run>,
    /// Free blocks, by address and by length (Y2).
    pub by_address: BTreeMap<usize, usize>,
    pub by_bytes: BTreeSet<(usize, usize)>,
    /// Free blocks whose map entries are charged.
    pub charged: usize,
}

/// Pages that contain blocks.
pub(crate) struct Run {
    pub chunk: Arc<Chunk>,
    pub start: usize,
    pub blocks: Blocks,
}

pub(crate) enum Blocks {
    /// One block of this many bytes.
    Large(usize),
    /// A bit for each grain: a block begins there (Y1).
    Many(Vec<u64>),
}

impl Run {
    pub fn bytes(&self) -> usize {
        self.chunk.objects as usize * PAGE_BYTES
    }

    pub fn mark(&mut self, address: usize, begins: bool) {
        let grain = (address - self.start) / GRAIN_BYTES;
        if let Blocks::Many(bits) = &mut self.blocks
            && let Some(word) = bits.get_mut(grain / 64)
        {
            let bit = 1 << (grain % 64);
            *word = if begins { *word | bit } else { *word & !bit };
        }
    }

    /// Addresses of its blocks, free ones included.
    pub fn starts(&self) -> impl Iterator<Item = usize> {
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

    pub fn begins(&self, address: usize) -> bool {
        let grain = (address - self.start) / GRAIN_BYTES;
        match &self.blocks {
            Blocks::Large(_) => grain == 0,
            Blocks::Many(bits) => bits[grain / 64] >> (grain % 64) & 1 == 1,
        }
    }

    /// Bytes of the block at this address.
    pub fn bytes_at(&self, address: usize) -> usize {
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
    pub fn add_free(&mut self, address: usize, bytes: usize) {
        self.by_address.insert(address, bytes);
        self.by_bytes.insert((bytes, address));
    }

    pub fn remove_free(&mut self, address: usize, bytes: usize) {
        self.by_address.remove(&address);
        self.by_bytes.remove(&(bytes, address));
    }

    /// `None`: the chunk was freed as a whole; another one may be in its place now.
    pub fn find_run(&mut self, chunk: &Chunk) -> Option<&mut Run> {
        let run = self.runs.get_mut(&chunk.first);
        run.filter(|run| run.chunk.table == chunk.table)
    }

    pub fn run_of(&mut self, chunk: &Chunk) -> &mut Run {
        let run = self.find_run(chunk);
        run.expect("a chunk has a run as long as a block of it is handed out")
    }

    /// Whether an address is in a free block.
    pub fn is_free(&self, address: usize) -> bool {
        let before = self.by_address.range(..=address).next_back();
        before.is_some_and(|(start, bytes)| address < start + bytes)
    }

    /// Bytes of the block that was handed out at this address of a chunk.
    ///
    /// # Errors
    /// [`Error::DoubleFree`], [`Error::BadPointer`].
    pub fn block_bytes(&mut self, address: usize, chunk: &Chunk) -> Result<usize, Error> {
        if self.is_free(address) {
            return Err(Error::DoubleFree { address });
        }
        let run = self.find_run(chunk);
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
pub(crate) fn flash_of(pages: usize) -> u64 {
    pages as u64 * (PAGE_BYTES as u64 + HEADER_BYTES + 1)
}

/// Number of pages that lie wholly in these bytes.
fn whole_pages(start: usize, bytes: usize) -> usize {
    let first = start.next_multiple_of(PAGE_BYTES);
    ((start + bytes) / PAGE_BYTES * PAGE_BYTES).saturating_sub(first) / PAGE_BYTES
}

/// Pages for which flash must be counted if the first bytes of a free block are handed out.
pub(crate) fn pages_needed(start: usize, free: usize, bytes: usize) -> usize {
    whole_pages(start, free) - whole_pages(start + bytes, free - bytes)
}

pub(crate) fn bits_of(pages: u32) -> usize {
    pages as usize * PAGE_BYTES / GRAIN_BYTES / 64
}
