//! Entries that were hot in one run of a store are copied to memory in the next: heat::W1 to
//! heat::W3.

use super::device::*;
use duramen_engine::flash::{Heat, HotKey};
use duramen_engine::{Options, Session, Store, TableId};
use duramen_format::hash::KeyHasher;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const VALUE_BYTES: usize = 1000;
const OBJECTS: u64 = 10_000;
const HOT_EVERY: u64 = 50;
const HOT: u64 = OBJECTS / HOT_EVERY;
const SEED: u64 = 7;

fn filled(flash: &Arc<Flash>, value_bytes: usize, objects: u64) -> (Arc<Store>, Session) {
    filled_with(4 * MIB, flash, value_bytes, objects)
}

fn filled_with(
    memory: u64,
    flash: &Arc<Flash>,
    value_bytes: usize,
    objects: u64,
) -> (Arc<Store>, Session) {
    let options = Options {
        hash_seed: Some(SEED),
        ..options(memory, flash)
    };
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..objects {
        write(&mut session, &key(n), &value(n, 0, value_bytes)).unwrap();
    }
    (store, session)
}

/// Reads each hot key; returns the number of reads of the device that this took.
fn read_hot(store: &Store, session: &mut Session, value_bytes: usize, objects: u64) -> u64 {
    let before = store.stats().flash.fetches;
    for n in (0..objects).step_by(HOT_EVERY as usize) {
        let found = read(session, &key(n)).unwrap();
        assert!(found == Some(value(n, 0, value_bytes)), "key {n}");
    }
    store.stats().flash.fetches - before
}

/// Checks the number of reads, which all returned the right value.
fn check_rate(fetches: u64, most: u64) {
    assert!(
        fetches <= most,
        "every value was right, but {fetches} reads of the device, {most} at most wanted"
    );
}

fn warm_up(store: &Store, session: &mut Session, value_bytes: usize) {
    wait_for("the hot keys are copied", || {
        read_hot(store, session, value_bytes, OBJECTS) <= HOT / 50
    });
}

fn keys(numbers: impl Iterator<Item = u64>) -> Vec<HotKey> {
    let hasher = KeyHasher::new(SEED);
    numbers
        .map(|n| HotKey {
            table: TABLE,
            hash: hasher.hash(&key(n)),
        })
        .collect()
}

fn all_told(heat: &mut Heat) -> Vec<HotKey> {
    let mut told = Vec::new();
    for step in (0..=Heat::MAX).rev() {
        heat.each(step, |keys| {
            told.extend_from_slice(keys);
            true
        });
    }
    told
}

#[test]
fn what_is_told_in_one_life_is_copied_in_the_next() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, VALUE_BYTES, OBJECTS);
    warm_up(&store, &mut session, VALUE_BYTES);
    let mut heat = store.flash().expect("there is a tier").heat().unwrap();
    assert!(heat.counts().iter().sum::<u64>() >= HOT / 2);
    let told = all_told(&mut heat);
    let hot: BTreeSet<u64> = keys((0..OBJECTS).step_by(HOT_EVERY as usize))
        .iter()
        .map(|key| key.hash)
        .collect();
    assert!(told.len() as u64 >= HOT / 2, "{} of {HOT}", told.len());
    assert!(
        told.iter()
            .all(|key| hot.contains(&key.hash) && key.table == TABLE)
    );
    drop((heat, session, store));
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, VALUE_BYTES, OBJECTS);
    let mut refill = store.flash().expect("there is a tier").refill().unwrap();
    let done = refill.copy(Heat::MAX, &told, &|| false);
    assert!(
        done.copied as usize >= told.len() / 2 && !done.is_over,
        "{done:?}"
    );
    assert_eq!(store.stats().flash.refilled, done.copied);
    check_budget(&store);
    let fetches = read_hot(&store, &mut session, VALUE_BYTES, OBJECTS);
    check_rate(fetches, HOT / 2); // two for each that went to flash only now
    // Copies that were made for nothing are as good as others.
    let again = refill.copy(Heat::MAX, &told, &|| false);
    assert!(again.copied <= done.copied / 2, "{again:?}");
}

