//! A whole cluster on one thread: each thing that happens is an event of one queue, and all random
//! numbers come from one seed.
//!
//! **Invariants**
//! - W1: the next event depends on the plan alone: no clock, thread, address or hash order of the
//!   real machine takes part.
//! - W2: a process's memory ends with it; the simulated disk (`crate::disk`) decides which bytes of
//!   a machine's disk survive.
//!
//! **Concurrency** none.

use super::bulk::Bulk;
use super::client::{Client, Reply, Request};
use super::coverage::Coverage;
use super::history::History;
use super::machine::Machine;
use super::native::{Letter, Native};
use super::net::{Fate, Mode, Net, Place};
use super::phantom::Known;
use super::plan::{Fault, Plan};
use super::sim_coordinator::SimCoordinator;
use super::tables::Tables;
use super::trace::Trace;
use duramen_base::ids::{SegmentId, ServerId};
use duramen_base::random::Random;
use duramen_cluster::coordinator::store::{Batch, Memory, Term};
use duramen_cluster::coordinator::{self, CallId};
use duramen_harness::Queue;
use duramen_node::{Job, NodeInput, NodeOutput, PeerCall, Token};
use duramen_wire::native::message::CoordinatorAnswer;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A message that takes longer than this may make an answer late.
const SLOW_US: u64 = 50_000;

/// A future event.
#[derive(Clone)]
pub(super) enum Event {
    /// A frame reaches a server's machine.
    ToServer(usize, Box<NodeInput>),
    /// An event inside the process of that generation.
    Within(usize, u64, Box<NodeInput>),
    /// A disk has finished the operations behind these outputs.
    Disk(usize, u64, u64),
    Job(usize, u64, u64),
    /// A process that has ended is replaced by a new one.
    LivesAgain(usize, u64),
    Wake(usize),
    Boot(usize, u64),
    ToCoordinator(usize, Box<coordinator::Input>),
    CoordinatorWakes(usize),
    /// A coordinator that does not lead tries to become leader.
    Campaign(usize, u64),
    /// A coordinator's commit reaches the store.
    Commit(usize, u64, coordinator::Token, Box<Batch>),
    CoordinatorStarts(usize, u64),
    /// The leader's lease has ended.
    Depose(usize, u64),
    Request(usize, Box<Request>),
    Reply(usize, Box<Reply>),
    Letter(usize, Box<Letter>),
    Answered(Box<Letter>),
    CoordinatorAnswered(usize, u64, Box<CoordinatorAnswer>),
    ClientActs(usize, u64),
    ClientTires(usize, u64),
    /// Checks the state that a recovery would find now.
    Imagine,
    /// The operator of tables takes its next step.
    Operate,
    Fault(Box<Fault>),
    Ends(Box<Fault>),
}

impl Event {
    /// The words for the trace.
    fn words(&self) -> [u64; 3] {
        match self {
            Event::ToServer(n, input) => [1, *n as u64, number_of(input)],
            Event::Within(n, generation, _) => [2, *n as u64, *generation],
            Event::Disk(n, generation, number) => [3, (*n as u64) << 32 | *generation, *number],
            Event::Job(n, generation, number) => [18, (*n as u64) << 32 | *generation, *number],
            Event::LivesAgain(n, generation) => [19, *n as u64, *generation],
            Event::Wake(n) => [4, *n as u64, 0],
            Event::Boot(n, generation) => [5, *n as u64, *generation],
            Event::ToCoordinator(n, input) => {
                let number = match &**input {
                    coordinator::Input::Request { reply, .. } => reply.0,
                    coordinator::Input::Answered { call, .. } => call.0,
                    _ => 0,
                };
                [6, *n as u64, number]
            }
            Event::CoordinatorWakes(n) => [7, *n as u64, 0],
            Event::Campaign(n, generation) => [8, *n as u64, *generation],
            Event::Commit(n, generation, token, batch) => [
                9,
                (*n as u64) << 32 | *generation,
                token.0 << 32 | batch.changes().len() as u64,
            ],
            Event::CoordinatorStarts(n, generation) => [10, *n as u64, *generation],
            Event::Depose(n, generation) => [11, *n as u64, *generation],
            Event::Request(n, request) => [12, *n as u64, request.sequence],
            Event::Reply(n, reply) => [13, *n as u64, reply.sequence],
            Event::Letter(n, letter) => [20, *n as u64, letter.number],
            Event::Answered(letter) => [21, letter.bytes.len() as u64, letter.number],
            Event::CoordinatorAnswered(n, number, _) => [22, *n as u64, *number],
            Event::ClientActs(n, sequence) => [14, *n as u64, *sequence],
            Event::ClientTires(n, sequence) => [15, *n as u64, *sequence],
            Event::Imagine => [23, 0, 0],
            Event::Operate => [24, 0, 0],
            Event::Fault(_) => [16, 0, 0],
            Event::Ends(_) => [17, 0, 0],
        }
    }
}

