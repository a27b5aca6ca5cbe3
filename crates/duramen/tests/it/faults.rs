//! The durable store on disks that fill up or fail: clear errors, reads continue, no acknowledged
//! write is lost.

use crate::lost::place;
use duramen::{DiskState, Error, Level, Options, Store};
use duramen_backup::Mode;
use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_backup::os::OsDisk;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::TableId;
use duramen_format::segment::Kind;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

const T: TableId = TableId::DEFAULT;

#[derive(Default)]
pub struct Faults {
    full: AtomicBool,
    /// Not even allocated blocks can be written, except for headers: a file system that copies on
    /// write.
    pub stuck: AtomicBool,
    syncs_fail: AtomicBool,
}

/// A directory whose device fails on demand.
pub fn faulty(dir: &Path) -> (Arc<dyn Disk>, Arc<Faults>) {
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

impl FaultyFile {
    fn can_write(&self, at: u64) -> io::Result<()> {
        let headers_end = 8192;
        if at >= headers_end && self.faults.stuck.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Front for FaultyFile {
    fn below(&self) -> &dyn File {
        &*self.inner
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.can_write(at)?;
        self.inner.write_at(at, bytes)
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.can_sync()?;
        self.can_write(at)?;
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

/// Frames cannot be allocated any more: the write-ahead log fills up, then writes are refused; with
/// space they resume by themselves, and nothing is missing.
#[test]
fn a_full_disk_refuses_writes_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk.clone(), dir.path(), true);
    let mut session = store.session().unwrap();
    faults.full.store(true, Ordering::Release);
    let mut written = 0;
    let refused = loop {
        match session.set(T, key(written), [7; 10_000]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "100 MB do not fit into a log of 4 MB");
    };
    assert!(written > 100, "{written}: {refused}");
    let is_full = matches!(refused, Error::DiskFull(_));
    assert!(is_full, "{refused}");
    assert_eq!(store.stats().unwrap().disk, DiskState::Full);
    // Reads of durable data continue; a new write is refused at once and changes nothing.
    for n in 0..written {
        assert!(session.get(T, key(n)).unwrap().is_some(), "key {n}");
    }
    let refused = session.set(T, b"another", [7; 10_000]).unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");

    faults.full.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = session.set(T, b"after", [7; 10_000]) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    assert_eq!(store.stats().unwrap().disk, DiskState::Ok);
    drop(session);
    drop(store);
    let store = open(disk, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..written {
        assert!(session.get(T, key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(session.get(T, b"after").unwrap().is_some());
}

/// The writes of a closure that panics were forgotten, and the next wait for them returned `Ok`.
#[test]
fn what_a_panicking_closure_has_written_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk, dir.path(), true);
    let mut session = store.session().unwrap();
    faults.syncs_fail.store(true, Ordering::Release);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let half = |guard: &mut duramen_engine::Guard<'_>| -> Result<(), duramen_engine::Error> {
            let hash = guard.hash(b"half");
            guard.write(T, hash, b"half", b"value", None)?;
            panic!("the closure's own");
        };
        session.batch(half)
    }));
    assert!(panicked.is_err());
    let waited = session.wait_durable(Level::Synced);
    assert!(matches!(waited, Err(Error::DiskFailed(_))), "{waited:?}");
}

/// docs/traps.md, trap 12: a failed sync never counts as successful, whatever the result of later
/// ones.
#[test]
fn a_failed_sync_refuses_writes_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk.clone(), dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..100 {
        session.set(T, key(n), b"value").unwrap();
    }
    faults.syncs_fail.store(true, Ordering::Release);
    let refused = session.set(T, b"lost", b"value").unwrap_err();
    assert!(matches!(refused, Error::DiskFailed(_)), "{refused}");
    // It returned Ok: what had failed at level synced counted as durable.
    for _ in 0..2 {
        let waited = session.wait_durable(Level::Synced);
        assert!(matches!(waited, Err(Error::DiskFailed(_))), "{waited:?}");
    }
    faults.syncs_fail.store(false, Ordering::Release);
    let refused = session.set(T, b"later", b"value").unwrap_err();
    assert!(refused.to_string().contains("failed"), "{refused}");
    let reason = store.log().unwrap().failure().unwrap();
    assert!(reason.contains("the device is gone"), "{reason}");
    for n in 0..100 {
        assert!(session.get(T, key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(store.close().is_err(), "a failed disk has no clean end");
    drop(session);
    drop(store);
    let store = open(disk, dir.path(), true);
    assert!(!store.stats().unwrap().clean_start);
    let mut session = store.session().unwrap();
    for n in 0..100 {
        assert!(session.get(T, key(n)).unwrap().is_some(), "key {n}");
    }
    assert!(session.get(T, b"later").unwrap().is_none());
}

/// Without threads nothing happens except by calls of the driving code: two runs are identical,
/// byte for byte.
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
            let position = guard.order().take_position();
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

/// restart::P1: a refused directory is unchanged. The error names a missing or damaged listed
/// segment, and nothing is served.
#[test]
fn damage_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        session.set(T, key(n), [n as u8; 4000]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    let frames = dir.path().join("frames");
    let good = std::fs::read(&frames).unwrap();
    let log = std::fs::read(dir.path().join("wal")).unwrap();
    let value = place(&good).unwrap_or_else(|| panic!("in the log: {:?}", place(&log)));
    let mut bad = good.clone();
    bad[value + 500] ^= 0x30; // two bits
    std::fs::write(&frames, &bad).unwrap();
    let error = Store::open(options(dir.path())).err().unwrap();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("segment"), "{error}");
    let now = std::fs::read(&frames).unwrap();
    assert!(now == bad, "nothing was changed");
    std::fs::write(&frames, &good).unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        let value = session.get(T, key(n)).unwrap().unwrap();
        assert_eq!(value.bytes, [n as u8; 4000]);
    }
}

/// read::D1: one flipped bit of a frame is put back at the start, told, and its segment is written
/// elsewhere, so that the next start finds nothing. Without that the start is refused.
#[test]
fn one_flipped_bit_of_a_frame_is_put_back_and_its_segment_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..500 {
        session.set(T, key(n), [n as u8; 4000]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    let frames = dir.path().join("frames");
    let mut bytes = std::fs::read(&frames).unwrap();
    let value = place(&bytes);
    bytes[value.unwrap() + 500] ^= 0x10;
    std::fs::write(&frames, &bytes).unwrap();
    for bug in [Bug::OneBitLosesReplica, Bug::MendsUnproved] {
        let copy = copy_of(dir.path());
        if bug == Bug::MendsUnproved {
            bytes[value.unwrap() + 501] ^= 0x10; // a second one, which nothing may mend
            std::fs::write(copy.path().join("frames"), &bytes).unwrap();
            assert!(Store::open(options(copy.path())).is_err());
        }
        let (disk, _) = faulty(copy.path());
        let opened = with_bug(bug, || {
            duramen_backup::Backup::open_to_read(disk, &Default::default())
        });
        let (backup, found) = opened.unwrap();
        let mut into = vec![0; 8 << 20];
        let data = found.iter().filter(|info| info.kind == Kind::Head);
        let read = with_bug(bug, || {
            let mut read = data.map(|info| backup.read(info.segment, &mut into));
            read.all(|read| read.is_ok())
        });
        assert_eq!(read, bug == Bug::MendsUnproved, "{bug:?}");
    }
    let store = open(faulty(dir.path()).0, dir.path(), true);
    assert_eq!(store.stats().unwrap().flipped_bits, 1);
    let is_repaired = || {
        let stats = store.stats().unwrap();
        (stats.bad_frames, stats.scrub_repaired) == (1, 1) && stats.is_sound()
    };
    let started = Instant::now();
    while !is_repaired() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{:?}",
            store.stats()
        );
        std::thread::yield_now();
    }
    store.close().unwrap();
    drop(store);
    let store = open(faulty(dir.path()).0, dir.path(), true);
    assert_eq!(store.stats().unwrap().flipped_bits, 0, "nothing is left");
    let mut session = store.session().unwrap();
    for n in 0..500 {
        let value = session.get(T, key(n)).unwrap().unwrap();
        assert_eq!(value.bytes, [n as u8; 4000]);
    }
}

