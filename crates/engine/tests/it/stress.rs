//! All features at once in a store that is too small: random operations of several threads, with
//! growth and shrinking, transactions, exclusive sessions, tables that come and go, time that
//! passes, and memory that runs out.

use duramen_base::random::Random;
use duramen_engine::{Clock, Decision, Error, Mode, Options, Session, Store, TableId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;
/// Keys of the random operations.
const KEYS: u64 = 120_000;
/// Keys that are written again and again but never deleted: every scan must show them.
const STABLE: u64 = 2_000;
const STABLE_BASE: u64 = 1 << 40;
/// Pairs of keys that transactions keep equal.
const TWINS: u64 = 16;
const TWIN_BASE: u64 = 1 << 41;
/// Keys that come and go in hordes, so that the index grows and shrinks.
const HORDE: u64 = 60_000;
const HORDE_BASE: u64 = 1 << 42;
const RUNNING: Duration = Duration::from_secs(6);
/// Longest time that a slow machine may take to do enough work to be judged.
const PATIENCE: Duration = Duration::from_secs(300);

struct World {
    store: Arc<Store>,
    clock: Arc<AtomicU64>,
    stop: AtomicBool,
    mode: Mode,
    operations: AtomicU64,
    refused: AtomicU64,
    scans: AtomicU64,
}

impl World {
    fn new(mode: Mode) -> World {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let mut options = Options::new(64 * MIB);
        options.mode = mode;
        options.heads = 2; // fewer than threads
        options.cleaners = 2;
        options.clock = Clock::Manual(clock.clone());
        World {
            store: Store::new(options).unwrap(),
            clock,
            stop: AtomicBool::new(false),
            mode,
            operations: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            scans: AtomicU64::new(0),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A write that may lack memory. `Some`: it was done.
    fn done<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(value) => Some(value),
            Err(Error::OutOfMemory { .. }) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The key's number, then bytes that follow from it and from the length.
fn value_of(key: u64, bytes: u64) -> Vec<u8> {
    let mut value = key.to_le_bytes().to_vec();
    value.resize(8 + bytes as usize, key as u8 ^ bytes as u8);
    value
}

fn check(key: &[u8], value: &[u8]) {
    let (number, rest) = value.split_at(8);
    assert_eq!(number, key, "another key's value");
    let expected = key[0] ^ rest.len() as u8;
    assert!(rest.iter().all(|byte| *byte == expected), "a torn value");
}

/// Reads, writes, deletes, appends and expiries of random keys; versions only grow.
fn operate(world: &World, session: &mut Session, seed: u64) {
    let mut random = Random::new(seed);
    let mut versions = vec![0u64; KEYS as usize];
    while !world.stopped() {
        let mut guard = session.pin();
        for _ in 0..random.below(24) + 1 {
            let number = random.below(KEYS);
            let seen = &mut versions[number as usize];
            let key = number.to_le_bytes();
            let hash = guard.hash(&key);
            match random.below(10) {
                0..=2 => {
                    if let Some(object) = guard.read(TABLE, hash, &key).unwrap() {
                        check(&key, object.value);
                        assert!(object.version >= *seen, "versions only grow");
                        *seen = object.version;
                    }
                    continue;
                }
                3 => {
                    let outcome = guard.remove(TABLE, hash, &key).unwrap();
                    assert!(outcome.before.is_none_or(|version| version >= *seen));
                    continue;
                }
                4 => {
                    let outcome = guard.update(TABLE, hash, &key, |found, scratch| {
                        let length = found.map_or(8, |object| object.value.len() as u64) % 1500;
                        scratch.extend_from_slice(&value_of(number, length));
                        Decision::PutScratch {
                            expires_at_ms: None,
                        }
                    });
                    if let Some(after) = world.done(outcome).and_then(|outcome| outcome.after) {
                        assert!(after > *seen, "version {after} after {seen}");
                        *seen = after;
                    }
                }
                kind => {
                    let bytes = if random.below(200) == 0 {
                        100_000
                    } else {
                        random.below(1200)
                    };
                    let expires_at_ms =
                        (kind == 5).then(|| guard.now_ms() + 1 + random.below(2000));
                    let value = value_of(number, bytes);
                    let outcome = guard.write(TABLE, hash, &key, &value, expires_at_ms);
                    if let Some(after) = world.done(outcome).and_then(|outcome| outcome.after) {
                        assert!(after > *seen, "version {after} after {seen}");
                        *seen = after;
                    }
                }
            }
        }
    }
}

fn twin(pair: u64, which: u64) -> [u8; 8] {
    (TWIN_BASE + pair * 2 + which).to_le_bytes()
}

/// Writes both keys of a pair, or none of them, under locks or alone. A reader under locks, or
/// alone, finds them equal.
fn pair_up(world: &World, session: &mut Session, seed: u64) {
    let mut random = Random::new(seed);
    for round in 0u64.. {
        if world.stopped() {
            return;
        }
        let mut guard = if round % 64 == 0 {
            session.pin_exclusive()
        } else {
            session.pin()
        };
        let pair = random.below(TWINS);
        let keys = [twin(pair, 0), twin(pair, 1)];
        let hashes = keys.map(|key| guard.hash(&key));
        if round % 64 != 0
            && world
                .done(guard.lock_keys(&hashes.map(|h| (TABLE, h))))
                .is_none()
        {
            continue;
        }
        let found = [0, 1].map(|n| {
            let object = guard.read(TABLE, hashes[n], &keys[n]).unwrap();
            object.map(|object| object.value.to_vec())
        });
        if world.mode == Mode::Store || found.iter().all(Option::is_some) {
            assert!(found[0] == found[1], "a pair that differs");
        }
        if random.below(3) > 0 {
            let value = vec![round as u8; random.below(3000) as usize];
            let written = [0, 1].map(|n| {
                let outcome = guard.write(TABLE, hashes[n], &keys[n], &value, None);
                world.done(outcome).is_some()
            });
            if written != [true; 2] {
                for n in 0..2 {
                    guard.remove(TABLE, hashes[n], &keys[n]).unwrap();
                }
            }
        }
    }
}

/// Hordes of keys come and go, so that the index grows and shrinks all the time.
fn come_and_go(world: &World, session: &mut Session) {
    while !world.stopped() {
        for remove in [false, true] {
            for first in (0..HORDE).step_by(64) {
                let mut guard = session.pin();
                for number in first..(first + 64).min(HORDE) {
                    let key = (HORDE_BASE + number).to_le_bytes();
                    let hash = guard.hash(&key);
                    if remove {
                        guard.remove(TABLE, hash, &key).unwrap();
                    } else {
                        world.done(guard.write(TABLE, hash, &key, b"", None));
                    }
                }
                if world.stopped() && !remove {
                    break;
                }
            }
        }
    }
}

/// Scans from start to end. Keys that exist all the time must be shown, at least once, whatever
/// grows or shrinks.
fn scan(world: &World, session: &mut Session, seed: u64) {
    let mut random = Random::new(seed);
    while !world.stopped() {
        let (mut cursor, mut stable) = (0, HashSet::new());
        loop {
            let guard = session.pin();
            cursor = guard
                .walk()
                .scan(TABLE, cursor, random.below(500) as usize, |object| {
                    let number = u64::from_le_bytes(object.key.try_into().unwrap());
                    if number < KEYS {
                        check(object.key, object.value);
                    } else if (STABLE_BASE..STABLE_BASE + STABLE).contains(&number) {
                        stable.insert(number);
                    }
                })
                .unwrap();
            if cursor == 0 {
                break;
            }
        }
        if world.mode == Mode::Store {
            assert_eq!(
                stable.len() as u64,
                STABLE,
                "a scan missed keys that were there"
            );
        }
        world.scans.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates and drops tables, moves time on, and reads figures.
fn administer(world: &World, session: &mut Session) {
    let store = session.store().clone();
    let mut last = 0;
    for round in 0u64.. {
        if world.stopped() {
            return;
        }
        world.clock.fetch_add(37, Ordering::Relaxed);
        let Some(table) = world.done(store.tables().create("passing")) else {
            continue;
        };
        for number in 0..200u64 {
            let mut guard = session.pin();
            let key = (number % 150).to_le_bytes();
            let hash = guard.hash(&key);
            let written = world.done(guard.write(table, hash, &key, &[9; 90], None));
            if number == 0
                && let Some(after) = written.and_then(|outcome| outcome.after)
            {
                assert!(after > last, "version {after} after {last} in another life");
                last = after;
            }
        }
        if round % 3 == 0 {
            store.tables().clear(table).unwrap();
            assert_eq!(store.tables().objects(table), 0);
        }
        store.tables().drop(table).unwrap();
        let report = store.memory_report();
        assert!(report.total_bytes <= report.budget_bytes, "{report:?}");
        assert!(store.stats().committed_bytes <= 64 * MIB);
    }
}

/// Keys that every scan must show; rewriting them must not hide them.
fn rewrite_stable(world: &World, session: &mut Session, seed: u64) {
    let mut random = Random::new(seed);
    while !world.stopped() {
        let mut guard = session.pin();
        for _ in 0..16 {
            let key = (STABLE_BASE + random.below(STABLE)).to_le_bytes();
            let hash = guard.hash(&key);
            let value = vec![1; random.below(300) as usize];
            world.done(guard.write(TABLE, hash, &key, &value, None));
        }
    }
}

fn run(mode: Mode) {
    let world = World::new(mode);
    let mut session = world.store.session().unwrap();
    for number in 0..STABLE {
        let mut guard = session.pin();
        let key = (STABLE_BASE + number).to_le_bytes();
        guard
            .write(TABLE, guard.hash(&key), &key, b"here", None)
            .unwrap();
    }
    // A thread that fails must stop the others, or the test would hang instead of failing.
    struct StopAtEnd<'w>(&'w World);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.stop.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let world = &world;
        let start = |job: fn(&World, &mut Session, u64), seed: u64| {
            scope.spawn(move || {
                let _stop = StopAtEnd(world);
                job(world, &mut world.store.session().unwrap(), seed);
            });
        };
        start(operate, 1);
        start(operate, 2);
        start(pair_up, 3);
        start(pair_up, 4);
        start(|world, session, _| come_and_go(world, session), 0);
        start(scan, 5);
        start(rewrite_stable, 6);
        start(|world, session, _| administer(world, session), 0);
        let started = Instant::now();
        let enough = || {
            world.operations.load(Ordering::Relaxed) > 10_000
                && world.scans.load(Ordering::Relaxed) > 3
        };
        // At least this long, and on a slow machine until it has done enough.
        let end = |elapsed| elapsed >= RUNNING && enough() || elapsed >= PATIENCE;
        while !end(started.elapsed()) && !world.stopped() {
            std::thread::sleep(Duration::from_millis(20));
        }
        world.stop.store(true, Ordering::Relaxed);
    });
    assert!(world.operations.load(Ordering::Relaxed) > 10_000);
    assert!(world.scans.load(Ordering::Relaxed) > 3);
    settle(&world, &mut session);
}

/// When all threads have ended, every sum agrees; and when all keys are deleted, nothing is left.
fn settle(world: &World, session: &mut Session) {
    let store = &world.store;
    world.clock.fetch_add(1_000_000, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    let mut keys = Vec::new();
    // Cleaners are still at work: the figures agree as soon as no entry is being moved.
    loop {
        keys.clear();
        let guard = session.pin();
        let mut cursor = 0;
        loop {
            cursor = guard
                .walk()
                .scan(TABLE, cursor, 1000, |object| keys.push(object.key.to_vec()))
                .unwrap();
            if cursor == 0 {
                break;
            }
        }
        drop(guard);
        keys.sort_unstable();
        keys.dedup();
        let (stats, report) = (store.stats(), store.memory_report());
        if stats.objects == keys.len() as u64 && report.live_bytes == stats.live_bytes {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{} keys, {} live bytes by segment: {stats:?}",
            keys.len(),
            report.live_bytes
        );
        // The expiry pass runs again when time goes on.
        world.clock.fetch_add(100, Ordering::Relaxed);
        std::thread::yield_now();
    }
    for key in &keys {
        let mut guard = session.pin();
        guard.remove(TABLE, guard.hash(key), key).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.objects, stats.live_bytes), (0, 0), "{stats:?}");
}

#[test]
fn a_store_under_stress() {
    run(Mode::Store);
}

#[test]
fn a_cache_under_stress() {
    run(Mode::Cache);
}
