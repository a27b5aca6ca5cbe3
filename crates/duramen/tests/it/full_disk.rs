//! Disks that are small for their store: each head can write, and a cache evicts.

use crate::faults::faulty;
use crate::lost;
use duramen::{DiskState, Error, Level, Options, Store};
use duramen_engine::{Mode, TableId};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;

fn options(dir: &Path, memory_mib: u64, disk_mib: u64) -> Options {
    let mut options = Options::new(dir, memory_mib * MIB);
    options.engine.huge_pages = false;
    options.wal_bytes = 16 * MIB;
    options.disk_bytes = disk_mib * MIB;
    options
}

/// Each head has a reserve of a segment. With 64 heads, the reserves were more than the 64 segments
/// of this disk, and a fresh store refused each write from the start.
#[test]
fn a_fresh_store_can_write_with_each_of_its_heads_however_small_the_disk() {
    for heads in [1, 2, 64] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(options(dir.path(), 1024, 1).heads(heads)).unwrap();
        let (asked, raised) = store
            .directory()
            .expect("a directory")
            .raised_disk()
            .expect("1 MiB is too little");
        assert!(asked == MIB && raised > MIB, "{asked} {raised}");
        assert_eq!(store.directory().expect("a directory").lacking_room(), None);
        let mut sessions: Vec<_> = (0..heads).map(|_| store.session().unwrap()).collect();
        for (n, session) in sessions.iter_mut().enumerate() {
            session.set_level(Some(Level::Memory)).unwrap();
            session.set(T, format!("key {n}"), b"value").unwrap();
        }
        drop(sessions);
        drop(store);
        let store = Store::open(options(dir.path(), 1024, 1).heads(heads)).unwrap();
        let mut session = store.session().unwrap();
        session.set(T, "after", b"a restart").unwrap();
        assert_eq!(store.engine().tables().list()[0].objects, heads as u64 + 1);
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path(), 64, 64).heads(2)).unwrap();
    assert_eq!(store.directory().expect("a directory").raised_disk(), None);
}

/// A cache whose disk was full before its memory refused each write for ever, and evicted nothing:
/// it gave up before it thought of eviction. No client of a cache deletes.
#[test]
fn a_cache_whose_disk_is_full_evicts() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), 256, 48).heads(2);
    options.engine.mode = Mode::Cache;
    options.level = Level::Buffered;
    let store = Store::open(options).unwrap();
    let mut session = store.session().unwrap();
    let mut refused = 0;
    for n in 0..4000u32 {
        match session.set(T, format!("key {n}"), vec![n as u8; 50_000]) {
            Ok(_) => {}
            Err(Error::DiskFull(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused < 40, "{refused} of 4000 writes were refused");
    assert!(store.engine().stats().entries_evicted > 1000);
    let last = session.get(T, "key 3999").unwrap();
    assert_eq!(last.unwrap().bytes, vec![3999u32 as u8; 50_000]);
}

/// A start removes the keys of an accepted loss before it serves. On a full disk it failed for
/// that, though any other start serves reads then.
#[test]
fn a_start_on_a_full_disk_serves_reads_though_it_accepts_a_loss() {
    let dir = lost::accepted(&[7, 8]);
    let options = || {
        let mut options = Options::new(dir.path(), 64 * MIB).heads(2);
        options.engine.huge_pages = false;
        options.wal_bytes = 4 * MIB;
        options
    };
    let (disk, faults) = faulty(dir.path());
    faults.stuck.store(true, Ordering::Release);
    let store = Store::open_on(disk, options(), true, &|_| {}).unwrap();
    assert_eq!(store.log().unwrap().disk(), DiskState::Full);
    let mut reader = store.engine().session().unwrap();
    for n in [6, 7, 8, 9] {
        let guard = reader.pin();
        let found = guard.read(T, guard.hash(&lost::key(n)), &lost::key(n));
        let is_there = found.unwrap().is_some();
        assert_eq!(is_there, n == 6 || n == 9, "key {n}");
    }
    drop(reader);
    faults.stuck.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut session = store.session().unwrap();
    while let Err(error) = session.set(T, b"after", b"value") {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    drop(session);
    lost::check(&store, &[7, 8]);
    store.close().unwrap();
    drop(store);
    lost::check(&Store::open(options()).unwrap(), &[7, 8]);
}
