//! The client's decisions: the server of each request, the meaning of an answer, the time of the
//! next attempt. It contains no socket, clock or thread.
//!
//! The driver has one [`Core`] and, per call, one [`Batch`] of operations, and runs this loop:
//!
//! ```text
//! loop { match core.next(now, &mut batch) {
//!     Send(sends) => per send: transmit batch.encode(..), then core.answered(..) or core.failed(..)
//!     Ask(ask)    => transmit ask.question to ask.address, then core.coordinator_answered(..) or core.coordinator_failed(..)
//!     Wait        => until then, or until another call has brought something new
//!     Done        => batch.into_results()
//! } }
//! ```
//!
//! **Invariants**
//! - K1: an operation ends once: with an outcome, or with an error that is true. "Not done" is
//!   reported only if it was never sent, or if every sent copy was answered with "not executed";
//!   otherwise the error is "unknown".
//! - K2: a mutating operation keeps its RPC id over all copies; only an operation that is known not
//!   to have been executed gets a new id.
//! - K3: every failure only leads to another attempt, later and with a newer map, until the
//!   deadline. An operation that no other attempt can complete ends at once.
//! - K4: of all calls, one at a time asks the coordinator for the map, and one for each lease; the
//!   others wait for the answer.
//! - K6: an address that has refused the client's login is not asked again for a second. Operations
//!   that only this address could complete end; all others go on.
//! - K5: an answer or a failure that comes after the end of its operation does not change the
//!   result.
//!
//! Times are microseconds of a monotonic clock.
//!
//! Paper: [Ousterhout15 §3.2, §6] clients see no failure; RIFL [Lee15 §4].

mod batch;
mod coordinators;
mod routes;
mod session;
mod settled;

pub use batch::{AsWork, Batch, CallPart, Work};
pub use coordinators::Coordinators;
pub use routes::{Route, Routes};
pub use settled::{Objects, Settled};

use crate::error::Error;
use duramen_base::ids::{MapVersion, ServerId};
use duramen_base::random::Random;
use duramen_wire::native::codec::{
    Envelope, MultiRequest, PARTS_MAX, Reply, Trouble, encode_enumerate, encode_single,
};
use duramen_wire::native::message::{
    Answer, CoordinatorAnswer, Problem, Refusal, TabletMap, ToCoordinator,
};
use session::{LeaseNeed, SessionKey, Sessions};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum bytes of operations in one request: large enough to be efficient, small enough for a
/// steady flow of answers.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// First pause after a failure; it doubles with each further failure up to the maximum.
const PAUSE_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 100_000;
/// Time for which an address that has refused the client's login, or has not answered it, is left
/// alone.
const DENIED_US: u64 = 1_000_000;
/// Pause before the next request for a lease that could not be renewed.
const RENEW_AGAIN_US: u64 = 5_000_000;

/// A duration from a message, in microseconds.
fn micros(ms: u32) -> u64 {
    u64::from(ms) * 1000
}

/// The driver's next step for a batch.
#[derive(Debug)]
pub enum Next {
    /// Send all of these, and only then wait for answers: so the servers work in parallel.
    Send(Vec<Send>),
    Ask(CoordinatorRequest),
    /// Nothing to do before this time, unless another call gets an answer from the coordinator or
    /// ends.
    Wait {
        until_us: u64,
    },
    /// Take the results.
    Done,
}

/// A request to a server, with parts of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    pub server: ServerId,
    pub address: Arc<str>,
    /// Indices of the batch's parts.
    pub parts: Vec<usize>,
    /// The map by which the server was chosen.
    map: MapVersion,
    bytes: usize,
}

impl Send {
    /// Whether another part of this many bytes fits.
    fn takes(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= REQUEST_BYTES_MAX && self.parts.len() < PARTS_MAX
    }
}

/// A question to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorRequest {
    pub address: Arc<str>,
    pub question: ToCoordinator,
    sent_us: u64,
    what: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Map,
    Lease(SessionKey),
}

