//! The durable store on a disk that hangs: only what needs the disk waits for it.

use crate::stoppable::stoppable;
use duramen::{Error, Level, Options, Store};
use duramen_engine::TableId;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;

/// A store at level `memory` whose disk hangs while the lock is held.
fn open(dir: &Path) -> (Arc<Store>, Arc<RwLock<()>>) {
    let (disk, still) = stoppable(dir);
    let mut options = Options::new(dir, 64 << 20).level(Level::Memory);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 16 << 20;
    let store = Store::open_on(disk, options, true, &|_| {}).unwrap();
    (store, still)
}

/// The figures came from behind the lock of the commit, which is held while the disk works: the
/// thread that asked for them stopped as long as the disk did, and a server's clients with it.
#[test]
fn the_figures_do_not_wait_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, still) = open(dir.path());
    let mut session = store.session().unwrap();
    for n in 0..2_000u32 {
        session.set(T, n.to_le_bytes(), [7; 1000]).unwrap();
    }
    store.flush().unwrap();
    let before = store.stats().unwrap();
    assert!(before.appended_bytes > 2_000_000 && before.segments_listed > 0);
    let hangs = still.write().unwrap();
    // The commit begins, and the background allocates room.
    for n in 0..10_000u32 {
        session.set(T, n.to_le_bytes(), [8; 1000]).unwrap();
    }
    // Nothing tells that they wait for the disk. If they do not yet, less is tested.
    std::thread::sleep(Duration::from_millis(300));
    let (tell, told) = std::sync::mpsc::channel();
    let asked = store.clone();
    std::thread::spawn(move || drop(tell.send(asked.stats().unwrap())));
    let stats = told.recv_timeout(Duration::from_secs(60));
    drop(hangs);
    let stats = stats.expect("the figures, although the disk hangs");
    assert!(stats.appended_bytes >= before.appended_bytes);
    assert!(stats.wal_bytes == before.wal_bytes && stats.frame_bytes == before.frame_bytes);
    store.flush().unwrap();
    let after = store.stats().unwrap();
    assert!(after.appended_bytes > before.appended_bytes + 10_000_000);
    assert!(after.segments_listed > before.segments_listed);
    drop(session);
    store.close().unwrap();
}

/// As long as the disk completes nothing, one writer waits for memory in vain, and later ones give
/// up soon. When the disk works again, all of them go on.
#[test]
fn writers_go_on_when_the_disk_does() {
    let dir = tempfile::tempdir().unwrap();
    let (store, still) = open(dir.path());
    let mut session = store.session().unwrap();
    let mut set = |n: u32| session.set(T, (n % 20_000).to_le_bytes(), [7; 1000]);
    let hangs = still.write().unwrap();
    let mut n = 0;
    let refused = loop {
        match set(n) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
        assert!(n < 200_000, "more than memory");
    };
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    let began = Instant::now();
    for _ in 0..10 {
        assert!(matches!(set(n), Err(Error::OutOfMemory { .. })));
    }
    let took = began.elapsed();
    // Each waited 5 s. It needs the clock, because a wait is no work.
    assert!(took < Duration::from_secs(20), "{took:?}");
    drop(hangs);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = set(n) {
        assert!(Instant::now() < deadline, "{error}");
    }
    for n in 0..100_000 {
        set(n).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    drop(session);
    store.close().unwrap();
}
