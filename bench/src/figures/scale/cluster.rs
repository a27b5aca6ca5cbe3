//! A simulated cluster in which one server dies: the coordinator is the real one, the servers are
//! queues.
//!
//! The coordinator's work takes its real time on this machine, with the encoding of its messages,
//! and [`MESSAGE`] for the system calls of each message.

use super::costs::SEGMENT_BYTES;
use super::machine::{MICROSECOND, Machine, Ns, SECOND, Server};
use super::recovery::{Master, Piece, Shelf};
use crate::harness::{Doing, Failure, Random, Result};
use duramen_base::ids::{ClusterId, KeyRange, ListVersion, SegmentId, ServerId, TabletsVersion};
use duramen_cluster::coordinator::store::{Memory, MetaStore};
use duramen_cluster::coordinator::{CallId, Config, Coordinator, Input, Output, ReplyId, Sign};
use duramen_cluster::placement::{Layout, Member, Placement};
use duramen_cluster::replication::BackupId;
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::{Header, Kind};
use duramen_wire::native::codec::{Envelope, encode_coordinator_answer, encode_from_coordinator};
use duramen_wire::native::message::{
    Addresses, Admin, ClusterSettings, Enlist, FromCoordinator, PartitionDone, PartitionOutcome,
    ReplicaEntry, ReplicaLayout, Replicas, Roles, ServerAnswer, ToCoordinator,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Instant;

/// System calls of one message, sent or received: measured for a server without a store.
pub(super) const MESSAGE: Ns = 3_900;
/// The longest rest of a dead master's read lease when its backups are asked.
const LEASE_LEFT_MS: u32 = 300;
/// A recovery that takes longer has stopped.
const LIMIT: Ns = 600 * SECOND;
const PING_INTERVAL_MS: u32 = 100;

/// The simulated cluster.
pub(super) struct Plan {
    /// With the server that dies.
    pub servers: usize,
    pub dead_bytes: u64,
    pub partition_bytes: u64,
    pub replicas: usize,
    pub seed: u64,
}

/// The result of a run.
pub(super) struct Outcome {
    /// From the suspicion until all tablets are served again.
    pub took: Ns,
    /// The slowest disk's read time over the mean.
    pub disk_spread: f64,
    pub coordinator_ms: f64,
    /// From the death to the first suspicion, on average.
    pub noticed_ms: f64,
}

/// A use of a server's resource, or only a delay.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    Cores(usize, Ns),
    Disk(usize, Ns),
    Inwards(usize, Ns),
    Outwards(usize, Ns),
    Delay(Ns),
}

/// The event at the end of a chain of stages.
#[derive(Clone, Debug)]
pub(super) enum Then {
    /// The coordinator receives this.
    Coordinator(Box<Input>),
    /// A server receives a request of the coordinator.
    Request(usize, CallId, Box<FromCoordinator>),
    /// A backup has read and divided a segment.
    Divided(usize, u32),
    /// A recovery master's request arrives at a backup.
    Wanted(Piece),
    /// A piece has arrived at its recovery master and is replayed.
    Replayed(Piece),
    /// A replica of a recovery master's side log is on disk.
    Kept(usize),
    /// The side log is part of the recovery master's log.
    Committed(usize),
}

#[derive(Debug)]
struct Chain {
    stages: std::vec::IntoIter<Stage>,
    then: Then,
}

/// The next step; steps at the same time come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Event,
    Input,
    Tick,
}

/// A simulated cluster; see the file's head.
pub(super) struct Cluster {
    machine: Machine,
    pub servers: Vec<Server>,
    ids: BTreeMap<ServerId, usize>,
    coordinator: Coordinator,
    store: Memory,
    /// When the coordinator's thread is free, and its total work time.
    coordinator_free: Ns,
    coordinator_busy: Ns,
    wake_at: Option<Ns>,
    events: BinaryHeap<Reverse<(Ns, u64)>>,
    chains: BTreeMap<u64, Chain>,
    next: u64,
    now: Ns,
    replies: u64,
    dead: usize,
    dead_id: ServerId,
    pub shelves: Vec<Shelf>,
    control: Vec<u8>,
    control_holders: BTreeSet<usize>,
    pub masters: Vec<Master>,
    pub placement: Placement,
    pub replicas: usize,
    /// When the last range was served again.
    served_at: Ns,
    /// Inputs that wait for the coordinator's thread.
    inbox: VecDeque<Input>,
    /// Number of hashes that the dead server owned.
    dead_width: u128,
}

