//! The whole engine with a log under random schedules: three sessions with a head each, whose
//! transactions cross partitions in opposite order, a consumer of the log, and a thread that cleans
//! and reaps. The oracle: reads return the model's values, a version is given once, and every
//! operation ends.
//!
//! Transactions remove, create and rename. All their keys are of one class of `log::removals`,
//! where the positions of a group would be seen first. Single keys are written, incremented and
//! removed beside them.

use super::disk::{Disk, Heads};
use super::thread;
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, plant};
use duramen_base::sync::{AtomicU64, Ordering, yield_now};
use duramen_engine::{Collected, Decision, Guard, LogOptions, Options, Session, Store, TableId};
use duramen_format::hash::KeyHasher;
use std::sync::{Arc, Mutex, OnceLock};

const TABLE: TableId = TableId::DEFAULT;
const SEED: u64 = 1;
const SESSIONS: u64 = 3;
const KEYS: usize = 6;
/// Bits of a hash; the first four choose the partition.
const HASH_BITS: u32 = 50;
/// Twice the number of classes in a store of this size with these heads: keys whose hashes are
/// equal modulo this are of one class.
const CLASSES: u64 = 1 << 12;
/// Keys in each partition that are never touched: they make views of several buckets, which grow
/// now and then.
const FILLERS: usize = 24;

/// Names that are chosen by their places: partition, part of the partition, and class.
struct Names {
    keys: [String; KEYS],
    alone: [String; 2],
    fillers: Vec<String>,
}

fn names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| {
        let hasher = KeyHasher::new(SEED);
        let find = |what: &str, partition: u64, eighth: Option<u64>| {
            let fits = |name: &String| {
                let hash = hasher.hash(name.as_bytes());
                let first = hash >> (HASH_BITS - 7);
                match eighth {
                    Some(eighth) => first == partition << 3 | eighth && hash % CLASSES == 0,
                    None => first >> 3 == partition,
                }
            };
            (0..)
                .map(|n| format!("{what}-{n}"))
                .find(fits)
                .expect("a name")
        };
        // Parts that stay separate in views of six to ten buckets.
        let places = [(0, 0), (1, 0), (0, 3), (1, 3), (0, 6), (1, 6)];
        Names {
            keys: std::array::from_fn(|n| {
                let (partition, eighth) = places[n];
                find(&format!("key-{n}"), partition, Some(eighth))
            }),
            alone: [0, 1].map(|n| find(&format!("alone-{n}"), n, Some(3))),
            fillers: (0..2 * FILLERS)
                .map(|n| find(&format!("filler-{n}"), n as u64 % 2, None))
                .collect(),
        }
    })
}

/// The present values, by key; touched only by the thread that has locked the key.
type Model = [Mutex<Option<u64>>; KEYS];

/// Versions given to a single key, each with the resulting number.
type Given = Mutex<Vec<(u64, u64)>>;

struct World {
    store: Arc<Store>,
    model: Model,
    given: [Given; 2],
    running: AtomicU64,
}

impl World {
    fn new() -> Arc<World> {
        let mut options = Options::new(64 << 20);
        options.heads = SESSIONS as usize;
        options.cleaners = 0;
        options.huge_pages = false;
        options.hash_seed = Some(SEED);
        options.log = Some(LogOptions::new(1));
        let store = Store::new(options).expect("a store");
        Arc::new(World {
            store,
            model: Default::default(),
            given: Default::default(),
            running: AtomicU64::new(SESSIONS),
        })
    }

    /// Writes half of the keys, and makes them durable.
    fn fill(&self) {
        let mut session = self.store.session().expect("a session");
        let mut guard = session.pin();
        for (n, key) in names().keys.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
            write(&mut guard, key, 0);
            *self.model[n].lock().expect("the model") = Some(0);
        }
        for filler in &names().fillers {
            write(&mut guard, filler, 7);
        }
    }
}

fn write(guard: &mut Guard<'_>, key: &str, value: u64) {
    let hash = guard.hash(key.as_bytes());
    let value = value.to_le_bytes();
    guard
        .write(TABLE, hash, key.as_bytes(), &value, None)
        .expect("room");
}

fn read(guard: &Guard<'_>, key: &str) -> Option<u64> {
    let found = guard.read(TABLE, guard.hash(key.as_bytes()), key.as_bytes());
    let number = |value: &[u8]| u64::from_le_bytes(value.try_into().expect("8 bytes"));
    found.expect("a table").map(|object| number(object.value))
}

fn remove(guard: &mut Guard<'_>, key: &str) {
    let hash = guard.hash(key.as_bytes());
    guard.remove(TABLE, hash, key.as_bytes()).expect("a table");
}

/// For each of these keys, in this order: removes it if present, creates it if absent. Or renames
/// the first to the second.
fn transact(world: &World, guard: &mut Guard<'_>, keys: [usize; 2], value: u64, renames: bool) {
    let names = keys.map(|key| names().keys[key].as_str());
    let hashes = names.map(|name| (TABLE, guard.hash(name.as_bytes())));
    guard.lock_keys(&hashes).expect("room for two keys");
    let mut now = [None; 2];
    for n in 0..2 {
        now[n] = read(guard, names[n]);
        let expected = *world.model[keys[n]].lock().expect("the model");
        assert_eq!(now[n], expected, "not what the model says");
    }
    let then = match (renames, now[0]) {
        (true, Some(moved)) => [None, Some(moved)],
        _ => now.map(|now| if now.is_none() { Some(value) } else { None }),
    };
    for n in 0..2 {
        match then[n] {
            Some(value) => write(guard, names[n], value),
            None => remove(guard, names[n]),
        }
        *world.model[keys[n]].lock().expect("the model") = then[n];
    }
    guard.unlock_keys();
}

