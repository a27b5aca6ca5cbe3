//! Three members, real stores and the real coordinator, over a network that loses, repeats and
//! reorders.

#[path = "common/coordinator.rs"]
mod common;
#[path = "common/settings.rs"]
mod settings;

use common::coordinator;
use duramen_base::ids::{RouteHash, ServerId, TableId};
use duramen_base::random::Random;
use duramen_cluster::coordinator::store::{Memory, MetaStore};
use duramen_cluster::coordinator::{self, CallId, Coordinator, ReplyId};
use duramen_engine::{Options, Store};
use duramen_node::{Candidate, Input, Member, Output, RequestId, Route, View};
use duramen_wire::native::message::{
    Addresses, Admin, AdminAnswer, CoordinatorAnswer, Enlist, FromCoordinator, Peer, PeerAnswer,
    Refusal, Roles, ServerAnswer, ToCoordinator,
};
use settings::settings;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A message in flight.
#[derive(Clone)]
enum Event {
    ToCoordinator(coordinator::Input),
    ToMember(usize, Input),
}

struct Node {
    member: Member,
    store: Arc<Store>,
    view: Arc<View>,
    is_alive: bool,
    ended: Option<String>,
}

/// The sender of a request that waits for the coordinator's answer.
#[derive(Clone, Copy)]
enum Asker {
    Member(usize, duramen_node::Token),
    Person,
}

struct Net {
    coordinator: Coordinator,
    meta: Memory,
    nodes: Vec<Node>,
    events: BTreeMap<(u64, u64), Event>,
    now_us: u64,
    wakes_at_us: u64,
    askers: BTreeMap<ReplyId, Asker>,
    calls: BTreeMap<RequestId, (usize, CallId)>,
    pings: BTreeMap<RequestId, usize>,
    answers: Vec<CoordinatorAnswer>,
    next: u64,
    random: Random,
    /// Percent of lost messages, without pings: a lost ping breaks a connection in practice, and is
    /// noticed.
    lost_percent: u64,
}

impl Net {
    fn new(seed: u64, count: usize) -> Net {
        let (meta, coordinator, outputs) = coordinator(seed, settings());
        let nodes = (0..count).map(|n| node(n, seed)).collect();
        let mut net = Net {
            coordinator,
            meta,
            nodes,
            events: BTreeMap::new(),
            now_us: 0,
            wakes_at_us: u64::MAX,
            askers: BTreeMap::new(),
            calls: BTreeMap::new(),
            pings: BTreeMap::new(),
            answers: Vec::new(),
            next: 0,
            random: Random::new(seed),
            lost_percent: 10,
        };
        net.coordinated(outputs);
        net
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends a message with a delay of up to 20 ms, so in any order; perhaps lost, perhaps twice.
    fn send(&mut self, event: Event, is_ping: bool) {
        if !is_ping && self.random.below(100) < self.lost_percent {
            return;
        }
        let copies = if !is_ping && self.random.below(10) == 0 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let limit_us = if is_ping { 2_000 } else { 20_000 };
            let at_us = self.now_us + 100 + self.random.below(limit_us);
            let number = self.number();
            self.events.insert((at_us, number), event.clone());
        }
    }

    fn tell_coordinator(&mut self, input: coordinator::Input) {
        let outputs = self.coordinator.handle(self.now_us, input);
        self.coordinated(outputs);
    }