impl<W: AsWork> Batch<W> {
    /// Appends the frame of a planned request.
    pub fn encode(&self, send: &Send, request: u64, out: &mut Vec<u8>) {
        let envelope = Envelope::of_client(request, send.server, send.map);
        let mut parts = send.parts.iter().map(|index| &self.parts[*index]);
        if send.parts.len() > 1 {
            let mut multi = MultiRequest::new(out, &envelope);
            parts
                .filter_map(CallPart::single)
                .for_each(|single| multi.push(&single));
            multi.finish();
        } else if let Some(part) = parts.next() {
            match part.work.as_work() {
                Work::Enumerate {
                    table,
                    range,
                    cursor,
                    bytes_max,
                } => {
                    let range = part.clamped(range);
                    encode_enumerate(out, &envelope, table, range, cursor, bytes_max);
                }
                Work::Operation(_) => {
                    let single = part.single().expect("an operation");
                    encode_single(out, &envelope, &single);
                }
                Work::Table(_) => unreachable!("no server is asked for a table's id"),
            }
        }
    }
}

/// State that all calls of a client share.
#[derive(Debug)]
pub struct Core {
    routes: Routes,
    sessions: Sessions,
    coordinators: Coordinators,
    /// Whether a call found that the map is outdated.
    map_wanted: bool,
    /// No request before this time: the coordinator has just answered that it has no newer map.
    map_not_before_us: u64,
    /// The time when the last map arrived, or the answer that it is current.
    map_fresh_us: u64,
    /// Until this time at the latest, a call is asking for the map (K4).
    map_asked_until_us: u64,
    /// Longest wait for an answer of the coordinator.
    ask_timeout_us: u64,
    exactly_once: bool,
    random: Random,
    /// A refusal of this client by the cluster: every call ends with it.
    refused: Option<Error>,
    /// Addresses that have refused the client's login, with the reason and the time until which
    /// they are not asked again (K6).
    denials: HashMap<Arc<str>, (Error, u64)>,
}

impl Core {
    /// `seed` spreads pauses: clients must not all come back at the same time. `ask_timeout_us`:
    /// maximum time that the driver waits for an answer of the coordinator. Without `exactly_once`,
    /// a write whose answer is lost may take effect twice.
    pub fn new(
        coordinators: Vec<String>,
        exactly_once: bool,
        ask_timeout_us: u64,
        seed: u64,
    ) -> Core {
        Core {
            routes: Routes::new(),
            sessions: Sessions::new(false),
            coordinators: Coordinators::new(coordinators),
            map_wanted: true,
            map_not_before_us: 0,
            map_fresh_us: 0,
            map_asked_until_us: 0,
            ask_timeout_us,
            exactly_once,
            random: Random::new(seed),
            refused: None,
            denials: HashMap::new(),
        }
    }

    /// One session with a lease per server that the client writes to, instead of one for all: a
    /// server that does not answer then holds up the writes of no other server (core::session::S3).
    #[must_use]
    pub fn with_session_per_server(mut self) -> Core {
        self.sessions = Sessions::new(true);
        self
    }

    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Installs a map that was obtained in another way.
    pub fn learn(&mut self, map: TabletMap) {
        self.routes.install(map);
        self.map_wanted = false;
    }

    pub fn coordinators(&mut self) -> &mut Coordinators {
        &mut self.coordinators
    }

    /// A pause after this many consecutive failures: a random time between half of a value and the
    /// value, which doubles.
    pub fn pause_us(&mut self, failures: u32) -> u64 {
        let whole = (PAUSE_US << failures.saturating_sub(1).min(20)).min(PAUSE_MAX_US);
        whole / 2 + self.random.below(whole / 2 + 1)
    }

