//! Whole nodes with real engines and real backups on disks, and the real coordinator, over a
//! network that loses, repeats and reorders.

use duramen::Store;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Expected, Geometry, Identity, Mode, ReplicaId, ReplicaInfo};
use duramen_base::ids::{Level, RouteHash, SegmentId, ServerId, TableId};
use duramen_base::random::Random;
use duramen_cluster::control::State;
use duramen_cluster::coordinator::store::Memory;
use duramen_cluster::coordinator::{self, CallId, ReplyId};
use duramen_format::entry::{self, Kind as EntryKind};
use duramen_format::hash::KeyHasher;
use duramen_format::segment::{HEADER_BYTES, Kind};
use duramen_harness::{Leader, Queue};
use duramen_node::{
    BackupService, Candidate, Clients, Input, Job, Node, NodeInput, NodeOptions, NodeOutput,
    PeerCall, PeerRequest, ReceivedRequest, RequestId, Route, Token, View,
};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    Admin, ClusterSettings, CoordinatorAnswer, Enlist, FromCoordinator, Peer, PeerAnswer,
    ServerAnswer, ToCoordinator,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub const MEMORY: u64 = 64 << 20;
pub const LEASE_MS: u32 = 500;
pub const TABLE: TableId = TableId(1);
/// The coordinator's end of the links that may be cut.
pub const COORDINATOR: usize = usize::MAX;

pub fn settings() -> ClusterSettings {
    ClusterSettings {
        segment_bytes: duramen_engine::segment_bytes(MEMORY) as u32,
        read_lease_ms: LEASE_MS,
        partition_bytes: 1 << 30,
        partition_records: 1 << 30,
        ..duramen_harness::settings()
    }
}

fn config(seed: u64, settings: ClusterSettings) -> coordinator::Config {
    coordinator::Config {
        seed,
        settings,
        ..duramen_harness::config()
    }
}

/// A message in flight.
#[derive(Clone)]
pub enum Event {
    /// With the term of the leader that it answers, if it is an answer: connections end with a
    /// leader.
    ToCoordinator(Option<u32>, coordinator::Input),
    /// With the life that it answers, unless it is a request.
    ToNode(usize, Option<u64>, NodeInput),
}

pub struct Server {
    pub node: Node,
    pub backup: Arc<Backup>,
    pub store: Option<Arc<Store>>,
    pub keeper: Option<Box<BackupService<RequestId>>>,
    pub clients: Option<Arc<Clients>>,
    pub view: Arc<View>,
    pub woken: Arc<AtomicBool>,
    pub is_alive: bool,
    pub ended: Option<String>,
    /// Number of its disk.
    pub disk: usize,
    /// Number of the disk's starts.
    pub life: u64,
    /// Its last id on its disk.
    pub stored: Option<ServerId>,
    /// It is paused until then.
    pub paused_us: u64,
}

#[derive(Clone)]
pub enum Asker {
    Node(usize, u64, Token, Box<ToCoordinator>),
    Person,
}

/// The server or coordinator that waits for a node's answer.
#[derive(Clone, Copy)]
pub enum Waiting {
    Node(usize, u64, PeerCall),
    Coordinator(u32, CallId),
}

pub struct Net {
    pub leader: Leader,
    pub servers: Vec<Server>,
    pub dirs: Vec<tempfile::TempDir>,
    pub queue: Queue<Event>,
    pub now_us: u64,
    pub askers: BTreeMap<ReplyId, Asker>,
    pub waiting: BTreeMap<RequestId, Waiting>,
    pub answers: Vec<CoordinatorAnswer>,
    /// The control heads that the coordinator has confirmed as noted.
    pub noted: BTreeMap<ServerId, SegmentId>,
    pub cut: BTreeSet<(usize, usize)>,
    /// Whether cuts leave pings alone.
    pub do_pings_pass: bool,
    /// Whether all reports that a migration is complete, or has failed, are lost.
    pub loses_ends: bool,
    pub random: Random,
    pub lost_percent: u64,
    pub fetched: usize,
    /// The backups' promises about the end of a log's reads: each log, and the end.
    pub quiet: Vec<(ServerId, u64)>,
    pub settings: ClusterSettings,
    /// This server is killed after so many outputs.
    pub killed_after: Option<(usize, u64)>,
    /// None: links of any speed.
    pub slow: Option<Slow>,
}

