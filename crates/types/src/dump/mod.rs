//! Values in Redis's own serialization, that of `DUMP` and `RESTORE`.
//!
//! **Layout**: the type, the content, the version (2 bytes), CRC64 of all bytes before. Numbers are
//! little endian, except lengths of 4 and 8 bytes.
//!
//! The forms that are written are those that every Redis since version 5 reads; streams are written
//! in the form of version 7.0. These forms are read, and those that Redis writes since version 7:
//! listpacks, quicklists of them, sets of integers, compressed strings; streams are read in the
//! forms since version 5. Older forms (ziplists) are refused.
//!
//! - D1: two kinds of payloads are refused before they are read to their end: one with more strings
//!   than a collection may have, and one whose strings and blocks, decompressed, are together
//!   longer than [`DECODED_BYTES_MAX`] (a third more in a stream). A payload of more than
//!   [`PAYLOAD_BYTES_MAX`] is refused before its bytes are looked at.

mod libraries;
mod streams;

pub use libraries::{dump_libraries, restore_libraries};

use crate::list::List;
use crate::stream::Id;
use crate::table::{Hash, Set};
use crate::{Part, Parts, Sorted, Text, Type};
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};

/// The version that is written: of Redis 5.
const VERSION_WRITTEN: u16 = 9;
/// The version that is written with a stream: of Redis 7.0.
const VERSION_OF_STREAMS: u16 = 10;
/// The newest version that is read: of Redis 7.4.
const VERSION_READ_MAX: u16 = 12;
const FOOTER_BYTES: usize = 10;
/// Maximum bytes of all strings and blocks of a payload, decompressed. The digits of an integer are
/// less than three times as long as its form in a value.
const DECODED_BYTES_MAX: usize = 3 * VALUE_BYTES_MAX;
/// Maximum bytes of a payload. It leaves room, beside the bytes of D1, for the heads and scores of
/// all strings, for the entries that consumers of a stream have not acknowledged, or for all
/// libraries of functions.
const PAYLOAD_BYTES_MAX: usize = 17 * VALUE_BYTES_MAX;

const STRING: u8 = 0;
const LIST: u8 = 1;
const SET: u8 = 2;
const HASH: u8 = 4;
const SORTED_SET: u8 = 5;
const SET_OF_INTEGERS: u8 = 11;
const HASH_LISTPACK: u8 = 16;
const SORTED_SET_LISTPACK: u8 = 17;
const QUICKLIST: u8 = 18;
const SET_LISTPACK: u8 = 20;

/// The reason why a payload is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("DUMP payload version or checksum are wrong")]
    Footer,
    #[error("Bad data format")]
    Format,
    #[error(transparent)]
    Collection(#[from] crate::Error),
}

/// A value: its bytes, and whether it is typed.
pub type Value = (Vec<u8>, bool);

/// The parts of a value that is being built.
#[derive(Default)]
pub(crate) struct Built(pub(crate) Vec<u8>);

impl<'p> Parts<'p> for Built {
    fn get(&self, _: Part) -> Option<&'p [u8]> {
        None
    }

    fn put(&mut self, _: Part) -> &mut Vec<u8> {
        &mut self.0
    }

    fn remove(&mut self, _: Part) {}
}

