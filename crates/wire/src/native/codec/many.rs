//! Sequences in one body: several operations, their outcomes, objects of an enumeration. Read in
//! place.
//!
//! **Layout** of several operations or outcomes: count u32, zero u32, then one after another. Of
//! objects: count u32, flags u16 (1: `cursor` is the position from which to continue; 2: a
//! problem's outcome follows instead of objects), zero u16, last u64, cursor u64, then per object:
//!
//! ```text
//! 0        2       4        8         16
//! +--------+-------+--------+---------+----------+-----+-------+
//! | bytes  | flags | bytes  | version | [expiry] | key | value |
//! | of key |  u16  | of     |   u64   |   u64    |     |       |
//! |  u16   |       | value  |         |          |     |       |
//! +--------+-------+--------+---------+----------+-----+-------+
//! ```
//!
//! Flag 1: it has an expiry.

use super::cursor::Cursor;
use super::frame::Builder;
use super::operations::{append_outcome, append_single, read_outcome, read_single};
use super::{BodyError, Envelope, Kind, PARTS_MAX};
use crate::native::message::{Answer, Object, Outcome, Problem, Single};
use duramen_base::ids::RouteHash;
use std::marker::PhantomData;

/// Bytes before operations and outcomes.
const HEAD_BYTES: usize = 8;
/// Bytes before objects.
const OBJECTS_HEAD_BYTES: usize = 24;
const FLAG_MORE: u16 = 1;
pub(super) const FLAG_PROBLEM: u16 = 2;
const FLAG_EXPIRY: u16 = 1;

/// An element of a sequence.
pub trait Record<'a>: Sized {
    #[doc(hidden)]
    fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BodyError>;
}

impl<'a> Record<'a> for Single<'a> {
    fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BodyError> {
        let mut cursor = Cursor::new(Kind::Multi, bytes);
        Ok((read_single(&mut cursor)?, cursor.rest()))
    }
}

impl<'a> Record<'a> for Outcome<'a> {
    fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BodyError> {
        let mut cursor = Cursor::new(Kind::Multi, bytes);
        Ok((read_outcome(&mut cursor)?, cursor.rest()))
    }
}

impl<'a> Record<'a> for Object<'a> {
    fn read(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BodyError> {
        let mut cursor = Cursor::new(Kind::Enumerate, bytes);
        let key_bytes = usize::from(cursor.u16("bytes of key")?);
        let flags = cursor.u16("flags")?;
        let value_bytes = cursor.u32("bytes of value")? as usize;
        let version = cursor.u64("version")?;
        if flags & !FLAG_EXPIRY != 0 {
            return Err(cursor.wrong("flags"));
        }
        let expires_at_ms = if flags & FLAG_EXPIRY != 0 {
            Some(cursor.u64("expiry")?)
        } else {
            None
        };
        let object = Object {
            version,
            expires_at_ms,
            key: cursor.bytes(key_bytes, "key")?,
            value: cursor.bytes(value_bytes, "value")?,
        };
        Ok((object, cursor.rest()))
    }
}

/// A sequence of records that were all checked: iterating over it does not fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Records<'a, R> {
    count: usize,
    bytes: &'a [u8],
    of: PhantomData<R>,
}

/// Operations of a [`Request::Multi`](crate::native::message::Request::Multi).
pub type Parts<'a> = Records<'a, Single<'a>>;
/// Outcomes of a [`Request::Multi`](crate::native::message::Request::Multi).
pub type Outcomes<'a> = Records<'a, Outcome<'a>>;
/// Objects of an enumeration.
pub type Objects<'a> = Records<'a, Object<'a>>;

impl<'a, R: Record<'a>> Records<'a, R> {
    /// Reads `count` records that fill `bytes`.
    fn check(kind: Kind, count: u32, bytes: &'a [u8]) -> Result<Records<'a, R>, BodyError> {
        let mut rest = bytes;
        for _ in 0..count {
            (_, rest) = R::read(rest)?;
        }
        Cursor::new(kind, rest).end()?;
        Ok(Records {
            count: count as usize,
            bytes,
            of: PhantomData,
        })
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The records, in order.
    pub fn iter(&self) -> impl Iterator<Item = R> + Clone + use<'a, R> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (record, after) = R::read(rest).ok()?;
            rest = after;
            Some(record)
        })
    }
}

fn read_records<'a, R: Record<'a>>(body: &'a [u8]) -> Result<Records<'a, R>, BodyError> {
    let mut cursor = Cursor::new(Kind::Multi, body);
    let count = cursor.u32("count")?;
    let reserved = cursor.u32("reserved")?;
    if count as usize > PARTS_MAX {
        return Err(cursor.wrong("count"));
    }
    if reserved != 0 {
        return Err(cursor.wrong("reserved"));
    }
    Records::check(Kind::Multi, count, cursor.rest())
}

pub(super) fn read_parts(body: &[u8]) -> Result<Parts<'_>, BodyError> {
    read_records(body)
}

pub(super) fn read_multi_outcomes(body: &[u8]) -> Result<Outcomes<'_>, BodyError> {
    read_records(body)
}

pub(super) fn read_objects(body: &[u8]) -> Result<Answer<'_>, BodyError> {
    let mut cursor = Cursor::new(Kind::Enumerate, body);
    let count = cursor.u32("count")?;
    let flags = cursor.u16("flags")?;
    let reserved = cursor.u16("reserved")?;
    let last = cursor.u64("last")?;
    let next = cursor.u64("cursor")?;
    if reserved != 0 || !matches!(flags, 0 | FLAG_MORE | FLAG_PROBLEM) {
        return Err(cursor.wrong("flags"));
    }
    if next != 0 && flags != FLAG_MORE {
        return Err(cursor.wrong("cursor"));
    }
    if flags == FLAG_PROBLEM {
        let outcome = read_outcome(&mut cursor)?;
        cursor.end()?;
        return match outcome {
            Outcome::Problem(problem) if count == 0 && last == 0 => Ok(Answer::Problem(problem)),
            _ => Err(cursor.wrong("outcome")),
        };
    }
    Ok(Answer::Objects {
        last: RouteHash(last),
        cursor: (flags == FLAG_MORE).then_some(next),
        objects: Records::check(Kind::Enumerate, count, cursor.rest())?,
    })
}

