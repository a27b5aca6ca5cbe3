//! Key hash = slot (14 bits) ‖ hash (50 bits): a range of key hashes is a range of Redis Cluster slots.
//!
//! The index buckets by the 50-bit hash alone, so that a hash tag that gathers thousands of keys in one slot does not
//! gather them in one bucket. The slot is only computed where a request is routed.

use duramen_base::ids::RouteHash;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// Bits of the hash below the slot.
pub const HASH_BITS: u32 = 50;
/// Slots of a Redis Cluster.
pub const SLOTS: u16 = 1 << 14;

/// The seeded 50-bit hash of keys. A random seed keeps clients from choosing keys that collide.
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

    /// Where a key lives in a cluster: its slot in front of its hash. Equal on all members and clients: a cluster has one seed.
    #[inline]
    pub fn route(&self, key: &[u8]) -> RouteHash {
        RouteHash::of(slot(key), self.hash(key))
    }
}

/// The Redis Cluster slot of a key: CRC16 (XMODEM) of the part in `{…}` if there is one that is not empty, else of all.
pub fn slot(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|b| *b == b'}')?;
        rest.get(..close).filter(|tag| !tag.is_empty())
    });
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// CRC16 of each single byte, in the upper byte of the register.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                crc << 1 ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
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
