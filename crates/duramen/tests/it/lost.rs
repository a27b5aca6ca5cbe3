//! Damage for which there is no other copy: a start is refused until its loss is accepted, and then
//! goes on without exactly this.

use duramen::internals::{Losses, accept, losses};
use duramen::{DiskMode, Error, Level, Options, Store, Table};
use duramen_backup::disk::Disk;
use duramen_backup::os::OsDisk;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::Relocation;
use duramen_format::frame::{SLOT_BYTES, Slot, State, slot_at};
use duramen_format::segment::Kind;
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

pub fn key(n: u32) -> Vec<u8> {
    format!("user:{n}").into_bytes()
}

fn disk(dir: &Path) -> Arc<dyn Disk> {
    Arc::new(OsDisk::new(dir, DiskMode::Buffered))
}

/// A store whose keys have old values, durably, and then new ones. Two bits of the value flip in
/// each entry of `lost` before it is committed.
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
            assert!(store.engine().flips().entry(T, &key(*n), &[bit, bit + 1]));
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

/// As [`damaged`], and the loss is accepted.
pub fn accepted(lost: &[u32]) -> TempDir {
    let dir = damaged(lost);
    accept(&*disk(dir.path()), &look(dir.path()).losses).unwrap();
    dir
}

/// All keys have their new values, but for those of `lost`: they are absent.
pub fn check(store: &Arc<Store>, lost: &[u32]) {
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

/// accepted::Z2: the earlier value was durable, and is in the log.
#[test]
fn older_values_of_lost_entries_that_are_shown_are_found() {
    let dir = accepted(&[7]);
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

/// The entry behind the lost version of the key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Removed,
    Expired,
    Written,
}

/// The key 7 has two versions, in two segments, and the second one is lost on disk. The entry
/// after it is in a third segment.
fn damaged_between(after: After) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_on(disk(dir.path()), options(dir.path()), false, &|_| {}).unwrap();
    let mut session = store.engine().session().unwrap();
    let mut filler = KEYS;
    let mut commit_and_fill = |session: &mut duramen_engine::Session| {
        for n in filler..filler + 50 {
            let mut guard = session.pin();
            let hash = guard.hash(&key(n));
            guard.write(T, hash, &key(n), &[3; 50_000], None).unwrap();
            drop(guard);
            assert!(store.log().unwrap().try_commit_here(Level::Synced));
        }
        filler += 50;
    };
    let bit = 8 * (16 + key(7).len() + 100);
    let flip = || assert!(store.engine().flips().entry(T, &key(7), &[bit, bit + 1]));
    for value in [b'o', b'l'] {
        let mut guard = session.pin();
        let hash = guard.hash(&key(7));
        guard.write(T, hash, &key(7), &[value; 500], None).unwrap();
        drop(guard);
        if value == b'l' {
            flip();
        }
        commit_and_fill(&mut session);
    }
    flip(); // memory has no damage
    let mut guard = session.pin();
    let hash = guard.hash(&key(7));
    match after {
        After::Removed => assert!(guard.remove(T, hash, &key(7)).unwrap().before.is_some()),
        After::Expired => {
            let soon = guard.now_ms() + 1;
            guard.write(T, hash, &key(7), b"n", Some(soon)).unwrap();
        }
        After::Written => {
            guard.write(T, hash, &key(7), b"n", None).unwrap();
        }
    }
    drop(guard);
    commit_and_fill(&mut session);
    copy_of(dir.path())
}

fn value_of_7(store: &Arc<Store>) -> Option<Vec<u8>> {
    let value = store.session().unwrap().get(T, key(7)).unwrap();
    value.map(|value| value.bytes.to_vec())
}

/// The value of the key 7 at the second start after its damaged segment was replaced.
fn after_repair(after: After) -> Option<Vec<u8>> {
    let dir = damaged_between(after);
    let found = look(dir.path());
    assert_eq!(names(&found), [key(7)]);
    accept(&*disk(dir.path()), &found.losses).unwrap();
    let store = Store::open(options(dir.path())).unwrap();
    let is_written = after == After::Written;
    assert_eq!(value_of_7(&store), is_written.then(|| b"n".to_vec()));
    wait_for_repair(&store);
    if is_written {
        // It leaves no trace in any segment that names an older one.
        assert!(store.session().unwrap().remove(T, key(7)).unwrap());
        store.engine().heads().close_all();
        let lost = found.losses[0].segment.0;
        let newer: Vec<SegmentId> = (lost + 1..lost + 40).map(SegmentId).collect();
        newer
            .iter()
            .for_each(|id| store.engine().segments().relocate(*id));
        let until = Instant::now() + Duration::from_secs(60);
        let is_done =
            |id: &SegmentId| store.engine().segments().relocation(*id) == Relocation::Done;
        while !newer.iter().all(is_done) {
            assert!(Instant::now() < until, "{:?}", store.stats());
            std::thread::yield_now();
        }
    }
    store.close().unwrap();
    drop(store);
    for _ in 0..2 {
        let store = Store::open(options(dir.path())).unwrap();
        let value = value_of_7(&store);
        store.close().unwrap();
        if value.is_some() {
            return value;
        }
    }
    None
}

