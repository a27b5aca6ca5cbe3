//! A model of a server in random histories: its state over crashes, the state of one life, and its
//! handling of the coordinator's messages.

mod deeds;

use crate::coordinator::world::{REPLICAS, World};
use duramen_base::ids::{
    KeyRange, MigrationId, RecoveryId, RouteHash, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_cluster::coordinator::ReplyId;
use duramen_cluster::detector::{Act, Detector};
use duramen_cluster::membership::{Applied, Members};
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::{Header, Kind};
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, MigrationDone, MigrationOutcome, PartitionDone,
    PartitionOutcome, Recover, Refusal, ReplicaEntry, Replicas, ServerAnswer, ServerChange,
    ServerListUpdate, TabletState, Tablets, ToCoordinator,
};
use std::collections::{BTreeMap, BTreeSet};

pub type Key = (TableId, RouteHash);
/// Grows over all writes, so it is the version as well.
pub type Value = u64;

const MS: u64 = 1_000;
/// Entries of a full segment.
const FULL: usize = 6;
/// A request without an answer is repeated after this time.
const AGAIN_US: u64 = 250 * MS;

/// A replica on a backup.
#[derive(Clone)]
struct Replica {
    kind: Kind,
    epoch: u64,
    closed: bool,
    entries: Vec<(Key, Value)>,
    control: Vec<u8>,
}

impl Replica {
    fn certificate(&self) -> Certificate {
        if self.kind == Kind::Control {
            return Certificate::of(&self.control);
        }
        let mut bytes = Vec::new();
        for ((table, hash), value) in &self.entries {
            bytes.extend(table.0.to_le_bytes());
            bytes.extend(hash.0.to_le_bytes());
            bytes.extend(value.to_le_bytes());
        }
        Certificate::of(&bytes)
    }
}

/// A backup's replicas of one log.
#[derive(Default)]
pub struct Shelf {
    fenced: bool,
    /// The end of the read lease that this backup granted to the log's master.
    granted_until_us: u64,
    replicas: BTreeMap<SegmentId, Replica>,
}

/// A server: its disk, and its process if it runs.
pub struct Server {
    pub disk: u64,
    pub shelf: BTreeMap<ServerId, Shelf>,
    stored_id: Option<ServerId>,
    pub life: Option<Life>,
    /// No message reaches it or leaves it.
    pub cut: bool,
    pub has_space: bool,
}

/// A segment of the own log.
struct Segment {
    holders: Vec<ServerId>,
    replica: Replica,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// Reported to the coordinator until it answers.
    Reported,
    Accepted(TabletsVersion),
}

/// Data for this server: of a partition, or of a tablet that moves in.
struct Arrival {
    ranges: Vec<(TableId, KeyRange)>,
    data: BTreeMap<Key, Value>,
    creation: SegmentId,
    stage: Stage,
    order: Option<Recover>,
    due_us: u64,
    failed: Option<(bool, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Partition(RecoveryId, u32),
    Migration(MigrationId),
}

enum Wish {
    Enlist,
    Head(SegmentId),
    Report(Source),
    /// Only a refusal matters.
    Accepted,
    /// Logs that are not in its list; if a list requested after their first write does not have
    /// them either, they are gone.
    Strangers(Vec<ServerId>),
}

/// A process.
pub struct Life {
    pub nonce: u64,
    id: Option<ServerId>,
    term: u32,
    members: Members,
    /// Logs that were dropped here: refused for ever, or a log that was declared crashed could
    /// begin anew on old holders.
    gone: BTreeSet<ServerId>,
    tablets: Tablets,
    data: BTreeMap<Key, Value>,
    segments: BTreeMap<SegmentId, Segment>,
    control: Option<SegmentId>,
    control_holders: Vec<ServerId>,
    open: Option<SegmentId>,
    next_segment: u64,
    /// The coordinator has noted the control segment.
    noted: bool,
    /// Some segment is not on all of its holders.
    stuck: bool,
    /// The control log needs a new segment before it continues.
    rolls: bool,
    lease_until_us: u64,
    arrivals: BTreeMap<Source, Arrival>,
    locked: BTreeSet<MigrationId>,
    wishes: BTreeMap<ReplyId, Wish>,
    ask_at_us: u64,
    detector: Detector,
    seed: u64,
}

impl Life {
    fn recover(&mut self, order: Recover, busy: bool, due_us: u64) -> ServerAnswer {
        let source = Source::Partition(order.recovery, order.partition);
        if self.arrivals.contains_key(&source) {
            return ServerAnswer::Started;
        }
        if busy {
            return ServerAnswer::Busy;
        }
        let arrival = Arrival {
            ranges: order.tablets.iter().map(|t| (t.table, t.range)).collect(),
            data: BTreeMap::new(),
            creation: SegmentId::NONE,
            stage: Stage::Running,
            order: Some(order),
            due_us,
            failed: None,
        };
        self.arrivals.insert(source, arrival);
        ServerAnswer::Started
    }

