//! The same promises with real threads: writers and readers at work while a consumer commits and
//! checks the state that a crash at that moment would leave.

use crate::durable::disk::{Disk, replay};
use crate::durable::world::{Consumer, hook_up, start};
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_base::random::Random;
use duramen_engine::{Error, Guard, LogOptions, Position, Session, Store, TableId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const HEADS: usize = 3;
const COUNTERS: usize = 4;
const PAIRS: usize = 4;

/// Contents of replies: numbers of counters, and of the pairs, which only grow.
#[derive(Default)]
struct Told {
    counters: [AtomicU64; COUNTERS],
    pairs: [AtomicU64; PAIRS],
    /// Pairs that were removed when memory was short: such a pair may be absent, and begins anew.
    given_up: [AtomicBool; PAIRS],
}

/// Waits as a client does for its reply.
fn wait(store: &Store, position: &Position, stop: &AtomicBool) -> bool {
    let log = store.log().unwrap();
    while log.reached(position) < Level::Synced {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Increments counters that all threads increment; the reply has the resulting number.
fn count(mut session: Session, told: &Told, stop: &AtomicBool, mut random: Random) {
    let store = session.store().clone();
    while !stop.load(Ordering::Relaxed) {
        let n = random.below(COUNTERS as u64) as usize;
        let key = [b'c', n as u8];
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        // The reply may be that of a read of the number, or of an increment.
        let number = if random.below(3) == 0 {
            let found = guard.read(TABLE, hash, &key).unwrap();
            found.map_or(0, |object| {
                let text = std::str::from_utf8(object.value).unwrap();
                text.parse().unwrap()
            })
        } else {
            guard.increment(TABLE, hash, &key, 1).unwrap().value as u64
        };
        let position = guard.order().take_position();
        drop(guard);
        // Not every client waits before it goes on.
        if random.below(4) != 0 && wait(&store, &position, stop) {
            told.counters[n].fetch_max(number, Ordering::SeqCst);
        }
    }
}

/// Writes the same number to both keys of a pair in one step, or removes both and writes them
/// again.
fn pair_up(mut session: Session, told: &Told, stop: &AtomicBool, mut random: Random, large: bool) {
    let store = session.store().clone();
    while !stop.load(Ordering::Relaxed) {
        let n = random.below(PAIRS as u64) as usize;
        let keys = [[b'p', n as u8, 0], [b'p', n as u8, 1]];
        let mut guard = session.pin();
        let hashes = keys.map(|key| guard.hash(&key));
        guard.lock_keys(&hashes.map(|hash| (TABLE, hash))).unwrap();
        let old = guard.read(TABLE, hashes[0], &keys[0]).unwrap();
        let old = old.map_or(0, |object| {
            u64::from_le_bytes(object.value[..8].try_into().unwrap())
        });
        let mut value = (old + 1).to_le_bytes().to_vec();
        // Some are so large that the segment is full in the middle of the group.
        value.resize(
            if large && random.below(20) == 0 {
                300_000
            } else {
                8
            },
            0,
        );
        for (key, hash) in keys.iter().zip(hashes) {
            if random.below(4) == 0 {
                guard.remove(TABLE, hash, key).unwrap();
            }
            match guard.write(TABLE, hash, key, &value, None) {
                Ok(_) => {}
                // The time for which a transaction waits for memory depends on the scheduling of
                // other threads. Removals need no memory.
                Err(Error::OutOfMemory { .. }) => {
                    told.given_up[n].store(true, Ordering::SeqCst);
                    for (key, hash) in keys.iter().zip(hashes) {
                        guard.remove(TABLE, hash, key).unwrap();
                    }
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        guard.unlock_keys();
        let position = guard.order().take_position();
        drop(guard);
        let counts = !told.given_up[n].load(Ordering::SeqCst);
        if random.below(4) != 0 && wait(&store, &position, stop) && counts {
            told.pairs[n].fetch_max(old + 1, Ordering::SeqCst);
        }
    }
}

fn judge(disk: &Disk, counters: &[u64], pairs: &[u64], told: &Told) -> Result<(), String> {
    let (found, _) = replay(disk);
    let value = |key: &[u8]| {
        found
            .get(&(TABLE.0, key.to_vec()))
            .map(|found| &found.value)
    };
    for (n, told) in counters.iter().enumerate() {
        let number: u64 = value(&[b'c', n as u8]).map_or(0, |value| {
            let text = std::str::from_utf8(value).unwrap();
            text.parse().unwrap()
        });
        if number < *told {
            return Err(format!("counter {n} fell from {told} to {number}"));
        }
    }
    for (n, number) in pairs.iter().enumerate() {
        let [a, b] = [0, 1].map(|which| {
            value(&[b'p', n as u8, which]).map_or(0, |value| {
                u64::from_le_bytes(value[..8].try_into().unwrap())
            })
        });
        let is_lost = a < *number && !told.given_up[n].load(Ordering::SeqCst);
        if a != b || is_lost {
            return Err(format!("pair {n} is {a} and {b}, {number} was told"));
        }
    }
    Ok(())
}

/// Minimum number of crashes that each run checks, however slow the machine is.
const CRASHES_MIN: u32 = 4;

/// Commits, cleans, and supposes crashes, until the time is over. Returns the number of crashes
/// that were checked. With `clean`, there is much to clean; without, nothing, and no version of a
/// counter may be missing below another.
pub fn run(seed: u64, seconds: f64, clean: bool) -> Result<u32, String> {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let (store, consumer) = start(seed, HEADS, &clock, LogOptions::new(7));
    hook_up(&store, &consumer);
    let (told, stop) = (Told::default(), AtomicBool::new(false));
    let mut random = Random::new(seed);
    let mut crashes = 0;
    let ends_at = Instant::now() + Duration::from_secs_f64(seconds);
    std::thread::scope(|scope| {
        for n in 0..2 * HEADS as u64 {
            let session = store.session().unwrap();
            let random = Random::new(seed * 100 + n);
            let (told, stop) = (&told, &stop);
            if n < HEADS as u64 {
                scope.spawn(carry(move || count(session, told, stop, random)));
            } else {
                scope.spawn(carry(move || pair_up(session, told, stop, random, clean)));
            }
        }
        let judged = (|| {
            while Instant::now() < ends_at || crashes < CRASHES_MIN {
                crashes += u32::from(commit_or_crash(
                    &store,
                    &consumer,
                    &told,
                    &mut random,
                    clean,
                )?);
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        judged.map(|()| crashes)
    })
}

fn commit_or_crash(
    store: &Store,
    consumer: &Mutex<Consumer>,
    told: &Told,
    random: &mut Random,
    clean: bool,
) -> Result<bool, String> {
    let mut locked = consumer.lock().unwrap();
    match random.below(16) {
        0..7 => locked.collect(store),
        7..14 => locked.complete_one(store, random.below(2) == 0),
        14 if clean => {
            locked.clean_one(store);
            drop(locked);
            store.clean_step(1 << 20);
        }
        _ => {
            // No collection is completed while the consumer is locked, so all replies given by now
            // are covered.
            let read = |numbers: &[AtomicU64]| -> Vec<u64> {
                let numbers = numbers.iter();
                numbers
                    .map(|number| number.load(Ordering::SeqCst))
                    .collect()
            };
            let (counters, pairs) = (read(&told.counters), read(&told.pairs));
            let disk = locked.crash(random, false);
            drop(locked);
            for n in (0..COUNTERS as u8).filter(|_| !clean) {
                if let Some(version) = disk.gap(&(TABLE.0, vec![b'c', n])) {
                    return Err(format!(
                        "counter {n} has lost version {version}, not the next"
                    ));
                }
            }
            return judge(&disk, &counters, &pairs, told).map(|()| true);
        }
    }
    Ok(false)
}

#[test]
fn what_threads_were_told_survives() {
    for seed in 0..6 {
        if let Err(wrong) = run(seed, 0.6, seed % 2 == 0) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// Scenario 11: increments of one key by way of several heads that are committed independently.
#[test]
fn trap_5_planted_under_threads_is_found() {
    assert!((0..60).any(|seed| with_bug(Bug::AnyHead, || run(seed, 0.5, false)).is_err()));
}

#[test]
fn a_group_in_parts_under_threads_is_found() {
    assert!((0..60).any(|seed| with_bug(Bug::GroupsInParts, || run(seed, 0.5, true)).is_err()));
}

/// Old keys of each guard, half as many new ones: so few among so many others that no bucket has
/// keys of both.
const CROSSING: usize = 16;
const OTHERS: usize = 30_000;

fn old_key(whose: usize, n: usize) -> String {
    format!("old-{whose}-{n}")
}

/// A key that is known to be absent only when the removal of `other` is durable: their hashes end
/// alike (`log::removals`).
fn key_like(guard: &Guard<'_>, other: &str, whose: usize) -> String {
    let class = |key: &str| {
        let hash = guard.hash(key.as_bytes());
        guard.route(hash, key.as_bytes()).0 % (1 << 12)
    };
    let mut names = (0..).map(|n| format!("new-{whose}-{n}"));
    names.find(|name| class(name) == class(other)).unwrap()
}

/// Removes half of its keys in one group, waits until the other has done so too, and then removes
/// the other half, with new keys in between that are in the classes of the other's removed ones.
fn cross(mut session: Session, mine: usize, barrier: &Barrier) -> Result<(), Error> {
    let mut guard = session.pin();
    let half = CROSSING / 2;
    let new: Vec<String> = (0..half)
        .map(|n| key_like(&guard, &old_key(1 - mine, n), mine))
        .collect();
    let old = (0..CROSSING).map(|n| old_key(mine, n));
    let names: Vec<String> = old.chain(new).collect();
    let hashes: Vec<_> = names
        .iter()
        .map(|name| guard.hash(name.as_bytes()))
        .collect();
    let keys: Vec<_> = hashes.iter().map(|hash| (TABLE, *hash)).collect();
    guard.lock_keys(&keys)?;
    let remove =
        |guard: &mut Guard<'_>, n: usize| guard.remove(TABLE, hashes[n], names[n].as_bytes());
    for n in 0..half {
        remove(&mut guard, n)?;
    }
    barrier.wait();
    for n in half..CROSSING {
        remove(&mut guard, n)?;
        let (hash, name) = (hashes[n + half], names[n + half].as_bytes());
        guard.write(TABLE, hash, name, b"new", None)?;
    }
    Ok(())
}

/// Two guards whose removals cross. False: they have not ended after `patience`.
fn crossing_ends(patience: Duration) -> bool {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let (store, consumer) = start(1, 2, &clock, LogOptions::new(7));
    hook_up(&store, &consumer);
    let mut session = store.session().unwrap();
    let olds = (0..2 * CROSSING).map(|n| old_key(n % 2, n / 2));
    for key in olds.chain((0..OTHERS).map(|n| n.to_string())) {
        let mut guard = session.pin();
        let hash = guard.hash(key.as_bytes());
        guard
            .write(TABLE, hash, key.as_bytes(), b"old", None)
            .unwrap();
    }
    consumer.lock().unwrap().complete_everything(&store);
    let barrier = Arc::new(Barrier::new(2));
    let (ended, ends) = mpsc::channel();
    for mine in 0..2 {
        let (session, barrier) = (store.session().unwrap(), barrier.clone());
        let ended = ended.clone();
        // Not scoped: if they wait for ever, the test does not.
        std::thread::spawn(carry(move || {
            let _ = ended.send(cross(session, mine, &barrier));
        }));
    }
    let ends = (0..2).all(|_| matches!(ends.recv_timeout(patience), Ok(Ok(()))));
    store.log().unwrap().disk_failed(); // threads that still wait give up
    ends && store.stats().objects as usize == CROSSING + OTHERS
}

/// Two clients sent `DEL` of 500 old keys each, again and again, and after about 20 commands no
/// connection was answered any more. A removal of a group was known to the whole partition before
/// the group had ended. A session that wanted to remove or create a key in that partition waited
/// for it to be durable, in the middle of a group of its own. So two groups waited for each other's
/// end.
#[test]
fn groups_whose_removals_cross_end() {
    assert!(crossing_ends(Duration::from_secs(60)));
}

#[test]
fn removals_that_are_known_too_early_are_found() {
    let bug = Bug::RemovalsShownEarly;
    assert!(!with_bug(bug, || crossing_ends(Duration::from_secs(1))));
}
