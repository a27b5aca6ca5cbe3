//! A server: a machine with a clock and a disk, and the process on it, which is a real node with a
//! real backup.

use super::client::HeldReply;
use super::coverage::Class;
use super::disks;
use super::flash;
use super::native::HeldLetter;
use super::net::{Mode, Place};
use super::plan::Plan;
use super::sim_coordinator;
use super::world::{Asker, Event, World};
use crate::disk::SimDisk;
use duramen::Store;
use duramen_backup::{Backup, Expected, Geometry, Identity};
use duramen_base::ids::{ClusterId, Level, ServerId};
use duramen_base::random::Random;
use duramen_cluster::coordinator;
use duramen_node::{
    BackupService, Candidate, Input, Job, Node, NodeInput, NodeOptions, NodeOutput, PeerRequest,
    ReceivedRequest, RequestId, Servant, View,
};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{Enlist, Peer, PeerAnswer, ServerAnswer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Capacity of a disk, unless a fault fills it.
const DISK_BYTES: u64 = 1 << 30;
/// Time from the end of a process to the start of the next one, when it restarts by itself.
pub(super) const AGAIN_US: u64 = 20_000;
/// Rounds of work after one event; more are a bug.
const ROUNDS_MAX: usize = 200;
pub(super) const STEPS_MAX: usize = 20_000;
/// Bytes that the cleaner cleans in one step.
const CLEAN_BYTES: u64 = 1 << 20;
/// Interval at which held replies are checked.
const HELD_US: u64 = 3_000;

/// A correct wall clock.
pub(super) fn wall_ms(now_us: u64) -> u64 {
    1_700_000_000_000 + now_us / 1_000
}

/// A process.
pub(super) struct Process {
    pub node: Node,
    pub backup: Arc<Backup>,
    pub store: Option<Arc<Store>>,
    pub keeper: Option<Box<BackupService<RequestId>>>,
    pub view: Arc<View>,
    woken: Arc<AtomicBool>,
    /// Its clock for expiry, in milliseconds.
    wall_ms: Arc<AtomicU64>,
    /// Replies that wait for their position, or for a lease.
    pub held: Vec<HeldReply>,
    pub held_letters: Vec<HeldLetter>,
    pub servant: Option<Servant>,
    /// The disk is busy until this time.
    pub busy_until_us: u64,
    pub ended: bool,
}

/// A machine, and the process on it if it runs.
pub(super) struct Machine {
    pub disk: SimDisk,
    pub flash: flash::Mood,
    disk_number: u64,
    stored: Option<ServerId>,
    /// The cluster's id that is stored on its disk.
    pub cluster_id: ClusterId,
    /// Without power no connection is answered; with power but without a process, connections are
    /// refused.
    pub is_powered: bool,
    pub process: Option<Process>,
    /// Grows with each start and end of a process.
    pub generation: u64,
    pub is_paused: bool,
    backlog: VecDeque<Event>,
    drift_ppm: i64,
    offset_us: u64,
    /// The offset of its wall clock: positive if it is ahead.
    pub wall_offset_ms: i64,
    pub slow_us: u64,
    /// Longest time of one operation of its disk.
    pub operation_us: u64,
    /// Its disk has lost, or may have lost, acknowledged data.
    pub is_ruined: bool,
    wakes_at_us: u64,
    /// It dies after so many outputs, and stays down for so long.
    pub dies_after: Option<(u32, u64)>,
    /// The time that it stays off when its disk's power fails.
    pub cut_us: Option<u64>,
    /// Whether it stays off until all faults are over.
    pub kept_off: bool,
    lives: u64,
    /// Servers that may lack replicas of its log, each with the time of the suspicion.
    pub suspects: BTreeMap<usize, u64>,
}

impl Machine {
    pub fn new(n: usize, plan: &Plan, random: &mut Random) -> Machine {
        let disk_number = random.next_u64() | 1;
        Machine {
            disk: SimDisk::new(disk_number, DISK_BYTES).untraced(),
            flash: flash::Mood::new(disk_number),
            disk_number,
            stored: None,
            cluster_id: ClusterId::NONE,
            is_powered: true,
            process: None,
            generation: 0,
            is_paused: false,
            backlog: VecDeque::new(),
            drift_ppm: sim_coordinator::drift(plan, random),
            offset_us: random.below(1 << 40) + n as u64,
            wall_offset_ms: plan.wall_offset_ms(n),
            slow_us: 0,
            operation_us: disks::operation_us(n, plan),
            is_ruined: false,
            wakes_at_us: u64::MAX,
            dies_after: None,
            cut_us: None,
            kept_off: false,
            lives: 0,
            suspects: BTreeMap::new(),
        }
    }

    pub fn clock(&self, now_us: u64) -> u64 {
        sim_coordinator::local(now_us, self.drift_ppm) + self.offset_us
    }

    fn wall_ms(&self, now_us: u64) -> u64 {
        wall_ms(now_us).saturating_add_signed(self.wall_offset_ms)
    }

    fn global(&self, local_us: u64) -> u64 {
        sim_coordinator::global(local_us.saturating_sub(self.offset_us), self.drift_ppm)
    }

    /// Replaces its disk by an empty one.
    pub fn replace_disk(&mut self, random: &mut Random) {
        self.disk_number = random.next_u64() | 1;
        self.disk = SimDisk::new(self.disk_number, DISK_BYTES).untraced();
        self.stored = None;
        self.cluster_id = ClusterId::NONE;
    }

    pub fn fill_disk(&self, is_full: bool) {
        self.disk.set_capacity(if is_full { 0 } else { DISK_BYTES });
    }

    /// Sets the disk's capacity to the bytes in use plus `bytes`.
    pub fn leave_room(&self, bytes: u64) {
        self.disk.set_capacity(self.disk.used_bytes() + bytes);
    }
}

impl World {
    /// Adds a server with an empty disk.
    pub(super) fn add_machine(&mut self) {
        let n = self.machines.len();
        self.say(|| format!("server {n} is added"));
        let machine = Machine::new(n, &self.plan, &mut self.random);
        self.machines.push(machine);
        self.excused_us.push(None);
        self.boot_after(n, 0);
    }

    fn open_backup(&mut self, n: usize) -> Result<Backup, duramen_backup::Error> {
        let machine = &self.machines[n];
        let geometry = Geometry {
            segment_bytes: self.plan.segment_bytes,
            wal_bytes: self.plan.wal_bytes,
            frames: self.plan.frames,
        };
        let identity = Identity {
            cluster: "simulated".to_owned(),
            server: machine.disk_number,
            hash_seed: 1,
        };
        let options = duramen_backup::Options {
            bypass_bytes: self.plan.segment_bytes / 2,
            ..duramen_backup::Options::default()
        };
        let disk = Arc::new(machine.disk.clone());
        match Backup::open(disk.clone(), &options, &Expected::default()) {
            Err(duramen_backup::Error::Absent { .. }) => {
                Backup::create(disk, &options, &geometry, &identity)
            }
            other => other.map(|(backup, _)| backup),
        }
    }

    /// Starts a process.
    pub(super) fn boot(&mut self, n: usize, generation: u64) {
        let machine = &mut self.machines[n];
        if machine.generation != generation || machine.kept_off {
            return;
        }
        machine.disk.restart();
        machine.is_powered = true;
        machine.is_paused = false;
        let backup = match self.open_backup(n) {
            Ok(backup) => Arc::new(backup),
            Err(error) if self.machines[n].is_ruined => {
                self.say(|| format!("server {n}: the ruined disk is replaced: {error}"));
                self.machines[n].replace_disk(&mut self.random);
                return self.after(AGAIN_US, Event::Boot(n, generation));
            }
            Err(error) => {
                let is_full = matches!(
                    error,
                    duramen_backup::Error::Full { .. } | duramen_backup::Error::TooSmall { .. }
                );
                if !is_full && !error.to_string().contains("os error") {
                    self.violated(format!(
                        "server {n}: a disk that is well is refused: {error}"
                    ));
                }
                return self.after(10 * AGAIN_US, Event::Boot(n, generation));
            }
        };
        let machine = &mut self.machines[n];
        machine.generation += 1;
        machine.lives += 1;
        let wall_ms = Arc::new(AtomicU64::new(self.machines[n].wall_ms(self.now_us)));
        let woken = Arc::new(AtomicBool::new(false));
        let options = self.node_options(n, backup.clone(), &woken, &wall_ms);
        let now_us = self.machines[n].clock(self.now_us);
        let machine = &mut self.machines[n];
        let node = Node::new(now_us, options);
        machine.process = Some(Process {
            node,
            backup,
            store: None,
            keeper: None,
            view: Arc::new(View::default()),
            woken,
            wall_ms,
            held: Vec::new(),
            held_letters: Vec::new(),
            servant: None,
            busy_until_us: 0,
            ended: false,
        });
        machine.wakes_at_us = u64::MAX;
        self.say(|| format!("server {n} begins"));
        self.tell(n, NodeInput::Tick);
    }

    fn node_options(
        &mut self,
        n: usize,
        backup: Arc<Backup>,
        woken: &Arc<AtomicBool>,
        wall_ms: &Arc<AtomicU64>,
    ) -> NodeOptions {
        let plan = &self.plan;
        let machine = &self.machines[n];
        let life = if plan.resettled {
            machine.generation
        } else {
            0
        };
        let mut store = duramen::Options::memory(plan.memory_bytes + ((life % 3) << 20));
        store.level = Level::Synced;
        store.disk_bytes = plan.log_bytes;
        store.engine.heads = 1 + life as usize % 2;
        store.engine.cleaners = 0;
        store.engine.huge_pages = false;
        store.engine.tiny = true;
        store.engine.flash = (plan.flash && life % 4 != 1).then(|| flash::options(&machine.flash));
        store.engine.clock = duramen_engine::Clock::Manual(wall_ms.clone());
        let bell = woken.clone();
        let coordinators = self.coordinators.len();
        let mut coordinators: Vec<String> =
            (0..coordinators).map(sim_coordinator::address).collect();
        let first = n % coordinators.len();
        coordinators.rotate_left(first);
        NodeOptions {
            room_us: plan.room_us,
            candidate: Candidate {
                enlist: Enlist {
                    nonce: self.random.next_u64(),
                    cluster: "simulated".to_owned(),
                    rack: (plan.racks > 0).then(|| format!("rack {}", n % plan.racks)),
                    replaces: machine.stored,
                    segment_bytes: plan.segment_bytes,
                    ..duramen_harness::enlist(machine.disk_number, n.to_string())
                },
                coordinators,
                seed: self.random.next_u64(),
            },
            store,
            backup: Some(backup),
            ahead_bytes: 1 << 20,
            threads: false,
            wake: Arc::new(move || bell.store(true, Ordering::SeqCst)),
        }
    }

    /// Ends the process. Messages that it has sent may still arrive.
    pub(super) fn stop(&mut self, n: usize, has_power: bool) {
        let machine = &mut self.machines[n];
        machine.process = None;
        machine.generation += 1;
        machine.is_paused = false;
        machine.is_powered = has_power;
        machine.backlog.clear();
        machine.dies_after = None;
        machine.wakes_at_us = u64::MAX;
        self.suspect(n);
        self.say(|| format!("server {n} ends"));
    }

    /// Starts it again after this time.
    pub(super) fn boot_after(&mut self, n: usize, down_us: u64) {
        let generation = self.machines[n].generation;
        self.after(down_us, Event::Boot(n, generation));
    }

    pub(super) fn resume(&mut self, n: usize) {
        let machine = &mut self.machines[n];
        if !std::mem::replace(&mut machine.is_paused, false) {
            return;
        }
        for event in std::mem::take(&mut machine.backlog) {
            self.after(0, event);
        }
        self.after(0, Event::Wake(n));
    }

    /// A paused process receives every event later.
    pub(super) fn is_deaf(&mut self, n: usize, event: impl FnOnce() -> Event) -> bool {
        let machine = &mut self.machines[n];
        if machine.is_paused {
            machine.backlog.push_back(event());
            self.excuse(n);
        }
        self.machines[n].is_paused
    }

    pub(super) fn frame_arrives(&mut self, n: usize, input: Box<NodeInput>) {
        if self.machines[n].process.is_none() {
            self.excuse(n);
        }
        let machine = &self.machines[n];
        if !machine.is_powered {
            return;
        }
        if machine.process.is_none() {
            match *input {
                NodeInput::Request(ReceivedRequest { request, .. })
                | NodeInput::Member(Input::Order { request, .. }) => self.nobody_answers(request.0),
                _ => {}
            }
            return;
        }
        if self.is_deaf(n, || Event::ToServer(n, input.clone())) {
            return;
        }
        match *input {
            NodeInput::Request(received) if received.question.is_for_backup() => {
                self.ask_backup(n, &received);
            }
            input => self.tell(n, input),
        }
    }

    /// The keeper's thread of a server gets a request for its backup.
    fn ask_backup(&mut self, n: usize, received: &ReceivedRequest) {
        let now_us = self.machines[n].clock(self.now_us);
        let process = self.machines[n].process.as_mut().expect("it runs");
        let (asked, mut replies) = (received.asked(), Vec::new());
        match &mut process.keeper {
            Some(keeper) => keeper.asked(now_us, asked, &mut replies),
            None => replies.push(asked.not_here()),
        }
        let replies = replies.into_iter().map(NodeOutput::from).collect();
        self.keeper_says(n, replies);
        self.let_work(n);
    }

    /// Outputs of the keeper that follow at once.
    fn keeper_says(&mut self, n: usize, out: Vec<NodeOutput>) {
        let slow_us = self.machines[n].slow_us;
        self.later(n, 20 + slow_us / 4, out);
    }

    /// The target machine refuses the connection.
    pub(super) fn nobody_answers(&mut self, request: u64) {
        let delay_us = 100 + self.random.below(1_000);
        match self.askers.get(&request) {
            Some(&Asker::Peer(n, generation, call)) => {
                let input = NodeInput::PeerAnswered { call, answer: None };
                self.after(delay_us, Event::Within(n, generation, Box::new(input)));
            }
            Some(&Asker::Coordinator(n, generation, call))
                if self.coordinators[n].generation == generation =>
            {
                let sign = coordinator::Sign::Dead;
                let input = coordinator::Input::Unanswered { call, sign };
                self.after(delay_us, Event::ToCoordinator(n, Box::new(input)));
            }
            Some(&Asker::Member(n, generation, token, _)) => {
                let input = NodeInput::Member(Input::Unanswered { token });
                self.after(delay_us, Event::Within(n, generation, Box::new(input)));
            }
            Some(&Asker::Client(c)) => self.after(delay_us, Event::ClientTires(c, request)),
            _ => {}
        }
    }

    pub(super) fn within(&mut self, n: usize, generation: u64, input: Box<NodeInput>) {
        if self.machines[n].generation != generation || self.machines[n].process.is_none() {
            return;
        }
        if self.is_deaf(n, || Event::Within(n, generation, input.clone())) {
            return;
        }
        if let NodeInput::Member(Input::IdStored { server }) = &*input {
            self.machines[n].stored = Some(*server);
        }
        self.tell(n, *input);
    }

    pub(super) fn wake(&mut self, n: usize) {
        let now_us = self.now_us;
        let machine = &mut self.machines[n];
        if machine.wakes_at_us > now_us && machine.wakes_at_us != u64::MAX {
            return;
        }
        machine.wakes_at_us = u64::MAX;
        if machine.process.is_none() || machine.is_paused {
            return;
        }
        self.tell(n, NodeInput::Tick);
    }

    pub(super) fn disk_done(&mut self, n: usize, generation: u64, number: u64) {
        if self.machines[n].generation != generation {
            self.on_disk.remove(&number);
            return;
        }
        if self.is_deaf(n, || Event::Disk(n, generation, number)) {
            return;
        }
        let outputs = self.on_disk.remove(&number).unwrap_or_default();
        self.do_all(n, outputs);
        self.let_work(n);
    }

    /// Updates the wall clock of a process, which expiry uses.
    pub(super) fn set_wall(&mut self, n: usize) {
        let machine = &self.machines[n];
        if let Some(process) = &machine.process {
            let wall_ms = machine.wall_ms(self.now_us);
            process.wall_ms.store(wall_ms, Ordering::Relaxed);
        }
    }

    fn tell(&mut self, n: usize, input: NodeInput) {
        let now_us = self.machines[n].clock(self.now_us);
        self.set_wall(n);
        let Some(process) = &mut self.machines[n].process else {
            return;
        };
        let mut out = Vec::new();
        process.node.handle(now_us, input, &mut out);
        self.do_all(n, out);
        self.let_work(n);
    }

    fn do_all(&mut self, n: usize, out: Vec<NodeOutput>) {
        let generation = self.machines[n].generation;
        for output in out {
            let machine = &mut self.machines[n];
            if machine.generation != generation {
                return; // it died at the previous output
            }
            if let Some((left, down_us)) = machine.dies_after {
                if left == 0 {
                    self.coverage.fired(Class::CrashAtOutput);
                    self.stop(n, true);
                    return self.boot_after(n, down_us);
                }
                machine.dies_after = Some((left - 1, down_us));
            }
            self.does(n, output);
        }
    }

    /// Runs the threads of the store and of the keeper while they have work.
    pub(super) fn let_work(&mut self, n: usize) {
        let generation = self.machines[n].generation;
        for _ in 0..ROUNDS_MAX {
            let now_us = self.machines[n].clock(self.now_us);
            let machine = &mut self.machines[n];
            let Some(process) = machine.process.as_mut() else {
                return;
            };
            let mut out = Vec::new();
            if let Some(store) = process.store.as_ref().filter(|_| !process.ended) {
                store.engine().clean_step(CLEAN_BYTES);
                let flash = store.engine().flash().filter(|_| self.plan.flash);
                while flash.is_some_and(|flash| flash.demote_step()) {
                    self.coverage.fired(Class::Cold);
                }
                let mut steps = 0;
                while steps < STEPS_MAX && store.background_step().unwrap_or(false) {
                    steps += 1;
                }
                if steps == STEPS_MAX {
                    let what = store.log().map(duramen::internals::LogWriter::describe);
                    return self.violated(format!("server {n}: its store is never done: {what:?}"));
                }
                let log = store.log().expect("a member's store has a log");
                log.try_commit_here(Level::Synced);
            }
            if process.woken.swap(false, Ordering::SeqCst) {
                process.node.handle(now_us, NodeInput::Tick, &mut out);
            }
            let is_quiet = out.is_empty();
            self.do_all(n, out);
            if self.machines[n].generation != generation {
                return;
            }
            if is_quiet {
                self.keeper_works(n);
                self.let_replies_go(n);
                self.let_letters_go(n);
                return self.arm(n);
            }
        }
        self.violated(format!("server {n} is never done"));
    }

    /// Schedules its next wake-up.
    fn arm(&mut self, n: usize) {
        let now_us = self.now_us;
        let machine = &mut self.machines[n];
        let Some(process) = machine.process.as_ref() else {
            return;
        };
        let keeper = process.keeper.as_ref().and_then(|keeper| keeper.due_us());
        let node_us = process.node.due_us();
        let held = !process.held.is_empty()
            || !process.held_letters.is_empty()
            || process.servant.as_ref().is_some_and(Servant::is_waiting);
        let busy_us = process.busy_until_us;
        let mut at_us = match node_us {
            u64::MAX => u64::MAX,
            due_us => machine.global(due_us),
        };
        if let Some(due_us) = keeper {
            at_us = at_us.min(machine.global(due_us).max(busy_us));
        }
        if held {
            at_us = at_us.min(now_us + HELD_US);
        }
        let at_us = at_us.max(now_us + 1);
        if at_us < machine.wakes_at_us {
            machine.wakes_at_us = at_us;
            self.at(at_us, Event::Wake(n));
        }
    }

    fn does(&mut self, n: usize, output: NodeOutput) {
        let now_us = self.machines[n].clock(self.now_us);
        let process = self.machines[n].process.as_mut().expect("it runs");
        let me = process.node.member().id();
        match output {
            NodeOutput::AskCoordinator {
                token,
                address,
                question,
            } => self.asks_coordinator(n, me, token, &address, question),
            NodeOutput::AskPeer { request, address } => {
                let other: usize = address.parse().expect("servers have numbers");
                self.note_recipe(request.to, &request.question);
                self.asks_peer(n, other, request);
            }
            NodeOutput::Answer {
                request,
                answer,
                payload,
            } => self.answers_coordinator(n, request, answer, payload),
            NodeOutput::AnswerPeer {
                request,
                answer,
                payload,
            } => self.answers_peer(n, request, answer, payload),
            NodeOutput::StoreId { server } => {
                let input = NodeInput::Member(Input::IdStored { server });
                let delay_us = 500 + self.random.below(3_000);
                self.later_within(n, delay_us, input);
            }
            NodeOutput::Opened {
                store,
                keeper,
                clients,
            } => {
                self.say(|| format!("server {n} is {me}"));
                let servant = Servant::new(clients);
                let process = self.machines[n].process.as_mut().expect("it runs");
                process.store = Some(store);
                process.keeper = keeper;
                process.servant = Some(servant);
            }
            NodeOutput::Keep(task) => {
                let mut out = Vec::new();
                let keeper = process.keeper.as_mut().expect("it is a backup");
                keeper.obey(now_us, task, &mut out);
                self.keeper_says(n, out);
            }
            NodeOutput::View(view) => process.view = view,
            NodeOutput::Job(job) => self.begins_job(n, job),
            NodeOutput::Settings(_) => {}
            NodeOutput::Users { request, .. } | NodeOutput::Functions { request, .. } => {
                let fault = None;
                let taken = Input::UsersTaken { request, fault };
                self.later_within(n, 1_000, NodeInput::Member(taken));
            }
            NodeOutput::Fails(why) => self.say(|| format!("server {n}: {why}")),
            NodeOutput::Ended { again, reason } => self.life_ends(n, again, &reason),
        }
    }

    fn begins_job(&mut self, n: usize, job: Job) {
        let number = self.number();
        self.jobs.insert(number, job);
        let generation = self.machines[n].generation;
        let delay_us = 50 + self.random.below(2_000);
        self.after(delay_us, Event::Job(n, generation, number));
    }

    fn later_within(&mut self, n: usize, delay_us: u64, input: NodeInput) {
        let generation = self.machines[n].generation;
        self.after(delay_us, Event::Within(n, generation, Box::new(input)));
    }

    fn life_ends(&mut self, n: usize, again: bool, reason: &str) {
        self.say(|| format!("server {n}: its life is over: {reason}"));
        let process = self.machines[n].process.as_mut().expect("it runs");
        process.ended = true;
        process.held.clear();
        process.held_letters.clear();
        process.servant = None;
        if self.plan.nobody_dies {
            self.violated(format!("server {n} is called dead: {reason}"));
        }
        if !again {
            self.violated(format!("server {n} gives up: {reason}"));
        }
        // The next life: the same disk, a new process.
        let generation = self.machines[n].generation;
        self.after(AGAIN_US, Event::LivesAgain(n, generation));
    }

    pub(super) fn lives_again(&mut self, n: usize, generation: u64) {
        if self.machines[n].generation != generation {
            return;
        }
        if self.is_deaf(n, || Event::LivesAgain(n, generation)) {
            return;
        }
        self.stop(n, true);
        self.boot_after(n, AGAIN_US);
    }

    /// A survivor is sent as a recipe, or as bytes after its recipe was refused or lost.
    fn note_recipe(&mut self, to: ServerId, question: &Peer) {
        match question {
            Peer::BuildReplica(write) => {
                self.coverage.fired(Class::Recipe);
                self.recipes.insert((write.log, to, write.segment));
            }
            Peer::WriteReplica(write) if self.recipes.remove(&(write.log, to, write.segment)) => {
                self.coverage.fired(Class::RecipeRefused);
            }
            _ => {}
        }
    }

    fn asks_peer(&mut self, n: usize, other: usize, request: PeerRequest) {
        let PeerRequest {
            call,
            to,
            question,
            payload,
        } = request;
        let mut payload = payload.to_vec();
        self.flip_on_the_way(&mut payload);
        if !matches!(question, Peer::Ping { .. }) {
            self.say(|| {
                format!(
                    "server {n} -> {other} ({to}): {}",
                    sim_coordinator::brief(&question)
                )
            });
        }
        let request = self.number();
        let generation = self.machines[n].generation;
        self.askers
            .insert(request, Asker::Peer(n, generation, call));
        let me = self.machines[n].process.as_ref().expect("it runs");
        let asked = NodeInput::Request(ReceivedRequest {
            request: RequestId(request),
            sender: me.node.member().id(),
            target: to,
            question,
            payload,
        });
        let lost = NodeInput::PeerAnswered { call, answer: None };
        let lost = Event::Within(n, generation, Box::new(lost));
        let way = (Place::Server(n), Place::Server(other));
        let event = Event::ToServer(other, Box::new(asked));
        self.send(way, Mode::Free, event, Some(lost));
    }

    fn answers_coordinator(
        &mut self,
        n: usize,
        request: RequestId,
        answer: ServerAnswer,
        payload: Vec<u8>,
    ) {
        let Some(&Asker::Coordinator(place, generation, call)) = self.askers.get(&request.0) else {
            return self.violated(format!(
                "server {n} answers what the coordinator did not ask"
            ));
        };
        if self.coordinators[place].generation != generation {
            return; // the connection is gone
        }
        let input = coordinator::Input::Answered {
            call,
            answer,
            payload,
        };
        let sign = coordinator::Sign::Unknown;
        let lost = coordinator::Input::Unanswered { call, sign };
        let lost = Event::ToCoordinator(place, Box::new(lost));
        let way = (Place::Server(n), Place::Coordinator(place));
        let event = Event::ToCoordinator(place, Box::new(input));
        self.send(way, Mode::Free, event, Some(lost));
    }

    fn answers_peer(&mut self, n: usize, request: RequestId, answer: PeerAnswer, payload: Slice) {
        let Some(&Asker::Peer(asker, generation, call)) = self.askers.get(&request.0) else {
            return self.violated(format!("server {n} answers what no server asked"));
        };
        if matches!(answer, PeerAnswer::Busy | PeerAnswer::Full) {
            self.coverage.fired(Class::Busy);
        }
        if !matches!(answer, PeerAnswer::Pong { .. }) {
            let bytes = payload.len();
            self.say(|| {
                format!(
                    "server {n} answers {asker}: {} {bytes}",
                    sim_coordinator::brief(&answer)
                )
            });
        }
        let mut payload = payload.to_vec();
        self.flip_on_the_way(&mut payload);
        let answer = Some((answer, payload.into()));
        let input = NodeInput::PeerAnswered { call, answer };
        let way = (Place::Server(n), Place::Server(asker));
        let event = Event::Within(asker, generation, Box::new(input));
        self.send(way, Mode::Free, event, None);
    }

    /// A worker runs a job; the node receives the result a little later.
    pub(super) fn job_runs(&mut self, n: usize, generation: u64, number: u64) {
        if self.machines[n].generation != generation {
            self.jobs.remove(&number);
            return;
        }
        if self.is_deaf(n, || Event::Job(n, generation, number)) {
            return;
        }
        if let Some(job) = self.jobs.remove(&number) {
            self.flash_took_us(n);
            self.set_wall(n);
            let done = job.run();
            let delay_us = 50 + self.random.below(2_000) + self.flash_took_us(n);
            self.later_within(n, delay_us, NodeInput::JobDone(done));
            self.let_work(n);
        }
    }
}
