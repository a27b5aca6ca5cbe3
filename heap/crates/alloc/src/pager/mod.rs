//! The pager: shows pages of the arena to the program, write-protects them, and removes them.
//!
//! **Invariants**
//! - P1: a page is shown whole at once: no thread ever sees a part of it.
//! - P2: a write-protected page does not change until writes are allowed again: a write to it
//!   faults.
//! - P3: a core dump has no page of addresses that are not shown: the kernel would look at each of
//!   2^30, for minutes.
//!
//! **Concurrency** any thread may call anything; the page buffer decides which thread owns a page
//! (its unit is busy).
//!
//! Paper: [Badam11 §3.2, SSDAlloc's Paging]; differs: userfaultfd instead of `mprotect` if the
//! kernel has it, three times as fast and without a mapping of its own for each page. Writes are
//! tracked by synchronous write protection: with the asynchronous kind (`UFFD_FEATURE_WP_ASYNC`), a
//! write between the check of the dirty bit and the removal of the page would be lost.

pub(crate) mod lift;
mod protect;
mod userfault;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages under one page of the page table, which the kernel frees as a whole.
pub(crate) const REGION_PAGES: u64 = 512;

/// The mechanism that shows and removes pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// userfaultfd in SIGBUS mode.
    Userfault,
    /// `mprotect` and SIGSEGV, on kernels without userfaultfd: slower, and each page is a mapping
    /// of its own; the number of mappings is limited.
    Protect,
}

/// The pager of one arena; see the file's head.
pub(crate) enum Pager {
    Userfault(userfault::Userfault),
    Protect(protect::Protect),
}

impl Pager {
    /// Reserves `bytes` of addresses at `at`, or nearby if `at` is taken and `exactly` is false.
    pub fn reserve(kind: Faults, at: usize, bytes: usize, exactly: bool) -> io::Result<Pager> {
        Ok(match kind {
            Faults::Userfault => {
                Pager::Userfault(userfault::Userfault::reserve(at, bytes, exactly)?)
            }
            Faults::Protect => Pager::Protect(protect::Protect::reserve(at, bytes, exactly)?),
        })
    }

    pub fn kind(&self) -> Faults {
        match self {
            Pager::Userfault(_) => Faults::Userfault,
            Pager::Protect(_) => Faults::Protect,
        }
    }

    /// First address of the arena.
    pub fn start(&self) -> usize {
        match self {
            Pager::Userfault(pager) => pager.arena.start,
            Pager::Protect(pager) => pager.arena.start,
        }
    }

    /// Bytes of the arena.
    pub fn bytes(&self) -> usize {
        match self {
            Pager::Userfault(pager) => pager.arena.bytes,
            Pager::Protect(pager) => pager.arena.bytes,
        }
    }

    /// Most pages that can be shown at once; `None`: as many as there is memory for.
    pub fn pages_max(&self) -> Option<usize> {
        match self {
            Pager::Userfault(_) => None,
            Pager::Protect(pager) => Some(pager.pages_max),
        }
    }

    /// Shows a page that is not shown (P1).
    pub fn show(&self, page: u64, bytes: &[u8; PAGE_BYTES], writable: bool) -> io::Result<()> {
        let at = self.address(page);
        match self {
            Pager::Userfault(pager) => pager.show(at, bytes, writable),
            Pager::Protect(pager) => pager.show(at, bytes, writable),
        }
    }

    pub fn allow_writes(&self, page: u64) -> io::Result<()> {
        let at = self.address(page);
        match self {
            Pager::Userfault(pager) => pager.protect(at, false),
            Pager::Protect(pager) => pager.protect(at, false),
        }
    }

    /// Write-protects a page (P2).
    pub fn forbid_writes(&self, page: u64) -> io::Result<()> {
        let at = self.address(page);
        match self {
            Pager::Userfault(pager) => pager.protect(at, true),
            Pager::Protect(pager) => pager.protect(at, true),
        }
    }

    /// Whether the kernel takes freed page tables back. Before Linux 6.14, and on some processors,
    /// they stay under addresses of userfaultfd.
    pub fn frees_tables(&self) -> bool {
        match self {
            Pager::Userfault(pager) => pager.frees_tables,
            Pager::Protect(_) => true,
        }
    }

    /// Whether a page that was shown is gone: the program has taken it away (`madvise`). With
    /// `mprotect` such a page is there, as zeros.
    pub fn is_gone(&self, page: u64) -> bool {
        match self {
            Pager::Userfault(pager) => pager.is_gone(self.address(page)),
            Pager::Protect(_) => false,
        }
    }

