//! Streams: entries in the order of their ids, and groups of consumers that read them.
//!
//! **Layout**
//!
//! ```text
//! +------+------+---------------+---------+--------+
//! | type | head | common fields | entries | groups |
//! +------+------+---------------+---------+--------+
//! ```
//!
//! | head: varints | meaning |
//! |---|---|
//! | count | number of entries |
//! | bytes | of all entries |
//! | members | number of groups, their consumers and their pending entries together |
//! | added | entries that were ever added |
//! | base: ms, number | the id before the first entry's |
//! | tip: a step from the base | the last entry's id; the base if there are no entries |
//! | last: a step from the tip | the last id that was given to an entry, or set |
//! | deleted: ms, number | the highest id of a deleted entry |
//! | fields | number of common fields, each a [`Text`] behind the head |
//!
//! A *step* from an id to a later one is two varints: the difference of the milliseconds, and the
//! number of the later id, or the difference of the numbers if the milliseconds are the same. An
//! entry is a step from the one before, the length of the rest, and the rest: 0 and a value for
//! each common field, or the number of fields and as many fields and values in turn. Groups are
//! laid out in [`groups`].
//!
//! - X1: base ≤ tip ≤ last. Without entries base and tip are 0-0. The ids of entries ascend.
//! - X2: adding an entry, and removing the first entries, leave the bytes of all other entries and
//!   of the groups as they are: those bytes are copied and not decoded.

mod entries;
pub mod groups;
mod read;

use crate::text::{Text, read_varint, write_varint};
use crate::{Error, Part, Parts, Type};
use duramen_base::limits::{COLLECTION_ELEMENTS_MAX, VALUE_BYTES_MAX};
pub use entries::{Entries, Entry, Place};
pub use groups::{Consumer, Group, Pending};
use std::borrow::Cow;
use std::fmt;

/// Entries in a node of a stream of Redis by default (`stream-node-max-entries`).
pub const NODE_ENTRIES: usize = 100;

/// The id of an entry: a time in milliseconds, and a number within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub ms: u64,
    pub seq: u64,
}

impl Id {
    pub const MIN: Id = Id { ms: 0, seq: 0 };
    pub const MAX: Id = Id {
        ms: u64::MAX,
        seq: u64::MAX,
    };

    /// The next id; `None` after the last.
    pub fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => self.ms.checked_add(1).map(|ms| Id { ms, seq: 0 }),
        }
    }

    /// The id before; `None` before the first.
    pub fn previous(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Id { ms, seq: u64::MAX }),
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Id> {
        Some(Id {
            ms: read_varint(bytes)?,
            seq: read_varint(bytes)?,
        })
    }

    fn write(self, out: &mut Vec<u8>) {
        write_varint(out, self.ms);
        write_varint(out, self.seq);
    }

    /// Reads a step from this id.
    fn read_step(self, bytes: &mut &[u8]) -> Option<Id> {
        let (ms, seq) = (read_varint(bytes)?, read_varint(bytes)?);
        Some(match ms {
            0 => Id {
                seq: self.seq.checked_add(seq)?,
                ..self
            },
            _ => Id {
                ms: self.ms.checked_add(ms)?,
                seq,
            },
        })
    }

    /// Writes a step from this id to one that is not before it.
    fn write_step(self, to: Id, out: &mut Vec<u8>) {
        debug_assert!(self <= to);
        write_varint(out, to.ms.wrapping_sub(self.ms));
        if to.ms == self.ms {
            write_varint(out, to.seq.wrapping_sub(self.seq))
        } else {
            write_varint(out, to.seq)
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// The rule by which entries are removed from the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// All entries but this many.
    Length(usize),
    /// The entries before this id.
    Before(Id),
}

/// Trimming by `~`, as in Redis, whose streams have nodes: it removes only as many entries as whole
/// nodes have, or all entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rough {
    pub node_entries: usize,
    /// Maximum number of removed entries.
    pub limit: usize,
}

