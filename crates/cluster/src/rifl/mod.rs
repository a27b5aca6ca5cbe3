//! A master's tracker of its clients' requests: each request takes effect exactly once.
//!
//! A mutating request of a native client has an id ([`Rpc`]). A *completion record*, the id and the
//! result, is written with its effect, in the same atomic group of the log. The owner of the key
//! answers a repetition with that result. Records follow their keys through cleaning, recovery and
//! migration: the code that finds one in a log calls [`Tracker::met`].
//!
//! **Invariants**
//! - L1: of the same request, at most one execution is in progress; repetitions wait.
//! - L2: a result is sent, also to a repetition, only when effect and record are durable: the
//!   caller calls [`Tracker::finish`] then, and not earlier (docs/traps.md, scenario 30).
//! - L3: a request at or below the highest acknowledged id is answered `Stale` and never executed.
//! - L4: the record of a request that is not acknowledged is needed: [`Tracker::keeps`]. An
//!   acknowledgement counts here only when the request that brought it is durable, since its record
//!   brings it to the next owner.
//! - L5: a request that was never seen here is executed only while the client's lease is known to
//!   last. Otherwise it could have been executed, and its record dropped because the lease ended.
//! - L6: when a range of keys leaves, its records go along ([`Tracker::export_some`]) or are
//!   dropped ([`Tracker::purge`]). Most go while requests still come, in rounds; a later round
//!   brings what became durable since the one before began. When no request of the range begins
//!   any more, a round that finds none in progress brings the last ones.
//! - L7: a record that is found again changes nothing; the highest acknowledged id wins
//!   (docs/traps.md, trap 30).
//! - L8: a client is dropped only when the coordinator has answered that its lease has ended and no
//!   request of it is in progress. If one of its requests was told to wait for that answer, the
//!   client's records are dropped at once, and the client itself some seconds later. So the
//!   request, when it comes again, gets `LeaseExpired`, instead of waiting for the same answer for
//!   ever.
//! - L9: a client is asked about again after a tenth of a second at the soonest, however little is
//!   left of its lease.
//! - L10: a request that was sent before the key came here is not executed: the caller compares the
//!   version of the request's map with that since which it owns the tablet. (It may be a late copy
//!   of one that others executed, and whose record they dropped because it was acknowledged.)
//! - L11: memory per client is bounded: ids are at most `window` above the acknowledged one.
//! - L12: no call for one client or about one question touches other clients, however many are
//!   known: the node's thread makes these calls. Only [`Tracker::export_some`], [`Tracker::purge`]
//!   and [`Tracker::size`] visit many clients, and other threads call them.
//!
//! **Concurrency**: none in here. Clients are independent of each other: a server may hold several
//! trackers and choose by client.
//!
//! Times are microseconds of a monotonic clock. A lease is measured from the time when the answered
//! request was sent, so only the rates of both clocks may differ; `DRIFT_PERCENT` is subtracted.
//!
//! Paper: RIFL [Lee15 §3-§4]; differs: leases are checked by asking for the time that is left, in
//! advance, instead of a cluster clock in each request; a tracker holds results, not locations, so
//! cleaning moves nothing here.

