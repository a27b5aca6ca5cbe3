//! Reserved address space, and its backing with memory.

use crate::Error;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// A huge page of x86-64 and of most 64-bit Arm configurations.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A private anonymous mapping, aligned to huge pages. No page is resident until it is touched.
pub struct Region {
    mapping: *mut c_void,
    mapping_bytes: usize,
    base: *mut u8,
    bytes: usize,
    /// 0 = not read yet.
    page_bytes: AtomicU64,
}

// SAFETY: the region is raw memory; the modules that hand out parts of it define which thread may
// touch them (`space`, `index`).
unsafe impl Send for Region {}
// SAFETY: as above; the methods here only compute addresses or call the kernel.
unsafe impl Sync for Region {}

impl Region {
    pub fn reserve(bytes: usize, huge_pages: bool) -> Result<Region, Error> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let mapping_bytes = bytes + HUGE_PAGE_BYTES;
        let failed = |e: rustix::io::Errno| Error::Reserve {
            bytes: mapping_bytes as u64,
            reason: e.to_string(),
        };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::empty(),
                flags,
            )
            .map_err(failed)?
        };
        // In a program that has called `mlockall`, all of an accessible mapping would be resident,
        // at once and for ever.
        // SAFETY: the mapping just made, which nothing refers to.
        let made_usable = unsafe {
            let _ = munlock(mapping, mapping_bytes);
            mprotect(
                mapping,
                mapping_bytes,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
        };
        if let Err(error) = made_usable {
            // SAFETY: as above.
            let _ = unsafe { munmap(mapping, mapping_bytes) };
            return Err(failed(error));
        }
        let base = mapping.cast::<u8>();
        let base = base.wrapping_add(base.align_offset(HUGE_PAGE_BYTES));
        let advice = if huge_pages {
            Advice::LinuxHugepage
        } else {
            Advice::LinuxNoHugepage
        };
        // SAFETY: [base, base + bytes) is inside the mapping just made. A kernel without huge pages
        // refuses, which does no harm.
        let _ = unsafe { madvise(base.cast(), bytes, advice) };
        // Secrets in the store stay out of core files, and a crash does not write gigabytes.
        // SAFETY: as above.
        let _ = unsafe { madvise(base.cast(), bytes, Advice::LinuxDontDump) };
        Ok(Region {
            mapping,
            mapping_bytes,
            base,
            bytes,
            page_bytes: AtomicU64::new(0),
        })
    }

    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        self.base.wrapping_add(offset)
    }

    /// Makes `bytes` at `offset` resident now.
    pub fn populate(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the mapping. On kernels before 5.14 it fails, and the first touch
        // populates instead.
        let _ = unsafe { madvise(self.at(offset).cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    /// Gives the memory of `bytes` at `offset` back; the range reads as zero afterwards. No thread
    /// may use it meanwhile.
    pub fn decommit(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        let at = self.at(offset).cast();
        // SAFETY: inside the mapping; the caller owns the range.
        let dropped = unsafe { madvise(at, bytes, Advice::LinuxDontNeed) };
        if dropped.is_err() {
            // The first call fails if the program has called `mlockall` since. SAFETY: as above.
            unsafe { munlock(at, bytes).and_then(|()| madvise(at, bytes, Advice::LinuxDontNeed)) }
                .expect("MADV_DONTNEED on own memory");
        }
    }

    /// Backs the last of `bytes` at `offset`, and nothing behind it up to `all_bytes`: a huge page
    /// there would reach beyond the charged memory. The caller owns the range, and none of it is
    /// resident.
    pub fn back_no_more(&self, offset: usize, bytes: usize, all_bytes: usize) {
        assert!(0 < bytes && bytes <= all_bytes && offset + all_bytes <= self.bytes);
        if bytes < all_bytes {
            // SAFETY: inside the mapping; the caller owns the range.
            unsafe { self.at(offset + bytes - 1).write_volatile(0) };
            self.decommit(offset + bytes, all_bytes - bytes);
        }
    }

    /// The page size that the kernel really gave: 2 MiB if any part of the region is backed by huge
    /// pages.
    pub fn page_bytes(&self) -> u64 {
        let known = self.page_bytes.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let found = self.huge_bytes_resident().map_or(4096, |huge| {
            if huge > 0 {
                HUGE_PAGE_BYTES as u64
            } else {
                4096
            }
        });
        self.page_bytes.store(found, Ordering::Relaxed);
        found
    }

    /// `AnonHugePages` of the mapping's entry in `/proc/self/smaps`, in bytes.
    fn huge_bytes_resident(&self) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.base as u64;
        let mut inside = false;
        let mut huge = 0;
        for line in smaps.lines() {
            let range = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) =
                    (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
            {
                inside = from < start + self.bytes as u64 && to > start;
            } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
                huge += rest.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
            }
        }
        Some(huge)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `reserve`, unmapped once; all users of its parts are gone with the store.
        let _ = unsafe { munmap(self.mapping, self.mapping_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_and_goes() {
        let region = Region::reserve(4 * HUGE_PAGE_BYTES, true).unwrap();
        assert_eq!(region.at(0) as usize % HUGE_PAGE_BYTES, 0);
        region.populate(0, HUGE_PAGE_BYTES);
        // SAFETY: one byte inside the region, which this test alone uses.
        unsafe {
            *region.at(5) = 7;
            assert_eq!(*region.at(5), 7);
            region.decommit(0, HUGE_PAGE_BYTES);
            assert_eq!(*region.at(5), 0);
        }
        assert!([4096, HUGE_PAGE_BYTES as u64].contains(&region.page_bytes()));
    }
}
