//! Pages by `mprotect` and SIGSEGV, for kernels without userfaultfd. A shown page is a mapping of
//! its own: it is filled elsewhere and then moved to its place, so that no thread sees a part of
//! it.
//!
//! **Invariants**
//! - M1: at most `pages_max` pages are shown: each may cost two mappings, and the process has
//!   `vm.max_map_count` of them.

use super::{Arena, PAGE_BYTES};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The arena, and the limit of mappings; see the file's head.
pub(crate) struct Protect {
    pub arena: Arena,
    pub pages_max: usize,
    /// Pages that were removed, modulo [`UNLOCK_EVERY`].
    hidden: AtomicU32,
}

/// Removals of pages between two unlocks of the arena. If the program locks its memory
/// (`mlockall`), a page that comes or goes differs from its neighbours in this, and stays a mapping
/// of its own for ever.
const UNLOCK_EVERY: u32 = 1024;

/// The kernel's default limit of mappings.
const MAPPINGS: usize = 65_530;

impl Protect {
    pub fn reserve(at: usize, bytes: usize, exactly: bool) -> io::Result<Protect> {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings.ok().and_then(|text| text.trim().parse().ok());
        Ok(Protect {
            arena: Arena::reserve(at, bytes, exactly, libc::PROT_NONE)?,
            pages_max: mappings.unwrap_or(MAPPINGS) / 4, // half of the mappings are the program's
            hidden: AtomicU32::new(0),
        })
    }

    pub fn show(&self, at: usize, bytes: &[u8; PAGE_BYTES], writable: bool) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, filled, then moved over a page of the arena that is not shown and
        // that the caller owns.
        unsafe {
            let made = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, both, flags, -1, 0);
            if made == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), made.cast(), PAGE_BYTES);
            let readable = writable || libc::mprotect(made, PAGE_BYTES, libc::PROT_READ) == 0;
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let fork = libc::madvise(made, PAGE_BYTES, libc::MADV_DONTFORK) == 0;
            if readable && fork {
                let moved = libc::mremap(made, PAGE_BYTES, PAGE_BYTES, how, at as *mut u8);
                if moved != libc::MAP_FAILED {
                    return Ok(());
                }
            }
            let error = io::Error::last_os_error();
            libc::munmap(made, PAGE_BYTES);
            Err(error)
        }
    }

    pub fn protect(&self, at: usize, protect: bool) -> io::Result<()> {
        let write = if protect { 0 } else { libc::PROT_WRITE };
        // SAFETY: a page of the arena that is shown and that the caller owns.
        let done = unsafe { libc::mprotect(at as *mut _, PAGE_BYTES, libc::PROT_READ | write) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Removes whole pages, and their page of the page table if they are all of a region.
    pub fn hide(&self, at: usize, bytes: usize) -> io::Result<()> {
        if self.hidden.fetch_add(1, Ordering::Relaxed) % UNLOCK_EVERY == UNLOCK_EVERY - 1 {
            self.arena.unlock();
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces pages of the arena that the caller owns.
        let made = unsafe { libc::mmap(at as *mut _, bytes, libc::PROT_NONE, flags, -1, 0) };
        if made == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The pages get the same advice as the rest of the arena, so that they become one mapping
        // with it again (M1).
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: as above.
            if unsafe { libc::madvise(at as *mut _, bytes, advice) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}