/// Appends the head of objects, without any object yet.
pub(super) fn append_objects_head(out: &mut Vec<u8>, flags: u16) {
    let mut head = [0; OBJECTS_HEAD_BYTES];
    head[4..6].copy_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&head);
}

/// Appends the answer to an enumeration that failed.
pub fn encode_enumerate_problem(out: &mut Vec<u8>, envelope: &Envelope, problem: &Problem<'_>) {
    let builder = Builder::reply(out, Kind::Enumerate, envelope);
    append_objects_head(builder.out, FLAG_PROBLEM);
    append_outcome(builder.out, &Outcome::Problem(*problem));
    builder.finish(0);
}

/// Writes several operations as one request. The caller must observe [`PARTS_MAX`] and
/// [`CLIENT_FRAME_BYTES_MAX`](super::CLIENT_FRAME_BYTES_MAX).
#[derive(Debug)]
pub struct MultiRequest<'o> {
    frame: Builder<'o>,
    count: u32,
}

impl<'o> MultiRequest<'o> {
    pub fn new(out: &'o mut Vec<u8>, envelope: &Envelope) -> MultiRequest<'o> {
        let frame = Builder::question(out, Kind::Multi, envelope);
        frame.out.extend_from_slice(&[0; HEAD_BYTES]);
        MultiRequest { frame, count: 0 }
    }

    /// # Panics
    /// As [`encode_single`](super::encode_single).
    pub fn push(&mut self, single: &Single<'_>) {
        append_single(self.frame.out, single);
        self.count += 1;
    }

    pub fn finish(mut self) {
        self.frame.body_mut(0)[..4].copy_from_slice(&self.count.to_le_bytes());
        self.frame.finish(0);
    }
}

/// Writes the outcomes of several operations, in the order of the operations.
#[derive(Debug)]
pub struct MultiAnswer<'o> {
    frame: Builder<'o>,
    count: u32,
}

impl<'o> MultiAnswer<'o> {
    pub fn new(out: &'o mut Vec<u8>, envelope: &Envelope) -> MultiAnswer<'o> {
        let frame = Builder::reply(out, Kind::Multi, envelope);
        frame.out.extend_from_slice(&[0; HEAD_BYTES]);
        MultiAnswer { frame, count: 0 }
    }

    pub fn push(&mut self, outcome: &Outcome<'_>) {
        append_outcome(self.frame.out, outcome);
        self.count += 1;
    }

    /// Bytes of the body so far. An answer must stay below
    /// [`CLIENT_FRAME_BYTES_MAX`](super::CLIENT_FRAME_BYTES_MAX): an outcome that would not fit is
    /// replaced by `Retry { after_ms: 0 }`.
    pub fn body_bytes(&self) -> usize {
        self.frame.body_bytes()
    }

    pub fn finish(mut self) {
        self.frame.body_mut(0)[..4].copy_from_slice(&self.count.to_le_bytes());
        self.frame.finish(0);
    }
}

/// Writes the objects of an enumeration.
#[derive(Debug)]
pub struct ObjectsAnswer<'o> {
    frame: Builder<'o>,
    count: u32,
}

impl<'o> ObjectsAnswer<'o> {
    pub fn new(out: &'o mut Vec<u8>, envelope: &Envelope) -> ObjectsAnswer<'o> {
        let frame = Builder::reply(out, Kind::Enumerate, envelope);
        append_objects_head(frame.out, 0);
        ObjectsAnswer { frame, count: 0 }
    }

    /// # Panics
    /// If the key is longer than 64 KiB or the value than 4 GiB: objects never are.
    pub fn push(&mut self, object: &Object<'_>) {
        let key_bytes = u16::try_from(object.key.len()).expect("a key within its limit");
        let value_bytes = u32::try_from(object.value.len()).expect("a value within its limit");
        let flags = if object.expires_at_ms.is_some() {
            FLAG_EXPIRY
        } else {
            0
        };
        let out = &mut *self.frame.out;
        out.extend_from_slice(&key_bytes.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&value_bytes.to_le_bytes());
        out.extend_from_slice(&object.version.to_le_bytes());
        if let Some(time) = object.expires_at_ms {
            out.extend_from_slice(&time.to_le_bytes());
        }
        out.extend_from_slice(object.key);
        out.extend_from_slice(object.value);
        self.count += 1;
    }

    /// Bytes of the body so far.
    pub fn body_bytes(&self) -> usize {
        self.frame.body_bytes()
    }

    /// Completes the answer. `last`: the end of the part that it covers. `cursor`: the position
    /// from which to continue in that part; `None`: the part is complete.
    pub fn finish(mut self, last: RouteHash, cursor: Option<u64>) {
        let flags = if cursor.is_some() { FLAG_MORE } else { 0 };
        let head = self.frame.body_mut(0);
        head[..4].copy_from_slice(&self.count.to_le_bytes());
        head[4..6].copy_from_slice(&flags.to_le_bytes());
        head[8..16].copy_from_slice(&last.0.to_le_bytes());
        head[16..24].copy_from_slice(&cursor.unwrap_or_default().to_le_bytes());
        self.frame.finish(0);
    }
}