pub(super) fn settings(partition_bytes: u64, replicas: usize) -> ClusterSettings {
    ClusterSettings {
        replicas: replicas as u32,
        segment_bytes: SEGMENT_BYTES as u32,
        hash_seed: 1,
        ping_interval_ms: PING_INTERVAL_MS,
        ping_timeout_ms: 50,
        verdict_timeout_ms: 250,
        read_lease_ms: 500,
        client_lease_ms: 10_000,
        partition_bytes,
        partition_records: 1 << 40,
        rpc_window: 512,
        layout: ReplicaLayout::Scatter,
    }
}

/// Keeps the batches that are to be stored.
fn keep(outputs: Vec<Output>, batches: &mut Batches) {
    for output in outputs {
        if let Output::Persist { token, batch } = output {
            batches.push((token, batch));
        }
    }
}

/// A server requests to be enlisted, and answers the ping to its address.
fn enlist_one(coordinator: &mut Coordinator, number: u64, batches: &mut Batches) {
    let enlists = Input::Request {
        reply: ReplyId(number),
        sender: ServerId::NONE,
        question: enlist(number),
    };
    for output in coordinator.handle(0, enlists) {
        let Output::Ask { call, question, .. } = &output else {
            keep(vec![output], batches);
            continue;
        };
        if let Some(answer) = routine(question) {
            let answered = Input::Answered {
                call: *call,
                answer,
                payload: Vec::new(),
            };
            keep(coordinator.handle(0, answered), batches);
        }
    }
}

/// A coordinator with so many servers, all UP, and one table over `spread` of them.
pub(super) fn coordinator(
    servers: usize,
    spread: usize,
    settings: ClusterSettings,
) -> Result<(Coordinator, Memory, Vec<ServerId>)> {
    let what = "opening a coordinator";
    let mut store = Memory::new("one");
    let led = store.acquire().doing(what)?;
    led.ok_or("somebody else leads").doing(what)?;
    let config = Config {
        cluster: "simulated".to_owned(),
        new_id: ClusterId(1),
        name: "coordinator:1".to_owned(),
        term: 1,
        seed: 1,
        settings,
        balance_after_us: None,
    };
    let contents = store.load().doing(what)?;
    let (mut coordinator, outputs) = Coordinator::open(0, &contents, config).doing(what)?;
    let mut batches = Vec::new();
    keep(outputs, &mut batches);
    for number in 0..servers as u64 {
        enlist_one(&mut coordinator, number, &mut batches);
    }
    // Stored late and at once: 10,000 servers that enlist together.
    settle(&mut coordinator, &mut store, &mut batches)?;
    let created = coordinator.handle(
        0,
        Input::Request {
            reply: ReplyId(u64::MAX),
            sender: ServerId::NONE,
            question: ToCoordinator::Admin(Admin::CreateTable {
                name: "data".to_owned(),
                servers: spread as u32,
                level: None,
            }),
        },
    );
    keep(created, &mut batches);
    settle(&mut coordinator, &mut store, &mut batches)?;
    let status = coordinator.status();
    let ids = status.servers.iter().map(|entry| entry.server).collect();
    Ok((coordinator, store, ids))
}

pub(super) type Batches = Vec<(
    duramen_cluster::coordinator::Token,
    duramen_cluster::coordinator::store::Batch,
)>;

/// Stores everything, and answers the coordinator's requests as good servers do.
pub(super) fn settle(
    coordinator: &mut Coordinator,
    store: &mut Memory,
    batches: &mut Batches,
) -> Result<()> {
    let mut asked = Vec::new();
    loop {
        let outputs = if let Some((token, batch)) = batches.pop() {
            store.commit(&batch).doing("storing a batch")?;
            coordinator.handle(0, Input::Persisted { token })
        } else if let Some((call, answer)) = asked.pop() {
            let payload = Vec::new();
            let answered = Input::Answered {
                call,
                answer,
                payload,
            };
            coordinator.handle(0, answered)
        } else {
            return Ok(());
        };
        for output in outputs {
            match output {
                Output::Persist { token, batch } => batches.push((token, batch)),
                Output::Ask { call, question, .. } => {
                    asked.extend(routine(&question).map(|answer| (call, answer)));
                }
                _ => {}
            }
        }
    }
}

