//! The memory of windows.

use super::SEGMENT_HEADER_BYTES;
use super::region::Region;
use crate::Error;

/// The region of a store, by windows.
pub struct Memory {
    region: Region,
    segment_bytes: usize,
    segment_shift: u32,
}

impl Memory {
    /// Reserves addresses for this many windows. `segment_bytes`: a power of two.
    ///
    /// # Errors
    /// [`Error::Reserve`].
    pub(super) fn reserve(
        windows: usize,
        segment_bytes: usize,
        huge_pages: bool,
    ) -> Result<Memory, Error> {
        Ok(Memory {
            region: Region::reserve(windows * segment_bytes, huge_pages)?,
            segment_bytes,
            segment_shift: segment_bytes.trailing_zeros(),
        })
    }

    /// Memory at an offset in the region.
    #[inline(always)]
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.region.at(offset)
    }

    /// Offset in the region at which a window starts.
    #[inline(always)]
    pub(super) fn offset_of(&self, window: u32) -> usize {
        (window as usize) << self.segment_shift
    }

    /// The window of an offset in the region.
    #[inline(always)]
    pub(super) fn window_of(&self, offset: usize) -> usize {
        offset >> self.segment_shift
    }

    /// Writes a segment's header. No other thread uses the window.
    pub fn write_header(&self, window: u32, header: &[u8; SEGMENT_HEADER_BYTES]) {
        let at = self.at(self.offset_of(window));
        // SAFETY: the window is backed and only its holder uses it; the first bytes hold no entry.
        unsafe { at.copy_from_nonoverlapping(header.as_ptr(), SEGMENT_HEADER_BYTES) };
    }

    /// The first bytes of a window without memory of its own, for its holder to fill.
    ///
    /// # Safety
    /// No other thread may use the window's memory as long as the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "windows are handed out one by one, as the caller vouches"
    )]
    pub unsafe fn bytes_mut(&self, window: u32, length: usize) -> &mut [u8] {
        assert!(length <= self.segment_bytes);
        let at = self.at(self.offset_of(window));
        // SAFETY: inside the region; the caller guarantees that no other thread uses it.
        unsafe { std::slice::from_raw_parts_mut(at, length) }
    }

    /// Backs `bytes` of a window, and nothing behind them.
    pub(super) fn back_no_more(&self, window: u32, bytes: usize) {
        let offset = self.offset_of(window);
        self.region.back_no_more(offset, bytes, self.segment_bytes);
    }

    /// Touches the memory of a window.
    pub(super) fn populate(&self, window: u32) {
        self.region
            .populate(self.offset_of(window), self.segment_bytes);
    }

    /// Gives back the memory that the holder of a window has touched, and that is not charged any
    /// more, or never was.
    pub fn decommit(&self, window: u32) {
        self.decommit_from(window, 0);
    }

    /// As [`decommit`](Self::decommit), for the bytes from `from` to the window's very end: a huge
    /// page may have backed more than was charged.
    pub(super) fn decommit_from(&self, window: u32, from: usize) {
        let offset = self.offset_of(window) + from;
        self.region.decommit(offset, self.segment_bytes - from);
    }

    /// Page size of the region's memory as the kernel reports it, in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.region.page_bytes()
    }
}
