//! The layout of every byte on flash.
//!
//! **Layout** the device is cut into blocks of 128 KiB. Block 0 has two copies of the superblock, 4
//! KiB each; the others hold objects.
//!
//! ```text
//! block      0        4        8          16      20      24            32
//!            +--------+--------+----------+-------+-------+-------------+---------+---------+----
//!            | magic  |  crc   | sequence | count | bytes | store id    | object  | object  | ...
//!            |  u32   |  u32   |   u64    |  u32  |  u32  |   u64       |         |         |
//!            +--------+--------+----------+-------+-------+-------------+---------+---------+----
//! object     0        4        8          12      16
//!            +--------+--------+----------+-------+---------+---------------------------------+
//!            | table  | index  |  bytes   |  crc  | payload | zeros to a multiple of 8 bytes  |
//!            |  u32   |  u32   |   u32    |  u32  |         |                                 |
//!            +--------+--------+----------+-------+---------+---------------------------------+
//! ```
//!
//! An object's checksum covers its header and payload and begins from its block's sequence, which
//! no two writes of a block share: bytes of an earlier life of the block, torn or misplaced ones
//! never pass. A location is the sector in which the object's header begins; a reader searches for
//! the owner there at each multiple of 8.
//!
//! **Invariants**
//! - L1: objects lie within one block and begin at multiples of 8 bytes.
//! - L2: within a block later bytes are newer: of two objects of one owner in one sector, the last
//!   one counts.
//! - L3: location 0 belongs to no object: sector 0 is the superblock's.
//!
//! Paper: [Badam11 §3.3]; differs: no offset in each sector, which would cut every object that
//! crosses a boundary into pieces.

pub(crate) use duramen_disk::{ALIGNMENT_MAX, SECTOR_BYTES};
use std::fmt;

/// Unit of writing and of collecting, in bytes [Badam11 §3.5].
pub const BLOCK_BYTES: usize = duramen_disk::UNIT_BYTES;
/// Longest object, in bytes: several fit into a block, so that few bytes at its end are lost.
pub const OBJECT_BYTES_MAX: usize = 32 << 10;

pub(crate) const SECTORS_PER_BLOCK: u32 = (BLOCK_BYTES / SECTOR_BYTES) as u32;
pub(crate) const BLOCK_HEADER_BYTES: usize = 32;
pub(crate) const OBJECT_HEADER_BYTES: usize = 16;
const ALIGN: usize = 8;
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"DFBK");
const SUPERBLOCK_MAGIC: [u8; 8] = *b"DURAFLSH";
/// Bytes of one copy of the superblock: the copies are written one by one.
pub(crate) const SUPERBLOCK_BYTES: usize = ALIGNMENT_MAX;
/// Format 1 had no number of the next checkpoint: it was the last one's plus 1.
pub(crate) const FORMAT: u16 = 2;

/// Names an object: a table, and an index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub table: u32,
    pub index: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {} of table {}", self.index, self.table)
    }
}

/// Bytes that an object of this length takes in a block, header included.
pub(crate) const fn footprint(bytes: usize) -> usize {
    (OBJECT_HEADER_BYTES + bytes).next_multiple_of(ALIGN)
}

/// Most bytes of whole sectors that an object of at most this length touches.
pub(crate) const fn span_max(bytes: usize) -> usize {
    (SECTOR_BYTES - ALIGN + footprint(bytes)).next_multiple_of(SECTOR_BYTES)
}

/// The block of a sector.
pub(crate) fn block_of(location: u32) -> u32 {
    location / SECTORS_PER_BLOCK
}

/// The sector of the byte at `at` of a block.
pub(crate) fn location(block: u32, at: usize) -> u32 {
    block * SECTORS_PER_BLOCK + (at / SECTOR_BYTES) as u32
}

/// Memory for whole units around any object of at most this many bytes, for every alignment of the
/// device.
pub(crate) const fn room_max(bytes: usize) -> usize {
    (ALIGNMENT_MAX - SECTOR_BYTES + span_max(bytes)).next_multiple_of(ALIGNMENT_MAX)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*field))
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// The checksum of an object in the block of this sequence.
fn checksum(sequence: u64, header: &[u8], payload: &[u8]) -> u32 {
    let seed = crc32c::crc32c(&sequence.to_le_bytes());
    let seed = crc32c::crc32c_append(seed, header);
    crc32c::crc32c_append(seed, payload)
}

/// Writes an object at `at`; returns the offset of the next one.
pub(crate) fn put_object(
    block: &mut [u8],
    at: usize,
    sequence: u64,
    owner: Owner,
    payload: &[u8],
) -> usize {
    let end = at + footprint(payload.len());
    put(block, at, &owner.table.to_le_bytes());
    put(block, at + 4, &owner.index.to_le_bytes());
    put(block, at + 8, &(payload.len() as u32).to_le_bytes());
    let crc = checksum(sequence, &block[at..at + 12], payload);
    put(block, at + 12, &crc.to_le_bytes());
    let from = at + OBJECT_HEADER_BYTES;
    put(block, from, payload);
    block[from + payload.len()..end].fill(0);
    end
}

