//! The entries of a stream, one behind the other.

use super::Id;
use crate::Error;
use crate::text::{Text, read_varint, write_varint};

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub id: Id,
    pub(super) body: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(super) fn pairs(
        &self,
        fields: usize,
        common: &'a [u8],
    ) -> Result<Vec<(Text<'a>, Text<'a>)>, Error> {
        decode(self.body, fields, common).ok_or(Error::Damaged)
    }
}

type Pairs<'a> = Vec<(Text<'a>, Text<'a>)>;

fn decode<'a>(mut body: &'a [u8], fields: usize, mut common: &'a [u8]) -> Option<Pairs<'a>> {
    let own = usize::try_from(read_varint(&mut body)?).ok()?;
    let number = if own == 0 { fields } else { own };
    if number == 0 || number > body.len() {
        return None; // types::Y2
    }
    let mut pairs = Vec::with_capacity(number);
    for _ in 0..number {
        let field = match own {
            0 => Text::decode(&mut common)?,
            _ => Text::decode(&mut body)?,
        };
        pairs.push((field, Text::decode(&mut body)?));
    }
    body.is_empty().then_some(pairs)
}

/// Writes an entry behind the one with the id `before`.
pub(super) fn write(out: &mut Vec<u8>, before: Id, id: Id, body: &[u8]) {
    before.write_step(id, out);
    write_varint(out, body.len() as u64);
    out.extend_from_slice(body);
}

/// A place between two entries of a stream, for as long as the stream is unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    pub(super) before: Id,
    /// The number of entries behind the place, and their bytes.
    pub(super) number: usize,
    pub(super) bytes: usize,
}

/// Walks over entries in order. An error ends the walk.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    before: Id,
    number: usize,
    pieces: [&'a [u8]; 2],
}

impl<'a> Entries<'a> {
    pub(super) fn new(before: Id, number: usize, pieces: [&'a [u8]; 2]) -> Entries<'a> {
        Entries {
            before,
            number,
            pieces,
        }
    }

    /// The place at which the entries begin that were not shown. Only for a walk over a stream as
    /// it was read.
    pub(super) fn place(&self) -> Place {
        Place {
            before: self.before,
            number: self.number,
            bytes: self.pieces[0].len(),
        }
    }

    /// The id of the entry that was shown last, or the base.
    pub(super) fn before(&self) -> Id {
        self.before
    }

    /// Bytes of the entries that were not shown, in each of the two pieces.
    pub(super) fn left(&self) -> [usize; 2] {
        self.pieces.map(<[u8]>::len)
    }

    fn read(&mut self) -> Option<Entry<'a>> {
        let [first, second] = &mut self.pieces;
        let bytes = if first.is_empty() { second } else { first };
        let id = self.before.read_step(bytes)?;
        let length = usize::try_from(read_varint(bytes)?).ok()?;
        let (body, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        (id > self.before).then_some(Entry { id, body }) // stream::X1
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.number == 0 {
            let rest = std::mem::take(&mut self.pieces);
            return (rest != [&[][..]; 2]).then_some(Err(Error::Damaged));
        }
        self.number -= 1;
        let entry = self.read();
        match entry {
            Some(entry) => {
                self.before = entry.id;
                Some(Ok(entry))
            }
            None => {
                (self.number, self.pieces) = (0, Default::default());
                Some(Err(Error::Damaged))
            }
        }
    }
}