    pub fn new(nonce: u64, seed: u64, now_us: u64) -> Life {
        Life {
            nonce,
            id: None,
            term: 0,
            members: Members::new(),
            gone: BTreeSet::new(),
            tablets: Tablets::default(),
            data: BTreeMap::new(),
            segments: BTreeMap::new(),
            control: None,
            control_holders: Vec::new(),
            open: None,
            next_segment: 1,
            noted: false,
            stuck: false,
            rolls: false,
            lease_until_us: 0,
            arrivals: BTreeMap::new(),
            locked: BTreeSet::new(),
            wishes: BTreeMap::new(),
            ask_at_us: now_us,
            detector: Detector::new(ServerId::NONE, 100, 50, seed, now_us),
            seed,
        }
    }

    fn state_of(&self, key: Key) -> Option<TabletState> {
        let mut tablets = self.tablets.tablets.iter();
        tablets
            .find(|t| t.table == key.0 && t.range.contains(key.1))
            .map(|t| t.state)
    }

    fn new_segment(&mut self) -> SegmentId {
        self.next_segment += 1;
        SegmentId(self.next_segment - 1)
    }

    /// The control segment's bytes: a snapshot of the listed segments.
    fn control_bytes(&self, id: SegmentId) -> Vec<u8> {
        let log = self.id.expect("a member").number();
        let header = Header {
            kind: Kind::Control,
            segment: id,
            log,
            head: 0,
            capacity: duramen_harness::settings().segment_bytes,
        };
        let mut records = Vec::new();
        for (segment, of) in &self.segments {
            records.push(Record::AddOpen {
                segment: *segment,
                epoch: of.replica.epoch,
                head: 0,
                kind: of.replica.kind,
            });
            if of.replica.closed {
                records.push(Record::Closed {
                    segment: *segment,
                    certificate: of.replica.certificate(),
                });
            }
        }
        let snapshot = Record::Snapshot {
            next_segment: SegmentId(self.next_segment),
            safe_version: 0,
            records: records.len() as u32,
        };
        let mut bytes = header.encode().to_vec();
        snapshot.encode(&mut bytes);
        records.iter().for_each(|record| record.encode(&mut bytes));
        bytes
    }

    /// Applies a newer list of tablets: merges arrived data, drops data of other owners.
    fn apply_tablets(&mut self, tablets: Tablets) {
        if tablets.version <= self.tablets.version {
            return;
        }
        self.tablets = tablets;
        let listed = self.tablets.tablets.clone();
        let is_own = |key: &Key, with: Option<SegmentId>| {
            listed.iter().any(|t| {
                let creation = match t.state {
                    TabletState::Normal { creation } => creation,
                    TabletState::Outgoing { creation, .. } => creation,
                    _ => return false,
                };
                t.table == key.0
                    && t.range.contains(key.1)
                    && with.is_none_or(|with| with == creation)
            })
        };
        let version = self.tablets.version;
        let mut merged = BTreeMap::new();
        self.arrivals.retain(|_, arrival| {
            let creation = arrival.creation;
            let is_listed = arrival.stage != Stage::Running
                && arrival.ranges.iter().any(|(table, range)| {
                    is_own(&(*table, range.first), Some(creation))
                        || is_own(&(*table, range.last), Some(creation))
                });
            if is_listed {
                let own = arrival
                    .data
                    .iter()
                    .filter(|(key, _)| is_own(key, Some(creation)));
                merged.extend(own.map(|(key, value)| (*key, *value)));
            }
            let is_over = matches!(arrival.stage, Stage::Accepted(since) if since <= version);
            !is_listed && !is_over
        });
        self.data.retain(|key, _| is_own(key, None));
        self.data.extend(merged);
        let outgoing = |m: &MigrationId| {
            let mut states = listed.iter().map(|t| t.state);
            states.any(|s| matches!(s, TabletState::Outgoing { migration, .. } if migration == *m))
        };
        self.locked.retain(outgoing);
    }
}

impl Server {
    pub fn new(disk: u64) -> Server {
        Server {
            disk,
            shelf: BTreeMap::new(),
            stored_id: None,
            life: None,
            cut: false,
            has_space: true,
        }
    }