    /// The next step for this batch.
    pub fn next<W: AsWork>(&mut self, now_us: u64, batch: &mut Batch<W>) -> Next {
        if let Some(error) = &self.refused {
            batch.fail_open(&mut self.sessions, error);
        }
        if now_us >= batch.deadline_us {
            batch.end(now_us, &mut self.sessions, self.coordinators.last_trouble());
        }
        if batch.is_done() {
            return Next::Done;
        }
        let wants_ids = self.exactly_once && batch.mutates();
        let denied = self.denied_coordinator(now_us);
        if let Some((error, _)) = &denied {
            self.fail_needy(now_us, batch, error);
        } else if wants_ids && let Some(next) = self.lease(now_us, batch) {
            return next;
        }
        let sends = self.plan(now_us, batch, wants_ids);
        if !sends.is_empty() {
            return Next::Send(sends);
        }
        if batch.is_done() {
            return Next::Done;
        }
        if !self.map_wanted {
            return Self::wait(now_us, batch, u64::MAX);
        }
        if let Some((error, until_us)) = denied {
            // The plan may have found more parts without a server.
            self.fail_needy(now_us, batch, &error);
            return if batch.is_done() {
                Next::Done
            } else {
                Self::wait(now_us, batch, until_us)
            };
        }
        if now_us < self.map_asked_until_us {
            return Self::wait(now_us, batch, self.map_asked_until_us);
        }
        if now_us < self.map_not_before_us {
            return Self::wait(now_us, batch, self.map_not_before_us);
        }
        self.ask_map(now_us)
    }

    /// The reason for which the coordinator that would be asked has refused the login, and the time
    /// until which it is not asked; `None` if it has not refused.
    fn denied_coordinator(&self, now_us: u64) -> Option<(Error, u64)> {
        if self.denials.is_empty() {
            return None;
        }
        let known = self.denials.get(&self.coordinators.current())?;
        (now_us < known.1).then(|| known.clone())
    }

    /// Ends the parts that need an answer of the coordinator (K6).
    fn fail_needy<W: AsWork>(&mut self, now_us: u64, batch: &mut Batch<W>, error: &Error) {
        for part in &mut batch.parts {
            if !part.is_open() {
                continue;
            }
            let is_needy = match part.route(&self.routes) {
                Route::Owner { server, .. } if self.exactly_once && part.mutates() => {
                    let key = part.session().unwrap_or_else(|| self.sessions.key(server));
                    self.sessions.get(key).lease_need(now_us) == Some(LeaseNeed::New)
                }
                Route::Owner { .. } | Route::Here(_) => false,
                _ => true,
            };
            if is_needy {
                part.refuse(&mut self.sessions, error);
            }
        }
    }

    /// The step for the leases that the batch needs; `None` if it has them.
    fn lease<W: AsWork>(&mut self, now_us: u64, batch: &Batch<W>) -> Option<Next> {
        if let Some(key) = self.sessions.common() {
            return self.lease_of(now_us, batch, key);
        }
        let mut last = None;
        for part in &batch.parts {
            if part.is_done() || !part.mutates() {
                continue;
            }
            let key = part.session().or_else(|| match part.route(&self.routes) {
                Route::Owner { server, .. } => Some(self.sessions.key(server)),
                _ => None,
            });
            if key.is_some() && key != last {
                last = key;
                let next = key.and_then(|key| self.lease_of(now_us, batch, key));
                if next.is_some() {
                    return next;
                }
            }
        }
        None
    }