/// The answer of every server to requests without simulated work.
fn routine(question: &FromCoordinator) -> Option<ServerAnswer> {
    match question {
        FromCoordinator::Ping { nonce } => Some(ServerAnswer::Pong {
            nonce: *nonce,
            list_version: ListVersion(0),
        }),
        FromCoordinator::Servers(update) => Some(ServerAnswer::Confirmed {
            list_version: update.version(),
            tablets_version: TabletsVersion(0),
        }),
        FromCoordinator::Tablets(tablets) => Some(ServerAnswer::Confirmed {
            list_version: ListVersion(0),
            tablets_version: tablets.version,
        }),
        _ => None,
    }
}

fn enlist(number: u64) -> ToCoordinator {
    ToCoordinator::Enlist(Enlist {
        nonce: number + 1,
        cluster: "simulated".to_owned(),
        addresses: Addresses {
            native: format!("server-{number}:7401"),
            resp: Some(format!("server-{number}:6379")),
            admin: None,
            plain: None,
        },
        rack: None,
        roles: Roles {
            master: true,
            backup: true,
        },
        replaces: None,
        disk: number + 1,
        read_bytes_per_s: 0,
        segment_bytes: SEGMENT_BYTES as u32,
    })
}

impl Cluster {
    /// Kills a server and waits until all tablets are served again.
    pub fn recover(machine: Machine, plan: &Plan) -> Result<Outcome> {
        let spread = if plan.servers > 1000 { plan.servers } else { 1 };
        let settings = settings(plan.partition_bytes, plan.replicas);
        let (coordinator, store, ids) = coordinator(plan.servers, spread, settings)?;
        let status = coordinator.status();
        let tablet = status.tablets.first().ok_or("there is none");
        let dead_id = tablet.doing("looking for a tablet")?.owner;
        let owned = status
            .tablets
            .iter()
            .filter(|tablet| tablet.owner == dead_id);
        let dead_width = owned.map(|tablet| width(tablet.range)).sum();
        let ids: BTreeMap<ServerId, usize> = ids.into_iter().zip(0..).collect();
        let dead = ids[&dead_id];
        let mut placement = Placement::new(Layout::Scatter, plan.replicas, plan.seed);
        for id in ids.keys().filter(|id| **id != dead_id) {
            placement.add(Member {
                read_us: (SEGMENT_BYTES as f64 / machine.disk_read * 1e6) as u32,
                ..Member::from(BackupId(id.number()))
            });
        }
        let mut cluster = Cluster {
            machine,
            servers: (0..plan.servers).map(|_| Server::new(&machine)).collect(),
            shelves: (0..plan.servers).map(|_| Shelf::default()).collect(),
            ids,
            coordinator,
            store,
            coordinator_free: 0,
            coordinator_busy: 0,
            wake_at: Some(0),
            events: BinaryHeap::new(),
            chains: BTreeMap::new(),
            next: 0,
            now: 0,
            replies: 0,
            dead,
            dead_id,
            control: Vec::new(),
            control_holders: BTreeSet::new(),
            masters: Vec::new(),
            placement,
            replicas: plan.replicas,
            served_at: 0,
            inbox: VecDeque::new(),
            dead_width,
        };
        cluster.fill(plan.dead_bytes);
        cluster.run()?;
        let read: Vec<Ns> = cluster.shelves.iter().map(|shelf| shelf.read_ns).collect();
        let most = read.iter().copied().max().unwrap_or(0) as f64;
        let mean = read.iter().sum::<Ns>() as f64 / (plan.servers - 1) as f64;
        Ok(Outcome {
            took: cluster.served_at,
            disk_spread: most / mean,
            coordinator_ms: cluster.coordinator_busy as f64 / 1e6,
            noticed_ms: noticed_ms(plan.servers, plan.seed),
        })
    }

