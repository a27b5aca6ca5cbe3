//! AES-256-XTS of sectors: as many bytes of cipher text as of plain text, at the same place.
//!
//! **Invariants**
//! - X1: the data unit is a sector of 512 bytes, its number the sector's number in the file. So a
//!   sector is encrypted and decrypted by itself: a torn write, a read from the middle of a file
//!   and a write of one block mean the same as without encryption.
//! - X2: a sector of zeros on the medium was never written: it is read as zeros. A written sector
//!   is encrypted to zeros with a probability of 2^-4096.
//! - X3: there is no check that the bytes are those that were written: the checksums inside find
//!   damage.
//!
//! Paper: IEEE 1619-2018.

use crate::error::Error;
use crate::guarded::Guarded;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Aes256Enc, Block};

/// Bytes of a data unit: a medium writes so many as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of the two keys.
pub(crate) const KEYS_BYTES: usize = 64;
const BLOCK_BYTES: usize = 16;
const BLOCKS: usize = SECTOR_BYTES / BLOCK_BYTES;
/// Sectors that are encrypted together: AES is fastest for 64 blocks and more.
const GROUP: usize = 8;

type Masks = [u128; BLOCKS];

/// The cipher of one file. Any thread may use it.
pub struct SectorCipher(Guarded<Keys>);

struct Keys {
    data: Aes256,
    /// Encrypts the numbers of sectors.
    numbers: Aes256Enc,
}

impl SectorCipher {
    /// # Errors
    /// [`Error::System`]: no memory.
    pub(crate) fn new(keys: &[u8; KEYS_BYTES]) -> Result<SectorCipher, Error> {
        let (data, numbers) = keys.split_at(KEYS_BYTES / 2);
        let make = || Keys {
            data: Aes256::new_from_slice(data).expect("32 bytes"),
            numbers: Aes256Enc::new_from_slice(numbers).expect("32 bytes"),
        };
        Guarded::new(make).map(SectorCipher)
    }

    /// Encrypts whole sectors from byte `at` of the file on.
    ///
    /// # Panics
    /// If the lengths differ, or are no whole sectors.
    pub fn encrypt(&self, at: u64, from: &[u8], into: &mut [u8]) {
        assert_eq!(from.len(), into.len(), "encryption keeps the length");
        let mut first = first_sector(at, from);
        into.copy_from_slice(from);
        let (into, _) = into.as_chunks_mut::<SECTOR_BYTES>();
        for group in into.chunks_mut(GROUP) {
            let masks = self.masks(first);
            mask(group, &masks);
            self.0.data.encrypt_blocks(blocks(group));
            mask(group, &masks);
            first += GROUP as u64;
        }
    }

    /// Decrypts whole sectors from byte `at` of the file on, in their place. Sectors of zeros stay
    /// (X2).
    ///
    /// # Panics
    /// If these are no whole sectors.
    pub fn decrypt(&self, at: u64, bytes: &mut [u8]) {
        let mut first = first_sector(at, bytes);
        let (sectors, _) = bytes.as_chunks_mut::<SECTOR_BYTES>();
        for group in sectors.chunks_mut(GROUP) {
            let mut blank = [false; GROUP];
            for (blank, sector) in blank.iter_mut().zip(&*group) {
                *blank = is_zero(sector);
            }
            if !blank[..group.len()].iter().all(|is| *is) {
                let masks = self.masks(first);
                mask(group, &masks);
                self.0.data.decrypt_blocks(blocks(group));
                mask(group, &masks);
                for (sector, _) in group.iter_mut().zip(blank).filter(|(_, blank)| *blank) {
                    sector.fill(0); // X2: it was never written
                }
            }
            first += GROUP as u64;
        }
    }

    /// The masks of a group of sectors.
    fn masks(&self, first: u64) -> [Masks; GROUP] {
        self.first_masks(first).map(masks)
    }

    /// The first masks of a group of sectors: their encrypted numbers.
    fn first_masks(&self, first: u64) -> [u128; GROUP] {
        let number = |n| Block::from(u128::from(first + n as u64).to_le_bytes());
        let mut blocks: [Block; GROUP] = std::array::from_fn(number);
        self.0.numbers.encrypt_blocks(&mut blocks);
        blocks.map(|block| u128::from_le_bytes(block.into()))
    }
}

/// The number of the first sector.
fn first_sector(at: u64, bytes: &[u8]) -> u64 {
    assert!(
        at.is_multiple_of(SECTOR_BYTES as u64) && bytes.len().is_multiple_of(SECTOR_BYTES),
        "whole sectors are encrypted (X1)"
    );
    at / SECTOR_BYTES as u64
}

fn is_zero(sector: &[u8; SECTOR_BYTES]) -> bool {
    let (words, _) = sector.as_chunks::<BLOCK_BYTES>();
    // For most sectors the first word gives the answer.
    words.iter().all(|word| u128::from_le_bytes(*word) == 0)
}

/// The masks of a sector's blocks: each is the last one times alpha, in GF(2^128).
fn masks(start: u128) -> Masks {
    const REDUCTION: u128 = 0x87;
    let mut masks = [start; BLOCKS];
    for n in 1..BLOCKS {
        let last = masks[n - 1];
        masks[n] = (last << 1) ^ ((last >> 127) * REDUCTION);
    }
    masks
}

/// Exclusive-or of each block with its mask.
fn mask(sectors: &mut [[u8; SECTOR_BYTES]], masks: &[Masks; GROUP]) {
    for (sector, masks) in sectors.iter_mut().zip(masks) {
        let (words, _) = sector.as_chunks_mut::<BLOCK_BYTES>();
        for (word, mask) in words.iter_mut().zip(masks) {
            *word = (u128::from_le_bytes(*word) ^ mask).to_le_bytes();
        }
    }
}

fn blocks(sectors: &mut [[u8; SECTOR_BYTES]]) -> &mut [Block] {
    let (words, _) = sectors.as_flattened_mut().as_chunks_mut::<BLOCK_BYTES>();
    Block::cast_slice_from_core_mut(words)
}

#[cfg(test)]
mod tests;