/// Position of an object in some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub owner: Owner,
    /// Begin and end of its payload.
    pub from: usize,
    pub to: usize,
}

/// The object at `at`, if there is one with a valid checksum.
pub(crate) fn object_at(bytes: &[u8], at: usize, sequence: u64) -> Option<Found> {
    let owner = Owner {
        table: u32_at(bytes, at)?,
        index: u32_at(bytes, at + 4)?,
    };
    let length = u32_at(bytes, at + 8)? as usize;
    let crc = u32_at(bytes, at + 12)?;
    if length > OBJECT_BYTES_MAX {
        return None;
    }
    let from = at + OBJECT_HEADER_BYTES;
    let payload = bytes.get(from..from + length)?;
    let header = bytes.get(at..at + 12)?;
    (checksum(sequence, header, payload) == crc).then_some(Found {
        owner,
        from,
        to: from + length,
    })
}

/// The newest object of `owner` that begins in the first sector of `bytes`, which is sector
/// `location`: the last one there.
pub(crate) fn find(bytes: &[u8], location: u32, sequence: u64, owner: Owner) -> Option<Found> {
    let first_of_block = location.is_multiple_of(SECTORS_PER_BLOCK);
    let start = if first_of_block {
        BLOCK_HEADER_BYTES
    } else {
        0
    };
    let wanted = u64::from(owner.table) | u64::from(owner.index) << 32;
    (start..SECTOR_BYTES)
        .step_by(ALIGN)
        .rev()
        .filter(|at| u64_at(bytes, *at) == Some(wanted))
        .find_map(|at| object_at(bytes, at, sequence))
}

/// A block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub sequence: u64,
    /// Number of objects.
    pub count: u32,
    /// Used bytes, the header included.
    pub bytes: u32,
    pub store: u64,
}

impl BlockHeader {
    pub fn put(&self, block: &mut [u8]) {
        put(block, 0, &BLOCK_MAGIC.to_le_bytes());
        put(block, 8, &self.sequence.to_le_bytes());
        put(block, 16, &self.count.to_le_bytes());
        put(block, 20, &self.bytes.to_le_bytes());
        put(block, 24, &self.store.to_le_bytes());
        let crc = crc32c::crc32c(&block[8..BLOCK_HEADER_BYTES]);
        put(block, 4, &crc.to_le_bytes());
    }

    /// Reads a block's header; `None`: there is none, or a damaged one.
    pub fn read(block: &[u8]) -> Option<BlockHeader> {
        let header = BlockHeader {
            sequence: u64_at(block, 8)?,
            count: u32_at(block, 16)?,
            bytes: u32_at(block, 20)?,
            store: u64_at(block, 24)?,
        };
        let crc = crc32c::crc32c(block.get(8..BLOCK_HEADER_BYTES)?);
        let used = BLOCK_HEADER_BYTES..=BLOCK_BYTES;
        let holds = u32_at(block, 0)? == BLOCK_MAGIC
            && u32_at(block, 4)? == crc
            && used.contains(&(header.bytes as usize));
        holds.then_some(header)
    }
}

/// The superblock: the owner of a device, and its valid checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Random number of this device.
    pub store: u64,
    pub blocks: u32,
    /// Grows with each write of a superblock.
    pub version: u64,
    /// Number of the last checkpoint; 0: none.
    pub checkpoint: u64,
    /// Number of the checkpoint that replaces it as soon as its file is in place. No other file has
    /// this number.
    pub next: u64,
}

