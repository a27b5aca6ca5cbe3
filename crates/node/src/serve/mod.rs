//! Executes the requests of native clients: routing, conditions, enumerations, exactly once.
//!
//! A [`Servant`] belongs to a thread and has no clock. It appends the whole reply to a request, and
//! returns the position that must be durable before that reply leaves ([`Servant::take_wait`]). Its
//! driver also checks the read lease after the request was executed (`ReadUntil`), and reports
//! after each commit the durable positions ([`Servant::settle`]).
//!
//! **Invariants**
//! - X1: the view is loaded for each operation, after the guard was renewed: the removal of a range
//!   waits for the guards from before (`Store::quiesce`), so nothing is read or written by an older
//!   view.
//! - X2: an operation whose map is older than this server's tenure of the key is not executed
//!   (rifl::L10).
//! - X3: effect and completion record are in one group of the log; if there is no effect for lack
//!   of a resource, there is no record, and the request may come again.
//! - X4: a result without effect (a condition that failed, a value that is no number) is recorded
//!   like an effect: a late copy must not get another result.
//! - X5: a request is finished, and so its repetitions answered, only when effect and record have
//!   the requested level, whatever happened to the connection meanwhile (rifl::L2).
//! - X6: in an enumeration, the objects that an answer left out are at or after its cursor, and its
//!   objects before; keys of equal hash are never separated. Work and bytes of an answer are
//!   bounded.
//! - X7: nothing is allocated for a read but room in the output.
//! - X8: a request that needs an entry on flash has done nothing, and left no record, when it
//!   reports so ([`Servant::take_wanted`]): it is executed again unchanged, and then goes by the
//!   view and the tenure of that time. An operation of several that needs such an entry later has
//!   done nothing either, and is answered with `Retry`.
//! - X9: whether writes wait ([`Views::writes_wait_ms`]) is asked for each operation, after the
//!   guard was renewed, and before anything is recorded. So after a `Store::quiesce` no write comes
//!   that was allowed before it.
//!
//! **Concurrency** a servant belongs to one thread; [`Clients`] is shared by all. No lock is held
//! while the store is entered.
//!
//! Paper: [Ousterhout15 §3]; RIFL [Lee15 §3-4]; differs: results are kept by the tracker, failed
//! conditions are recorded too.

mod enumerate;
pub(crate) mod leases;
mod once;
mod operation;

pub use once::Clients;
pub(crate) use once::Records;

use crate::view::{Route, View};
use duramen_base::ids::{KeyRange, Level, MapVersion, RouteHash, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::rifl::Begin;
use duramen_engine::flash::Cold;
use duramen_engine::{Error, Guard, KeyHash, Position};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Envelope, Kind, MultiAnswer, Parts, Trouble, encode_enumerate_problem,
    encode_outcome, encode_pong, encode_trouble, outcome_bytes, read_whole_outcome,
};
use duramen_wire::native::message::{Operation, Outcome, Problem, Request, Rpc, Single};
use enumerate::Pieces;
use once::Pending;
use std::sync::Arc;

/// Operations of a request, or requests of a round, whose buckets and then entries are fetched
/// together.
pub const HINTS: usize = 16;
/// Most bytes of the answer to an operation, without values that were read.
const OUTCOME_BYTES_MAX: usize = 24 + 8 + TEXT_BYTES_MAX;
const TEXT_BYTES_MAX: usize = 64;

/// A key's tablet is being recovered or moved, which takes seconds.
const NOT_SERVED_MS: u32 = 10;
/// The delay if the request is being executed, or its client's lease is about to be known.
const SOON_MS: u32 = 1;

/// The current view, for one thread. See X1.
pub trait Views {
    fn view(&mut self) -> &View;

    /// `Some`: operations that may change something do not run now, and are to be sent again after
    /// so many milliseconds (X9).
    #[inline]
    fn writes_wait_ms(&mut self) -> Option<u32> {
        None
    }
}

impl Views for &View {
    fn view(&mut self) -> &View {
        self
    }
}

impl Views for Arc<View> {
    fn view(&mut self) -> &View {
        self
    }
}

/// The hash of a request's key, with its bucket being prefetched.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    table: TableId,
    hash: KeyHash,
}

impl Hint {
    /// First step for the requests of a round. `None`: it has no single key.
    #[inline]
    pub fn new(guard: &Guard<'_>, request: &Request<'_>) -> Option<Hint> {
        match request {
            Request::Single(single) => Some(Hint::of(guard, single)),
            _ => None,
        }
    }

