//! Parts: the entries that a large collection or a long string consists of, besides the *root*
//! under the user's key.
//!
//! A part is an entry with a flag of its own (entry::F6). Its key is a [`PartKey`]: the *home* of
//! the collection and a number. Number 0 is the *record* of a home that no root names: it is
//! *dying*, so its parts are removed, or it is *building*, so no root names it yet.
//!
//! **Layout of values** (each number is a varint: 7 bits a byte, the lowest first, no longer than
//! needed):
//!
//! ```text
//! names     numbers, homes (number of them), each: home (11 bytes), numbers
//! numbers   count, each: difference to the one before (the first: to 0), in zigzag form
//!
//! root      0x80 | type   names   body    a typed object in the table itself
//! leaf      0x00                  body
//! inner     0x01          names   body
//! leaf      0x02          names   body    with elements that have homes of their own
//! dying     0x10          names           number 0
//! building  0x11          names   last number (5 bytes, big endian), key of the root to be
//! ```
//!
//! The numbers in front of the homes are the *children* of an inner node, in their order; all
//! other values have none. The numbers behind a home are its *tops*: all parts that are no child of
//! another part. The homes are: of a root, first its own, then those of elements in it; of a leaf
//! 2, those of its elements; of a dying record, the one that dies; of others none. Bodies are
//! those of crate `types`.
//!
//! **Invariants**
//! - K1: the route of a part is the beginning of its home, and the home's slot is that of its
//!   root's key in a store with tablets: so a collection moves and recovers with its root.
//! - K2: a number is given once for each home. So a part has no predecessor that was removed, and
//!   a number that leads to no entry is that of a part that is gone.
//! - K3: names come first, in one form for all types: so a tool or thread that walks over a
//!   collection, or removes it, needs nothing of its type.
//! - K4: names are verified as a whole before the first of them is used, and verification takes no
//!   memory. Names that are wrong are damage, however good the entry's sum is.
//!
//! Differs from kvrocks, whose subkeys name their root, so that its compaction must look the root
//! up for each of them: here the root names its parts, and cleaning asks for no root.

use duramen_base::ids::{Home, PartKey};

/// The bit of a typed value's first byte that tells a root with parts from a packed value.
const ROOT: u8 = 0x80;
const LEAF: u8 = 0x00;
const INNER: u8 = 0x01;
const LEAF_WITH_HOMES: u8 = 0x02;
const DYING: u8 = 0x10;
const BUILDING: u8 = 0x11;
/// Bytes of the last number in a building record.
const LAST_BYTES: usize = PartKey::BYTES - Home::BYTES;

/// A part whose value does not have the form of its kind (K4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value does not name its parts as a root, a part or a record does")]
pub struct Damage;

/// The kind of a value that may name parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Root,
    Inner,
    Leaf,
    /// The record of a home whose parts are to be removed.
    Dying,
    /// The record of a home that no root names yet.
    Building,
}

impl Form {
    /// The form's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Form::Root => "root",
            Form::Inner => "inner node",
            Form::Leaf => "leaf",
            Form::Dying => "dying record",
            Form::Building => "building record",
        }
    }
}

/// The names in a value, verified (K4).
#[derive(Clone, Debug)]
pub struct Names<'a> {
    form: Form,
    children: Numbers<'a>,
    homes: Homes<'a>,
    body: &'a [u8],
}

impl<'a> Names<'a> {
    pub fn form(&self) -> Form {
        self.form
    }

