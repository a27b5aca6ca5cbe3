//! Random histories: writes and reads continue while servers are killed at any output, restarted on
//! their disks, paused and cut off, all at once too, and coordinators change. Acknowledged data,
//! and data that a read showed, never disappear; a key has one owner at a time; in the end all is
//! served, every segment has its replicas, and nothing else is left on the disks.
//!
//! `DURAMEN_NODE_SEED` and `DURAMEN_NODE_RUNS` choose other histories.

use crate::node::net::{Net, TABLE, settings};
use duramen::internals::Position;
use duramen_backup::ReplicaInfo;
use duramen_base::ids::{Level, RouteHash, SegmentId, ServerId};
use duramen_cluster::control::State;
use duramen_format::hash::KeyHasher;
use duramen_format::segment::Kind;
use duramen_node::Route;
use duramen_wire::native::message::{Admin, ClusterSettings, ServerStatus};
use std::collections::{BTreeMap, BTreeSet};

const SERVERS: usize = 5;
const KEYS: u64 = 24;
const MS: u64 = 1_000;

/// The values that a read of a key may show: the last promised one, and later attempts.
#[derive(Default)]
struct Known {
    /// Acknowledged, or read: nothing older may be read again.
    floor: u64,
    tried: u64,
}

struct Pending {
    server: usize,
    life: u64,
    position: Position,
    key: u64,
    number: u64,
}

struct History {
    net: Net,
    seed: u64,
    known: Vec<Known>,
    pending: Vec<Pending>,
    acknowledged: u64,
    read: u64,
    restarts: u64,
}

fn name(key: u64) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn value(number: u64, length: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + length, b'x');
    value
}

impl History {
    fn new(seed: u64) -> History {
        let replicas = 2 + (seed % 2) as u32;
        let settings = ClusterSettings {
            replicas,
            partition_bytes: if seed.is_multiple_of(3) {
                20_000
            } else {
                1 << 30
            },
            ..settings()
        };
        let mut net = Net::with(seed, SERVERS, settings);
        net.lost_percent = net.random.below(8);
        assert!(
            net.run(60_000 * MS, Net::all_joined),
            "seed {seed}: not all joined"
        );
        net.create_table(1 + (seed % 4) as u32);
        History {
            net,
            seed,
            known: (0..KEYS).map(|_| Known::default()).collect(),
            pending: Vec::new(),
            acknowledged: 0,
            read: 0,
            restarts: 0,
        }
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.net.random.below(sides)
    }

    /// Lets time pass, with checks all the time.
    fn pass(&mut self, for_us: u64) {
        let until_us = self.net.now_us + for_us;
        while self.net.now_us < until_us {
            let step_us = (until_us - self.net.now_us).min(5 * MS);
            self.net.run(step_us, |_| false);
            self.look();
            self.revive();
        }
    }

    fn at_work(&self, n: usize) -> bool {
        let server = &self.net.servers[n];
        server.is_alive && server.ended.is_none() && server.paused_us <= self.net.now_us
    }

    /// The servers that would answer a request for this key.
    fn servants(&self, hash: RouteHash) -> Vec<usize> {
        let serves = |n: &usize| {
            let view = &self.net.servers[*n].view;
            self.at_work(*n) && view.route(TABLE, hash) == Route::Serve
        };
        (0..SERVERS).filter(serves).collect()
    }