    #[inline]
    fn of(guard: &Guard<'_>, single: &Single<'_>) -> Hint {
        let hash = guard.hash(single.key);
        guard.pin().prefetch_bucket(single.table, hash);
        Hint {
            table: single.table,
            hash,
        }
    }

    /// Second step, up to [`HINTS`] requests ahead of the one that is served.
    #[inline]
    pub fn fetch(&self, guard: &Guard<'_>) {
        guard.pin().prefetch_entry(self.table, self.hash);
    }
}

/// A request as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct ClientRequest<'a> {
    pub envelope: Envelope,
    pub request: Request<'a>,
    /// The hint of this request's key.
    pub hint: Option<Hint>,
}

/// The handling of a request that needs an entry on flash which the session does not hold (X8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenCold {
    /// The request reports the entries that it needs, at most `bytes_max`, and is executed again.
    Waits { bytes_max: usize },
    /// The operations that need no such entry are done; the client is to send the others again.
    Retries,
    /// As `Retries`, but the device could not be read: these operations have failed.
    Fails,
}

/// The context of a request.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    now_us: u64,
    /// The map by which the client found this server.
    map: MapVersion,
}

/// Executes requests for one thread; see the module.
pub struct Servant {
    clients: Arc<Clients>,
    wait: Position,
    /// Requests that were executed and are not durable yet (X5).
    pending: Vec<Pending>,
    /// The bytes of a completion record.
    record: Vec<u8>,
    pieces: Pieces,
    /// None: its sessions wait for flash themselves.
    when_cold: Option<WhenCold>,
    /// The entries on flash that the unanswered request needs.
    wanted: Vec<Cold>,
}

impl Servant {
    /// Its sessions wait for flash themselves, unless [`when_cold`](Self::when_cold) sets another
    /// way.
    pub fn new(clients: Arc<Clients>) -> Servant {
        Servant {
            clients,
            wait: Position::default(),
            pending: Vec::new(),
            record: Vec::new(),
            pieces: Pieces::default(),
            when_cold: None,
            wanted: Vec::new(),
        }
    }

    /// Sets the way of handling entries on flash, for sessions that park (`Session::set_parks`).
    #[inline]
    pub fn when_cold(&mut self, then: WhenCold) {
        self.when_cold = Some(then);
    }

    /// The entries on flash that the last request needs: it was not answered and did nothing (X8).
    /// Empty: it was answered.
    #[inline]
    pub fn take_wanted(&mut self) -> Vec<Cold> {
        std::mem::take(&mut self.wanted)
    }

    pub fn clients(&self) -> &Arc<Clients> {
        &self.clients
    }

    /// The position that must be reached, at its own level, before the replies since the last call
    /// may leave.
    #[inline]
    pub fn take_wait(&mut self) -> Position {
        std::mem::take(&mut self.wait)
    }

    /// Bytes that are kept for the next request.
    pub fn kept_bytes(&self) -> usize {
        self.record.capacity() + self.pieces.kept_bytes()
    }

    /// Whether a request waits for [`settle`](Self::settle).
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// To be called after commits. `reached`: the level of a position.
    pub fn settle(&mut self, reached: impl Fn(&Position) -> Level) {
        let clients = &self.clients;
        self.pending.retain(|pending| {
            let is_there = reached(&pending.position) >= pending.position.level();
            if is_there {
                clients.finish(pending.rpc, &pending.result);
            }
            !is_there
        });
    }

