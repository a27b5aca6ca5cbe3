//! Aligned memory: bytes at addresses that are multiples of every device's alignment, for reads and
//! writes that bypass the page cache.
//!
//! **Invariants**
//! - A1: `start` was computed for this very allocation, which is never grown.

/// Unit of a location, and the smallest alignment of a device, in bytes.
pub const SECTOR_BYTES: usize = 512;
/// Largest supported alignment of a device's reads, and the alignment of all writes, in bytes.
pub const ALIGNMENT_MAX: usize = 4096;
/// The length of a device is a multiple of this, in bytes.
pub const UNIT_BYTES: usize = 128 << 10;
/// Smallest useful device, in bytes.
pub(crate) const BYTES_MIN: u64 = 8 * UNIT_BYTES as u64;
/// Largest device, in bytes: its sectors are numbered with 32 bits.
pub(crate) const BYTES_MAX: u64 = SECTOR_BYTES as u64 * (1 << 32);

/// A buffer of fixed length whose memory begins at a multiple of 4096 bytes.
pub struct Aligned {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// A buffer of this many zeros.
    pub fn zeroed(length: usize) -> Aligned {
        let storage = vec![0; length + ALIGNMENT_MAX];
        let start = storage.as_ptr().align_offset(ALIGNMENT_MAX);
        // `align_offset` may fail in theory; then the device reports the misalignment.
        let start = if start < ALIGNMENT_MAX { start } else { 0 };
        Aligned {
            storage,
            start,
            length,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.length]
    }
}

/// A span widened to the units of a device: its start, its length, and the offset of the span in
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub at: u64,
    pub bytes: usize,
    pub skip: usize,
}

impl Cut {
    /// Whole units of `alignment` bytes, a power of two, around `bytes` bytes from byte `at` on.
    pub fn new(at: u64, bytes: usize, alignment: usize) -> Cut {
        let skip = (at % alignment as u64) as usize;
        Cut {
            at: at - skip as u64,
            bytes: (skip + bytes).next_multiple_of(alignment),
            skip,
        }
    }
}