/// A stream whose head was read.
#[derive(Clone, Debug, Default)]
pub struct Stream<'a> {
    count: usize,
    members: usize,
    added: u64,
    base: Id,
    tip: Id,
    last: Id,
    deleted: Id,
    fields: usize,
    /// The common fields of the entries.
    common: Cow<'a, [u8]>,
    /// The entries of the stored value.
    old: &'a [u8],
    /// Entries that were added behind them.
    pub(crate) new: Vec<u8>,
    old_groups: &'a [u8],
    stored_members: usize,
    /// The groups that replace those of the stored value, if any do.
    new_groups: Option<Vec<u8>>,
}

fn open(value: &[u8]) -> Option<Stream<'_>> {
    let (_, mut rest) = value.split_first()?;
    let number = |rest: &mut &[u8]| usize::try_from(read_varint(rest)?).ok();
    let (count, bytes) = (number(&mut rest)?, number(&mut rest)?);
    let members = number(&mut rest)?;
    let added = read_varint(&mut rest)?;
    let base = Id::read(&mut rest)?;
    let tip = base.read_step(&mut rest)?;
    let last = tip.read_step(&mut rest)?;
    let deleted = Id::read(&mut rest)?;
    let fields = number(&mut rest)?;
    let before = rest;
    if fields > rest.len() || count > bytes || members > rest.len() {
        return None; // types::Y2
    }
    for _ in 0..fields {
        Text::decode(&mut rest)?;
    }
    let common = before.get(..before.len() - rest.len())?;
    let (old, groups) = rest.split_at_checked(bytes)?;
    let is_right = count > 0 || old.is_empty() && base == Id::MIN && tip == Id::MIN;
    is_right.then_some(Stream {
        count,
        members,
        added,
        base,
        tip,
        last,
        deleted,
        fields,
        common: Cow::Borrowed(common),
        old,
        new: Vec::new(),
        old_groups: groups,
        stored_members: members,
        new_groups: None,
    })
}

/// Number of entries of a value.
///
/// # Errors
/// [`Error::WrongType`], [`Error::Damaged`].
pub fn len(value: &[u8]) -> Result<usize, Error> {
    Ok(Stream::of(Some(value))?.len())
}

