//! The durable store on disks that fill up or fail: clear errors, reads go on, nothing acknowledged is lost.

use duramen::engine::TableId;
use duramen::{DiskState, Error, Level, Options, Store};
use duramen_backup::Mode;
use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_backup::os::OsDisk;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;

#[derive(Default)]
struct Faults {
    full: AtomicBool,
    syncs_fail: AtomicBool,
}

/// A directory whose device can be told to fail.
fn faulty(dir: &Path) -> (Arc<dyn Disk>, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let told = faults.clone();
    let disk = Fronted::new(
        Arc::new(OsDisk::new(dir, Mode::Buffered)),
        move |file| -> Arc<dyn File> {
            Arc::new(FaultyFile {
                inner: file,
                faults: told.clone(),
            })
        },
    );
    (Arc::new(disk), faults)
}

struct FaultyFile {
    inner: Arc<dyn File>,
    faults: Arc<Faults>,
}

impl FaultyFile {
    fn can_sync(&self) -> io::Result<()> {
        if self.faults.syncs_fail.load(Ordering::Acquire) {
            return Err(io::Error::other("the device is gone"));
        }
        Ok(())
    }
}

impl Front for FaultyFile {
    fn below(&self) -> &dyn File {
        &*self.inner
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.can_sync()?;
        self.inner.write_durably(at, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.can_sync()?;
        self.inner.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        if self.faults.full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.allocate(at, bytes, zero)
    }
}

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    options
}

fn open(disk: Arc<dyn Disk>, dir: &Path, threads: bool) -> Arc<Store> {
    Store::open_on(disk, options(dir), threads, &|_| {}).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Frames cannot be allocated any more: the write-ahead log fills up, then writes are refused; with space they resume by
/// themselves, and nothing is missing.
#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk.clone(), dir.path(), true);
    let mut session = store.session().unwrap();
    faults.full.store(true, Ordering::Release);
    let mut written = 0;
    let refused = loop {
        match session.set(T, &key(written), &[7; 10_000]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "100 MB do not fit into a log of 4 MB");
    };
    assert!(written > 100, "{written}: {refused}");
    let is_full = matches!(
        refused,
        Error::DiskFull(_) | Error::Engine(duramen::engine::Error::DiskFull)
    );
    assert!(is_full, "{refused}");
    assert_eq!(store.log().unwrap().disk(), DiskState::Full);
    // Reads of what is durable go on; a new write is refused at once and changes nothing.
    for n in 0..written {
        assert!(session.get(T, &key(n)).unwrap().is_some(), "key {n}");
    }
    let refused = session.set(T, b"another", b"value").unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");

    faults.full.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = session.set(T, b"after", b"value") {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    assert_eq!(store.log().unwrap().disk(), DiskState::Ok);
    drop(session);
    drop(store);
    let store = open(disk, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..written {
        assert!(session.get(T, &key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(session.get(T, b"after").unwrap().is_some());
}

/// 90-traps.md: a sync that failed is never taken for one that did not, however the next ones end.
#[test]
fn a_failed_sync_refuses_writes_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk.clone(), dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..100 {
        session.set(T, &key(n), b"value").unwrap();
    }
    faults.syncs_fail.store(true, Ordering::Release);
    let refused = session.set(T, b"lost", b"value").unwrap_err();
    assert!(matches!(refused, Error::DiskFailed(_)), "{refused}");
    faults.syncs_fail.store(false, Ordering::Release);
    let refused = session.set(T, b"later", b"value").unwrap_err();
    assert!(refused.to_string().contains("failed"), "{refused}");
    let reason = store.log().unwrap().failure().unwrap();
    assert!(reason.contains("the device is gone"), "{reason}");
    for n in 0..100 {
        assert!(session.get(T, &key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(store.close().is_err(), "a failed disk has no clean end");
    drop(session);
    drop(store);
    let store = open(disk, dir.path(), true);
    assert!(!store.stats().unwrap().clean_start);
    let mut session = store.session().unwrap();
    for n in 0..100 {
        assert!(session.get(T, &key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(session.get(T, b"later").unwrap().is_none());
}

/// Without threads nothing happens but by the calls of whoever drives the store: twice the same, byte for byte.
#[test]
fn a_driven_store_is_deterministic() {
    let run = || {
        let dir = tempfile::tempdir().unwrap();
        let (disk, _) = faulty(dir.path());
        let mut options = options(dir.path());
        options.engine.cleaners = 0;
        options.engine.heads = 1;
        options.engine.hash_seed = Some(5);
        let store = Store::open_on(disk.clone(), options, false, &|_| {}).unwrap();
        let log = store.log().unwrap();
        let mut session = store.engine().session().unwrap();
        for n in 0..3000u32 {
            let mut guard = session.pin();
            let key = key(n % 900);
            let hash = guard.hash(&key);
            guard.write(T, hash, &key, &[n as u8; 3000], None).unwrap();
            let position = guard.take_position();
            drop(guard);
            if n % 7 == 0 {
                assert!(log.reached(&position) < Level::Synced, "nobody commits");
                assert!(log.try_commit_here(Level::Synced));
                assert_eq!(log.reached(&position), Level::Synced);
            }
            if n % 50 == 0 {
                store.background_step().unwrap();
            }
        }
        while store.background_step().unwrap() {}
        let stats = store.stats().unwrap();
        (
            stats.commits,
            stats.wal_written_bytes,
            stats.frame_written_bytes,
            stats.segments_listed,
        )
    };
    let first = run();
    assert!(first.0 > 400 && first.2 > 0, "{first:?}");
    assert_eq!(first, run());
}

/// P1: what is refused is as it was. A listed segment that is gone or damaged is named, and nothing is served.
#[test]
fn damage_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        session.set(T, &key(n), &[n as u8; 4000]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    let frames = dir.path().join("frames");
    let good = std::fs::read(&frames).unwrap();
    // In the middle of a value, of which there is one copy.
    let value = good.windows(1000).position(|bytes| bytes == [200; 1000]);
    let mut bad = good.clone();
    bad[value.unwrap() + 500] ^= 0x10;
    std::fs::write(&frames, &bad).unwrap();
    let error = Store::open(options(dir.path()), |_| {}).err().unwrap();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("segment"), "{error}");
    assert!(
        std::fs::read(&frames).unwrap() == bad,
        "nothing was changed"
    );
    std::fs::write(&frames, &good).unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        let value = session.get(T, &key(n)).unwrap().unwrap();
        assert_eq!(value.bytes, [n as u8; 4000]);
    }
}
