//! Damage for which there is no other copy: a start is refused until its loss is accepted, and then
//! goes on without exactly this.

use duramen::internals::{Losses, accept, losses};
use duramen::{DiskMode, Error, Level, Options, Store, Table};
use duramen_backup::disk::Disk;
use duramen_backup::os::OsDisk;
use duramen_base::planted::{Bug, with_bug};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const T: Table = Table::DEFAULT;
const KEYS: u32 = 300;

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 4 << 20;
    options
}

fn key(n: u32) -> Vec<u8> {
    format!("user:{n}").into_bytes()
}

fn disk(dir: &Path) -> Arc<dyn Disk> {
    Arc::new(OsDisk::new(dir, DiskMode::Buffered))
}

/// A store whose keys have old values, durably, and then new ones. Of the entries of `lost` two
/// bits of the value flip before they are committed.
fn damaged(lost: &[u32]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_on(disk(dir.path()), options(dir.path()), false, &|_| {}).unwrap();
    for round in [b'o', b'n'] {
        let mut session = store.engine().session().unwrap();
        for n in 0..KEYS {
            let mut guard = session.pin();
            let hash = guard.hash(&key(n));
            guard.write(T, hash, &key(n), &[round; 500], None).unwrap();
        }
        drop(session);
        for n in lost.iter().filter(|_| round == b'n') {
            let bit = 8 * (16 + key(*n).len() + 100);
            assert!(store.engine().flip_bits(T, &key(*n), &[bit, bit + 1]));
        }
        assert!(store.log().unwrap().try_commit_here(Level::Synced));
    }
    copy_of(dir.path())
}