    /// Executes a request and appends the reply, a whole frame; or reports the entries that it
    /// needs from flash. `now_us`: the node's clock.
    pub fn serve(
        &mut self,
        guard: &mut Guard<'_>,
        views: &mut impl Views,
        now_us: u64,
        asked: &ClientRequest<'_>,
        out: &mut Vec<u8>,
    ) {
        let ClientRequest {
            envelope,
            request,
            hint,
        } = asked;
        let here = views.view().me();
        let reply = Envelope {
            request: envelope.request,
            target: ServerId::NONE,
            sender: here,
        };
        if envelope.target != ServerId::NONE && envelope.target != here {
            let kind = kind_of(request) as u16;
            return encode_trouble(out, &reply, kind, &Trouble::WrongServer { here });
        }
        let circumstances = Circumstances {
            now_us,
            map: envelope.map_version(),
        };
        match request {
            Request::Ping => encode_pong(out, &reply),
            Request::Single(single) => {
                let answer = |outcome: &Outcome<'_>| encode_outcome(out, &reply, outcome);
                if let Err(cold) = self.single(guard, views, circumstances, single, *hint, answer) {
                    match self.when_cold {
                        Some(WhenCold::Waits { .. }) => self.wanted.push(cold),
                        then => encode_outcome(out, &reply, &without(then)),
                    }
                    guard.pin().take_colds();
                }
            }
            Request::Multi(parts) => {
                if !self.lacks_for(guard, *parts) {
                    self.multi(guard, views, circumstances, *parts, &reply, out);
                } else if has_bug(Bug::PartsBeforeTheyWait) {
                    self.multi(guard, views, circumstances, *parts, &reply, &mut Vec::new());
                }
            }
            Request::Enumerate {
                table,
                range,
                cursor,
                bytes_max,
            } => {
                guard.pin_mut().renew();
                let served = self.served_part(views.view(), circumstances.map, *table, *range);
                let piece = enumerate::Piece {
                    table: *table,
                    cursor: *cursor,
                    bytes_max: *bytes_max,
                };
                self.walk(guard, &piece, served, &reply, out);
            }
        }
    }

    /// Answers with a piece of a table. `served`: the part of its range that is served here.
    fn walk(
        &mut self,
        guard: &mut Guard<'_>,
        piece: &enumerate::Piece,
        served: Result<KeyRange, Problem<'static>>,
        reply: &Envelope,
        out: &mut Vec<u8>,
    ) {
        let answered = served.and_then(|part| self.enumerate(guard, piece, part, reply, out));
        self.pieces.trim();
        if let Err(problem) = answered
            && self.wanted.is_empty()
        {
            encode_enumerate_problem(out, reply, &problem);
        }
        guard.pin().take_colds();
        self.note(guard, None);
    }

