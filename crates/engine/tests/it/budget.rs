//! A memory budget that changes while the store is used.

use duramen_engine::{Error, Guard, Mode, Options, Session, Store, TableId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 1000;
/// No test waits longer on a busy machine, unless it waits for ever.
const DEADLINE: Duration = Duration::from_secs(120);

fn options(memory_mib: u64, max_mib: u64) -> Options {
    let mut options = Options::new(memory_mib * MIB);
    options.memory_bytes_max = max_mib * MIB;
    options.heads = 2;
    options
}

fn value(key: u64, round: u64) -> Vec<u8> {
    let mut value = vec![(key ^ round) as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

fn put(guard: &mut Guard<'_>, key: u64, round: u64) -> Result<(), Error> {
    let bytes = key.to_le_bytes();
    let hash = guard.hash(&bytes);
    guard
        .write(TABLE, hash, &bytes, &value(key, round), None)
        .map(|_| ())
}

/// The round of a key's value, which must be whole; `None`: the key is absent.
fn round_of(session: &mut Session, key: u64) -> Option<u64> {
    let guard = session.pin();
    let bytes = key.to_le_bytes();
    let found = guard.read(TABLE, guard.hash(&bytes), &bytes).unwrap()?;
    let round = u64::from_le_bytes(found.value[8..16].try_into().unwrap());
    assert_eq!(found.value, value(key, round), "key {key}");
    Some(round)
}

/// Writes `keys` in this round, a hundred in each guard.
fn write(session: &mut Session, keys: std::ops::Range<u64>, round: u64) -> Result<(), Error> {
    for first in keys.clone().step_by(100) {
        let mut guard = session.pin();
        for key in first..(first + 100).min(keys.end) {
            put(&mut guard, key, round)?;
        }
    }
    Ok(())
}

fn wait_until(store: &Store, what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}: {:?}", store.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn fits(store: &Store) -> bool {
    let stats = store.stats();
    stats.excess_bytes == 0 && stats.committed_bytes <= store.memory_bytes()
}

/// Ends the writers also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two threads overwrite half of the keys each, while the budget falls to less than the memory in
/// use and rises again, five times.
fn falls_and_rises(store: &Arc<Store>, keys: u64, low_mib: u64, high_mib: u64) {
    let stop = AtomicBool::new(false);
    let written: [AtomicU64; 2] = Default::default();
    let mut session = store.session().unwrap();
    write(&mut session, 0..keys, 0).unwrap();
    std::thread::scope(|scope| {
        for (half, written) in (0..2).zip(&written) {
            let (store, stop) = (store, &stop);
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                let half = half * keys / 2..(half + 1) * keys / 2;
                for round in 1.. {
                    write(&mut session, half.clone(), round).unwrap();
                    written.store(round, Ordering::Release);
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..5 {
            let is_full = || store.stats().committed_bytes > (low_mib + 16) * MIB;
            wait_until(store, "memory rises", is_full);
            store.set_memory(low_mib * MIB).unwrap();
            // Until the ceiling has reached the limit, memory may rise above the limit again
            // (budget::BU1).
            let deadline = Instant::now() + Duration::from_secs(60);
            loop {
                let before = written[0].load(Ordering::Acquire);
                wait_until(store, "memory falls", || fits(store));
                wait_until(store, "writers go on", || {
                    written[0].load(Ordering::Acquire) > before + 1
                });
                if fits(store) {
                    break;
                }
                assert!(Instant::now() < deadline, "{:?}", store.stats());
            }
            store.set_memory(high_mib * MIB).unwrap();
        }
    });
    for key in 0..keys {
        let half = usize::from(key >= keys / 2);
        let round = written[half].load(Ordering::Acquire);
        assert_eq!(round_of(&mut session, key), Some(round), "key {key}");
    }
}

#[test]
fn memory_follows_the_budget_down_and_up_while_threads_write() {
    // 60 MB of live data. Cleaning keeps memory at twice of them at most.
    let store = Store::new(options(256, 0)).unwrap();
    falls_and_rises(&store, 60_000, 96, 160);
}

#[test]
fn writers_alone_give_memory_back_without_a_cleaner_thread() {
    let mut options = options(256, 0);
    options.cleaners = 0;
    let store = Store::new(options).unwrap();
    falls_and_rises(&store, 60_000, 96, 160);
}

#[test]
fn an_idle_store_follows_too() {
    let store = Store::new(options(256, 0)).unwrap();
    let mut session = store.session().unwrap();
    for round in 0..6 {
        write(&mut session, 0..60_000, round).unwrap();
    }
    store.set_memory(80 * MIB).unwrap();
    wait_until(&store, "memory falls", || fits(&store));
    for key in 0..60_000 {
        assert_eq!(round_of(&mut session, key), Some(5));
    }
}

#[test]
fn a_store_refuses_a_budget_that_does_not_hold_its_data() {
    let store = Store::new(options(256, 0)).unwrap();
    let mut session = store.session().unwrap();
    write(&mut session, 0..120_000, 0).unwrap();
    let Err(Error::BudgetBelowData { minimum, .. }) = store.set_memory(96 * MIB) else {
        panic!("120 MB of data in 96 MiB");
    };
    assert!((120 * MIB..180 * MIB).contains(&minimum), "{minimum}");
    assert_eq!(store.memory_bytes(), 256 * MIB);
    let refused = store.set_memory(minimum - MIB);
    assert!(matches!(refused, Err(Error::BudgetBelowData { .. })));
    store.set_memory(minimum).unwrap();
    wait_until(&store, "memory falls", || fits(&store));
    let full = write(&mut session, 120_000..200_000, 1);
    assert!(matches!(full, Err(Error::OutOfMemory { .. })), "{full:?}");
    for key in 0..120_000 {
        assert_eq!(round_of(&mut session, key), Some(0));
    }
    // There is room again as soon as the budget is higher.
    store.set_memory(256 * MIB).unwrap();
    write(&mut session, 120_000..160_000, 1).unwrap();
}

#[test]
fn a_cache_evicts_what_a_lower_budget_does_not_hold() {
    let mut options = options(256, 0);
    options.mode = Mode::Cache;
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    write(&mut session, 0..400_000, 0).unwrap();
    let before = store.stats().objects;
    assert!(before > 150_000, "{before}");
    store.set_memory(64 * MIB).unwrap();
    wait_until(&store, "memory falls", || fits(&store));
    write(&mut session, 400_000..500_000, 0).unwrap();
    let left = store.stats().objects;
    assert!((20_000..70_000).contains(&left), "{left}");
    assert_eq!(round_of(&mut session, 499_999), Some(0));
    store.set_memory(256 * MIB).unwrap();
    write(&mut session, 500_000..900_000, 0).unwrap();
    assert!(store.stats().objects > 150_000, "{:?}", store.stats());
}

#[test]
fn a_budget_rises_above_its_beginning_as_far_as_the_store_was_made_for() {
    let store = Store::new(options(64, 256)).unwrap();
    let mut session = store.session().unwrap();
    let full = write(&mut session, 0..200_000, 0);
    assert!(matches!(full, Err(Error::OutOfMemory { .. })), "{full:?}");
    store.set_memory(256 * MIB).unwrap();
    write(&mut session, 0..200_000, 1).unwrap();
    assert!(fits(&store) && store.stats().committed_bytes > 200 * MIB);
    let refused = store.set_memory(257 * MIB);
    assert_eq!(
        refused,
        Err(Error::BudgetTooLarge {
            bytes: 257 * MIB,
            maximum: 256 * MIB
        })
    );
    for key in 0..200_000 {
        assert_eq!(round_of(&mut session, key), Some(1));
    }
}

#[test]
fn a_budget_below_what_heads_and_cleaners_take_is_refused() {
    let store = Store::new(options(256, 0)).unwrap();
    let refused = store.set_memory(MIB);
    let Err(Error::BudgetTooSmall { minimum, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!((48 * MIB..=64 * MIB).contains(&minimum), "{minimum}");
    store.set_memory(minimum).unwrap();
    let mut session = store.session().unwrap();
    write(&mut session, 0..10_000, 0).unwrap();
}

/// Changes come from several threads; the last one holds, and memory follows it.
#[test]
fn changes_at_the_same_time_end_in_one_of_them() {
    let store = Store::new(options(256, 0)).unwrap();
    let mut session = store.session().unwrap();
    write(&mut session, 0..50_000, 0).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..200 {
                    let mib = 96 + 40 * ((n + round) % 5);
                    store.set_memory(mib * MIB).unwrap();
                }
            });
        }
        for round in 1..5 {
            write(&mut session, 0..50_000, round).unwrap();
        }
    });
    wait_until(&store, "memory falls", || fits(&store));
    assert!([96, 136, 176, 216, 256].contains(&(store.memory_bytes() / MIB)));
    for key in 0..50_000 {
        assert_eq!(round_of(&mut session, key), Some(4));
    }
}
