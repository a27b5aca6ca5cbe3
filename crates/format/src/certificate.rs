//! Certificates: the length of a segment's valid part, and the CRC that proves it.
//!
//! **Invariants**
//! - C1: valid data are the bytes `[0, length)`, header included; bytes beyond are no data,
//!   whatever they look like.
//! - C2: `crc` is the CRC32C over all of them, so a certificate covers every byte and not only the
//!   last append.
//!
//! Paper: [Rumble14 §4]; differs: RAMCloud's certificate covers the entries' headers only
//! (docs/traps.md, trap 13).

use serde::{Deserialize, Serialize};

/// Length and CRC of a segment's valid bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// Bytes, from the segment's first on.
    pub length: u32,
    /// CRC32C of these bytes.
    pub crc: u32,
}

impl Certificate {
    /// The certificate of a segment without valid bytes.
    pub const EMPTY: Certificate = Certificate { length: 0, crc: 0 };

    /// The certificate of exactly these bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more; a segment has a few MiB.
    pub fn of(bytes: &[u8]) -> Certificate {
        Certificate::EMPTY.extended(bytes)
    }

    /// The certificate after `bytes` were appended: the rolling form. Costs one pass over the new
    /// bytes alone.
    ///
    /// # Panics
    /// As [`of`](Self::of).
    #[must_use]
    pub fn extended(self, bytes: &[u8]) -> Certificate {
        let length = u32::try_from(bytes.len())
            .ok()
            .and_then(|more| self.length.checked_add(more));
        Certificate {
            length: length.expect("a segment is shorter than 4 GiB"),
            crc: crc32c::crc32c_append(self.crc, bytes),
        }
    }

    /// The CRC32C of data with CRC `before`, followed by the bytes between this certificate and
    /// `after`. Equals a pass over these bytes, at the cost of about a microsecond.
    pub fn append_to(self, before: u32, after: Certificate) -> u32 {
        let count = after.length - self.length;
        shifted(before ^ self.crc, count) ^ after.crc
    }

    /// True if these are the certified bytes. The input may be longer: only the first `length`
    /// bytes count (C1).
    pub fn matches(&self, bytes: &[u8]) -> bool {
        bytes
            .get(..self.length as usize)
            .is_some_and(|valid| crc32c::crc32c(valid) == self.crc)
    }
}

/// The polynomial of CRC32C, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x to the power of 2^n modulo the polynomial, for n = 0..32 (then they repeat).
const POWERS: [u32; 32] = {
    let mut powers = [1 << 30; 32];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = times(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The product of two polynomials over GF(2), modulo that of CRC32C.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = b >> 1 ^ (POLYNOMIAL & 0u32.wrapping_sub(b & 1));
    }
    product
}

/// The difference of two CRCs after `bytes` more equal bytes: the product of the former difference
/// and x^(8 * bytes).
fn shifted(mut crc: u32, bytes: u32) -> u32 {
    let mut rest = u64::from(bytes) << 3;
    while rest > 0 {
        let n = rest.trailing_zeros();
        crc = times(POWERS[n as usize % POWERS.len()], crc);
        rest &= rest - 1;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_is_the_same_as_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n * 7) as u8).collect();
        let whole = Certificate::of(&bytes);
        for cut in [0, 1, 64, 4095, 4096, 5000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(Certificate::of(first).extended(second), whole);
        }
        assert!(whole.matches(&bytes));
        assert!(!whole.matches(&bytes[..4999]));
        let mut longer = bytes.clone();
        longer.push(1);
        assert!(whole.matches(&longer)); // C1
        longer[17] ^= 4;
        assert!(!whole.matches(&longer)); // C2
    }

    #[test]
    fn a_crc_is_appended_to_another_without_the_bytes() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        for (skip, count) in [
            (0, 0),
            (0, 1),
            (1, 1),
            (64, 4096),
            (5, 65_536),
            (4463, 65_537),
        ] {
            let earlier = Certificate::of(&bytes[..skip]);
            let new = &bytes[skip..skip + count];
            for before in [&b""[..], b"x", &bytes[..1000]] {
                let whole = crc32c::crc32c(&[before, new].concat());
                let before = crc32c::crc32c(before);
                assert_eq!(earlier.append_to(before, earlier.extended(new)), whole);
            }
        }
    }

    #[test]
    fn golden() {
        assert_eq!(Certificate::of(b"123456789").crc, 0xe306_9283);
        assert_eq!(Certificate::of(b""), Certificate::EMPTY);
    }
}
