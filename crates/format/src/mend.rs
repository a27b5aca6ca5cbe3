//! Correction of one flipped bit by a CRC32C.
//!
//! Each bit of a piece changes its CRC32C in a way of its own: the difference between the stored
//! and the computed sum names the bit.
//!
//! **Invariants**
//! - M1: one flipped bit is found in pieces of less than 256 MiB, and put back exactly. (The period
//!   of the polynomial is 2^31 - 1 bits.)
//! - M2: two flipped bits are never mended: the polynomial has the factor x + 1, so the difference
//!   of two bits is never that of one. An even number of flips in one piece is noticed always.
//! - M3: three flipped bits, or other bytes, look like one flipped bit in about 4 of 2^32 cases per
//!   byte of the piece: 1 in 10 million for 100 bytes, 1 in 16,000 for 64 KiB. A second CRC32C over
//!   a longer piece with these bytes in it proves nothing more: it is linear, and fails to notice
//!   the same differences.
//! - M4: an entry whose flipped bit belongs to its shape (kind, flags, lengths) has another length
//!   with and without it. So each of these bits is tried; if two different bits explain the sum,
//!   nothing is mended.
//! - M5: bytes that are not mended are left as they were.
//!
//! Same method: the header error control of ATM corrects one bit by a CRC of 8 bits.

use crate::bytes::is_sealed;
use crate::checksum::crc32c;
use crate::entry::{self, Damage, Entry, WIDE_HEADER_BYTES};
use crate::segment::HEADER_BYTES;
use std::fmt;

/// The polynomial of CRC32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Place of an entry's CRC32C.
const CRC_AT: usize = 8;
const CRC_BYTES: usize = 4;
/// Longest piece that is mended although it may be damaged in another way, as bytes on a disk may
/// be: M3.
pub const SURE_BYTES_MAX: usize = 64 << 10;
/// Characters of a key in a message.
const KEY_CHARS_MAX: usize = 64;

/// A bit that was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flip {
    /// From the first byte of the piece.
    pub byte: usize,
    /// 0: the lowest bit of the byte.
    pub bit: u8,
}

impl Flip {
    fn apply(self, bytes: &mut [u8]) {
        if let Some(byte) = bytes.get_mut(self.byte) {
            *byte ^= 1 << self.bit;
        }
    }