    /// Copies the beginning of a shown page, which this process, the kernel or a device may write
    /// to meanwhile: each word is the value at some moment.
    pub fn copy(&self, page: u64, into: &mut [u8]) {
        assert!(into.len() <= PAGE_BYTES, "within the page");
        let at = self.address(page);
        for (nth, bytes) in into.chunks_mut(size_of::<u64>()).enumerate() {
            // SAFETY: the page is shown and belongs to the caller, so it is not taken away; a whole
            // word at a multiple of its length lies in it.
            let word = unsafe { AtomicU64::from_ptr((at as *mut u64).add(nth)) };
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// The bytes of a page that is shown and write-protected (P2), and stays so while they are
    /// borrowed.
    pub fn content(&self, page: u64, bytes: usize) -> &[u8] {
        assert!(bytes <= PAGE_BYTES, "within the page");
        let at = self.address(page);
        // SAFETY: the page is shown and its unit belongs to the caller, so it is neither removed
        // nor written to (P2).
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }
    }

    /// Removes pages, which need not be shown, and whole regions with their page of the page table,
    /// none of whose pages is shown now or before this returns.
    pub fn hide(&self, pages: &[u64], regions: &[u64]) -> io::Result<()> {
        match self {
            Pager::Userfault(pager) => {
                let pages = pages.iter().map(|page| (self.address(*page), PAGE_BYTES));
                let bytes = REGION_PAGES as usize * PAGE_BYTES;
                let regions = regions
                    .iter()
                    .map(|region| (self.address(*region * REGION_PAGES), bytes));
                pager.discard(pages.chain(regions))
            }
            Pager::Protect(pager) => {
                let bytes = REGION_PAGES as usize * PAGE_BYTES;
                pages
                    .iter()
                    .try_for_each(|page| pager.hide(self.address(*page), PAGE_BYTES))?;
                regions
                    .iter()
                    .try_for_each(|region| pager.hide(self.address(*region * REGION_PAGES), bytes))
            }
        }
    }

    /// Makes `lift` refer to these pages, to the bytes of their contents, until they are removed:
    /// they may be written to meanwhile. After an error nothing was changed.
    pub fn refer(
        &self,
        lift: &mut lift::Lift,
        dirty: impl Iterator<Item = (u64, usize)>,
    ) -> io::Result<()> {
        lift.refer(dirty.map(|(page, bytes)| (self.address(page), bytes)))
    }

    fn address(&self, page: u64) -> usize {
        let offset = page as usize * PAGE_BYTES;
        assert!(offset < self.bytes(), "page {page} is in the arena");
        self.start() + offset
    }
}

/// Reserved addresses, released on drop.
pub(crate) struct Arena {
    pub start: usize,
    pub bytes: usize,
}

impl Arena {
    fn reserve(at: usize, bytes: usize, exactly: bool, protection: i32) -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let map = |at: usize, flags: i32| {
            // SAFETY: maps new memory; MAP_FIXED_NOREPLACE replaces nothing.
            let start = unsafe { libc::mmap(at as *mut _, bytes, libc::PROT_NONE, flags, -1, 0) };
            if start == libc::MAP_FAILED {
                Err(io::Error::last_os_error())
            } else {
                Ok(Arena {
                    start: start as usize,
                    bytes,
                })
            }
        };
        let there = map(at, flags | libc::MAP_FIXED_NOREPLACE).and_then(|arena| {
            // Kernels without this flag take the address as a hint.
            if arena.start == at {
                Ok(arena)
            } else {
                Err(io::Error::from_raw_os_error(libc::EEXIST))
            }
        });
        let arena = match there {
            Err(error) if !exactly && error.raw_os_error() == Some(libc::EEXIST) => {
                // Otherwise addresses somewhere above are tried, aligned as well.
                let mut above = (1..64).map(|n| {
                    let at = at + n * bytes;
                    map(at, flags | libc::MAP_FIXED_NOREPLACE)
                        .ok()
                        .filter(|arena| arena.start == at)
                });
                match above.find_map(|arena| arena) {
                    Some(arena) => arena,
                    None => Arena::anywhere(bytes)?,
                }
            }
            Err(_) if !exactly => Arena::anywhere(bytes)?,
            found => found?,
        };
        arena.open(protection)?;
        Ok(arena)
    }

    /// Opens reserved addresses, which no thread touches yet, for use.
    fn open(&self, protection: i32) -> io::Result<()> {
        // This is done before the addresses can be written to: if the program locks future memory
        // (`mlockall`), the kernel would fill all of them.
        self.unlock();
        let (arena, bytes) = (self, self.bytes);
        // A page of the page table must lie in the arena as a whole, and a forked child must not
        // see holes as zeros (and P3). SAFETY: advice about memory that was just mapped, and its
        // protection.
        let advised = unsafe {
            libc::mprotect(arena.start as *mut _, bytes, protection) == 0
                && libc::madvise(arena.start as *mut _, bytes, libc::MADV_DONTFORK) == 0
                && libc::madvise(arena.start as *mut _, bytes, libc::MADV_DONTDUMP) == 0
                && (libc::madvise(arena.start as *mut _, bytes, libc::MADV_NOHUGEPAGE) == 0
                    || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL))
        };
        if advised {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Undoes the effect of `mlockall` on these addresses: a locked page cannot be removed. The
    /// call cannot fail for these addresses.
    fn unlock(&self) {
        // SAFETY: does not change the content.
        unsafe { libc::munlock(self.start as *const _, self.bytes) };
    }

    /// Reserves addresses of the kernel's choice: on systems with fewer than 48 bits of addresses,
    /// or under a sanitizer that allows no others.
    fn anywhere(bytes: usize) -> io::Result<Arena> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let region = REGION_PAGES as usize * PAGE_BYTES;
        // SAFETY: maps new memory, then releases the parts before and behind a multiple of a region
        // in it.
        unsafe {
            let found = libc::mmap(
                std::ptr::null_mut(),
                bytes + region,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            );
            if found == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let start = (found as usize).next_multiple_of(region);
            let before = start - found as usize;
            if before > 0 {
                libc::munmap(found, before);
            }
            libc::munmap((start + bytes) as *mut _, region - before);
            Ok(Arena { start, bytes })
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `reserve`, and is not used any more: the heap is gone.
        unsafe { libc::munmap(self.start as *mut _, self.bytes) };
    }
}