use duramen_base::ids::{ClientId, KeyRange, RouteHash, RpcId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::Rpc;
use std::collections::{BTreeMap, BTreeSet};

/// Largest difference in the rate of two clocks.
const DRIFT_PERCENT: u64 = 10;
/// A request to the coordinator without an answer is repeated after this time.
const ASK_AGAIN_US: u64 = 500_000;
/// Least time before a client's lease is asked about again: half of the rest would become zero in
/// the end.
const ASK_LEAST_US: u64 = 100_000;
/// A client that has ended, and of which a request waits for that answer, is kept for this time,
/// without records: longer than a client's pause between two tries.
const ENDED_KEPT_US: u64 = 5_000_000;
/// Memory of a client in both maps, which are partly empty.
const CLIENT_BYTES: usize = 192;
/// Memory of a record beside the bytes of its result: its place, partly spare, and an allocation.
const RECORD_BYTES: usize = 88;
/// Records and clients that one call of [`Tracker::export_some`] visits at most, about: it holds up
/// requests.
const VISITS_MAX: usize = 4096;

/// The handling of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Execute it; then [`Tracker::finish`] or [`Tracker::abandon`].
    Execute,
    /// It was executed: this is the answer.
    Done(Vec<u8>),
    /// It is being executed: answer `Retry`, or wait.
    InProgress,
    /// Answer `Stale`.
    Stale,
    /// Ask the coordinator about its client ([`Tracker::to_ask`]) and begin again; meanwhile answer
    /// `Retry`.
    AskLease,
    /// Answer `LeaseExpired`.
    LeaseExpired,
    /// Memory for clients is used up: answer `Retry`. The caller finds this out
    /// ([`Tracker::grows`]).
    Full,
    /// Its id is too far above what it acknowledges: the client breaks the rules. Answer `Failed`.
    BeyondWindow,
}

/// A completion record, as in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub table: TableId,
    /// The hash of the request's key, to which the record belongs.
    pub route: RouteHash,
    pub rpc: Rpc,
    pub result: Vec<u8>,
}

/// A part of a round's records ([`Tracker::export_some`]).
#[derive(Clone, Debug, Default)]
pub struct Exported {
    pub records: Vec<Completion>,
    /// The position at which the round continues; `None`: it is over.
    pub next: Option<(ClientId, RpcId)>,
    /// A request of the range is not durable yet (L2).
    pub is_running: bool,
}

#[derive(Clone, Debug)]
struct Record {
    id: RpcId,
    table: TableId,
    /// The round in which it became durable here.
    round: u32,
    route: RouteHash,
    /// `None`: being executed, or not durable yet.
    result: Option<Box<[u8]>>,
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// The records, by RPC id. Most clients have one or two.
    records: Vec<Record>,
    /// The highest acknowledged id of any request: requests at or below it are stale.
    acknowledged: RpcId,
    /// The highest id that a durable request acknowledges: records at or below it are not needed.
    acknowledged_durably: RpcId,
    /// Its lease lasts at least until then.
    lease_until_us: u64,
    /// The coordinator has answered that the lease has ended.
    ended: bool,
    /// A request waits for the coordinator's answer (L8).
    is_awaited: bool,
    /// When the coordinator is asked next. 0: at once, it is new.
    ask_at_us: u64,
}

/// The tracker; see the file's head.
#[derive(Clone, Debug)]
pub struct Tracker {
    clients: BTreeMap<ClientId, Client>,
    /// Each client by the time of its next question.
    questions: BTreeSet<(u64, ClientId)>,
    window: u64,
    /// Grows when a round of an export begins.
    round: u32,
    /// Clients touched by all calls until now (L12).
    visited: u64,
    /// Bytes of all records.
    record_bytes: usize,
}

impl Tracker {
    /// `window`: most ids between the acknowledged one and a new one; equal in the whole cluster.
    pub fn new(window: u32) -> Tracker {
        Tracker {
            clients: BTreeMap::new(),
            questions: BTreeSet::new(),
            round: 0,
            visited: 0,
            record_bytes: 0,
            window: window.into(),
        }
    }

    /// The entry of a client; a new one if the client was not known.
    fn client(&mut self, id: ClientId) -> &mut Client {
        self.visited += 1;
        let questions = &mut self.questions;
        self.clients.entry(id).or_insert_with(|| {
            let new = Client::default();
            questions.insert((new.ask_at_us, id));
            new
        })
    }

    /// Moves the next question about a client, if the client is known.
    fn ask_at(&mut self, id: ClientId, at_us: u64) {
        self.visited += 1;
        if let Some(client) = self.clients.get_mut(&id) {
            self.questions.remove(&(client.ask_at_us, id));
            client.ask_at_us = at_us;
            self.questions.insert((at_us, id));
        }
    }

