//! The operations of a call, and the state of each.

use super::Send;
use super::routes::{Route, Routes};
use super::session::{SessionKey, Sessions};
use super::settled::{Objects, Settled};
use crate::error::Error;
use crate::outcome::{Object, Outcome};
use duramen_base::ids::{ClientId, KeyRange, Level, MapVersion, RouteHash, TableId};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_wire::native::codec;
use duramen_wire::native::message::{Operation, Rpc, Single};
use std::time::Duration;

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work<'a> {
    /// The id of the table with this name.
    Table(&'a str),
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

impl<'a> Work<'a> {
    /// An operation on this key of the table, without an id.
    pub fn on(
        table: TableId,
        key: &'a [u8],
        operation: Operation<'a>,
        level: Option<Level>,
    ) -> Work<'a> {
        Work::Operation(Single {
            table,
            key,
            operation,
            level,
            rpc: None,
        })
    }

    /// Whether it may change an object.
    pub fn mutates(&self) -> bool {
        matches!(self, Work::Operation(single) if single.operation.mutates())
    }

    /// The route to the owner of its key, by this map.
    pub fn route(&self, routes: &Routes) -> Route {
        let (table, hash) = match self {
            Work::Operation(single) => (single.table, routes.hash(single.key)),
            Work::Enumerate { table, range, .. } => (*table, range.first),
            Work::Table(name) => return routes.table(name).map_or(Route::NoSuchTable, Route::Here),
        };
        routes.route(table, hash)
    }
}

/// A piece of work with its bytes: borrowed, if the caller waits for the call, or owned.
pub trait AsWork {
    fn as_work(&self) -> Work<'_>;
}

impl AsWork for Work<'_> {
    fn as_work(&self) -> Work<'_> {
        *self
    }
}

#[derive(Clone, Debug)]
pub(super) enum State {
    /// To be sent, from a given time on or when there is a map newer than the given one.
    Open {
        not_before_us: u64,
        map: MapVersion,
    },
    Sent,
    Done(Result<Settled, Error>),
    /// Done, and its result was taken.
    Taken,
}

/// One part of a call.
#[derive(Clone, Debug)]
pub struct CallPart<W> {
    pub(super) work: W,
    pub(super) state: State,
    deadline: Duration,
    deadline_us: u64,
    /// The tablet of its key when it was last sent: an enumeration's range is limited to this
    /// tablet.
    tablet: Option<KeyRange>,
    /// Its RPC id, and the acknowledgement sent with it last.
    rpc: Option<Rpc>,
    /// The session to which its RPC id belongs.
    session: SessionKey,
    /// Consecutive failures.
    failures: u32,
    /// Sent copies whose result is not known.
    unanswered: u32,
    last: Option<String>,
}

/// The operations of a call.
#[derive(Clone, Debug)]
pub struct Batch<W> {
    pub(super) parts: Vec<CallPart<W>>,
    pub(super) begun_us: u64,
    /// The earliest deadline of an operation that is not done.
    pub(super) deadline_us: u64,
}

impl<W: AsWork> Batch<W> {
    /// A call that begins now and may take `deadline`.
    pub fn new(now_us: u64, deadline: Duration, work: impl IntoIterator<Item = W>) -> Batch<W> {
        let work = work.into_iter().map(|work| (now_us, work));
        Batch::of_begun(now_us, deadline, work)
    }

    /// Operations that begin to be executed now. Each has the time at which it was called, and ends
    /// `deadline` later.
    pub fn of_begun(
        now_us: u64,
        deadline: Duration,
        work: impl IntoIterator<Item = (u64, W)>,
    ) -> Batch<W> {
        let deadline_us = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
        let parts = work.into_iter().map(|(begun_us, work)| CallPart {
            state: check(&work.as_work()).map_or_else(
                || State::Open {
                    not_before_us: 0,
                    map: MapVersion(0),
                },
                |error| State::Done(Err(error)),
            ),
            work,
            deadline,
            deadline_us: begun_us.saturating_add(deadline_us),
            tablet: None,
            rpc: None,
            session: SessionKey::default(),
            failures: 0,
            unanswered: 0,
            last: None,
        });
        let parts: Vec<CallPart<W>> = parts.collect();
        Batch {
            deadline_us: first_deadline_us(&parts),
            parts,
            begun_us: now_us,
        }
    }

