//! The whole store under random schedules: sessions that write, read, delete and transact in so
//! little memory that they clean all the time. There are no background threads: writers clean.

use super::thread;
use duramen_engine::{Error, Options, Session, Store, TableId};
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: TableId = TableId::DEFAULT;
const KEYS: u64 = 6;
/// Two entries to a window, so that a few writes fill the store.
const VALUE_BYTES: usize = 900_000;

fn store(heads: usize) -> std::sync::Arc<Store> {
    let mut options = Options::new(64 << 20);
    options.heads = heads;
    options.cleaners = 0;
    options.huge_pages = false;
    options.hash_seed = Some(1);
    Store::new(options).expect("a store")
}

fn put(session: &mut Session, key: u64, count: u8) {
    let name = key.to_le_bytes();
    let mut guard = session.pin();
    let hash = guard.hash(&name);
    let value = vec![count ^ key as u8; VALUE_BYTES];
    match guard.write(TABLE, hash, &name, &value, None) {
        Ok(_) | Err(Error::OutOfMemory { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Reads a key; returns its version.
fn look(session: &mut Session, key: u64, version: u64) -> u64 {
    let name = key.to_le_bytes();
    let guard = session.pin();
    let Some(object) = guard
        .read(TABLE, guard.hash(&name), &name)
        .expect("a table")
    else {
        return version;
    };
    let first = object.value[0];
    assert!(object.value.iter().step_by(4096).all(|byte| *byte == first));
    assert!(object.version >= version, "versions only grow");
    object.version
}

fn write_and_clean() {
    let store = store(1);
    let threads: Vec<_> = (0..3u64)
        .map(|seed| {
            let mut session = store.session().expect("a session");
            thread::spawn(move || {
                let mut version = 0;
                for n in 0..16 {
                    let key = (n * 5 + seed) % KEYS;
                    match (n + seed) % 4 {
                        0 => version = look(&mut session, 0, version),
                        1 if n % 3 == 0 => {
                            let name = key.to_le_bytes();
                            let mut guard = session.pin();
                            let hash = guard.hash(&name);
                            guard.remove(TABLE, hash, &name).expect("a table");
                        }
                        _ => put(&mut session, key, n as u8),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread fails");
    }
    let (report, stats) = (store.memory_report(), store.stats());
    assert_eq!(report.live_bytes, stats.live_bytes);
    CLEANED.fetch_add(stats.cleaner.segments_cleaned, Ordering::Relaxed);
}

/// Segments cleaned in all runs of a test.
static CLEANED: AtomicU64 = AtomicU64::new(0);

#[test]
fn writers_clean_for_themselves() {
    shuttle::check_random(write_and_clean, 150);
    let cleaned = CLEANED.load(Ordering::Relaxed);
    // A writer that helps verifies a victim in one step, and cleans it in the next ones.
    assert!(cleaned > 40, "only {cleaned} segments were cleaned");
}

/// Two keys that are written together are seen together, however the bytes move meanwhile.
fn transact() {
    let store = store(2);
    let threads: Vec<_> = (0..2u64)
        .map(|seed| {
            let mut session = store.session().expect("a session");
            thread::spawn(move || {
                for n in 0..6u64 {
                    let mut guard = if n == 3 {
                        session.pin_exclusive()
                    } else {
                        session.pin()
                    };
                    let names = [0u64, 1].map(u64::to_le_bytes);
                    let hashes = names.map(|name| guard.hash(&name));
                    guard
                        .lock_keys(&hashes.map(|hash| (TABLE, hash)))
                        .expect("room for two keys");
                    let values = [0, 1].map(|which| {
                        let found = guard.read(TABLE, hashes[which], &names[which]);
                        found.expect("a table").map(|object| object.value[0])
                    });
                    assert_eq!(values[0], values[1], "half of a transaction");
                    let value = vec![(n * 2 + seed) as u8; VALUE_BYTES];
                    for which in 0..2 {
                        guard
                            .write(TABLE, hashes[which], &names[which], &value, None)
                            .expect("there is memory for so little");
                    }
                }
            })
        })
        .collect();
    let mut session = store.session().expect("a session");
    let mut version = 0;
    for _ in 0..8 {
        version = look(&mut session, 1, version);
    }
    for thread in threads {
        thread.join().expect("no thread fails");
    }
}

#[test]
fn transactions_are_whole_while_memory_moves() {
    shuttle::check_random(transact, 150);
}