    /// A request for a key arrived. The caller owns the key, since before the request was sent
    /// (L10), and continues to own it until it calls `finish` or `abandon`.
    pub fn begin(&mut self, now_us: u64, table: TableId, route: RouteHash, rpc: Rpc) -> Begin {
        let window = self.window;
        let (runs_again, stale_runs, no_lease) = (
            has_bug(Bug::InProgressRunsAgain),
            has_bug(Bug::AcknowledgedRunsAgain),
            has_bug(Bug::NoLeaseCheck),
        );
        let client = self.client(rpc.client);
        client.acknowledged = client.acknowledged.max(rpc.acknowledged);
        if rpc.id <= client.acknowledged && !stale_runs {
            return Begin::Stale; // L3
        }
        match client.record(rpc.id) {
            Some(Record {
                result: Some(result),
                ..
            }) => return Begin::Done(result.to_vec()),
            Some(_) if !runs_again => return Begin::InProgress, // L1
            _ => {}
        }
        if client.ended && !no_lease {
            client.is_awaited = false;
            return Begin::LeaseExpired;
        }
        if now_us >= client.lease_until_us && !no_lease {
            client.is_awaited = true;
            return Begin::AskLease; // L5
        }
        if rpc.id.0 - rpc.acknowledged.0 > window {
            return Begin::BeyondWindow; // L11
        }
        let added = client.add(Record {
            id: rpc.id,
            table,
            round: 0,
            route,
            result: None,
        });
        self.record_bytes += added;
        Begin::Execute
    }

    /// Effect and record of a request that began are durable (L2), with this result. The records
    /// that it acknowledges are not needed any more.
    ///
    /// # Panics
    /// If it did not begin, or is finished already.
    pub fn finish(&mut self, rpc: Rpc, result: &[u8]) {
        self.visited += 1;
        let client = self.clients.get_mut(&rpc.client).expect("L8: it began");
        let at = client.place(rpc.id).expect("L1: it began");
        let record = &mut client.records[at];
        assert!(record.result.is_none(), "L1: finished twice");
        record.result = Some(result.into());
        record.round = self.round;
        self.record_bytes += result.len();
        self.record_bytes -= client.acknowledged_by(rpc.acknowledged); // L4
    }

    /// A request that began had no effect and leaves no record: the key is elsewhere, or there was
    /// no space. It may come again.
    pub fn abandon(&mut self, rpc: Rpc) {
        self.visited += 1;
        if let Some(client) = self.clients.get_mut(&rpc.client)
            && let Ok(at) = client.place(rpc.id)
        {
            let record = client.records.remove(at);
            assert!(
                record.result.is_none(),
                "L1: abandoned after it was finished"
            );
            self.record_bytes -= record.bytes();
        }
    }

    /// A durable record was found: in the own log when the server starts, in a dead server's log,
    /// or in a migration. Returns true if the client was not known: then it is asked about now.
    pub fn met(&mut self, completion: Completion) -> bool {
        if has_bug(Bug::LogForgotten) {
            return false;
        }
        let Completion {
            table,
            route,
            rpc,
            result,
        } = completion;
        let (known, round) = (self.clients.len(), self.round);
        let client = self.client(rpc.client);
        let dropped = client.acknowledged_by(rpc.acknowledged);
        let mut added = 0;
        if rpc.id > client.acknowledged_durably {
            added = client.add(Record {
                id: rpc.id,
                table,
                round,
                route,
                result: Some(result.into()),
            });
        }
        self.record_bytes = self.record_bytes + added - dropped;
        self.clients.len() > known
    }

    /// Whether the cleaner must keep the record of this request (L4).
    pub fn keeps(&self, client: ClientId, id: RpcId) -> bool {
        let known = self.clients.get(&client);
        !has_bug(Bug::CleanerForgets) && known.is_some_and(|known| known.record(id).is_some())
    }

    /// Begins a round of an export. Returns its number: the next round exports what has become
    /// durable since.
    pub fn begin_round(&mut self) -> u32 {
        self.round += 1;
        self.round
    }

