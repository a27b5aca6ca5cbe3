//! Sizes of a heap: RAM, flash and pages.

use crate::batch;
use crate::buffer;
use crate::cache;
use crate::error::Error;
use crate::pager::PAGE_BYTES;
use crate::regions;
use duramen_disk::Error as DiskError;
use duramen_flash::BLOCK_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// The part that does not depend on the allocated amount.
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

/// Adds to a count that is at most `most`, without ever showing a greater value to other threads;
/// `Err`: the present value.
pub(crate) fn add_up_to(count: &AtomicU64, more: u64, most: u64) -> Result<(), u64> {
    let added = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
        now.checked_add(more).filter(|sum| *sum <= most)
    });
    added.map(drop)
}
