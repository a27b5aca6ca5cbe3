//! The scenarios of docs/traps.md, "Scenarios", about cleaning and restart, each by its number.

use crate::two_levels::disk::{Device, Mistake, Running, Setup};
use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_engine::{Error, LoadError, MissingSegments, Session, TableId, Unfinished};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;

pub fn put(session: &mut Session, key: &[u8], value: &[u8]) -> Result<u64, Error> {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    let outcome = guard.write(TABLE, hash, key, value, None)?;
    Ok(outcome.after.expect("written"))
}

pub fn remove(session: &mut Session, key: &[u8]) -> Result<bool, Error> {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    Ok(guard.remove(TABLE, hash, key)?.before.is_some())
}

pub fn get(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    let guard = session.pin();
    let found = guard.read(TABLE, guard.hash(key), key).unwrap();
    found.map(|object| object.value.to_vec())
}

pub fn fresh(setup: &Setup) -> Running {
    setup.start(Device::default(), Mistake::None, 1)
}

/// Closes the heads' segments and makes everything durable.
pub fn seal(running: &Running) {
    running.store.heads().close_all();
    running.writer(|writer, log| writer.settle(log));
}

/// Cleans until there is nothing left to clean; executes the Swaps.
pub fn clean_all(running: &Running) {
    for _ in 0..50 {
        let worked = running.store.clean_step(1 << 30);
        running.writer(|writer, log| writer.settle(log));
        if !worked {
            return;
        }
    }
}

pub fn listed(running: &Running) -> usize {
    running.writer(|writer, _| writer.device.listed.len())
}

#[test]
fn scenario_07_a_deleted_object_stays_away_though_its_frame_was_never_freed() {
    let setup = Setup::small();
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    put(&mut session, b"deleted", b"v1").unwrap();
    put(&mut session, b"other", b"x").unwrap();
    seal(&running);
    assert!(remove(&mut session, b"deleted").unwrap());
    put(&mut session, b"third", b"y").unwrap();
    seal(&running);
    let before = listed(&running);
    clean_all(&running);
    // The victim and, in the same pass or a later one, its tombstone are gone.
    assert!(listed(&running) < before);
    drop(session);
    let device = running.crash();
    let running = setup.start(device, Mistake::None, 2);
    let mut session = running.store.session().unwrap();
    assert_eq!(get(&mut session, b"deleted"), None);
    assert_eq!(get(&mut session, b"other").as_deref(), Some(&b"x"[..]));
    assert_eq!(get(&mut session, b"third").as_deref(), Some(&b"y"[..]));
}

#[test]
fn scenario_08_without_its_swap_a_pass_never_was_and_can_be_tried_again() {
    let setup = Setup::small();
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for round in 0..4u8 {
        for key in 0..50u8 {
            put(&mut session, &[key % (50 - round)], &[round, key]).unwrap();
        }
        seal(&running);
    }
    let before = running.writer(|writer, _| writer.device.listed.clone());
    for _ in 0..20 {
        running.store.clean_step(1 << 30);
    }
    // Survivors' frames are written, the Swap is proposed; its record is lost.
    running.writer(|writer, log| {
        while writer.frame(log) {}
        writer.stage(log);
        writer.commit(log);
        assert!(writer.swap(log), "a Swap is proposed");
        assert_eq!(writer.device.listed, before);
    });
    let shown: Vec<_> = (0..50u8).map(|key| get(&mut session, &[key])).collect();
    drop(session);
    let running = setup.start(running.crash(), Mistake::None, 1);
    let mut session = running.store.session().unwrap();
    let again: Vec<_> = (0..50u8).map(|key| get(&mut session, &[key])).collect();
    assert_eq!(shown, again);
    clean_all(&running);
    assert!(listed(&running) < before.len(), "the retry works");
    let cleaned: Vec<_> = (0..50u8).map(|key| get(&mut session, &[key])).collect();
    assert_eq!(shown, cleaned);
}

