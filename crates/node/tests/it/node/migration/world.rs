//! Clients of a cluster in which tablets move: their requests, the allowed answers, and the data
//! that must exist at the end.

use crate::node::net::{Net, Server, TABLE, settings};
use duramen::Store;
use duramen::internals::Position;
use duramen_base::ids::{KeyRange, Level, RouteHash, ServerId, TableId};
use duramen_base::random::Random;
use duramen_format::hash::KeyHasher;
use duramen_node::Route;
use duramen_wire::native::message::{Admin, AdminAnswer, CoordinatorAnswer, MigrationStatus};
use std::cell::Cell;
use std::sync::Arc;

/// Time until the whole cluster is at rest, in microseconds.
pub const REST_US: u64 = 30_000_000;

/// A change of a key, by number; `None`: removed.
type Change = Option<Vec<u8>>;

/// A key, as its only writer has it.
#[derive(Default)]
struct Key {
    /// Sent changes, in order. The first is the key's absence at the start.
    changes: Vec<Change>,
    /// The newest acknowledged or shown state is this change or a later one.
    floor: usize,
    /// The version of the newest acknowledged change.
    version: u64,
    waiting: Option<Waits>,
}

/// Executed, and not durable.
struct Waits {
    server: usize,
    store: Arc<Store>,
    position: Position,
    operation: Operation,
}

enum Operation {
    /// This change, of this version.
    Write(usize, u64),
    /// A read of this value; it must not be older than the floor at the time of the request.
    Read(Change, usize),
}

pub struct World {
    pub net: Net,
    keys: Vec<Key>,
    hasher: KeyHasher,
    random: Random,
    /// Approximate size of a value.
    pub value_bytes: u64,
    /// The first broken promise, if the test collects them.
    pub wrong: Option<String>,
    pub acknowledged: usize,
}

impl World {
    pub fn new(seed: u64, servers: usize, keys: usize) -> World {
        let mut net = Net::with(seed, servers, settings());
        net.begin();
        World {
            net,
            keys: (0..keys).map(|_| Key::new()).collect(),
            hasher: KeyHasher::new(1),
            random: Random::new(seed ^ 0x5eed),
            value_bytes: 20_000,
            wrong: None,
            acknowledged: 0,
        }
    }

    fn name(n: usize) -> Vec<u8> {
        format!("key {n}").into_bytes()
    }

    fn route_of(&self, n: usize) -> RouteHash {
        self.hasher.route(&World::name(n))
    }

    /// The living servers that would serve this hash.
    pub fn servers_of(&self, hash: RouteHash) -> Vec<usize> {
        let serves = |s: &Server| {
            s.is_alive && s.ended.is_none() && s.view.route(TABLE, hash) == Route::Serve
        };
        let servers = self.net.servers.iter().enumerate();
        servers.filter(|(_, s)| serves(s)).map(|(n, _)| n).collect()
    }

    pub fn id(&self, n: usize) -> ServerId {
        self.net.servers[n].node.member().id()
    }

    pub fn serves(&self, n: usize) -> bool {
        self.servers_of(RouteHash(1)).contains(&n)
    }

    /// Fills a server's memory with data that it owns.
    pub fn crowd(&mut self, n: usize) {
        let store = self.net.servers[n].store.clone().unwrap();
        let value = vec![7; 500_000];
        for number in 0..130 {
            let mut session = store.engine().session().unwrap();
            let mut guard = session.pin();
            let key = format!("crowd {number}").into_bytes();
            let hash = guard.hash(&key);
            if guard
                .write(TableId::DEFAULT, hash, &key, &value, None)
                .is_err()
            {
                break;
            }
            drop(guard);
            drop(session);
            self.net.let_work(n);
            self.net.run(100_000, |_| false);
        }
    }

    /// Writes or removes a key, and waits until that is acknowledged.
    pub fn set(&mut self, n: usize, is_there: bool) {
        for _ in 0..10_000 {
            self.settle(n);
            if self.keys[n].waiting.is_none() {
                break;
            }
            self.net.run(1_000, |_| false);
        }
        let number = self.keys[n].changes.len();
        let kind = if is_there { 9 } else { 4 };
        for _ in 0..10_000 {
            self.act(n, kind);
            self.net.run(1_000, |_| false);
            self.settle(n);
            if self.keys[n].floor >= number {
                return;
            }
        }
        self.accuse(format!("key {n} is not to be set"));
    }