/// The story of the defect: a bit flipped in memory before its commit. All sums over the segment
/// were right, the entry's own was not, and no start accepted the store any more. load::R2: the bit
/// is put back, told, and the segment replaced.
#[test]
fn a_bit_that_flipped_before_its_commit_is_put_back_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), false);
    let mut session = store.engine().session().unwrap();
    for n in 0..300u32 {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        guard
            .write(T, hash, &key(n), &[n as u8; 500], None)
            .unwrap();
    }
    drop(session);
    let bits = 8 * (16 + key(7).len() + 100) + 3;
    assert!(store.engine().flips().entry(T, &key(7), &[bits]));
    assert!(store.log().unwrap().try_commit_here(Level::Synced));
    let copy = copy_of(dir.path());
    drop(store);
    for bug in [Some(Bug::OneBitStopsLoad), None] {
        let opened = match bug {
            Some(bug) => with_bug(bug, || Store::open(options(copy.path()))),
            None => Store::open(options(copy.path())),
        };
        let Ok(store) = opened else {
            assert!(bug.is_some());
            continue;
        };
        assert!(bug.is_none(), "{bug:?} is not found");
        assert_eq!(store.stats().unwrap().flipped_bits, 1);
        let started = Instant::now();
        while store.stats().unwrap().scrub_repaired == 0 {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{:?}",
                store.stats()
            );
            std::thread::yield_now();
        }
        store.close().unwrap();
    }
    let store = Store::open(options(copy.path())).unwrap();
    assert_eq!(store.stats().unwrap().flipped_bits, 0, "nothing is left");
    let mut session = store.session().unwrap();
    for n in 0..300u32 {
        let value = session.get(T, key(n)).unwrap().unwrap();
        assert_eq!(value.bytes, [n as u8; 500], "key {n}");
    }
}