/// Slow links: what a server sends passes one after the other. Small messages do not count.
pub struct Slow {
    pub bytes_per_s: u64,
    /// All bytes sent.
    pub bytes: u64,
    /// When each server's link is free.
    pub free_us: BTreeMap<usize, u64>,
}

impl Net {
    pub fn new(seed: u64, count: usize) -> Net {
        Net::with(seed, count, settings())
    }

    pub fn with(seed: u64, count: usize, settings: ClusterSettings) -> Net {
        let config = config(seed, settings.clone());
        let (leader, outputs) = Leader::new(0, &Memory::new("nobody"), config);
        let dirs: Vec<tempfile::TempDir> = (0..count).map(|_| directory()).collect();
        let mut net = Net {
            leader,
            servers: (dirs.iter().enumerate())
                .map(|(n, dir)| server(n, seed, empty_backup(n, dir), (n, 0, None), 0))
                .collect(),
            dirs,
            queue: Queue::default(),
            now_us: 0,
            askers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            answers: Vec::new(),
            noted: BTreeMap::new(),
            cut: BTreeSet::new(),
            do_pings_pass: false,
            loses_ends: false,
            random: Random::new(seed),
            lost_percent: 5,
            fetched: 0,
            quiet: Vec::new(),
            settings,
            killed_after: None,
            slow: None,
        };
        net.coordinated(outputs);
        net
    }

    pub fn at(&mut self, delay_us: u64, event: Event) {
        self.queue.push(self.now_us + delay_us, event);
    }

