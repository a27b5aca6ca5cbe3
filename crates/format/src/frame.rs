//! Frames: the permanent places of segment replicas, and two slots per frame that describe its
//! content.
//!
//! **Layout**: first the slots of all frames, two of 8192 bytes for each; then, from the next
//! multiple of 1 MiB on, the frames. A slot is a block of 4096 bytes and a block for the replica's
//! last bytes. Little endian:
//!
//! ```text
//! 0        4         6       7      8         16       24      32      40    48       52    56     60    64     4092     4096
//! +--------+---------+-------+------+---------+--------+-------+-------+-----+--------+-----+------+-----+------+--------+---------------+
//! | "DFRM" | version | state | kind | segment | log id | epoch | stamp | lsn | length | CRC | tail | CRC | zero | CRC32C | tail bytes, 0s|
//! |        |   u16   |  u8   |  u8  |   u64   |  u64   |  u64  |  u64  | u64 | certificate  | len. | of  |      |        |               |
//! |        |         |       |      |         |        |       |       |     |  u32   | u32 | u32  | tail|      |        |               |
//! +--------+---------+-------+------+---------+--------+-------+-------+-----+--------+-----+------+-----+------+--------+---------------+
//! ```
//!
//! **Invariants**
//! - P1: of two slots that match their CRC the one with the greater stamp counts. A slot is written
//!   only over the other one, and only after the data that it certifies are durable (docs/traps.md,
//!   trap 10).
//! - P2: the frame's data are `[0, length - tail)`; the last `tail` bytes of the replica are in the
//!   slot itself. So no block of data is ever written twice: bytes that do not fill a block wait in
//!   the slot.
//! - P3: the slot has the effect of every commit up to `lsn` (bytes that no certificate covered are
//!   left out), and all of these were durable when it was written. A frame belongs to the replica
//!   that was named last, by a slot or by a commit.

use duramen_base::ids::SegmentId;

use crate::bytes::{Writer, is_sealed, u8_at, u16_at, u32_at, u64_at};
use crate::certificate::Certificate;
use crate::segment::Kind;

/// Bytes of a slot: its own block and that of the tail.
pub const SLOT_BYTES: u64 = 8192;
/// Bytes of the slot's own block, and of the block for the tail.
pub const BLOCK_BYTES: usize = 4096;
/// Version of the layout.
pub const VERSION: u16 = 1;
const MAGIC: u32 = u32::from_le_bytes(*b"DFRM");
/// Frames start on a multiple of this many bytes.
const DATA_ALIGN_BYTES: u64 = 1 << 20;

/// Place of slot 0 or 1 of a frame, in bytes from the start of the frames.
pub fn slot_at(frame: u32, slot: usize) -> u64 {
    (u64::from(frame) * 2 + slot as u64) * SLOT_BYTES
}

/// Place of the first frame's data.
pub fn data_start(frames: u32) -> u64 {
    (u64::from(frames) * 2 * SLOT_BYTES).next_multiple_of(DATA_ALIGN_BYTES)
}

/// Place of a frame's data.
pub fn data_at(frame: u32, frames: u32, segment_bytes: u32) -> u64 {
    data_start(frames) + u64::from(frame) * u64::from(segment_bytes)
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The first part of a replica that was still growing when this was written.
    Open = 1,
    /// A whole replica.
    Closed = 2,
    /// No replica any more.
    Free = 3,
}

/// One slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub state: State,
    pub kind: Kind,
    pub segment: SegmentId,
    pub log: u64,
    pub epoch: u64,
    /// Grows with every slot written to this device (P1).
    pub stamp: u64,
    /// All commits up to this one are included (P3).
    pub lsn: u64,
    pub certificate: Certificate,
    /// Bytes of the replica in the slot's second block (P2); below 4096.
    pub tail_bytes: u32,
    /// CRC32C of these bytes.
    pub tail_crc: u32,
}

/// The reason why a block is not a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a slot takes 4096 bytes, {available} are there")]
    Truncated { available: usize },
    #[error("nothing was written here")]
    Blank,
    #[error("this is no frame slot")]
    Foreign,
    #[error("format version {found}, known up to {VERSION}")]
    Newer { found: u16 },
    #[error("a CRC32C does not match")]
    Checksum,
    #[error("a field makes no sense")]
    Field,
}

