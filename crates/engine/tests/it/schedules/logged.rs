//! A whole store with a log under random schedules: sessions on two heads over the same few keys,
//! and a consumer. After each collection any of the heads may have been lost: the rest must be in
//! order and whole.

use super::disk::{Disk, Heads, replay};
use super::thread;
use duramen_base::ids::Level;
use duramen_base::sync::{AtomicU64, Ordering, yield_now};
use duramen_engine::{Collected, LogOptions, Options, Session, Store, TableId};
use std::sync::Arc;

const TABLE: TableId = TableId::DEFAULT;
const WRITERS: u64 = 2;

fn store() -> Arc<Store> {
    let mut options = Options::new(64 << 20);
    options.heads = 2;
    options.cleaners = 0;
    options.huge_pages = false;
    options.hash_seed = Some(1);
    options.log = Some(LogOptions::new(1));
    Store::new(options).expect("a store")
}

/// Increments the number, or writes the pair, or removes it.
fn write(mut session: Session, seed: u64) {
    for n in 0..6u64 {
        let mut guard = session.pin();
        if (n + seed).is_multiple_of(2) {
            let hash = guard.hash(b"number");
            guard
                .increment(TABLE, hash, b"number", 1)
                .expect("a number");
            continue;
        }
        let hashes = [b"a", b"b"].map(|key| guard.hash(key));
        guard
            .lock_keys(&hashes.map(|hash| (TABLE, hash)))
            .expect("room for two keys");
        let value = [(n * 2 + seed) as u8; 16];
        for (key, hash) in [b"a", b"b"].into_iter().zip(hashes) {
            if n == 3 {
                guard.remove(TABLE, hash, key).expect("a table");
            } else {
                guard.write(TABLE, hash, key, &value, None).expect("room");
            }
        }
    }
}

/// Judges a disk that lacks the lost heads.
fn judge(disk: &Disk) {
    assert_eq!(disk.gap(&(TABLE.0, b"number".to_vec())), None, "trap 5");
    let (found, _) = replay(disk);
    let value = |key: &[u8]| {
        found
            .get(&(TABLE.0, key.to_vec()))
            .map(|found| &found.value)
    };
    assert_eq!(value(b"a"), value(b"b"), "half of a transaction");
}

fn scenario() {
    let store = store();
    let running = Arc::new(AtomicU64::new(WRITERS));
    let writers: Vec<_> = (0..WRITERS)
        .map(|seed| {
            let session = store.session().expect("a session");
            let running = running.clone();
            thread::spawn(move || {
                write(session, seed);
                running.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    let log = store.log().expect("a log");
    let (mut disk, mut heads) = (Disk::default(), Heads::default());
    loop {
        let last = running.load(Ordering::SeqCst) == 0;
        let mut collected = Collected::default();
        log.collect(&mut collected);
        let commit = heads.commit_of(log, &collected);
        for lost in 0..2 {
            let mut left = disk.clone();
            left.apply(&commit, |head| head != lost);
            judge(&left);
        }
        disk.apply(&commit, |_| true);
        judge(&disk);
        yield_now();
        log.complete(&mut collected, Level::Synced);
        if last {
            break;
        }
    }
    for writer in writers {
        writer.join().expect("no writer fails");
    }
    let (found, _) = replay(&disk);
    let number = &found[&(TABLE.0, b"number".to_vec())];
    assert_eq!(number.value, b"6");
}

#[test]
fn heads_lost_one_by_one_leave_a_prefix_of_every_key() {
    shuttle::check_random(scenario, 400);
}
