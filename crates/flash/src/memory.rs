//! Aligned memory: bytes at addresses that are multiples of every device's alignment, for reads and
//! writes that bypass the page cache.
//!
//! **Invariants**
//! - A1: `start` was computed for this very allocation, which is never grown.

use crate::layout::{ALIGNMENT_MAX, SECTOR_BYTES, room_max};

/// A buffer of fixed length whose memory begins at a multiple of 4096 bytes.
pub(crate) struct Aligned {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// A buffer of this many zeros.
    pub(crate) fn zeroed(length: usize) -> Aligned {
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

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.length]
    }
}

/// Memory for a thread's reads: the thread keeps it, so that a read allocates nothing.
pub struct Scratch(pub(crate) Aligned);

impl Scratch {
    /// For objects of at most this many bytes.
    pub fn new(object_bytes_max: usize) -> Scratch {
        Scratch(Aligned::zeroed(room_max(object_bytes_max)))
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scratch({} sectors)", self.0.length / SECTOR_BYTES)
    }
}