    pub fn accuse(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// A client operates on a key, if it is not waiting.
    fn operate(&mut self, n: usize) {
        let kind = self.random.below(10);
        self.act(n, kind);
    }

    /// `kind`: below 4 a read, 4 a removal, else a write.
    pub fn act(&mut self, n: usize, kind: u64) {
        self.settle(n);
        let servers = self.servers_of(self.route_of(n));
        if self.keys[n].waiting.is_some() || servers.is_empty() {
            return;
        }
        let server = servers[self.random.below(servers.len() as u64) as usize];
        let store = self.net.servers[server].store.clone().expect("it serves");
        let name = World::name(n);
        let mut session = store.engine().session().unwrap();
        let mut guard = session.pin();
        let hash = guard.hash(&name);
        let key = &mut self.keys[n];
        let operation = if kind < 4 {
            let found = guard.read(TABLE, hash, &name);
            let found = found.map(|found| found.map(|object| object.value.to_vec()));
            match found {
                Ok(found) => Operation::Read(found, key.floor),
                Err(_) => return,
            }
        } else {
            let number = key.changes.len();
            let change = (kind > 4).then(|| {
                let bytes = 8 + self.random.below(self.value_bytes) as usize;
                let mut value = vec![b'a' + (number % 26) as u8; bytes];
                value[..8].copy_from_slice(&(number as u64).to_le_bytes());
                value
            });
            let done = match &change {
                Some(value) => guard.write(TABLE, hash, &name, value, None),
                None => guard.remove(TABLE, hash, &name),
            };
            let Ok(done) = done else {
                return; // nothing was done
            };
            key.changes.push(change);
            Operation::Write(number, done.after.unwrap_or(0))
        };
        let position = guard.order().take_position();
        drop(guard);
        drop(session);
        key.waiting = Some(Waits {
            server,
            store,
            position,
            operation,
        });
        self.net.let_work(server);
    }

    /// Checks whether the answer has left, or never will.
    fn settle(&mut self, n: usize) {
        let Some(waits) = self.keys[n].waiting.take() else {
            return;
        };
        let server = &self.net.servers[waits.server];
        let is_same = server
            .store
            .as_ref()
            .is_some_and(|store| Arc::ptr_eq(store, &waits.store));
        if !server.is_alive || server.ended.is_some() || !is_same {
            return; // the outcome is unknown
        }
        let log = waits.store.log().unwrap();
        if log.reached(&waits.position) < Level::Synced || !self.net.reads(waits.server) {
            self.keys[n].waiting = Some(waits);
            return;
        }
        self.acknowledged += 1;
        let from = waits.server;
        match waits.operation {
            Operation::Write(number, version) => {
                let key = &mut self.keys[n];
                let before = key.version;
                key.floor = key.floor.max(number);
                if version != 0 {
                    key.version = version;
                    if version <= before {
                        self.accuse(format!("key {n}: version {version} after {before}"));
                    }
                }
            }
            Operation::Read(found, floor) => {
                let changes = &self.keys[n].changes;
                let is_it = |at: &usize| changes[*at] == found;
                match (floor..changes.len()).find(is_it) {
                    Some(at) => {
                        let key = &mut self.keys[n];
                        key.floor = key.floor.max(at);
                    }
                    None => self.accuse(format!(
                        "key {n}: server {from} shows {}, older than change {floor}",
                        found.map_or("nothing".to_owned(), |value| describe(&value))
                    )),
                }
            }
        }
    }

    /// Clients work for some time.
    pub fn work(&mut self, operations: usize) {
        for _ in 0..operations {
            let n = self.random.below(self.keys.len() as u64) as usize;
            self.operate(n);
            let for_us = self.random.below(3_000);
            self.net.run(for_us, |_| false);
        }
    }

    /// Clients work until `is_so`, at most for `for_us`; returns whether it became true.
    pub fn work_until(&mut self, for_us: u64, is_so: impl Fn(&Net) -> bool) -> bool {
        let until_us = self.net.now_us + for_us;
        while self.net.now_us < until_us {
            let n = self.random.below(self.keys.len() as u64) as usize;
            self.operate(n);
            let for_us = self.random.below(3_000);
            if self.net.run(for_us, &is_so) {
                return true;
            }
        }
        false
    }

    /// As `work_until`, but stops after so many events; returns whether `is_so` was true before,
    /// and the number of events.
    pub fn work_for_events(
        &mut self,
        events: usize,
        is_so: impl Fn(&Net) -> bool,
    ) -> (bool, usize) {
        let count = Cell::new(0);
        let so = Cell::new(false);
        let stop = |net: &Net| {
            count.set(count.get() + 1);
            so.set(is_so(net));
            so.get() || count.get() > events
        };
        self.work_until(60_000_000, stop);
        (so.get(), count.get())
    }

    /// Writes all keys, so that there is data to move.
    pub fn fill(&mut self) {
        for n in 0..self.keys.len() {
            for _ in 0..200 {
                self.operate(n);
                self.net.run(1_000, |_| false);
                if self.keys[n].floor > 0 {
                    break;
                }
            }
        }
    }

    pub fn migrate(&mut self, range: KeyRange, to: usize) -> CoordinatorAnswer {
        let to = self.id(to);
        let table = TABLE;
        self.net.admin(Admin::Migrate { table, range, to })
    }

    /// Begins a migration that must be accepted.
    pub fn move_to(&mut self, to: usize) {
        let answer = self.migrate(KeyRange::ALL, to);
        let CoordinatorAnswer::Admin(AdminAnswer::Migrating(begun)) = answer else {
            panic!("{answer:?}");
        };
        assert!(!begun.is_empty());
    }

    /// The last migrations that ended.
    pub fn ended(&self) -> Vec<MigrationStatus> {
        self.net.leader.coordinator.status().migrations_ended
    }

    /// Ends all faults and waits until the cluster is at rest; then each key is on one server, in
    /// its acknowledged state or a later one.
    pub fn check(&mut self) {
        self.net.cut.clear();
        self.net.do_pings_pass = false;
        self.net.loses_ends = false;
        self.net.lost_percent = 0;
        let hashes: Vec<RouteHash> = (0..self.keys.len()).map(|n| self.route_of(n)).collect();
        let until_us = self.net.now_us + REST_US;
        let is_at_rest = |world: &World| {
            let status = world.net.leader.coordinator.status();
            // A server that was cut off may have a view that serves until it is told that it is no
            // member: the coordinator's state counts.
            let quiet = status.migrations.is_empty();
            let is_served = status.tablets.iter().all(|tablet| tablet.served);
            quiet && is_served && hashes.iter().all(|hash| world.servers_of(*hash).len() == 1)
        };
        while !is_at_rest(self) {
            if self.net.now_us > until_us {
                let status = self.net.leader.coordinator.status();
                let (recoveries, migrations) = (&status.recoveries, &status.migrations);
                let logs: Vec<String> = self
                    .net
                    .servers
                    .iter()
                    .map(|server| {
                        let store = server.store.as_ref().unwrap();
                        format!(
                            "{} {}: {}",
                            server.is_alive,
                            server.node.member().id(),
                            store.log().unwrap().describe()
                        )
                    })
                    .collect();
                let tablets = &status.tablets;
                return self.accuse(format!(
                    "never at rest: {recoveries:#?} {migrations:#?} {tablets:?} {logs:#?}"
                ));
            }
            self.net.run(50_000, |_| false);
        }
        self.net.run(1_000_000, |_| false);
        for n in 0..self.keys.len() {
            self.settle(n);
            let found = self.look(n);
            let key = &self.keys[n];
            if !key.changes[key.floor..].contains(&found) {
                let floor = key.floor;
                let found = found.map_or("nothing".to_owned(), |value| describe(&value));
                self.accuse(format!(
                    "key {n}: {found} is there, not change {floor} or later"
                ));
            }
        }
        // And they can be written, at a higher version.
        for n in 0..3 {
            self.set(n, true);
        }
    }

    fn look(&mut self, n: usize) -> Change {
        let server = self.servers_of(self.route_of(n))[0];
        let store = self.net.servers[server].store.clone().unwrap();
        let mut session = store.engine().session().unwrap();
        let guard = session.pin();
        let name = World::name(n);
        let hash = guard.hash(&name);
        let found = guard.read(TABLE, hash, &name).unwrap();
        found.map(|object| object.value.to_vec())
    }

    pub fn kill(&mut self, n: usize) {
        self.net.servers[n].is_alive = false;
    }

    pub fn expect_right(&self, of: &str) {
        assert_eq!(self.wrong, None, "{of}");
    }
}

impl Key {
    fn new() -> Key {
        Key {
            changes: vec![None],
            ..Key::default()
        }
    }
}

fn describe(value: &[u8]) -> String {
    let number = value
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes));
    format!("change {number:?}")
}