    /// The children of an inner node, in their order.
    pub fn children(&self) -> Numbers<'a> {
        self.children.clone()
    }

    /// Homes, each with its tops; the first one of a root is its own.
    pub fn homes(&self) -> Homes<'a> {
        self.homes.clone()
    }

    /// The bytes behind the names.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The content of a building record: the highest number that may have been given, and the key
    /// of the root to be.
    pub fn building(&self) -> Option<(u64, &'a [u8])> {
        let (last, key) = self.body.split_first_chunk::<LAST_BYTES>()?;
        let last = last
            .iter()
            .fold(0, |last, byte| last << 8 | u64::from(*byte));
        (self.form == Form::Building).then_some((last, key))
    }

    /// Whether there are as many names as a value with this first byte has.
    fn fit_form(&self, tag: u8) -> bool {
        let (children, homes) = (self.children.len(), self.homes.len());
        match tag {
            LEAF => true,
            INNER => children > 0 && homes == 0,
            DYING => children == 0 && homes == 1 && self.body.is_empty(),
            BUILDING => children == 0 && homes == 0 && self.body.len() >= LAST_BYTES,
            _ => children == 0 && homes > 0,
        }
    }

    /// Whether a value with these names may be under this key: a record has number 0, and a dying
    /// one names its own home.
    fn fit_key(&self, key: PartKey) -> bool {
        match self.form {
            Form::Root => false,
            Form::Inner | Form::Leaf => !key.is_record(),
            Form::Building => key.is_record(),
            Form::Dying => {
                let mut homes = self.homes();
                key.is_record() && homes.all(|(home, _)| home == key.home())
            }
        }
    }
}

/// Whether the value of an object is a root with parts.
#[inline(always)]
pub fn has_parts(value: &[u8], is_typed: bool) -> bool {
    is_typed && value.first().is_some_and(|tag| tag & ROOT != 0)
}

/// The names in a root, or in a part of any kind. `None`: they are damaged.
pub fn names(value: &[u8], is_root: bool) -> Option<Names<'_>> {
    let (tag, mut rest) = value.split_first()?;
    let form = match *tag {
        tag if tag & ROOT != 0 => Form::Root,
        LEAF | LEAF_WITH_HOMES => Form::Leaf,
        INNER => Form::Inner,
        DYING => Form::Dying,
        BUILDING => Form::Building,
        _ => return None,
    };
    if is_root != (form == Form::Root) {
        return None;
    }
    let (children, homes) = match *tag {
        LEAF => Default::default(),
        _ => (Numbers::take(&mut rest)?, Homes::take(&mut rest)?),
    };
    let names = Names {
        form,
        children,
        homes,
        body: rest,
    };
    names.fit_form(*tag).then_some(names)
}

/// The names in the part with this key. `None`: they are damaged.
pub fn names_under(key: PartKey, value: &[u8]) -> Option<Names<'_>> {
    names(value, false).filter(|names| names.fit_key(key))
}

/// Numbers of parts of one home.
#[derive(Clone, Debug, Default)]
pub struct Numbers<'a> {
    rest: &'a [u8],
    left: usize,
    /// The number before the next one.
    last: u64,
}

