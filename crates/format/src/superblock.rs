//! The superblock: the owner of the store, its format, and the sizes of its parts.
//!
//! **Layout** (little endian; a block of 4096 bytes, of which two copies are kept):
//!
//! ```text
//! 0         8         10   12      16       24     32        40           48        56        60       64        68         132    4092
//! +---------+---------+----+-------+--------+------+---------+------------+---------+---------+--------+---------+----------+------+--------+
//! | "DURAMEN\0" | version | S | block | server | hash | created | generation | WAL     | segment | frames | length  | cluster  | zero | CRC32C |
//! |         |   u16   |    | u32   |  u64   | seed | ms u64  |    u64     | u64     |  u32    |  u32   | of name | name     |      |        |
//! +---------+---------+----+-------+--------+------+---------+------------+---------+---------+--------+---------+----------+------+--------+
//! ```
//!
//! S = 1: a copy of a store is being made here, and is not complete; otherwise 0.
//!
//! The superblock of an encrypted store has version 3. Its hash seed, the length and the name of
//! the cluster are zero there: they are in the box, which holds the store key too. Bytes 132.. are:
//!
//! ```text
//! 132          140     152         156     280
//! +------------+-------+-----------+-------+------
//! | master key | nonce | rewrapped | box   | zero
//! | id         |       | u32       |       |
//! +------------+-------+-----------+-------+------
//! ```
//!
//! **Invariants**
//! - B1: the CRC32C covers bytes 0..4092.
//! - B2: of two copies that match their CRC the one with the greater generation counts; of two with
//!   the same one, that whose key was rewrapped more often.

use crate::bytes::{Writer, is_sealed, u16_at, u32_at, u64_at};

/// Bytes of one copy.
pub const BLOCK_BYTES: usize = 4096;
/// Places of the two copies; far from each other, so that no single bad erase block takes both.
pub const COPY_AT: [u64; 2] = [0, 64 << 10];
/// Version of everything outside of segments: superblock, write-ahead log, frames. A reader refuses
/// others. Version 1, of builds before the first release, had a write-ahead log whose commits could
/// be forged.
pub const VERSION: u16 = 2;
/// Version of an encrypted store: the same, but for encryption.
pub const VERSION_ENCRYPTED: u16 = 3;
/// Longest name of a cluster, in bytes.
pub const CLUSTER_BYTES_MAX: usize = 64;
const MAGIC: &[u8; 8] = b"DURAMEN\0";
const CLUSTER_AT: usize = 68;
const KEY_AT: usize = CLUSTER_AT + CLUSTER_BYTES_MAX;
/// Bytes of the id of a master key.
pub const KEY_ID_BYTES: usize = 8;
const NONCE_AT: usize = KEY_AT + KEY_ID_BYTES;
/// Bytes of the nonce of the box.
pub const BOX_NONCE_BYTES: usize = 12;
const REWRAPPED_AT: usize = NONCE_AT + BOX_NONCE_BYTES;
const BOX_AT: usize = REWRAPPED_AT + 4;
/// Bytes of the secrets of a superblock.
pub const SECRETS_BYTES: usize = 12 + CLUSTER_BYTES_MAX;
/// Bytes of the box: the secrets, the store key and a tag.
pub const BOX_BYTES: usize = SECRETS_BYTES + 48;

/// The content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Unit of all writes, in bytes.
    pub block_bytes: u32,
    pub server: u64,
    pub hash_seed: u64,
    /// Milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Grows each time that the superblock is written.
    pub generation: u64,
    /// An unfinished copy of another store: the directory is not a store.
    pub unfinished: bool,
    pub wal_bytes: u64,
    pub segment_bytes: u32,
    pub frames: u32,
    pub cluster: String,
    /// `None`: the store is not encrypted.
    pub encryption: Option<Encryption>,
}

/// The encrypted part of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The master key that opens the box.
    pub key: [u8; KEY_ID_BYTES],
    pub nonce: [u8; BOX_NONCE_BYTES],
    /// Number of times that the master key was replaced.
    pub rewrapped: u32,
    /// The store key and the secrets ([`Superblock::secrets`]), encrypted.
    pub bytes: [u8; BOX_BYTES],
}

/// The reason why bytes are not a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a superblock takes 4096 bytes, {available} are there")]
    Truncated { available: usize },
    #[error("all bytes are zero")]
    Blank,
    #[error("it does not start with DURAMEN")]
    Foreign,
    #[error("format version {found}")]
    Version { found: u16 },
    #[error("its CRC32C does not match")]
    Checksum,
    #[error("a field makes no sense")]
    Field,
}

