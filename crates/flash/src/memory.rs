//! Bytes at addresses that are multiples of every device's alignment, as reads and writes past the
//! page cache want them.
//!
//! **Invariants**
//! - A1: `start` was chosen for this very allocation, which is never grown.

use crate::layout::{ALIGNMENT_MAX, SECTOR_BYTES, room_max};

/// A buffer of fixed length whose memory begins at a multiple of 4096 bytes.
pub(crate) struct Aligned {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// So many zeros.
    pub(crate) fn zeroed(length: usize) -> Aligned {
        let storage = vec![0; length + ALIGNMENT_MAX];
        let start = storage.as_ptr().align_offset(ALIGNMENT_MAX);
        // `align_offset` may decline in theory; then the device says what it does not like.
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

/// Where a thread's reads go: kept by the thread, so that a read allocates nothing.
pub struct Scratch(pub(crate) Aligned);

impl Scratch {
    /// For objects of at most so many bytes.
    pub fn new(object_bytes_max: usize) -> Scratch {
        Scratch(Aligned::zeroed(room_max(object_bytes_max)))
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scratch({} sectors)", self.0.length / SECTOR_BYTES)
    }
}
