//! The operations of a call, and the state of each.

use super::routes::Routes;
use super::session::Session;
use crate::error::Error;
use crate::outcome::{Object, Outcome};
use duramen_base::ids::{ClientId, KeyRange, MapVersion, RouteHash, TableId};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_wire::native::codec;
use duramen_wire::native::message::{Operation, Rpc, Single};
use std::time::Duration;

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work<'a> {
    /// The core assigns its `rpc`.
    Operation(Single<'a>),
    /// Objects of a range from `cursor` on (0: its beginning), as many as fit in one answer.
    Enumerate {
        table: TableId,
        range: KeyRange,
        cursor: u64,
        bytes_max: u32,
    },
}

/// A piece of an enumeration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// The rest of the range, with the cursors from which to continue; empty: the end was reached.
    pub rest: Vec<(KeyRange, u64)>,
    /// Keys and their objects.
    pub objects: Vec<(Vec<u8>, Object)>,
}

/// Result of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    Outcome(Outcome),
    Objects(Objects),
}

#[derive(Clone, Debug)]
pub(super) enum State {
    /// To be sent: from this time on, or when there is a newer map than this one.
    Open {
        not_before_us: u64,
        map: MapVersion,
    },
    Sent,
    Done(Result<Settled, Error>),
}

/// One part of a call.
#[derive(Clone, Debug)]
pub struct CallPart<'a> {
    pub(super) work: Work<'a>,
    pub(super) state: State,
    deadline: Duration,
    /// The tablet of its owner when it was last sent: an enumeration's range is limited to it.
    tablet: Option<KeyRange>,
    /// Its RPC id, and the acknowledgement sent with it last.
    rpc: Option<Rpc>,
    /// Consecutive failures.
    failures: u32,
    /// Sent copies whose result is not known.
    unanswered: u32,
    last: Option<String>,
}

/// The operations of a call.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    pub(super) parts: Vec<CallPart<'a>>,
    pub(super) begun_us: u64,
    pub(super) deadline_us: u64,
}

impl<'a> Batch<'a> {
    /// A call that begins now and may take `deadline`.
    pub fn new(
        now_us: u64,
        deadline: Duration,
        work: impl IntoIterator<Item = Work<'a>>,
    ) -> Batch<'a> {
        let parts = work.into_iter().map(|work| CallPart {
            work,
            state: check(&work).map_or_else(
                || State::Open {
                    not_before_us: 0,
                    map: MapVersion(0),
                },
                |error| State::Done(Err(error)),
            ),
            deadline,
            tablet: None,
            rpc: None,
            failures: 0,
            unanswered: 0,
            last: None,
        });
        let deadline_us = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
        Batch {
            parts: parts.collect(),
            begun_us: now_us,
            deadline_us: now_us.saturating_add(deadline_us),
        }
    }

    /// The time at which the call ends, done or not.
    pub fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// The results, in the order of the operations.
    ///
    /// # Panics
    /// If the batch is not done.
    pub fn into_results(self) -> impl Iterator<Item = Result<Settled, Error>> + use<'a> {
        self.parts.into_iter().map(|part| match part.state {
            State::Done(result) => result,
            State::Open { .. } | State::Sent => panic!("results of a batch that is not done"),
        })
    }

    pub(super) fn is_done(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.all(|part| matches!(part.state, State::Done(_)))
    }

    pub(super) fn mutates(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.mutates() && !matches!(part.state, State::Done(_)))
    }

    /// The time at which the next part can be tried again. Parts that can be tried already are not
    /// counted: they wait for the map or the lease.
    pub(super) fn next_try_us(&self, now_us: u64) -> u64 {
        let times = self.parts.iter().filter_map(|part| match part.state {
            State::Open { not_before_us, .. } if not_before_us > now_us => Some(not_before_us),
            _ => None,
        });
        times.min().unwrap_or(u64::MAX)
    }

    /// Gives up all parts that are not done.
    pub(super) fn end(&mut self, session: &mut Session, coordinators: Option<&str>) {
        self.fail_open(session, |part| part.too_late(coordinators));
    }

    pub(super) fn fail_open(
        &mut self,
        session: &mut Session,
        error: impl Fn(&CallPart<'_>) -> Error,
    ) {
        for part in &mut self.parts {
            if !matches!(part.state, State::Done(_)) {
                let error = error(part);
                part.fail(session, error);
            }
        }
    }
}

/// Reason why a piece of work fails without being sent.
fn check(work: &Work<'_>) -> Option<Error> {
    let Work::Operation(single) = work else {
        return None;
    };
    let too_large = |what, bytes, limit| Error::TooLarge { what, bytes, limit };
    if single.key.len() > KEY_BYTES_MAX {
        return Some(too_large("key", single.key.len(), KEY_BYTES_MAX));
    }
    match single.operation {
        Operation::Write { value, .. } if value.len() > VALUE_BYTES_MAX => {
            Some(too_large("value", value.len(), VALUE_BYTES_MAX))
        }
        _ => None,
    }
}

impl<'a> CallPart<'a> {
    pub(super) fn mutates(&self) -> bool {
        matches!(self.work, Work::Operation(single) if single.operation.mutates())
    }

    /// Whether it can be sent now.
    pub(super) fn is_due(&self, now_us: u64, map: MapVersion) -> bool {
        match self.state {
            State::Open {
                not_before_us,
                map: tried,
            } => now_us >= not_before_us || map > tried,
            _ => false,
        }
    }

    /// Table and route hash that decide its server.
    pub(super) fn place(&self, routes: &Routes) -> (TableId, RouteHash) {
        match self.work {
            Work::Operation(single) => (single.table, routes.hash(single.key)),
            Work::Enumerate { table, range, .. } => (table, range.first),
        }
    }