/// Serializes a value.
///
/// # Errors
/// [`crate::Error::Damaged`].
pub fn dump(value: &[u8], is_typed: bool) -> Result<Vec<u8>, crate::Error> {
    let mut out = Vec::with_capacity(value.len() + value.len() / 2 + FOOTER_BYTES);
    let mut version = VERSION_WRITTEN;
    match Type::of(value).filter(|_| is_typed) {
        None => {
            out.push(STRING);
            write_string(&mut out, value);
        }
        Some(Type::List) => {
            let list = List::of(Some(value))?;
            write_head(&mut out, LIST, list.items.len());
            list.items
                .iter()
                .for_each(|item| write_string(&mut out, &item.bytes()));
        }
        Some(Type::Set) => {
            let set = Set::of(Some(value))?;
            write_head(&mut out, SET, set.len());
            for (member, ()) in set.elements() {
                write_string(&mut out, &member.bytes());
            }
        }
        Some(Type::Hash) => {
            let hash = Hash::of(Some(value))?;
            write_head(&mut out, HASH, hash.len());
            for (field, value) in hash.elements() {
                write_string(&mut out, &field.bytes());
                write_string(&mut out, &value.bytes());
            }
        }
        Some(Type::SortedSet) => {
            let mut set = Sorted::of(Some(value))?;
            write_head(&mut out, SORTED_SET, set.len());
            for (member, score) in set.elements() {
                write_string(&mut out, &member.bytes());
                out.extend_from_slice(&score.to_le_bytes());
            }
        }
        Some(Type::Stream) => {
            version = VERSION_OF_STREAMS;
            streams::write(&mut out, value)?;
        }
    }
    end(&mut out, version);
    Ok(out)
}

