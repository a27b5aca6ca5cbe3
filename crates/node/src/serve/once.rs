//! The completion records of this server's clients: trackers, joined to the records in the log.

use duramen_base::ids::{ClientId, KeyRange, RouteHash, RpcId, TableId};
use duramen_base::limits::RPC_WINDOW;
use duramen_cluster::rifl::{self, Begin, Tracker};
use duramen_engine::{Completions, Position};
use duramen_format::entry::Completion;
use duramen_wire::native::message::Rpc;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clients are spread over so many locks.
const SHARDS: usize = 16;
/// Bytes of clients that are not charged to the memory budget: about a thousand clients.
const FREE_BYTES: usize = 256 << 10;
/// Records dropped by one answer, in bytes: some ten thousand records. Clients that are left are
/// asked about again.
const DROP_BYTES_MAX: usize = 1 << 20;
/// Most clients in one question to the coordinator: its answer is work of about a millisecond.
pub(super) const ASK_CLIENTS_MAX: usize = 1024;

/// A request that was executed and is not durable.
pub(super) struct Pending {
    pub position: Position,
    pub rpc: Rpc,
    pub result: Box<[u8]>,
}

/// The record of a request, without its result.
pub(super) fn completion(table: TableId, route: RouteHash, rpc: Rpc) -> Completion<'static> {
    Completion {
        table: table.0,
        route,
        client: rpc.client,
        rpc: rpc.id,
        ack: rpc.acknowledged,
        result: &[],
    }
}

/// Appends a record as a log has it.
fn write(completion: &rifl::Completion, out: &mut Vec<u8>) {
    let record = Completion {
        result: &completion.result,
        ..self::completion(completion.table, completion.route, completion.rpc)
    };
    let start = out.len();
    out.resize(start + record.padded_bytes(), 0);
    record.write_to(&mut out[start..]);
}

/// Rounds over the records of a range ([`Clients::export_some`]).
pub(crate) struct Records {
    table: TableId,
    range: KeyRange,
    /// For each shard, the round since whose beginning records are exported.
    since: [u32; SHARDS],
    /// The position, and the round that has begun there.
    shard: usize,
    next: Option<(ClientId, RpcId)>,
    begun: u32,
    /// This round has met a request that is not durable yet.
    is_running: bool,
}

impl Records {
    const FIRST: (ClientId, RpcId) = (ClientId(0), RpcId(0));

    pub fn new(table: TableId, range: KeyRange) -> Records {
        Records {
            table,
            range,
            since: [0; SHARDS],
            shard: 0,
            next: None,
            begun: 0,
            is_running: false,
        }
    }

    /// Whether the last round has met a request that is not durable yet.
    pub fn is_running(&self) -> bool {
        self.is_running
    }
}

/// All clients of a life's store. Given to the store when it is opened, so that records in its log
/// are replayed and kept.
pub struct Clients {
    shards: Box<[Mutex<Tracker>]>,
    /// Bytes of all trackers, and those from which on nothing is added to them.
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
    /// A client has come that must be asked about, and [`ask`](Self::ask) was not called since.
    unknown: AtomicBool,
    /// Requests a poll from the driver of the node.
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (clients, records) = self.size();
        write!(f, "Clients({clients} with {records} records)")
    }
}