    /// Handles outputs in order, also those that follow from a commit: the last `WakeAt` counts.
    fn coordinated(&mut self, outputs: Vec<coordinator::Output>) {
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                coordinator::Output::Answer { reply, answer } => match self.askers[&reply] {
                    Asker::Person => self.answers.push(answer),
                    Asker::Member(n, token) => {
                        self.send(Event::ToMember(n, Input::Answered { token, answer }), false);
                    }
                },
                coordinator::Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => {
                    let n: usize = address.parse().unwrap();
                    let request = RequestId(self.number());
                    self.calls.insert(request, (n, call));
                    let is_ping = matches!(question, FromCoordinator::Ping { .. });
                    let sender = ServerId::coordinator(1);
                    let told = Input::Told {
                        request,
                        sender,
                        target: to,
                        question,
                    };
                    self.send(Event::ToMember(n, told), is_ping);
                }
                coordinator::Output::Persist { token, batch } => {
                    self.meta.commit(&batch).unwrap();
                    let persisted = coordinator::Input::Persisted { token };
                    outputs.extend(self.coordinator.handle(self.now_us, persisted));
                }
                coordinator::Output::WakeAt { at_us } => self.wakes_at_us = at_us,
                coordinator::Output::Unfit { .. } => {}
            }
        }
    }

    fn tell_member(&mut self, n: usize, input: Input) {
        if !self.nodes[n].is_alive {
            return;
        }
        let mut out = Vec::new();
        self.nodes[n].member.handle(self.now_us, input, &mut out);
        for output in out {
            self.done_by(n, output);
        }
    }

    fn done_by(&mut self, n: usize, output: Output) {
        let me = self.nodes[n].member.id();
        match output {
            Output::AskCoordinator {
                token, question, ..
            } => {
                let reply = ReplyId(self.number());
                self.askers.insert(reply, Asker::Member(n, token));
                let sender = me;
                let asked = coordinator::Input::Asked {
                    reply,
                    sender,
                    question,
                };
                self.send_once(asked);
            }
            Output::Ask {
                to,
                address,
                question,
            } => {
                let Peer::Ping { nonce } = question else {
                    panic!("{question:?}");
                };
                let request = RequestId(self.number());
                self.pings.insert(request, n);
                let other: usize = address.parse().unwrap();
                let ping = Input::Pinged {
                    request,
                    target: to,
                    nonce,
                };
                self.send(Event::ToMember(other, ping), true);
            }
            Output::Answer { request, answer } => {
                let (_, call) = self.calls[&request];
                let is_ping = matches!(answer, ServerAnswer::Pong { .. });
                let payload = Vec::new();
                let answered = coordinator::Input::Answered {
                    call,
                    answer,
                    payload,
                };
                self.send(Event::ToCoordinator(answered), is_ping);
            }
            Output::AnswerPeer { request, answer } => {
                let PeerAnswer::Pong {
                    nonce,
                    list_version,
                    ..
                } = answer
                else {
                    panic!("{answer:?}");
                };
                let asker = self.pings[&request];
                self.send(
                    Event::ToMember(
                        asker,
                        Input::Ponged {
                            nonce,
                            list_version,
                        },
                    ),
                    true,
                );
            }
            Output::StoreId { server } => {
                let number = self.number();
                let stored = Event::ToMember(n, Input::IdStored { server });
                self.events.insert((self.now_us + 5_000, number), stored);
            }
            Output::View(view) => self.nodes[n].view = view,
            Output::Obey(order) => {
                let clients = duramen_node::Clients::new(std::sync::Arc::new(|| {}));
                order.run(&self.nodes[n].store, &clients).unwrap();
                let number = self.number();
                let version = order.version;
                let obeyed = Event::ToMember(n, Input::Obeyed { version });
                self.events.insert((self.now_us + 3_000, number), obeyed);
            }
            Output::Purge(purge) => {
                let clients = duramen_node::Clients::new(std::sync::Arc::new(|| {}));
                let purging = purge.begin(&self.nodes[n].store, &clients);
                while purging.slice().unwrap() {}
                let number = self.number();
                let at_us = self.now_us + 3_000 + self.random.below(20_000);
                let purged = Event::ToMember(n, Input::Purged);
                self.events.insert((at_us, number), purged);
            }
            Output::Ended { reason, .. } => self.nodes[n].ended = Some(reason),
            Output::Delegate { .. }
            | Output::Joined { .. }
            | Output::Members(_)
            | Output::Settings(_) => {}
        }
    }

    /// A request has a reply id: the driver would answer a repeated frame once.
    fn send_once(&mut self, asked: coordinator::Input) {
        if self.random.below(100) >= self.lost_percent {
            let at_us = self.now_us + 100 + self.random.below(20_000);
            let number = self.number();
            self.events
                .insert((at_us, number), Event::ToCoordinator(asked));
        }
    }

    /// Runs until `is_done`; returns whether that came in time. At each moment nothing is served
    /// twice.
    fn run(&mut self, until_us: u64, is_done: impl Fn(&Net) -> bool) -> bool {
        loop {
            self.check();
            if is_done(self) {
                return true;
            }
            let event = self
                .events
                .first_key_value()
                .map_or(u64::MAX, |(at, _)| at.0);
            let due = |node: &Node| {
                if node.is_alive {
                    node.member.due_us()
                } else {
                    u64::MAX
                }
            };
            let (n, due_us) = (self.nodes.iter().map(due).enumerate())
                .min_by_key(|(_, at_us)| *at_us)
                .unwrap();
            let at_us = event.min(due_us).min(self.wakes_at_us);
            if at_us > until_us {
                self.now_us = until_us;
                return false;
            }
            self.now_us = self.now_us.max(at_us);
            if at_us == event {
                match self.events.pop_first().unwrap().1 {
                    Event::ToCoordinator(input) => self.tell_coordinator(input),
                    Event::ToMember(n, input) => self.tell_member(n, input),
                }
            } else if at_us == due_us {
                self.tell_member(n, Input::Tick);
            } else {
                self.wakes_at_us = u64::MAX;
                self.tell_coordinator(coordinator::Input::Tick);
            }
        }
    }

    fn served_by(&self, table: TableId, hash: RouteHash) -> Vec<usize> {
        let alive = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_alive);
        let serves = |n: &usize| self.nodes[*n].view.route(table, hash) == Route::Serve;
        alive.filter(serves).collect()
    }

    fn check(&self) {
        for hash in hashes() {
            let servers = self.served_by(TableId(1), hash);
            assert!(
                servers.len() <= 1,
                "at {}: {hash} by {servers:?}",
                self.now_us
            );
        }
    }

    fn all_joined(&self) -> bool {
        let count = self.nodes.len();
        self.nodes
            .iter()
            .all(|node| node.member.members().up().count() == count)
    }

    fn admin(&mut self, admin: Admin) -> CoordinatorAnswer {
        let reply = ReplyId(self.number());
        self.askers.insert(reply, Asker::Person);
        let question = ToCoordinator::Admin(admin);
        let sender = ServerId::NONE;
        self.tell_coordinator(coordinator::Input::Asked {
            reply,
            sender,
            question,
        });
        self.answers.pop().expect("an answer at once")
    }
}