/// Appends the footer.
fn end(out: &mut Vec<u8>, version: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    let crc = crc64(out);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn write_head(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.push(kind);
    write_length(out, count as u64);
}

pub(crate) fn write_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..64 => out.push(length as u8),
        64..16_384 => out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
        16_384..0x1_0000_0000 => {
            out.push(0x80);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
        _ => {
            out.push(0x81);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

pub(crate) fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    write_length(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The value in a payload.
///
/// # Errors
/// [`Error`].
pub fn restore(payload: &[u8]) -> Result<Value, Error> {
    let mut input = Input::of(content(payload)?);
    let value = value(&mut input)?;
    if input.rest.is_empty() {
        Ok(value)
    } else {
        Err(Error::Format)
    }
}

/// The bytes before the footer.
fn content(payload: &[u8]) -> Result<&[u8], Error> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(Error::Collection(crate::Error::Full));
    }
    let at = payload
        .len()
        .checked_sub(FOOTER_BYTES)
        .ok_or(Error::Footer)?;
    let (content, footer) = payload.split_at_checked(at).ok_or(Error::Footer)?;
    let [low, high, crc @ ..] = *footer.first_chunk::<FOOTER_BYTES>().ok_or(Error::Footer)?;
    let checked = payload.get(..at + 2).unwrap_or_default();
    let is_known = u16::from_le_bytes([low, high]) <= VERSION_READ_MAX;
    if !is_known || crc64(checked) != u64::from_le_bytes(crc) {
        return Err(Error::Footer);
    }
    Ok(content)
}

fn value(input: &mut Input<'_>) -> Result<Value, Error> {
    let kind = input.byte()?;
    if kind == STRING {
        let string = input.string()?;
        return if string.len() <= VALUE_BYTES_MAX {
            Ok((string, false))
        } else {
            Err(Error::Collection(crate::Error::Full))
        };
    }
    let mut built = Built::default();
    match kind {
        LIST | QUICKLIST => {
            let items = input.items(kind)?;
            let items = items.iter().map(|item| Text::of(item)).collect();
            List { items }.store(&mut built)?;
        }
        SET | SET_OF_INTEGERS | SET_LISTPACK => {
            let items = input.items(kind)?;
            let mut set = Set::default();
            set.expect(items.len());
            for item in &items {
                if set.insert(Text::of(item), ()).is_some() {
                    return Err(Error::Format);
                }
            }
            set.store(&mut built)?;
        }
        HASH | HASH_LISTPACK => {
            let items = input.items(kind)?;
            let (pairs, []) = items.as_chunks::<2>() else {
                return Err(Error::Format);
            };
            let mut hash = Hash::default();
            hash.expect(pairs.len());
            for [field, value] in pairs {
                if hash.insert(Text::of(field), Text::of(value)).is_some() {
                    return Err(Error::Format);
                }
            }
            hash.store(&mut built)?;
        }
        SORTED_SET | SORTED_SET_LISTPACK => {
            let scored = input.scored(kind)?;
            let mut set = Sorted::default();
            set.expect(scored.len());
            for (member, score) in &scored {
                if score.is_nan() || set.set(Text::of(member), *score).is_some() {
                    return Err(Error::Format);
                }
            }
            set.store(&mut built)?;
        }
        streams::STREAM | streams::STREAM_OF_7_0 | streams::STREAM_OF_7_2 => {
            built.0 = streams::restore(input, kind)?;
        }
        _ => return Err(Error::Format),
    }
    match built.0.is_empty() {
        true => Err(Error::Format), // types::Y3
        false => Ok((built.0, true)),
    }
}

/// Adds a string within the limits (D1). A hash has two strings for each element.
fn add(items: &mut Vec<Vec<u8>>, item: Vec<u8>) -> Result<(), Error> {
    if items.len() >= 2 * COLLECTION_ELEMENTS_MAX {
        return Err(Error::Collection(crate::Error::Full));
    }
    items.push(item);
    Ok(())
}

/// The rest of a payload, or of a block in it.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
    /// Bytes that may still be decoded (D1).
    budget: usize,
}

/// A length, or the form of a string that is encoded in another way.
enum Length {
    Of(usize),
    Encoded(u8),
}

impl<'a> Input<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Input<'a> {
        Input {
            rest: bytes,
            budget: DECODED_BYTES_MAX,
        }
    }

    /// Sets how many bytes may be decoded (D1).
    pub(crate) fn allow(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Counts bytes that will be decoded (D1).
    fn spend(&mut self, bytes: usize) -> Result<(), Error> {
        let left = self.budget.checked_sub(bytes);
        self.budget = left.ok_or(Error::Collection(crate::Error::Full))?;
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Error::Format)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Format)
    }

    fn byte(&mut self) -> Result<u8, Error> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// A number in the form of a length.
    pub(crate) fn number(&mut self) -> Result<u64, Error> {
        Ok(self.length()? as u64)
    }

    /// An id in the form of two such numbers.
    pub(crate) fn id_of_numbers(&mut self) -> Result<Id, Error> {
        Ok(Id {
            ms: self.number()?,
            seq: self.number()?,
        })
    }

    /// An id in the form of 16 bytes, big endian.
    pub(crate) fn id(&mut self) -> Result<Id, Error> {
        Ok(Id {
            ms: u64::from_be_bytes(self.array()?),
            seq: u64::from_be_bytes(self.array()?),
        })
    }

    fn length_or_form(&mut self) -> Result<Length, Error> {
        let first = self.byte()?;
        let length = match first >> 6 {
            0 => u64::from(first & 63),
            1 => u64::from(first & 63) << 8 | u64::from(self.byte()?),
            2 if first == 0x80 => u32::from_be_bytes(self.array()?).into(),
            2 if first == 0x81 => u64::from_be_bytes(self.array()?),
            3 => return Ok(Length::Encoded(first & 63)),
            _ => return Err(Error::Format),
        };
        usize::try_from(length)
            .map(Length::Of)
            .map_err(|_| Error::Format)
    }

    fn length(&mut self) -> Result<usize, Error> {
        match self.length_or_form()? {
            Length::Of(length) => Ok(length),
            Length::Encoded(_) => Err(Error::Format),
        }
    }

    pub(crate) fn string(&mut self) -> Result<Vec<u8>, Error> {
        let number: i64 = match self.length_or_form()? {
            Length::Of(length) => {
                self.spend(length)?;
                return Ok(self.take(length)?.to_vec());
            }
            Length::Encoded(0) => i8::from_le_bytes(self.array()?).into(),
            Length::Encoded(1) => i16::from_le_bytes(self.array()?).into(),
            Length::Encoded(2) => i32::from_le_bytes(self.array()?).into(),
            Length::Encoded(3) => {
                let (compressed, length) = (self.length()?, self.length()?);
                let compressed = self.take(compressed)?;
                self.spend(length)?;
                return decompressed(compressed, length).ok_or(Error::Format);
            }
            Length::Encoded(_) => return Err(Error::Format),
        };
        Ok(number.to_string().into_bytes())
    }

    /// All strings of a list, set or hash.
    fn items(&mut self, kind: u8) -> Result<Vec<Vec<u8>>, Error> {
        let mut items = Vec::new();
        match kind {
            SET_OF_INTEGERS => integers(&self.string()?, &mut items)?,
            HASH_LISTPACK | SET_LISTPACK | SORTED_SET_LISTPACK => {
                listpack(&self.string()?, &mut items)?;
            }
            QUICKLIST => {
                for _ in 0..self.length()? {
                    match self.length()? {
                        1 => add(&mut items, self.string()?)?,
                        2 => listpack(&self.string()?, &mut items)?,
                        _ => return Err(Error::Format),
                    }
                }
            }
            _ => {
                let count = self.length()?;
                let count = if kind == HASH {
                    count.checked_mul(2)
                } else {
                    Some(count)
                };
                for _ in 0..count.ok_or(Error::Format)? {
                    add(&mut items, self.string()?)?;
                }
            }
        }
        Ok(items)
    }

    fn scored(&mut self, kind: u8) -> Result<Vec<(Vec<u8>, f64)>, Error> {
        let mut scored = Vec::new();
        if kind == SORTED_SET {
            for _ in 0..self.length()? {
                if scored.len() >= COLLECTION_ELEMENTS_MAX {
                    return Err(Error::Collection(crate::Error::Full));
                }
                scored.push((self.string()?, f64::from_le_bytes(self.array()?)));
            }
            return Ok(scored);
        }
        let items = self.items(kind)?;
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err(Error::Format);
        };
        for [member, score] in pairs {
            let score = std::str::from_utf8(score)
                .ok()
                .and_then(|text| text.parse().ok());
            scored.push((member.clone(), score.ok_or(Error::Format)?));
        }
        Ok(scored)
    }
}