/// swap::D4: a crash cuts a pass off after a tombstone that names its survivor became durable. The
/// tombstone must stay as long as a victim of that pass does. Returns the value that a deleted key
/// shows.
pub fn deleted_after_a_pass_that_was_cut_off(mistake: Mistake) -> Option<Vec<u8>> {
    let setup = Setup::small();
    let running = setup.start(Device::default(), mistake, 1);
    let mut session = running.store.session().unwrap();
    let large = vec![7; duramen_engine::segment_bytes(setup.memory_bytes) as usize * 9 / 20];
    put(&mut session, b"deleted", b"v1").unwrap();
    for key in 0..2u8 {
        put(&mut session, &[b'a', key], &large).unwrap();
    }
    seal(&running);
    put(&mut session, b"short", b"v1").unwrap();
    seal(&running);
    // The pass unites both segments. None of it becomes durable.
    for _ in 0..20 {
        running.store.clean_step(1 << 30);
    }
    let swaps = running.writer(|writer, _| writer.device.swaps);
    assert!(remove(&mut session, b"deleted").unwrap());
    put(&mut session, b"beside", &large).unwrap();
    running.store.heads().close_all();
    running.writer(|writer, log| {
        for _ in 0..2 {
            writer.stage(log);
            writer.commit(log);
        }
        assert_eq!(writer.device.swaps, swaps);
        assert_eq!(writer.device.listed.len(), 3, "two victims, and a head");
    });
    drop(session);
    // All entries beside the tombstone, and beside the short victim, die: both segments leave the
    // disk.
    let running = setup.start(running.crash(), mistake, 1);
    let mut session = running.store.session().unwrap();
    assert_eq!(get(&mut session, b"deleted"), None);
    for name in [&b"short"[..], b"beside"] {
        assert!(remove(&mut session, name).unwrap());
    }
    clean_all(&running);
    drop(session);
    let running = setup.start(running.crash(), mistake, 1);
    let mut session = running.store.session().unwrap();
    get(&mut session, b"deleted")
}

#[test]
fn a_tombstone_outlives_the_victims_of_a_pass_that_was_cut_off() {
    assert_eq!(deleted_after_a_pass_that_was_cut_off(Mistake::None), None);
}

#[test]
fn scenario_09_what_an_undurable_write_killed_is_still_on_disk() {
    for level in ["compacted", "cleaned"] {
        let setup = Setup::small();
        let running = fresh(&setup);
        let mut session = running.store.session().unwrap();
        for key in 0..40u8 {
            put(&mut session, &[key], b"v1").unwrap();
        }
        seal(&running);
        if level == "cleaned" {
            // Two segments, so that a pass can gain memory.
            put(&mut session, b"more", b"v1").unwrap();
            seal(&running);
        }
        for key in 0..40u8 {
            put(&mut session, &[key], b"v2").unwrap();
        }
        for _ in 0..20 {
            running.store.clean_step(1 << 30);
        }
        running.store.heads().close_all();
        running.writer(|writer, log| {
            while writer.frame(log) {}
            assert!(!writer.swap(log), "v2 is not durable, so no Swap");
        });
        drop(session);
        let running = setup.start(running.crash(), Mistake::None, 1);
        let mut session = running.store.session().unwrap();
        for key in 0..40u8 {
            assert_eq!(
                get(&mut session, &[key]).as_deref(),
                Some(&b"v1"[..]),
                "{level}"
            );
        }
    }
}

/// Runs a log writer on a thread of its own while `work` runs.
pub fn with_writer<T>(running: &Running, work: impl FnOnce() -> T) -> T {
    with_writer_that(running, true, work)
}

/// As [`with_writer`]; with `swaps` false no pass comes to its end, so that the log is long.
pub fn with_writer_that<T>(running: &Running, swaps: bool, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                running.writer(|writer, log| {
                    writer.stage(log);
                    writer.commit(log);
                    if swaps {
                        writer.frame(log);
                        writer.swap(log);
                    }
                });
                std::thread::yield_now();
            }
        });
        let stopper = Stopper(&stop);
        let result = work();
        drop(stopper);
        result
    })
}

/// Stops the writer even if the work panics; otherwise the scope would wait for ever.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub fn busy_setup() -> Setup {
    Setup {
        cleaners: 1,
        disk_segments_max: 64,
        ..Setup::small()
    }
}

/// It takes seconds on an idle machine; the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(300);

pub fn in_time(started: Instant) {
    assert!(started.elapsed() < DEADLINE, "it hangs");
}