/// A store with a pass of which `steps` steps are done, then a bit flips, then the pass ends.
/// Returns the flipped bits that the next start finds.
fn found_after_a_flip_in_a_pass(steps: u32, bug: Option<Bug>) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), false);
    for round in 0..2u8 {
        let mut session = store.engine().session().unwrap();
        for n in (0..300u32).filter(|n| round == 0 || n % 2 == 0) {
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
    let end = || {
        for _ in 0..steps {
            store.engine().clean_step(8 << 10);
        }
        let bit = 8 * (16 + key(7).len() + 100) + 3;
        assert!(store.engine().flips().entry(T, &key(7), &[bit]));
        while store.engine().clean_step(1 << 30) {}
        while store.background_step().unwrap() {}
    };
    match bug {
        Some(bug) => with_bug(bug, end),
        None => end(),
    }
    let copy = copy_of(dir.path());
    drop(store);
    let store = open(faulty(copy.path()).0, copy.path(), true);
    assert_holds(&store, 300);
    store.stats().unwrap().flipped_bits
}

/// background::B3: a bit of a survivor flips before the survivor is written. It is written without
/// that bit. With the planted bug the flip gets a good certificate, and the next start finds it.
#[test]
fn a_survivor_is_verified_before_it_is_written() {
    let mut found = 0;
    for steps in 0..24 {
        assert_eq!(found_after_a_flip_in_a_pass(steps, None), 0, "{steps}");
        found += found_after_a_flip_in_a_pass(steps, Some(Bug::SwapBeforeVerified));
    }
    assert!(found > 0);
}

/// The directory as `kill -9` would leave it now.
fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["superblock", "wal", "frames"] {
        std::fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// Overwrites every commit of the write-ahead log.
fn wreck_wal(dir: &Path) {
    let wal = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.join("wal"));
    let ring_at = 8192;
    let ring = wal.as_ref().unwrap().metadata().unwrap().len() - ring_at;
    std::os::unix::fs::FileExt::write_all_at(&wal.unwrap(), &vec![0xa5; ring as usize], ring_at)
        .unwrap();
}

fn assert_holds(store: &Arc<Store>, keys: u32) {
    let mut session = store.session().unwrap();
    for n in 0..keys {
        assert!(session.get(T, key(n)).unwrap().is_some(), "key {n}");
    }
}

/// After a clean stop 1 to 6 MB of commits lay in the write-ahead log for weeks, and one bad block
/// of them refused the next start. A clean stop leaves nothing in the log that a start needs.
#[test]
fn after_a_clean_stop_the_write_ahead_log_is_not_needed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..300 {
        session.set(T, key(n), [7; 1000]).unwrap();
    }
    drop(session);
    store.create_table("made-late", None).unwrap();
    store.close().unwrap();
    let stats = store.stats().unwrap();
    assert_eq!((stats.wal_used_bytes, stats.disk), (0, DiskState::Ok));
    drop(store);
    wreck_wal(dir.path());
    let store = open(faulty(dir.path()).0, dir.path(), true);
    assert!(store.stats().unwrap().clean_start);
    assert_holds(&store, 300);
    assert!(store.engine().tables().find("made-late").is_some());
}

