//! One of several tables is cleared while much of it is on flash.

use super::device::*;
use duramen_engine::{Options, Session, Store, TableId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 1000;

fn put(session: &mut Session, table: TableId, n: u64, round: u64) {
    let mut guard = session.pin();
    let hash = guard.hash(&key(n));
    let value = value(n, round, VALUE_BYTES);
    guard.write(table, hash, &key(n), &value, None).unwrap();
}

fn get(session: &mut Session, table: TableId, n: u64) -> Option<Vec<u8>> {
    let guard = session.pin();
    let found = guard.read(table, guard.hash(&key(n)), &key(n)).unwrap();
    found.map(|object| object.value.to_vec())
}

/// A store of 4 MiB with `objects` objects in each of its tables, in turn.
fn interleaved(flash: &Arc<Flash>, tables: usize, objects: u64) -> (Arc<Store>, Vec<TableId>) {
    let store = Store::new(options(4 * MIB, flash)).unwrap();
    let mut session = store.session().unwrap();
    let others = (1..tables).map(|n| store.tables().create(&format!("other{n}")).unwrap());
    let tables: Vec<TableId> = [TABLE].into_iter().chain(others).collect();
    for n in 0..objects {
        for table in &tables {
            put(&mut session, *table, n, 0);
        }
    }
    (store, tables)
}

/// Bytes of `objects` of these objects.
fn bytes_of(objects: u64) -> u64 {
    let store = Store::new(options(4 * MIB, &Flash::new(MIB))).unwrap();
    let mut session = store.session().unwrap();
    put(&mut session, TABLE, 0, 0);
    store.stats().live_bytes * objects
}

#[test]
fn nobody_waits_for_flash_when_one_of_several_tables_is_cleared() {
    let flash = Flash::new(64 * MIB);
    let (store, tables) = interleaved(&flash, 3, 6_000);
    let mut session = store.session().unwrap();
    assert!(store.stats().flash.segments > 50);
    flash.stands_still.store(true, Ordering::Relaxed);
    // A thread that waits for the device now waits for ever; only cleaner threads may.
    store.tables().clear(tables[1]).unwrap();
    assert_eq!(store.tables().objects(tables[1]), 0);
    assert_eq!(store.tables().objects(TABLE), 6_000);
    for n in 0..10 {
        assert_eq!(get(&mut session, tables[1], n), None);
        put(&mut session, tables[1], n, 1);
        assert_eq!(
            get(&mut session, tables[1], n),
            Some(value(n, 1, VALUE_BYTES))
        );
    }
    // Once more, with the first clear still to be counted.
    store.tables().clear(tables[1]).unwrap();
    for n in 0..10 {
        assert_eq!(get(&mut session, tables[1], n), None);
        put(&mut session, tables[1], n, 2);
    }
    flash.stands_still.store(false, Ordering::Relaxed);
    wait_for(
        "all that was cleared is counted as dead, and nothing else",
        || store.stats().live_bytes == bytes_of(12_010),
    );
    for n in 0..6_000 {
        for table in [tables[0], tables[2]] {
            assert_eq!(get(&mut session, table, n), Some(value(n, 0, VALUE_BYTES)));
        }
        let expected = (n < 10).then(|| value(n, 2, VALUE_BYTES));
        assert_eq!(get(&mut session, tables[1], n), expected);
    }
    store.tables().clear(tables[0]).unwrap();
    store.tables().drop(tables[2]).unwrap();
    store.tables().clear(tables[1]).unwrap();
    wait_for("nothing lives", || store.stats().live_bytes == 0);
    wait_for("slots of the device come free", || {
        let stats = store.stats().flash;
        stats.used_bytes <= stats.bytes / 32
    });
}

/// From the ninth pending clear on, a clear read flash while all sessions waited.
#[test]
fn nobody_waits_for_flash_when_many_tables_are_cleared() {
    let flash = Flash::new(64 * MIB);
    let (store, tables) = interleaved(&flash, 14, 1_300);
    assert!(store.stats().flash.segments > 50);
    flash.stands_still.store(true, Ordering::Relaxed);
    for table in &tables[1..] {
        store.tables().clear(*table).unwrap();
        assert_eq!(store.tables().objects(*table), 0);
    }
    flash.stands_still.store(false, Ordering::Relaxed);
    wait_for("all that was cleared is counted as dead", || {
        store.stats().live_bytes == bytes_of(1_300)
    });
}

/// The entries of segments that could not be read at that time were never counted as dead.
#[test]
fn a_table_that_is_cleared_while_flash_cannot_be_read_is_counted_afterwards() {
    let flash = Flash::new(64 * MIB);
    let (store, tables) = interleaved(&flash, 2, 6_000);
    flash.reads_fail.store(true, Ordering::Relaxed);
    store.tables().clear(tables[1]).unwrap();
    wait_for("segments could not be read", || {
        store.stats().flash.read_errors > 10
    });
    let mut session = store.session().unwrap();
    put(&mut session, tables[1], 1, 1);
    flash.reads_fail.store(false, Ordering::Relaxed);
    wait_for("all that was cleared is counted", || {
        store.stats().live_bytes == bytes_of(6_001)
    });
}

/// All other work goes on meanwhile, cleaning of flash included; and the room becomes free.
#[test]
fn tables_are_cleared_again_and_again_while_others_are_written() {
    let flash = Flash::new(24 * MIB);
    let (store, tables) = interleaved(&flash, 3, 4_000);
    let done = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let writer = |table: TableId| {
            let mut session = store.session().unwrap();
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                round += 1;
                for n in 0..4_000 {
                    put(&mut session, table, n, round);
                    if n % 7 == 0 {
                        let seen = get(&mut session, table, n);
                        assert_eq!(seen, Some(value(n, round, VALUE_BYTES)));
                    }
                    if done.load(Ordering::Relaxed) && n % 100 == 99 {
                        return (round, n);
                    }
                }
            }
            (round, 3_999)
        };
        let others: Vec<_> = [tables[0], tables[2]]
            .into_iter()
            .map(|table| (table, scope.spawn(move || writer(table))))
            .collect();
        let mut session = store.session().unwrap();
        for round in 1..=6 {
            for n in 0..4_000 {
                put(&mut session, tables[1], n, round);
            }
            store.tables().clear(tables[1]).unwrap();
            assert_eq!(get(&mut session, tables[1], round), None);
            check_budget(&store);
            if began.elapsed() > Duration::from_secs(30) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        for (table, other) in others {
            let (round, last) = other.join().unwrap();
            for n in 0..4_000 {
                let round = if n <= last { round } else { round - 1 };
                let expected = Some(value(n, round, VALUE_BYTES));
                assert_eq!(get(&mut session, table, n), expected, "{n} of {table:?}");
            }
        }
    });
    wait_for(
        "all that was cleared is counted as dead, and nothing else",
        || store.stats().live_bytes == bytes_of(8_000),
    );
}

/// A large table beside another one, without flash: counting it once delayed all sessions, 0.1 s
/// per million objects.
#[test]
fn a_large_table_is_counted_after_its_clear() {
    let store = Store::new(Options {
        flash: None,
        ..options(64 * MIB, &Flash::new(MIB))
    })
    .unwrap();
    let mut session = store.session().unwrap();
    let other = store.tables().create("other").unwrap();
    put(&mut session, TABLE, 0, 0);
    let alone = store.stats().live_bytes;
    let mut was_later = false;
    for round in 0..8 {
        for n in 0..30_000 {
            put(&mut session, other, n, round);
        }
        store.tables().clear(other).unwrap();
        // unless this thread was interrupted for longer than the count takes
        was_later |= store.stats().live_bytes > alone;
        assert_eq!(get(&mut session, other, 7), None);
        put(&mut session, other, 7, round);
        store.tables().clear(other).unwrap();
    }
    assert!(was_later, "the clear counted everything itself");
    wait_for("data: what was cleared is dead, and nothing else", || {
        store.stats().live_bytes == alone
    });
    assert_eq!(get(&mut session, TABLE, 0), Some(value(0, 0, VALUE_BYTES)));
}