    /// The time at which the next operation ends, done or not.
    pub fn deadline_us(&self) -> u64 {
        self.deadline_us
    }

    /// The results, in the order of the operations.
    ///
    /// # Panics
    /// If the batch is not done, or a result was taken.
    pub fn into_results(self) -> impl Iterator<Item = Result<Settled, Error>> + use<W> {
        self.parts.into_iter().map(|part| match part.state {
            State::Done(result) => result,
            _ => panic!("results of a batch that is not done"),
        })
    }

    /// The results that have arrived since the last call, each once, with their operations.
    pub fn take_results(&mut self) -> impl Iterator<Item = (&mut W, Result<Settled, Error>)> {
        self.parts.iter_mut().filter_map(|part| {
            if !matches!(part.state, State::Done(_)) {
                return None;
            }
            match std::mem::replace(&mut part.state, State::Taken) {
                State::Done(result) => Some((&mut part.work, result)),
                _ => None,
            }
        })
    }

    /// Whether no operation of this request has ended since it was planned.
    pub fn is_awaited(&self, send: &Send) -> bool {
        let mut parts = send.parts.iter();
        parts.all(|index| !self.parts[*index].is_done())
    }

    /// The part with this index, unless it is done (core::K5).
    pub(super) fn open(&mut self, index: usize) -> Option<&mut CallPart<W>> {
        let part = self.parts.get_mut(index)?;
        (!part.is_done()).then_some(part)
    }

    pub(super) fn is_done(&self) -> bool {
        self.parts.iter().all(CallPart::is_done)
    }

    pub(super) fn mutates(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.mutates() && !part.is_done())
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

    /// Gives up all parts whose deadline has passed.
    pub(super) fn end(&mut self, now_us: u64, sessions: &mut Sessions, coordinators: Option<&str>) {
        for part in &mut self.parts {
            if !part.is_done() && now_us >= part.deadline_us {
                let error = part.too_late(coordinators);
                part.fail(sessions, error);
            }
        }
        self.deadline_us = first_deadline_us(&self.parts);
    }

    pub(super) fn fail_open(&mut self, sessions: &mut Sessions, error: &Error) {
        for part in &mut self.parts {
            if part.is_open() {
                part.refuse(sessions, error);
            }
        }
    }
}