    /// Sends a message with a delay of up to 20 ms, so in any order; perhaps lost, perhaps twice.
    /// Pings are quick and safe: a lost one breaks a connection in practice, and is noticed.
    pub fn send(&mut self, from: usize, to: usize, event: Event, is_ping: bool) {
        if self.cut.contains(&(from, to)) && !(is_ping && self.do_pings_pass) {
            return;
        }
        if !is_ping && self.random.below(100) < self.lost_percent {
            return;
        }
        if let Some((bytes, asker)) = self.large(&event) {
            return self.send_slowly(from, bytes, asker, event);
        }
        let copies = if !is_ping && self.random.below(10) == 0 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay_us = 100 + self.random.below(if is_ping { 2_000 } else { 20_000 });
            self.at(delay_us, event.clone());
        }
    }

    pub fn cut(&mut self, n: usize, others: impl IntoIterator<Item = usize>) {
        for other in others {
            self.cut.extend([(n, other), (other, n)]);
        }
    }

    pub fn tell_coordinator(&mut self, input: coordinator::Input) {
        let outputs = self.leader.handle(self.now_us, input);
        self.coordinated(outputs);
    }

    pub fn coordinated(&mut self, outputs: Vec<coordinator::Output>) {
        let term = self.leader.term;
        for output in outputs {
            match output {
                coordinator::Output::Answer { reply, answer } => {
                    match self.askers[&reply].clone() {
                        Asker::Person => self.answers.push(answer),
                        Asker::Node(n, life, token, question) => {
                            if let (ToCoordinator::ControlHead { server, min_open }, true) =
                                (*question, answer == CoordinatorAnswer::Noted)
                            {
                                let noted = self.noted.entry(server).or_default();
                                *noted = (*noted).max(min_open);
                            }
                            let input = NodeInput::Member(Input::Answered { token, answer });
                            self.send(COORDINATOR, n, Event::ToNode(n, Some(life), input), false);
                        }
                    }
                }
                coordinator::Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => {
                    let n: usize = address.parse().unwrap();
                    let request = RequestId(self.queue.number());
                    self.waiting
                        .insert(request, Waiting::Coordinator(term, call));
                    let told = NodeInput::Member(Input::Order {
                        request,
                        sender: ServerId::coordinator(term),
                        target: to,
                        question: question.clone(),
                    });
                    let is_ping = matches!(question, FromCoordinator::Ping { .. });
                    self.send(COORDINATOR, n, Event::ToNode(n, None, told), is_ping);
                }
                _ => {}
            }
        }
    }

    pub fn tell(&mut self, n: usize, input: NodeInput) {
        if !self.servers[n].is_alive {
            return;
        }
        let mut out = Vec::new();
        self.servers[n].node.handle(self.now_us, input, &mut out);
        self.do_all(n, out);
        self.let_work(n);
    }

    /// A backup's service answers what is for it, and the node all else, as in a server.
    fn arrives(&mut self, n: usize, input: NodeInput) {
        match input {
            NodeInput::Request(received) if received.question.is_for_backup() => {
                self.ask_backup(n, &received);
            }
            input => self.tell(n, input),
        }
    }

    fn ask_backup(&mut self, n: usize, received: &ReceivedRequest) {
        let server = &mut self.servers[n];
        if !server.is_alive {
            return;
        }
        let (asked, mut replies) = (received.asked(), Vec::new());
        match &mut server.keeper {
            Some(keeper) => keeper.asked(self.now_us, asked, &mut replies),
            None => replies.push(asked.not_here()),
        }
        self.do_all(n, replies.into_iter().map(NodeOutput::from).collect());
        self.let_work(n);
    }

    /// Ends the process; its disk and page cache stay.
    pub fn kill(&mut self, n: usize) {
        let server = &mut self.servers[n];
        server.is_alive = false;
        server.keeper = None;
        server.store = None;
        server.view = Arc::default();
    }

    /// A new process on the same disk.
    pub fn start(&mut self, n: usize) {
        let seed = self.queue.number();
        let before = self.servers.remove(n);
        let last = (before.disk, before.life, before.stored);
        drop(before); // and with it the lock on its disk
        let disk = Arc::new(OsDisk::new(self.dirs[last.0].path(), Mode::Buffered));
        let options = duramen_backup::Options::default();
        let (backup, _) = Backup::open(disk, &options, &Expected::default()).unwrap();
        let next = server(n, seed, Arc::new(backup), last, self.now_us);
        self.servers.insert(n, next);
    }

    /// Another coordinator takes over with the stored state.
    pub fn change_leader(&mut self) {
        let config = config(self.queue.number(), self.settings.clone());
        let (leader, outputs) = Leader::new(self.now_us, &self.leader.store, config);
        self.leader = leader;
        self.coordinated(outputs);
    }

    /// Runs the threads of the store and of the keeper while they have work.
    pub fn let_work(&mut self, n: usize) {
        for _ in 0..100 {
            let server = &mut self.servers[n];
            if !server.is_alive {
                return;
            }
            let mut out = Vec::new();
            let now_us = self.now_us;
            if let Some(store) = server.store.as_ref().filter(|_| server.ended.is_none()) {
                while store.background_step().unwrap() {}
                store.log().unwrap().try_commit_here(Level::Synced);
            }
            if let Some(keeper) = &mut server.keeper {
                let mut replies = Vec::new();
                while keeper.read_step(now_us, &mut replies) {}
                out.extend(replies.into_iter().map(NodeOutput::from));
                if keeper.due_us().is_some_and(|due_us| due_us <= now_us) {
                    keeper.settle(&|| now_us, &mut out).unwrap();
                }
                while server.backup.flush_step().unwrap() {}
            }
            if server.woken.swap(false, Ordering::SeqCst) {
                server.node.handle(now_us, NodeInput::Tick, &mut out);
            }
            if out.is_empty() {
                return;
            }
            self.do_all(n, out);
        }
        panic!("server {n} is never done");
    }

    pub fn do_all(&mut self, n: usize, out: Vec<NodeOutput>) {
        for output in out {
            if let Some((victim, left)) = &mut self.killed_after
                && *victim == n
            {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.killed_after = None;
                    self.kill(n);
                }
            }
            if self.servers[n].is_alive {
                self.done_by(n, output);
            }
        }
    }

    pub fn done_by(&mut self, n: usize, output: NodeOutput) {
        let life = self.servers[n].life;
        match output {
            NodeOutput::AskCoordinator {
                token, question, ..
            } => self.ask_coordinator(n, token, question),
            NodeOutput::AskPeer { request, address } => self.ask_peer(n, request, &address),
            NodeOutput::Answer {
                request,
                answer,
                payload,
            } => self.answer_coordinator(n, request, answer, payload),
            NodeOutput::AnswerPeer {
                request,
                answer,
                payload,
            } => self.answer_peer(n, request, answer, payload),
            NodeOutput::StoreId { server } => {
                let stored = NodeInput::Member(Input::IdStored { server });
                self.servers[n].stored = Some(server);
                self.at(5_000, Event::ToNode(n, Some(life), stored));
            }
            NodeOutput::Opened {
                store,
                keeper,
                clients,
            } => {
                self.servers[n].store = Some(store);
                self.servers[n].keeper = keeper;
                self.servers[n].clients = Some(clients);
            }
            NodeOutput::Keep(task) => {
                let mut out = Vec::new();
                let keeper = self.servers[n].keeper.as_mut().expect("it is a backup");
                keeper.obey(self.now_us, task, &mut out);
                self.do_all(n, out);
            }
            NodeOutput::View(view) => self.servers[n].view = view,
            NodeOutput::Job(job) => self.run_job(n, job),
            NodeOutput::Users { request, .. } | NodeOutput::Functions { request, .. } => {
                let fault = None;
                let taken = NodeInput::Member(Input::UsersTaken { request, fault });
                self.at(1_000, Event::ToNode(n, Some(life), taken));
            }
            NodeOutput::Settings(_) | NodeOutput::Fails(_) => {}
            NodeOutput::Ended { reason, .. } => {
                self.servers[n].ended = Some(reason);
                self.servers[n].keeper = None; // its thread ends
            }
        }
    }

    fn ask_peer(&mut self, n: usize, asked: PeerRequest, address: &str) {
        let PeerRequest {
            call,
            to,
            question,
            payload,
        } = asked;
        let request = RequestId(self.queue.number());
        let asking = Waiting::Node(n, self.servers[n].life, call);
        self.waiting.insert(request, asking);
        let is_ping = matches!(question, Peer::Ping { .. });
        self.fetched += usize::from(matches!(question, Peer::ReadSegment { .. }));
        let asked = NodeInput::Request(ReceivedRequest {
            request,
            sender: self.servers[n].node.member().id(),
            target: to,
            question,
            payload: payload.to_vec(),
        });
        let other: usize = address.parse().unwrap();
        self.send(n, other, Event::ToNode(other, None, asked), is_ping);
    }

    fn run_job(&mut self, n: usize, job: Job) {
        let done = NodeInput::JobDone(job.run());
        let delay_us = 100 + self.random.below(3_000);
        self.at(delay_us, Event::ToNode(n, Some(self.servers[n].life), done));
    }

    fn answer_peer(&mut self, n: usize, request: RequestId, answer: PeerAnswer, payload: Slice) {
        let Waiting::Node(asker, asking, call) = self.waiting[&request] else {
            panic!("a server is answered");
        };
        let is_ping = matches!(answer, PeerAnswer::Pong { .. });
        let answer = Some((answer, payload));
        let answered = NodeInput::PeerAnswered { call, answer };
        let event = Event::ToNode(asker, Some(asking), answered);
        self.send(n, asker, event, is_ping);
    }

    fn ask_coordinator(&mut self, n: usize, token: Token, question: ToCoordinator) {
        let server = &self.servers[n];
        let (sender, life) = (server.node.member().id(), server.life);
        let reply = ReplyId(self.queue.number());
        let is_end = matches!(question, ToCoordinator::MigrationDone(_));
        let is_lost = self.cut.contains(&(n, COORDINATOR)) || is_end && self.loses_ends;
        let asker = Asker::Node(n, life, token, Box::new(question.clone()));
        self.askers.insert(reply, asker);
        let asked = coordinator::Input::Request {
            reply,
            sender,
            question,
        };
        // A request has a reply id: the driver would answer a repeated frame once.
        if !is_lost && self.random.below(100) >= self.lost_percent {
            let delay_us = 100 + self.random.below(20_000);
            self.at(delay_us, Event::ToCoordinator(None, asked));
        }
    }

    fn answer_coordinator(
        &mut self,
        n: usize,
        request: RequestId,
        answer: ServerAnswer,
        payload: Vec<u8>,
    ) {
        let Waiting::Coordinator(term, call) = self.waiting[&request] else {
            panic!("the coordinator is answered");
        };
        if let ServerAnswer::Replicas(replicas) = &answer
            && replicas.control.is_some()
        {
            let left_us = u64::from(replicas.lease_left_ms) * 1000;
            self.quiet.push((replicas.log, self.now_us + left_us));
        }
        let is_ping = matches!(answer, ServerAnswer::Pong { .. });
        let answered = coordinator::Input::Answered {
            call,
            answer,
            payload,
        };
        let event = Event::ToCoordinator(Some(term), answered);
        self.send(n, COORDINATOR, event, is_ping);
    }

    pub fn due_us(&self, n: usize) -> u64 {
        let server = &self.servers[n];
        if !server.is_alive {
            return u64::MAX;
        }
        let keeper = server.keeper.as_ref().and_then(|keeper| keeper.due_us());
        let due_us = server.node.due_us().min(keeper.unwrap_or(u64::MAX));
        due_us.max(server.paused_us)
    }

    /// Runs until `is_done`; returns whether that came in time.
    pub fn run(&mut self, for_us: u64, is_done: impl Fn(&Net) -> bool) -> bool {
        let until_us = self.now_us + for_us;
        loop {
            self.check();
            if is_done(self) {
                return true;
            }
            let event = self.queue.next_us();
            let (n, due_us) = (0..self.servers.len())
                .map(|n| (n, self.due_us(n)))
                .min_by_key(|(_, due_us)| *due_us)
                .unwrap();
            let at_us = event.min(due_us).min(self.leader.wakes_at_us);
            if at_us > until_us {
                self.now_us = until_us;
                return false;
            }
            self.now_us = self.now_us.max(at_us);
            if at_us == event {
                match self.queue.pop().unwrap().1 {
                    Event::ToCoordinator(of, input) => {
                        if of.is_none_or(|term| term == self.leader.term) {
                            self.tell_coordinator(input);
                        }
                    }
                    Event::ToNode(n, life, input) => {
                        let server = &self.servers[n];
                        let is_for = life.is_none_or(|life| life == server.life);
                        if is_for && server.paused_us > self.now_us {
                            let later_us = server.paused_us - self.now_us;
                            self.at(later_us, Event::ToNode(n, life, input));
                        } else if is_for {
                            self.arrives(n, input);
                        }
                    }
                }
            } else if at_us == due_us {
                self.tell(n, NodeInput::Tick);
            } else {
                self.tell_coordinator(coordinator::Input::Tick);
            }
        }
    }

    /// No server reads after a backup has told a recovery that its reads have ended.
    pub fn check(&self) {
        for (log, quiet_us) in &self.quiet {
            for server in &self.servers {
                if server.node.member().id() == *log && self.now_us >= *quiet_us {
                    assert!(
                        !server.node.read_until().may_read(self.now_us),
                        "at {}: {log} reads, a backup had said until {quiet_us}",
                        self.now_us
                    );
                }
            }
        }
    }

    pub fn admin(&mut self, admin: Admin) -> CoordinatorAnswer {
        self.person_asks(ToCoordinator::Admin(admin))
    }

    /// A question of somebody outside of the cluster that the coordinator answers at once.
    pub fn person_asks(&mut self, question: ToCoordinator) -> CoordinatorAnswer {
        let reply = ReplyId(self.queue.number());
        self.askers.insert(reply, Asker::Person);
        self.tell_coordinator(coordinator::Input::Request {
            reply,
            sender: ServerId::NONE,
            question,
        });
        self.answers.pop().expect("an answer at once")
    }

    pub fn all_joined(&self) -> bool {
        let count = self.servers.len();
        let mut members = self.servers.iter().map(|s| s.node.member().members());
        members.all(|members| members.up().count() == count)
    }

    /// Creates the table of the tests, on so many servers.
    pub fn create_table(&mut self, servers: u32) -> CoordinatorAnswer {
        self.admin(Admin::CreateTable {
            name: "t".to_owned(),
            servers,
            level: None,
        })
    }

    /// All join, and one serves a table. Returns its number.
    pub fn begin(&mut self) -> usize {
        assert!(self.run(20_000_000, Net::all_joined), "not all joined");
        self.create_table(1);
        assert!(self.run(20_000_000, |net| net.owner().is_some()));
        self.owner().unwrap()
    }

    pub fn owner(&self) -> Option<usize> {
        let serves = |server: &Server| server.view.route(TABLE, RouteHash(1)) == Route::Serve;
        self.servers.iter().position(serves)
    }

    pub fn owner_of(&self, key: &[u8]) -> usize {
        let hash = KeyHasher::new(1).route(key);
        let serves = |s: &Server| s.is_alive && s.view.route(TABLE, hash) == Route::Serve;
        self.servers
            .iter()
            .position(serves)
            .expect("somebody serves it")
    }

    pub fn serves_some(&self, n: usize) -> bool {
        let view = &self.servers[n].view;
        let mut hashes = (0..64).map(|n| RouteHash(n << 58 | 77));
        self.servers[n].is_alive && hashes.any(|hash| view.route(TABLE, hash) == Route::Serve)
    }

    pub fn reads(&self, n: usize) -> bool {
        self.servers[n].node.read_until().may_read(self.now_us)
    }

    /// Writes a key; returns whether it was acknowledged in time.
    pub fn write(&mut self, n: usize, key: &[u8], value: &[u8]) -> bool {
        let store = self.servers[n].store.clone().unwrap();
        let mut session = store.engine().session().unwrap();
        let mut guard = session.pin();
        let hash = guard.hash(key);
        guard.write(TABLE, hash, key, value, None).unwrap();
        let position = guard.order().take_position();
        drop(guard);
        drop(session);
        self.let_work(n);
        let log = store.log().unwrap();
        self.run(30_000_000, |_| log.reached(&position) >= Level::Synced)
    }

    /// The data that a recovery finds of a log without the disks of `gone`: by the control log's
    /// list.
    pub fn recover(&self, log: ServerId, gone: &[usize]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let present: Vec<&Backup> = (self.servers.iter().enumerate())
            .filter(|(n, _)| !gone.contains(n))
            .map(|(_, server)| &*server.backup)
            .collect();
        let read = |segment: SegmentId, fits: &dyn Fn(&ReplicaInfo) -> bool| {
            let of = |backup: &&Backup| {
                let infos = backup.replicas_of(log.number()).into_iter();
                infos
                    .filter(|i| i.segment == segment && fits(i))
                    .max_by_key(|i| i.length)
            };
            let holders = present.iter().filter_map(|b| Some((of(b)?.length, *b)));
            let (length, backup) = holders.max_by_key(|(length, _)| *length)?;
            let mut bytes = vec![0; length as usize];
            let id = ReplicaId {
                log: log.number(),
                segment,
            };
            backup.read_of(id, &mut bytes).unwrap();
            Some(bytes)
        };
        let noted = self.noted.get(&log).copied().unwrap_or_default();
        let control = (present.iter())
            .flat_map(|backup| backup.replicas_of(log.number()))
            .filter(|i| i.kind == Kind::Control && i.segment >= noted && i.length > 0)
            .max_by_key(|info| (info.segment, info.length))
            .expect("a control segment");
        assert!(!control.closed, "the newest control segment is open");
        let bytes = read(control.segment, &|_| true).unwrap();
        let state = State::replay(control.segment, &bytes).unwrap();
        let mut newest: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> = BTreeMap::new();
        for (segment, listed) in &state.segments {
            let bytes = read(*segment, &|info| match listed.closed {
                Some(certificate) => info.certificate() == certificate,
                None => info.closed || info.epoch >= listed.epoch,
            });
            let bytes = bytes.unwrap_or_else(|| panic!("segment {segment} is listed and missing"));
            let mut rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
            while !rest.is_empty() {
                let entry = entry::parse(rest).unwrap();
                let known = newest.entry(entry.key.to_vec()).or_default();
                if entry.version >= known.0 {
                    let value = (entry.kind == EntryKind::Object).then(|| entry.value.to_vec());
                    *known = (entry.version, value);
                }
                rest = &rest[entry.padded_bytes..];
            }
        }
        let objects = newest.into_iter();
        objects
            .filter_map(|(key, (_, value))| Some((key, value?)))
            .collect()
    }
}

