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
//! - L6: when a range of keys leaves, its records go along ([`Tracker::export`]) or are dropped
//!   ([`Tracker::purge`]).
//! - L7: a record that is found again changes nothing; the highest acknowledged id wins
//!   (docs/traps.md, trap 30).
//! - L8: a client is dropped only when the coordinator has answered that its lease has ended and no
//!   request of it is in progress.
//! - L9: a client is asked about again after a tenth of a second at the soonest, however little is
//!   left of its lease.
//! - L10: a request that was sent before the key came here is not executed: the caller compares the
//!   version of the request's map with that since which it owns the tablet. (It may be a late copy
//!   of one that others executed, and whose record they dropped because it was acknowledged.)
//! - L11: memory per client is bounded: ids are at most `window` above the acknowledged one.
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
use std::collections::{BTreeMap, HashMap};

/// Largest difference in the rate of two clocks.
const DRIFT_PERCENT: u64 = 10;
/// A request to the coordinator without an answer is repeated after this time.
const ASK_AGAIN_US: u64 = 500_000;
/// Least time before a client's lease is asked about again: half of the rest would become zero in
/// the end.
const ASK_LEAST_US: u64 = 100_000;

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
    /// Its id is too far above what it acknowledges: the client breaks the rules. Answer `Failed`.
    BeyondWindow,
}

/// A completion record, as in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub table: TableId,
    /// Of the request's key, to which the record belongs.
    pub route: RouteHash,
    pub rpc: Rpc,
    pub result: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Record {
    table: TableId,
    route: RouteHash,
    /// `None`: being executed, or not durable yet.
    result: Option<Vec<u8>>,
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// By RPC id.
    records: BTreeMap<RpcId, Record>,
    /// The highest acknowledged id of any request: requests at or below it are stale.
    acknowledged: RpcId,
    /// The same, of durable requests: records at or below are not needed.
    acknowledged_durably: RpcId,
    /// Its lease lasts at least until then.
    lease_until_us: u64,
    /// The coordinator has answered that the lease has ended.
    ended: bool,
    /// When the coordinator is asked next. 0: at once, it is new.
    ask_at_us: u64,
}

/// The tracker; see the file's head.
#[derive(Clone, Debug)]
pub struct Tracker {
    clients: HashMap<ClientId, Client>,
    window: u64,
}