impl Superblock {
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        put(&mut bytes, 0, &SUPERBLOCK_MAGIC);
        put(&mut bytes, 8, &FORMAT.to_le_bytes());
        put(&mut bytes, 12, &self.blocks.to_le_bytes());
        put(&mut bytes, 16, &self.store.to_le_bytes());
        put(&mut bytes, 24, &self.version.to_le_bytes());
        put(&mut bytes, 32, &self.checkpoint.to_le_bytes());
        put(&mut bytes, 40, &self.next.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..SUPERBLOCK_BYTES - 4]);
        put(&mut bytes, SUPERBLOCK_BYTES - 4, &crc.to_le_bytes());
        bytes
    }

    /// Reads a copy of the superblock. `Ok(None)`: there is none, or a damaged one. `Err`: the copy
    /// has this newer format.
    pub fn decode(bytes: &[u8]) -> Result<Option<Superblock>, u16> {
        let fields = || {
            let crc = crc32c::crc32c(bytes.get(..SUPERBLOCK_BYTES - 4)?);
            if bytes.get(..8)? != SUPERBLOCK_MAGIC || u32_at(bytes, SUPERBLOCK_BYTES - 4)? != crc {
                return None;
            }
            let format = u16::from_le_bytes(*bytes.get(8..)?.first_chunk::<2>()?);
            let checkpoint = u64_at(bytes, 32)?;
            let found = Superblock {
                store: u64_at(bytes, 16)?,
                blocks: u32_at(bytes, 12)?,
                version: u64_at(bytes, 24)?,
                checkpoint,
                next: match format {
                    0 | 1 => checkpoint.wrapping_add(1),
                    _ => u64_at(bytes, 40)?,
                },
            };
            Some((format, found))
        };
        match fields() {
            Some((format, _)) if format > FORMAT => Err(format),
            found => Ok(found.map(|(_, superblock)| superblock)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_disk::Cut;

    const OWNER: Owner = Owner { table: 3, index: 9 };

    #[test]
    fn an_object_is_found_by_its_owner_wherever_it_begins() {
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = BLOCK_HEADER_BYTES;
        let mut places = Vec::new();
        for index in 0..500u32 {
            let owner = Owner { table: 1, index };
            let payload = vec![index as u8; (index as usize * 7) % 300];
            places.push((owner, at, payload.clone()));
            at = put_object(&mut block, at, 77, owner, &payload);
        }
        for (owner, at, payload) in places {
            let sector = location(2, at);
            let from = (sector % SECTORS_PER_BLOCK) as usize * SECTOR_BYTES;
            let to = (from + span_max(300)).min(BLOCK_BYTES);
            let found = find(&block[from..to], sector, 77, owner).expect("it is there");
            assert_eq!(block[from + found.from..from + found.to], payload);
            assert_eq!(find(&block[from..to], sector, 78, owner), None);
        }
    }

    #[test]
    fn a_span_is_widened_to_whole_units() {
        for alignment in [512, 1024, 4096] {
            for (at, bytes) in [(0, 512), (512, 512), (3584, 5120), (8192, 4096), (700, 1)] {
                let cut = Cut::new(at, bytes, alignment);
                assert!(cut.at.is_multiple_of(alignment as u64));
                assert!(cut.bytes.is_multiple_of(alignment));
                assert_eq!(cut.at + cut.skip as u64, at);
                assert!(cut.skip + bytes <= cut.bytes && cut.bytes < bytes + 2 * alignment);
            }
        }
        for bytes in [1, 128, 4096, OBJECT_BYTES_MAX] {
            let worst = Cut::new(3584, span_max(bytes), ALIGNMENT_MAX);
            assert!(worst.bytes <= room_max(bytes), "{bytes} bytes");
        }
    }

    #[test]
    fn no_flipped_bit_passes() {
        let mut block = vec![0; 1024];
        put_object(&mut block, 32, 5, OWNER, b"precious");
        for bit in 32 * 8..(32 + OBJECT_HEADER_BYTES + 8) * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(find(&block, 0, 5, OWNER), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(find(&block, 0, 5, OWNER).is_some());
    }

    #[test]
    fn of_two_versions_in_one_sector_the_last_counts() {
        let mut block = vec![0; 1024];
        let next = put_object(&mut block, 32, 5, OWNER, b"old");
        put_object(&mut block, next, 5, OWNER, b"new");
        let found = find(&block, 0, 5, OWNER).unwrap();
        assert_eq!(&block[found.from..found.to], b"new");
    }

    /// An object's payload may look like another object's header.
    #[test]
    fn a_forged_header_in_a_payload_is_passed_over() {
        let mut block = vec![0; 1024];
        let mut forged = Vec::new();
        forged.extend(OWNER.table.to_le_bytes());
        forged.extend(OWNER.index.to_le_bytes());
        forged.extend([8, 0, 0, 0, 1, 2, 3, 4]);
        let other = Owner { table: 1, index: 1 };
        let next = put_object(&mut block, 32, 5, other, &forged);
        put_object(&mut block, next, 5, OWNER, b"the true");
        let found = find(&block, 0, 5, OWNER).unwrap();
        assert_eq!(&block[found.from..found.to], b"the true");
    }

    #[test]
    fn headers_keep_what_they_are_given_and_refuse_the_rest() {
        let header = BlockHeader {
            sequence: 8,
            count: 3,
            bytes: 640,
            store: 11,
        };
        let mut block = vec![0; 64];
        assert_eq!(BlockHeader::read(&block), None);
        header.put(&mut block);
        assert_eq!(BlockHeader::read(&block), Some(header));
        for bit in 0..BLOCK_HEADER_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::read(&block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        let superblock = Superblock {
            store: 1,
            blocks: 2,
            version: 3,
            checkpoint: 4,
            next: 7,
        };
        let mut bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(Some(superblock)));
        // Format 1, which is still read.
        put(&mut bytes, 8, &1u16.to_le_bytes());
        put(&mut bytes, 40, &[0; 8]);
        let crc = crc32c::crc32c(&bytes[..SUPERBLOCK_BYTES - 4]);
        put(&mut bytes, SUPERBLOCK_BYTES - 4, &crc.to_le_bytes());
        let older = Superblock {
            next: 5,
            ..superblock
        };
        assert_eq!(Superblock::decode(&bytes), Ok(Some(older)));
        bytes[20] ^= 1;
        assert_eq!(Superblock::decode(&bytes), Ok(None));
        assert_eq!(Superblock::decode(&bytes[..100]), Ok(None));
    }
}