/// Adds one to a number, or removes it if it is the second.
fn stand_alone(world: &World, guard: &mut Guard<'_>, which: usize, removes: bool) {
    let name = &names().alone[which];
    let removes = removes && which == 1;
    let hash = guard.hash(name.as_bytes());
    if removes {
        remove(guard, name);
        return;
    }
    let mut number = 0;
    let outcome = guard
        .update(TABLE, hash, name.as_bytes(), |found, scratch| {
            let found = found.map_or(0, |object| object.value[0]);
            number = u64::from(found) + 1;
            scratch.extend_from_slice(&number.to_le_bytes());
            Decision::PutScratch {
                expires_at_ms: None,
            }
        })
        .expect("room");
    let version = outcome.after.expect("written");
    let mut given = world.given[which].lock().expect("versions given");
    let is_new = given.iter().all(|(known, _)| *known != version);
    assert!(is_new, "a version was given twice");
    given.push((version, number));
}

fn work(world: &World, mut session: Session, seed: u64) {
    for n in 0..5u64 {
        let mut guard = session.pin();
        let step = n + 2 * seed;
        stand_alone(world, &mut guard, (n + seed) as usize % 2, n == 3);
        if step % 4 == 3 {
            let filler = &names().fillers[step as usize % FILLERS];
            assert_eq!(read(&guard, filler), Some(7), "always there");
            write(&mut guard, &format!("new-{seed}-{n}"), n);
            continue;
        }
        // Each session in another order, from one partition to the other and back.
        let first = (step * 3 + seed) as usize % KEYS;
        let second = (first + 1 + 2 * (n as usize % 2)) % KEYS;
        let value = (seed + 1) * 100 + n;
        transact(world, &mut guard, [first, second], value, step % 4 == 2);
    }
    world.running.fetch_sub(1, Ordering::SeqCst);
}

/// Collects and completes until all workers have ended and everything is durable.
fn consume(world: &World, mut disk: Disk, mut heads: Heads) {
    let log = world.store.log().expect("a log");
    loop {
        let last = world.running.load(Ordering::SeqCst) == 0;
        let mut collected = Collected::default();
        log.collect(&mut collected);
        let commit = heads.commit_of(log, &collected);
        for lost in 0..SESSIONS as u16 {
            let mut left = disk.clone();
            left.apply(&commit, |head| head != lost);
            // The other one is removed now and then, and continues at a higher version.
            let name = names().alone[0].as_bytes();
            assert_eq!(left.gap(&(TABLE.0, name.to_vec())), None, "L5");
        }
        disk.apply(&commit, |_| true);
        yield_now();
        log.complete(&mut collected, Level::Synced);
        if last {
            return;
        }
    }
}

/// Two renames, each from one partition to the other, there and back.
fn rename(world: &World, mut session: Session, seed: u64) {
    let (from, to) = [(0, 1), (3, 2), (4, 5)][seed as usize];
    for keys in [[from, to], [to, from]] {
        let mut guard = session.pin();
        transact(world, &mut guard, keys, seed, true);
    }
    world.running.fetch_sub(1, Ordering::SeqCst);
}

fn scenario(work: fn(&World, Session, u64)) {
    let world = World::new();
    world.fill();
    let log = world.store.log().expect("a log");
    let mut collected = Collected::default();
    log.collect(&mut collected);
    let (mut disk, mut heads) = (Disk::default(), Heads::default());
    disk.apply(&heads.commit_of(log, &collected), |_| true);
    log.complete(&mut collected, Level::Synced);
    let mut threads: Vec<_> = (0..SESSIONS)
        .map(|seed| {
            let (world, session) = (world.clone(), world.store.session().expect("a session"));
            thread::spawn(move || work(&world, session, seed))
        })
        .collect();
    threads.push({
        let world = world.clone();
        thread::spawn(move || consume(&world, disk, heads))
    });
    threads.push({
        let world = world.clone();
        thread::spawn(move || {
            for _ in 0..3 {
                world.store.clean_step(1 << 20);
                yield_now();
            }
        })
    });
    for thread in threads {
        thread.join().expect("every thread ends");
    }
    let mut session = world.store.session().expect("a session");
    let guard = session.pin();
    for (n, key) in names().keys.iter().enumerate() {
        let expected = *world.model[n].lock().expect("the model");
        assert_eq!(read(&guard, key), expected, "not what the model says");
    }
}

#[test]
fn whatever_waits_goes_on() {
    shuttle::check_random(|| scenario(work), 700);
    shuttle::check_pct(|| scenario(work), 300, 3);
    shuttle::check_random(|| scenario(rename), 200);
}

/// Two groups wait for each other: a wait without an end.
#[test]
#[should_panic(expected = "max_steps")]
fn broken_removals_that_are_known_before_their_group_ends() {
    let _bug = plant(Bug::RemovalsShownEarly);
    let scenario = || scenario(rename);
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(200), few_steps()).run(scenario);
}

#[test]
#[should_panic(expected = "L5")]
fn broken_a_head_that_does_not_follow_its_predecessors() {
    let _bug = plant(Bug::AnyHead);
    shuttle::check_random(|| scenario(work), 700);
}

/// Many times the steps of a run that ends.
fn few_steps() -> shuttle::Config {
    let mut config = shuttle::Config::default();
    config.max_steps = shuttle::MaxSteps::FailAfter(100_000);
    config
}