impl Tracker {
    /// `window`: most ids between the acknowledged one and a new one; equal in the whole cluster.
    pub fn new(window: u32) -> Tracker {
        Tracker {
            clients: HashMap::new(),
            window: window.into(),
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
        let client = self.clients.entry(rpc.client).or_default();
        client.acknowledged = client.acknowledged.max(rpc.acknowledged);
        if rpc.id <= client.acknowledged && !stale_runs {
            return Begin::Stale; // L3
        }
        match client.records.get(&rpc.id) {
            Some(Record {
                result: Some(result),
                ..
            }) => return Begin::Done(result.clone()),
            Some(_) if !runs_again => return Begin::InProgress, // L1
            _ => {}
        }
        if client.ended && !no_lease {
            return Begin::LeaseExpired;
        }
        if now_us >= client.lease_until_us && !no_lease {
            return Begin::AskLease; // L5
        }
        if rpc.id.0 - rpc.acknowledged.0 > window {
            return Begin::BeyondWindow; // L11
        }
        let record = Record {
            table,
            route,
            result: None,
        };
        client.records.insert(rpc.id, record);
        Begin::Execute
    }

    /// Effect and record of a request that began are durable (L2), with this result. The records
    /// that it acknowledges are not needed any more.
    ///
    /// # Panics
    /// If it did not begin, or is finished already.
    pub fn finish(&mut self, rpc: Rpc, result: &[u8]) {
        let client = self.clients.get_mut(&rpc.client).expect("L8: it began");
        let record = client.records.get_mut(&rpc.id).expect("L1: it began");
        assert!(record.result.is_none(), "L1: finished twice");
        record.result = Some(result.to_vec());
        client.acknowledged_by(rpc.acknowledged); // L4
    }

    /// A request that began had no effect and leaves no record: the key is elsewhere, or there was
    /// no space. It may come again.
    pub fn abandon(&mut self, rpc: Rpc) {
        if let Some(client) = self.clients.get_mut(&rpc.client) {
            let record = client.records.remove(&rpc.id);
            assert!(
                record.is_none_or(|record| record.result.is_none()),
                "L1: abandoned after it was finished"
            );
        }
    }

    /// A durable record was found: in the own log when the server starts, in a dead server's log,
    /// or in a migration.
    pub fn met(&mut self, completion: Completion) {
        if has_bug(Bug::LogForgotten) {
            return;
        }
        let Completion {
            table,
            route,
            rpc,
            result,
        } = completion;
        let client = self.clients.entry(rpc.client).or_default();
        client.acknowledged_by(rpc.acknowledged);
        if rpc.id > client.acknowledged_durably {
            client.records.entry(rpc.id).or_insert(Record {
                table,
                route,
                result: Some(result),
            });
        }
    }

    /// Whether the cleaner must keep the record of this request (L4).
    pub fn keeps(&self, client: ClientId, id: RpcId) -> bool {
        let known = self.clients.get(&client);
        !has_bug(Bug::CleanerForgets) && known.is_some_and(|known| known.records.contains_key(&id))
    }

    /// The records of a range for its new master (L6). The range is locked: no request of it begins
    /// any more. `None`: a request of it is not durable yet (L2). Call again.
    pub fn export(&self, table: TableId, range: &KeyRange) -> Option<Vec<Completion>> {
        if has_bug(Bug::RecordsStayBehind) {
            return Some(Vec::new());
        }
        let mut all = Vec::new();
        for (id, client) in &self.clients {
            for (rpc, record) in &client.records {
                if record.table != table || !range.contains(record.route) {
                    continue;
                }
                let result = record.result.as_ref()?;
                if *rpc <= client.acknowledged {
                    continue; // L3: no repetition needs it any more.
                }
                all.push(Completion {
                    table,
                    route: record.route,
                    rpc: Rpc {
                        client: *id,
                        id: *rpc,
                        acknowledged: client.acknowledged,
                    },
                    result: result.clone(),
                });
            }
        }
        all.sort_unstable_by_key(|completion| (completion.rpc.client, completion.rpc.id));
        Some(all)
    }

    /// The range is not owned any more: its records are dropped, and the cleaner need not keep
    /// them. Requests in progress there (only if the table was dropped) still end as usual.
    pub fn purge(&mut self, table: TableId, range: &KeyRange) {
        for client in self.clients.values_mut() {
            client.records.retain(|_, record| {
                record.result.is_none() || record.table != table || !range.contains(record.route)
            });
        }
    }

    /// Clients that the coordinator must be asked about now, ordered; they are not returned again
    /// for half a second.
    pub fn to_ask(&mut self, now_us: u64) -> Vec<ClientId> {
        let mut all: Vec<ClientId> = self
            .clients
            .iter_mut()
            .filter(|(_, client)| now_us >= client.ask_at_us)
            .map(|(id, client)| {
                client.ask_at_us = now_us + ASK_AGAIN_US;
                *id
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// The coordinator's answer to a request that was sent at `sent_us`: the rest of the leases of
    /// those that have one, in milliseconds. The others have ended, for ever.
    pub fn answered(&mut self, sent_us: u64, asked: &[ClientId], alive: &[(ClientId, u32)]) {
        let forgets = has_bug(Bug::ForgetsTheLiving);
        let asks_soon = has_bug(Bug::AsksEverSooner);
        for id in asked {
            let Some(client) = self.clients.get_mut(id) else {
                continue;
            };
            let left_ms = alive.iter().find(|(known, _)| known == id);
            match left_ms {
                Some((_, left_ms)) => {
                    if forgets {
                        client.records.retain(|_, record| record.result.is_none());
                    }
                    let left_us = u64::from(*left_ms) * 1000 * (100 - DRIFT_PERCENT) / 100;
                    client.lease_until_us = client.lease_until_us.max(sent_us + left_us);
                    // In advance, so that no client waits for it; and a few times, in case the
                    // coordinator is away.
                    let least_us = if asks_soon { 0 } else { ASK_LEAST_US };
                    client.ask_at_us = sent_us + (left_us / 2).max(least_us);
                }
                _ => client.ended = true,
            }
        }
        // L8; a client with a request in progress is asked about again and dropped then.
        self.clients
            .retain(|_, client| !client.ended || client.is_running());
    }

    /// When [`to_ask`](Self::to_ask) has a client at the latest; `None`: no client is known.
    pub fn next_ask_us(&self) -> Option<u64> {
        self.clients.values().map(|client| client.ask_at_us).min()
    }

    /// Numbers of known clients, and of all their records: for people.
    pub fn size(&self) -> (usize, usize) {
        let records = self.clients.values().map(|client| client.records.len());
        (self.clients.len(), records.sum())
    }
}

impl Client {
    fn is_running(&self) -> bool {
        self.records.values().any(|record| record.result.is_none())
    }

    /// A durable request acknowledged everything up to `id`.
    fn acknowledged_by(&mut self, id: RpcId) {
        self.acknowledged = self.acknowledged.max(id);
        if id <= self.acknowledged_durably {
            return;
        }
        self.acknowledged_durably = id;
        self.records
            .retain(|known, record| *known > id || record.result.is_none());
    }
}