/// Level `memory` acknowledges faster than a disk writes: when the disk was full, the backlog was
/// one commit that could not fit, and a stop discarded all of it. Now it is written as far as there
/// is room, a stop is refused while some data is only in memory, and with room again it ends
/// cleanly.
#[test]
fn a_stop_on_a_full_disk_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let mut options = options(dir.path());
    options.wal_bytes = 16 << 20;
    options.engine.memory_bytes = 128 << 20;
    options.level = Level::Memory;
    let store = Store::open_on(disk.clone(), options.clone(), false, &|_| {}).unwrap();
    // An empty store takes the space ahead of its log with its first write.
    let mut first = store.session().unwrap();
    first.set_level(Some(Level::Synced)).unwrap();
    first.set(T, key(0), [7; 10_000]).unwrap();
    faults.full.store(true, Ordering::Release);
    let keys = 9000; // 90 MB: no commit between them reports the little room
    let mut session = store.engine().session().unwrap();
    for n in 0..keys {
        let mut guard = session.pin();
        let key = key(n);
        let hash = guard.hash(&key);
        guard.write(T, hash, &key, &[7; 10_000], None).unwrap();
        let _ = guard.order().take_position();
    }
    drop(session);
    let refused = store.close().unwrap_err();
    assert!(matches!(refused, Error::DiskFull(_)), "{refused}");
    let left = store.stats().unwrap().undurable_bytes;
    assert!(left < 60_000_000, "{left} bytes: what fits is written");
    assert_holds(&store, keys);

    faults.full.store(false, Ordering::Release);
    store.close().unwrap();
    drop(store);
    let store = Store::open_on(disk, options, true, &|_| {}).unwrap();
    assert!(store.stats().unwrap().clean_start);
    assert_holds(&store, keys);
}

/// Scrubbing read frames alone: a bad block of the write-ahead log was found by the next start,
/// which refused the data, while memory had held all of it. Now scrubbing finds it while the server
/// runs, and its contents go to frames.
#[test]
fn a_bad_block_of_the_write_ahead_log_is_mended_while_memory_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, faults) = faulty(dir.path());
    let store = open(disk, dir.path(), true);
    let events = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = events.clone();
    let directory = store.directory().expect("a directory");
    directory.watch_repairs(move |event| seen.lock().unwrap().push(event.clone()));
    let mut session = store.session().unwrap();
    for n in 0..50 {
        session.set(T, key(n), [7; 1000]).unwrap();
    }
    let scrub = || {
        store.scrub().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.stats().unwrap().scrub.left > 0 {
            assert!(Instant::now() < deadline, "the scrub ends");
            std::thread::yield_now();
        }
    };
    scrub();
    assert!(events.lock().unwrap().is_empty(), "nothing is damaged yet");
    wreck_wal(dir.path());
    scrub();
    let stats = store.stats().unwrap();
    assert_eq!((stats.wal_used_bytes, stats.scrub_repaired), (0, 1));
    assert_eq!(events.lock().unwrap().len(), 2, "found, and repaired");
    session.set(T, key(50), b"later").unwrap();
    let killed = copy_of(dir.path());
    drop(faults);
    assert_holds(&open(faulty(killed.path()).0, killed.path(), true), 51);
}