    fn multi(
        &mut self,
        guard: &mut Guard<'_>,
        views: &mut impl Views,
        circumstances: Circumstances,
        parts: Parts<'_>,
        reply: &Envelope,
        out: &mut Vec<u8>,
    ) {
        let mut answer = MultiAnswer::new(out, reply);
        let mut left = parts.len();
        let mut hints = [None; HINTS];
        let mut rest = parts.iter();
        while left > 0 {
            let group = rest.clone().take(HINTS);
            for (hint, single) in hints.iter_mut().zip(group) {
                *hint = Some(Hint::of(guard, &single));
            }
            let count = left.min(HINTS);
            hints[..count]
                .iter()
                .flatten()
                .for_each(|hint| hint.fetch(guard));
            for (hint, single) in hints[..count].iter().zip(rest.by_ref()) {
                left -= 1;
                let room = CLIENT_FRAME_BYTES_MAX - answer.body_bytes() - left * OUTCOME_BYTES_MAX;
                let push = |outcome: &Outcome<'_>| {
                    if 8 + outcome_bytes(outcome) <= room {
                        answer.push(outcome);
                    } else {
                        answer.push(&Outcome::Problem(Problem::Retry { after_ms: 0 }));
                    }
                };
                let done = self.single(guard, views, circumstances, &single, *hint, push);
                if done.is_err() {
                    answer.push(&without(self.when_cold));
                    guard.pin().take_colds();
                }
            }
        }
        answer.finish();
    }

    /// X8: whether operations of a request have to wait for flash; then the whole request waits,
    /// since finished operations could not be done again. Operations beyond the bytes that may be
    /// read at once do not wait, and are to be sent again.
    fn lacks_for(&mut self, guard: &mut Guard<'_>, parts: Parts<'_>) -> bool {
        let Some(WhenCold::Waits { bytes_max }) = self.when_cold else {
            return false;
        };
        guard.pin_mut().renew();
        let mut bytes = 0;
        for single in parts.iter() {
            // The execution reports the error.
            if let Ok(Some(cold)) =
                guard
                    .pin()
                    .cold(single.table, guard.hash(single.key), single.key)
            {
                bytes += cold.span().1;
                if bytes > bytes_max && !self.wanted.is_empty() {
                    break;
                }
                self.wanted.push(cold);
            }
        }
        !self.wanted.is_empty()
    }

    /// Executes one operation; calls `answer` once. `Err`: this entry is on flash; nothing was done
    /// (X8), and `answer` was not called.
    #[inline]
    fn single(
        &mut self,
        guard: &mut Guard<'_>,
        views: &mut impl Views,
        circumstances: Circumstances,
        single: &Single<'_>,
        hint: Option<Hint>,
        answer: impl FnOnce(&Outcome<'_>),
    ) -> Result<(), Cold> {
        guard.pin_mut().renew(); // X1
        let hash = hint.map_or_else(|| guard.hash(single.key), |hint| hint.hash);
        debug_assert_eq!(hash, guard.hash(single.key), "a hint of another request");
        let route = guard.route(hash, single.key);
        if let Some(problem) = self.refusal(views.view(), circumstances.map, single.table, route) {
            answer(&Outcome::Problem(problem));
            return Ok(());
        }
        if single.operation.mutates()
            && let Some(after_ms) = views.writes_wait_ms()
        {
            answer(&Outcome::Problem(Problem::Retry { after_ms })); // X9
            return Ok(());
        }
        let done = match (single.operation, single.rpc) {
            (Operation::Read, _) => match guard.read(single.table, hash, single.key) {
                Ok(Some(object)) => {
                    answer(&match object.string() {
                        Ok(value) => Outcome::Value {
                            version: object.version,
                            expires_at_ms: object.expires_at_ms,
                            value,
                        },
                        Err(_) => Outcome::Problem(Problem::WrongType),
                    });
                    Ok(())
                }
                Ok(None) => {
                    answer(&Outcome::Absent);
                    Ok(())
                }
                Err(error) => answer_error(&error, answer),
            },
            (_, None) => match operation::apply(guard, single, hash) {
                Ok(outcome) => {
                    answer(&outcome);
                    Ok(())
                }
                Err(error) => answer_error(&error, answer),
            },
            (_, Some(rpc)) => {
                return self.once(
                    guard,
                    circumstances.now_us,
                    single,
                    (hash, route),
                    rpc,
                    answer,
                );
            }
        };
        self.note(guard, single.level);
        done
    }

    /// Adds the effects and the observations to the wait.
    #[inline]
    fn note(&mut self, guard: &mut Guard<'_>, level: Option<Level>) {
        if guard.order().has_position() {
            self.wait_for(&position_of(guard, level));
        }
    }

    fn wait_for(&mut self, position: &Position) {
        if position.level() > Level::Memory {
            self.wait.join(position);
        }
    }

    /// A mutating operation with an id: at most one effect under any repetition.
    fn once(
        &mut self,
        guard: &mut Guard<'_>,
        now_us: u64,
        single: &Single<'_>,
        (hash, route): (KeyHash, RouteHash),
        rpc: Rpc,
        answer: impl FnOnce(&Outcome<'_>),
    ) -> Result<(), Cold> {
        let problem = match self.clients.begin(now_us, single.table, route, rpc) {
            Begin::Execute => {
                return match self.execute(guard, single, hash, route, rpc) {
                    Ok(outcome) => {
                        self.executed(guard, single.level, rpc, &outcome);
                        answer(&outcome);
                        Ok(())
                    }
                    Err(error) => {
                        if !has_bug(Bug::ColdIsNotAbandoned) {
                            self.clients.abandon(rpc); // X3
                        }
                        self.note(guard, single.level);
                        answer_error(&error, answer)
                    }
                };
            }
            Begin::Done(result) => match read_whole_outcome(&result) {
                Ok(outcome) => {
                    answer(&outcome);
                    return Ok(());
                }
                Err(_) => Problem::Failed {
                    reason: "the record of this request is not an outcome",
                },
            },
            // The request in progress may be a copy of this frame: the answer must not mean that
            // nothing had been done.
            Begin::InProgress => Problem::InProgress { after_ms: SOON_MS },
            Begin::AskLease | Begin::Full => Problem::Retry { after_ms: SOON_MS },
            Begin::Stale => Problem::Stale,
            Begin::LeaseExpired => Problem::LeaseExpired,
            Begin::BeyondWindow => Problem::Failed {
                reason: "the request's id is too far above what it acknowledges",
            },
        };
        answer(&Outcome::Problem(problem));
        Ok(())
    }

    /// Effect and record, in one group (X3, X4).
    fn execute(
        &mut self,
        guard: &mut Guard<'_>,
        single: &Single<'_>,
        hash: KeyHash,
        route: RouteHash,
        rpc: Rpc,
    ) -> Result<Outcome<'static>, Error> {
        guard.lock_keys(&[(single.table, hash)])?;
        // X8: under the lock it does not change, and the operation waits for no device.
        if self.when_cold.is_some()
            && let Ok(Some(cold)) = guard.pin().cold(single.table, hash, single.key)
        {
            guard.unlock_keys();
            return Err(Error::Cold(cold));
        }
        let executed = operation::apply_recorded(
            guard,
            single,
            hash,
            &once::completion(single.table, route, rpc),
            &mut self.record,
        );
        guard.unlock_keys();
        executed
    }

    /// Finishes an executed request, or notes it until it is durable (X5). The record's bytes are
    /// in `self.record`.
    fn executed(
        &mut self,
        guard: &mut Guard<'_>,
        level: Option<Level>,
        rpc: Rpc,
        outcome: &Outcome<'_>,
    ) {
        let position = position_of(guard, level);
        self.wait_for(&position);
        let has_failed = matches!(
            outcome,
            Outcome::ConditionFailed { .. } | Outcome::Problem(_)
        );
        if has_bug(Bug::AbandonAfterEffect) || has_bug(Bug::FailuresAreNotRecorded) && has_failed {
            return self.clients.abandon(rpc);
        }
        let is_durable = position.is_none() || position.level() == Level::Memory;
        if is_durable || has_bug(Bug::FinishBeforeDurable) {
            return self.clients.finish(rpc, &self.record);
        }
        self.pending.push(Pending {
            position,
            rpc,
            result: self.record.as_slice().into(),
        });
    }

    /// The reason why a key is not for this server; `None`: it is.
    #[inline]
    fn refusal(
        &self,
        view: &View,
        map: MapVersion,
        table: TableId,
        route: RouteHash,
    ) -> Option<Problem<'static>> {
        match view.route(table, route) {
            Route::Serve => {
                // X2: a request by an older map may be a late copy.
                let since = view.serves_since(table, route);
                let is_late = since.is_none_or(|since| since.0 > map.0);
                (is_late && !has_bug(Bug::TenureIsNotLookedAt)).then_some(Problem::UnknownTablet)
            }
            _ if has_bug(Bug::ViewIsNotLookedAt) => None,
            Route::Moved(_) => Some(Problem::UnknownTablet),
            // The client may know a table that this server is not told of yet.
            Route::NoTable if map <= view.map_version() => Some(Problem::UnknownTable),
            Route::NoTable | Route::TryAgain | Route::ClusterDown => Some(Problem::Retry {
                after_ms: NOT_SERVED_MS,
            }),
        }
    }
}