    /// The id of the running process, if it is a member.
    pub fn id(&self) -> Option<ServerId> {
        self.life.as_ref()?.id
    }

    /// The state for the message of a failure.
    pub fn describe(&self, unserved: &[&Key]) -> String {
        let logs: Vec<&ServerId> = self.shelf.keys().collect();
        let Some(life) = &self.life else {
            return format!("dead, keeps {logs:?}");
        };
        let states: Vec<_> = unserved.iter().map(|key| life.state_of(**key)).collect();
        format!(
            "{:?}: noted {} stuck {} rolls {} control {:?} on {:?}, {} arrivals, {:?} {:?}, lease {} cut {}, keeps {logs:?}, {states:?}",
            life.id,
            life.noted,
            life.stuck,
            life.rolls,
            life.control,
            life.control_holders,
            life.arrivals.len(),
            life.tablets.version,
            life.members.version(),
            life.lease_until_us,
            self.cut,
        )
    }

    pub fn shows(&self, key: Key) -> Value {
        let life = self.life.as_ref().expect("it serves");
        life.data.get(&key).copied().unwrap_or(0)
    }

    /// A backup's answer to `StartRead`.
    fn start_read(
        &mut self,
        now_us: u64,
        recovery: RecoveryId,
        log: ServerId,
        min_open: SegmentId,
    ) -> (ServerAnswer, Vec<u8>) {
        let shelf = self.shelf.entry(log).or_default();
        shelf.fenced = true;
        let entry = |(segment, replica): (&SegmentId, &Replica)| ReplicaEntry {
            segment: *segment,
            kind: replica.kind,
            epoch: replica.epoch,
            certificate: replica.certificate(),
            closed: replica.closed,
            primary: false,
        };
        let mut controls = shelf.replicas.iter().rev();
        let control = controls.find(|(id, r)| r.kind == Kind::Control && **id >= min_open);
        let answer = ServerAnswer::Replicas(Box::new(Replicas {
            log,
            recovery,
            segments: shelf.replicas.iter().map(entry).collect(),
            control: control.map(|(id, _)| *id),
            lease_left_ms: shelf.granted_until_us.saturating_sub(now_us).div_ceil(MS) as u32,
            inherited: Vec::new(),
            damaged: Vec::new(),
        }));
        (
            answer,
            control.map(|(_, r)| r.control.clone()).unwrap_or_default(),
        )
    }
}

fn report(source: Source, arrival: &Arrival, server: ServerId) -> ToCoordinator {
    let creation = arrival.creation;
    match (source, arrival.failed.clone()) {
        (Source::Partition(recovery, partition), failed) => {
            ToCoordinator::PartitionDone(PartitionDone {
                recovery,
                partition,
                server,
                outcome: match failed {
                    None => PartitionOutcome::Replayed {
                        creation,
                        bytes: 0,
                        entries: arrival.data.len() as u64,
                    },
                    Some((retry_elsewhere, reason)) => PartitionOutcome::Failed {
                        retry_elsewhere,
                        reason,
                    },
                },
            })
        }
        (Source::Migration(migration), failed) => ToCoordinator::MigrationDone(MigrationDone {
            migration,
            server,
            outcome: match failed {
                None => MigrationOutcome::Complete { creation },
                Some((_, reason)) => MigrationOutcome::Failed { reason },
            },
        }),
    }
}

/// A server's reactions to the coordinator.
impl World {
    /// Its answer, if it gives one.
    pub fn obey(
        &mut self,
        index: usize,
        term: u32,
        question: FromCoordinator,
    ) -> Option<(ServerAnswer, Vec<u8>)> {
        let now_us = self.now_us;
        let busy = self.random.one_in(6);
        let takes_us = self.random.below(150 * MS);
        let server = &mut self.servers[index];
        let life = server.life.as_mut().expect("it lives");
        if term < life.term {
            return Some((
                ServerAnswer::Refused(Refusal::NotLeader { leader: None }),
                Vec::new(),
            ));
        }
        life.term = term;
        let answer = match question {
            FromCoordinator::Ping { nonce } => ServerAnswer::Pong {
                nonce,
                list_version: life.members.version(),
            },
            FromCoordinator::Servers(update) => {
                learn(server, &update);
                confirmed(server)
            }
            FromCoordinator::Tablets(tablets) => {
                life.apply_tablets(tablets);
                confirmed(server)
            }
            FromCoordinator::StartRead {
                recovery,
                log,
                min_open,
            } => {
                if life.members.get(log).is_none() && !server.shelf.contains_key(&log) {
                    // It is gone already, or so new that this server can have no replica of it.
                    let refusal = Refusal::NotReady {
                        after_ms: 1,
                        reason: String::new(),
                    };
                    return Some((ServerAnswer::Refused(refusal), Vec::new()));
                }
                return Some(server.start_read(now_us, recovery, log, min_open));
            }
            FromCoordinator::Recover(order) => life.recover(*order, busy, now_us + takes_us),
            FromCoordinator::AbortRecovery {
                recovery,
                partition,
            } => {
                life.arrivals
                    .remove(&Source::Partition(recovery, partition));
                confirmed(server)
            }
            FromCoordinator::Settings(_)
            | FromCoordinator::Users(_)
            | FromCoordinator::Functions(_) => confirmed(server),
        };
        Some((answer, Vec::new()))
    }