    /// Bytes that it adds to a request.
    pub(super) fn bytes(&self) -> usize {
        match &self.work {
            // The RPC id, which is assigned later, takes 24 bytes.
            Work::Operation(single) => codec::single_bytes(single) + 24,
            // An enumeration is sent alone.
            Work::Enumerate { .. } => usize::MAX / 2,
        }
    }

    /// The part of an enumeration's range that its owner can answer.
    pub(super) fn clamped(&self, range: KeyRange) -> KeyRange {
        let tablet = self.tablet.unwrap_or(KeyRange::ALL);
        KeyRange::new(range.first, range.last.min(tablet.last))
    }

    /// Assigns an RPC id if it needs one, and updates the acknowledgement; false: no id is
    /// available.
    pub(super) fn name(&mut self, now_us: u64, session: &mut Session) -> bool {
        if !self.mutates() {
            return true;
        }
        let named = match self.rpc {
            Some(rpc) => Some((rpc.client, rpc.id)),
            None => session.begin(now_us),
        };
        self.rpc = named.map(|(client, id)| session.rpc(client, id));
        self.rpc.is_some()
    }

    /// Removes its RPC id.
    pub(super) fn unname(&mut self) -> Option<ClientId> {
        self.rpc.take().map(|rpc| rpc.client)
    }

    /// The operation in the form to be sent.
    pub(super) fn single(&self) -> Option<Single<'a>> {
        let Work::Operation(single) = self.work else {
            return None;
        };
        Some(Single {
            rpc: self.rpc,
            ..single
        })
    }

    pub(super) fn sent(&mut self, tablet: KeyRange) {
        self.tablet = Some(tablet);
        self.state = State::Sent;
    }

    /// Notes that the result of the last sent copy is not known.
    pub(super) fn unanswered(&mut self) {
        self.unanswered += 1;
    }

    /// core::K1
    pub(super) fn is_known_undone(&self) -> bool {
        self.unanswered == 0
    }

    pub(super) fn count_failure(&mut self) -> u32 {
        self.failures += 1;
        self.failures
    }

    pub(super) fn postpone(&mut self, not_before_us: u64, map: MapVersion, last: &str) {
        self.last = Some(last.to_owned());
        self.state = State::Open { not_before_us, map };
    }

    /// Repeats it at this time, at the key's owner of that time.
    pub(super) fn retry(&mut self, at_us: u64) {
        self.state = State::Open {
            not_before_us: at_us,
            map: MapVersion(u64::MAX),
        };
    }

    pub(super) fn done(&mut self, session: &mut Session, outcome: Outcome) {
        self.settle(session, Ok(Settled::Outcome(outcome)));
    }

    pub(super) fn fail(&mut self, session: &mut Session, error: Error) {
        self.settle(session, Err(error));
    }

    fn settle(&mut self, session: &mut Session, result: Result<Settled, Error>) {
        if let Some(rpc) = self.rpc.take() {
            session.done(rpc.client, rpc.id);
        }
        self.state = State::Done(result);
    }

    /// Handles the answer to an enumeration, for a part of the range up to `last`.
    pub(super) fn objects(
        &mut self,
        session: &mut Session,
        last: RouteHash,
        next: Option<u64>,
        objects: &codec::Objects<'_>,
    ) {
        let misfit = |reason: &str| Error::Protocol {
            address: String::new(),
            reason: reason.to_owned(),
        };
        let Work::Enumerate { range, cursor, .. } = self.work else {
            return self.fail(session, misfit("objects in answer to an operation"));
        };
        // An answer that goes backwards would make it endless.
        if !self.clamped(range).contains(last) || next.is_some_and(|next| next <= cursor) {
            return self.fail(session, misfit("objects of another range"));
        }
        let more = next.map(|next| (KeyRange::new(range.first, last), next));
        let after = last.next().filter(|first| *first <= range.last);
        let after = after.map(|first| (KeyRange::new(first, range.last), cursor));
        let rest = more.into_iter().chain(after).collect();
        let objects = objects.iter().map(|object| {
            let owned = Object {
                value: object.value.to_vec(),
                version: object.version,
                expires_at_ms: object.expires_at_ms,
            };
            (object.key.to_vec(), owned)
        });
        let objects = objects.collect();
        self.settle(session, Ok(Settled::Objects(Objects { rest, objects })));
    }

    pub(super) fn too_large(&self) -> Error {
        let (key, value) = match self.work {
            Work::Operation(single) => match single.operation {
                Operation::Write { value, .. } => (single.key.len(), value.len()),
                _ => (single.key.len(), 0),
            },
            Work::Enumerate { .. } => (0, 0),
        };
        Error::TooLarge {
            what: "key and value",
            bytes: key + value,
            limit: VALUE_BYTES_MAX,
        }
    }

    /// core::K1
    fn too_late(&self, coordinators: Option<&str>) -> Error {
        let own = self.last.as_deref().or(coordinators);
        let last = match (own, coordinators) {
            (Some(own), Some(other)) if own != other => &format!("{own}; {other}"),
            (own, _) => own.unwrap_or("no answer yet"),
        };
        let sent = matches!(self.state, State::Sent) || self.unanswered > 0;
        if sent && self.mutates() {
            return self.unknown(last);
        }
        Error::Deadline {
            deadline: self.deadline,
            last: last.to_owned(),
        }
    }

    pub(super) fn unknown(&self, last: &str) -> Error {
        Error::OutcomeUnknown {
            deadline: self.deadline,
            last: last.to_owned(),
        }
    }
}