#[test]
fn scenario_13_a_full_store_takes_deletes_and_then_writes() {
    let running = fresh(&busy_setup());
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        let started = Instant::now();
        let mut keys = 0u32;
        let full = loop {
            in_time(started);
            match put(&mut session, &keys.to_le_bytes(), &[7; 100]) {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::OutOfMemory { .. }), "{full}");
        assert!(keys > 150_000, "{keys} objects of 120 bytes fit");
        for key in 0..keys {
            in_time(started);
            assert!(remove(&mut session, &key.to_le_bytes()).unwrap(), "{key}");
        }
        assert_eq!(running.store.tables().objects(TABLE), 0);
        for key in 0..keys / 2 {
            in_time(started);
            put(&mut session, &key.to_le_bytes(), &[8; 100]).unwrap();
        }
    });
}

/// Passes alone have to free overwritten data, although ten of the segments that they find free
/// none, and a waiting writer cannot begin a pass itself.
#[test]
fn one_level_goes_on_when_segments_are_nearly_full() {
    let setup = Setup {
        memory_bytes: 160 << 20,
        heads: 1,
        disk_segments_max: 160,
        two_levels: false,
        ..busy_setup()
    };
    let running = fresh(&setup);
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        let started = Instant::now();
        let mut keys = 0u64;
        while running.store.stats().utilization < 0.88 {
            in_time(started);
            put(&mut session, &keys.to_le_bytes(), &[1; 10_000]).unwrap();
            keys += 1;
        }
        let mut random = Random::new(1);
        for _ in 0..keys {
            in_time(started);
            let key = random.below(keys);
            put(&mut session, &key.to_le_bytes(), &[2; 10_000]).unwrap();
        }
    });
    let stats = running.store.stats();
    assert!(stats.cleaner.passes > 0 && stats.cleaner.compactions == 0);
}

#[test]
fn scenario_14_one_key_overwritten_for_ever_keeps_the_log_small() {
    let setup = busy_setup();
    let running = fresh(&setup);
    let times = 10_000_000u64;
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        for n in 0..times {
            put(&mut session, b"key", &n.to_le_bytes()).unwrap();
            if n % 1000 == 0 {
                put(&mut session, &n.to_le_bytes(), b"").unwrap();
                assert!(remove(&mut session, &n.to_le_bytes()).unwrap());
            }
        }
        assert!(running.store.stats().committed_bytes <= setup.memory_bytes);
    });
    running.writer(|writer, log| writer.settle(log));
    assert!(listed(&running) <= 64);
    let running = setup.start(running.crash(), Mistake::None, 2);
    let mut session = running.store.session().unwrap();
    let found = get(&mut session, b"key").unwrap();
    assert_eq!(found, (times - 1).to_le_bytes());
    assert_eq!(running.store.tables().objects(TABLE), 1);
}

#[test]
fn scenario_15_random_sizes_up_to_the_largest_do_not_wedge_the_cleaner() {
    let setup = busy_setup();
    let running = fresh(&setup);
    let mut random = Random::new(15);
    let mut expected = std::collections::BTreeMap::new();
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        let started = Instant::now();
        for n in 0..3000u64 {
            in_time(started);
            let key = random.below(60);
            let bytes = match random.below(4) {
                0 => 1 << 20,
                1 => random.below(1 << 20) as usize,
                2 => random.below(100_000) as usize,
                _ => random.below(1000) as usize,
            };
            match put(&mut session, &key.to_le_bytes(), &vec![n as u8; bytes]) {
                Ok(_) => {
                    expected.insert(key, (n as u8, bytes));
                }
                // Full of live data: an object has to be removed.
                Err(Error::OutOfMemory { .. } | Error::DiskFull) => {
                    let (key, _) = expected.pop_first().expect("something is there");
                    assert!(remove(&mut session, &key.to_le_bytes()).unwrap());
                }
                Err(error) => panic!("{error}"),
            }
            assert!(running.store.stats().committed_bytes <= setup.memory_bytes);
        }
    });
    running.writer(|writer, log| writer.settle(log));
    let running = setup.start(running.crash(), Mistake::None, 2);
    let mut session = running.store.session().unwrap();
    assert_eq!(running.store.tables().objects(TABLE), expected.len() as u64);
    for (key, (byte, bytes)) in expected {
        let value = get(&mut session, &key.to_le_bytes()).unwrap();
        assert!(
            value.len() == bytes && value.iter().all(|b| *b == byte),
            "{key}"
        );
    }
}