fn copy_of(dir: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

fn look(dir: &Path) -> Losses {
    losses(&disk(dir)).unwrap()
}

fn names(found: &Losses) -> Vec<Vec<u8>> {
    let claims = found.losses.iter().flat_map(|loss| &loss.claims);
    claims.map(|claim| claim.key.to_vec()).collect()
}

fn is_refused(dir: &Path) -> bool {
    match Store::open(options(dir)) {
        Ok(_) => false,
        Err(Error::Damaged { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// All keys have their new values, but for those of `lost`: they are absent.
fn check(store: &Arc<Store>, lost: &[u32]) {
    let mut session = store.session().unwrap();
    for n in 0..KEYS {
        let value = session.get(T, key(n)).unwrap();
        let wanted = (!lost.contains(&n)).then_some([b'n'; 500]);
        let found = value.map(|value| value.bytes.to_vec());
        assert_eq!(
            found.as_deref(),
            wanted.as_ref().map(|bytes| &bytes[..]),
            "key {n}"
        );
    }
}

fn wait_for_repair(store: &Store) {
    let until = Instant::now() + Duration::from_secs(60);
    while !store.stats().unwrap().is_sound() || store.stats().unwrap().scrub_repaired == 0 {
        assert!(Instant::now() < until, "{:?}", store.stats());
        std::thread::yield_now();
    }
}

#[test]
fn a_start_goes_on_without_what_is_lost_once_that_is_accepted() {
    let dir = damaged(&[7, 8]);
    assert!(is_refused(dir.path()));
    let found = look(dir.path());
    assert_eq!(names(&found), [key(7), key(8)]);
    assert!(found.others.is_empty());
    let lines: Vec<String> = found.losses.iter().flat_map(|loss| loss.lines(9)).collect();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("`user:7` of table 0")),
        "{lines:?}"
    );
    assert!(is_refused(dir.path()), "it was only looked at");
    accept(&*disk(dir.path()), &found.losses).unwrap();
    // Without threads, so that the segment is not replaced: the next start meets the same damage.
    let store = Store::open_on(disk(dir.path()), options(dir.path()), false, &|_| {}).unwrap();
    let mut session = store.engine().session().unwrap();
    for n in [7, 8] {
        let guard = session.pin();
        assert_eq!(guard.read(T, guard.hash(&key(n)), &key(n)), Ok(None));
    }
    let mut guard = session.pin();
    let hash = guard.hash(&key(7));
    guard.write(T, hash, &key(7), &[b'n'; 500], None).unwrap();
    drop(guard);
    drop(session);
    assert!(store.log().unwrap().try_commit_here(Level::Synced));
    let copy = copy_of(dir.path());
    drop(store);
    assert_eq!(look(copy.path()).losses.len(), 1, "it is still there");
    let store = Store::open(options(copy.path())).unwrap();
    check(&store, &[8]); // what was written since stays
    wait_for_repair(&store);
    store.close().unwrap();
    drop(store);
    assert!(
        look(copy.path()).losses.is_empty(),
        "the segment is replaced"
    );
    check(&Store::open(options(copy.path())).unwrap(), &[8]);
}

/// accepted::Z2: the value of before was durable, and is in the log.
#[test]
fn older_values_of_lost_entries_that_are_shown_are_found() {
    let dir = damaged(&[7]);
    accept(&*disk(dir.path()), &look(dir.path()).losses).unwrap();
    let store = with_bug(Bug::OlderIsShown, || Store::open(options(dir.path()))).unwrap();
    let mut session = store.session().unwrap();
    let value = session.get(T, key(7)).unwrap().expect("the older one");
    assert_eq!(value.bytes, [b'o'; 500]);
}

/// accepted::Z1.
#[test]
fn more_than_was_accepted_is_refused() {
    let dir = damaged(&[7]);
    let more = damaged(&[7, 200]);
    let list = look(dir.path()).losses;
    accept(&*disk(more.path()), &list).unwrap();
    assert!(is_refused(more.path()));
    let opened = with_bug(Bug::AcceptsMore, || Store::open(options(more.path())));
    assert!(opened.is_ok(), "the bug is not found");
    assert_ne!(
        look(dir.path()).token(),
        look(damaged(&[7, 200]).path()).token()
    );
}

/// Damage that came after the acceptance, in another segment.
#[test]
fn damage_after_the_acceptance_is_refused() {
    let dir = damaged(&[7]);
    accept(&*disk(dir.path()), &look(dir.path()).losses).unwrap();
    let wal = dir.path().join("wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    let value = |bytes: &[u8]| bytes.windows(400).position(|part| part == [b'o'; 400]);
    let at = value(&bytes).expect("a first value");
    bytes[at + 50] ^= 3;
    std::fs::write(&wal, &bytes).unwrap();
    assert!(Store::open(options(dir.path())).is_err());
}

/// A place of 1000 bytes in a value of the byte 200: the last one in the file. A slot, at the
/// file's start, may hold the tail of an older copy, which nobody reads.
pub(crate) fn place(bytes: &[u8]) -> Option<usize> {
    bytes.windows(1000).rposition(|part| part == [200; 1000])
}

/// Bytes of a frame that the disk changed: what lies behind them in the segment proves nothing.
#[test]
fn what_a_disk_has_lost_can_be_accepted_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        session.set(T, key(n), [n as u8; 4000]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    let frames = dir.path().join("frames");
    let mut bytes = std::fs::read(&frames).unwrap();
    let value = place(&bytes);
    bytes[value.expect("a value in a frame") + 500] ^= 0x30;
    std::fs::write(&frames, &bytes).unwrap();
    assert!(is_refused(dir.path()));
    let found = look(dir.path());
    let lost = names(&found);
    assert!(!lost.is_empty() && lost.len() < 1500, "{}", lost.len());
    accept(&*disk(dir.path()), &found.losses).unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..2000 {
        let value = session.get(T, key(n)).unwrap();
        assert_eq!(value.is_none(), lost.contains(&key(n)), "key {n}");
        assert!(
            value.is_none_or(|value| value.bytes == [n as u8; 4000]),
            "key {n}"
        );
    }
    drop(session);
    wait_for_repair(&store);
    store.close().unwrap();
}
