//! A cleaner meets damage in memory when part of its work is done: that pass is given up, and
//! later ones go on.

use duramen::{DiskMode, Level, Options, Store, Table};
use duramen_backup::os::OsDisk;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const T: Table = Table::DEFAULT;

fn open(dir: &Path, threads: bool) -> Arc<Store> {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    let disk = Arc::new(OsDisk::new(dir, DiskMode::Buffered));
    Store::open_on(disk, options, threads, &|_| {}).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Writes these keys, and then every other one again; the segments are closed after both.
fn fill(store: &Arc<Store>, keys: Range<u32>) {
    for round in 0..2 {
        let mut session = store.engine().session().unwrap();
        for n in keys.clone().filter(|n| round == 0 || n % 2 == 0) {
            let mut guard = session.pin();
            let (key, value) = (key(n), [n as u8; 500]);
            let hash = guard.hash(&key);
            guard.write(T, hash, &key, &value, None).unwrap();
        }
        drop(session);
        store.engine().heads().close_all();
        assert!(store.log().unwrap().try_commit_here(Level::Synced));
        while store.background_step().unwrap() {}
    }
}

fn clean(store: &Arc<Store>) {
    for _ in 0..3 {
        while store.engine().clean_step(1 << 30) {}
        while store.background_step().unwrap() {}
    }
}

/// As `kill -9` would leave it now.
fn assert_crash_keeps_all(dir: &Path, steps: u32) {
    let copy = tempfile::tempdir().unwrap();
    for name in ["superblock", "wal", "frames"] {
        std::fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    }
    let store = open(copy.path(), true);
    let mut session = store.session().unwrap();
    for n in (0..300).chain(1000..1300) {
        let value = session.get(T, key(n)).unwrap().unwrap();
        assert_eq!(value.bytes, [n as u8; 500], "key {n}, {steps} steps");
    }
}

/// background::B3, engine::log::swap::given_up: two bits of an entry flip after some steps of
/// cleaning: before its victim is verified, before it is moved, or before its survivor is written.
/// In the last two cases no later pass ended in the rest of such a life.
#[test]
fn two_flipped_bits_in_a_pass_stop_no_later_pass() {
    let mut given_up = 0;
    for steps in 0..16 {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), false);
        fill(&store, 0..300);
        for _ in 0..steps {
            store.engine().clean_step(8 << 10);
        }
        let bit = 8 * (16 + key(7).len() + 100);
        assert!(store.engine().flips().entry(T, &key(7), &[bit, bit + 1]));
        clean(&store);
        given_up += store.engine().stats().passes_given_up;
        fill(&store, 1000..1300);
        let listed = || store.stats().unwrap().segments_listed;
        let before = listed();
        clean(&store);
        assert!(listed() < before, "no pass ends, {steps} steps");
        assert_crash_keeps_all(dir.path(), steps);
    }
    assert!(given_up > 0);
}