#[test]
fn scenario_16_memory_under_a_long_read_is_not_reused() {
    let running = fresh(&Setup::small());
    let mut reader = running.store.session().unwrap();
    let mut session = running.store.session().unwrap();
    for key in 0..200u8 {
        put(&mut session, &[key], &[key; 10_000]).unwrap();
    }
    seal(&running);
    let guard = reader.pin();
    let read = |key: u8| guard.read(TABLE, guard.hash(&[key]), &[key]).unwrap();
    let seen: Vec<_> = (0..200u8).map(|key| read(key).unwrap()).collect();
    for round in 0..8u8 {
        for key in (0..200u8).filter(|key| (key + round) % 3 > 0) {
            put(&mut session, &[key], &[key ^ 0xff; 10_000]).unwrap();
        }
        seal(&running);
        clean_all(&running);
    }
    assert!(running.store.stats().cleaner.segments_cleaned > 4);
    for (key, object) in (0..).zip(&seen) {
        assert!(object.value.iter().all(|byte| *byte == key), "{key}");
    }
    drop(guard);
    for round in 0..40u8 {
        put(&mut session, b"more", &vec![round; 1 << 20]).expect("what was held back is free");
        seal(&running);
        clean_all(&running);
    }
}

#[test]
fn scenario_17_writers_rolls_and_both_levels_at_once() {
    let setup = Setup {
        cleaners: 2,
        heads: 3,
        ..busy_setup()
    };
    let running = fresh(&setup);
    const KEYS: u64 = 4000;
    let last: Vec<AtomicU64> = (0..3 * KEYS).map(|_| AtomicU64::new(u64::MAX)).collect();
    with_writer(&running, || {
        std::thread::scope(|scope| {
            for writer in 0..3u64 {
                let (last, store) = (&last, &running.store);
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    let mut random = Random::new(writer);
                    for n in 0..150_000u64 {
                        // Mostly the writer's own keys, which no other thread writes; the last
                        // written value must be there.
                        let key = writer * KEYS + random.below(KEYS);
                        let known = &last[key as usize];
                        let found = get(&mut session, &key.to_le_bytes());
                        let found = found.map(|value| {
                            u64::from_le_bytes(value[..8].try_into().expect("a number"))
                        });
                        let expected = known.load(Ordering::Relaxed);
                        assert_eq!(found, (expected != u64::MAX).then_some(expected));
                        if random.below(5) == 0 {
                            remove(&mut session, &key.to_le_bytes()).unwrap();
                            known.store(u64::MAX, Ordering::Relaxed);
                        } else {
                            let mut value = n.to_le_bytes().to_vec();
                            value.resize(8 + random.below(2000) as usize, 1);
                            put(&mut session, &key.to_le_bytes(), &value).unwrap();
                            known.store(n, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    });
    running.writer(|writer, log| writer.settle(log));
    let stats = running.store.stats();
    let swaps = running.writer(|writer, _| writer.device.swaps);
    // Seven times the memory was written, and more than the disk may hold.
    let cleaner = &stats.cleaner;
    assert!(
        cleaner.segments_cleaned > 100 && cleaner.compactions > 0 && swaps > 0,
        "{swaps} swaps, {stats:?}"
    );
    let running = setup.start(running.crash(), Mistake::None, 3);
    let mut session = running.store.session().unwrap();
    for key in 0..3 * KEYS {
        let found = get(&mut session, &key.to_le_bytes());
        let found = found.map(|value| u64::from_le_bytes(value[..8].try_into().expect("a number")));
        let expected = last[key as usize].load(Ordering::Relaxed);
        assert_eq!(
            found,
            (expected != u64::MAX).then_some(expected),
            "key {key}"
        );
    }
}

#[test]
fn scenario_18_versions_grow_over_delete_clean_crash_and_create() {
    let setup = Setup::small();
    let mut running = fresh(&setup);
    let mut version = 0;
    for round in 0..5 {
        let mut session = running.store.session().unwrap();
        let now = put(&mut session, b"key", b"value").unwrap();
        assert!(now > version, "round {round}: {now} after {version}");
        version = now;
        seal(&running);
        assert!(remove(&mut session, b"key").unwrap());
        seal(&running);
        clean_all(&running);
        drop(session);
        running = setup.start(running.crash(), Mistake::None, 1);
    }
}

#[test]
fn scenario_19_duplicates_and_any_order_give_the_same_store() {
    let setup = Setup::small();
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for round in 0..5u8 {
        for key in 0..100u8 {
            if (key + round) % 7 == 0 {
                remove(&mut session, &[key]).unwrap();
            } else {
                put(&mut session, &[key], &[round, key]).unwrap();
            }
        }
        seal(&running);
    }
    let shown: Vec<_> = (0..100u8).map(|key| get(&mut session, &[key])).collect();
    drop(session);
    let before = running.writer(|writer, _| writer.device.clone());
    clean_all(&running);
    // Survivors and their victims together: every kept entry exists twice.
    let mut both = running.crash();
    both.listed.extend(&before.listed);
    both.frames.extend(before.frames.clone());
    for (device, threads) in [(before, 1), (both.clone(), 1), (both, 4)] {
        let running = setup.start(device, Mistake::None, threads);
        let mut session = running.store.session().unwrap();
        let again: Vec<_> = (0..100u8).map(|key| get(&mut session, &[key])).collect();
        assert_eq!(shown, again);
        let alive = shown.iter().flatten().count();
        assert_eq!(running.store.tables().objects(TABLE), alive as u64);
        // 16 bytes of header, one of key, two of value, padded; perhaps 8 for a victim.
        let bytes = running.store.stats().live_bytes as usize;
        assert!((alive * 24..=alive * 32).contains(&bytes), "{bytes}");
    }
}

/// A directory that was started many times is mostly short, dead segments.
#[test]
fn many_short_lives_leave_a_store_that_works() {
    let setup = busy_setup();
    let mut device = Device::default();
    for life in 0..70u32 {
        let running = setup.start(device, Mistake::None, 2);
        with_writer(&running, || {
            let started = Instant::now();
            let mut session = running.store.session().unwrap();
            for key in 0..3000u32 {
                in_time(started);
                put(&mut session, &key.to_le_bytes(), &[life as u8; 400]).unwrap();
            }
        });
        running.writer(|writer, log| {
            writer.stage(log);
            writer.commit(log);
        });
        device = running.crash();
    }
}

/// Fills the store, then makes room for `changes` changes, which make the log on disk long.
fn fill_and_change(session: &mut Session, keys: &mut u32, life: u8, bytes: usize, changes: u32) {
    let mut random = Random::new(life.into());
    let started = Instant::now();
    while put(session, &keys.to_le_bytes(), &vec![life; bytes]).is_ok() {
        in_time(started);
        *keys += 1;
    }
    for _ in 0..*keys / 8 {
        *keys -= 1;
        assert!(remove(session, &keys.to_le_bytes()).unwrap());
    }
    for _ in 0..changes {
        in_time(started);
        let key = random.below(u64::from(*keys)) as u32;
        let grown = vec![life; random.below(200) as usize];
        put(session, &key.to_le_bytes(), &grown).unwrap();
    }
}

/// A written log must open with the same budget, however full memory and disk are. In the order of
/// a restart: an object that was overwritten by a smaller one may not fit beside all the others, if
/// the overwrite is loaded after it.
#[test]
fn a_full_store_opens_again() {
    let setup = Setup {
        newest_first: true,
        ..busy_setup()
    };
    let mut device = Device::default();
    let mut keys = 0u32;
    for (life, bytes) in [150usize, 600, 3000].into_iter().enumerate() {
        let running = setup.start(device, Mistake::None, 2);
        assert_eq!(running.store.tables().objects(TABLE), u64::from(keys));
        with_writer(&running, || {
            let mut session = running.store.session().unwrap();
            fill_and_change(&mut session, &mut keys, life as u8, bytes, 100_000);
        });
        running.writer(|writer, log| {
            writer.stage(log);
            writer.commit(log);
        });
        device = running.crash();
        println!(
            "life {life}: {keys} keys, {} MB of log",
            log_bytes(&device) >> 20
        );
    }
    setup.start(device, Mistake::None, 3);
}

/// Loads a whole device with three threads into `memory_bytes`. False: that is too little. Fails if
/// the load does not end.
fn fits(setup: &Setup, device: &Arc<Device>, memory_bytes: u64) -> bool {
    // In an arbitrary order: dead objects are taken for alive for a while.
    let smaller = Setup {
        memory_bytes,
        newest_first: false,
        ..setup.clone()
    };
    let (done, ended) = channel();
    let device = device.clone();
    // In a thread of its own, so that an endless load is a failure and not an endless wait.
    std::thread::spawn(move || {
        let store = smaller.open(&device);
        let restored =
            store
                .tables()
                .restore(TableId::DEFAULT, "default", device.table_floor, None);
        restored.unwrap();
        done.send(smaller.load(&store, &device, 3)).unwrap();
    });
    let begun = Instant::now();
    let ended = ended.recv_timeout(DEADLINE).expect("it ends");
    println!("{} MB: {ended:?} {:?}", memory_bytes >> 20, begun.elapsed());
    match ended {
        Ok(()) => true,
        Err(LoadError::Memory { .. }) => false,
        Err(other) => panic!("{memory_bytes} bytes: {other:?}"),
    }
}

/// A load that has too little memory reports it: it does not compact live data for ever. Less
/// memory than the live data is certainly too little; the memory that the log was written with may
/// be enough. Between the two each load ends in one way or the other, also if memory is just short,
/// where most is compacted and least is gained.
#[test]
fn a_load_that_does_not_fit_ends() {
    const TOO_LITTLE: u64 = 64 << 20;
    let setup = Setup {
        memory_bytes: 160 << 20,
        disk_segments_max: 160,
        newest_first: true,
        ..busy_setup()
    };
    let mut device = Device::default();
    let mut keys = 0u32;
    for (life, bytes) in [150usize, 600, 3000].into_iter().enumerate() {
        let running = setup.start(device, Mistake::None, 2);
        with_writer(&running, || {
            let mut session = running.store.session().unwrap();
            fill_and_change(&mut session, &mut keys, life as u8, bytes, 20_000);
            let started = Instant::now();
            while running.store.stats().live_bytes <= TOO_LITTLE {
                in_time(started);
                keys += u32::from(put(&mut session, &keys.to_le_bytes(), &[9; 600]).is_ok());
            }
        });
        running.writer(|writer, log| {
            writer.stage(log);
            writer.commit(log);
        });
        device = running.crash();
    }
    let device = Arc::new(device);
    assert!(
        !fits(&setup, &device, TOO_LITTLE),
        "more than that is alive"
    );
    let (mut less, mut more) = (TOO_LITTLE, setup.memory_bytes);
    for _ in 0..5 {
        let middle = less.midpoint(more);
        *(if fits(&setup, &device, middle) {
            &mut more
        } else {
            &mut less
        }) = middle;
    }
}

pub fn log_bytes(device: &Device) -> usize {
    let listed = device.listed.iter();
    listed.map(|id| device.frames[id].len()).sum()
}

#[test]
fn a_missing_segment_is_refused() {
    let setup = Setup::small();
    let store = setup.open(&Device::default());
    let loader = store.loader(&[SegmentId(5), SegmentId(9)], &[]);
    let missing = MissingSegments(vec![SegmentId(5), SegmentId(9)]);
    assert_eq!(loader.finish(), Err(Unfinished::Missing(missing)));
}

/// Not a test but a measurement: `cargo test --release -p duramen-engine --test it --
/// --ignored --nocapture two_levels::scenarios::by_hand`.
#[test]
#[ignore = "a measurement"]
fn by_hand_speed_of_loading() {
    const ENTRIES: u64 = 2_000_000;
    let setup = Setup {
        memory_bytes: 1 << 30,
        disk_segments_max: 2000,
        ..Setup::small()
    };
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for n in 0..ENTRIES {
        put(&mut session, &n.to_le_bytes(), &[n as u8; 100]).unwrap();
        if n % 10_000 == 0 {
            running.writer(|writer, log| writer.settle(log));
        }
    }
    drop(session);
    running.writer(|writer, log| writer.settle(log));
    let device = running.crash();
    let bytes: usize = device.frames.values().map(Vec::len).sum();
    for threads in [1, 2] {
        let device = device.clone();
        let started = Instant::now();
        let running = setup.start(device, Mistake::None, threads);
        let seconds = started.elapsed().as_secs_f64();
        assert_eq!(running.store.tables().objects(TABLE), ENTRIES);
        println!(
            "{threads} threads: {:.2} M entries/s, {:.0} MB/s",
            ENTRIES as f64 / seconds / 1e6,
            bytes as f64 / seconds / 1e6
        );
    }
}