/// A directory where syncs are cheap, if there is one.
fn directory() -> tempfile::TempDir {
    let fast = std::path::Path::new("/dev/shm");
    match tempfile::tempdir_in(fast) {
        Ok(dir) => dir,
        Err(_) => tempfile::tempdir().unwrap(),
    }
}

fn empty_backup(n: usize, dir: &tempfile::TempDir) -> Arc<Backup> {
    let geometry = Geometry {
        segment_bytes: settings().segment_bytes,
        wal_bytes: 16 << 20,
        frames: 128,
    };
    let identity = Identity {
        cluster: "test".to_owned(),
        server: n as u64 + 1,
        hash_seed: 1,
    };
    let disk = Arc::new(OsDisk::new(dir.path(), Mode::Buffered));
    let options = duramen_backup::Options::default();
    Arc::new(Backup::create(disk, &options, &geometry, &identity).unwrap())
}

/// A process that starts at `now_us`. `last`: its disk, the number of the disk's earlier starts,
/// and the last user.
fn server(
    n: usize,
    seed: u64,
    backup: Arc<Backup>,
    last: (usize, u64, Option<ServerId>),
    now_us: u64,
) -> Server {
    let (disk, life, stored) = (last.0, last.1 + 1, last.2);
    let segment_bytes = settings().segment_bytes;
    let mut store = duramen::Options::memory(MEMORY);
    store.level = Level::Synced;
    store.engine.heads = 1;
    store.engine.huge_pages = false;
    let woken = Arc::new(AtomicBool::new(false));
    let bell = woken.clone();
    let options = NodeOptions {
        room_us: 0,
        candidate: Candidate {
            enlist: Enlist {
                nonce: life << 8 | (disk as u64 + 1),
                replaces: stored,
                segment_bytes,
                ..duramen_harness::enlist(disk as u64 + 1, n.to_string())
            },
            coordinators: vec!["coordinator:1".to_owned()],
            seed,
        },
        store,
        backup: Some(backup.clone()),
        ahead_bytes: 8 << 20,
        threads: false,
        wake: Arc::new(move || bell.store(true, Ordering::SeqCst)),
    };
    Server {
        node: Node::new(now_us, options),
        backup,
        store: None,
        keeper: None,
        clients: None,
        view: Arc::new(View::default()),
        woken,
        is_alive: true,
        ended: None,
        disk,
        life,
        stored,
        paused_us: 0,
    }
}