    /// The coordinator's answer to a request of that life.
    pub fn replied(&mut self, index: usize, nonce: u64, reply: ReplyId, answer: CoordinatorAnswer) {
        let now_us = self.now_us;
        let server = &mut self.servers[index];
        if server.cut || server.life.as_ref().is_none_or(|life| life.nonce != nonce) {
            return;
        }
        let life = server.life.as_mut().expect("just seen");
        let Some(wish) = life.wishes.remove(&reply) else {
            return;
        };
        match (wish, answer) {
            (Wish::Enlist, CoordinatorAnswer::Enlisted(enlisted)) if life.id.is_none() => {
                life.id = Some(enlisted.server);
                life.detector = Detector::new(enlisted.server, 100, 50, life.seed, now_us);
                server.stored_id = Some(enlisted.server); // before anything is done under it
                let listed: BTreeSet<ServerId> =
                    enlisted.list.servers.iter().map(|e| e.server).collect();
                server.shelf.retain(|log, _| listed.contains(log));
                learn(server, &ServerListUpdate::Full(enlisted.list));
            }
            (_, CoordinatorAnswer::Refused(Refusal::NotUp(_))) => {
                // It was declared crashed: it ends, and begins anew.
                server.life = Some(Life::new(nonce.wrapping_add(1), nonce, now_us));
            }
            (Wish::Head(head), CoordinatorAnswer::Noted) if life.control == Some(head) => {
                life.noted = true;
            }
            (Wish::Report(source), CoordinatorAnswer::Accepted { since }) => {
                let version = life.tablets.version;
                let Some(arrival) = life.arrivals.get_mut(&source) else {
                    return;
                };
                arrival.stage = Stage::Accepted(since);
                if arrival.failed.is_some() || version >= since {
                    // If it were listed, it would be merged already.
                    life.arrivals.remove(&source);
                }
            }
            (Wish::Strangers(logs), CoordinatorAnswer::Servers(list)) => {
                let is_listed = |log: &ServerId| list.servers.iter().any(|e| e.server == *log);
                for log in logs.iter().filter(|log| !is_listed(log)) {
                    server.shelf.remove(log);
                    life.gone.insert(*log);
                }
            }
            (Wish::Report(source), CoordinatorAnswer::Stale) => {
                life.arrivals.remove(&source);
            }
            _ => {}
        }
    }
}

fn confirmed(server: &Server) -> ServerAnswer {
    let life = server.life.as_ref().expect("it lives");
    ServerAnswer::Confirmed {
        list_version: life.members.version(),
        tablets_version: life.tablets.version,
    }
}

/// Applies a list, and drops the logs of removed servers.
fn learn(server: &mut Server, update: &ServerListUpdate) {
    let life = server.life.as_mut().expect("it lives");
    let Applied::Changed(changes) = life.members.apply(update) else {
        return;
    };
    for change in changes {
        match change {
            ServerChange::Removed(gone) => {
                server.shelf.remove(&gone);
                life.gone.insert(gone);
            }
            ServerChange::Added(added) => {
                let id = added.server;
                let older = |e: &&duramen_wire::native::message::ServerEntry| {
                    e.server.slot == id.slot && e.server < id
                };
                assert!(
                    life.members.up().find(older).is_none(),
                    "{id} is added before its old id is crashed"
                );
            }
            _ => {}
        }
    }
    life.detector.set_members(&life.members);
}