impl Slot {
    /// The slot's own block.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        Writer::new(&mut block)
            .u32(0, MAGIC)
            .u16(4, VERSION)
            .u8(6, self.state as u8)
            .u8(7, self.kind as u8)
            .u64(8, self.segment.0)
            .u64(16, self.log)
            .u64(24, self.epoch)
            .u64(32, self.stamp)
            .u64(40, self.lsn)
            .u32(48, self.certificate.length)
            .u32(52, self.certificate.crc)
            .u32(56, self.tail_bytes)
            .u32(60, self.tail_crc)
            .seal();
        block
    }

    /// Reads a slot's own block from untrusted bytes.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &[u8]) -> Result<Slot, Damage> {
        let block = bytes.get(..BLOCK_BYTES).ok_or(Damage::Truncated {
            available: bytes.len(),
        })?;
        if block.iter().all(|byte| *byte == 0) {
            return Err(Damage::Blank);
        }
        if u32_at(block, 0) != MAGIC {
            return Err(Damage::Foreign);
        }
        if !is_sealed(block) {
            return Err(Damage::Checksum);
        }
        let found = u16_at(block, 4);
        if found > VERSION {
            return Err(Damage::Newer { found });
        }
        let state = match u8_at(block, 6) {
            1 => State::Open,
            2 => State::Closed,
            3 => State::Free,
            _ => return Err(Damage::Field),
        };
        let slot = Slot {
            state,
            kind: Kind::from_number(u8_at(block, 7)).ok_or(Damage::Field)?,
            segment: SegmentId(u64_at(block, 8)),
            log: u64_at(block, 16),
            epoch: u64_at(block, 24),
            stamp: u64_at(block, 32),
            lsn: u64_at(block, 40),
            certificate: Certificate {
                length: u32_at(block, 48),
                crc: u32_at(block, 52),
            },
            tail_bytes: u32_at(block, 56),
            tail_crc: u32_at(block, 60),
        };
        let fits =
            (slot.tail_bytes as usize) < BLOCK_BYTES && slot.tail_bytes <= slot.certificate.length;
        if fits { Ok(slot) } else { Err(Damage::Field) }
    }

    /// Bytes of the replica in the frame itself (P2).
    pub fn data_bytes(&self) -> u32 {
        self.certificate.length - self.tail_bytes
    }

    /// True if these are the tail's bytes.
    pub fn tail_matches(&self, tail: &[u8]) -> bool {
        tail.get(..self.tail_bytes as usize)
            .is_some_and(|tail| crc32c::crc32c(tail) == self.tail_crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::assert_noticed;

    const EXAMPLE: Slot = Slot {
        state: State::Open,
        kind: Kind::Head,
        segment: SegmentId(0x0102),
        log: 0x11,
        epoch: 2,
        stamp: 3,
        lsn: 4,
        certificate: Certificate {
            length: 0x1005,
            crc: 0xdead_beef,
        },
        tail_bytes: 5,
        tail_crc: 0x0a0b_0c0d,
    };

    #[test]
    fn golden_bytes() {
        let block = EXAMPLE.encode();
        assert_eq!(
            &block[..64],
            b"DFRM\x01\0\x01\x01\x02\x01\0\0\0\0\0\0\x11\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
              \x04\0\0\0\0\0\0\0\x05\x10\0\0\xef\xbe\xad\xde\x05\0\0\0\x0d\x0c\x0b\x0a"
        );
        assert_eq!(block[4092..], crc32c::crc32c(&block[..4092]).to_le_bytes());
        assert_eq!(Slot::decode(&block), Ok(EXAMPLE));
        assert_eq!(EXAMPLE.data_bytes(), 0x1000);
        assert_eq!(Slot::decode(&[0; 4096]), Err(Damage::Blank));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        assert_noticed(&EXAMPLE.encode(), |bytes| Slot::decode(bytes).is_err());
    }

    #[test]
    fn slots_and_frames_never_overlap() {
        let (frames, segment_bytes) = (100, 2 << 20);
        assert_eq!(slot_at(99, 1) + SLOT_BYTES, 100 * 2 * SLOT_BYTES);
        assert!(data_at(0, frames, segment_bytes) >= slot_at(99, 1) + SLOT_BYTES);
        assert_eq!(
            data_at(1, frames, segment_bytes),
            data_at(0, frames, segment_bytes) + u64::from(segment_bytes)
        );
    }
}