    /// Records of a range for its new master (L6), ordered: from this position on (the lowest ids
    /// at the beginning), those that have become durable since round `since` began (0: all). About
    /// `most` bytes of results and records.
    pub fn export_some(
        &self,
        (table, range): (TableId, &KeyRange),
        since: u32,
        from: (ClientId, RpcId),
        most: usize,
    ) -> Exported {
        let mut out = Exported::default();
        if has_bug(Bug::RecordsStayBehind) {
            return out;
        }
        let (mut bytes, mut visits) = (0, 0);
        for (id, client) in self.clients.range(from.0..) {
            if visits >= VISITS_MAX {
                out.next = Some((*id, RpcId(0)));
                return out;
            }
            visits += 1;
            let first = match *id == from.0 {
                true => client.place(from.1).unwrap_or_else(|at| at),
                false => 0,
            };
            for record in &client.records[first..] {
                if bytes >= most || visits >= VISITS_MAX {
                    out.next = Some((*id, record.id));
                    return out;
                }
                visits += 1;
                if record.table != table || !range.contains(record.route) {
                    continue;
                }
                let Some(result) = &record.result else {
                    out.is_running = true;
                    continue;
                };
                // L3: no repetition needs it any more; or it has gone before.
                if record.id <= client.acknowledged || record.round < since {
                    continue;
                }
                bytes += record.bytes();
                out.records.push(Completion {
                    table,
                    route: record.route,
                    rpc: Rpc {
                        client: *id,
                        id: record.id,
                        acknowledged: client.acknowledged,
                    },
                    result: result.to_vec(),
                });
            }
        }
        out
    }

    /// All records of a range, which is locked: no request of it begins any more. `None`: a request
    /// of it is not durable yet (L2). Call again.
    pub fn export(&self, table: TableId, range: &KeyRange) -> Option<Vec<Completion>> {
        let (mut all, mut from) = (Vec::new(), (ClientId(0), RpcId(0)));
        loop {
            let some = self.export_some((table, range), 0, from, usize::MAX);
            if some.is_running {
                return None;
            }
            all.extend(some.records);
            match some.next {
                Some(next) => from = next,
                None => return Some(all),
            }
        }
    }

    /// The range is not owned any more: its records are dropped, and the cleaner need not keep
    /// them. Requests in progress there (only if the table was dropped) still end as usual.
    pub fn purge(&mut self, table: TableId, range: &KeyRange) {
        for client in self.clients.values_mut() {
            self.record_bytes -= client.retain(|record| {
                record.result.is_none() || record.table != table || !range.contains(record.route)
            });
        }
    }

    /// Up to `most` clients that the coordinator must be asked about now, ordered; they are not
    /// returned again for half a second.
    pub fn to_ask(&mut self, now_us: u64, most: usize) -> Vec<ClientId> {
        let mut all = Vec::new();
        while all.len() < most
            && let Some((at_us, id)) = self.questions.first().copied()
            && at_us <= now_us
        {
            self.ask_at(id, now_us + ASK_AGAIN_US);
            all.push(id);
        }
        all.sort_unstable();
        all
    }

    /// The coordinator's answer about a client to a request that was sent at `sent_us`: the rest of
    /// its lease in milliseconds; `None`: it has ended, for ever. Returns the bytes of records that
    /// were dropped.
    pub fn answered(&mut self, sent_us: u64, id: ClientId, left_ms: Option<u32>) -> usize {
        let forgets = has_bug(Bug::ForgetsTheLiving);
        let asks_soon = has_bug(Bug::AsksEverSooner);
        self.visited += 1;
        let Some(client) = self.clients.get_mut(&id) else {
            return 0;
        };
        let Some(left_ms) = left_ms else {
            client.ended = true;
            // L8; a client with a request in progress is asked about again and dropped then.
            if client.is_running() {
                return 0;
            }
            let dropped = client.retain(|_| false);
            self.record_bytes -= dropped;
            if std::mem::take(&mut client.is_awaited) {
                self.ask_at(id, sent_us + ENDED_KEPT_US);
                return dropped;
            }
            self.questions.remove(&(client.ask_at_us, id));
            self.clients.remove(&id);
            return dropped;
        };
        if forgets {
            self.record_bytes -= client.retain(|record| record.result.is_none());
        }
        client.is_awaited = false;
        let left_us = u64::from(left_ms) * 1000 * (100 - DRIFT_PERCENT) / 100;
        client.lease_until_us = client.lease_until_us.max(sent_us + left_us);
        // In advance, so that no client waits for it; and a few times, in case the coordinator is
        // away.
        let least_us = if asks_soon { 0 } else { ASK_LEAST_US };
        self.ask_at(id, sent_us + (left_us / 2).max(least_us));
        0
    }