impl Clients {
    /// `wake`: a client must be asked about; must only signal.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Arc<Clients> {
        let shards = (0..SHARDS).map(|_| Mutex::new(Tracker::new(RPC_WINDOW)));
        Arc::new(Clients {
            shards: shards.collect(),
            bytes: AtomicUsize::new(0),
            bytes_max: AtomicUsize::new(FREE_BYTES),
            unknown: AtomicBool::new(false),
            wake,
        })
    }

    fn of(&self, client: ClientId) -> MutexGuard<'_, Tracker> {
        // Ids are given in order.
        let shard = &self.shards[client.0 as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the client's tracker.
    fn with<T>(&self, client: ClientId, call: impl FnOnce(&mut Tracker) -> T) -> T {
        self.counted(&mut self.of(client), call)
    }

    fn counted<T>(&self, tracker: &mut Tracker, call: impl FnOnce(&mut Tracker) -> T) -> T {
        let before = tracker.bytes();
        let result = call(tracker);
        // Wraps around if it became less.
        let more = tracker.bytes().wrapping_sub(before);
        if more != 0 {
            self.bytes.fetch_add(more, Ordering::Relaxed);
        }
        result
    }

    /// Bytes to be charged for the clients, besides a part that is always there.
    pub(super) fn wanted_bytes(&self) -> u64 {
        let bytes = self.bytes.load(Ordering::Relaxed);
        bytes.saturating_sub(FREE_BYTES / 2) as u64
    }

    /// So many bytes are charged for the clients.
    pub(super) fn charged(&self, bytes: u64) {
        self.bytes_max
            .store(FREE_BYTES + bytes as usize, Ordering::Relaxed);
    }

    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Tracker>> {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn begin(&self, now_us: u64, table: TableId, route: RouteHash, rpc: Rpc) -> Begin {
        // Relaxed: they only count.
        let is_full = self.bytes.load(Ordering::Relaxed) >= self.bytes_max.load(Ordering::Relaxed);
        let begin = self.with(rpc.client, |tracker| match is_full && tracker.grows(rpc) {
            true => Begin::Full,
            false => tracker.begin(now_us, table, route, rpc),
        });
        if matches!(begin, Begin::AskLease | Begin::Full) {
            self.is_unknown();
        }
        begin
    }

    fn is_unknown(&self) {
        if !self.unknown.load(Ordering::Acquire) && !self.unknown.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    pub(super) fn finish(&self, rpc: Rpc, result: &[u8]) {
        self.with(rpc.client, |tracker| tracker.finish(rpc, result));
    }

    pub(super) fn abandon(&self, rpc: Rpc) {
        self.with(rpc.client, |tracker| tracker.abandon(rpc));
    }

    /// Appends records of a range that another master takes over, in the form of a log, one after
    /// the other, until `out` has about `bytes_max` bytes. Returns false when the round is over:
    /// the next call begins another (rifl::L6).
    pub(crate) fn export_some(
        &self,
        of: &mut Records,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        while let Some(shard) = self.shards.get(of.shard) {
            if out.len() >= bytes_max {
                return true;
            }
            let mut tracker = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let from = match of.next {
                Some(next) => next,
                None => {
                    of.begun = tracker.begin_round();
                    of.is_running &= of.shard > 0;
                    Records::FIRST
                }
            };
            let since = of.since[of.shard];
            let most = bytes_max - out.len();
            let some = tracker.export_some((of.table, &of.range), since, from, most);
            drop(tracker);
            for completion in &some.records {
                write(completion, out);
            }
            of.is_running |= some.is_running;
            of.next = some.next;
            if of.next.is_none() {
                of.since[of.shard] = of.begun;
                of.shard += 1;
            }
        }
        of.shard = 0;
        false
    }

    /// All records of a range at once. No request of the range begins any more. `None`: a request
    /// of it is not durable yet. Call it again after a commit, and `Servant::settle` by each
    /// thread.
    pub fn export(&self, table: TableId, range: &KeyRange) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for tracker in self.each() {
            for completion in tracker.export(table, range)? {
                write(&completion, &mut bytes);
            }
        }
        Some(bytes)
    }

    /// Drops the records of a range that is not owned any more.
    pub fn purge(&self, table: TableId, range: &KeyRange) {
        self.each()
            .for_each(|mut tracker| self.counted(&mut tracker, |it| it.purge(table, range)));
    }

    /// Whether a client waits to be asked about.
    pub(super) fn has_unknown(&self) -> bool {
        self.unknown.load(Ordering::Acquire)
    }

    /// Some clients that the coordinator must be asked about now (`ToCoordinator::AreAlive`).
    /// Each shard has its share, so that no client waits until all of another shard are asked
    /// about.
    pub fn ask(&self, now_us: u64) -> Vec<ClientId> {
        self.unknown.store(false, Ordering::Release);
        self.each()
            .flat_map(|mut tracker| tracker.to_ask(now_us, ASK_CLIENTS_MAX / SHARDS))
            .collect()
    }

    /// When [`ask`](Self::ask) has a client at the latest, if no new one comes.
    pub fn next_ask_us(&self) -> Option<u64> {
        self.each()
            .filter_map(|tracker| tracker.next_ask_us())
            .min()
    }

    /// The answer to a request that was sent at `sent_us`: the rest of the leases of those that
    /// have one, in milliseconds. The others have ended.
    pub fn answered(&self, sent_us: u64, asked: &[ClientId], alive: &[(ClientId, u32)]) {
        let alive: HashMap<ClientId, u32> = alive.iter().copied().collect();
        let mut dropped = 0;
        for client in asked {
            let left_ms = alive.get(client).copied();
            if left_ms.is_some() || dropped < DROP_BYTES_MAX {
                dropped += self.with(*client, |it| it.answered(sent_us, *client, left_ms));
            }
        }
    }

    /// The coordinator was not reached: these clients are asked about again at this time.
    pub(super) fn unanswered(&self, asked: &[ClientId], again_us: u64) {
        for client in asked {
            self.of(*client).unanswered(*client, again_us);
        }
    }

    /// Number of clients that all calls have touched until now, for tests of rifl::L12.
    #[cfg(test)]
    pub(super) fn visited(&self) -> u64 {
        self.each().map(|tracker| tracker.visited()).sum()
    }

    /// Numbers of known clients and of all their records: for people.
    pub fn size(&self) -> (usize, usize) {
        self.each().fold((0, 0), |(clients, records), tracker| {
            let (more, kept) = tracker.size();
            (clients + more, records + kept)
        })
    }
}

impl Completions for Clients {
    fn met(&self, record: &Completion<'_>) {
        let completion = rifl::Completion {
            table: TableId(record.table),
            route: record.route,
            rpc: Rpc {
                client: record.client,
                id: record.rpc,
                acknowledged: record.ack,
            },
            result: record.result.to_vec(),
        };
        let is_new = self.with(record.client, |tracker| tracker.met(completion));
        // Its lease may have ended, and then nothing else asks about it.
        if is_new {
            self.is_unknown();
        }
    }

    fn keep(&self, record: &Completion<'_>) -> bool {
        self.of(record.client).keeps(record.client, record.rpc)
    }
}
