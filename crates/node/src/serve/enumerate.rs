//! Enumerations: the served objects of a range, piece by piece, in the order of the index
//! (serve::X6). Objects that are no plain strings are left out: native clients cannot read them.

use super::{NOT_SERVED_MS, Servant, WhenCold, answer_error, without};
use crate::view::View;
use duramen_base::ids::{KeyRange, MapVersion, RouteHash, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::flash::first_within;
use duramen_engine::{Error, Guard};
use duramen_wire::native::codec::{CLIENT_FRAME_BYTES_MAX, Envelope, ObjectsAnswer};
use duramen_wire::native::message::{Object, Outcome, Problem};
use std::ops::Range;

/// Objects searched for at once.
const STEP_OBJECTS: usize = 16;
/// Entries that one answer looks at: about a millisecond.
const LOOKS_MAX: usize = 4 << 10;
/// Objects read from flash side by side, if an answer begins with one on flash.
const AHEAD_OBJECTS: usize = 128;
/// Most bytes of objects that are kept as room for the next answer.
const KEPT_BYTES: usize = 256 << 10;
/// An object's fixed fields.
const OBJECT_BYTES: usize = 24;

/// A request for a piece.
pub(super) struct Piece {
    pub table: TableId,
    pub cursor: u64,
    pub bytes_max: u32,
}

impl Piece {
    fn room(&self) -> usize {
        (self.bytes_max as usize).min(CLIENT_FRAME_BYTES_MAX / 2)
    }
}

/// The objects of a step, to be sorted by their hashes.
#[derive(Default)]
pub(super) struct Pieces {
    found: Vec<Found>,
    bytes: Vec<u8>,
}

struct Found {
    hash: u64,
    version: u64,
    expires_at_ms: Option<u64>,
    key: Range<usize>,
    value: Range<usize>,
}

impl Found {
    fn bytes(&self) -> usize {
        OBJECT_BYTES + self.key.len() + self.value.len()
    }
}

impl Pieces {
    fn clear(&mut self) {
        self.found.clear();
        self.bytes.clear();
    }

    /// Gives large memory back: each thread has pieces.
    pub fn trim(&mut self) {
        self.clear();
        self.found.shrink_to(KEPT_BYTES / size_of::<Found>());
        self.bytes.shrink_to(KEPT_BYTES);
    }

    pub fn kept_bytes(&self) -> usize {
        self.found.capacity() * size_of::<Found>() + self.bytes.capacity()
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn push(&mut self, hash: u64, object: &duramen_engine::Object<'_>) {
        let key = self.append(object.key);
        let value = self.append(object.value);
        self.found.push(Found {
            hash,
            version: object.version,
            expires_at_ms: object.expires_at_ms,
            key,
            value,
        });
    }

    fn object(&self, found: &Found) -> Object<'_> {
        Object {
            version: found.version,
            expires_at_ms: found.expires_at_ms,
            key: &self.bytes[found.key.clone()],
            value: &self.bytes[found.value.clone()],
        }
    }
}

impl Servant {
    /// The part of a range, from its start on, that is served here.
    pub(super) fn served_part(
        &self,
        view: &View,
        map: MapVersion,
        table: TableId,
        range: KeyRange,
    ) -> Result<KeyRange, Problem<'static>> {
        if let Some(problem) = self.refusal(view, map, table, range.first) {
            return Err(problem);
        }
        let mut last = None;
        for (of, served) in view.served().iter() {
            // Neighbours may be served as one, if both have been served since the client's map.
            let follows = last.map_or(range.first, |last: RouteHash| last.next().unwrap_or(last));
            if of == table
                && served.contains(follows)
                && self.refusal(view, map, table, follows).is_none()
            {
                last = Some(served.last);
            }
        }
        match last {
            Some(last) => Ok(KeyRange::new(range.first, last.min(range.last))),
            None => Err(Problem::Retry {
                after_ms: NOT_SERVED_MS,
            }),
        }
    }

    /// Appends the answer. Nothing was appended if it is an error. An answer ends before the first
    /// object on flash; one that would begin with such an object waits for it, if it may
    /// (serve::X8).
    pub(super) fn enumerate(
        &mut self,
        guard: &mut Guard<'_>,
        piece: &Piece,
        part: KeyRange,
        reply: &Envelope,
        out: &mut Vec<u8>,
    ) -> Result<(), Problem<'static>> {
        let start = out.len();
        let mut answer = ObjectsAnswer::new(out, reply);
        let bytes_max = piece.room();
        let mut cursor = Some(piece.cursor);
        let mut looked = 0;
        while let Some(at) = cursor
            && looked < LOOKS_MAX
            && answer.body_bytes() < bytes_max
        {
            let is_first = at == piece.cursor;
            let room = bytes_max - answer.body_bytes();
            match self.step(guard, (piece.table, &part), at, room, false) {
                Err(Error::Cold(_)) if !is_first => break,
                Err(Error::Cold(_)) => match self.begin_cold(guard, piece, &part) {
                    // As many objects as were read for it.
                    Ok(next) => (cursor, looked) = (next, LOOKS_MAX),
                    Err(error) => {
                        out.truncate(start);
                        return Err(problem_of(&error, self.when_cold));
                    }
                },
                Ok((next, looks)) => {
                    cursor = next;
                    looked += looks;
                }
                Err(error) => {
                    out.truncate(start);
                    return Err(problem_of(&error, self.when_cold));
                }
            }
            if let Some(cut) = self.push_pieces(&mut answer, bytes_max)
                && !has_bug(Bug::CutIsSkipped)
            {
                cursor = Some(cut);
                break;
            }
        }
        answer.finish(part.last, cursor);
        Ok(())
    }

    /// The first step of an answer has found an object on flash (which the guard has noted):
    /// answers with the objects before it, if there are any, and returns the cursor behind these;
    /// otherwise notes as many of the next objects on flash as can be read at once.
    fn begin_cold(
        &mut self,
        guard: &Guard<'_>,
        piece: &Piece,
        part: &KeyRange,
    ) -> Result<Option<u64>, Error> {
        let bytes_max = match self.when_cold {
            Some(WhenCold::Waits { bytes_max }) => bytes_max,
            Some(WhenCold::Retries | WhenCold::Fails) | None => 0,
        };
        guard.pin().take_colds();
        let at = piece.cursor;
        let (table, room) = (piece.table, piece.room());
        let first = match self.step(guard, (table, part), at, room, true) {
            Ok((next, _)) => return Ok(next), // the objects before it are an answer
            Err(Error::Cold(first)) => first,
            Err(error) => return Err(error),
        };
        guard.pin().take_colds();
        if bytes_max > 0
            && let Err(Error::Cold(_)) =
                guard
                    .walk()
                    .scan_range(table, part, at, AHEAD_OBJECTS, |_| {})
        {
            self.wanted = guard.pin().take_colds();
            let lengths = self.wanted.iter().map(|cold| cold.span().1);
            let fitting = first_within(lengths, bytes_max);
            self.wanted.truncate(fitting);
        }
        Err(Error::Cold(first))
    }

    /// Collects the next objects, of about `bytes_max` bytes; returns the next cursor, and the
    /// number of entries looked at. `partly`: ends before the first object on flash.
    fn step(
        &mut self,
        guard: &Guard<'_>,
        (table, part): (TableId, &KeyRange),
        cursor: u64,
        bytes_max: usize,
        partly: bool,
    ) -> Result<(Option<u64>, usize), Error> {
        let pieces = &mut self.pieces;
        pieces.clear();
        let shows = |object: duramen_engine::Object<'_>| {
            let hash = guard.hash(object.key);
            // A cursor may be within a bucket, or within a bucket of another server's index.
            let hash = guard.route(hash, object.key).hash();
            if hash >= cursor && !object.is_typed {
                pieces.push(hash, &object);
            }
            pieces.bytes.len() < bytes_max
        };
        let step =
            guard
                .walk()
                .scan_range_as((table, part), cursor, STEP_OBJECTS, partly, shows)?;
        pieces.found.sort_unstable_by_key(|found| found.hash);
        Ok(step)
    }

    /// Adds the collected objects; `Some`: from that hash on they did not fit.
    fn push_pieces(&self, answer: &mut ObjectsAnswer<'_>, bytes_max: usize) -> Option<u64> {
        let groups = self.pieces.found.chunk_by(|a, b| a.hash == b.hash);
        for group in groups {
            let bytes: usize = group.iter().map(Found::bytes).sum();
            let is_first = answer.body_bytes() <= OBJECT_BYTES;
            if !is_first && answer.body_bytes() + bytes > bytes_max {
                return Some(group[0].hash);
            }
            for found in group {
                answer.push(&self.pieces.object(found));
            }
        }
        None
    }
}

fn problem_of(error: &Error, when_cold: Option<WhenCold>) -> Problem<'static> {
    let mut problem = Problem::Retry {
        after_ms: NOT_SERVED_MS,
    };
    let answered = answer_error(error, |outcome| {
        if matches!(outcome, Outcome::Problem(Problem::UnknownTable)) {
            problem = Problem::UnknownTable;
        }
    });
    match (answered, without(when_cold)) {
        (Err(_), Outcome::Problem(instead)) => instead,
        _ => problem,
    }
}
