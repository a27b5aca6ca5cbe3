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
use crate::control::{self, Record};
use crate::entry::{self, Damage, Entry, WIDE_HEADER_BYTES};
use crate::segment::{self, HEADER_BYTES, Header, Kind};
use duramen_base::ids::{PartKey, TableId};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// The polynomial of CRC32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Place of the CRC32C of an entry, and of a record of the control log.
const CRC_AT: usize = 8;
const CRC_BYTES: usize = 4;
/// Longest entry that is mended where other damage is as likely as one flipped bit, and there may
/// be another copy, as on a disk: M3.
pub const SURE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of characters of a key in a message.
const KEY_CHARS_MAX: usize = 64;

/// A bit that was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flip {
    /// The byte, counted from the first one of the piece.
    pub byte: usize,
    /// The bit of the byte; 0 is the lowest.
    pub bit: u8,
}

impl Flip {
    /// Flips the bit of the damaged entry at the start of `bytes`; returns whether the entry is
    /// sound then. If it is not, the bytes are left as they were.
    pub fn restores(self, bytes: &mut [u8]) -> bool {
        self.apply(bytes);
        let is_sound = entry::parse(bytes).is_ok();
        if !is_sound {
            self.apply(bytes);
        }
        is_sound
    }

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
    let of_sum = match entry::parse(bytes).err()? {
        Damage::Checksum { stored, computed } => {
            let length = entry::parse_again(bytes).map_or(0, |shape| shape.padded_bytes);
            Some((stored ^ computed, length))
        }
        _ => None,
    };
    let of_shape = [0..1, 13..18, 20..WIDE_HEADER_BYTES];
    only_flip(bytes, of_shape, of_sum, |bytes| entry::parse(bytes).is_ok())
}

/// As [`entry()`], for a record of the control log.
pub fn record(bytes: &mut [u8]) -> Option<Flip> {
    if Record::decode(bytes).is_ok() {
        return None;
    }
    let is_sound = |bytes: &[u8]| Record::decode(bytes).is_ok();
    let of_sum = control::sum_difference(bytes);
    only_flip(bytes, [control::LENGTH_AT], of_sum, is_sound)
}

/// Puts back the only flip that makes the piece at the start of `bytes` sound (M4). `of_shape`:
/// bytes that give its length. `of_sum`: the difference of its sums, and its length.
fn only_flip<const N: usize>(
    bytes: &mut [u8],
    of_shape: [Range<usize>; N],
    of_sum: Option<(u32, usize)>,
    is_sound: impl Fn(&[u8]) -> bool,
) -> Option<Flip> {
    let mut found = BTreeSet::new();
    let mut meet = |flip: Flip, bytes: &mut [u8]| {
        flip.apply(bytes);
        if is_sound(bytes) {
            found.insert(flip);
        }
        flip.apply(bytes);
    };
    for byte in of_shape.into_iter().flatten() {
        if byte < bytes.len() {
            (0..8).for_each(|bit| meet(Flip { byte, bit }, bytes));
        }
    }
    if let Some((difference, length)) = of_sum {
        let in_sum = Flip::in_sum(difference, CRC_AT);
        if let Some(flip) = in_sum.or_else(|| Flip::of_sum(difference, length)) {
            meet(flip, bytes);
        }
    }
    let flip = found.pop_first().filter(|_| found.is_empty())?;
    flip.apply(bytes);
    Some(flip)
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

/// Puts back the flipped bit of bytes whose CRC32C differs from `crc`, which is known to be right.
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
    /// Table and key of its entry, as [`key_in`] shows it; `None`: it was in the segment's header,
    /// or in a record of the control log.
    pub key: Option<(u32, String)>,
}

impl Mended {
    /// A bit of an entry that begins at `at`.
    pub fn of(at: usize, entry: &Entry<'_>, flip: Flip) -> Mended {
        Mended {
            byte: at + flip.byte,
            bit: flip.bit,
            key: Some((entry.table, key_in(entry.table, entry.key))),
        }
    }
}

impl fmt::Display for Mended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (byte, bit) = (self.byte, self.bit);
        write!(f, "byte {byte}: bit {bit} had flipped and was put back ")?;
        match &self.key {
            Some((table, key)) if TableId(*table).is_parts() => {
                write!(f, "(part {key} of table {})", TableId(*table).whole())
            }
            Some((table, key)) => write!(f, "(key `{key}` of table {table})"),
            None => write!(f, "(in the segment's header, or a control record)"),
        }
    }
}

/// The key of an entry of this table in a message: that of a part is shown as home and number.
pub fn key_in(table: u32, key: &[u8]) -> String {
    let part = PartKey::of(TableId(table), key);
    part.map_or_else(|| key_text(key), |part| part.to_string())
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

/// Puts back the flipped bit of the damaged entry that begins at `at` of a segment, if it has at
/// most `bytes_max` bytes. `None`: as [`entry()`].
#[cold]
pub fn entry_at(segment: &mut [u8], at: usize, bytes_max: usize) -> Option<Mended> {
    let bytes = segment.get_mut(at..)?;
    let flip = entry(bytes)?;
    match entry::parse_again(bytes) {
        Ok(entry) if entry.padded_bytes <= bytes_max => Some(Mended::of(at, &entry, flip)),
        _ => {
            flip.apply(bytes); // M5: not mended, so flipped back
            None
        }
    }
}

/// As [`Header::decode`]; one flipped bit of the header is put back first, and added to `mended`.
///
/// # Errors
/// Those of [`Header::decode`].
pub fn header(segment: &mut [u8], mended: &mut Vec<Mended>) -> Result<Header, segment::Damage> {
    let decoded = Header::decode(segment);
    if decoded.is_err()
        && let Some(Flip { byte, bit }) = segment.get_mut(..HEADER_BYTES).and_then(block)
    {
        let key = None;
        mended.push(Mended { byte, bit, key });
        return Header::decode(segment);
    }
    decoded
}

/// Puts back the flipped bits of a segment: at most one of its header, and one of each entry or
/// record of at most `bytes_max` bytes.
///
/// # Errors
/// The place of the first damage that one bit does not explain. Bits before it are put back.
pub fn segment(bytes: &mut [u8], kind: Kind, bytes_max: usize) -> Result<Vec<Mended>, usize> {
    let mut mended = Vec::new();
    header(bytes, &mut mended).map_err(|_| 0usize)?;
    let mut at = HEADER_BYTES;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let length = match kind {
            Kind::Control => Record::decode(rest).ok().map(|(_, length)| length),
            Kind::Head | Kind::Survivor => entry::parse(rest).ok().map(|entry| entry.padded_bytes),
        };
        match length {
            Some(length) => at += length,
            None if kind == Kind::Control => mended.push(record_at(bytes, at).ok_or(at)?),
            None => mended.push(entry_at(bytes, at, bytes_max).ok_or(at)?),
        }
    }
    Ok(mended)
}

/// As [`entry_at`], for a record of the control log.
#[cold]
fn record_at(segment: &mut [u8], at: usize) -> Option<Mended> {
    let flip = record(segment.get_mut(at..)?)?;
    Some(Mended {
        byte: at + flip.byte,
        bit: flip.bit,
        key: None,
    })
}

#[cfg(test)]
mod tests;