fn first_deadline_us<W: AsWork>(parts: &[CallPart<W>]) -> u64 {
    let open = parts.iter().filter(|part| !part.is_done());
    open.map(|part| part.deadline_us).min().unwrap_or(u64::MAX)
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

impl<W: AsWork> CallPart<W> {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_) | State::Taken)
    }

    pub(super) fn mutates(&self) -> bool {
        self.work.as_work().mutates()
    }

    /// Whether the part is to be sent, now or later.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Whether the part can be sent now.
    pub(super) fn is_due(&self, now_us: u64, map: MapVersion) -> bool {
        match self.state {
            State::Open {
                not_before_us,
                map: tried,
            } => now_us >= not_before_us || map > tried,
            _ => false,
        }
    }

    pub(super) fn route(&self, routes: &Routes) -> Route {
        self.work.as_work().route(routes)
    }

    /// The name of its table, for error texts.
    pub(super) fn table_name(&self, routes: &Routes) -> String {
        match self.work.as_work() {
            Work::Operation(single) => routes.name(single.table),
            Work::Enumerate { table, .. } => routes.name(table),
            Work::Table(name) => name.to_owned(),
        }
    }

    /// Bytes that it adds to a request.
    pub(super) fn bytes(&self) -> usize {
        match self.work.as_work() {
            // The RPC id, which is assigned later, takes 24 bytes.
            Work::Operation(single) => codec::single_bytes(&single) + 24,
            // An enumeration is sent alone.
            Work::Enumerate { .. } | Work::Table(_) => usize::MAX / 2,
        }
    }

    /// The part of an enumeration's range that its owner can answer.
    pub(super) fn clamped(&self, range: KeyRange) -> KeyRange {
        let tablet = self.tablet.unwrap_or(KeyRange::ALL);
        KeyRange::new(range.first, range.last.min(tablet.last))
    }

    /// The session of its RPC id, if it has one.
    pub(super) fn session(&self) -> Option<SessionKey> {
        self.rpc.map(|_| self.session)
    }

    /// Assigns an RPC id, from the session `key`, if the part needs one, and updates the
    /// acknowledgement. Returns false if no id is available.
    pub(super) fn name(&mut self, now_us: u64, sessions: &mut Sessions, key: SessionKey) -> bool {
        if !self.mutates() {
            return true;
        }
        let key = self.session().unwrap_or(key);
        let session = sessions.get(key);
        let named = match self.rpc {
            Some(rpc) => Some((rpc.client, rpc.id)),
            None => session.begin(now_us),
        };
        self.session = key;
        self.rpc = named.map(|(client, id)| session.rpc(client, id));
        self.rpc.is_some()
    }

    /// Removes its RPC id.
    pub(super) fn unname(&mut self) -> Option<(SessionKey, ClientId)> {
        self.rpc.take().map(|rpc| (self.session, rpc.client))
    }

    /// The operation in the form to be sent.
    pub(super) fn single(&self) -> Option<Single<'_>> {
        let Work::Operation(single) = self.work.as_work() else {
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

    /// Sends the part again at this time, to the server that owns the key by then.
    pub(super) fn retry(&mut self, at_us: u64) {
        self.state = State::Open {
            not_before_us: at_us,
            map: MapVersion(u64::MAX),
        };
    }

    pub(super) fn done(&mut self, sessions: &mut Sessions, outcome: Outcome) {
        self.settle(sessions, Ok(Settled::Outcome(outcome)));
    }

    pub(super) fn fail(&mut self, sessions: &mut Sessions, error: Error) {
        self.settle(sessions, Err(error));
    }

    /// Ends the part with an error that says that it was not executed, unless an earlier copy may
    /// have been executed (core::K1).
    pub(super) fn refuse(&mut self, sessions: &mut Sessions, error: &Error) {
        let error = match error {
            error if self.is_known_undone() || !self.mutates() => error.clone(),
            Error::Refused(why) => Error::RefusedAgain(why.clone()),
            error => self.unknown(&error.to_string()),
        };
        self.fail(sessions, error);
    }

    pub(super) fn settle(&mut self, sessions: &mut Sessions, result: Result<Settled, Error>) {
        if let Some(rpc) = self.rpc.take() {
            sessions.get(self.session).done(rpc.client, rpc.id);
        }
        self.state = State::Done(result);
    }

    /// Handles the answer to an enumeration, for a part of the range up to `last`.
    pub(super) fn objects(
        &mut self,
        sessions: &mut Sessions,
        last: RouteHash,
        next: Option<u64>,
        objects: &codec::Objects<'_>,
    ) {
        let misfit = |reason: &str| Error::Protocol {
            address: String::new(),
            reason: reason.to_owned(),
        };
        let Work::Enumerate { range, cursor, .. } = self.work.as_work() else {
            return self.fail(sessions, misfit("objects in answer to an operation"));
        };
        // An answer that goes backwards would make it endless.
        if !self.clamped(range).contains(last) || next.is_some_and(|next| next <= cursor) {
            return self.fail(sessions, misfit("objects of another range"));
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
        self.settle(sessions, Ok(Settled::Objects(Objects { rest, objects })));
    }

    pub(super) fn too_large(&self) -> Error {
        let (key, value) = match self.work.as_work() {
            Work::Operation(single) => match single.operation {
                Operation::Write { value, .. } => (single.key.len(), value.len()),
                _ => (single.key.len(), 0),
            },
            Work::Enumerate { .. } | Work::Table(_) => (0, 0),
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
