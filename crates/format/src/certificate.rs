//! Certificates: up to where a replica of a segment is valid.

/// Vouches for the first `length` bytes of a segment. Valid data is exactly `[0, length)`; what lies beyond does not exist.
///
/// Paper: [Rumble14 §6.2]; differs: the checksum covers all bytes, not just the entries' headers (90-traps.md §A).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// Bytes, from the start of the segment, header included.
    pub length: u32,
    /// CRC32C over all of them.
    pub crc: u32,
}

impl Certificate {
    /// Vouches for nothing.
    pub const EMPTY: Certificate = Certificate { length: 0, crc: 0 };

    /// The certificate of a whole segment.
    ///
    /// # Panics
    /// If `bytes` is 4 GiB or longer.
    pub fn of(bytes: &[u8]) -> Certificate {
        Certificate::EMPTY.extended(bytes)
    }

    /// The certificate after `bytes` were appended to what this one covers.
    ///
    /// # Panics
    /// If the sum is 4 GiB or longer.
    #[must_use]
    pub fn extended(self, bytes: &[u8]) -> Certificate {
        let length = u32::try_from(u64::from(self.length) + bytes.len() as u64)
            .expect("a segment is shorter than 4 GiB");
        Certificate {
            length,
            crc: crc32c::crc32c_append(self.crc, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rolls() {
        let whole = Certificate::of(b"123456789");
        // The check value of CRC-32C.
        assert_eq!((whole.length, whole.crc), (9, 0xE306_9283));
        assert_eq!(Certificate::of(b"1234").extended(b"56789"), whole);
        assert_ne!(Certificate::of(b"12345678").crc, whole.crc);
    }
}
