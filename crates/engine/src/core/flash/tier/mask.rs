//! Masks of writes to the device: each write goes under a number of its own, so that no other data
//! that was ever there passes for it.
//!
//! A device may return data that it was given earlier, because a write was lost or went to another
//! place. Such bytes are whole entries with right checksums, of other keys (so that a key would
//! look absent) or of an older value. So a segment is written xored with words that follow from a
//! seed of that one write and from the place on the device. Read with any other seed, or at any
//! other place, no entry has a right checksum (except one in 2^32).
//!
//! **Invariants**
//! - F7: no seed is used for two writes of this process, nor, except by a chance of 2^-64, by
//!   another process for the same file.

use duramen_base::random::mix;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BYTES: usize = 8;
/// An odd number whose multiples differ in all bits [Fibonacci hashing].
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Gives out masks.
pub(crate) struct Masks {
    /// A random number of this process.
    nonce: u64,
    given: AtomicU64,
}

/// The mask of one write of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask(pub(crate) u64);

impl Masks {
    pub(crate) fn new() -> Masks {
        Masks {
            nonce: RandomState::new().build_hasher().finish(),
            given: AtomicU64::new(0),
        }
    }

    /// A mask that no write had before (F7).
    pub(crate) fn next(&self) -> Mask {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        Mask(mix(self.nonce.wrapping_add(number.wrapping_mul(STRIDE))))
    }
}

impl Mask {
    #[inline(always)]
    fn word(self, number: u64) -> u64 {
        self.0.wrapping_add(number.wrapping_mul(STRIDE))
    }

    /// Masks words of the device from byte `offset` on, a multiple of 8, or removes their mask.
    /// Leaves out a last part that is shorter than a word.
    pub(crate) fn words(self, offset: u64, bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        debug_assert!(offset.is_multiple_of(WORD_BYTES as u64));
        let first = offset / WORD_BYTES as u64;
        let (words, _) = bytes.as_chunks::<WORD_BYTES>();
        let numbered = (first..).zip(words);
        numbered.map(move |(number, word)| self.meant(number, *word))
    }

    /// Masks a word of the device, or removes its mask.
    #[inline(always)]
    fn meant(self, number: u64, word: [u8; WORD_BYTES]) -> u64 {
        u64::from_ne_bytes(word) ^ self.word(number)
    }

    /// Fills `to` with the masked bytes of `from`, of the same length, for byte `offset` of the
    /// device.
    pub(crate) fn copy(self, offset: u64, from: &[u8], to: &mut [u8]) {
        assert!(from.len() == to.len() && from.len().is_multiple_of(WORD_BYTES));
        let (words, _) = to.as_chunks_mut::<WORD_BYTES>();
        for (word, masked) in words.iter_mut().zip(self.words(offset, from)) {
            *word = masked.to_ne_bytes();
        }
    }

    /// Removes the mask from bytes that were read at byte `offset` of the device.
    pub(crate) fn remove(self, offset: u64, bytes: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(WORD_BYTES as u64));
        let first = offset / WORD_BYTES as u64;
        let (words, _) = bytes.as_chunks_mut::<WORD_BYTES>();
        for (number, word) in (first..).zip(words) {
            *word = self.meant(number, *word).to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::SegmentId;
    use duramen_format::entry::{self, NewObject};

    fn object() -> Vec<u8> {
        let object = NewObject {
            table: 0,
            version: 7,
            expires_at_ms: None,
            key: b"key:000000000001",
            value: &[9; 100],
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let mut bytes = vec![0; object.padded_bytes()];
        object.write_to(&mut bytes);
        bytes
    }

    #[test]
    fn what_was_written_is_read_with_its_own_mask_at_its_own_place_only() {
        let (masks, meant) = (Masks::new(), object());
        let (own, other) = (masks.next(), masks.next());
        assert_ne!(own, other);
        let mut written = vec![0; meant.len()];
        own.copy(4096, &meant, &mut written);
        let read = |mask: Mask, offset| {
            let mut bytes = written.clone();
            mask.remove(offset, &mut bytes);
            let words: Vec<u8> = mask
                .words(offset, &written)
                .flat_map(u64::to_ne_bytes)
                .collect();
            assert_eq!(bytes, words);
            bytes
        };
        assert_eq!(read(own, 4096), meant);
        assert!(entry::parse(&read(own, 4096)).is_ok());
        assert!(entry::parse(&read(other, 4096)).is_err());
        assert!(entry::parse(&read(own, 4096 + 8)).is_err());
        assert!(entry::parse(&meant).is_ok() && entry::parse(&written).is_err());
    }
}