fn hashes() -> impl Iterator<Item = RouteHash> {
    (0..64).map(|n| RouteHash(n << 58 | 77))
}

fn candidate(n: usize, seed: u64) -> Candidate {
    Candidate {
        enlist: Enlist {
            nonce: n as u64 + 1,
            cluster: "test".to_owned(),
            addresses: Addresses {
                native: n.to_string(),
                resp: None,
                admin: None,
            },
            rack: None,
            roles: Roles {
                master: true,
                backup: true,
            },
            replaces: None,
            disk: n as u64 + 1,
            read_bytes_per_s: 0,
            segment_bytes: settings().segment_bytes,
        },
        coordinators: vec!["coordinator:1".to_owned()],
        seed,
    }
}

fn node(n: usize, seed: u64) -> Node {
    let mut options = Options::new(64 << 20);
    options.hash_seed = Some(1);
    options.heads = 1;
    options.cleaners = 0;
    Node {
        member: Member::new(0, candidate(n, seed)),
        store: Store::new(options).unwrap(),
        view: Arc::new(View::default()),
        is_alive: true,
        ended: None,
    }
}

#[test]
fn three_members_join_own_each_tablet_once_and_notice_who_is_gone() {
    let mut crash_us = Vec::new();
    for seed in 1..=8 {
        let mut net = Net::new(seed, 3);
        assert!(
            net.run(20_000_000, Net::all_joined),
            "seed {seed}: not all joined"
        );
        let create = Admin::CreateTable {
            name: "t".to_owned(),
            servers: 3,
            level: None,
        };
        let answer = net.admin(create);
        assert!(
            matches!(answer, CoordinatorAnswer::Admin(AdminAnswer::Table(_))),
            "{answer:?}"
        );
        let table = TableId(1);
        let until_us = net.now_us + 20_000_000;
        let knows = |net: &Net, n: usize| {
            let route = |hash| net.nodes[n].view.route(table, hash);
            hashes().all(|hash| matches!(route(hash), Route::Serve | Route::Moved(_)))
        };
        let all = |net: &Net| {
            hashes().all(|hash| net.served_by(table, hash).len() == 1)
                && (0..3).all(|n| knows(net, n))
        };
        assert!(
            net.run(until_us, all),
            "seed {seed}: not everything is served"
        );
        let owners: BTreeSet<usize> = hashes()
            .flat_map(|hash| net.served_by(table, hash))
            .collect();
        assert_eq!(owners.len(), 3, "each has a third");
        for node in &net.nodes {
            assert_eq!(node.store.table_id("t"), Some(table));
            assert_eq!(node.ended, None);
        }
        // One goes silent. No server serves its tablets: its log is not recovered yet.
        let dead = net.nodes[2].member.id();
        net.nodes[2].is_alive = false;
        net.lost_percent = 0;
        let died_us = net.now_us;
        let noticed = |net: &Net| (0..2).all(|n| !net.nodes[n].member.members().is_up(dead));
        assert!(
            net.run(died_us + 5_000_000, noticed),
            "seed {seed}: nobody noticed"
        );
        crash_us.push(net.now_us - died_us);
        net.run(net.now_us + 2_000_000, |_| false);
        for hash in hashes() {
            assert!(net.served_by(table, hash).iter().all(|n| *n < 2));
        }
        assert!(
            net.nodes[..2].iter().all(|node| node.ended.is_none()),
            "nobody else is accused"
        );
    }
    // Each member pings a random other one, so a silent one may be left out a few times.
    let mean_us = crash_us.iter().sum::<u64>() / crash_us.len() as u64;
    let is_soon = |took_us: &u64| *took_us <= 1_000_000;
    assert!(
        mean_us <= 500_000 && crash_us.iter().all(is_soon),
        "silence is noticed too late: {crash_us:?}"
    );
}

