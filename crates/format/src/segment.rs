//! The first 64 bytes of every segment: its id, its kind and its writer.
//!
//! **Layout** (little endian):
//!
//! ```text
//! 0        4         6      7      8         16        24      28         32              60       64
//! +--------+---------+------+------+---------+---------+-------+----------+---------------+--------+
//! | "DSEG" | version | kind |  0   | segment | log id  | head  | capacity | zero          | CRC32C |
//! |        |   u16   |  u8  |      |   u64   |   u64   |  u32  |   u32    |               |        |
//! +--------+---------+------+------+---------+---------+-------+----------+---------------+--------+
//! ```
//!
//! **Invariants**
//! - S1: the CRC32C covers bytes 0..60; a header that does not match it is invalid.
//! - S2: the same bytes are in the memory window, in the WAL and in the frame, offset for offset.
//! - S3: entries start at offset 64 and fill the segment without gaps up to the certified length.

use duramen_base::ids::SegmentId;
use serde::{Deserialize, Serialize};

use crate::bytes::{Writer, is_sealed, u8_at, u16_at, u32_at, u64_at};

/// Bytes of the header; the first entry starts here.
pub const HEADER_BYTES: usize = 64;
/// Version of the layout of segments and entries: since 2 an object may be typed, since 3 an entry
/// may be a part. A reader refuses greater ones (docs/data-on-disk.md).
pub const VERSION: u16 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"DSEG");

/// The content of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// Appends of a data head.
    Head = 1,
    /// Entries of other segments that the cleaner kept.
    Survivor = 2,
    /// Records of the control log.
    Control = 3,
}

impl Kind {
    /// The kind stored as this number.
    pub fn from_number(number: u8) -> Option<Kind> {
        [Kind::Head, Kind::Survivor, Kind::Control]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }

    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Head => "head",
            Kind::Survivor => "survivor",
            Kind::Control => "control",
        }
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub segment: SegmentId,
    /// The server whose log this is.
    pub log: u64,
    /// Number of the head that wrote it; 0 in other kinds.
    pub head: u32,
    /// Maximum bytes of the segment.
    pub capacity: u32,
}

/// The reason why bytes are not a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a segment's header takes 64 bytes, {available} are there")]
    Truncated { available: usize },
    #[error("no segment starts here")]
    NotASegment,
    #[error("the segment's header does not match its CRC32C")]
    Checksum,
    #[error(
        "the segment has format version {found}, this program knows versions up to {VERSION}: use a \
         newer Duramen"
    )]
    Newer { found: u16 },
    #[error("unknown kind of segment {found}")]
    Kind { found: u8 },
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        self.encode_of(VERSION)
    }

    fn encode_of(&self, version: u16) -> [u8; HEADER_BYTES] {
        let mut block = [0; HEADER_BYTES];
        Writer::new(&mut block)
            .u32(0, MAGIC)
            .u16(4, version)
            .u8(6, self.kind as u8)
            .u64(8, self.segment.0)
            .u64(16, self.log)
            .u32(24, self.head)
            .u32(28, self.capacity)
            .seal();
        block
    }

    /// Reads the header at the start of untrusted `bytes`.
    ///
    /// # Errors
    /// [`Damage`]; no part of the segment may be used then.
    pub fn decode(bytes: &[u8]) -> Result<Header, Damage> {
        let block = bytes.get(..HEADER_BYTES).ok_or(Damage::Truncated {
            available: bytes.len(),
        })?;
        if u32_at(block, 0) != MAGIC {
            return Err(Damage::NotASegment);
        }
        if !is_sealed(block) {
            return Err(Damage::Checksum); // S1
        }
        let found = u16_at(block, 4);
        if found > VERSION {
            return Err(Damage::Newer { found });
        }
        let found = u8_at(block, 6);
        Ok(Header {
            kind: Kind::from_number(found).ok_or(Damage::Kind { found })?,
            segment: SegmentId(u64_at(block, 8)),
            log: u64_at(block, 16),
            head: u32_at(block, 24),
            capacity: u32_at(block, 28),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::assert_noticed;

    const EXAMPLE: Header = Header {
        kind: Kind::Survivor,
        segment: SegmentId(0x0102),
        log: 0x1122_3344_5566_7788,
        head: 3,
        capacity: 0x0080_0000,
    };

    #[test]
    fn golden_bytes() {
        let block = EXAMPLE.encode();
        assert_eq!(
            &block[..32],
            b"DSEG\x03\0\x02\0\x02\x01\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\x03\0\0\0\0\0\x80\0"
        );
        assert_eq!(block[32..60], [0; 28]);
        assert_eq!(block[60..], crc32c::crc32c(&block[..60]).to_le_bytes());
        assert_eq!(Header::decode(&block), Ok(EXAMPLE));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        assert_noticed(&EXAMPLE.encode(), |bytes| Header::decode(bytes).is_err());
    }

    #[test]
    fn newer_versions_are_named_and_older_ones_are_read() {
        for version in 1..=VERSION {
            assert_eq!(Header::decode(&EXAMPLE.encode_of(version)), Ok(EXAMPLE));
        }
        for found in [VERSION + 1, 9, u16::MAX] {
            let block = EXAMPLE.encode_of(found);
            assert_eq!(Header::decode(&block), Err(Damage::Newer { found }));
        }
        let text = Damage::Newer { found: 9 }.to_string();
        assert_eq!(
            text,
            "the segment has format version 9, this program knows versions up to 3: use a newer \
             Duramen"
        );
    }
}