/// Reads a set of integers: their width and number, 4 bytes each, then the integers.
fn integers(bytes: &[u8], items: &mut Vec<Vec<u8>>) -> Result<(), Error> {
    let mut input = Input::of(bytes);
    let width = u32::from_le_bytes(input.array()?);
    let count = u32::from_le_bytes(input.array()?);
    for _ in 0..count {
        let integer: i64 = match width {
            2 => i16::from_le_bytes(input.array()?).into(),
            4 => i32::from_le_bytes(input.array()?).into(),
            8 => i64::from_le_bytes(input.array()?),
            _ => return Err(Error::Format),
        };
        add(items, integer.to_string().into_bytes())?;
    }
    Ok(())
}

/// Reads a listpack: its bytes (4), the number of elements (2), the elements, 255. Each element
/// ends with its own length, for reading backwards.
pub(crate) fn listpack(bytes: &[u8], items: &mut Vec<Vec<u8>>) -> Result<(), Error> {
    let mut input = Input::of(bytes);
    input.take(6)?;
    while input.rest.first().is_some_and(|first| *first != 0xff) {
        let before = input.rest.len();
        let first = input.byte()?;
        let integer: i64 = match first {
            0..0x80 => first.into(),
            0x80..0xc0 => {
                add(items, input.take(usize::from(first & 63))?.to_vec())?;
                skip_length(&mut input, before)?;
                continue;
            }
            0xc0..0xe0 => {
                let value = i64::from(first & 31) << 8 | i64::from(input.byte()?);
                if value >= 1 << 12 {
                    value - (1 << 13)
                } else {
                    value
                }
            }
            0xe0..=0xf0 => {
                let length = match first {
                    0xf0 => u32::from_le_bytes(input.array()?) as usize,
                    _ => usize::from(first & 15) << 8 | usize::from(input.byte()?),
                };
                add(items, input.take(length)?.to_vec())?;
                skip_length(&mut input, before)?;
                continue;
            }
            0xf1 => i16::from_le_bytes(input.array()?).into(),
            0xf2 => {
                let [a, b, c] = input.array()?;
                (i32::from_le_bytes([0, a, b, c]) >> 8).into()
            }
            0xf3 => i32::from_le_bytes(input.array()?).into(),
            0xf4 => i64::from_le_bytes(input.array()?),
            _ => return Err(Error::Format),
        };
        add(items, integer.to_string().into_bytes())?;
        skip_length(&mut input, before)?;
    }
    match input.rest {
        [0xff] => Ok(()),
        _ => Err(Error::Format),
    }
}

