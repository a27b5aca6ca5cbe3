//! CRC32C of short and long pieces.
//!
//! Most pieces are short: an entry, the frame of a request. For them, the start-up of a routine
//! made for pages costs more than the sum, and single bytes before the first aligned word cost as
//! much as words. So short pieces are summed a word at a time from their first byte on.
//!
//! **Invariant**
//! - C1: the result equals that of the `crc32c` crate, for all bytes and on all
//!   processors.

/// Maximum length of a short piece, in bytes. For longer pieces, a sum in three parts at once is
/// faster.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES_MAX: usize = 768;

/// The checksum of a piece.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The checksum of the piece with checksum `crc`, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() < SHORT_BYTES_MAX && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions (checked just above).
        return unsafe { short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

/// The checksum of two words, little endian, followed by `bytes`.
#[inline]
pub fn crc32c_of_words(words: [u64; 2], bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() < SHORT_BYTES_MAX && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions (checked just above).
        return unsafe { short_of_words(words, bytes) };
    }
    let [first, second] = words.map(u64::to_le_bytes);
    crc32c_append(crc32c_append(crc32c(&first), &second), bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn short_of_words([first, second]: [u64; 2], bytes: &[u8]) -> u32 {
    use std::arch::x86_64::_mm_crc32_u64;
    let sum = _mm_crc32_u64(_mm_crc32_u64(u64::from(!0u32), first), second);
    short(!(sum as u32), bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let mut sum = u64::from(!crc);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
    }
    let mut sum = sum as u32;
    let (halves, rest) = rest.as_chunks::<4>();
    for half in halves {
        sum = _mm_crc32_u32(sum, u32::from_le_bytes(*half));
    }
    for byte in rest {
        sum = _mm_crc32_u8(sum, *byte);
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1, at every length around the limit, from every start, after every kind of sum.
    #[test]
    fn short_and_long_pieces_have_the_sums_of_the_crate() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| (n * n / 8 + n) as u8).collect();
        for from in 0..9 {
            for length in (0..200).chain(750..790) {
                let piece = &bytes[from..from + length];
                for before in [0, 1, 0x8000_0000, u32::MAX] {
                    assert_eq!(
                        crc32c_append(before, piece),
                        crc32c::crc32c_append(before, piece),
                        "{length} bytes from {from} on after {before:#x}"
                    );
                }
                let words = [7u64 << 40 | 3, 0x0123_4567_89ab_cdef];
                let mut all = words.map(u64::to_le_bytes).concat();
                all.extend_from_slice(piece);
                assert_eq!(crc32c_of_words(words, piece), crc32c::crc32c(&all));
            }
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