/// A start wrote a new control segment before it served, so on a full disk the start failed: there
/// were not even reads of existing data. Now the store serves its data, takes no writes, and takes
/// them again when there is room.
#[test]
fn a_start_on_a_full_disk_serves_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, _) = faulty(dir.path());
    let store = open(disk, dir.path(), true);
    let mut session = store.session().unwrap();
    let written = 500;
    for n in 0..written {
        session.set(T, key(n), [7; 10_000]).unwrap();
    }
    let killed = copy_of(dir.path());
    let (disk, faults) = faulty(killed.path());
    faults.stuck.store(true, Ordering::Release);
    let again = open(disk, killed.path(), true);
    assert_eq!(again.log().unwrap().disk(), DiskState::Full);
    assert_holds(&again, written);
    let mut session = again.session().unwrap();
    assert!(session.set(T, b"after", b"value").is_err());
    faults.stuck.store(false, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = session.set(T, b"after", b"value") {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
    assert_holds(&again, written);
    drop(session);
    again.close().unwrap();
}

/// An expired key left the index and nothing else: a start brought it back when the wall clock had
/// been put back meanwhile, also after a clean stop, and it counted among the keys until a cleaner
/// found it.
#[test]
fn what_has_expired_stays_away_when_the_clock_steps_back() {
    for is_clean in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(std::sync::atomic::AtomicU64::new(1_000_000));
        let mut options = options(dir.path());
        options.engine.clock = duramen_engine::Clock::Manual(clock.clone());
        let open = || Store::open(options.clone()).unwrap();
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let store = open();
        let mut session = store.session().unwrap();
        session.set(T, b"stays", b"value").unwrap();
        session.set(T, b"older", b"value").unwrap();
        session
            .set_until(T, b"older", b"value", at(2_000_000))
            .unwrap();
        session
            .set_until(T, b"later", b"value", at(4_000_000))
            .unwrap();
        clock.store(3_000_000, Ordering::Relaxed);
        assert!(session.get(T, b"older").unwrap().is_none());
        session.set(T, b"a commit", b"value").unwrap();
        drop(session);
        if is_clean {
            store.close().unwrap();
        }
        drop(store);
        clock.store(1_500_000, Ordering::Relaxed);
        let store = open();
        let objects = store.engine().tables().list()[0].objects;
        assert_eq!(objects, 3, "clean: {is_clean}");
        let mut session = store.session().unwrap();
        assert!(session.get(T, b"older").unwrap().is_none());
        assert!(session.get(T, b"later").unwrap().is_some());
        drop(session);
        drop(store);
        let store = open();
        let mut session = store.session().unwrap();
        assert!(session.get(T, b"older").unwrap().is_none(), "for good");
        // Written under the present clock, it lives by that clock, also after the next start.
        session
            .set_until(T, b"older", b"new", at(1_900_000))
            .unwrap();
        drop(session);
        drop(store);
        let store = open();
        assert!(store.session().unwrap().get(T, b"older").unwrap().is_some());
    }
}