    /// Puts the log of the server that will die onto the other servers' disks.
    fn fill(&mut self, bytes: u64) {
        let segments = bytes.div_ceil(SEGMENT_BYTES);
        let mut records = Vec::new();
        for id in 1..=segments {
            let length = SEGMENT_BYTES as u32;
            let certificate = certificate(id, length);
            records.push(Record::AddOpen {
                segment: SegmentId(id),
                epoch: 0,
                head: 0,
                kind: Kind::Head,
            });
            records.push(Record::Closed {
                segment: SegmentId(id),
                certificate,
            });
            let holders = self.place();
            for (n, holder) in holders.into_iter().enumerate() {
                self.shelves[holder].replicas.push(ReplicaEntry {
                    segment: SegmentId(id),
                    kind: Kind::Head,
                    epoch: 0,
                    certificate,
                    closed: true,
                    primary: n == 0,
                });
            }
        }
        let header = Header {
            kind: Kind::Control,
            segment: SegmentId(segments + 1),
            log: self.dead_id.number(),
            head: 0,
            capacity: SEGMENT_BYTES as u32,
        };
        self.control = header.encode().to_vec();
        let snapshot = Record::Snapshot {
            next_segment: SegmentId(1),
            safe_version: 1,
            records: 0,
        };
        snapshot.encode(&mut self.control);
        records
            .iter()
            .for_each(|record| record.encode(&mut self.control));
        self.control_holders = self.place().into_iter().collect();
        for holder in self.control_holders.clone() {
            self.shelves[holder].replicas.push(ReplicaEntry {
                segment: SegmentId(segments + 1),
                kind: Kind::Control,
                epoch: 0,
                certificate: Certificate::of(&self.control),
                closed: false,
                primary: false,
            });
        }
        for shelf in &mut self.shelves {
            shelf.begin();
        }
    }

    /// Backups for a segment, the primary first.
    pub fn place(&mut self) -> Vec<usize> {
        let mut chosen: Vec<BackupId> = Vec::new();
        while chosen.len() < self.replicas
            && let Some(backup) = self
                .placement
                .choose(SegmentId::NONE, &chosen, &BTreeSet::new())
        {
            chosen.push(backup);
        }
        let index = |backup: &BackupId| self.ids[&ServerId::from_number(backup.0)];
        chosen.iter().map(index).collect()
    }

    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Begins a chain of stages now.
    pub fn begin(&mut self, stages: Vec<Stage>, then: Then) {
        self.next += 1;
        let chain = Chain {
            stages: stages.into_iter(),
            then,
        };
        self.chains.insert(self.next, chain);
        self.advance(self.next);
    }

    /// The next stage of a chain, or its end.
    fn advance(&mut self, number: u64) {
        let Some(chain) = self.chains.get_mut(&number) else {
            return;
        };
        let now = self.now;
        let at = match chain.stages.next() {
            None => {
                if let Some(chain) = self.chains.remove(&number) {
                    self.happened(chain.then);
                }
                return;
            }
            Some(Stage::Delay(delay)) => now + delay,
            Some(Stage::Cores(server, work)) => self.servers[server].cores.serve(now, work),
            Some(Stage::Disk(server, work)) => self.servers[server].disk.serve(now, work),
            Some(Stage::Inwards(server, work)) => self.servers[server].inwards.serve(now, work),
            Some(Stage::Outwards(server, work)) => self.servers[server].outwards.serve(now, work),
        };
        self.events.push(Reverse((at, number)));
    }

    fn run(&mut self) -> Result<()> {
        let latency = self.machine().latency;
        let suspect = ToCoordinator::Suspect {
            server: self.dead_id,
            list_version: self.coordinator.status().list_version,
        };
        let witness = (self.dead + 1) % self.servers.len();
        let witness = self.id_of(witness);
        self.tell_coordinator(latency, witness, suspect);
        while self.served_at == 0 {
            // The coordinator's thread handles the messages that have arrived, then its timers;
            // later messages wait.
            let free = self.coordinator_free.max(self.now);
            let wake = self.wake_at.map(|at| (at.max(free), Turn::Tick));
            let inbox = (!self.inbox.is_empty()).then_some((free, Turn::Input));
            let event = self
                .events
                .peek()
                .map(|Reverse((at, _))| (*at, Turn::Event));
            let next = [event, inbox, wake].into_iter().flatten();
            let Some((at, turn)) = next.min() else {
                return Err(Failure::new(
                    "simulating a recovery",
                    "nothing happens any more",
                ));
            };
            self.now = at;
            match turn {
                Turn::Event => {
                    if let Some(Reverse((_, number))) = self.events.pop() {
                        self.advance(number);
                    }
                }
                Turn::Input => {
                    if let Some(input) = self.inbox.pop_front() {
                        self.coordinate(input)?;
                    }
                }
                Turn::Tick => {
                    self.wake_at = None;
                    self.coordinate(Input::Tick)?;
                }
            }
            if self.now > LIMIT {
                let waits = self.coordinator.status().recoveries;
                let waits = waits.first().and_then(|of| of.waits_for.clone());
                return Err(Failure::new(
                    "simulating a recovery",
                    format!("it is not over after {} s: {waits:?}", LIMIT / SECOND),
                ));
            }
        }
        Ok(())
    }

