//! Hot keys and segments: hints for the next start, and for servers that recover a member's data,
//! in blocks that are independent of each other.
//!
//! **Layout** (little endian; blocks of 4096 bytes):
//!
//! ```text
//! 0        4         6      7      8        16           24      28      32                    4092
//! +--------+---------+------+------+--------+------------+-------+-------+--------+------+------+--------+
//! | "DHOT" | version | kind | heat | server | written ms | table | count | words u64 ... | zero | CRC32C |
//! |        |   u16   |  u8  |  u8  |  u64   |    u64     |  u32  |  u32  |               |      |        |
//! +--------+---------+------+------+--------+------------+-------+-------+--------+------+------+--------+
//! ```
//!
//! **Invariants**
//! - T1: a block is valid if its CRC32C (bytes 0..4092) matches, whatever happened to others;
//!   nothing in a file of blocks depends on another block.
//! - T2: no content of a block is needed, or used without a check: it may be old, or of another
//!   store.

use crate::bytes::{Writer, is_sealed, u8_at, u16_at, u32_at, u64_at};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Maximum bytes that a member sends to others: whole blocks.
pub const HINT_BYTES_MAX: usize = 256 * BLOCK_BYTES;
/// Maximum words of a block.
pub const WORDS_MAX: usize = (BLOCK_BYTES - WORDS_AT - 4) / 8;
const VERSION: u16 = 1;
const MAGIC: &[u8; 4] = b"DHOT";
const WORDS_AT: usize = 32;

/// The meaning of a block's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ids of segments that were in memory; first those that it would have kept longest.
    Segments = 1,
    /// Hashes of keys that were read often.
    Keys = 2,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: Kind,
    /// Number of reads of the keys, in steps that are only good for comparison.
    pub heat: u8,
    /// The server that the hints are for.
    pub server: u64,
    /// Milliseconds since the Unix epoch.
    pub written_ms: u64,
    /// Table of the keys.
    pub table: u32,
    pub words: Vec<u64>,
}

/// The reason why bytes are no block. In each case the block is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a block of hints takes 4096 bytes, {available} are there")]
    Truncated { available: usize },
    #[error("it does not start with DHOT")]
    Foreign,
    #[error("format version {found}")]
    Version { found: u16 },
    #[error("its CRC32C does not match")]
    Checksum,
    #[error("a field makes no sense")]
    Field,
}

impl Block {
    /// The block's bytes.
    ///
    /// # Panics
    /// If it has more words than [`WORDS_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.words.len() <= WORDS_MAX, "too many words for a block");
        let mut block = vec![0; BLOCK_BYTES];
        let mut writer = Writer::new(&mut block);
        writer
            .put(0, MAGIC)
            .u16(4, VERSION)
            .u8(6, self.kind as u8)
            .u8(7, self.heat)
            .u64(8, self.server)
            .u64(16, self.written_ms)
            .u32(24, self.table)
            .u32(28, self.words.len() as u32);
        for (n, word) in self.words.iter().enumerate() {
            writer.u64(WORDS_AT + 8 * n, *word);
        }
        writer.seal();
        block
    }

    /// Reads a block from untrusted bytes.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &[u8]) -> Result<Block, Damage> {
        let block = bytes.get(..BLOCK_BYTES).ok_or(Damage::Truncated {
            available: bytes.len(),
        })?;
        if !block.starts_with(MAGIC) {
            return Err(Damage::Foreign);
        }
        if !is_sealed(block) {
            return Err(Damage::Checksum); // T1
        }
        let found = u16_at(block, 4);
        if found != VERSION {
            return Err(Damage::Version { found });
        }
        let kind = match u8_at(block, 6) {
            1 => Kind::Segments,
            2 => Kind::Keys,
            _ => return Err(Damage::Field),
        };
        let count = u32_at(block, 28) as usize;
        if count > WORDS_MAX {
            return Err(Damage::Field);
        }
        Ok(Block {
            kind,
            heat: u8_at(block, 7),
            server: u64_at(block, 8),
            written_ms: u64_at(block, 16),
            table: u32_at(block, 24),
            words: (0..count)
                .map(|n| u64_at(block, WORDS_AT + 8 * n))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::assert_noticed;
    use proptest::prelude::*;

    fn block(words: Vec<u64>) -> Block {
        Block {
            kind: Kind::Keys,
            heat: 3,
            server: 0x0123_4567_89ab_cdef,
            written_ms: 1_790_000_000_000,
            table: 7,
            words,
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_passes() {
        let meant = block((0..WORDS_MAX as u64).collect());
        let bytes = meant.encode();
        assert_eq!(Block::decode(&bytes), Ok(meant));
        assert_noticed(&bytes, |bytes| Block::decode(bytes).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            words in proptest::collection::vec(any::<u64>(), 0..=WORDS_MAX),
            heat: u8,
            table: u32,
            segments: bool,
        ) {
            let kind = if segments { Kind::Segments } else { Kind::Keys };
            let meant = Block { kind, heat, table, ..block(words) };
            prop_assert_eq!(Block::decode(&meant.encode()), Ok(meant));
        }

        /// Any fields, with a right checksum: the block is refused, or has the meaning of its
        /// fields.
        #[test]
        fn no_fields_are_believed_beyond_the_block(
            mut bytes in proptest::collection::vec(any::<u8>(), BLOCK_BYTES),
            known: bool,
        ) {
            if known {
                bytes[..8].copy_from_slice(b"DHOT\x01\x00\x02\x03");
                bytes[30..32].fill(0);
            }
            let crc = crc32c::crc32c(&bytes[..BLOCK_BYTES - 4]);
            bytes[BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(block) = Block::decode(&bytes) {
                prop_assert!(block.words.len() <= WORDS_MAX);
                prop_assert_eq!(Block::decode(&block.encode()), Ok(block));
            }
        }
    }
}