impl<'a> Stream<'a> {
    /// Reads the head of a value; without a value the stream is new.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::Damaged`].
    pub fn of(value: Option<&'a [u8]>) -> Result<Stream<'a>, Error> {
        let Some(value) = value else {
            return Ok(Stream::default());
        };
        match Type::of(value) {
            Some(Type::Stream) => open(value).ok_or(Error::Damaged),
            Some(_) => Err(Error::WrongType),
            None => Err(Error::Damaged),
        }
    }

    /// As [`of`](Self::of), from the parts.
    ///
    /// # Errors
    /// Those of [`of`](Self::of).
    pub fn load(parts: &impl Parts<'a>) -> Result<Stream<'a>, Error> {
        Stream::of(parts.get(Part::Root))
    }

    /// Replaces the stream's part. A stream without entries stays, unlike other collections.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Damaged`] if the stream was damaged before it was changed.
    pub fn store<'p>(&self, parts: &mut impl Parts<'p>) -> Result<(), Error> {
        let bytes = self.old.len() + self.new.len();
        let groups = self.new_groups.as_deref().unwrap_or(self.old_groups);
        let all = bytes + groups.len() + self.common.len();
        if self.count.saturating_add(self.members) > COLLECTION_ELEMENTS_MAX
            || all > VALUE_BYTES_MAX
        {
            return Err(Error::Full); // types::Y4
        }
        // Without entries the base and the tip are 0-0 (X1).
        let (base, tip) = match self.count {
            0 => (Id::MIN, Id::MIN),
            _ => (self.base, self.tip),
        };
        if base > tip || tip > self.last {
            return Err(Error::Damaged);
        }
        let out = parts.put(Part::Root);
        out.reserve(all + 64);
        out.push(Type::Stream as u8);
        for number in [self.count, bytes, self.members] {
            write_varint(out, number as u64);
        }
        write_varint(out, self.added);
        base.write(out);
        base.write_step(tip, out);
        tip.write_step(self.last, out);
        self.deleted.write(out);
        write_varint(out, self.fields as u64);
        for piece in [&self.common[..], self.old, &self.new, groups] {
            out.extend_from_slice(piece);
        }
        if out.len() <= VALUE_BYTES_MAX {
            Ok(())
        } else {
            Err(Error::Full)
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of entries that were ever added, or the number that was set instead.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// The last id that was given to an entry, or set.
    pub fn last(&self) -> Id {
        self.last
    }

    /// The id of the last entry; 0-0 without entries.
    pub fn tip(&self) -> Id {
        match self.count {
            0 => Id::MIN,
            _ => self.tip,
        }
    }

    /// The id of the first entry; 0-0 without entries.
    pub fn first(&self) -> Id {
        let first = self.entries().next().and_then(Result::ok);
        first.map_or(Id::MIN, |entry| entry.id)
    }

    /// The highest id of an entry that was deleted by its id.
    pub fn deleted(&self) -> Id {
        self.deleted
    }

    /// Sets the last id, which must not be before the tip, and, if they are given, the number of
    /// entries added and the highest deleted id.
    pub fn set_last(&mut self, last: Id, added: Option<u64>, deleted: Option<Id>) {
        debug_assert!(last >= self.tip());
        self.last = last;
        self.added = added.unwrap_or(self.added);
        self.deleted = deleted.unwrap_or(self.deleted);
    }

    /// Adds an entry, which has at least one field; its id must be after the last (X2).
    pub fn append(&mut self, id: Id, pairs: &[(Text<'_>, Text<'_>)]) {
        debug_assert!(id > self.last && !pairs.is_empty());
        if self.count == 0 {
            self.set_common(pairs);
            (self.base, self.tip) = (Id::MIN, Id::MIN);
        }
        let mut body = Vec::new();
        if self.has_common(pairs) {
            body.push(0);
            pairs.iter().for_each(|(_, value)| value.encode(&mut body));
        } else {
            write_varint(&mut body, pairs.len() as u64);
            for (field, value) in pairs {
                field.encode(&mut body);
                value.encode(&mut body);
            }
        }
        entries::write(&mut self.new, self.tip, id, &body);
        self.count += 1;
        self.added = self.added.wrapping_add(1);
        (self.tip, self.last) = (id, id);
    }

    fn set_common(&mut self, pairs: &[(Text<'_>, Text<'_>)]) {
        let mut common = Vec::new();
        pairs
            .iter()
            .for_each(|(field, _)| field.encode(&mut common));
        (self.common, self.fields) = (Cow::Owned(common), pairs.len());
    }

    fn has_common(&self, pairs: &[(Text<'_>, Text<'_>)]) -> bool {
        let mut common = &self.common[..];
        let is_next = |(field, _): &(Text<'_>, Text<'_>)| {
            Text::decode(&mut common).is_some_and(|found| found == *field)
        };
        pairs.len() == self.fields && pairs.iter().all(is_next)
    }

    /// All entries in order.
    pub fn entries(&self) -> Entries<'_> {
        Entries::new(self.base, self.count, [self.old, &self.new])
    }

    /// Fields and values of an entry, in turn.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn pairs<'s>(&'s self, entry: &Entry<'s>) -> Result<Vec<(Text<'s>, Text<'s>)>, Error> {
        entry.pairs(self.fields, &self.common)
    }

    /// The place before the first entry from `start` on. Entries that were added since the stream
    /// was decoded do not count.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn place_of(&self, start: Id) -> Result<Place, Error> {
        let mut entries = self.entries();
        loop {
            let place = entries.place();
            match entries.next().transpose()? {
                Some(entry) if entry.id < start => {}
                _ => return Ok(place),
            }
        }
    }