    fn look(&mut self) {
        for n in 0..16u64 {
            let hash = RouteHash(n << 60 | 77);
            let answer = |n: &usize| self.net.reads(*n);
            let owners: Vec<usize> = self.servants(hash).into_iter().filter(answer).collect();
            let (seed, now_us) = (self.seed, self.net.now_us);
            assert!(
                owners.len() < 2,
                "seed {seed} at {now_us}: {owners:?} serve {hash}"
            );
        }
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|one| {
            let server = &self.net.servers[one.server];
            let is_over = !server.is_alive || server.ended.is_some() || server.life != one.life;
            let Some(store) = server.store.as_ref().filter(|_| !is_over) else {
                return false; // the outcome is unknown
            };
            let is_durable = store.log().unwrap().reached(&one.position) >= Level::Synced;
            let leaves = is_durable && self.at_work(one.server) && self.net.reads(one.server);
            if leaves {
                let known = &mut self.known[one.key as usize];
                known.floor = known.floor.max(one.number);
                self.acknowledged += 1;
            }
            !leaves
        });
        self.pending = pending;
    }

    /// A server whose life has ended begins another one.
    fn revive(&mut self) {
        for n in 0..SERVERS {
            if self.net.servers[n].is_alive && self.net.servers[n].ended.is_some() {
                self.net.kill(n);
                self.net.start(n);
                self.restarts += 1;
            }
        }
    }

    fn write(&mut self) {
        let key = self.below(KEYS);
        let length = match self.below(10) {
            0 => 30_000,
            _ => self.below(500) as usize,
        };
        let bytes = name(key);
        let servants = self.servants(KeyHasher::new(1).route(&bytes));
        let Some(server) = servants.first().copied() else {
            return;
        };
        let store = self.net.servers[server].store.clone().unwrap();
        let known = &mut self.known[key as usize];
        known.tried += 1;
        let number = known.tried;
        let mut session = store.engine().session().unwrap();
        let mut guard = session.pin();
        let hash = guard.hash(&bytes);
        let written = guard.write(TABLE, hash, &bytes, &value(number, length), None);
        let position = guard.order().take_position();
        drop(guard);
        drop(session);
        if written.is_ok() {
            self.pending.push(Pending {
                server,
                life: self.net.servers[server].life,
                position,
                key,
                number,
            });
        }
        drop(store);
        self.net.let_work(server);
    }

    fn read(&mut self) {
        let key = self.below(KEYS);
        let bytes = name(key);
        for server in self.servants(KeyHasher::new(1).route(&bytes)) {
            let store = self.net.servers[server].store.clone().unwrap();
            let mut session = store.engine().session().unwrap();
            let guard = session.pin();
            let hash = guard.hash(&bytes);
            let object = guard.read(TABLE, hash, &bytes);
            let number = match object {
                Ok(Some(object)) => u64::from_le_bytes(object.value[..8].try_into().unwrap()),
                Ok(None) => 0,
                Err(_) => continue,
            };
            let position = guard.order().take_position();
            drop(guard);
            let is_durable = store.log().unwrap().reached(&position) >= Level::Synced;
            if is_durable && self.net.reads(server) {
                self.seen(key, number);
            }
        }
    }

    fn seen(&mut self, key: u64, number: u64) {
        let (seed, now_us) = (self.seed, self.net.now_us);
        let known = &mut self.known[key as usize];
        assert!(
            (known.floor..=known.tried).contains(&number),
            "seed {seed} at {now_us}: key {key} is {number}, and was {}",
            known.floor
        );
        known.floor = number;
        self.read += 1;
    }

    fn disturb(&mut self) {
        let n = self.below(SERVERS as u64) as usize;
        match self.below(12) {
            0..=2 => self.net.kill(n),
            3 => {
                let after = 1 + self.below(60);
                self.net.killed_after = Some((n, after));
            }
            4 => {
                let others = (0..SERVERS).filter(|other| *other != n);
                self.net
                    .cut(n, others.chain([crate::node::net::COORDINATOR]));
            }
            5 => {
                let to = self.below(SERVERS as u64 + 1) as usize;
                let to = if to == SERVERS {
                    crate::node::net::COORDINATOR
                } else {
                    to
                };
                self.net.cut.insert((n, to)); // one way
            }
            6 | 7 => self.net.cut.clear(),
            8 => {
                self.net.servers[n].paused_us = self.net.now_us + self.net.random.below(3_000 * MS)
            }
            9 => self.net.change_leader(),
            10 if self.below(4) == 0 => (0..SERVERS).for_each(|n| self.net.kill(n)),
            _ => {}
        }
    }

    fn start_some(&mut self, percent: u64) {
        for n in 0..SERVERS {
            if !self.net.servers[n].is_alive && self.below(100) < percent {
                self.net.start(n);
                self.restarts += 1;
            }
        }
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.below(20) {
                0..=8 => self.write(),
                9..=16 => self.read(),
                17 => self.disturb(),
                18 => self.start_some(40),
                _ => {}
            }
            let for_us = match self.below(20) {
                0 => self.below(3_000 * MS),
                1..=5 => self.below(100 * MS),
                _ => self.below(5 * MS),
            };
            self.pass(for_us);
        }
    }

    /// All servers come back: nothing is missing, and nothing is left over.
    fn end(&mut self) {
        let seed = self.seed;
        self.net.killed_after = None;
        self.net.cut.clear();
        for server in &mut self.net.servers {
            server.paused_us = 0;
        }
        self.start_some(100);
        let hashes: Vec<RouteHash> = (0..KEYS)
            .map(|key| KeyHasher::new(1).route(&name(key)))
            .collect();
        let until_us = self.net.now_us + 120_000 * MS;
        let all = |this: &History| {
            let is_served = |hash: &RouteHash| {
                let servants = this.servants(*hash);
                servants.len() == 1 && this.net.reads(servants[0])
            };
            hashes.iter().all(is_served)
        };
        while !all(self) {
            assert!(
                self.net.now_us < until_us,
                "seed {seed}: {}",
                self.describe()
            );
            self.pass(100 * MS);
        }
        for key in 0..KEYS {
            let bytes = name(key);
            let server = self.servants(hashes[key as usize])[0];
            let store = self.net.servers[server].store.clone().unwrap();
            let mut session = store.engine().session().unwrap();
            let guard = session.pin();
            let hash = guard.hash(&bytes);
            let object = guard.read(TABLE, hash, &bytes).unwrap();
            let number = object.map_or(0, |object| {
                u64::from_le_bytes(object.value[..8].try_into().unwrap())
            });
            drop(guard);
            self.seen(key, number);
        }
        let until_us = self.net.now_us + 300_000 * MS;
        while let Some(wrong) = self.wrong_replicas() {
            assert!(
                self.net.now_us < until_us,
                "seed {seed}: {wrong}\n{}",
                self.describe()
            );
            self.pass(1_000 * MS);
        }
    }

    fn describe(&mut self) -> String {
        let mut text = format!("{:#?}\n", self.net.admin(Admin::Status));
        for (n, server) in self.net.servers.iter().enumerate() {
            let id = server.node.member().id();
            let log = server.store.as_ref().map(|s| s.log().unwrap().describe());
            text += &format!(
                "server {n}: {id}, alive {}, ended {:?}, reads {}, {:?}: {}\n",
                server.is_alive,
                server.ended,
                self.net.reads(n),
                server.view.served(),
                log.unwrap_or_default()
            );
        }
        text
    }

    /// A violation at the end: a segment with too few replicas, or with too many, or of a log that
    /// is gone.
    fn wrong_replicas(&self) -> Option<String> {
        let replicas = self.net.settings.replicas as usize;
        let servers = &self.net.servers;
        let up: BTreeSet<ServerId> = (servers.iter().filter(|s| s.is_alive))
            .map(|server| server.node.member().id())
            .collect();
        for server in servers {
            let members = server.node.member().members();
            let crashed = members.iter().find(|e| e.status != ServerStatus::Up);
            if let Some(crashed) = crashed {
                return Some(format!("{} waits to be removed", crashed.server));
            }
        }
        let mut held: BTreeMap<(ServerId, SegmentId), Vec<(usize, ReplicaInfo)>> = BTreeMap::new();
        for (n, server) in servers.iter().enumerate() {
            for log in server.backup.logs() {
                let id = ServerId::from_number(log);
                if !up.contains(&id) {
                    return Some(format!("server {n} has replicas of {id}, which is gone"));
                }
                for replica in server.backup.replicas_of(log) {
                    held.entry((id, replica.segment))
                        .or_default()
                        .push((n, replica));
                }
            }
        }
        for id in up {
            let of = |(log, _): &&(ServerId, SegmentId)| *log == id;
            let control = held.iter().filter(|(key, _)| of(key)).rev();
            let mut control = control.filter(|(_, held)| held[0].1.kind == Kind::Control);
            let Some(((_, control), at)) = control.next() else {
                continue; // it has written nothing
            };
            let mut bytes = vec![0; at[0].1.length as usize];
            servers[at[0].0]
                .backup
                .read_of(at[0].1.id(), &mut bytes)
                .ok()?;
            let state = State::replay(*control, &bytes).ok()?;
            let mut wanted: BTreeSet<SegmentId> = state.segments.keys().copied().collect();
            wanted.insert(*control);
            for (key, held) in held.iter().filter(|(key, _)| of(key)) {
                if !wanted.contains(&key.1) {
                    return Some(format!("{id}: segment {} is on {held:?} in vain", key.1));
                }
            }
            for segment in wanted {
                let count = held.get(&(id, segment)).map_or(0, Vec::len);
                if count != replicas {
                    return Some(format!("{id}: segment {segment} has {count} replicas"));
                }
            }
        }
        None
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_histories_of_whole_nodes_end_well() {
    let first = number("DURAMEN_NODE_SEED").unwrap_or(1);
    let runs = number("DURAMEN_NODE_RUNS").unwrap_or(6);
    let (mut acknowledged, mut read, mut restarts) = (0, 0, 0);
    for seed in first..first + runs {
        let mut history = History::new(seed);
        history.run(600);
        history.end();
        acknowledged += history.acknowledged;
        read += history.read;
        restarts += history.restarts;
    }
    println!("{runs} histories: {acknowledged} acknowledged, {read} read, {restarts} restarts");
    assert!(
        acknowledged > 20 * runs,
        "{acknowledged} writes were acknowledged"
    );
    assert!(read > 20 * runs, "{read} reads were answered");
    assert!(restarts > runs, "{restarts} restarts");
}