    /// The flip that changes a piece of `length` bytes so that its sum differs by `difference`.
    fn of_sum(difference: u32, length: usize) -> Option<Flip> {
        let mut of_bit = POLYNOMIAL; // of the last bit; each bit in front of it is one step further
        for index in (0..8 * length).rev() {
            if of_bit == difference {
                let (byte, bit) = (index / 8, (index % 8) as u8);
                return Some(Flip { byte, bit });
            }
            of_bit = (of_bit >> 1) ^ if of_bit & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        None
    }

    /// The flip within a little-endian sum at `at` that was stored with this difference.
    fn in_sum(difference: u32, at: usize) -> Option<Flip> {
        difference.is_power_of_two().then(|| Flip {
            byte: at + difference.trailing_zeros() as usize / 8,
            bit: (difference.trailing_zeros() % 8) as u8,
        })
    }
}

/// Puts back the flipped bit of the damaged entry at the start of `bytes`, which may be longer than
/// it. `None`: one bit does not explain the damage, or the entry is sound.
pub fn entry(bytes: &mut [u8]) -> Option<Flip> {
    let damage = entry::parse(bytes).err()?;
    let mut found = None;
    let mut count = 0;
    let mut meet = |flip: Flip, bytes: &mut [u8]| {
        flip.apply(bytes);
        let is_sound = entry::parse(bytes).is_ok();
        flip.apply(bytes);
        if is_sound && found != Some(flip) {
            found = Some(flip);
            count += 1;
        }
    };
    let of_shape = [0..1, 13..18, 20..WIDE_HEADER_BYTES]; // M4
    for byte in of_shape.into_iter().flatten() {
        if byte < bytes.len() {
            (0..8).for_each(|bit| meet(Flip { byte, bit }, bytes));
        }
    }
    if let Damage::Checksum { stored, computed } = damage {
        let difference = stored ^ computed;
        let length = entry::parse_again(bytes).map_or(0, |shape| shape.padded_bytes);
        let in_sum = Flip::in_sum(difference, CRC_AT);
        if let Some(flip) = in_sum.or_else(|| Flip::of_sum(difference, length)) {
            meet(flip, bytes);
        }
    }
    let flip = found.filter(|_| count == 1)?;
    flip.apply(bytes);
    Some(flip)
}

/// As [`entry::parse`]; one flipped bit of the entry is put back first, and told, if the entry has
/// at most `bytes_max` bytes.
///
/// # Errors
/// As there; the bytes are unchanged.
#[inline]
pub fn parse(bytes: &mut [u8], bytes_max: usize) -> Result<(Entry<'_>, Option<Flip>), Damage> {
    let flip = match entry::parse(bytes) {
        Ok(_) => None,
        Err(damage) => Some(entry_within(bytes, bytes_max).ok_or(damage)?),
    };
    // It has just been verified.
    entry::parse_again(bytes).map(|entry| (entry, flip))
}

#[cold]
fn entry_within(bytes: &mut [u8], bytes_max: usize) -> Option<Flip> {
    let flip = entry(bytes)?;
    if entry::parse_again(bytes).is_ok_and(|entry| entry.padded_bytes <= bytes_max) {
        return Some(flip);
    }
    flip.apply(bytes); // M5
    None
}

/// Puts back the flipped bit of a damaged block whose last four bytes are the CRC32C of all others.
pub fn block(block: &mut [u8]) -> Option<Flip> {
    if is_sealed(block) {
        return None;
    }
    let (body, sum) = block.split_last_chunk::<CRC_BYTES>()?;
    let (difference, length) = (u32::from_le_bytes(*sum) ^ crc32c(body), body.len());
    let flip = Flip::in_sum(difference, length).or_else(|| Flip::of_sum(difference, length))?;
    flip.apply(block);
    Some(flip)
}

/// Puts back the flipped bit of bytes that have another CRC32C than this one, which is good.
pub fn body(bytes: &mut [u8], crc: u32) -> Option<Flip> {
    let flip = Flip::of_sum(crc ^ crc32c(bytes), bytes.len())?;
    flip.apply(bytes);
    Some(flip)
}

/// A bit of a segment that was put back, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Place of the byte in the segment.
    pub byte: usize,
    pub bit: u8,
    /// Table and key of its entry; `None`: it was in the segment's header.
    pub key: Option<(u32, String)>,
}

impl Mended {
    /// A bit of an entry that begins at `at`.
    pub fn of(at: usize, entry: &Entry<'_>, flip: Flip) -> Mended {
        Mended {
            byte: at + flip.byte,
            bit: flip.bit,
            key: Some((entry.table, key_text(entry.key))),
        }
    }
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (byte, bit) = (self.byte, self.bit);
        write!(f, "byte {byte}: bit {bit} had flipped and was put back ")?;
        match &self.key {
            Some((table, key)) => write!(f, "(key `{key}` of table {table})"),
            None => write!(f, "(in the header)"),
        }
    }
}

/// A key in a message: its first characters, without control characters.
pub fn key_text(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(&key[..key.len().min(4 * KEY_CHARS_MAX)]);
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(KEY_CHARS_MAX).map(shown).collect();
    if text.chars().nth(KEY_CHARS_MAX).is_some() || key.len() > 4 * KEY_CHARS_MAX {
        short.push('…');
    }
    short
}

/// Puts back the flipped bits of a data segment: at most one of its header, and one of each entry
/// of at most `entry_bytes_max` bytes.
///
/// # Errors
/// The place of the first damage that one bit does not explain. Bits before it are put back.
pub fn segment(bytes: &mut [u8], entry_bytes_max: usize) -> Result<Vec<Mended>, usize> {
    let mut mended = Vec::new();
    let header = bytes.get_mut(..HEADER_BYTES).ok_or(0usize)?;
    if !is_sealed(header) {
        let Flip { byte, bit } = block(header).ok_or(0usize)?;
        let key = None;
        mended.push(Mended { byte, bit, key });
    }
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let (entry, flip) = parse(rest, entry_bytes_max).map_err(|_| at)?;
        mended.extend(flip.map(|flip| Mended::of(at, &entry, flip)));
        at += entry.padded_bytes;
    }
    Ok(mended)
}

#[cfg(test)]
mod tests;
