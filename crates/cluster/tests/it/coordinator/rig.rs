//! One coordinator, its store, and servers that a test plays itself.

use duramen_base::ids::{
    ListVersion, MapVersion, RouteHash, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_cluster::coordinator::store::{Memory, MetaStore};
use duramen_cluster::coordinator::{
    CallId, Config, Coordinator, Input, OpenError, Output, ReplyId, Sign,
};
use duramen_format::certificate::Certificate;
use duramen_format::control::Record;
use duramen_format::segment::{Header, Kind};
use duramen_harness::{Leader, config, settings};
use duramen_wire::native::message::{
    Admin, AdminAnswer, ClusterSettings, CoordinatorAnswer, Enlist, FromCoordinator, ReplicaEntry,
    Replicas, ServerAnswer, ServerEntry, ServerStatus, Status, Tablets, ToCoordinator,
};
use std::collections::{BTreeMap, VecDeque};

/// A request of the coordinator that a test has not answered.
#[derive(Clone, Debug)]
pub struct PendingCall {
    pub call: CallId,
    pub to: ServerId,
    pub address: String,
    pub question: FromCoordinator,
}

/// A coordinator and its store; see the module.
pub struct Rig {
    pub leader: Leader,
    pub now_us: u64,
    pub answers: BTreeMap<ReplyId, CoordinatorAnswer>,
    pub asked: VecDeque<PendingCall>,
    /// It has reported that it may not judge, and perhaps that it resigns.
    pub unfit: Option<bool>,
    pub reopened: Vec<String>,
    next_reply: u64,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::of(config())
    }

    pub fn with_settings(settings: ClusterSettings) -> Rig {
        Rig::of(Config {
            settings,
            ..config()
        })
    }

    pub fn of(config: Config) -> Rig {
        let (leader, outputs) = Leader::new(0, &Memory::new("one"), config);
        let mut rig = Rig {
            leader,
            now_us: 0,
            answers: BTreeMap::new(),
            asked: VecDeque::new(),
            unfit: None,
            reopened: Vec::new(),
            next_reply: 0,
        };
        rig.take(outputs);
        rig
    }

    /// The leader dies; another one takes over from the store.
    pub fn fail_over(&mut self) {
        let config = Config {
            seed: u64::from(self.leader.term) + 1,
            ..config()
        };
        let (leader, outputs) = Leader::new(self.now_us, &self.leader.store, config);
        self.leader = leader;
        self.asked.clear();
        self.take(outputs);
    }

    pub fn reopen_as(&mut self, cluster: &str) -> Option<OpenError> {
        let contents = self.leader.store.load().unwrap();
        let config = Config {
            cluster: cluster.to_owned(),
            ..config()
        };
        Coordinator::open(self.now_us, &contents, config).err()
    }

    pub fn status(&self) -> Status {
        self.leader.coordinator.status()
    }

    pub fn handle(&mut self, input: Input) {
        let outputs = self.leader.handle(self.now_us, input);
        self.take(outputs);
    }

    fn take(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Answer { reply, answer } => {
                    assert_eq!(self.answers.insert(reply, answer), None, "answered twice");
                }
                Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => self.asked.push_back(PendingCall {
                    call,
                    to,
                    address,
                    question,
                }),
                Output::Unfit { resigns, .. } => self.unfit = Some(resigns),
                Output::Reopen { address } => self.reopened.push(address),
                _ => {}
            }
        }
    }

    /// Stores the batches that wait, and those that follow from them.
    pub fn store_all(&mut self) {
        while let Some((token, batch)) = self.leader.waiting.pop_front() {
            self.leader.store.commit(&batch).expect("it leads");
            self.handle(Input::Persisted { token });
        }
    }

    /// Lets time pass, with the wake-ups that the coordinator requests.
    pub fn pass(&mut self, more_us: u64) {
        let until_us = self.now_us + more_us;
        while self.leader.wakes_at_us <= until_us {
            self.now_us = self.now_us.max(self.leader.wakes_at_us);
            self.handle(Input::Tick);
        }
        self.now_us = until_us;
    }

    /// Lets time pass among good servers.
    pub fn live(&mut self, more_us: u64) {
        let until_us = self.now_us + more_us;
        while self.now_us < until_us {
            self.be_good();
            self.pass(10_000);
        }
        self.be_good();
    }

    /// The same; these servers ask for the map each second, as members do.
    pub fn live_asking(&mut self, more_us: u64, asking: &[ServerId]) {
        let until_us = self.now_us + more_us;
        while self.now_us < until_us {
            for server in asking {
                let since = MapVersion(0);
                self.begin(*server, ToCoordinator::MapChanges { since });
            }
            self.live((until_us - self.now_us).min(1_000_000));
        }
    }

    /// Sends a request, and returns its answer if there is one at once. A server that enlists
    /// answers the coordinator's ping.
    pub fn ask(&mut self, sender: ServerId, question: ToCoordinator) -> Option<CoordinatorAnswer> {
        let nonce = match &question {
            ToCoordinator::Enlist(enlist) => Some(enlist.nonce),
            _ => None,
        };
        let reply = self.begin(sender, question);
        if let Some(nonce) = nonce {
            for ping in self.pings_of(nonce) {
                self.pong(&ping);
            }
        }
        self.answers.get(&reply).cloned()
    }

    /// Takes the pings to a server that enlists with this nonce.
    pub fn pings_of(&mut self, nonce: u64) -> Vec<PendingCall> {
        self.asked_where(|asked| asked.question == FromCoordinator::Ping { nonce })
    }

    pub fn pong(&mut self, ping: &PendingCall) {
        let FromCoordinator::Ping { nonce } = ping.question else {
            panic!("no ping: {ping:?}");
        };
        let list_version = ListVersion(0);
        self.reply(
            ping,
            ServerAnswer::Pong {
                nonce,
                list_version,
            },
        );
    }

    /// Sends a request.
    pub fn begin(&mut self, sender: ServerId, question: ToCoordinator) -> ReplyId {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        self.handle(Input::Request {
            reply,
            sender,
            question,
        });
        reply
    }

    pub fn admin(&mut self, admin: Admin) -> CoordinatorAnswer {
        self.ask(ServerId::NONE, ToCoordinator::Admin(admin))
            .expect("an answer at once")
    }

    /// A table of equal tablets, spread over as many of the servers as is possible evenly.
    pub fn create_table(&mut self, name: &str, tablets: u32) -> TableId {
        let entries = self.leader.coordinator.overview().status.servers;
        let is_master = |entry: &&ServerEntry| {
            entry.status == ServerStatus::Up && entry.roles.master && !entry.draining
        };
        let up = entries.iter().filter(is_master).count() as u32;
        let fits = |servers: &u32| tablets.is_multiple_of(*servers);
        let servers = (1..=up.min(tablets)).rev().find(fits).unwrap_or(tablets);
        let admin = Admin::CreateTable {
            name: name.to_owned(),
            servers,
            level: None,
        };
        let table = match self.admin(admin) {
            CoordinatorAnswer::Admin(AdminAnswer::Table(table)) => table.table,
            other => panic!("{other:?}"),
        };
        if servers < tablets {
            let stores = std::mem::replace(&mut self.leader.stores, false);
            for n in 1..tablets {
                let at = RouteHash::first_of_slot(((n << 14) / tablets) as u16);
                let split = ToCoordinator::Admin(Admin::Split { table, at });
                self.begin(ServerId::NONE, split);
            }
            self.store_all();
            self.leader.stores = stores;
        }
        table
    }

    /// A new server with disk and nonce of that number.
    pub fn enlist(&mut self, number: u64, replaces: Option<ServerId>) -> ServerId {
        self.enlist_as(number, number, replaces)
    }

    /// Enlists a server and notes its first control segment, so that there is a log to be found.
    pub fn enlist_as(&mut self, disk: u64, nonce: u64, replaces: Option<ServerId>) -> ServerId {
        let server = self.enlist_without_log(disk, nonce, replaces);
        let min_open = SegmentId(1);
        let noted = self.ask(server, ToCoordinator::ControlHead { server, min_open });
        assert_eq!(noted, Some(CoordinatorAnswer::Noted));
        server
    }

    /// Enlists a server without a noted control segment.
    pub fn enlist_without_log(
        &mut self,
        disk: u64,
        nonce: u64,
        replaces: Option<ServerId>,
    ) -> ServerId {
        match self.ask(ServerId::NONE, enlist(disk, nonce, replaces)) {
            Some(CoordinatorAnswer::Enlisted(enlisted)) => enlisted.server,
            other => panic!("{other:?}"),
        }
    }

    pub fn enlist_some(&mut self, count: u64) -> Vec<ServerId> {
        (1..=count).map(|n| self.enlist(n, None)).collect()
    }

    pub fn crash(&mut self, server: ServerId) {
        self.admin(Admin::CrashServer { server });
    }

    /// This request will not be answered.
    pub fn sign(&mut self, asked: &PendingCall, sign: Sign) {
        let call = asked.call;
        self.handle(Input::Unanswered { call, sign });
    }

    /// Lets time pass among servers that answer, except those in `gone`: requests to them fail with
    /// this sign or silently.
    pub fn pass_without(&mut self, more_us: u64, gone: &[ServerId], sign: Option<Sign>) {
        let until_us = self.now_us + more_us;
        while self.now_us < until_us {
            self.let_down(gone, sign);
            self.pass(1_000);
        }
        self.let_down(gone, sign);
    }

    fn let_down(&mut self, gone: &[ServerId], sign: Option<Sign>) {
        loop {
            let lost = self.asked_where(|asked| gone.contains(&asked.to));
            if lost.is_empty() {
                break;
            }
            for asked in lost {
                if let Some(sign) = sign {
                    self.sign(&asked, sign);
                }
            }
        }
        self.be_good();
    }

    pub fn reply(&mut self, asked: &PendingCall, answer: ServerAnswer) {
        self.handle(Input::Answered {
            call: asked.call,
            answer,
            payload: Vec::new(),
        });
    }

    /// Takes the waiting requests of a kind.
    pub fn asked_where(&mut self, is: impl Fn(&PendingCall) -> bool) -> Vec<PendingCall> {
        let (found, rest) = self.asked.drain(..).partition(|asked| is(asked));
        self.asked = rest;
        Vec::from(found)
    }

    /// Confirms the waiting requests that tell a revision; returns who was sent which one.
    pub fn told_revisions(
        &mut self,
        revision_of: impl Fn(&FromCoordinator) -> Option<u64>,
    ) -> Vec<(ServerId, u64)> {
        let pushes = self.asked_where(|call| revision_of(&call.question).is_some());
        let mut told = Vec::new();
        for push in pushes {
            told.extend(revision_of(&push.question).map(|revision| (push.to, revision)));
            let answer = ServerAnswer::Confirmed {
                list_version: ListVersion(1),
                tablets_version: TabletsVersion(0),
            };
            self.reply(&push, answer);
        }
        told.sort_unstable();
        told
    }

    /// The layout of the store, which an older program reads first.
    pub fn layout(&mut self) -> u8 {
        self.leader.store.load().unwrap()[&b"m".to_vec()][0]
    }

    /// Answers pings, server lists and tablets as good servers do. Returns the tablets that each
    /// server was told, in order.
    pub fn be_good(&mut self) -> Vec<(ServerId, Tablets)> {
        let mut told = Vec::new();
        loop {
            let routine = self.asked_where(|asked| {
                matches!(
                    asked.question,
                    FromCoordinator::Ping { .. }
                        | FromCoordinator::Servers(_)
                        | FromCoordinator::Tablets(_)
                )
            });
            if routine.is_empty() {
                return told;
            }
            for asked in routine {
                let answer = match &asked.question {
                    FromCoordinator::Ping { nonce } => ServerAnswer::Pong {
                        nonce: *nonce,
                        list_version: ListVersion(0),
                    },
                    FromCoordinator::Servers(update) => ServerAnswer::Confirmed {
                        list_version: update.version(),
                        tablets_version: TabletsVersion(0),
                    },
                    FromCoordinator::Tablets(tablets) => {
                        told.push((asked.to, tablets.clone()));
                        ServerAnswer::Confirmed {
                            list_version: ListVersion(0),
                            tablets_version: tablets.version,
                        }
                    }
                    _ => continue,
                };
                self.reply(&asked, answer);
            }
        }
    }

    /// Answers every `StartRead` of a log with a server's shelf; servers without a shelf do not
    /// answer.
    pub fn show(&mut self, log: ServerId, shelves: &BTreeMap<ServerId, Shelf>) {
        let asked = self.asked_where(|asked| {
            matches!(asked.question, FromCoordinator::StartRead { log: of, .. } if of == log)
        });
        for asked in asked {
            let FromCoordinator::StartRead { recovery, .. } = asked.question else {
                continue;
            };
            let shelf = shelves.get(&asked.to).cloned().unwrap_or_default();
            let answer = ServerAnswer::Replicas(Box::new(Replicas {
                log,
                recovery,
                segments: shelf.segments,
                control: shelf.control.as_ref().map(|(id, _)| *id),
                lease_left_ms: shelf.lease_left_ms,
                inherited: shelf.inherited,
                damaged: shelf.damaged,
            }));
            self.handle(Input::Answered {
                call: asked.call,
                answer,
                payload: shelf.control.map(|(_, bytes)| bytes).unwrap_or_default(),
            });
        }
    }

    /// The waiting `Recover` orders.
    pub fn orders(&mut self) -> Vec<PendingCall> {
        self.asked_where(|asked| matches!(asked.question, FromCoordinator::Recover(_)))
    }
}

