//! The packed form of a collection: all elements in one value.
//!
//! **Layout**
//!
//! ```text
//! +------+-------------------+--------------------------------------+-------------------------+
//! | type | count, a varint   | fingerprints: a byte for each name   | elements, one by one    |
//! +------+-------------------+--------------------------------------+-------------------------+
//! ```
//!
//! A list has no fingerprints. Each element is a [`Text`], its name, followed in a hash by a second
//! `Text`, and in a sorted set by its score: an integer, or 8 bytes of an `f64` that is no NaN.
//!
//! - P1: the names of a hash, set or sorted set are different.

use crate::text::{Text, read_varint, write_varint};
use crate::{Error, Part, Parts, Type};
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};

/// The part of an element behind its name.
pub trait Item<'a>: Copy {
    const TYPE: Type;

    #[doc(hidden)]
    fn decode(bytes: &mut &'a [u8]) -> Option<Self>;
    #[doc(hidden)]
    fn encode(&self, out: &mut Vec<u8>);
}

impl Item<'_> for () {
    const TYPE: Type = Type::Set;

    #[inline]
    fn decode(_: &mut &[u8]) -> Option<()> {
        Some(())
    }

    #[inline]
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl<'a> Item<'a> for Text<'a> {
    const TYPE: Type = Type::Hash;

    #[inline]
    fn decode(bytes: &mut &'a [u8]) -> Option<Text<'a>> {
        Text::decode(bytes)
    }

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        Text::encode(self, out);
    }
}

/// Doubles below this are exact integers.
const EXACT_END: f64 = (1u64 << 53) as f64;

impl<'a> Item<'a> for f64 {
    const TYPE: Type = Type::SortedSet;

    #[inline]
    fn decode(bytes: &mut &'a [u8]) -> Option<f64> {
        match Text::decode(bytes)? {
            Text::Integer(integer) => Some(integer as f64),
            Text::Bytes(bytes) => bytes
                .try_into()
                .ok()
                .map(f64::from_le_bytes)
                .filter(|score| !score.is_nan()),
        }
    }

    /// Appends the score; -0 becomes 0, as in small sets of Redis.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        if self.trunc() == *self && self.abs() < EXACT_END {
            Text::Integer(*self as i64).encode(out);
        } else {
            Text::Bytes(&self.to_le_bytes()).encode(out);
        }
    }
}