/// The result of a repair of `dir`: the report, the unproved keys, and the new store.
fn repaired(
    dir: &Path,
) -> (
    duramen::internals::Salvaged,
    Vec<Vec<u8>>,
    Arc<Store>,
    tempfile::TempDir,
) {
    let before = std::fs::read(dir.join("frames")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut unproved = Vec::new();
    let damaged: Arc<dyn Disk> = Arc::new(OsDisk::new(dir, Mode::Buffered));
    let done = duramen::internals::salvage(&damaged, out.path(), &mut |_, key| {
        unproved.push(key.to_vec())
    });
    assert!(
        std::fs::read(dir.join("frames")).unwrap() == before,
        "it was written to"
    );
    let store = open(faulty(out.path()).0, out.path(), true);
    (done.unwrap(), unproved, store, out)
}

/// Two flipped bits make a start refuse all of a store, although each entry has a checksum of its
/// own. A repair recovers the undamaged data, with a list of possibly old keys.
#[test]
fn a_damaged_store_is_repaired_entry_by_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.engine.heads = 1;
    let store = Store::open(options).unwrap();
    let table = store.create_table("others", None).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        session.set(T, key(n), [n as u8; 4000]).unwrap();
    }
    for n in 0..100 {
        session.remove(T, key(n)).unwrap();
    }
    session.set(table, b"another", b"value").unwrap();
    drop(session);
    store.close().unwrap();
    drop(store);
    let sound = repaired(dir.path());
    assert_eq!(
        (sound.0.keys, sound.0.unproved, sound.0.lost.len()),
        (1901, 0, 0)
    );

    let frames = dir.path().join("frames");
    let mut bytes = std::fs::read(&frames).unwrap();
    let value = [199; 1000]; // of keys 199, 455, 711 and so on
    let last_in = |bytes: &[u8]| bytes.windows(1000).rposition(|part| part == value);
    // Not in the segment with the tombstones: behind a gap they prove no deletion.
    let at = last_in(&bytes[..last_in(&bytes).unwrap() - (3 << 20)]).unwrap();
    bytes[at + 500] ^= 0x30;
    std::fs::write(&frames, &bytes).unwrap();
    let opened = Store::open(Options::new(dir.path(), 64 << 20));
    assert!(opened.is_err(), "a start refuses it");
    let (done, unproved, store, _out) = repaired(dir.path());
    assert_eq!((done.keys, done.lost.len()), (1900, 1), "{:?}", done.lost);
    let lost = done.lost[0].bytes.clone().unwrap();
    assert!(
        lost.len() < 4200,
        "the one entry, and none behind it: {lost:?}"
    );
    let mut session = store.session().unwrap();
    let mut missing = Vec::new();
    for n in 100..2000 {
        match session.get(T, key(n)).unwrap() {
            Some(value) => assert_eq!(value.bytes, [n as u8; 4000]),
            None => missing.push(n),
        }
    }
    assert_eq!((missing.len(), missing[0] % 256), (1, 199));
    assert!(
        (0..100).all(|n| session.get(T, key(n)).unwrap().is_none()),
        "deleted"
    );
    let made = store.engine().tables().find("others").unwrap();
    assert_eq!(
        session.get(made, b"another").unwrap().unwrap().bytes,
        b"value"
    );
    // Writes before the damage may have been replaced in it; writes after it cannot.
    assert_eq!(unproved.len() as u64, done.unproved);
    assert!(unproved.contains(&key(missing[0] - 1)) && !unproved.contains(&key(1999)));
}

/// After a kill the last writes are in the write-ahead log alone. If it has holes, a repair
/// recovers the rest, and none of it is proved.
#[test]
fn with_holes_in_its_write_ahead_log_a_store_gives_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(faulty(dir.path()).0, dir.path(), true);
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        session.set(T, key(n), [n as u8; 4000]).unwrap();
    }
    let killed = copy_of(dir.path());
    let sound = repaired(killed.path());
    assert_eq!((sound.0.keys, sound.0.unproved), (2000, 0), "{:?}", sound.0);
    let path = killed.path().join("wal");
    let mut wal = std::fs::read(&path).unwrap();
    for block in wal[8192..].chunks_mut(4096).step_by(32) {
        block.fill(0xa5);
    }
    std::fs::write(&path, wal).unwrap();
    let (done, unproved, store, _out) = repaired(killed.path());
    assert!(done.wal_damage.is_some() && !done.lost.is_empty());
    assert!((1..2000).contains(&done.keys), "{}", done.keys);
    assert_eq!(
        (done.unproved, unproved.len() as u64),
        (done.keys, done.keys)
    );
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        if let Some(value) = session.get(T, key(n)).unwrap() {
            assert_eq!(value.bytes, [n as u8; 4000]);
        }
    }
}