/// accepted::Z4: the lost version was the only one that named the segment of the first one.
#[test]
fn a_deleted_key_stays_away_once_its_damaged_segment_is_replaced() {
    for after in [After::Removed, After::Expired, After::Written] {
        assert_eq!(after_repair(after), None);
    }
    let older = with_bug(Bug::LostNamesForgotten, || after_repair(After::Removed));
    assert_eq!(older, Some(vec![b'o'; 500]), "the bug is not found");
}

/// A store after a crash: the segment of one head was flushed once, `and_again` twice, and is open.
fn flushed_open(and_again: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_on(disk(dir.path()), options(dir.path()), false, &|_| {}).unwrap();
    let mut slow = store.engine().session().unwrap();
    let mut fast = store.engine().session().unwrap();
    for round in 0..1 + u32::from(and_again) {
        for n in 0..120 {
            let of_slow = n < 6;
            let session = if of_slow { &mut slow } else { &mut fast };
            let mut guard = session.pin();
            let key = key(round * 1000 + n);
            let hash = guard.hash(&key);
            guard
                .write(T, hash, &key, &[n as u8; 50_000], None)
                .unwrap();
            drop(guard);
            assert!(store.log().unwrap().try_commit_here(Level::Synced));
        }
    }
    copy_of(dir.path())
}

/// The places of the newest slots of open replicas.
fn newest_slots(frames: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    for frame in 0.. {
        let mut newest = None;
        for number in 0..2 {
            let at = slot_at(frame, number) as usize;
            let Some(bytes) = frames.get(at..at + SLOT_BYTES as usize) else {
                return found;
            };
            if let Ok(slot) = Slot::decode(bytes) {
                newest = newest.max(Some((
                    slot.stamp,
                    slot.state == State::Open && slot.kind == Kind::Head,
                    at,
                )));
            }
        }
        if let Some((_, true, at)) = newest {
            found.push(at);
        }
    }
    found
}

/// For each open replica: whether a start without its newest slot is refused, and what is said of
/// it.
fn without_newest_slot(and_again: bool) -> Vec<(bool, Losses)> {
    let dir = flushed_open(and_again);
    let frames = std::fs::read(dir.path().join("frames")).unwrap();
    let damaged = newest_slots(&frames).into_iter().map(|at| {
        let copy = copy_of(dir.path());
        let mut frames = frames.clone();
        frames[at + 16] ^= 3;
        std::fs::write(copy.path().join("frames"), frames).unwrap();
        let found = look(copy.path());
        (is_refused(copy.path()), found)
    });
    damaged.collect()
}

/// accepted::Z5.
#[test]
fn an_open_segment_without_its_newest_slot_has_no_known_end() {
    let is_right = |(is_refused, found): &(bool, Losses)| {
        found.losses.is_empty() && found.others.is_empty() != *is_refused
    };
    for and_again in [false, true] {
        let all = without_newest_slot(and_again);
        assert!(all.iter().any(|(is_refused, _)| *is_refused), "{all:?}");
        assert!(all.iter().all(is_right), "{all:?}");
        let all = with_bug(Bug::EndIsBelieved, || without_newest_slot(and_again));
        assert!(!all.iter().all(is_right), "the bug is not found");
    }
}

/// snapshot::N4: it reported success, and could never be restored.
#[test]
fn a_snapshot_with_a_damaged_entry_fails() {
    let dir = damaged(&[7]);
    accept(&*disk(dir.path()), &look(dir.path()).losses).unwrap();
    // Without threads, so that the segment is not replaced meanwhile.
    let store = Store::open_on(disk(dir.path()), options(dir.path()), false, &|_| {}).unwrap();
    let copies = tempfile::tempdir().unwrap();
    let snapshot = |name: &str| store.snapshot(copies.path().join(name));
    assert!(matches!(snapshot("a"), Err(Error::Damaged { .. })));
    let copied = with_bug(Bug::CopiesDamage, || snapshot("b"));
    assert!(copied.is_ok() && is_refused(&copies.path().join("b")));
}

/// Root made a file that the server could not read, and followed a link.
#[test]
fn the_list_belongs_to_the_owner_of_the_directory() {
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    let dir = damaged(&[7]);
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    for name in ["accepted-loss", "accepted-loss.new"] {
        symlink(elsewhere.path(), dir.path().join(name)).unwrap();
    }
    // Another user, if the test runs as root.
    let _ = chown(dir.path(), Some(65_534), Some(65_534));
    accept(&*disk(dir.path()), &look(dir.path()).losses).unwrap();
    let list = dir.path().join("accepted-loss");
    let found = list.symlink_metadata().unwrap();
    assert!(found.is_file());
    assert_eq!(found.uid(), dir.path().metadata().unwrap().uid());
    assert_eq!(elsewhere.path().metadata().unwrap().len(), 0);
    assert!(!is_refused(dir.path()));
}
