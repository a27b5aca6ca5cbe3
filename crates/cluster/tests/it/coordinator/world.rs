//! Random histories of whole clusters, from a seed: servers that crash, lose the network and come
//! back, a coordinator that ends after any of its outputs, messages that are lost, late and
//! repeated.
//!
//! Servers are models: a log is a list of entries on other servers, each written at once or not at
//! all. Models handle the coordinator's messages as real servers must ([`life`]). The oracle: a
//! read shows the last acknowledged value, or a later one that may have been acknowledged; two
//! servers never serve the same key at the same time; in the end everything is served and nothing
//! is left over.

use crate::coordinator::life::{Key, Life, Server, Value};
use duramen_base::ids::{KeyRange, RouteHash, ServerId, TableId};
use duramen_base::random::Random;
use duramen_cluster::coordinator::store::Memory;
use duramen_cluster::coordinator::{CallId, Config, Input, Output, ReplyId, Sign};
use duramen_harness::{Leader, Queue};
use duramen_wire::native::message::{
    Admin, CoordinatorAnswer, FromCoordinator, ServerAnswer, ServerStatus, ToCoordinator,
};
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

enum Event {
    /// A request of the coordinator arrives.
    Request {
        term: u32,
        call: CallId,
        to: ServerId,
        /// The server at that address.
        at: Option<usize>,
        question: FromCoordinator,
    },
    /// Its answer, or the end of the connection.
    Answered {
        term: u32,
        call: CallId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    },
    /// A request to the coordinator arrives.
    Question {
        reply: ReplyId,
        sender: ServerId,
        question: ToCoordinator,
    },
    /// Its answer.
    Reply {
        reply: ReplyId,
        answer: CoordinatorAnswer,
    },
    TakeOver,
    /// Each server does its due work.
    Turn,
    /// A fault begins, or ends.
    Trouble,
}

/// A simulated cluster; see the module.
pub struct World {
    pub random: Random,
    pub now_us: u64,
    pub servers: Vec<Server>,
    queue: Queue<Event>,
    store: Memory,
    leader: Option<Leader>,
    replies: BTreeMap<ReplyId, (usize, u64)>,
    next_reply: u64,
    is_calm: bool,
    /// The values that a read may show: the last acknowledged one, and later ones with unknown
    /// outcome.
    allowed: BTreeMap<Key, BTreeSet<Value>>,
    next_value: Value,
    keys: Vec<Key>,
    pub failovers: u64,
    pub crashes: u64,
}

pub const TABLE: TableId = TableId::DEFAULT;
pub const REPLICAS: usize = 2;

impl World {
    pub fn new(seed: u64, servers: usize) -> World {
        let mut random = Random::new(seed);
        let keys: Vec<Key> = (0..40)
            .map(|_| (TABLE, RouteHash(random.next_u64())))
            .collect();
        let mut world = World {
            servers: (0..servers).map(|n| Server::new(n as u64 + 1)).collect(),
            random,
            now_us: 0,
            queue: Queue::default(),
            store: Memory::new("nobody"),
            leader: None,
            replies: BTreeMap::new(),
            next_reply: 0,
            is_calm: true,
            allowed: keys.iter().map(|key| (*key, BTreeSet::from([0]))).collect(),
            next_value: 1,
            keys,
            failovers: 0,
            crashes: 0,
        };
        for index in 0..servers {
            world.boot(index);
        }
        world.at(0, Event::TakeOver);
        world.at(0, Event::Turn);
        world
    }

    fn at(&mut self, after_us: u64, event: Event) {
        self.queue.push(self.now_us + after_us, event);
    }

    fn boot(&mut self, index: usize) {
        let nonce = self.random.next_u64();
        let seed = self.random.next_u64();
        self.servers[index].life = Some(Life::new(nonce, seed, self.now_us));
    }

    /// The living server with this id.
    pub fn index_of(&self, id: ServerId) -> Option<usize> {
        self.servers
            .iter()
            .position(|server| server.id() == Some(id))
    }

    /// Whether two servers reach each other now.
    pub fn reach(&self, one: usize, other: usize) -> bool {
        self.servers[other].life.is_some() && !self.servers[one].cut && !self.servers[other].cut
    }