/// A packed value whose head was read.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub(crate) count: usize,
    /// The fingerprints of the names; empty in a list.
    fingerprints: &'a [u8],
    pub(crate) elements: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Reads the head of a typed value.
    ///
    /// # Errors
    /// [`Error::WrongType`] if the value is of another type, [`Error::Damaged`].
    #[inline]
    pub(crate) fn open(value: &'a [u8], kind: Type) -> Result<Packed<'a>, Error> {
        let (first, mut rest) = value.split_first().ok_or(Error::Damaged)?;
        if *first != kind as u8 {
            return Err(Type::of(value).map_or(Error::Damaged, |_| Error::WrongType));
        }
        let count = read_varint(&mut rest).ok_or(Error::Damaged)?;
        let count = usize::try_from(count).map_err(|_| Error::Damaged)?;
        if count > COLLECTION_ELEMENTS_MAX || count > rest.len() {
            return Err(Error::Damaged); // types::Y2
        }
        let prints = if kind == Type::List { 0 } else { count };
        let (fingerprints, elements) = rest.split_at_checked(prints).ok_or(Error::Damaged)?;
        Ok(Packed {
            count,
            fingerprints,
            elements,
        })
    }

    /// All elements.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn decode<I: Item<'a>>(&self) -> Result<Vec<(Text<'a>, I)>, Error> {
        let mut bytes = self.elements;
        let mut elements = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            elements.push(element(&mut bytes).ok_or(Error::Damaged)?);
        }
        if bytes.is_empty() {
            Ok(elements)
        } else {
            Err(Error::Damaged)
        }
    }

    /// The item of the element `name`.
    #[inline]
    fn find<I: Item<'a>>(&self, name: &Text<'_>) -> Result<Option<I>, Error> {
        let print = name.fingerprint();
        let (mut bytes, mut passed) = (self.elements, 0);
        for at in memchr::memchr_iter(print, self.fingerprints) {
            while passed < at {
                element::<I>(&mut bytes).ok_or(Error::Damaged)?;
                passed += 1;
            }
            let (found, item) = element::<I>(&mut bytes).ok_or(Error::Damaged)?;
            passed += 1;
            if found == *name {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}

#[inline]
fn element<'a, I: Item<'a>>(bytes: &mut &'a [u8]) -> Option<(Text<'a>, I)> {
    Some((Text::decode(bytes)?, I::decode(bytes)?))
}

/// Elements one by one, to the end of the bytes.
///
/// # Errors
/// [`Error::Damaged`].
pub(crate) fn unpack<'a, I: Item<'a>>(mut bytes: &'a [u8]) -> Result<Vec<(Text<'a>, I)>, Error> {
    let mut elements = Vec::new();
    while !bytes.is_empty() {
        elements.push(element(&mut bytes).ok_or(Error::Damaged)?);
    }
    Ok(elements)
}

/// The item of the element `name` in a packed value, in which only one name is searched; `None` if
/// there is no such element. For many names decode the whole value
/// ([`Table::load`](crate::Table::load)).
///
/// # Errors
/// [`Error::WrongType`], [`Error::Damaged`].
#[inline]
pub fn find_at_most_once<'a, I: Item<'a>>(
    value: &'a [u8],
    name: &[u8],
) -> Result<Option<I>, Error> {
    Packed::open(value, I::TYPE)?.find(&Text::of(name))
}

/// Calls `take` with each element of a packed value, without memory for all of them.
///
/// # Errors
/// [`Error::WrongType`], [`Error::Damaged`].
pub fn each<'a, I: Item<'a>>(
    value: Option<&'a [u8]>,
    mut take: impl FnMut(Text<'a>, I),
) -> Result<(), Error> {
    let Some(value) = value else {
        return Ok(());
    };
    let packed = Packed::open(value, I::TYPE)?;
    let mut bytes = packed.elements;
    for _ in 0..packed.count {
        let (name, item) = element(&mut bytes).ok_or(Error::Damaged)?;
        take(name, item);
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(Error::Damaged)
    }
}

/// Calls `take` with the members of a packed set from number `from` on, until it returns false.
/// Returns the number of the next member if it did.
///
/// # Errors
/// [`Error::WrongType`], [`Error::Damaged`].
pub fn members_from<'a>(
    value: Option<&'a [u8]>,
    from: usize,
    mut take: impl FnMut(Text<'a>) -> bool,
) -> Result<Option<usize>, Error> {
    let Some(value) = value else {
        return Ok(None);
    };
    let packed = Packed::open(value, Type::Set)?;
    let mut bytes = packed.elements;
    for at in 0..packed.count {
        let (member, ()) = element::<()>(&mut bytes).ok_or(Error::Damaged)?;
        if at >= from && !take(member) {
            return Ok(Some(at + 1));
        }
    }
    if bytes.is_empty() {
        Ok(None)
    } else {
        Err(Error::Damaged)
    }
}

/// Number of elements of a packed value.
///
/// # Errors
/// [`Error::WrongType`], [`Error::Damaged`].
#[inline]
pub fn count(value: &[u8], kind: Type) -> Result<usize, Error> {
    Ok(Packed::open(value, kind)?.count)
}

/// Writes the head of a value with `count` elements.
pub(crate) fn write_head(out: &mut Vec<u8>, kind: Type, count: usize) {
    out.push(kind as u8);
    write_varint(out, count as u64);
}

/// Stores a collection, or removes it if it is empty (types::Y3).
///
/// # Errors
/// [`Error::Full`]; nothing was stored.
pub(crate) fn store<'p, 'a, I: Item<'a>>(
    elements: &[(Text<'a>, I)],
    parts: &mut impl Parts<'p>,
) -> Result<(), Error> {
    if elements.is_empty() {
        parts.remove(Part::Root);
        return Ok(());
    }
    check_size(elements.len(), bytes_of(elements))?;
    let out = parts.put(Part::Root);
    write_head(out, I::TYPE, elements.len());
    let prints = elements.iter().map(|(name, _)| name.fingerprint());
    out.extend(prints);
    for (name, item) in elements {
        name.encode(out);
        item.encode(out);
    }
    // The estimate left out lengths, fingerprints and numbers.
    if out.len() > VALUE_BYTES_MAX {
        return Err(Error::Full);
    }
    Ok(())
}

/// Checks the limits of a collection (types::Y4).
///
/// # Errors
/// [`Error::Full`].
pub(crate) fn check_size(count: usize, bytes: usize) -> Result<(), Error> {
    if count > COLLECTION_ELEMENTS_MAX || bytes > VALUE_BYTES_MAX {
        return Err(Error::Full);
    }
    Ok(())
}

/// A lower bound of the encoded bytes of all elements.
fn bytes_of<'a, I>(elements: &[(Text<'a>, I)]) -> usize {
    let length = |text: &Text<'_>| match text {
        Text::Bytes(bytes) => bytes.len() + 1,
        Text::Integer(_) => 1,
    };
    elements.iter().map(|(name, _)| length(name)).sum()
}