impl Superblock {
    /// The fields that disclose something about the data. In an encrypted store they are in the
    /// box.
    ///
    /// # Panics
    /// As [`encode`](Self::encode).
    pub fn secrets(&self) -> [u8; SECRETS_BYTES] {
        let mut bytes = [0; SECRETS_BYTES];
        Writer::new(&mut bytes)
            .u64(0, self.hash_seed)
            .u32(8, self.cluster.len() as u32)
            .put(12, self.cluster.as_bytes());
        bytes
    }

    /// Takes over the fields of [`secrets`](Self::secrets).
    ///
    /// # Errors
    /// [`Damage::Field`]: these are no secrets of a superblock.
    pub fn reveal(&mut self, secrets: &[u8]) -> Result<(), Damage> {
        let secrets: &[u8; SECRETS_BYTES] = secrets.try_into().map_err(|_| Damage::Field)?;
        let name_bytes = u32_at(secrets, 8) as usize;
        let name = secrets.get(12..12_usize.saturating_add(name_bytes));
        let name = name.ok_or(Damage::Field)?.to_vec();
        self.cluster = String::from_utf8(name).map_err(|_| Damage::Field)?;
        self.hash_seed = u64_at(secrets, 0);
        Ok(())
    }

    /// Whether this copy counts before another one (B2).
    pub fn is_newer_than(&self, other: &Superblock) -> bool {
        let age = |of: &Superblock| {
            (
                of.generation,
                of.encryption.map_or(0, |found| found.rewrapped),
            )
        };
        age(self) > age(other)
    }

    /// The block's bytes. The secrets of an encrypted store are left out.
    ///
    /// # Panics
    /// If the cluster's name is longer than [`CLUSTER_BYTES_MAX`]: the caller checks.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.cluster.len() <= CLUSTER_BYTES_MAX,
            "the cluster's name is too long"
        );
        let mut block = vec![0; BLOCK_BYTES];
        let mut writer = Writer::new(&mut block);
        writer
            .put(0, MAGIC)
            .u16(8, VERSION)
            .u16(10, u16::from(self.unfinished))
            .u32(12, self.block_bytes)
            .u64(16, self.server)
            .u64(32, self.created_ms)
            .u64(40, self.generation)
            .u64(48, self.wal_bytes)
            .u32(56, self.segment_bytes)
            .u32(60, self.frames);
        match &self.encryption {
            None => writer
                .u64(24, self.hash_seed)
                .u32(64, self.cluster.len() as u32)
                .put(CLUSTER_AT, self.cluster.as_bytes()),
            Some(encryption) => writer
                .u16(8, VERSION_ENCRYPTED)
                .put(KEY_AT, &encryption.key)
                .put(NONCE_AT, &encryption.nonce)
                .u32(REWRAPPED_AT, encryption.rewrapped)
                .put(BOX_AT, &encryption.bytes),
        };
        writer.seal();
        block
    }

    /// Reads a copy from untrusted bytes.
    ///
    /// # Errors
    /// [`Damage`]. The version is checked before the CRC, as a newer format may have another
    /// layout.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Damage> {
        let block = bytes.get(..BLOCK_BYTES).ok_or(Damage::Truncated {
            available: bytes.len(),
        })?;
        if block.iter().all(|byte| *byte == 0) {
            return Err(Damage::Blank);
        }
        if !block.starts_with(MAGIC) {
            return Err(Damage::Foreign);
        }
        let sealed = is_sealed(block);
        let found = u16_at(block, 8);
        if sealed && found != VERSION && found != VERSION_ENCRYPTED {
            return Err(Damage::Version { found });
        }
        if !sealed {
            return Err(Damage::Checksum); // B1
        }
        let unfinished = match u16_at(block, 10) {
            0 => false,
            1 => true,
            _ => return Err(Damage::Field),
        };
        let name_bytes = u32_at(block, 64) as usize;
        let name = block
            .get(CLUSTER_AT..CLUSTER_AT + name_bytes.min(CLUSTER_BYTES_MAX + 1))
            .ok_or(Damage::Field)?;
        if name.len() > CLUSTER_BYTES_MAX {
            return Err(Damage::Field);
        }
        Ok(Superblock {
            block_bytes: u32_at(block, 12),
            server: u64_at(block, 16),
            hash_seed: u64_at(block, 24),
            created_ms: u64_at(block, 32),
            generation: u64_at(block, 40),
            unfinished,
            wal_bytes: u64_at(block, 48),
            segment_bytes: u32_at(block, 56),
            frames: u32_at(block, 60),
            cluster: String::from_utf8(name.to_vec()).map_err(|_| Damage::Field)?,
            encryption: match found {
                VERSION_ENCRYPTED => Some(Encryption::decode(block).ok_or(Damage::Field)?),
                _ => None,
            },
        })
    }
}