fn number_of(input: &NodeInput) -> u64 {
    match input {
        NodeInput::Request(received) => received.request.0 << 20 | received.payload.len() as u64,
        NodeInput::PeerAnswered { call, answer } => {
            let length = answer
                .as_ref()
                .map_or(0, |(_, payload)| payload.len() as u64 + 1);
            call.number() << 20 | length
        }
        _ => 0,
    }
}

/// The sender of a request that waits for an answer.
#[derive(Clone)]
pub(super) enum Asker {
    Peer(usize, u64, PeerCall),
    Coordinator(usize, u64, CallId),
    /// Also the control segment that it wants noted.
    Member(usize, u64, Token, Option<(ServerId, SegmentId)>),
    Person,
    Client(usize),
}

/// A simulated cluster; see the module.
pub struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    /// For bits that flip on the way: so they change nothing else of a run.
    pub(super) flips: Random,
    /// Number of messages sent.
    pub(super) sent: u64,
    pub(super) now_us: u64,
    queue: Queue<Event>,
    pub(super) trace: Trace,
    pub(super) coverage: Coverage,
    pub(super) net: Net,
    pub(super) machines: Vec<Machine>,
    pub(super) coordinators: Vec<SimCoordinator>,
    pub(super) meta: Memory,
    pub(super) store_is_away: bool,
    pub(super) clients: Vec<Client>,
    pub(super) history: History,
    /// Survivors that were sent as recipes: master, backup, segment.
    pub(super) recipes: BTreeSet<(ServerId, ServerId, SegmentId)>,
    /// The newest term of all leaderships so far.
    pub(super) newest_term: Term,
    /// Violations of the rules so far.
    pub(super) violations: Vec<String>,
    pub(super) askers: HashMap<u64, Asker>,
    /// Answers to the operator.
    pub(super) told: Vec<CoordinatorAnswer>,
    pub(super) last_value: u64,
    pub(super) tables: Tables,
    pub(super) bulk: Bulk,
    /// The known state of each key.
    pub(super) known: BTreeMap<u64, Known>,
    /// Keys that were written with an expiry time.
    pub(super) expiring: BTreeSet<u64>,
    /// Per key, the number of removals with unknown outcome.
    pub(super) doubts: BTreeMap<u64, i64>,
    /// Per log, the first control segment that counts, as its master was told.
    pub(super) noted: BTreeMap<ServerId, SegmentId>,
    /// When a fault last kept each server from answering a coordinator.
    pub(super) excused_us: Vec<Option<u64>>,
    /// Servers that were declared crashed.
    pub(super) judged: BTreeSet<ServerId>,
    /// When clients began.
    pub(super) began_us: u64,
    /// Whether all faults are over.
    pub(super) is_healed: bool,
    pub(super) events: u64,
    /// Results of disk operations that are not finished yet.
    pub(super) on_disk: HashMap<u64, Vec<NodeOutput>>,
    /// Jobs that no worker has taken yet.
    pub(super) jobs: HashMap<u64, Job>,
    /// Whether events are printed.
    pub(super) talks: bool,
}