#[test]
fn hints_that_mean_nothing_copy_nothing() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, VALUE_BYTES, OBJECTS);
    let mut junk = keys(OBJECTS..OBJECTS + 5000); // keys that do not exist
    junk.extend((0..64).map(|bit| HotKey {
        table: TABLE,
        hash: 1 << bit | 1,
    }));
    junk.extend([0, u64::MAX].map(|hash| HotKey { table: TABLE, hash }));
    junk.extend(keys(0..100).iter().map(|key| HotKey {
        table: TableId(u32::MAX),
        ..*key
    }));
    let mut refill = store.flash().expect("there is a tier").refill().unwrap();
    let done = refill.copy(1, &junk, &|| false);
    assert_eq!((done.copied, done.is_over), (0, false));
    let some = keys(0..100);
    let stopped = refill.copy(1, &some, &|| true);
    assert_eq!(stopped.copied, 0);
    read_hot(&store, &mut session, VALUE_BYTES, OBJECTS);
    assert_eq!(store.stats().flash.read_errors, 0);
}

/// A store in which the hot keys are copied and were read often; then it copies as many of the
/// others as memory takes.
fn refilled_with_everything(
    memory: u64,
    flash: &Arc<Flash>,
    value_bytes: usize,
) -> (Arc<Store>, Session) {
    let (store, mut session) = filled_with(memory, flash, value_bytes, OBJECTS);
    warm_up(&store, &mut session, value_bytes);
    for _ in 0..Heat::MAX {
        read_hot(&store, &mut session, value_bytes, OBJECTS);
    }
    let everything = keys(0..OBJECTS);
    let mut refill = store.flash().expect("there is a tier").refill().unwrap();
    let done = refill.copy(0, &everything, &|| false);
    assert!(done.is_over, "{done:?}: more than memory has");
    check_budget(&store);
    (store, session)
}

#[test]
fn a_refill_of_everything_ends_and_leaves_what_is_hot_where_it_is() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = refilled_with_everything(4 * MIB, &flash, VALUE_BYTES);
    let fetches = read_hot(&store, &mut session, VALUE_BYTES, OBJECTS);
    check_rate(fetches, HOT / 2);
}

#[test]
fn what_is_hot_stays_when_copies_give_memory_back_to_writers() {
    const LONG: usize = 3000;
    let flash = Flash::new(64 * MIB);
    let (store, mut session) = refilled_with_everything(16 * MIB, &flash, LONG);
    let copies = store.stats().flash.promoted_bytes;
    assert!(
        copies > 9 * MIB,
        "{copies}: a refill serves as much as it copies"
    );
    warm_up(&store, &mut session, LONG); // some went to flash only now
    let mut n = OBJECTS;
    wait_for("copies give memory back", || {
        write(&mut session, &key(n), &value(n, 0, LONG)).unwrap();
        n = OBJECTS + (n + 1 - OBJECTS) % OBJECTS;
        store.stats().flash.promoted_bytes <= 8 * MIB // promoted::P4
    });
    let fetches = read_hot(&store, &mut session, LONG, OBJECTS);
    check_rate(fetches, HOT / 2);
}

#[test]
fn long_entries_are_copied_too() {
    const LONG: usize = 20_000;
    let objects = 600;
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, LONG, objects);
    let some = keys((0..objects).step_by(HOT_EVERY as usize));
    let mut refill = store.flash().expect("there is a tier").refill().unwrap();
    let done = refill.copy(Heat::MAX, &some, &|| false);
    assert!(done.copied > 0, "{done:?}");
    let fetches = read_hot(&store, &mut session, LONG, objects);
    check_rate(fetches, some.len() as u64);
}

#[test]
fn nothing_is_copied_of_a_device_that_fails() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, VALUE_BYTES, OBJECTS);
    let some = keys((0..OBJECTS).step_by(HOT_EVERY as usize));
    let mut refill = store.flash().expect("there is a tier").refill().unwrap();
    flash.damages.store(true, Ordering::Relaxed);
    assert_eq!(refill.copy(Heat::MAX, &some, &|| false).copied, 0);
    flash.damages.store(false, Ordering::Relaxed);
    flash.reads_fail.store(true, Ordering::Relaxed);
    let done = refill.copy(Heat::MAX, &some, &|| false);
    assert!(done.copied == 0 && done.is_over, "{done:?}");
    assert!(store.stats().flash.read_errors > 0);
    flash.reads_fail.store(false, Ordering::Relaxed);
    let done = refill.copy(Heat::MAX, &some, &|| false);
    assert!(done.copied > 0, "{done:?}");
    read_hot(&store, &mut session, VALUE_BYTES, OBJECTS);
}