    pub fn index_of(&self, id: ServerId) -> usize {
        self.ids.get(&id).copied().unwrap_or(self.dead)
    }

    pub fn dead_width(&self) -> u128 {
        self.dead_width
    }

    fn id_of(&self, server: usize) -> ServerId {
        let found = self.ids.iter().find(|(_, index)| **index == server);
        found.map_or(ServerId::NONE, |(id, _)| *id)
    }

    fn tell_coordinator(&mut self, delay: Ns, sender: ServerId, question: ToCoordinator) {
        self.replies += 1;
        let input = Input::Request {
            reply: ReplyId(self.replies),
            sender,
            question,
        };
        self.begin(
            vec![Stage::Delay(delay)],
            Then::Coordinator(Box::new(input)),
        );
    }

    /// The report of a recovery master at the end.
    pub fn report(&mut self, master: usize, outcome: PartitionOutcome) {
        let of = &self.masters[master];
        let question = ToCoordinator::PartitionDone(PartitionDone {
            recovery: of.order.recovery,
            partition: of.order.partition,
            server: of.id,
            outcome,
        });
        let (sender, latency) = (of.id, self.machine().latency);
        self.tell_coordinator(latency, sender, question);
    }

    fn happened(&mut self, then: Then) {
        match then {
            Then::Coordinator(input) => self.inbox.push_back(*input),
            Then::Request(server, call, question) => self.asked(server, call, *question),
            Then::Divided(server, segment) => self.divided(server, segment),
            Then::Wanted(piece) => self.wanted(piece),
            Then::Replayed(piece) => self.replayed(piece),
            Then::Kept(master) => self.kept(master),
            Then::Committed(master) => self.committed(master),
        }
    }

    /// The coordinator's thread: it handles this input when it is free, and takes its real time.
    fn coordinate(&mut self, input: Input) -> Result<()> {
        let begins = self.now.max(self.coordinator_free);
        let mut inputs = vec![input];
        let mut out = Vec::new();
        let mut work = MESSAGE;
        let mut stored = 0;
        let mut outputs = Vec::new();
        while let Some(input) = inputs.pop() {
            let begun = Instant::now();
            let some = self.coordinator.handle(begins / MICROSECOND, input);
            for output in &some {
                out.clear();
                encode(&mut out, output);
            }
            work += begun.elapsed().as_nanos() as Ns;
            for output in some {
                match output {
                    // Another thread stores it: that takes time, but not this thread's.
                    Output::Persist { token, batch } => {
                        self.store.commit(&batch).doing("storing a batch")?;
                        stored += 1;
                        inputs.push(Input::Persisted { token });
                    }
                    other => outputs.push(other),
                }
            }
        }
        work += sends(&outputs) * MESSAGE;
        self.coordinator_free = begins + work;
        self.coordinator_busy += work;
        let leaves = self.coordinator_free - self.now + stored * 2 * self.machine().sync;
        for output in outputs {
            self.said(leaves, output);
        }
        Ok(())
    }

    /// Carries out an output of the coordinator.
    fn said(&mut self, leaves: Ns, output: Output) {
        let latency = self.machine().latency;
        match output {
            Output::WakeAt { at_us } => self.wake_at = Some(at_us * MICROSECOND),
            Output::Ask {
                call, to, question, ..
            } => {
                let stages = vec![Stage::Delay(leaves + latency)];
                if to == self.dead_id {
                    let gone = Input::Unanswered {
                        call,
                        sign: Sign::Dead,
                    };
                    return self.begin(stages, Then::Coordinator(Box::new(gone)));
                }
                let Some(&server) = self.ids.get(&to) else {
                    return;
                };
                self.begin(stages, Then::Request(server, call, Box::new(question)));
            }
            _ => {}
        }
    }

