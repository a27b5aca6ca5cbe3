//! One string of a collection. A string that is the decimal form of an integer is kept as the
//! integer.
//!
//! **Layout**: a varint `h`, little endian, 7 bits a byte. If bit 0 of `h` is 0, `h / 2` bytes
//! follow, the string. If it is 1, `h / 2` is the integer in zigzag form.
//!
//! - T1: equal strings are equal [`Text`]s: each string that has an integer form is an integer.

use duramen_base::number::{INTEGER_BYTES_MAX, parse_integer};
use std::cmp::Ordering;
use std::ops::Deref;

/// Integers from `-INTEGER_END` to `INTEGER_END - 1` are kept as integers: their zigzag form and
/// one bit fit 64 bits.
const INTEGER_END: i64 = 1 << 62;
/// The longest decimal form of such an integer.
const DIGITS_MAX: usize = INTEGER_BYTES_MAX;

/// A string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Text<'a> {
    Bytes(&'a [u8]),
    Integer(i64),
}

/// The bytes of a [`Text`].
#[derive(Clone, Copy, Debug)]
pub enum Spelled<'a> {
    Bytes(&'a [u8]),
    Digits { digits: [u8; DIGITS_MAX], start: u8 },
}

impl Deref for Spelled<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Spelled::Bytes(bytes) => bytes,
            Spelled::Digits { digits, start } => {
                digits.get(usize::from(*start)..).unwrap_or_default()
            }
        }
    }
}

impl<'a> Text<'a> {
    /// The text of some bytes (T1).
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Text<'a> {
        match parse_integer(bytes) {
            Some(integer) if (-INTEGER_END..INTEGER_END).contains(&integer) => {
                Text::Integer(integer)
            }
            _ => Text::Bytes(bytes),
        }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> Spelled<'a> {
        match *self {
            Text::Bytes(bytes) => Spelled::Bytes(bytes),
            Text::Integer(integer) => spelled(integer),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether it is the empty string.
    pub fn is_empty(&self) -> bool {
        *self == Text::Bytes(b"")
    }

    /// The order of two texts by their bytes.
    #[inline]
    pub fn compare(&self, other: &Text<'_>) -> Ordering {
        match (self, other) {
            (Text::Bytes(a), Text::Bytes(b)) => a.cmp(b),
            _ => (*self.bytes()).cmp(&*other.bytes()),
        }
    }

    /// Appends the encoded text.
    #[inline]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Text::Bytes(bytes) => {
                write_varint(out, (bytes.len() as u64) << 1);
                out.extend_from_slice(bytes);
            }
            Text::Integer(integer) => {
                let zigzag = ((integer << 1) ^ (integer >> 63)) as u64;
                write_varint(out, zigzag << 1 | 1);
            }
        }
    }

    /// Reads an encoded text, and moves `bytes` behind it. Returns `None` if the bytes are no text.
    #[inline]
    pub(crate) fn decode(bytes: &mut &'a [u8]) -> Option<Text<'a>> {
        let header = read_varint(bytes)?;
        if header & 1 == 0 {
            let length = usize::try_from(header >> 1).ok()?;
            let (text, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            return Some(Text::Bytes(text));
        }
        let zigzag = header >> 1;
        Some(Text::Integer((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)))
    }

    /// One byte that differs for most different texts.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u8 {
        let word = match *self {
            Text::Integer(integer) => integer as u64,
            Text::Bytes(bytes) => {
                let first = bytes.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
                let last = bytes.last_chunk::<8>().map(|b| u64::from_le_bytes(*b));
                match (first, last) {
                    (Some(first), Some(last)) => {
                        first ^ last.rotate_left(29) ^ (bytes.len() as u64) << 17
                    }
                    _ => bytes
                        .iter()
                        .fold(bytes.len() as u64, |word, b| word << 8 ^ u64::from(*b)),
                }
            }
        };
        (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }
}

fn spelled(integer: i64) -> Spelled<'static> {
    let (mut digits, mut start) = ([0; DIGITS_MAX], DIGITS_MAX);
    let mut magnitude = integer.unsigned_abs();
    let mut push = |byte| {
        start -= 1;
        if let Some(place) = digits.get_mut(start) {
            *place = byte;
        }
    };
    loop {
        push(b'0' + (magnitude % 10) as u8);
        magnitude /= 10;
        if magnitude == 0 {
            break;
        }
    }
    if integer < 0 {
        push(b'-');
    }
    Spelled::Digits {
        digits,
        start: start as u8,
    }
}

#[inline]
pub(crate) fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(bytes: &[u8]) -> usize {
        let mut encoded = Vec::new();
        let text = Text::of(bytes);
        text.encode(&mut encoded);
        let mut rest = &encoded[..];
        assert_eq!(Text::decode(&mut rest), Some(text), "{bytes:?}");
        assert!(rest.is_empty());
        assert_eq!(&*text.bytes(), bytes);
        encoded.len()
    }

    #[test]
    fn integers_are_short_and_everything_comes_back() {
        for (text, length) in [
            ("", 1),
            ("0", 1),
            ("-1", 1),
            ("31", 1),
            ("100", 2),
            ("12345678", 4),
            ("007", 4),
            ("-0", 3),
            ("+1", 3),
            ("4611686018427387903", 10),
            ("-4611686018427387904", 10),
            ("4611686018427387904", 20),
            ("9223372036854775808", 20),
        ] {
            assert_eq!(round_trip(text.as_bytes()), length, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back(bytes: Vec<u8>, integer: i64) {
            round_trip(&bytes);
            round_trip(integer.to_string().as_bytes());
        }

        #[test]
        fn any_bytes_are_a_text_or_none(bytes: Vec<u8>) {
            let mut rest = &bytes[..];
            while let Some(text) = Text::decode(&mut rest) {
                prop_assert!(text.len() <= bytes.len().max(DIGITS_MAX));
            }
        }

        #[test]
        fn the_order_is_that_of_the_bytes(a in "[0-9a-]{0,4}", b in "[0-9a-]{0,4}") {
            let (x, y) = (Text::of(a.as_bytes()), Text::of(b.as_bytes()));
            prop_assert_eq!(x.compare(&y), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(x == y, a == b);
        }
    }
}