    fn lease_of<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &Batch<W>,
        key: SessionKey,
    ) -> Option<Next> {
        // In the first half of a lease nothing is asked; in the second half, the next call that
        // comes here renews it.
        let session = self.sessions.get(key);
        let need = session.lease_need(now_us)?;
        let asked_until_us = session.asked_until_us;
        if now_us >= asked_until_us {
            session.asked_until_us = now_us + self.ask_timeout_us;
            let client = need.renewed();
            let question = ToCoordinator::ClientLease { client };
            return Some(self.ask(now_us, question, RequestKind::Lease(key)));
        }
        let must_wait = need == LeaseNeed::New && self.routes.version() != MapVersion(0);
        must_wait.then(|| Self::wait(now_us, batch, asked_until_us))
    }

    fn wait<W: AsWork>(now_us: u64, batch: &Batch<W>, until_us: u64) -> Next {
        let next_try_us = batch.next_try_us(now_us);
        let until_us = until_us.min(next_try_us).min(batch.deadline_us);
        Next::Wait { until_us }
    }

    fn ask_map(&mut self, now_us: u64) -> Next {
        self.map_asked_until_us = now_us + self.ask_timeout_us;
        let question = ToCoordinator::Map {
            table: None,
            since: self.routes.version(),
        };
        self.ask(now_us, question, RequestKind::Map)
    }

    fn ask(&self, now_us: u64, question: ToCoordinator, what: RequestKind) -> Next {
        Next::Ask(CoordinatorRequest {
            address: self.coordinators.current(),
            question,
            sent_us: now_us,
            what,
        })
    }

    /// Groups the parts that can be sent now by server.
    fn plan<W: AsWork>(&mut self, now_us: u64, batch: &mut Batch<W>, wants_ids: bool) -> Vec<Send> {
        let map = self.routes.version();
        if map == MapVersion(0) {
            self.map_wanted = true;
            return Vec::new();
        }
        let is_fresh = self.map_fresh_us >= batch.begun_us;
        let mut sends: Vec<Send> = Vec::new();
        for (index, part) in batch.parts.iter_mut().enumerate() {
            if !part.is_due(now_us, map) {
                continue;
            }
            let route = part.route(&self.routes);
            let Route::Owner {
                server,
                address,
                range,
            } = route
            else {
                self.not_owned(now_us, part, &route, is_fresh);
                continue;
            };
            if let Some(error) = denial(&self.denials, now_us, &address) {
                part.refuse(&mut self.sessions, error);
                continue;
            }
            let at = sends.iter().position(|send| send.server == server);
            let bytes = part.bytes();
            if at.is_some_and(|at| !sends[at].takes(bytes)) {
                continue; // One request per server at a time; the rest is sent in the next round.
            }
            let key = self.sessions.key(server);
            if wants_ids && !part.name(now_us, &mut self.sessions, key) {
                // core::session::S3: too many ids are open. When other requests end, this one
                // continues.
                part.retry(now_us + PAUSE_US);
                continue;
            }
            part.sent(range);
            let at = at.unwrap_or_else(|| {
                sends.push(Send {
                    server,
                    address,
                    parts: Vec::new(),
                    map,
                    bytes: 0,
                });
                sends.len() - 1
            });
            sends[at].parts.push(index);
            sends[at].bytes += bytes;
        }
        sends
    }

    /// Handles a part whose tablet no server has by the current map.
    fn not_owned<W: AsWork>(
        &mut self,
        now_us: u64,
        part: &mut CallPart<W>,
        route: &Route,
        is_fresh: bool,
    ) {
        match route {
            Route::Here(table) => part.settle(&mut self.sessions, Ok(Settled::Table(*table))),
            Route::NoSuchTable if is_fresh => {
                let error = Error::NoSuchTable(part.table_name(&self.routes));
                part.fail(&mut self.sessions, error);
            }
            Route::NoTablets if is_fresh => {
                let error = Error::NoTablets(part.table_name(&self.routes));
                part.fail(&mut self.sessions, error);
            }
            // The map may be older than the table.
            _ => self.later(now_us, part),
        }
    }

    /// Handles a server's answer.
    pub fn answered<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &mut Batch<W>,
        send: &Send,
        reply: Reply<'_>,
    ) {
        match reply {
            Reply::Client(Answer::Single(outcome)) if send.parts.len() == 1 => {
                self.settle(now_us, batch, send.parts[0], send, outcome);
            }
            Reply::Client(Answer::Multi(outcomes)) if send.parts.len() == outcomes.len() => {
                for (index, outcome) in send.parts.iter().zip(outcomes.iter()) {
                    self.settle(now_us, batch, *index, send, outcome);
                }
            }
            Reply::Client(Answer::Objects {
                last,
                cursor,
                objects,
            }) if send.parts.len() == 1 => {
                if let Some(part) = batch.open(send.parts[0]) {
                    part.objects(&mut self.sessions, last, cursor, &objects);
                }
            }
            Reply::Client(Answer::Problem(problem)) => {
                for index in &send.parts {
                    self.problem(now_us, batch, *index, send, problem);
                }
            }
            Reply::Trouble(trouble) => self.trouble(now_us, batch, send, trouble),
            _ => {
                let error = Error::Protocol {
                    address: send.address.to_string(),
                    reason: "the answer does not fit the request".to_owned(),
                };
                self.end(batch, send, &error);
            }
        }
    }

    /// Handles a missing answer: the connection was refused or broke, or nothing arrived in time.
    pub fn failed<W: AsWork>(&mut self, now_us: u64, batch: &mut Batch<W>, send: &Send, why: &str) {
        let last = format!("{} at {}: {why}", send.server, send.address);
        for index in &send.parts {
            if let Some(part) = batch.open(*index) {
                part.unanswered();
                self.reroute(now_us, part, send, &last);
            }
        }
    }

    fn settle<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &mut Batch<W>,
        index: usize,
        send: &Send,
        outcome: duramen_wire::native::message::Outcome<'_>,
    ) {
        match crate::outcome::Outcome::of(outcome) {
            Ok(outcome) => {
                if let Some(part) = batch.open(index) {
                    part.done(&mut self.sessions, outcome);
                }
            }
            Err(problem) => self.problem(now_us, batch, index, send, problem),
        }
    }

    fn problem<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &mut Batch<W>,
        index: usize,
        send: &Send,
        problem: Problem<'_>,
    ) {
        let Some(part) = batch.open(index) else {
            return; // K5
        };
        let error = match problem {
            Problem::UnknownTablet | Problem::UnknownTable => {
                let last = format!("{} at {} does not own the key", send.server, send.address);
                return self.reroute(now_us, part, send, &last);
            }
            Problem::InProgress { after_ms } => {
                // The network may have repeated the frame, and the other copy is being executed:
                // this was no answer (K1).
                part.unanswered();
                part.retry(now_us + micros(after_ms).max(PAUSE_US / 2));
                return;
            }
            Problem::Retry { after_ms } => {
                part.retry(now_us + micros(after_ms).max(PAUSE_US / 2));
                return;
            }
            Problem::LeaseExpired => {
                if let Some((key, client)) = part.unname() {
                    self.sessions.get(key).ended(client);
                }
                if part.is_known_undone() {
                    part.retry(now_us); // K2: with a new id.
                    return;
                }
                part.unknown("the client's lease has ended")
            }
            Problem::Stale => part.unknown("the answer was forgotten"),
            Problem::WrongType => Error::WrongType,
            Problem::NotANumber => Error::NotANumber,
            Problem::Overflow => Error::Overflow,
            Problem::TooLarge => part.too_large(),
            Problem::Full { what } => Error::Full(what.to_owned()),
            Problem::Failed { reason } => {
                let error =
                    Error::Refused(format!("{} at {}: {reason}", send.server, send.address));
                return part.refuse(&mut self.sessions, &error);
            }
        };
        part.fail(&mut self.sessions, error);
    }

    fn trouble<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &mut Batch<W>,
        send: &Send,
        trouble: Trouble<'_>,
    ) {
        let error = match trouble {
            Trouble::Malformed { .. } | Trouble::WrongProtocol { .. } => Error::Protocol {
                address: send.address.to_string(),
                reason: trouble.to_string(),
            },
            Trouble::NotPermitted { .. } => Error::Refused(trouble.to_string()),
            // Another server uses this address by now.
            Trouble::WrongServer { .. }
            | Trouble::WrongCluster { .. }
            | Trouble::NotServing { .. } => {
                let last = format!("{} at {}: {trouble}", send.server, send.address);
                for index in &send.parts {
                    if let Some(part) = batch.open(*index) {
                        self.reroute(now_us, part, send, &last);
                    }
                }
                return;
            }
            Trouble::Busy { after_ms } => {
                for index in &send.parts {
                    if let Some(part) = batch.open(*index) {
                        part.retry(now_us + micros(after_ms).max(PAUSE_US));
                    }
                }
                return;
            }
        };
        self.end(batch, send, &error);
    }

    fn end<W: AsWork>(&mut self, batch: &mut Batch<W>, send: &Send, error: &Error) {
        for index in &send.parts {
            if let Some(part) = batch.open(*index) {
                part.refuse(&mut self.sessions, error);
            }
        }
    }

    /// Tries again with a newer map, as soon as that arrives.
    fn reroute<W: AsWork>(&mut self, now_us: u64, part: &mut CallPart<W>, send: &Send, last: &str) {
        self.map_wanted |= self.routes.version() == send.map;
        let failures = part.count_failure();
        let pause_us = self.pause_us(failures);
        part.postpone(now_us + pause_us, send.map, last);
    }

    /// No server serves the key now: retries later.
    fn later<W: AsWork>(&mut self, now_us: u64, part: &mut CallPart<W>) {
        self.map_wanted = true;
        let failures = part.count_failure();
        let pause_us = self.pause_us(failures);
        let last = "the key's tablet is being recovered";
        part.postpone(now_us + pause_us, self.routes.version(), last);
    }

    /// Handles the coordinator's answer.
    pub fn coordinator_answered(
        &mut self,
        now_us: u64,
        ask: &CoordinatorRequest,
        answer: CoordinatorAnswer,
    ) {
        match answer {
            CoordinatorAnswer::Map(map) => {
                self.routes.install(map);
                self.map_here(now_us, ask);
                self.map_not_before_us = now_us;
            }
            CoordinatorAnswer::MapIsCurrent => {
                // The coordinator does not know yet what this client has noticed.
                self.map_here(now_us, ask);
                self.map_not_before_us = now_us + self.pause_us(3);
            }
            CoordinatorAnswer::Lease { client, ttl_ms } => {
                if let RequestKind::Lease(key) = ask.what {
                    let session = self.sessions.get(key);
                    session.leased(ask.sent_us, client, ttl_ms);
                    session.asked_until_us = 0;
                }
                self.coordinators.answered();
            }
            CoordinatorAnswer::Refused(refusal) => self.refusal(now_us, ask, refusal),
            other => {
                let why = format!("an answer that does not fit: {other:?}");
                self.coordinator_failed(now_us, ask, &why);
            }
        }
    }

    fn map_here(&mut self, now_us: u64, ask: &CoordinatorRequest) {
        self.map_wanted = false;
        self.map_fresh_us = self.map_fresh_us.max(ask.sent_us);
        self.map_asked_until_us = 0;
        self.map_not_before_us = now_us;
        self.coordinators.answered();
    }

    fn refusal(&mut self, now_us: u64, ask: &CoordinatorRequest, refusal: Refusal) {
        match (&refusal, ask.what, &ask.question) {
            (Refusal::NotLeader { leader }, ..) => {
                self.coordinators
                    .redirected(&ask.address, leader.as_deref());
                self.ask_again(ask, now_us + PAUSE_US);
            }
            (Refusal::NotReady { after_ms, .. }, ..) => {
                self.ask_again(ask, now_us + micros(*after_ms).max(PAUSE_US));
            }
            (Refusal::Store(_), ..) => self.coordinator_failed(now_us, ask, &refusal.to_string()),
            // This client's lease has ended: start with a new one. Requests that are open under the
            // old lease end as unknown, by the masters' answers.
            (
                Refusal::Invalid(_),
                RequestKind::Lease(key),
                ToCoordinator::ClientLease {
                    client: Some(client),
                },
            ) => {
                self.sessions.get(key).ended(*client);
                self.ask_again(ask, now_us);
            }
            _ => self.refuse(Error::Refused(refusal.to_string())),
        }
    }

    /// Notes that the cluster refuses this client: every call ends with this error.
    pub fn refuse(&mut self, error: Error) {
        self.refused = Some(error);
    }

    /// Notes that this address refuses the client's login. It is asked again after [`DENIED_US`],
    /// because users may change. More failed logins before that would slow down other logins of
    /// this machine.
    pub fn deny(&mut self, now_us: u64, address: &str, error: Error) {
        self.denials.retain(|_, (_, until_us)| now_us < *until_us);
        let until_us = now_us + DENIED_US;
        self.denials.insert(Arc::from(address), (error, until_us));
    }

    /// As [`deny`](Self::deny), for a coordinator that has refused the login before this question.
    pub fn deny_question(&mut self, now_us: u64, ask: &CoordinatorRequest, error: Error) {
        self.ask_again(ask, now_us + DENIED_US);
        self.deny(now_us, &ask.address, error);
    }

    /// As [`deny`](Self::deny), for the server of this request.
    pub fn denied<W: AsWork>(&mut self, now_us: u64, batch: &mut Batch<W>, send: &Send, why: &str) {
        let error = Error::Refused(format!("{} at {}: {why}", send.server, send.address));
        self.end(batch, send, &error);
        self.deny(now_us, &send.address, error);
    }

    /// Notes that the server of this request has not answered the login in time, so that the
    /// request was not sent. The request is tried again, but not at once, because each login costs
    /// the server.
    pub fn login_unanswered<W: AsWork>(
        &mut self,
        now_us: u64,
        batch: &mut Batch<W>,
        send: &Send,
        why: &str,
    ) {
        self.map_wanted |= self.routes.version() == send.map;
        let last = format!("{} at {}: {why}", send.server, send.address);
        for index in &send.parts {
            if let Some(part) = batch.open(*index) {
                part.postpone(now_us + DENIED_US, send.map, &last);
            }
        }
    }

    /// The error with which a question to this address ends now (K6).
    pub fn refused(&self, now_us: u64, address: &str) -> Option<&Error> {
        let denied = || denial(&self.denials, now_us, address);
        self.refused.as_ref().or_else(denied)
    }

    fn ask_again(&mut self, ask: &CoordinatorRequest, at_us: u64) {
        match ask.what {
            RequestKind::Map => {
                self.map_asked_until_us = 0;
                self.map_not_before_us = at_us;
            }
            RequestKind::Lease(key) => self.sessions.get(key).asked_until_us = at_us,
        }
    }

    /// The coordinator's address refused the connection, or it broke, or nothing arrived in time:
    /// tries the next address.
    pub fn coordinator_failed(&mut self, now_us: u64, ask: &CoordinatorRequest, why: &str) {
        let failures = self.coordinators.failed(&ask.address, why);
        let pause_us = self.pause_us(failures);
        self.ask_again(ask, now_us + pause_us);
        if let RequestKind::Lease(key) = ask.what {
            let session = self.sessions.get(key);
            session.renew_later(now_us + RENEW_AGAIN_US);
        }
    }
}

/// The reason why this address refuses the client's login now.
fn denial<'a>(
    denials: &'a HashMap<Arc<str>, (Error, u64)>,
    now_us: u64,
    address: &str,
) -> Option<&'a Error> {
    let (error, until_us) = denials.get(address)?;
    (now_us < *until_us).then_some(error)
}
