//! Several threads in one store: atomicity, isolation, accounting, limits, and memory that follows
//! the data.

use duramen_base::random::Random;
use duramen_engine::{
    Condition, Decision, Error, Guard, Mode, Options, Part, Stamp, Store, TableId,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;

fn store(memory_mib: u64, heads: usize, cleaners: usize) -> Arc<Store> {
    let mut options = Options::new(memory_mib * MIB);
    options.heads = heads;
    options.cleaners = cleaners;
    Store::new(options).unwrap()
}

/// Value with a checkable content: the key's number and a count, filled up.
fn value_of(key: u64, count: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 16);
    value.extend_from_slice(&key.to_le_bytes());
    value.extend_from_slice(&count.to_le_bytes());
    value.resize(16 + bytes, key as u8 ^ count as u8);
    value
}

fn check_value(key: u64, value: &[u8]) {
    let (head, rest) = value.split_at(16);
    let count = u64::from_le_bytes(head[8..].try_into().unwrap());
    assert_eq!(head[..8], key.to_le_bytes());
    assert!(
        rest.iter().all(|byte| *byte == key as u8 ^ count as u8),
        "a torn value of key {key}"
    );
}

/// Reads all keys, again and again.
fn read_until(store: &Arc<Store>, stop: &AtomicBool, seed: u64) {
    let mut session = store.session().unwrap();
    let mut versions = vec![0u64; 40_000];
    let mut key = seed;
    while !stop.load(Ordering::Relaxed) {
        let guard = session.pin();
        for _ in 0..16 {
            key = (key + 7919) % 40_000;
            if let Some(object) = guard
                .read(TABLE, guard.hash(&key.to_le_bytes()), &key.to_le_bytes())
                .unwrap()
            {
                check_value(key, object.value);
                assert!(
                    object.version >= versions[key as usize],
                    "versions only grow"
                );
                versions[key as usize] = object.version;
            }
        }
    }
}

#[test]
fn writers_readers_and_cleaners_share_the_store() {
    let store = store(64, 3, 2);
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=3u64 {
            let (store, writes) = (&store, &writes);
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                let mut random = Random::new(seed);
                for count in 0..100_000u64 {
                    let key = random.below(40_000);
                    let mut guard = session.pin();
                    let hash = guard.hash(&key.to_le_bytes());
                    if count % 10 == 0 {
                        guard.remove(TABLE, hash, &key.to_le_bytes()).unwrap();
                    } else {
                        let value = value_of(key, count, random.index(1200));
                        guard
                            .write(TABLE, hash, &key.to_le_bytes(), &value, None)
                            .unwrap();
                    }
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for seed in 0..2u64 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || read_until(store, stop, seed));
        }
        let deadline = Instant::now() + Duration::from_secs(300);
        while writes.load(Ordering::Relaxed) < 300_000 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = store.stats();
    assert_eq!(writes.load(Ordering::Relaxed), 300_000);
    assert!(stats.cleaner.segments_cleaned > 20, "{stats:?}");
    let mut session = store.session().unwrap();
    let guard = session.pin();
    let (mut cursor, mut seen) = (0, 0);
    loop {
        cursor = guard
            .walk()
            .scan(TABLE, cursor, 100, |object| {
                check_value(
                    u64::from_le_bytes(object.key.try_into().unwrap()),
                    object.value,
                );
                seen += 1;
            })
            .unwrap();
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, stats.objects);
}

#[test]
fn increments_of_all_threads_add_up() {
    let store = store(64, 2, 1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = store.session().unwrap();
                for n in 0..20_000u64 {
                    let key = (n % 5).to_le_bytes();
                    let mut guard = session.pin();
                    guard.increment(TABLE, guard.hash(&key), &key, 1).unwrap();
                }
            });
        }
    });
    let mut session = store.session().unwrap();
    for key in 0..5u64 {
        let mut guard = session.pin();
        let hash = guard.hash(&key.to_le_bytes());
        let done = guard.increment(TABLE, hash, &key.to_le_bytes(), 0).unwrap();
        assert_eq!((done.value, done.version), (16_000, 16_001));
    }
}

const ACCOUNTS: u64 = 20;