/// Passes the length behind an element, which began when `before` bytes were left.
fn skip_length(input: &mut Input<'_>, before: usize) -> Result<(), Error> {
    let bytes = match before - input.rest.len() {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        _ => 4,
    };
    input.take(bytes).map(|_| ())
}

/// Decompresses LZF: runs of literal bytes, and copies of earlier bytes. The caller has limited
/// `length` (D1).
fn decompressed(mut bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(bytes.len() * 8));
    while let [control, rest @ ..] = bytes {
        if *control < 32 {
            let (literal, rest) = rest.split_at_checked(usize::from(*control) + 1)?;
            out.extend_from_slice(literal);
            bytes = rest;
        } else {
            let (mut copied, mut rest) = (usize::from(control >> 5), rest);
            if copied == 7 {
                let (more, after) = rest.split_first()?;
                copied += usize::from(*more);
                rest = after;
            }
            let (low, after) = rest.split_first()?;
            let distance = (usize::from(control & 31) << 8 | usize::from(*low)) + 1;
            let start = out.len().checked_sub(distance)?;
            for at in start..start + copied + 2 {
                out.push(*out.get(at)?);
            }
            bytes = after;
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

/// Jones' polynomial, its bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

// Evaluated by the compiler only, where an index out of range would not compile.
#[allow(clippy::indexing_slicing)]
const fn crc_table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

static CRC_TABLE: [u64; 256] = crc_table();

fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        let place = (crc as u8 ^ byte) as usize;
        CRC_TABLE.get(place).copied().unwrap_or(0) ^ crc >> 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payload(content: &[u8]) -> Vec<u8> {
        let mut payload = [content, &12u16.to_le_bytes()].concat();
        let crc = crc64(&payload);
        payload.extend_from_slice(&crc.to_le_bytes());
        payload
    }

    fn list(items: &[&[u8]]) -> Value {
        let mut built = Built::default();
        let items = items.iter().map(|item| Text::of(item)).collect();
        List { items }.store(&mut built).unwrap();
        (built.0, true)
    }

    #[test]
    fn the_checksum_is_the_one_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn a_string_has_the_bytes_of_redis() {
        let dumped = dump(b"value", false).unwrap();
        assert_eq!(&dumped[..8], b"\0\x05value\x09");
        assert_eq!(restore(&dumped), Ok((b"value".to_vec(), false)));
    }

    #[test]
    fn forms_that_are_only_read() {
        let listpack = b"\x1d\0\0\0\x06\0\x01\x01\x81a\x02\xc1\x00\x02\xdf\xff\x02\xf2\xff\xff\x7f\x04\xe0\x01b\x03\xff";
        let block = [&b"\x12\x01\x02"[..], &[listpack.len() as u8], listpack].concat();
        let items: [&[u8]; 6] = [b"1", b"a", b"256", b"-1", b"8388607", b"b"];
        assert_eq!(restore(&payload(&block)), Ok(list(&items)));
        // LZF: "a", then eight copies of it.
        let compressed = b"\0\xc3\x05\x09\x00a\xe0\x00\x00";
        assert_eq!(decompressed(b"\0a\xc0\0", 9), Some(b"aaaaaaaaa".to_vec()));
        assert_eq!(
            restore(&payload(b"\0\xc3\x04\x09\0a\xc0\0")),
            Ok((b"aaaaaaaaa".to_vec(), false))
        );
        assert!(restore(&payload(compressed)).is_err());
        assert_eq!(
            restore(&payload(b"\0\xc0\xfe")),
            Ok((b"-2".to_vec(), false))
        );
        let set = restore(&payload(b"\x0b\x0c\x02\0\0\0\x02\0\0\0\x01\0\xff\xff"))
            .unwrap()
            .0;
        let set = Set::of(Some(&set)).unwrap();
        assert!(set.has(&Text::Integer(1)) && set.has(&Text::Integer(-1)));
    }

    /// The sum of 64 MB was computed before anything else, and stopped a thread meanwhile.
    #[test]
    fn a_payload_that_no_value_needs_is_refused_by_its_length() {
        let too_long = Err(Error::Collection(crate::Error::Full));
        let payload = vec![1; PAYLOAD_BYTES_MAX + 1];
        assert_eq!(restore(&payload), too_long);
        assert_eq!(restore(&payload[1..]), Err(Error::Footer));
        assert_eq!(
            restore_libraries(&payload).map(|_| ()),
            too_long.map(|_| ())
        );
    }

    /// Each string may be long, and small compressed; but together they once needed gigabytes.
    #[test]
    fn all_strings_together_have_a_limit() {
        let megabyte = {
            let mut lzf = vec![0, b'a'];
            let copies = (VALUE_BYTES_MAX - 1) / 264; // the longest copies
            (0..copies).for_each(|_| lzf.extend([0xe0, 0xff, 0]));
            let rest = VALUE_BYTES_MAX - 1 - copies * 264;
            lzf.extend([0xe0, (rest - 9) as u8, 0]);
            let mut out = vec![0xc3];
            write_length(&mut out, lzf.len() as u64);
            write_length(&mut out, VALUE_BYTES_MAX as u64);
            out.extend(lzf);
            out
        };
        let full = Err(Error::Collection(crate::Error::Full));
        let one = restore(&payload(&[&[STRING][..], &megabyte].concat())).unwrap();
        assert_eq!(one.0.len(), VALUE_BYTES_MAX);
        for kind in [LIST, SET, HASH] {
            let content = [&[kind, 4][..], &megabyte.repeat(4)].concat();
            assert_eq!(restore(&payload(&content)), full);
        }
        let block = [&[1][..], &megabyte].concat();
        let blocks = [&[QUICKLIST, 4][..], &block.repeat(4)].concat();
        assert_eq!(restore(&payload(&blocks)), full);
        let (mut built, mut hash) = (Built::default(), Hash::default());
        hash.expect(61_000);
        for n in 0..61_000 {
            let integer = Text::Integer(n - (1 << 54)); // 18 digits in 8 bytes
            hash.insert(integer, integer);
        }
        hash.store(&mut built).unwrap();
        let value = (built.0, true);
        assert_eq!(restore(&dump(&value.0, true).unwrap()), Ok(value));
    }

    #[test]
    fn a_sorted_set_has_a_limit_of_members() {
        let mut content = Vec::new();
        write_head(&mut content, SORTED_SET, COLLECTION_ELEMENTS_MAX + 1);
        for n in 0..=COLLECTION_ELEMENTS_MAX {
            write_string(&mut content, n.to_string().as_bytes());
            content.extend([0; 8]);
        }
        let full = Err(Error::Collection(crate::Error::Full));
        assert_eq!(restore(&payload(&content)), full);
    }

    #[test]
    fn damage_is_refused() {
        let dumped = dump(b"value", false).unwrap();
        for bit in 0..dumped.len() * 8 {
            let mut damaged = dumped.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(restore(&damaged), Err(Error::Footer), "bit {bit}");
        }
        for content in [
            &b""[..],
            b"\x02\x00",
            b"\x02\x02\x01a\x01a",
            b"\x04\x01\x01a",
            b"\x0a\x00",
            b"\0\x01aa",
        ] {
            assert_eq!(
                restore(&payload(content)),
                Err(Error::Format),
                "{content:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_content_is_refused_or_read(content: Vec<u8>, kind in 0u8..23) {
            let content = [&[kind], &content[..]].concat();
            if let Ok((value, is_typed)) = restore(&payload(&content)) {
                let again = dump(&value, is_typed).unwrap();
                prop_assert_eq!(restore(&again), Ok((value, is_typed)));
            }
            let _ = restore(&content);
            let mut items = Vec::new();
            let _ = listpack(&content, &mut items);
            let _ = integers(&content, &mut items);
            let _ = decompressed(&content, 300);
        }
    }
}