#[inline]
fn position_of(guard: &mut Guard<'_>, level: Option<Level>) -> Position {
    let position = guard.order().take_position();
    match level {
        Some(level) => position.with_level(level),
        None => position,
    }
}

fn kind_of(request: &Request<'_>) -> Kind {
    match request {
        Request::Ping => Kind::Ping,
        Request::Single(_) => Kind::Single,
        Request::Multi(_) => Kind::Multi,
        Request::Enumerate { .. } => Kind::Enumerate,
    }
}

/// The answer to an operation that cannot be done now because an entry is on flash.
#[cold]
fn without(then: Option<WhenCold>) -> Outcome<'static> {
    Outcome::Problem(match then {
        Some(WhenCold::Fails) => Problem::Failed {
            reason: "what lies on flash could not be read",
        },
        Some(WhenCold::Waits { .. } | WhenCold::Retries) | None => Problem::Retry { after_ms: 0 },
    })
}

/// A needed entry on flash is no answer.
#[cold]
fn answer_error(error: &Error, answer: impl FnOnce(&Outcome<'_>)) -> Result<(), Cold> {
    let text;
    let problem = match error {
        Error::Cold(cold) => return Err(*cold),
        Error::KeyTooLarge { .. } | Error::ValueTooLarge { .. } | Error::GroupTooLarge { .. } => {
            Problem::TooLarge
        }
        Error::OutOfMemory { .. } => Problem::Full { what: "memory" },
        Error::DiskFull => Problem::Full { what: "disk" },
        // This life is about to end; another server will have the key.
        Error::DiskFailed | Error::Closed => Problem::Retry {
            after_ms: NOT_SERVED_MS,
        },
        Error::TryAgain => Problem::Retry { after_ms: SOON_MS },
        Error::NoSuchTable(_) => Problem::UnknownTable,
        other => {
            text = other.to_string();
            let end = text.floor_char_boundary(TEXT_BYTES_MAX);
            Problem::Failed {
                reason: &text[..end],
            }
        }
    };
    answer(&Outcome::Problem(problem));
    Ok(())
}
