//! Prefetches of lines that a thread is going to read.

use super::bucket::Bucket;

#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Fetches a bucket and its neighbour in the pair, which has the first of its displaced keys.
#[inline(always)]
pub(crate) fn prefetch_pair(bucket: *const Bucket) {
    prefetch(bucket.cast());
    prefetch((bucket as usize ^ size_of::<Bucket>()) as *const u8);
}
