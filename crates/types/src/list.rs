//! Lists. Pushing and popping copy bytes without decoding them; the other changes decode the list.

use crate::packed::{Packed, check_size, write_head};
use crate::text::Text;
use crate::{Error, Part, Parts, Type};
use duramen_base::limits::VALUE_BYTES_MAX;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Head,
    Tail,
}

/// A decoded list.
#[derive(Clone, Debug, Default)]
pub struct List<'a> {
    pub items: Vec<Text<'a>>,
}

fn open(value: &[u8]) -> Result<Packed<'_>, Error> {
    Packed::open(value, Type::List)
}

/// Splits encoded items before number `n`.
fn split(elements: &[u8], n: usize) -> Result<(&[u8], &[u8]), Error> {
    let mut rest = elements;
    for _ in 0..n {
        Text::decode(&mut rest).ok_or(Error::Damaged)?;
    }
    elements
        .split_at_checked(elements.len() - rest.len())
        .ok_or(Error::Damaged)
}

/// The first `n` items.
fn read(mut bytes: &[u8], n: usize) -> Result<Vec<Text<'_>>, Error> {
    take(&mut bytes, n)
}

/// All `n` items; no other bytes may follow them.
fn read_all(mut bytes: &[u8], n: usize) -> Result<Vec<Text<'_>>, Error> {
    let items = take(&mut bytes, n)?;
    if bytes.is_empty() {
        Ok(items)
    } else {
        Err(Error::Damaged)
    }
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<Vec<Text<'a>>, Error> {
    let mut items = Vec::with_capacity(n.min(bytes.len()));
    for _ in 0..n {
        items.push(Text::decode(bytes).ok_or(Error::Damaged)?);
    }
    Ok(items)
}

/// Writes a list of `count` items that are encoded already.
fn put<'p>(parts: &mut impl Parts<'p>, count: usize, pieces: [&[u8]; 2]) -> Result<(), Error> {
    if count == 0 {
        parts.remove(Part::Root); // types::Y3
        return Ok(());
    }
    check_size(count, pieces.iter().map(|piece| piece.len()).sum())?;
    let out = parts.put(Part::Root);
    write_head(out, Type::List, count);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    check_size(count, out.len())
}

/// Pushes items, one after the other; returns the new length.
///
/// # Errors
/// [`Error`].
pub fn push<'p, 'i>(
    parts: &mut impl Parts<'p>,
    end: End,
    items: impl DoubleEndedIterator<Item = &'i [u8]> + ExactSizeIterator,
) -> Result<usize, Error> {
    let (count, elements) = match parts.get(Part::Root) {
        Some(value) => open(value).map(|list| (list.count, list.elements))?,
        None => (0, &[][..]),
    };
    let count = count + items.len();
    let mut encoded = Vec::new();
    let mut add = |item: &[u8]| {
        if encoded.len() <= VALUE_BYTES_MAX {
            Text::of(item).encode(&mut encoded);
        }
    };
    match end {
        End::Head => {
            items.rev().for_each(&mut add);
            put(parts, count, [&encoded, elements])?;
        }
        End::Tail => {
            items.for_each(&mut add);
            put(parts, count, [elements, &encoded])?;
        }
    }
    Ok(count)
}

/// Pops up to `n` items; the item that is popped first is the first of them.
///
/// # Errors
/// [`Error`].
pub fn pop<'p>(parts: &mut impl Parts<'p>, end: End, n: usize) -> Result<Vec<Text<'p>>, Error> {
    let Some(value) = parts.get(Part::Root) else {
        return Ok(Vec::new());
    };
    let list = open(value)?;
    let n = n.min(list.count);
    let kept = list.count - n;
    let at = if end == End::Head { n } else { kept };
    let (front, back) = split(list.elements, at)?;
    let (popped, rest) = match end {
        End::Head => (read(front, n)?, back),
        End::Tail => (read_all(back, n)?.into_iter().rev().collect(), front),
    };
    put(parts, kept, [rest, &[]])?;
    Ok(popped)
}

/// Up to `n` items from number `start` on.
///
/// # Errors
/// [`Error`].
pub fn range(value: &[u8], start: usize, n: usize) -> Result<Vec<Text<'_>>, Error> {
    let list = open(value)?;
    let start = start.min(list.count);
    let (_, rest) = split(list.elements, start)?;
    read(rest, n.min(list.count - start))
}

impl<'a> List<'a> {
    /// Decodes a packed value; without a value the list is empty.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Damaged`].
    pub fn of(value: Option<&'a [u8]>) -> Result<List<'a>, Error> {
        let items = match value {
            Some(value) => {
                let list = open(value)?;
                read_all(list.elements, list.count)?
            }
            None => Vec::new(),
        };
        Ok(List { items })
    }

    /// As [`of`](Self::of), from the parts.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn load(parts: &impl Parts<'a>) -> Result<List<'a>, Error> {
        List::of(parts.get(Part::Root))
    }

    /// Replaces the list's parts, or removes them if it is empty.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn store<'p>(&self, parts: &mut impl Parts<'p>) -> Result<(), Error> {
        let bytes = self.items.iter().map(Text::len).sum();
        check_size(self.items.len(), bytes)?;
        let mut encoded = Vec::with_capacity(bytes + self.items.len());
        self.items.iter().for_each(|item| item.encode(&mut encoded));
        put(parts, self.items.len(), [&encoded, &[]])
    }
}
