//! Waits of threads for each other: heads shared by sessions, memory that is short, transactions,
//! and exclusive sessions. Each of these once was a ring of waiters, or memory that existed and
//! could not be obtained.

use duramen_base::ids::Level;
use duramen_base::random::Random;
use duramen_engine::{
    Clock, Collected, Error, Guard, LogOptions, Mode, Options, Room, Session, Store, TableId,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;
/// No test takes longer on a busy machine, unless it never ends.
const DEADLINE: Duration = Duration::from_secs(300);

type Job = Box<dyn FnOnce(&mut Session) + Send>;

fn store(mode: Mode, heads: usize) -> Arc<Store> {
    let mut options = Options::new(64 * MIB);
    options.mode = mode;
    options.heads = heads;
    Store::new(options).unwrap()
}

fn put(guard: &mut Guard<'_>, key: u64, value: &[u8]) -> Result<(), Error> {
    let key = key.to_le_bytes();
    let hash = guard.hash(&key);
    guard.write(TABLE, hash, &key, value, None).map(|_| ())
}

fn get(guard: &Guard<'_>, key: u64) -> Option<u64> {
    let key = key.to_le_bytes();
    let found = guard.read(TABLE, guard.hash(&key), &key).unwrap();
    found.map(|object| object.version)
}

/// Fills the store with objects of `bytes` up to this part of its memory; returns their number.
fn fill(store: &Arc<Store>, part: f64, bytes: usize) -> u64 {
    let mut session = store.session().unwrap();
    let mut keys = 0;
    while store.stats().utilization < part {
        let mut guard = session.pin();
        for _ in 0..100 {
            put(&mut guard, keys, &vec![1; bytes]).unwrap();
            keys += 1;
        }
    }
    keys
}

/// Runs each job in a thread of its own with a session; fails if one of them has not ended in time.
fn all_end(store: &Arc<Store>, jobs: Vec<Job>) {
    let (done, ended) = channel();
    let count = jobs.len();
    for (number, job) in jobs.into_iter().enumerate() {
        let (store, done) = (store.clone(), done.clone());
        std::thread::spawn(move || {
            job(&mut store.session().unwrap());
            done.send(number).unwrap();
        });
    }
    drop(done);
    let deadline = Instant::now() + DEADLINE;
    for n in 0..count {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = ended.recv_timeout(left) {
            panic!(
                "only {n} of {count} jobs ended ({error}): {:?}",
                store.stats()
            );
        }
    }
}

/// A writer that waited for memory once kept its head locked, while another one, pinned, waited for
/// that head and so held back the memory.
#[test]
fn writers_that_share_a_head_go_on_when_memory_is_short() {
    let store = store(Mode::Store, 1);
    let keys = fill(&store, 0.75, 1000);
    let job = |seed: u64| {
        move |session: &mut Session| {
            let mut random = Random::new(seed);
            for _ in 0..4_000 {
                let mut guard = session.pin();
                get(&guard, random.below(keys));
                for _ in 0..8 {
                    put(&mut guard, random.below(keys), &[2; 1000]).unwrap();
                }
            }
        }
    };
    all_end(
        &store,
        (1..=4).map(|seed| Box::new(job(seed)) as _).collect(),
    );
}

/// A transaction once locked its buckets before its head; the holder of the head already waited for
/// such a bucket.
#[test]
fn transactions_and_writers_share_a_head() {
    let store = store(Mode::Store, 1);
    let job = |seed: u64| {
        move |session: &mut Session| {
            let mut random = Random::new(seed);
            for _ in 0..4_000 {
                let mut guard = session.pin();
                if seed.is_multiple_of(2) {
                    put(&mut guard, random.below(8), b"before").unwrap();
                }
                let keys = [random.below(8), random.below(8)];
                let locks = keys.map(|key| (TABLE, guard.hash(&key.to_le_bytes())));
                guard.lock_keys(&locks).unwrap();
                for key in keys {
                    put(&mut guard, key, b"within").unwrap();
                }
                guard.unlock_keys();
                put(&mut guard, random.below(8), b"after").unwrap();
            }
        }
    };
    all_end(
        &store,
        (1..=4).map(|seed| Box::new(job(seed)) as _).collect(),
    );
}

/// A writer that waited for memory once kept its head and waited for an exclusive session, which
/// waited for the head.
#[test]
fn who_is_alone_finds_its_head_free() {
    let store = store(Mode::Store, 1);
    let keys = fill(&store, 0.75, 1000);
    let job = |seed: u64| {
        move |session: &mut Session| {
            let mut random = Random::new(seed);
            for round in 0..3_000 {
                let mut guard = if round % 8 == 7 {
                    session.pin_exclusive()
                } else {
                    session.pin()
                };
                for _ in 0..8 {
                    put(&mut guard, random.below(keys), &[2; 1000]).unwrap();
                }
                guard.refresh();
            }
        }
    };
    all_end(
        &store,
        (1..=3).map(|seed| Box::new(job(seed)) as _).collect(),
    );
}

/// An exclusive session once waited for victims that the cleaner threads had begun, and which it
/// kept them from finishing.
#[test]
fn who_is_alone_finishes_what_the_cleaners_began() {
    let store = store(Mode::Store, 1);
    let keys = fill(&store, 0.75, 1000);
    let job = move |session: &mut Session| {
        let mut random = Random::new(1);
        for _ in 0..40 {
            let mut guard = session.pin_exclusive();
            for _ in 0..3_000 {
                put(&mut guard, random.below(keys), &[2; 1000]).unwrap();
            }
        }
    };
    // The second keeps the memory short while no session is alone, so that the cleaners are in the
    // middle of a victim.
    let other = move |session: &mut Session| {
        let mut random = Random::new(2);
        for _ in 0..30_000 {
            put(&mut session.pin(), random.below(keys), &[3; 1000]).unwrap();
        }
    };
    all_end(&store, vec![Box::new(job), Box::new(other)]);
}

/// Readers that wait for a transaction are pinned; the transaction must not wait for the memory
/// that they hold back.
#[test]
fn a_transaction_that_lacks_memory_is_not_waited_for_in_vain() {
    let store = store(Mode::Cache, 2);
    let stop = Arc::new(AtomicBool::new(false));
    let mut jobs: Vec<Job> = Vec::new();
    for seed in 1..=2u64 {
        let stop = stop.clone();
        jobs.push(Box::new(move |session| {
            let mut random = Random::new(seed);
            let mut refused = 0;
            for round in 0..10 {
                let mut guard = session.pin();
                let keys: Vec<u64> = (0..16).map(|n| (round + n * 7) % 64).collect();
                let locks: Vec<_> = keys
                    .iter()
                    .map(|key| (TABLE, guard.hash(&key.to_le_bytes())))
                    .collect();
                guard.lock_keys(&locks).unwrap();
                // More than the memory that is kept ready.
                for key in keys {
                    match put(&mut guard, key, &vec![3; 900_000]) {
                        Ok(()) => {}
                        Err(Error::OutOfMemory { .. }) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                drop(guard);
                for _ in 0..20 {
                    let mut guard = session.pin();
                    put(&mut guard, 1000 + random.below(30_000), &[4; 2000]).unwrap();
                }
            }
            assert!(refused < 10 * 16, "none of its writes ever found memory");
            stop.store(true, Ordering::Relaxed);
        }));
    }
    for seed in 3..=4u64 {
        let stop = stop.clone();
        jobs.push(Box::new(move |session| {
            let mut random = Random::new(seed);
            while !stop.load(Ordering::Relaxed) {
                let guard = session.pin();
                for _ in 0..8 {
                    get(&guard, random.below(64));
                }
            }
        }));
    }
    all_end(&store, jobs);
}

/// A write to a key that the transaction had not locked once waited for ever for the transaction's
/// own buckets, once the partition of that key was full.
#[test]
fn a_transaction_does_not_wait_for_itself() {
    let store = store(Mode::Store, 1);
    let job = |session: &mut Session| {
        let mut guard = session.pin();
        let locks: Vec<_> = (0..64u64)
            .map(|key| (TABLE, guard.hash(&key.to_le_bytes())))
            .collect();
        guard.lock_keys(&locks).unwrap();
        let written = (1000..20_000u64).filter(|key| put(&mut guard, *key, b"").is_ok());
        let count = written.count() as u64;
        assert!(count < 19_000, "no partition was ever full");
        guard.unlock_keys();
        drop(guard);
        assert_eq!(session.store().stats().objects, count);
    };
    all_end(&store, vec![Box::new(job)]);
}

/// The index once could not grow although little was alive: free windows kept all unused memory.
#[test]
fn the_index_grows_out_of_free_windows() {
    let store = store(Mode::Store, 2);
    let keys = fill(&store, 0.3, 1000);
    let job = |seed: u64| {
        move |session: &mut Session| {
            let mut random = Random::new(seed);
            for _ in 0..2_500 {
                let mut guard = session.pin();
                for _ in 0..32 {
                    put(&mut guard, random.below(keys), &[2; 1000]).unwrap();
                }
            }
        }
    };
    all_end(
        &store,
        (1..=2).map(|seed| Box::new(job(seed)) as _).collect(),
    );
    let mut session = store.session().unwrap();
    let mut key = keys;
    while store.stats().utilization < 0.7 {
        let mut guard = session.pin();
        for _ in 0..100 {
            if let Err(error) = put(&mut guard, key, b"") {
                panic!(
                    "{error} after {} small objects: {:?}",
                    key - keys,
                    store.stats()
                );
            }
            key += 1;
        }
    }
    assert_eq!(store.stats().objects, key);
}

/// A small budget full of small objects: index and survivors compete for the last memory. Every
/// operation ends.
#[test]
fn small_objects_fill_the_store_to_the_brim() {
    let store = store(Mode::Store, 2);
    let full = Arc::new(Barrier::new(2));
    let job = |seed: u64| {
        let full = full.clone();
        move |session: &mut Session| {
            let mut refused = 0;
            let mut key = seed << 32;
            while refused < 200 {
                let mut guard = session.pin();
                match put(&mut guard, key, b"12345678") {
                    Ok(()) => key += 1,
                    Err(Error::OutOfMemory { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            full.wait();
            // Deletes always succeed, and after them so do writes.
            let last = key;
            for key in ((seed << 32)..last).step_by(2) {
                let mut guard = session.pin();
                let key = key.to_le_bytes();
                let hash = guard.hash(&key);
                assert!(guard.remove(TABLE, hash, &key).unwrap().before.is_some());
            }
            full.wait();
            for key in ((seed << 32)..last).step_by(4) {
                put(&mut session.pin(), key, b"87654321").unwrap();
            }
        }
    };
    all_end(
        &store,
        (1..=2).map(|seed| Box::new(job(seed)) as _).collect(),
    );
}

/// The expiry pass once forgot entries that were appended while it examined their segment.
#[test]
fn entries_written_during_the_expiry_pass_expire_too() {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let mut options = Options::new(64 * MIB);
    options.heads = 1;
    options.clock = Clock::Manual(clock.clone());
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    let started = Instant::now();
    let mut key = 0u64;
    while started.elapsed() < Duration::from_secs(2) {
        let mut guard = session.pin();
        for _ in 0..32 {
            key += 1;
            let (name, now_ms) = (key.to_le_bytes(), guard.now_ms());
            let hash = guard.hash(&name);
            guard
                .write(TABLE, hash, &name, &[5; 16], Some(now_ms + 1 + key % 50))
                .unwrap();
        }
        clock.fetch_add(1, Ordering::Relaxed);
    }
    clock.fetch_add(1_000_000, Ordering::Relaxed);
    let deadline = Instant::now() + DEADLINE;
    while store.stats().objects > 0 {
        // Time goes on: a second later, the pass examines again the segments that changed during
        // it.
        clock.fetch_add(100, Ordering::Relaxed);
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        std::thread::yield_now();
    }
    assert_eq!(store.stats().entries_expired, key);
}

/// Neither the expiry pass nor cleaning takes a key in the millisecond of its expiry.
#[test]
fn entries_stay_until_the_end_of_the_millisecond_of_their_expiry() {
    const START_MS: u64 = 1_000_000;
    let clock = Arc::new(AtomicU64::new(START_MS));
    for cleaners in [1, 0] {
        let mut options = Options::new(64 * MIB);
        (options.heads, options.cleaners) = (1, cleaners);
        clock.store(START_MS, Ordering::Relaxed);
        options.clock = Clock::Manual(clock.clone());
        let store = Store::new(options).unwrap();
        let mut session = store.session().unwrap();
        // In each segment, those that expire first are the last: when they are gone, the others
        // have been examined.
        for key in 0..20_000u64 {
            let mut guard = session.pin();
            let name = key.to_le_bytes();
            let hash = guard.hash(&name);
            let left_ms = if key % 1000 < 500 { 1000 } else { 500 };
            guard
                .write(TABLE, hash, &name, &[5; 1000], Some(START_MS + left_ms))
                .unwrap();
        }
        let waits_for = |expired: u64| {
            let deadline = Instant::now() + DEADLINE;
            while store.stats().entries_expired < expired {
                assert!(Instant::now() < deadline, "{:?}", store.stats());
                match cleaners {
                    0 if store.clean_step(8 * MIB) => {}
                    0 => break,
                    _ => std::thread::yield_now(),
                }
            }
            store.stats().entries_expired
        };
        clock.store(START_MS + 1000, Ordering::Relaxed);
        let first = waits_for(10_000);
        assert!((1000..=10_000).contains(&first), "{first} of 10000");
        let guard = session.pin();
        for key in (0..20_000).filter(|key| key % 1000 < 500) {
            assert!(get(&guard, key).is_some(), "{key}");
        }
        drop(guard);
        clock.store(START_MS + 1001, Ordering::Relaxed);
        assert!(waits_for(20_000) > 10_000);
        let guard = session.pin();
        assert!((0..20_000).all(|key| get(&guard, key).is_none()));
    }
}

/// A store that was full of expired entries once refused writes until a thread had met them.
#[test]
fn expired_entries_make_room_when_it_is_needed() {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let mut options = Options::new(64 * MIB);
    options.heads = 1;
    options.cleaners = 0; // only the writer meets them
    options.clock = Clock::Manual(clock.clone());
    let store = Store::new(options).unwrap();
    let job = move |session: &mut Session| {
        let mut write = |key: u64| {
            let mut guard = session.pin();
            let (name, now_ms) = (key.to_le_bytes(), guard.now_ms());
            let hash = guard.hash(&name);
            guard.write(TABLE, hash, &name, &[5; 200], Some(now_ms + 1000))
        };
        let mut keys = 0;
        while write(keys).is_ok() {
            keys += 1;
        }
        clock.fetch_add(5_000, Ordering::Relaxed);
        for key in keys..keys + keys / 2 {
            write(key).unwrap();
        }
    };
    all_end(&store, vec![Box::new(job)]);
}

/// One entry in a segment that lived long once hid the others, which had expired.
#[test]
fn expired_entries_between_long_lived_ones_make_room() {
    for (one_of, cleaners) in [(5, 1), (1000, 1), (5, 0)] {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let mut options = Options::new(64 * MIB);
        options.heads = 1;
        options.cleaners = cleaners;
        options.clock = Clock::Manual(clock.clone());
        let store = Store::new(options).unwrap();
        let watched = store.clone();
        let job = move |session: &mut Session| {
            let write = |session: &mut Session, key: u64| {
                let mut guard = session.pin();
                let (name, now_ms) = (key.to_le_bytes(), guard.now_ms());
                let left_ms = if key.is_multiple_of(one_of) {
                    86_400_000
                } else {
                    6000
                };
                let hash = guard.hash(&name);
                guard.write(TABLE, hash, &name, &[5; 1000], Some(now_ms + left_ms))
            };
            let mut keys = 0;
            while write(session, keys).is_ok() {
                keys += 1;
                clock.fetch_add(keys % 20 / 19, Ordering::Relaxed);
            }
            let (long, from) = (keys.div_ceil(one_of), keys);
            clock.fetch_add(14_000, Ordering::Relaxed);
            let deadline = Instant::now() + DEADLINE;
            while keys < from + from / 2 {
                match write(session, keys) {
                    Ok(_) => keys += 1,
                    Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
                }
            }
            while cleaners > 0 && watched.stats().objects > long + keys - from {
                assert!(Instant::now() < deadline, "{:?}", watched.stats());
                std::thread::yield_now();
            }
        };
        all_end(&store, vec![Box::new(job)]);
    }
}

/// A writer that waited for memory once went on with the index of a table that had been dropped
/// meanwhile. And a table with a used id began again at version 1, so that `WATCH` took a new
/// object for the old one.
#[test]
fn tables_come_and_go_under_writers_that_wait_for_memory() {
    let store = store(Mode::Store, 1);
    let keys = fill(&store, 0.75, 1000);
    let stop = Arc::new(AtomicBool::new(false));
    let current = Arc::new(AtomicU64::new(0));
    let mut jobs: Vec<Job> = Vec::new();
    for seed in 1..=3u64 {
        let (stop, current) = (stop.clone(), current.clone());
        jobs.push(Box::new(move |session| {
            let mut random = Random::new(seed);
            let mut version = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut guard = session.pin();
                for _ in 0..8 {
                    put(&mut guard, random.below(keys), &[2; 1000]).unwrap();
                    let table = TableId(current.load(Ordering::Relaxed) as u32);
                    let name = seed.to_le_bytes();
                    let hash = guard.hash(&name);
                    match guard.write(table, hash, &name, &[6; 500], None) {
                        Ok(outcome) if table != TABLE => {
                            let now = outcome.after.unwrap();
                            assert!(now > version, "version {now} after {version}");
                            version = now;
                        }
                        Ok(_) | Err(Error::NoSuchTable(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }));
    }
    jobs.push(Box::new(move |session| {
        let store = session.store().clone();
        for _ in 0..2_000 {
            let table = store.tables().create("passing").unwrap();
            current.store(u64::from(table.0), Ordering::Relaxed);
            for n in 0..50 {
                put(&mut session.pin(), n, b"time passes").unwrap();
            }
            store.tables().drop(table).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    }));
    all_end(&store, jobs);
}

/// A step that had its room once waited, before its second key, for the removal of another key in
/// another head. If the disk was found full meanwhile, the step was refused with the first key
/// written (room::R1).
#[test]
fn a_step_with_room_is_done_whatever_others_remove_and_the_disk_says() {
    for seed in 1..=6 {
        let mut options = Options::new(64 * MIB);
        (options.hash_seed, options.heads, options.cleaners) = (Some(seed), 2, 0);
        options.log = Some(LogOptions::new(7));
        let store = Store::new(options).unwrap();
        let (mut ours, mut others) = (store.session().unwrap(), store.session().unwrap());
        const OTHERS: u64 = 30_000;
        for key in 0..OTHERS {
            put(&mut others.pin(), key, b"v").unwrap();
        }
        let log = store.log().unwrap();
        let mut collected = Collected::default();
        log.collect(&mut collected);
        log.complete(&mut collected, Level::Synced);

        let mut guard = ours.pin();
        let (first, second) = (OTHERS, OTHERS + 1);
        let mut room = Room::default();
        let mut locks = Vec::new();
        for key in [first, second] {
            room.put(&key.to_le_bytes(), 1);
            locks.push((TABLE, guard.hash(&key.to_le_bytes())));
        }
        guard.lock_keys_for(&locks, room).unwrap();
        put(&mut guard, first, b"1").unwrap();
        let removed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = others.pin();
                for key in 0..OTHERS {
                    let key = key.to_le_bytes();
                    let hash = guard.hash(&key);
                    if guard.remove(TABLE, hash, &key).is_err() {
                        break;
                    }
                    removed.fetch_add(1, Ordering::Relaxed);
                }
            });
            // It may have to wait for a key that is locked.
            let began = Instant::now();
            while removed.load(Ordering::Relaxed) < OTHERS
                && began.elapsed() < Duration::from_secs(1)
            {
                std::thread::yield_now();
            }
            log.disk_full(true);
            let done = put(&mut guard, second, b"1");
            guard.unlock_keys();
            drop(guard);
            log.disk_full(false);
            assert!(done.is_ok(), "seed {seed}: {done:?}");
        });
        let mut session = store.session().unwrap();
        let guard = session.pin();
        assert!(get(&guard, first).is_some() && get(&guard, second).is_some());
    }
}

/// A removal that found no segment for its tombstone on a full disk waited as long as any writer
/// may, and then said that memory was full.
#[test]
fn a_removal_without_room_on_disk_names_the_disk() {
    let mut options = Options::new(64 * MIB);
    options.heads = 1;
    options.cleaners = 0;
    let mut log = LogOptions::new(7);
    (log.disk_segments_max, log.disk_segments_room) = (16, 16);
    options.log = Some(log);
    let store = Store::new(options).unwrap(); // nothing of its log becomes durable
    let mut session = store.session().unwrap();
    let key = |n: u32| format!("{n:060000}").into_bytes(); // its tombstone is long
    let mut written = 0;
    let refused = loop {
        let mut guard = session.pin();
        let hash = guard.hash(&key(written));
        match guard.write(TABLE, hash, &key(written), b"value", None) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::DiskFull);
    let refused = (0..written).find_map(|n| {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        guard.remove(TABLE, hash, &key(n)).err()
    });
    assert_eq!(refused, Some(Error::DiskFull));
}

/// While a disk hung, each writer waited 5 s for memory, and so did each removal: the writers of a
/// thread one after the other, and its readers with them.
#[test]
fn after_a_wait_in_vain_for_the_disk_nobody_waits_long_for_it() {
    let mut options = Options::new(64 * MIB);
    (options.heads, options.cleaners) = (1, 0);
    options.log = Some(LogOptions::new(7));
    let store = Store::new(options).unwrap(); // nothing of its log becomes durable
    let mut session = store.session().unwrap();
    let key = |n: u32| format!("{n:060000}").into_bytes(); // its tombstone is long
    let mut write = |n: u32| {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        let began = Instant::now();
        let done = guard.write(TABLE, hash, &key(n), b"value", None).map(drop);
        (done, began.elapsed())
    };
    let full = (0..).find(|n| write(*n).0.is_err()).unwrap();
    let again: Vec<_> = (full..full + 4).map(&mut write).collect();
    let mut remove = |n: u32| {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        let began = Instant::now();
        let done = guard.remove(TABLE, hash, &key(n)).map(drop);
        (done, began.elapsed())
    };
    let first = (0..full).find(|n| remove(*n).0.is_err()).unwrap(); // the reserve is used up
    let removals: Vec<_> = (first + 1..first + 5).map(&mut remove).collect();
    let taken: Duration = again.iter().chain(&removals).map(|(_, took)| *took).sum();
    assert!(again.iter().chain(&removals).all(|(done, _)| done.is_err()));
    // They took 40 s. It needs the clock, because a wait is no work.
    assert!(taken < Duration::from_secs(15), "{again:?} {removals:?}");
}

/// A writer that finds no window free waits for cleaning, and the longest wait is reported once.
#[test]
fn the_longest_wait_for_memory_is_reported_once() {
    let store = store(Mode::Cache, 1);
    let mut session = store.session().unwrap();
    assert_eq!(store.take_longest_stall(), Duration::ZERO);
    let total = || Duration::from_nanos(store.stats().writer_stall_ns);
    let began = Instant::now();
    let mut keys = 0..;
    while total() == Duration::ZERO {
        assert!(began.elapsed() < DEADLINE, "no writer waited");
        for key in keys.by_ref().take(10_000) {
            put(&mut session.pin(), key, &[2; 10_000]).unwrap();
        }
    }
    let longest = store.take_longest_stall();
    assert!(
        longest > Duration::ZERO && longest <= total(),
        "{longest:?}"
    );
    assert_eq!(store.take_longest_stall(), Duration::ZERO);
}
