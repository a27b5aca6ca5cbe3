//! Key hash = slot (14 bits) ‖ hash (50 bits): a range of key hashes is a range of Redis Cluster
//! slots.
//!
//! The index buckets by the 50-bit hash alone, so a hash tag that gathers thousands of keys in one
//! slot does not gather them in one bucket. The slot is computed only when a request is routed.

use duramen_base::ids::RouteHash;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Bits of the hash below the slot.
pub const HASH_BITS: u32 = 50;
/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 1 << 14;

/// The seeded 50-bit hash of keys. With a random seed, clients cannot choose keys that collide.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    secrets: RapidSecrets,
}

impl KeyHasher {
    pub fn new(seed: u64) -> KeyHasher {
        KeyHasher {
            secrets: RapidSecrets::seed(seed),
        }
    }

    /// Hash of a key, below `1 << HASH_BITS`.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_inline::<true, false, false>(key, &self.secrets) >> (64 - HASH_BITS)
    }

    /// The route hash of a key: its slot in front of its hash. Equal on all members and clients: a
    /// cluster has one seed.
    #[inline]
    pub fn route(&self, key: &[u8]) -> RouteHash {
        RouteHash::of(slot(key), self.hash(key))
    }
}

/// The Redis Cluster slot of a key: CRC16 (XMODEM) of the part in `{…}`, or of the whole key if
/// there is no such part or it is empty.
#[inline]
pub fn slot(key: &[u8]) -> u16 {
    let tagged = if may_have(key, b'{') {
        tag_of(key)
    } else {
        None
    };
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// The part of a key that its slot is computed from, if it is not the whole key.
fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|b| *b == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|b| *b == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

/// Whether the key may have such a byte. Reads eight bytes at a time.
#[inline]
fn may_have(key: &[u8], byte: u8) -> bool {
    const ONES: u64 = u64::MAX / 255;
    let (words, rest) = key.as_chunks::<8>();
    let found = words.iter().fold(0, |found, word| {
        let zero_if_same = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        // The lowest zero byte sets its highest bit; the bits of those above it may be set wrongly.
        found | zero_if_same.wrapping_sub(ONES) & !zero_if_same & ONES << 7
    });
    found != 0 || rest.contains(&byte)
}

/// CRC16 of each single byte followed by this many zero bytes, in the upper byte of the register.
const CRC16: [[u16; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 64 {
            crc = if crc & 0x8000 != 0 {
                crc << 1 ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
};

/// The CRC16, eight bytes at a time: with a step for each byte, each step would wait for the one
/// before.
#[inline]
fn crc16(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut crc: u16 = 0;
    for [b0, b1, b2, b3, b4, b5, b6, b7] in words {
        let [high, low] = crc.to_be_bytes();
        let of = |zeros: usize, byte: u8| CRC16[zeros][usize::from(byte)];
        let behind = of(5, *b2) ^ of(4, *b3) ^ of(3, *b4) ^ of(2, *b5) ^ of(1, *b6) ^ of(0, *b7);
        crc = of(7, b0 ^ high) ^ of(6, b1 ^ low) ^ behind;
    }
    rest.iter().fold(crc, |crc, byte| {
        crc << 8 ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }

    /// All lengths, with a tag at every place or none: the result equals the definition, bit by
    /// bit.
    #[test]
    fn slots_of_words_are_those_of_bits() {
        let of_bits = |bytes: &[u8]| {
            bytes.iter().fold(0u16, |crc, byte| {
                (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                    (crc << 1) ^ ((crc >> 15) * 0x1021)
                })
            })
        };
        let bytes: Vec<u8> = (0..64u32).map(|n| (n * 37 + 1) as u8 | 0x80).collect();
        for length in 0..bytes.len() {
            let key = &bytes[..length];
            assert_eq!(slot(key), of_bits(key) % SLOTS, "{length} bytes");
            for open in 0..length {
                let mut key = key.to_vec();
                key[open] = b'{';
                assert_eq!(slot(&key), of_bits(&key) % SLOTS, "not closed");
                key[length - 1] = b'}';
                let wanted = if open + 2 < length {
                    of_bits(&key[open + 1..length - 1])
                } else {
                    of_bits(&key)
                };
                assert_eq!(slot(&key), wanted % SLOTS, "{length} bytes, tag at {open}");
            }
        }
    }

    #[test]
    fn hashes_fit_and_spread() {
        let hasher = KeyHasher::new(1);
        let mut ones = [0u32; HASH_BITS as usize];
        for n in 0..10_000u64 {
            let hash = hasher.hash(&n.to_le_bytes());
            assert!(hash < 1 << HASH_BITS);
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += (hash >> bit & 1) as u32;
            }
        }
        assert!(ones.iter().all(|n| (4_700..5_300).contains(n)), "{ones:?}");
        assert_ne!(KeyHasher::new(1).hash(b"a"), KeyHasher::new(2).hash(b"a"));
    }

    #[test]
    fn a_route_is_slot_and_hash() {
        let route = KeyHasher::new(1).route(b"foo");
        assert_eq!(route.slot(), 12182);
        assert_eq!(
            route.0 & ((1 << HASH_BITS) - 1),
            KeyHasher::new(1).hash(b"foo")
        );
    }
}
