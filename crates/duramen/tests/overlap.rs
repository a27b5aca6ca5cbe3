//! Synced commits of several threads at once: they overlap, none is lost, and the calls that end or
//! copy a store wait for them.

#[path = "common/gate.rs"]
mod gate;

use duramen::{Error, Options, Store, Table};
use duramen_backup::Mode;
use duramen_backup::os::OsDisk;
use gate::{Gate, Outcome, PATIENCE, gated};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

const T: Table = Table::DEFAULT;

/// A store on a disk with a gate, without threads: each writer commits itself.
fn open(dir: &Path) -> (Arc<Store>, Arc<Gate>) {
    let (disk, gate) = gated(Arc::new(OsDisk::new(dir, Mode::Buffered)));
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    let store = Store::open_on(disk, options, false, &|_| {}).unwrap();
    store.session().unwrap().set(T, "first", "1").unwrap();
    (store, gate)
}

/// Sets a key by another thread, up to its commit's write, the `number`th at the gate.
fn fly<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    (store, gate): (&'env Arc<Store>, &'env Gate),
    key: &'static str,
    number: usize,
) -> ScopedJoinHandle<'scope, Result<(), Error>> {
    let flight = scope.spawn(move || store.session()?.set(T, key, "1").map(drop));
    gate.arrived(number + 1);
    flight
}

fn has(store: &Arc<Store>, keys: &[&str]) -> bool {
    let mut session = store.session().unwrap();
    keys.iter().all(|key| session.exists(T, key).unwrap())
}

#[test]
fn a_commit_begins_while_another_one_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, gate) = open(dir.path());
    gate.shut();
    std::thread::scope(|scope| {
        let first = fly(scope, (&store, &gate), "a", 0);
        let second = fly(scope, (&store, &gate), "b", 1);
        gate.end(1, Outcome::Done);
        gate.end(0, Outcome::Done);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(store.stats().unwrap().undurable_bytes, 0);
    gate.open();
    store.close().unwrap();
    drop(store);
    let (store, _gate) = open(dir.path());
    assert!(has(&store, &["a", "b", "first"]));
}

/// overlap::V4: neither of two commits without space is forgotten; the next one has both.
#[test]
fn overlapping_commits_without_space_are_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let (store, gate) = open(dir.path());
    gate.shut();
    std::thread::scope(|scope| {
        let first = fly(scope, (&store, &gate), "a", 0);
        let second = fly(scope, (&store, &gate), "b", 1);
        gate.end(1, Outcome::Done);
        gate.end(0, Outcome::Full);
        for refused in [first, second] {
            let refused = refused.join().unwrap();
            assert!(matches!(refused, Err(Error::DiskFull(_))), "{refused:?}");
        }
    });
    gate.open();
    assert!(store.stats().unwrap().undurable_bytes > 0);
    store.flush().unwrap();
    assert_eq!(store.stats().unwrap().undurable_bytes, 0);
    store.session().unwrap().set(T, "c", "1").unwrap();
    drop(store);
    let (store, _gate) = open(dir.path());
    assert!(has(&store, &["a", "b", "c", "first"]));
}

#[test]
fn a_failure_of_one_overlapping_commit_is_final_for_both() {
    let dir = tempfile::tempdir().unwrap();
    let (store, gate) = open(dir.path());
    gate.shut();
    std::thread::scope(|scope| {
        let first = fly(scope, (&store, &gate), "a", 0);
        let second = fly(scope, (&store, &gate), "b", 1);
        gate.end(0, Outcome::Broken);
        gate.end(1, Outcome::Done);
        for refused in [first, second] {
            let refused = refused.join().unwrap();
            assert!(matches!(refused, Err(Error::DiskFailed(_))), "{refused:?}");
        }
    });
    gate.open();
    let refused = store.session().unwrap().set(T, "c", "1");
    assert!(matches!(refused, Err(Error::DiskFailed(_))), "{refused:?}");
    drop(store);
    let (store, _gate) = open(dir.path());
    assert!(!has(&store, &["b"]) && has(&store, &["first"]));
}

/// The end of a store, a snapshot and a flush wait for a commit in flight of another thread.
#[test]
fn other_calls_wait_for_commits_in_flight() {
    type Call = fn(&Store) -> Result<(), Error>;
    let calls: [(&str, Call); 2] = [("close", Store::close), ("flush", Store::flush)];
    for (name, call) in calls {
        let dir = tempfile::tempdir().unwrap();
        let (store, gate) = open(dir.path());
        gate.shut();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let flight = fly(scope, (&store, &gate), "a", 0);
            let called = &*store;
            scope.spawn(move || tell.send(call(called)).unwrap());
            let early = told.recv_timeout(Duration::from_millis(20));
            assert!(early.is_err(), "{name} did not wait");
            gate.open();
            flight.join().unwrap().unwrap();
            told.recv_timeout(PATIENCE).unwrap().unwrap();
        });
        drop(store);
        let (store, _gate) = open(dir.path());
        assert!(has(&store, &["a", "first"]), "{name}");
    }
}

/// Writers of all levels, snapshots and the store's own threads at once.
#[test]
fn many_threads_commit_at_once() {
    let [dir, copies] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let options = || {
        let options = Options::new(dir.path(), 64 << 20);
        options.heads(2).huge_pages(false).wal_bytes(4 << 20)
    };
    let store = Store::open(options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                for n in 0..200u32 {
                    let key = (thread * 1000 + n).to_le_bytes();
                    session.set(T, key, [n as u8; 2000]).unwrap();
                    if n % 50 == 0 {
                        store.flush().unwrap();
                    }
                }
            });
        }
        for n in 0..3 {
            let to = copies.path().join(n.to_string());
            store.snapshot(&to).unwrap();
        }
    });
    assert_eq!(store.stats().unwrap().undurable_bytes, 0);
    drop(store);
    let store = Store::open(options()).unwrap();
    let mut session = store.session().unwrap();
    for key in (0..4).flat_map(|thread| (0..200).map(move |n| thread * 1000 + n)) {
        assert!(session.exists(T, u32::to_le_bytes(key)).unwrap(), "{key}");
    }
}