    fn asked(&mut self, server: usize, call: CallId, question: FromCoordinator) {
        let latency = self.machine().latency;
        let (answer, payload) = match question {
            FromCoordinator::StartRead { recovery, log, .. } => {
                self.read_ahead(server);
                let control = self.control_holders.contains(&server);
                let shelf = &self.shelves[server];
                let id = shelf.replicas.iter().find(|r| r.kind == Kind::Control);
                let replicas = Replicas {
                    log,
                    recovery,
                    segments: shelf.replicas.clone(),
                    control: id.map(|entry| entry.segment),
                    lease_left_ms: if control { LEASE_LEFT_MS } else { 0 },
                    inherited: Vec::new(),
                    damaged: Vec::new(),
                };
                let payload = if control {
                    self.control.clone()
                } else {
                    Vec::new()
                };
                (ServerAnswer::Replicas(Box::new(replicas)), payload)
            }
            FromCoordinator::Recover(order) => {
                let id = self.id_of(server);
                self.start_master(server, id, *order);
                (ServerAnswer::Started, Vec::new())
            }
            other => {
                if let FromCoordinator::Tablets(tablets) = &other {
                    self.told(server, tablets);
                }
                match routine(&other) {
                    Some(answer) => (answer, Vec::new()),
                    None => return,
                }
            }
        };
        let input = Input::Answered {
            call,
            answer,
            payload,
        };
        self.begin(
            vec![Stage::Delay(latency)],
            Then::Coordinator(Box::new(input)),
        );
    }

    /// A new owner receives its tablets.
    fn told(&mut self, server: usize, tablets: &duramen_wire::native::message::Tablets) {
        for master in self.masters.iter_mut().filter(|m| m.server == server) {
            let of_it = |wanted: &duramen_wire::native::message::RecoverTablet| {
                tablets.tablets.iter().any(|entry| {
                    entry.table == wanted.table
                        && entry.state.is_served()
                        && entry.range.contains(wanted.range.first)
                })
            };
            master.serves |= master.reported && master.order.tablets.iter().all(of_it);
        }
        let status_is_over = !self.masters.is_empty()
            && self.masters.iter().all(|master| master.serves)
            && self.is_all_given_out();
        if status_is_over {
            self.served_at = self.now;
        }
    }

    /// Whether no tablet waits for a recovery master any more.
    fn is_all_given_out(&self) -> bool {
        let status = self.coordinator.status();
        status
            .tablets
            .iter()
            .all(|tablet| tablet.owner != self.dead_id)
    }

    pub fn now(&self) -> Ns {
        self.now
    }
}

fn certificate(id: u64, length: u32) -> Certificate {
    Certificate {
        length,
        crc: length + id as u32,
    }
}

/// Messages to one server at one time leave with one system call (`duramen_net`'s hub).
fn sends(outputs: &[Output]) -> u64 {
    let mut to = BTreeSet::new();
    let mut answers = 0;
    for output in outputs {
        match output {
            Output::Ask { to: server, .. } => _ = to.insert(*server),
            Output::Answer { .. } => answers += 1,
            _ => {}
        }
    }
    to.len() as u64 + answers
}

/// Encodes a message of the coordinator as its process would.
pub(super) fn encode(out: &mut Vec<u8>, output: &Output) {
    let envelope = Envelope {
        request: 1,
        target: ServerId::NONE,
        sender: ServerId::coordinator(1),
    };
    match output {
        Output::Answer { answer, .. } => encode_coordinator_answer(out, &envelope, answer),
        Output::Ask { question, .. } => encode_from_coordinator(out, &envelope, question),
        _ => {}
    }
}

/// Time until the first request to a dead server: each of the others asks a random one per
/// interval, and its connection is refused.
fn noticed_ms(servers: usize, seed: u64) -> f64 {
    const TRIALS: usize = 200;
    let mut rng = Random::new(seed);
    let mut total = 0.0;
    for _ in 0..TRIALS {
        let mut first = f64::INFINITY;
        for round in 0.. {
            for _ in 1..servers {
                if rng.below(servers as u64 - 1) == 0 {
                    let phase = rng.below(1000) as f64 / 1000.0;
                    let at = (f64::from(round) + phase) * f64::from(PING_INTERVAL_MS);
                    first = first.min(at);
                }
            }
            if first.is_finite() {
                break;
            }
        }
        total += first;
    }
    total / TRIALS as f64
}

/// Number of hashes in a range.
pub(super) fn width(range: KeyRange) -> u128 {
    u128::from(range.last.0) - u128::from(range.first.0) + 1
}
