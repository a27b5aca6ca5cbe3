//! Bytes at an address that is a multiple of the block size, as O_DIRECT wants them.
//!
//! **Invariants**
//! - A1: `start` was chosen for this very allocation, which never moves: the vector is never grown, only replaced.

use crate::disk::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A buffer of fixed capacity that starts at a multiple of [`BLOCK_BYTES`] in memory.
pub(crate) struct Buffer {
    storage: Vec<u8>,
    start: usize,
    length: usize,
    capacity: usize,
}

impl Buffer {
    /// An empty buffer for at least this many bytes, rounded up to whole blocks. Memory is touched as it is used.
    pub(crate) fn with_capacity(bytes: usize) -> Buffer {
        let capacity = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let storage = vec![0; capacity + BLOCK];
        let start = storage.as_ptr().align_offset(BLOCK);
        // `align_offset` may decline in theory; a start of 0 then costs a copy further down, nothing else.
        let start = if start < BLOCK { start } else { 0 };
        Buffer {
            storage,
            start,
            length: 0,
            capacity,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.length]
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    /// Appends; the buffer is replaced by a larger one if need be.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end > self.capacity {
            let mut larger = Buffer::with_capacity(end.max(self.capacity * 2));
            larger.extend(self.bytes());
            *self = larger; // A1
        }
        self.storage[self.start + self.length..self.start + end].copy_from_slice(bytes);
        self.length = end;
    }

    /// Appends zeros until the length is a multiple of `unit`.
    pub(crate) fn pad(&mut self, unit: usize) {
        let missing = self.length.next_multiple_of(unit) - self.length;
        self.extend(&[0; BLOCK][..missing]);
    }

    /// Makes it so long, all zeros.
    pub(crate) fn resize_zeroed(&mut self, length: usize) {
        if length > self.capacity {
            *self = Buffer::with_capacity(length); // A1
        }
        self.storage[self.start..self.start + length].fill(0);
        self.length = length;
    }

    /// Makes it so long; what is in it is to be overwritten.
    pub(crate) fn resize(&mut self, length: usize) {
        if length > self.capacity {
            *self = Buffer::with_capacity(length); // A1
        }
        self.length = length;
    }

    /// Forgets bytes at the end.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Forgets bytes at the front and moves the others there.
    pub(crate) fn drop_front(&mut self, bytes: usize) {
        assert!(bytes <= self.length, "drops no more than there is");
        self.storage
            .copy_within(self.start + bytes..self.start + self.length, self.start);
        self.length -= bytes;
    }

    /// Zeros from the end to the end of its block.
    pub(crate) fn fill_last_block(&mut self) {
        let end = self.length.next_multiple_of(BLOCK);
        self.storage[self.start + self.length..self.start + end].fill(0);
    }

    /// All bytes up to the end of the last block: what is written to a device, after
    /// [`fill_last_block`](Self::fill_last_block).
    pub(crate) fn blocks(&self) -> &[u8] {
        let end = self.length.next_multiple_of(BLOCK);
        &self.storage[self.start..self.start + end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_aligned_and_keeps_its_bytes() {
        let mut buffer = Buffer::with_capacity(10);
        let bytes: Vec<u8> = (0..20_000u32).map(|n| (n * 3) as u8).collect();
        for part in bytes.chunks(777) {
            buffer.extend(part);
            assert!(buffer.bytes().as_ptr().addr().is_multiple_of(BLOCK));
        }
        assert_eq!(buffer.bytes(), bytes);
        buffer.fill_last_block();
        let padded = buffer.blocks();
        assert_eq!(padded.len(), 20_480);
        assert!(padded[20_000..].iter().all(|byte| *byte == 0));
        buffer.drop_front(8192);
        assert_eq!(buffer.bytes(), &bytes[8192..]);
        buffer.truncate(5);
        buffer.pad(8);
        assert_eq!(buffer.bytes()[5..], [0; 3]);
    }
}