fn transfer(store: &Arc<Store>, seed: u64) {
    let mut session = store.session().unwrap();
    for n in 0..20_000u64 {
        let (a, b) = (
            (n * 7 + seed) % ACCOUNTS,
            (n * 13 + 3 * seed + 1) % ACCOUNTS,
        );
        let mut guard = session.pin();
        let (ha, hb) = (guard.hash(&a.to_le_bytes()), guard.hash(&b.to_le_bytes()));
        guard.lock_keys(&[(TABLE, ha), (TABLE, hb)]).unwrap();
        guard.increment(TABLE, ha, &a.to_le_bytes(), -1).unwrap();
        guard.increment(TABLE, hb, &b.to_le_bytes(), 1).unwrap();
        guard.unlock_keys();
    }
}

/// Adds up all accounts, again and again.
fn sum_until(store: &Arc<Store>, stop: &AtomicBool) {
    let number = |value: &[u8]| std::str::from_utf8(value).unwrap().parse::<i64>().unwrap();
    let mut session = store.session().unwrap();
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let mut guard = if round.is_multiple_of(64) {
            session.pin_exclusive()
        } else {
            session.pin()
        };
        let keys: Vec<_> = (0..ACCOUNTS)
            .map(|key| (TABLE, guard.hash(&key.to_le_bytes())))
            .collect();
        guard.lock_keys(&keys).unwrap();
        let sum: i64 = (0..ACCOUNTS)
            .map(|key| {
                let key = key.to_le_bytes();
                number(
                    guard
                        .read(TABLE, guard.hash(&key), &key)
                        .unwrap()
                        .unwrap()
                        .value,
                )
            })
            .sum();
        assert_eq!(sum, ACCOUNTS as i64 * 100);
    }
}