impl Encryption {
    fn decode(block: &[u8]) -> Option<Encryption> {
        Some(Encryption {
            key: *block.get(KEY_AT..)?.first_chunk()?,
            nonce: *block.get(NONCE_AT..)?.first_chunk()?,
            rewrapped: u32_at(block, REWRAPPED_AT),
            bytes: *block.get(BOX_AT..)?.first_chunk()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::assert_noticed;

    fn example() -> Superblock {
        Superblock {
            block_bytes: 4096,
            server: 0x0123_4567_89ab_cdef,
            hash_seed: 7,
            created_ms: 8,
            generation: 9,
            unfinished: false,
            wal_bytes: 0x1000_0000,
            segment_bytes: 0x0080_0000,
            frames: 1024,
            cluster: "home".to_owned(),
            encryption: None,
        }
    }

    fn encrypted() -> Superblock {
        Superblock {
            encryption: Some(Encryption {
                key: *b"key's id",
                nonce: *b"used  1 time",
                rewrapped: 3,
                bytes: [b'b'; BOX_BYTES],
            }),
            ..example()
        }
    }

    #[test]
    fn an_encrypted_one_shows_no_secrets() {
        let block = encrypted().encode();
        let plain = example().encode();
        assert_eq!(block[8..10], [3, 0]);
        let fields = [(10, 24), (32, 64)];
        for (from, until) in fields {
            assert_eq!(block[from..until], plain[from..until]);
        }
        assert_eq!(block[24..32], [0; 8]);
        assert_eq!(block[64..132], [0; 68]);
        assert_eq!(block[132..156], *b"key's idused  1 time\x03\0\0\0");
        assert_eq!(block[156..280], [b'b'; 124]);
        assert!(block[280..4092].iter().all(|byte| *byte == 0));
        let mut found = Superblock::decode(&block).unwrap();
        assert_eq!((found.hash_seed, found.cluster.as_str()), (0, ""));
        assert_eq!(
            found.encode(),
            block,
            "it can be written again without a key"
        );
        found.reveal(&example().secrets()).unwrap();
        assert_eq!(found, encrypted());
        for wrong in [&[][..], &[0; SECRETS_BYTES - 1], &[0xff; SECRETS_BYTES]] {
            assert_eq!(found.reveal(wrong), Err(Damage::Field));
        }
    }

    #[test]
    fn the_copy_that_was_rewritten_last_counts() {
        let mut later = encrypted();
        assert!(!later.is_newer_than(&encrypted()));
        later.encryption.as_mut().unwrap().rewrapped += 1;
        assert!(later.is_newer_than(&encrypted()) && !encrypted().is_newer_than(&later)); // B2
        let mut newest = encrypted();
        newest.generation += 1;
        assert!(newest.is_newer_than(&later));
    }

    #[test]
    fn golden_bytes() {
        let block = example().encode();
        assert_eq!(
            &block[..72],
            b"DURAMEN\0\x02\0\0\0\0\x10\0\0\xef\xcd\xab\x89\x67\x45\x23\x01\x07\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\
              \x09\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x80\0\0\x04\0\0\x04\0\0\0home"
        );
        assert!(block[72..4092].iter().all(|byte| *byte == 0));
        assert_eq!(block[4092..], crc32c::crc32c(&block[..4092]).to_le_bytes());
        assert_eq!(Superblock::decode(&block), Ok(example()));
        let unfinished = Superblock {
            unfinished: true,
            ..example()
        };
        let mut block = unfinished.encode();
        assert_eq!(block[10..12], [1, 0]);
        assert_eq!(Superblock::decode(&block), Ok(unfinished));
        block[10] = 2;
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Superblock::decode(&block), Err(Damage::Field));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let block = example().encode();
        assert_noticed(&block, |bytes| Superblock::decode(bytes).is_err());
    }

    #[test]
    fn what_it_is_not_is_named() {
        assert_eq!(Superblock::decode(&[0; 4096]), Err(Damage::Blank));
        assert_eq!(Superblock::decode(&[b'x'; 4096]), Err(Damage::Foreign));
        for found in [1, 4] {
            let mut block = example().encode();
            block[8] = found as u8;
            let crc = crc32c::crc32c(&block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Superblock::decode(&block), Err(Damage::Version { found }));
        }
    }
}
