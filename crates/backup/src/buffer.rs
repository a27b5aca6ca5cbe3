//! Buffers that start at a multiple of the block size in memory, as O_DIRECT requires.
//!
//! **Invariants**
//! - A1: `start` was computed for this allocation, which never moves: the vector is never grown,
//!   only replaced.
//! - A2: a counted buffer adds to [`BufferBytes`] each byte that it writes to for the first time,
//!   and subtracts all of them when it is dropped: `BufferBytes` is the most memory that all
//!   counted buffers can have resident. (Large allocations are fresh from the system.)
//!
//! **Concurrency**: a buffer belongs to one owner. All buffers of a backup share one
//! `BufferBytes`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A buffer with less memory than this keeps it when bytes at its front are dropped.
const SHRUNK_BYTES: usize = 128 << 10;

/// Bytes of memory that the counted buffers of a backup take.
///
/// Relaxed everywhere: the counters count, and order nothing.
#[derive(Default)]
pub(crate) struct BufferBytes {
    /// Bytes written to.
    touched: AtomicU64,
    /// Bytes allocated.
    reserved: AtomicU64,
}

impl BufferBytes {
    /// Bytes that the buffers can have resident now.
    pub(crate) fn bytes(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    /// Bytes allocated for the buffers.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}

/// A buffer of fixed capacity that starts at a multiple of [`BLOCK_BYTES`] in memory.
pub(crate) struct Buffer {
    storage: Vec<u8>,
    start: usize,
    length: usize,
    capacity: usize,
    /// Bytes from `start` on that were ever written to: the resident part of a large allocation.
    touched: usize,
    /// The counter of the buffer's bytes (A2); `None`: the buffer is not counted.
    held: Option<Arc<BufferBytes>>,
}

impl Buffer {
    /// An empty buffer for at least this many bytes, rounded up to whole blocks. Memory is touched
    /// as it is used.
    pub(crate) fn with_capacity(bytes: usize) -> Buffer {
        let capacity = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let storage = vec![0; capacity + BLOCK];
        let start = storage.as_ptr().align_offset(BLOCK);
        // In theory `align_offset` may fail; a start of 0 then only costs a copy later.
        let start = if start < BLOCK { start } else { 0 };
        Buffer {
            storage,
            start,
            length: 0,
            capacity,
            touched: 0,
            held: None,
        }
    }

    /// As [`with_capacity`](Self::with_capacity), counted by `held`.
    pub(crate) fn counted(bytes: usize, held: &Arc<BufferBytes>) -> Buffer {
        let mut buffer = Buffer::with_capacity(bytes);
        buffer.count(held);
        buffer
    }

    /// Makes `held` count the buffer, if no other counter does.
    pub(crate) fn count(&mut self, held: &Arc<BufferBytes>) {
        if self.held.is_none() {
            held.touched
                .fetch_add(self.touched as u64, Ordering::Relaxed);
            held.reserved
                .fetch_add(self.storage.len() as u64, Ordering::Relaxed);
            self.held = Some(held.clone());
        }
    }

    /// Bytes before `end` are about to be written to.
    fn touch(&mut self, end: usize) {
        if let Some(more) = end.checked_sub(self.touched) {
            self.touched = end;
            if let Some(held) = &self.held {
                held.touched.fetch_add(more as u64, Ordering::Relaxed);
            }
        }
    }

    /// Moves to a larger allocation.
    fn replace(&mut self, capacity: usize, keep: bool) {
        let mut larger = Buffer::with_capacity(capacity);
        if let Some(held) = &self.held {
            larger.count(held);
        }
        if keep {
            larger.extend(self.bytes());
        }
        *self = larger; // A1: a new start for a new allocation
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
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

    /// Appends; the buffer is replaced by a larger one if necessary.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end > self.capacity {
            self.replace(end.max(self.capacity * 2), true);
        }
        self.touch(end);
        self.storage[self.start + self.length..self.start + end].copy_from_slice(bytes);
        self.length = end;
    }

    /// Appends zeros until the length is a multiple of `unit`.
    pub(crate) fn pad(&mut self, unit: usize) {
        let missing = self.length.next_multiple_of(unit) - self.length;
        self.extend(&[0; BLOCK][..missing]);
    }

    /// Sets the length, all bytes zero.
    pub(crate) fn resize_zeroed(&mut self, length: usize) {
        if length > self.capacity {
            self.replace(length, false);
        }
        self.touch(length);
        self.storage[self.start..self.start + length].fill(0);
        self.length = length;
    }

    /// Sets the length; the contents are to be overwritten.
    pub(crate) fn resize(&mut self, length: usize) {
        if length > self.capacity {
            self.replace(length, false);
        }
        self.touch(length);
        self.length = length;
    }

    /// Frees the memory and the contents if it takes more than `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.touched > most {
            self.replace(BLOCK, false);
        }
    }

    /// Drops bytes at the end.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Drops bytes at the front and moves the others there; into less memory, if most of it was
    /// dropped.
    pub(crate) fn drop_front(&mut self, bytes: usize) {
        assert!(bytes <= self.length, "drops no more than there is");
        let rest = self.length - bytes;
        if self.touched > SHRUNK_BYTES && rest < self.touched / 4 {
            let mut smaller = Buffer::with_capacity(rest);
            smaller.extend(&self.bytes()[bytes..]);
            if let Some(held) = &self.held {
                smaller.count(held);
            }
            *self = smaller; // A1: a new start for a new allocation
            return;
        }
        self.storage
            .copy_within(self.start + bytes..self.start + self.length, self.start);
        self.length -= bytes;
    }

    /// Writes zeros from the end to the end of its block.
    pub(crate) fn fill_last_block(&mut self) {
        let end = self.length.next_multiple_of(BLOCK);
        self.touch(end);
        self.storage[self.start + self.length..self.start + end].fill(0);
    }

    /// All bytes up to the end of the last block: the bytes for a device, after
    /// [`fill_last_block`](Self::fill_last_block).
    pub(crate) fn blocks(&self) -> &[u8] {
        let end = self.length.next_multiple_of(BLOCK);
        &self.storage[self.start..self.start + end]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            // A2
            held.touched
                .fetch_sub(self.touched as u64, Ordering::Relaxed);
            held.reserved
                .fetch_sub(self.storage.len() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_counted_once_and_taken_back() {
        let held = Arc::new(BufferBytes::default());
        let mut buffer = Buffer::counted(1 << 20, &held);
        assert_eq!(held.bytes(), 0, "a large allocation costs nothing yet");
        buffer.extend(&[1; 5000]);
        buffer.clear();
        buffer.extend(&[2; 6000]);
        assert_eq!(held.bytes(), 6000);
        buffer.fill_last_block();
        assert_eq!(held.bytes(), 8192);
        buffer.extend(&vec![3; 2 << 20]); // it moves
        assert_eq!(held.bytes(), 6000 + (2 << 20));
        let mut other = Buffer::with_capacity(10);
        other.extend(&[4; 10]);
        other.count(&held);
        other.count(&held);
        assert_eq!(held.bytes(), 6010 + (2 << 20));
        buffer.drop_front(6000 + (2 << 20) - 100);
        assert_eq!((held.bytes(), buffer.bytes()), (110, &[3; 100][..]));
        drop((buffer, other));
        assert_eq!((held.bytes(), held.reserved_bytes()), (0, 0));
    }

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