pub fn enlist(disk: u64, nonce: u64, replaces: Option<ServerId>) -> ToCoordinator {
    ToCoordinator::Enlist(Enlist {
        nonce,
        replaces,
        ..duramen_harness::enlist(disk, format!("server-{disk}:1"))
    })
}

/// A backup's replicas of a log.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    pub segments: Vec<ReplicaEntry>,
    pub control: Option<(SegmentId, Vec<u8>)>,
    pub lease_left_ms: u32,
    pub inherited: Vec<SegmentId>,
    pub damaged: Vec<ReplicaEntry>,
}

impl Shelf {
    /// An earlier process of the backup wrote all of it.
    pub fn inherited(mut self) -> Shelf {
        let open = self.segments.iter().filter(|entry| !entry.closed);
        self.inherited = open.map(|entry| entry.segment).collect();
        self
    }

    /// All data segments of it are damaged.
    pub fn damaged(mut self) -> Shelf {
        let is_data = |entry: &mut ReplicaEntry| entry.kind != Kind::Control;
        self.damaged = self.segments.extract_if(.., is_data).collect();
        self
    }

    /// Adds its newest control segment, with these records after the snapshot of an empty log.
    pub fn with_control(
        mut self,
        log: ServerId,
        id: u64,
        records: &[Record],
        closed: bool,
    ) -> Shelf {
        let header = Header {
            kind: Kind::Control,
            segment: SegmentId(id),
            log: log.number(),
            head: 0,
            capacity: settings().segment_bytes,
        };
        let mut bytes = header.encode().to_vec();
        let snapshot = Record::Snapshot {
            next_segment: SegmentId(1),
            safe_version: 77,
            records: 0,
        };
        snapshot.encode(&mut bytes);
        records.iter().for_each(|record| record.encode(&mut bytes));
        self.segments.push(ReplicaEntry {
            segment: SegmentId(id),
            kind: Kind::Control,
            epoch: 0,
            certificate: Certificate::of(&bytes),
            closed,
            primary: false,
        });
        self.control = Some((SegmentId(id), bytes));
        self
    }

    pub fn with(mut self, id: u64, epoch: u64, length: u32, closed: bool) -> Shelf {
        self.segments.push(ReplicaEntry {
            segment: SegmentId(id),
            kind: Kind::Head,
            epoch,
            certificate: Certificate {
                length,
                crc: length + id as u32,
            },
            closed,
            primary: false,
        });
        self
    }
}

/// Lists a segment of a head.
pub fn add_open(id: u64, epoch: u64) -> Record {
    Record::AddOpen {
        segment: SegmentId(id),
        epoch,
        head: 0,
        kind: Kind::Head,
    }
}

/// Closes it at this length, as [`Shelf::with`] does.
pub fn closed(id: u64, length: u32) -> Record {
    Record::Closed {
        segment: SegmentId(id),
        certificate: Certificate {
            length,
            crc: length + id as u32,
        },
    }
}