/// All members stop and come back at each other's addresses, as machines do when addresses are
/// assigned anew. Each of them answered, while it enlisted, the check of the life that had been at
/// its new address. So the coordinator took that life to be alive, and refused the process with its
/// data for good.
#[test]
fn members_that_come_back_at_each_others_addresses_are_members_again() {
    for seed in 1..=8 {
        let mut net = Net::new(seed, 3);
        assert!(net.run(20_000_000, Net::all_joined), "seed {seed}");
        let ids: Vec<ServerId> = net.nodes.iter().map(|node| node.member.id()).collect();
        let now_us = net.now_us + 1_000;
        net.now_us = now_us;
        net.events.clear();
        for (n, other) in [(0, 1), (1, 2), (2, 0)] {
            let mut next = candidate(n, seed);
            next.enlist.nonce = 100 + other;
            next.enlist.disk = other + 1;
            next.enlist.replaces = Some(ids[other as usize]);
            net.nodes[n].member = Member::new(now_us, next);
        }
        let until_us = now_us + 10_000_000;
        let ended = |net: &Net| net.nodes.iter().any(|node| node.ended.is_some());
        let is_done = |net: &Net| ended(net) || net.all_joined();
        assert!(net.run(until_us, is_done), "seed {seed}: not all joined");
        for node in &net.nodes {
            assert_eq!(node.ended, None, "seed {seed}");
            assert_eq!(node.member.id().generation, 2, "seed {seed}");
        }
    }
}

#[test]
fn who_is_called_crashed_serves_nothing_more() {
    let mut net = Net::new(3, 3);
    assert!(net.run(20_000_000, Net::all_joined));
    net.admin(Admin::CreateTable {
        name: "t".to_owned(),
        servers: 3,
        level: None,
    });
    let all = |net: &Net| hashes().all(|hash| net.served_by(TableId(1), hash).len() == 1);
    assert!(net.run(net.now_us + 20_000_000, all));
    let server = net.nodes[1].member.id();
    net.admin(Admin::CrashServer { server });
    let ended = |net: &Net| net.nodes[1].ended.is_some();
    // It gets no message about it: it learns it from the answer to its report.
    assert!(net.run(net.now_us + 5_000_000, ended));
    assert!(hashes().all(|hash| net.nodes[1].view.route(TableId(1), hash) == Route::ClusterDown));
}

#[test]
fn what_is_not_listed_any_more_is_gone_before_anything_else_is_served() {
    let mut net = Net::new(5, 1);
    assert!(net.run(20_000_000, Net::all_joined));
    net.admin(Admin::CreateTable {
        name: "t".to_owned(),
        servers: 1,
        level: None,
    });
    let table = TableId(1);
    let all = |net: &Net| hashes().all(|hash| net.served_by(table, hash).len() == 1);
    assert!(net.run(net.now_us + 20_000_000, all));
    let store = net.nodes[0].store.clone();
    let mut session = store.session().unwrap();
    for n in 0..100u32 {
        let key = n.to_le_bytes();
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        guard.write(table, hash, &key, b"value", None).unwrap();
    }
    assert_eq!(store.objects(table), 100);
    net.admin(Admin::DropTable {
        name: "t".to_owned(),
    });
    // The name is refused until the member has confirmed a list without the table.
    let create = |net: &mut Net| {
        net.admin(Admin::CreateTable {
            name: "t".to_owned(),
            servers: 1,
            level: None,
        })
    };
    let refused = |answer| matches!(answer, CoordinatorAnswer::Refused(Refusal::NotReady { .. }));
    assert!(refused(create(&mut net)));
    let end_us = net.now_us + 20_000_000;
    while refused(create(&mut net)) {
        assert!(net.now_us < end_us, "the name never becomes free");
        net.run(net.now_us + 10_000, |_| false);
    }
    let serves = |net: &Net| hashes().all(|hash| net.served_by(TableId(2), hash).len() == 1);
    assert!(net.run(net.now_us + 20_000_000, serves));
    assert_eq!(store.table_id("t"), Some(TableId(2)));
    assert_eq!(store.objects(TableId(2)), 0);
    assert!(net.served_by(table, RouteHash(1)).is_empty());
}