    /// Up to `most` entries behind a place of this stream.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn behind(&self, place: Place, most: usize) -> Result<Vec<Entry<'_>>, Error> {
        let from = self.old.len().checked_sub(place.bytes);
        let bytes = from.and_then(|from| self.old.get(from..));
        let bytes = bytes.ok_or(Error::Damaged)?;
        let entries = Entries::new(place.before, place.number, [bytes, &[]]);
        entries.take(most).collect()
    }

    /// Up to `most` entries from `start` to `end`, both included.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn range(&self, start: Id, end: Id, most: usize) -> Result<Vec<Entry<'_>>, Error> {
        let mut found = Vec::new();
        if self.count == 0 || start > self.tip || start > end {
            return Ok(found);
        }
        for entry in self.entries() {
            let entry = entry?;
            if entry.id > end || found.len() >= most {
                break;
            }
            if entry.id >= start {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// As [`range`](Self::range), the last first.
    ///
    /// # Errors
    /// Those of [`range`](Self::range).
    pub fn range_back(&self, start: Id, end: Id, most: usize) -> Result<Vec<Entry<'_>>, Error> {
        let mut found = std::collections::VecDeque::new();
        if self.count == 0 || start > self.tip || most == 0 {
            return Ok(Vec::new());
        }
        for entry in self.entries() {
            let entry = entry?;
            if entry.id > end {
                break;
            }
            if entry.id >= start {
                if found.len() >= most {
                    found.pop_back();
                }
                found.push_front(entry);
            }
        }
        Ok(found.into())
    }

    /// The entries with these ids, which ascend; `None` for one that does not exist.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn find(&self, ids: impl IntoIterator<Item = Id>) -> Result<Vec<Option<Entry<'_>>>, Error> {
        let mut entries = self.entries().peekable();
        let mut found = Vec::new();
        for id in ids {
            loop {
                match entries.peek() {
                    Some(Err(error)) => return Err(*error),
                    Some(Ok(entry)) if entry.id < id && id <= self.tip => {
                        entries.next();
                    }
                    Some(Ok(entry)) => break found.push((entry.id == id).then_some(*entry)),
                    None => break found.push(None),
                }
            }
        }
        Ok(found)
    }

    /// Removes the entries with these ids, which ascend; returns how many of them existed.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn remove(&mut self, ids: &[Id]) -> Result<usize, Error> {
        let (mut kept, mut tip, mut highest) = (Vec::new(), self.base, None);
        let (mut ids, mut count) = (ids.iter().peekable(), 0);
        for entry in self.entries() {
            let entry = entry?;
            while ids.next_if(|id| **id < entry.id).is_some() {}
            if ids.next_if(|id| **id == entry.id).is_some() {
                highest = Some(entry.id);
                continue;
            }
            entries::write(&mut kept, tip, entry.id, entry.body);
            (tip, count) = (entry.id, count + 1);
        }
        let removed = self.count - count;
        if removed > 0 {
            (self.old, self.new, self.count, self.tip) = (&[], kept, count, tip);
            self.deleted = self.deleted.max(highest.unwrap_or(Id::MIN));
        }
        Ok(removed)
    }

    /// Removes entries from the front, and returns how many it removed (X2).
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn trim(&mut self, trim: Trim, rough: Option<Rough>) -> Result<usize, Error> {
        let mut number = match trim {
            Trim::Length(length) => self.count.saturating_sub(length),
            Trim::Before(id) if id > self.tip => self.count,
            Trim::Before(id) => {
                let mut number = 0;
                for entry in self.entries() {
                    if entry?.id >= id {
                        break;
                    }
                    number += 1;
                }
                number
            }
        };
        if let Some(rough) = rough
            && (number < self.count || number > rough.limit)
        {
            let most = number.min(rough.limit);
            number = most - most % rough.node_entries.max(1);
        }
        let mut entries = self.entries();
        for _ in 0..number {
            entries.next().ok_or(Error::Damaged)??;
        }
        let (base, left) = (entries.before(), entries.left());
        let new = self.new.len() - left[1];
        (self.base, self.count) = (base, self.count - number);
        self.old = self.old.get(self.old.len() - left[0]..).unwrap_or_default();
        self.new.drain(..new);
        Ok(number)
    }
}