/// Transfers between accounts keep the sum. Readers that read all accounts under one lock see it
/// kept, and so does a session that is alone in the store.
#[test]
fn transactions_are_isolated() {
    let store = store(64, 2, 1);
    let mut session = store.session().unwrap();
    for key in 0..ACCOUNTS {
        let mut guard = session.pin();
        guard
            .increment(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                100,
            )
            .unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|seed| {
                let store = &store;
                scope.spawn(move || transfer(store, seed))
            })
            .collect();
        let (store, stop) = (&store, &stop);
        scope.spawn(move || sum_until(store, stop));
        // One account read after another, without locks: once a transfer's effect is seen, it is
        // seen whole.
        scope.spawn(move || {
            let mut session = store.session().unwrap();
            while !stop.load(Ordering::Relaxed) {
                let guard = session.pin();
                let key = 3u64.to_le_bytes();
                let first = guard
                    .read(TABLE, guard.hash(&key), &key)
                    .unwrap()
                    .unwrap()
                    .version;
                let second = guard
                    .read(TABLE, guard.hash(&key), &key)
                    .unwrap()
                    .unwrap()
                    .version;
                assert!(second >= first);
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_store_refuses_writes_and_recovers() {
    let store = store(64, 1, 1);
    let mut session = store.session().unwrap();
    let mut written = 0u64;
    let refused = loop {
        let mut guard = session.pin();
        let hash = guard.hash(&written.to_le_bytes());
        match guard.write(TABLE, hash, &written.to_le_bytes(), &[1; 400], None) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused:?}");
    let stats = store.stats();
    assert!(stats.utilization > 0.70, "{stats:?}");
    assert!(stats.committed_bytes <= 64 * MIB);
    // Reads and deletes go on, and no written data are lost.
    for key in 0..written {
        let mut guard = session.pin();
        let hash = guard.hash(&key.to_le_bytes());
        assert!(
            guard
                .read(TABLE, hash, &key.to_le_bytes())
                .unwrap()
                .is_some(),
            "{key} of {written}"
        );
        if key % 3 == 0 {
            assert!(
                guard
                    .remove(TABLE, hash, &key.to_le_bytes())
                    .unwrap()
                    .before
                    .is_some()
            );
        }
    }
    // With a third deleted there is room again, for new data as long as for overwrites.
    for key in 0..written / 4 {
        let mut guard = session.pin();
        let hash = guard.hash(&key.to_le_bytes());
        guard
            .write(TABLE, hash, &key.to_le_bytes(), &[2; 400], None)
            .unwrap();
    }
}

#[test]
#[ignore = "full tier"]
fn high_utilization_keeps_taking_overwrites() {
    let store = store(128, 1, 1);
    let mut session = store.session().unwrap();
    let mut keys = 0u64;
    while store.stats().utilization < 0.85 {
        for _ in 0..1000 {
            let mut guard = session.pin();
            guard
                .write(
                    TABLE,
                    guard.hash(&keys.to_le_bytes()),
                    &keys.to_le_bytes(),
                    &[0; 92],
                    None,
                )
                .unwrap();
            keys += 1;
        }
    }
    let before = store.stats();
    let mut random = Random::new(1);
    for _ in 0..3 * keys {
        let key = random.below(keys);
        let mut guard = session.pin();
        guard
            .write(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                &[1; 92],
                None,
            )
            .unwrap();
    }
    let after = store.stats();
    assert_eq!((after.objects, after.live_bytes), (keys, before.live_bytes));
    assert!(after.cleaner.segments_cleaned > 100, "{after:?}");
}

#[test]
fn a_cache_evicts_what_is_not_read() {
    let mut options = Options::new(64 * MIB);
    options.mode = Mode::Cache;
    options.heads = 1;
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    const HOT: u64 = 5_000;
    for key in 0..600_000u64 {
        let mut guard = session.pin();
        guard
            .write(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                &value_of(key, 1, 200),
                None,
            )
            .unwrap();
        let hot = (key % HOT).to_le_bytes();
        if key >= HOT {
            let _ = guard.read(TABLE, guard.hash(&hot), &hot).unwrap();
        }
    }
    let stats = store.stats();
    assert!(stats.entries_evicted > 300_000, "{stats:?}");
    assert!(stats.committed_bytes <= 64 * MIB);
    let guard = session.pin();
    let there = (0..HOT).filter(|key| {
        guard
            .read(TABLE, guard.hash(&key.to_le_bytes()), &key.to_le_bytes())
            .unwrap()
            .is_some()
    });
    let kept = there.count() as u64;
    assert!(kept > HOT * 9 / 10, "{kept} of {HOT} hot keys kept");
}

#[test]
fn memory_follows_the_data_down() {
    let store = store(256, 1, 1);
    let mut session = store.session().unwrap();
    let keys = 400_000u64;
    for key in 0..keys {
        let mut guard = session.pin();
        guard
            .write(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                &[3; 400],
                None,
            )
            .unwrap();
    }
    let full = store.stats();
    for key in (0..keys).filter(|key| key % 10 != 0) {
        let mut guard = session.pin();
        let hash = guard.hash(&key.to_le_bytes());
        // Half of the deletes are transactions: the index once did not shrink after those.
        if key % 2 == 0 {
            guard.lock_keys(&[(TABLE, hash)]).unwrap();
        }
        guard.remove(TABLE, hash, &key.to_le_bytes()).unwrap();
    }
    let report = store.memory_report();
    assert!(
        report.index_slots < report.objects * 2,
        "{} slots for {} objects",
        report.index_slots,
        report.objects
    );
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let now = store.stats();
        if now.committed_bytes < full.committed_bytes / 4 {
            break;
        }
        assert!(Instant::now() < deadline, "from {full:?} to {now:?}");
        std::thread::yield_now();
    }
}

#[test]
fn expired_entries_go_by_themselves() {
    let clock = Arc::new(AtomicU64::new(5_000_000));
    let mut options = Options::new(64 * MIB);
    options.clock = duramen_engine::Clock::Manual(clock.clone());
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    for key in 0..50_000u64 {
        let mut guard = session.pin();
        let expires_at_ms = (key % 2 == 0).then_some(5_001_000);
        guard
            .write(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                &[3; 100],
                expires_at_ms,
            )
            .unwrap();
    }
    assert_eq!(store.tables().expiring_objects(TABLE), 25_000);
    clock.store(5_002_000, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(300);
    while store.stats().objects > 25_000 {
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        std::thread::yield_now();
    }
    assert_eq!(store.stats().entries_expired, 25_000);
    assert_eq!(store.tables().expiring_objects(TABLE), 0);
}

#[test]
fn tables_are_separate_and_versions_survive_clearing() {
    let store = store(64, 1, 1);
    let other = store.tables().create("other").unwrap();
    assert_eq!(
        store.tables().create("other"),
        Err(Error::TableExists("other".into()))
    );
    let mut session = store.session().unwrap();
    let put = |session: &mut duramen_engine::Session, table, value: &[u8]| {
        let mut guard = session.pin();
        guard
            .write(table, guard.hash(b"k"), b"k", value, None)
            .unwrap()
            .after
            .unwrap()
    };
    put(&mut session, TABLE, b"a");
    put(&mut session, other, b"b");
    let last = put(&mut session, other, b"c");
    for _ in 0..2 {
        store.tables().clear(other).unwrap();
        let guard = session.pin();
        assert!(guard.read(other, guard.hash(b"k"), b"k").unwrap().is_none());
        assert_eq!(
            guard
                .read(TABLE, guard.hash(b"k"), b"k")
                .unwrap()
                .unwrap()
                .value,
            b"a"
        );
    }
    assert!(put(&mut session, other, b"d") > last);
    assert_eq!(
        (store.tables().objects(TABLE), store.tables().objects(other)),
        (1, 1)
    );
    store.tables().drop(other).unwrap();
    let guard = session.pin();
    assert_eq!(
        guard.read(other, guard.hash(b"k"), b"k"),
        Err(Error::NoSuchTable(other))
    );
    drop(guard);
    assert_eq!(store.tables().drop(TABLE), Err(Error::NoSuchTable(TABLE)));
    assert_eq!(store.tables().list().len(), 1);
}

#[test]
fn stamps_change_with_every_write_and_delete() {
    let store = store(64, 1, 0);
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"watched");
    let mut stamps = vec![guard.stamp(TABLE, hash, b"watched").unwrap()];
    for _ in 0..3 {
        guard.write(TABLE, hash, b"watched", b"1", None).unwrap();
        stamps.push(guard.stamp(TABLE, hash, b"watched").unwrap());
        guard.remove(TABLE, hash, b"watched").unwrap();
        stamps.push(guard.stamp(TABLE, hash, b"watched").unwrap());
    }
    for (n, a) in stamps.iter().enumerate() {
        assert!(
            stamps[n + 1..].iter().all(|b| !a.still_holds(b)),
            "{stamps:?}"
        );
    }
    assert!(matches!(stamps[0], Stamp::Absent { .. }));

    // One that came and expired meanwhile.
    let before = guard.stamp(TABLE, hash, b"watched").unwrap();
    let soon = guard.now_ms() + 1;
    guard
        .write(TABLE, hash, b"watched", b"1", Some(soon))
        .unwrap();
    drop(guard);
    std::thread::sleep(std::time::Duration::from_millis(5));
    let mut guard = session.pin();
    let after = guard.stamp(TABLE, hash, b"watched").unwrap();
    assert!(matches!(after, Stamp::Absent { .. }), "{after:?}");
    assert!(!before.still_holds(&after), "{before:?} {after:?}");
    assert!(after.still_holds(&after));
    guard.remove(TABLE, hash, b"watched").unwrap();

    // Deletes of other keys do not change it, except those that are counted with it.
    let absent = guard
        .stamp(TABLE, guard.hash(b"absent"), b"absent")
        .unwrap();
    let mut alarms = 0;
    for n in 0..1000u64 {
        let key = n.to_le_bytes();
        guard
            .write(TABLE, guard.hash(&key), &key, b"x", None)
            .unwrap();
    }
    let mut last = guard
        .stamp(TABLE, guard.hash(b"absent"), b"absent")
        .unwrap();
    assert!(absent.still_holds(&last), "nothing was deleted");
    for n in 0..300u64 {
        let key = n.to_le_bytes();
        guard.remove(TABLE, guard.hash(&key), &key).unwrap();
        let now = guard
            .stamp(TABLE, guard.hash(b"absent"), b"absent")
            .unwrap();
        alarms += u32::from(!last.still_holds(&now));
        last = now;
    }
    assert!(
        alarms < 30,
        "{alarms} of 300 deletes of other keys were alarms"
    );
}

/// 8 bits once counted the removals in a key's bucket, to show whether an absent key had come and
/// gone. After exactly 256 of them `EXEC` took place although its key had been written; and also
/// when the bucket had been rebuilt at the same place.
#[test]
fn a_key_that_came_and_went_256_times_has_changed() {
    let store = store(64, 1, 0);
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"watched");
    let stamp = |guard: &Guard<'_>| guard.stamp(TABLE, hash, b"watched").unwrap();
    guard.write(TABLE, hash, b"watched", b"1", None).unwrap();
    guard.remove(TABLE, hash, b"watched").unwrap();
    let before = stamp(&guard);
    for n in 1..=512 {
        guard.write(TABLE, hash, b"watched", b"1", None).unwrap();
        guard.remove(TABLE, hash, b"watched").unwrap();
        assert!(!before.still_holds(&stamp(&guard)), "after {n} removals");
    }
    drop(guard);
    let mut guard = session.pin();
    let before = stamp(&guard);
    guard.write(TABLE, hash, b"watched", b"1", None).unwrap();
    drop(guard);
    session.pin_exclusive().clear(TABLE).unwrap();
    let after = stamp(&session.pin());
    assert!(!before.still_holds(&after), "cleared with its table");
}

/// Keys that were chosen to land in one bucket once ended the server by an assertion.
#[test]
fn keys_chosen_for_one_bucket_are_refused_in_time() {
    // One of this many parts of the hashes is in one bucket: 16 partitions, and at most 200 buckets
    // for so few keys.
    const PARTS: u64 = 16 * 200;
    let store = store(64, 1, 0);
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    let mut taken = Vec::new();
    // The lower 50 bits; the first of them choose the partition, and the part of it.
    let place = |guard: &Guard<'_>, key: &[u8]| guard.route(guard.hash(key), key).0 << 14;
    let all = || (0u64..).map(u64::to_le_bytes);
    let alike = all().filter(|key| place(&guard, key) < u64::MAX / PARTS);
    let keys: Vec<_> = alike.take(1100).collect();
    let another = all().find(|key| place(&guard, key) > u64::MAX / 2).unwrap();
    let refused = keys.iter().position(|key| {
        let written = guard.write(TABLE, guard.hash(key), key, b"x", None);
        taken.push(*key);
        written == Err(Error::Crowded)
    });
    let last = taken.pop().unwrap();
    assert!(refused.is_some_and(|refused| refused > 1000), "{refused:?}");
    let read = |guard: &Guard<'_>, key: &[u8]| {
        let found = guard.read(TABLE, guard.hash(key), key).unwrap();
        found.is_some()
    };
    assert!(!read(&guard, &last) && taken.iter().all(|key| read(&guard, key)));
    // Keys in the bucket can be written, others too, and there is room again when some are removed.
    for key in [&taken[0], &another] {
        guard
            .write(TABLE, guard.hash(key), key, b"y", None)
            .unwrap();
    }
    for key in &taken {
        guard.remove(TABLE, guard.hash(key), key).unwrap();
    }
    guard
        .write(TABLE, guard.hash(&last), &last, b"x", None)
        .unwrap();
}

#[test]
fn limits_are_errors_that_change_nothing() {
    assert!(matches!(
        Store::new(Options::new(MIB)).err(),
        Some(Error::BudgetTooSmall { .. })
    ));
    let store = store(64, 1, 1);
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    let long = vec![b'k'; 65_536];
    let error = guard
        .write(TABLE, guard.hash(&long), &long, b"", None)
        .unwrap_err();
    assert_eq!(
        error,
        Error::KeyTooLarge {
            bytes: 65_536,
            limit: 65_535
        }
    );
    let big = vec![0; (1 << 20) + 1];
    let error = guard
        .write(TABLE, guard.hash(b"k"), b"k", &big, None)
        .unwrap_err();
    assert_eq!(
        error,
        Error::ValueTooLarge {
            bytes: (1 << 20) + 1,
            limit: 1 << 20
        }
    );
    assert!(guard.read(TABLE, guard.hash(b"k"), b"k").unwrap().is_none());
    guard
        .write(TABLE, guard.hash(b"k"), b"k", &big[1..], None)
        .unwrap();
    guard
        .write(TABLE, guard.hash(b"n"), b"n", b"9223372036854775807", None)
        .unwrap();
    assert_eq!(
        guard.increment(TABLE, guard.hash(b"n"), b"n", 1),
        Err(Error::Overflow)
    );
    assert_eq!(
        guard.increment(TABLE, guard.hash(b"k"), b"k", 1),
        Err(Error::NotAnInteger)
    );
    let sum = guard
        .increment_float(TABLE, guard.hash(b"f"), b"f", 10.5)
        .unwrap();
    assert_eq!(sum.value, 10.5);
    // An update may read and change nothing.
    let kept = guard
        .update(TABLE, guard.hash(b"f"), b"f", |_, _| Decision::Keep)
        .unwrap();
    assert_eq!((kept.before, kept.after), (Some(1), Some(1)));
}

/// Objects of the largest size fragment the windows: seven to a window of eight, whatever the
/// cleaner does.
#[test]
#[ignore = "full tier"]
fn largest_objects_fill_the_store_and_are_overwritten() {
    for mode in [Mode::Store, Mode::Cache] {
        let mut options = Options::new(256 * MIB);
        options.heads = 1;
        options.mode = mode;
        let store = Store::new(options).unwrap();
        let mut session = store.session().unwrap();
        let value = vec![7; 1 << 20];
        let mut keys = 0u64;
        let mut refused = 0;
        for n in 0..1500u64 {
            let key = if refused == 0 { n } else { n % (keys * 3 / 4) };
            let mut guard = session.pin();
            match guard.write(
                TABLE,
                guard.hash(&key.to_le_bytes()),
                &key.to_le_bytes(),
                &value,
                None,
            ) {
                Ok(_) => keys = keys.max(key + 1),
                Err(Error::OutOfMemory { .. }) => {
                    refused += 1;
                    for key in keys * 3 / 4..keys {
                        guard
                            .remove(TABLE, guard.hash(&key.to_le_bytes()), &key.to_le_bytes())
                            .unwrap();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(mode == Mode::Store || refused == 0, "a cache never refuses");
        assert!(
            refused < 20,
            "refused {refused} times in {mode:?} with a quarter deleted"
        );
    }
}

#[test]
fn multi_forms_do_each_part_for_itself() {
    let store = store(64, 1, 1);
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    let mut many = guard.many(TABLE);
    let keys: Vec<[u8; 8]> = (0..100u64).map(u64::to_le_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let parts: Vec<Part<'_>> = keys.iter().map(|key| Part::new(key, b"7")).collect();
    let mut written = 0;
    let count = |n: usize, result: Result<_, Error>, written: &mut usize| {
        assert_eq!(n, *written);
        *written += usize::from(result.is_ok());
    };
    many.write(&parts, |n, result| count(n, result, &mut written))
        .unwrap();
    assert_eq!(written, 100);

    // Every third key is removed; then a conditional write of all succeeds for exactly these.
    let thirds: Vec<&[u8]> = keys.iter().copied().step_by(3).collect();
    many.remove(&thirds, |_, result| {
        assert_eq!(result.unwrap().before, Some(1));
    })
    .unwrap();
    let absent: Vec<Part<'_>> = keys
        .iter()
        .map(|key| Part {
            condition: Condition::Absent,
            ..Part::new(key, b"1")
        })
        .collect();
    many.write(&absent, |n, result| {
        assert_eq!(result.is_ok(), n.is_multiple_of(3), "{n}");
    })
    .unwrap();

    let by: Vec<(&[u8], i64)> = keys.iter().zip(0..).map(|(key, n)| (*key, n)).collect();
    many.increment(&by, |n, result| {
        let old = if n.is_multiple_of(3) { 1 } else { 7 };
        assert_eq!(result.unwrap().value, old + n as i64);
    })
    .unwrap();
    let mut seen = Vec::new();
    many.read(&[keys[1], b"nobody", keys[99]], |n, found| {
        seen.push((n, found.map(|object| object.value.to_vec())));
    })
    .unwrap();
    let expected = [
        (0, Some(b"8".to_vec())),
        (1, None),
        (2, Some(b"100".to_vec())),
    ];
    assert_eq!(seen, expected);
    let missing = guard.many(TableId(9)).read(&keys, |_, _| unreachable!());
    assert_eq!(missing, Err(Error::NoSuchTable(TableId(9))));
}