    /// Runs for this time.
    pub fn run(&mut self, for_us: u64) {
        let until_us = self.now_us + for_us;
        loop {
            let wakes_at_us = self.leader.as_ref().map_or(u64::MAX, |l| l.wakes_at_us);
            let event_us = self.queue.next_us();
            let next_us = event_us.min(wakes_at_us);
            if next_us > until_us {
                break;
            }
            self.now_us = self.now_us.max(next_us);
            if next_us < event_us {
                self.tell_leader(None, Input::Tick);
            } else if let Some((_, event)) = self.queue.pop() {
                self.happen(event);
            }
        }
        self.now_us = until_us;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request {
                term,
                call,
                to,
                at,
                question,
            } => self.deliver(term, call, (to, at), question),
            Event::Answered { term, call, answer } => {
                let input = match answer {
                    Some((answer, payload)) => Input::Answered {
                        call,
                        answer,
                        payload,
                    },
                    None => Input::Unanswered {
                        call,
                        sign: Sign::Dead,
                    },
                };
                self.tell_leader(Some(term), input);
            }
            Event::Question {
                reply,
                sender,
                question,
            } => {
                let input = Input::Request {
                    reply,
                    sender,
                    question,
                };
                self.tell_leader(None, input);
            }
            Event::Reply { reply, answer } => {
                if let Some((index, nonce)) = self.replies.remove(&reply) {
                    self.replied(index, nonce, reply, answer);
                }
            }
            Event::TakeOver => self.take_over(),
            Event::Turn => self.turn(),
            Event::Trouble => self.trouble(),
        }
    }

    fn take_over(&mut self) {
        if self.leader.is_some() {
            return;
        }
        self.failovers += 1;
        let config = Config {
            seed: self.random.next_u64(),
            ..duramen_harness::config()
        };
        let (leader, outputs) = Leader::new(self.now_us, &self.store, config);
        self.leader = Some(leader);
        self.execute(outputs);
    }

    fn tell_leader(&mut self, term: Option<u32>, input: Input) {
        let now_us = self.now_us;
        let Some(leader) = self.leader.as_mut() else {
            return;
        };
        if term.is_some_and(|term| term != leader.term) {
            return; // for another process
        }
        let outputs = leader.handle(now_us, input);
        self.execute(outputs);
    }

    /// Carries out the leader's outputs; it may have died after them.
    fn execute(&mut self, outputs: Vec<Output>) {
        let leader = self.leader.as_ref().expect("these are its outputs");
        let (term, is_dead) = (leader.term, leader.is_dead);
        for output in outputs {
            match output {
                Output::Answer { reply, answer } => {
                    if let Some(delay_us) = self.delay() {
                        self.at(delay_us, Event::Reply { reply, answer });
                    }
                }
                Output::Ask {
                    call,
                    to,
                    address,
                    question,
                } => self.send(term, call, to, (&address, question)),
                _ => {}
            }
        }
        if is_dead {
            self.leader = None;
            self.at(300 * MS, Event::TakeOver);
        }
    }

    /// The delay of a message; none if it is lost.
    fn delay(&mut self) -> Option<u64> {
        if !self.is_calm && self.random.one_in(40) {
            return None;
        }
        let slow = !self.is_calm && self.random.one_in(50);
        Some(100 + self.random.below(if slow { 300 * MS } else { 2 * MS }))
    }

    fn send(
        &mut self,
        term: u32,
        call: CallId,
        to: ServerId,
        (address, question): (&str, FromCoordinator),
    ) {
        let at = |disk: u64| format!("server-{disk}:1") == address;
        let at = self.servers.iter().position(|server| at(server.disk));
        let copies = if !self.is_calm && self.random.one_in(30) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if let Some(delay_us) = self.delay() {
                let question = question.clone();
                self.at(
                    delay_us,
                    Event::Request {
                        term,
                        call,
                        to,
                        at,
                        question,
                    },
                );
            }
        }
    }

    fn deliver(
        &mut self,
        term: u32,
        call: CallId,
        (to, at): (ServerId, Option<usize>),
        question: FromCoordinator,
    ) {
        let is_enlisting = |index: &usize| {
            let server = &self.servers[*index];
            let is_ping = matches!(question, FromCoordinator::Ping { .. });
            is_ping && server.life.is_some() && server.id().is_none()
        };
        let to = self.index_of(to).or_else(|| at.filter(is_enlisting));
        let answer = match to {
            Some(index) if self.servers[index].cut => return,
            Some(index) => match self.obey(index, term, question) {
                Some(answer) => Some(answer),
                None => return,
            },
            None => None, // no server with that id is there
        };
        if let Some(delay_us) = self.delay() {
            self.at(delay_us, Event::Answered { term, call, answer });
        }
    }

    /// A server sends a request to the coordinator.
    pub fn question(&mut self, index: usize, question: ToCoordinator) -> ReplyId {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        let sender = self.servers[index].id().unwrap_or(ServerId::NONE);
        let nonce = self.servers[index]
            .life
            .as_ref()
            .map_or(0, |life| life.nonce);
        self.replies.insert(reply, (index, nonce));
        if !self.servers[index].cut
            && let Some(delay_us) = self.delay()
        {
            self.at(
                delay_us,
                Event::Question {
                    reply,
                    sender,
                    question,
                },
            );
        }
        reply
    }

    /// An operator's command; its answer is ignored.
    pub fn admin(&mut self, admin: Admin) {
        self.next_reply += 1;
        let reply = ReplyId(self.next_reply);
        let question = ToCoordinator::Admin(admin);
        let input = Input::Request {
            reply,
            sender: ServerId::NONE,
            question,
        };
        self.tell_leader(None, input);
    }

    fn turn(&mut self) {
        for index in 0..self.servers.len() {
            self.act(index);
        }
        for _ in 0..4 {
            self.write_some();
        }
        self.check_reads();
        self.at(20 * MS, Event::Turn);
    }

    fn some_key(&mut self) -> Key {
        let at = self.random.below(self.keys.len() as u64);
        self.keys[at as usize]
    }

    fn write_some(&mut self) {
        let key = self.some_key();
        for index in 0..self.servers.len() {
            if self.serves(index, key) {
                let value = self.next_value;
                self.next_value += 1;
                let may = self.allowed.get_mut(&key).expect("all keys are known");
                may.insert(value); // from here on a read may show it
                if self.write(index, key, value) {
                    self.allowed.insert(key, BTreeSet::from([value]));
                }
            }
        }
    }

    fn check_reads(&mut self) {
        for key in self.keys.clone() {
            let serving: Vec<usize> = (0..self.servers.len())
                .filter(|index| self.serves(*index, key))
                .collect();
            if serving.len() > 1 {
                let both: Vec<String> = serving
                    .iter()
                    .map(|index| self.servers[*index].describe(&[&key]))
                    .collect();
                panic!(
                    "{key:?} is served twice at {}: {both:#?}\n{}",
                    self.now_us,
                    self.describe()
                );
            }
            if let Some(index) = serving.first() {
                let shown = self.servers[*index].shows(key);
                let may = &self.allowed[&key];
                assert!(
                    may.contains(&shown),
                    "{key:?} shows {shown}, may be {may:?}"
                );
                self.allowed.insert(key, BTreeSet::from([shown]));
            }
        }
    }

    /// Begins a fault, and schedules the next one.
    fn trouble(&mut self) {
        if self.is_calm {
            return;
        }
        let index = self.random.below(self.servers.len() as u64) as usize;
        match self.random.below(10) {
            0..=2 => self.kill(index),
            3..=5 => {
                if self.servers[index].life.is_none() {
                    self.boot(index);
                }
            }
            6 => self.servers[index].cut = !self.servers[index].cut,
            7 => {
                let outputs = self.random.below(60);
                if let Some(leader) = &mut self.leader {
                    leader.dies_after = Some(outputs);
                }
            }
            8 => self.wish(),
            _ => self.servers[index].has_space = !self.servers[index].has_space,
        }
        let after_us = 50 * MS + self.random.below(700 * MS);
        self.at(after_us, Event::Trouble);
    }

    fn kill(&mut self, index: usize) {
        // At most as many servers may be down at once as a log has replicas to spare.
        let gone = self
            .servers
            .iter()
            .filter(|s| s.life.is_none() || s.cut)
            .count();
        if self.servers[index].life.take().is_some() {
            self.crashes += 1;
            if gone + 1 >= REPLICAS {
                // With more down, nothing is lost, but nothing is served until they come back.
                let other = self.random.below(self.servers.len() as u64) as usize;
                if self.servers[other].life.is_none() {
                    self.boot(other);
                }
            }
        }
    }

    fn wish(&mut self) {
        let up: Vec<ServerId> = self.servers.iter().filter_map(Server::id).collect();
        let Some(to) = up.get(self.random.below(up.len() as u64) as usize).copied() else {
            return;
        };
        let first = RouteHash(self.random.next_u64());
        let last = RouteHash(first.0.saturating_add(self.random.next_u64() >> 2));
        match self.random.below(5) {
            0 => self.admin(Admin::Split {
                table: TABLE,
                at: first,
            }),
            1 => self.admin(Admin::Drain { server: to }),
            2 => self.admin(Admin::Undrain { server: to }),
            _ => {
                let range = KeyRange::new(first, last);
                self.admin(Admin::Migrate {
                    table: TABLE,
                    range,
                    to,
                });
            }
        }
    }

    /// A quiet beginning, a time of faults, and a quiet end in which the cluster must become well.
    pub fn history(seed: u64) -> World {
        let mut world = World::new(seed, 5);
        world.run(2 * SECOND);
        let servers = 4;
        let name = "default".to_owned();
        world.admin(Admin::CreateTable {
            name,
            servers,
            level: None,
        });
        world.run(SECOND);
        world.is_calm = false;
        world.at(0, Event::Trouble);
        world.run(20 * SECOND);
        world.is_calm = true;
        if let Some(leader) = &mut world.leader {
            leader.dies_after = None;
        }
        for index in 0..world.servers.len() {
            world.servers[index].cut = false;
            world.servers[index].has_space = true;
            if world.servers[index].life.is_none() {
                world.boot(index);
            }
        }
        world.settle(seed);
        world
    }

    fn settle(&mut self, seed: u64) {
        for _ in 0..120 {
            self.run(SECOND);
            if self.is_settled() {
                return;
            }
        }
        panic!("seed {seed}: it does not settle: {}", self.describe());
    }

    fn describe(&self) -> String {
        let Some(leader) = &self.leader else {
            return "nobody leads".to_owned();
        };
        let status = leader.coordinator.status();
        let unserved: Vec<&Key> = self
            .keys
            .iter()
            .filter(|key| !(0..self.servers.len()).any(|index| self.serves(index, **key)))
            .collect();
        let old = status.recoveries.iter().filter(|r| r.elapsed_ms > 20_000);
        let old: Vec<_> = old.collect();
        let members: Vec<_> = status
            .servers
            .iter()
            .map(|s| (s.server, s.status))
            .collect();
        let states: Vec<String> = self.servers.iter().map(|s| s.describe(&unserved)).collect();
        let migrations = status.migrations;
        format!("{members:?}\n{old:#?}\n{migrations:?}\n{unserved:?}\n{states:#?}")
    }

    /// Whether all servers are UP, every key is served, and no backup keeps replicas of dead
    /// servers.
    fn is_settled(&self) -> bool {
        let Some(leader) = &self.leader else {
            return false;
        };
        let status = leader.coordinator.status();
        let all_up = status.servers.iter().all(|s| s.status == ServerStatus::Up);
        let served = self
            .keys
            .iter()
            .all(|key| (0..self.servers.len()).any(|index| self.serves(index, *key)));
        let logs: BTreeSet<ServerId> = status.servers.iter().map(|s| s.server).collect();
        let tidy = self
            .servers
            .iter()
            .all(|s| s.shelf.keys().all(|log| logs.contains(log)));
        all_up && status.servers.len() == self.servers.len() && served && tidy
    }
}

#[test]
fn random_histories_end_well() {
    let count = std::env::var("DURAMEN_HISTORIES").ok();
    let count = count.and_then(|text| text.parse().ok()).unwrap_or(200);
    let mut sum = (0, 0);
    for seed in 0..count {
        println!("seed {seed}");
        let world = World::history(seed);
        sum = (sum.0 + world.failovers, sum.1 + world.crashes);
    }
    assert!(
        sum.0 > count && sum.1 > count,
        "too little happened: {sum:?}"
    );
}

#[test]
fn a_seed_repeats_itself() {
    let trace = |seed| {
        let mut world = World::history(seed);
        (
            world.now_us,
            world.queue.number(),
            world.random.next_u64(),
            world.next_value,
        )
    };
    assert_eq!(trace(7), trace(7));
}