    /// The coordinator was not reached: the client is asked about again at this time.
    pub fn unanswered(&mut self, id: ClientId, again_us: u64) {
        self.ask_at(id, again_us);
    }

    /// When [`to_ask`](Self::to_ask) has a client at the latest; `None`: no client is known.
    pub fn next_ask_us(&self) -> Option<u64> {
        self.questions.first().map(|(at_us, _)| *at_us)
    }

    /// Whether this request would add to the state that is kept here: its client is not known, or
    /// has records that the request does not acknowledge. A known client can go on with one record.
    pub fn grows(&self, rpc: Rpc) -> bool {
        self.clients.get(&rpc.client).is_none_or(|client| {
            rpc.id > client.acknowledged
                && client.record(rpc.id).is_none()
                && client
                    .records
                    .last()
                    .is_some_and(|last| last.id > rpc.acknowledged)
        })
    }

    /// Memory of all clients, about.
    pub fn bytes(&self) -> usize {
        self.clients.len() * CLIENT_BYTES + self.record_bytes
    }

    /// Number of clients touched by all calls until now, for tests of L12.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// Numbers of known clients, and of all their records: for people.
    pub fn size(&self) -> (usize, usize) {
        let all = || self.clients.values().flat_map(|client| &client.records);
        debug_assert_eq!(self.record_bytes, all().map(Record::bytes).sum::<usize>());
        (self.clients.len(), all().count())
    }
}

impl Record {
    fn bytes(&self) -> usize {
        RECORD_BYTES + self.result.as_ref().map_or(0, |result| result.len())
    }
}

impl Client {
    fn place(&self, id: RpcId) -> Result<usize, usize> {
        self.records.binary_search_by_key(&id, |record| record.id)
    }

    fn record(&self, id: RpcId) -> Option<&Record> {
        self.place(id).ok().map(|at| &self.records[at])
    }

    /// Adds a record, unless there is one of this id (L7). Returns the bytes added.
    fn add(&mut self, record: Record) -> usize {
        let Err(at) = self.place(record.id) else {
            return 0;
        };
        // Room for one, then for half as many again.
        if self.records.len() == self.records.capacity() {
            self.records.reserve_exact(1 + self.records.len() / 2);
        }
        let bytes = record.bytes();
        self.records.insert(at, record);
        bytes
    }

    /// Drops the other records. Returns their bytes.
    fn retain(&mut self, keep: impl Fn(&Record) -> bool) -> usize {
        let mut dropped = 0;
        self.records.retain(|record| {
            let keeps = keep(record);
            dropped += if keeps { 0 } else { record.bytes() };
            keeps
        });
        if self.records.capacity() > 2 * self.records.len() + 2 {
            self.records.shrink_to(self.records.len() + 1);
        }
        dropped
    }

    fn is_running(&self) -> bool {
        self.records.iter().any(|record| record.result.is_none())
    }

    /// A durable request acknowledged everything up to `id`. Returns the bytes that were dropped.
    fn acknowledged_by(&mut self, id: RpcId) -> usize {
        self.acknowledged = self.acknowledged.max(id);
        if id <= self.acknowledged_durably {
            return 0;
        }
        self.acknowledged_durably = id;
        self.retain(|record| record.id > id || record.result.is_none())
    }
}