impl World {
    /// A world in which everything is off.
    pub fn new(plan: Plan) -> World {
        let meta = Memory::new("nobody");
        let mut random = Random::new(plan.seed);
        let machines = (0..plan.servers)
            .map(|n| Machine::new(n, &plan, &mut random))
            .collect();
        let coordinators = (0..plan.coordinators)
            .map(|n| SimCoordinator::new(n, &plan, &meta, &mut random))
            .collect();
        let clients = (0..plan.clients).map(|n| {
            let seed = random.next_u64();
            let native = (n >= plan.plain_clients).then(|| Native::new(plan.coordinators, seed));
            Client::new(n, native)
        });
        let clients = clients.collect();
        World {
            net: Net::new(&plan),
            flips: Random::new(plan.seed ^ 0x666c_6970),
            random,
            now_us: 0,
            sent: 0,
            queue: Queue::default(),
            trace: Trace::default(),
            coverage: Coverage::default(),
            machines,
            coordinators,
            meta,
            store_is_away: false,
            clients,
            history: History::default(),
            recipes: BTreeSet::new(),
            newest_term: Term::default(),
            violations: Vec::new(),
            askers: HashMap::new(),
            told: Vec::new(),
            last_value: 0,
            tables: Tables::new(),
            bulk: Bulk::default(),
            known: BTreeMap::new(),
            doubts: BTreeMap::new(),
            expiring: BTreeSet::new(),
            noted: BTreeMap::new(),
            excused_us: vec![None; plan.servers],
            judged: BTreeSet::new(),
            began_us: 0,
            is_healed: false,
            events: 0,
            on_disk: HashMap::new(),
            jobs: HashMap::new(),
            talks: std::env::var_os("DURAMEN_SIM_TALK").is_some(),
            plan,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.queue.number()
    }

    pub(super) fn at(&mut self, at_us: u64, event: Event) {
        self.queue.push(at_us.max(self.now_us), event);
    }

    pub(super) fn after(&mut self, delay_us: u64, event: Event) {
        self.at(self.now_us + delay_us, event);
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.talks {
            println!("{:>10} {}", self.now_us, what());
        }
    }

    /// Records a violation.
    pub(super) fn violated(&mut self, what: String) {
        self.say(|| format!("VIOLATION {what}"));
        if self.violations.len() < 8 {
            self.violations
                .push(format!("at {} us: {what}", self.now_us));
        }
    }

    /// Sends a message. `lost`: the event for the sender if it does not arrive.
    pub(super) fn send(
        &mut self,
        way: (Place, Place),
        mode: Mode,
        event: Event,
        lost: Option<Event>,
    ) {
        self.sent += 1;
        let fate = self
            .net
            .fate(self.now_us, way, mode, &mut self.random, &mut self.coverage);
        let between = match way {
            (Place::Coordinator(_), Place::Server(n))
            | (Place::Server(n), Place::Coordinator(_)) => Some(n),
            _ => None,
        };
        let is_slow = !matches!(fate, Fate::Arrives(delay_us, _) if delay_us < SLOW_US);
        if let Some(n) = between.filter(|_| is_slow) {
            self.excuse(n);
        }
        match fate {
            Fate::Arrives(delay_us, again) => {
                if let Some(again_us) = again {
                    self.after(again_us, event.clone());
                }
                self.after(delay_us, event);
            }
            Fate::Lost(is_told) => {
                if let Some(event) = lost.filter(|_| is_told) {
                    let delay_us = 1_000 + self.random.below(300_000);
                    self.after(delay_us, event);
                }
            }
        }
    }

    /// Notes that a fault keeps this server from answering now.
    pub(super) fn excuse(&mut self, n: usize) {
        self.excused_us[n] = Some(self.now_us);
    }

    /// Runs for this long, or until `is_done`, which is checked every `look_us`; returns whether it
    /// became true.
    pub(super) fn run(
        &mut self,
        for_us: u64,
        look_us: u64,
        mut is_done: impl FnMut(&mut World) -> bool,
    ) -> bool {
        let until_us = self.now_us + for_us;
        let mut look_at_us = self.now_us;
        loop {
            if !self.violations.is_empty() {
                return false;
            }
            if self.now_us >= look_at_us {
                if is_done(self) {
                    return true;
                }
                look_at_us = self.now_us.saturating_add(look_us);
            }
            if self.queue.next_us() > until_us.min(look_at_us) {
                self.now_us = until_us.min(look_at_us);
                if self.now_us >= until_us {
                    return is_done(self);
                }
                continue;
            }
            let (now_us, event) = self.queue.pop().expect("there is one");
            self.now_us = now_us;
            self.events += 1;
            let words = event.words();
            self.trace.add(&[now_us, words[0], words[1], words[2]]);
            self.happens(event);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::ToServer(n, input) => self.frame_arrives(n, input),
            Event::Within(n, generation, input) => self.within(n, generation, input),
            Event::Disk(n, generation, number) => self.disk_done(n, generation, number),
            Event::Job(n, generation, number) => self.job_runs(n, generation, number),
            Event::LivesAgain(n, generation) => self.lives_again(n, generation),
            Event::Wake(n) => self.wake(n),
            Event::Boot(n, generation) => self.boot(n, generation),
            Event::ToCoordinator(n, input) => self.coordinator_hears(n, *input),
            Event::CoordinatorWakes(n) => self.coordinator_wakes(n),
            Event::Campaign(n, generation) => self.campaign(n, generation),
            Event::Commit(n, generation, token, batch) => {
                self.commit(n, generation, token, &batch);
            }
            Event::CoordinatorStarts(n, generation) => self.coordinator_starts(n, generation),
            Event::Depose(n, generation) => self.depose(n, generation),
            Event::Request(n, request) => self.request_arrives(n, *request),
            Event::Reply(n, reply) => self.reply_arrives(n, *reply),
            Event::Letter(n, letter) => self.letter_for_server(n, *letter),
            Event::Answered(letter) => self.letter_for_client(&letter),
            Event::CoordinatorAnswered(c, number, answer) => {
                self.coordinator_answers_client(c, number, *answer)
            }
            Event::ClientActs(n, sequence) => self.client_acts(n, sequence),
            Event::ClientTires(n, sequence) => self.client_tires(n, sequence),
            Event::Imagine => self.imagine(),
            Event::Operate => self.operate_tables(),
            Event::Fault(fault) => self.strike(*fault),
            Event::Ends(fault) => self.relent(*fault),
        }
    }
}