impl<'a> Numbers<'a> {
    /// Takes the numbers off the front of `bytes`, verified.
    fn take(bytes: &mut &'a [u8]) -> Option<Numbers<'a>> {
        let left = usize::try_from(take_varint(bytes)?).ok()?;
        let (rest, last) = (*bytes, 0);
        let mut numbers = Numbers { rest, left, last };
        for _ in 0..left {
            numbers.step()?;
        }
        let (rest, behind) = rest.split_at(rest.len() - numbers.rest.len());
        *bytes = behind;
        Some(Numbers { rest, left, last })
    }

    fn step(&mut self) -> Option<u64> {
        let zigzag = take_varint(&mut self.rest)?;
        let difference = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let number = self.last.checked_add_signed(difference)?;
        self.last = number;
        (PartKey::RECORD + 1..=PartKey::NUMBER_MAX)
            .contains(&number)
            .then_some(number)
    }
}

impl Iterator for Numbers<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.step()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Numbers<'_> {}

/// Homes, each with its tops.
#[derive(Clone, Debug, Default)]
pub struct Homes<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Homes<'a> {
    /// As [`Numbers::take`].
    fn take(bytes: &mut &'a [u8]) -> Option<Homes<'a>> {
        let left = usize::try_from(take_varint(bytes)?).ok()?;
        let rest = *bytes;
        let mut homes = Homes { rest, left };
        for _ in 0..left {
            homes.step()?;
        }
        let (rest, behind) = rest.split_at(rest.len() - homes.rest.len());
        *bytes = behind;
        Some(Homes { rest, left })
    }

    fn step(&mut self) -> Option<(Home, Numbers<'a>)> {
        let (home, rest) = self.rest.split_first_chunk::<{ Home::BYTES }>()?;
        self.rest = rest;
        Some((Home::from_bytes(*home), Numbers::take(&mut self.rest)?))
    }
}

impl<'a> Iterator for Homes<'a> {
    type Item = (Home, Numbers<'a>);

    fn next(&mut self) -> Option<(Home, Numbers<'a>)> {
        self.left = self.left.checked_sub(1)?;
        self.step()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Homes<'_> {}

/// Appends the first byte and the names of a root of this type; its body follows. `homes`: first
/// its own.
pub fn begin_root<N: ExactSizeIterator<Item = u64>>(
    out: &mut Vec<u8>,
    type_of: u8,
    homes: impl ExactSizeIterator<Item = (Home, N)>,
) {
    out.push(ROOT | type_of);
    append_names(out, std::iter::empty(), homes);
}

/// As [`begin_root`], for an inner node.
pub fn begin_inner(out: &mut Vec<u8>, children: impl ExactSizeIterator<Item = u64>) {
    out.push(INNER);
    append_names(out, children, no_homes());
}

/// As [`begin_root`], for a leaf with these homes of elements.
pub fn begin_leaf<N: ExactSizeIterator<Item = u64>>(
    out: &mut Vec<u8>,
    homes: impl ExactSizeIterator<Item = (Home, N)>,
) {
    match homes.len() {
        0 => out.push(LEAF),
        _ => {
            out.push(LEAF_WITH_HOMES);
            append_names(out, std::iter::empty(), homes);
        }
    }
}

/// Appends the dying record of a home.
pub fn append_dying(out: &mut Vec<u8>, home: Home, tops: impl ExactSizeIterator<Item = u64>) {
    out.push(DYING);
    append_names(out, std::iter::empty(), std::iter::once((home, tops)));
}

/// Appends a building record. `last`: the highest number that may have been given; `root`: the key
/// of the root to be.
pub fn append_building(out: &mut Vec<u8>, last: u64, root: &[u8]) {
    debug_assert!(last <= PartKey::NUMBER_MAX);
    out.push(BUILDING);
    append_names(out, std::iter::empty(), no_homes());
    let last = last.to_be_bytes();
    out.extend_from_slice(&last[last.len() - LAST_BYTES..]);
    out.extend_from_slice(root);
}

fn no_homes() -> impl ExactSizeIterator<Item = (Home, std::iter::Empty<u64>)> {
    std::iter::empty()
}

fn append_names<N: ExactSizeIterator<Item = u64>>(
    out: &mut Vec<u8>,
    children: impl ExactSizeIterator<Item = u64>,
    homes: impl ExactSizeIterator<Item = (Home, N)>,
) {
    append_numbers(out, children);
    append_varint(out, homes.len() as u64);
    for (home, tops) in homes {
        out.extend_from_slice(home.as_bytes());
        append_numbers(out, tops);
    }
}

fn append_numbers(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    append_varint(out, numbers.len() as u64);
    let mut last = 0;
    for number in numbers {
        debug_assert!((PartKey::RECORD + 1..=PartKey::NUMBER_MAX).contains(&number));
        let difference = number.wrapping_sub(last) as i64;
        append_varint(out, (difference << 1 ^ difference >> 63) as u64);
        last = number;
    }
}

fn append_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a varint off the front of `bytes`. `None`: it is cut, has more than 64 bits, or is longer
/// than needed.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        value |= bits << shift;
        if byte & 0x80 == 0 {
            let is_whole = value >> shift == bits;
            let is_shortest = bits > 0 || shift == 0;
            return (is_whole && is_shortest).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
