//! The durable store over real directories: acknowledged writes are there after any end.

use crate::stoppable::stoppable;
use duramen::{Condition, Error, Level, Options, Phase, Session, Store, Version};
use duramen_base::random::Random;
use duramen_engine::TableId;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;

fn options(dir: &Path) -> Options {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 16 << 20;
    options
}

fn open(dir: &Path) -> Arc<Store> {
    Store::open(options(dir)).unwrap()
}

fn value(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(T, key).unwrap().map(|value| value.bytes)
}

#[test]
fn writes_are_there_after_close_and_after_drop() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..6u32 {
        let store = open(dir.path());
        let mut session = store.session().unwrap();
        for n in 0..round {
            let key = format!("key {n}");
            assert_eq!(
                value(&mut session, key.as_bytes()),
                Some(format!("value {n}").into_bytes()),
                "round {round}"
            );
        }
        let (key, text) = (format!("key {round}"), format!("value {round}"));
        session.set(T, key.as_bytes(), text.as_bytes()).unwrap();
        session.set(T, b"counted", b"0").unwrap();
        session.remove(T, b"removed").unwrap();
        assert_eq!(
            session.increment(T, b"rounds", 1).unwrap().value,
            i64::from(round) + 1
        );
        drop(session);
        let clean = store.stats().unwrap().clean_start;
        assert_eq!(clean, round > 0 && round % 2 == 1, "round {round}");
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

/// A killed process: nothing is closed, nothing is flushed; the next process finds the files
/// unchanged.
#[test]
fn synced_writes_survive_a_kill_at_any_time() {
    let dir = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let (disk, still) = stoppable(dir.path());
    let store = Store::open_on(disk, options(dir.path()), true, &|_| {}).unwrap();
    let mut session = store.session().unwrap();
    let mut model = BTreeMap::new();
    for n in 0..2000u32 {
        let key = format!("key {}", n % 701).into_bytes();
        if n % 5 == 0 {
            session.remove(T, &key).unwrap();
            model.remove(&key);
        } else {
            let bytes = vec![n as u8; (n % 3000) as usize];
            session.set(T, &key, &bytes).unwrap();
            model.insert(key, bytes);
        }
        if n % 500 == 499 {
            // The copy has the state that a kill would leave: all files at one moment, whatever the
            // background was about to do.
            let to = copy.path().join(n.to_string());
            let moment = still.write().unwrap();
            copy_all(dir.path(), &to);
            drop(moment);
            let other = open(&to);
            let mut other = other.session().unwrap();
            for (key, bytes) in &model {
                assert_eq!(value(&mut other, key).as_ref(), Some(bytes), "after {n}");
            }
            for k in 0..701 {
                let key = format!("key {k}").into_bytes();
                assert_eq!(value(&mut other, &key).is_some(), model.contains_key(&key));
            }
        }
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn tables_and_their_levels_are_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let orders = store.create_table("orders", Some(Level::Buffered)).unwrap();
    let cache = store.create_table("cache", Some(Level::Memory)).unwrap();
    let gone = store.create_table("gone", None).unwrap();
    let mut session = store.session().unwrap();
    session.set(orders, b"a", b"1").unwrap();
    session.set(cache, b"a", b"2").unwrap();
    session.set(gone, b"a", b"3").unwrap();
    session.set(T, b"a", b"4").unwrap();
    store.drop_table(gone).unwrap();
    store.set_level(cache, None).unwrap();
    store.clear_tables(&[T]).unwrap();
    session.set(T, b"b", b"5").unwrap();
    drop(session);
    store.close().unwrap();
    drop(store);

    let store = open(dir.path());
    let names: Vec<String> = store
        .engine()
        .tables()
        .list()
        .into_iter()
        .map(|t| t.name)
        .collect();
    assert_eq!(names, ["default", "orders", "cache"]);
    assert_eq!(store.table_level(orders), Some(Level::Buffered));
    assert_eq!(store.level(cache), Level::Synced);
    let mut session = store.session().unwrap();
    let mut get = |table, key: &[u8]| session.get(table, key).unwrap().map(|v| v.bytes);
    assert_eq!(get(orders, b"a"), Some(b"1".to_vec()));
    assert_eq!(get(cache, b"a"), Some(b"2".to_vec()));
    assert_eq!(get(T, b"a"), None);
    assert_eq!(get(T, b"b"), Some(b"5".to_vec()));
    drop(session);
    // A new table with the id of a dropped one begins empty.
    let again = store.create_table("again", None).unwrap();
    assert_eq!(again, gone);
    let mut session = store.session().unwrap();
    assert_eq!(session.get(again, b"a").unwrap(), None);
}

/// docs/traps.md, scenario 18: an object version only grows, across delete, restart and re-create.
#[test]
fn versions_grow_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = Version(0);
    for round in 0..4 {
        let store = open(dir.path());
        let mut session = store.session().unwrap();
        for _ in 0..3 {
            let version = session.set(T, b"key", b"value").unwrap().after.unwrap();
            assert!(version > last, "{version} after {last}");
            last = version;
            session.remove(T, b"key").unwrap();
        }
        let failed = session.set_if(T, b"key", b"value", Condition::Present);
        let refused = matches!(failed, Err(Error::ConditionFailed { current: None }));
        assert!(refused, "it was removed");
        if round % 2 == 0 {
            store.close().unwrap();
        }
    }
}

#[test]
fn writes_of_many_threads_are_all_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (threads, each) = (8, 200);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                for n in 0..each {
                    let key = format!("{thread}/{n}");
                    session.set(T, key.as_bytes(), b"value").unwrap();
                    session.increment(T, b"sum", 1).unwrap();
                }
            });
        }
    });
    assert!(store.stats().unwrap().syncs > 0);
    drop(store);
    let store = open(dir.path());
    let mut session = store.session().unwrap();
    assert_eq!(
        value(&mut session, b"sum"),
        Some((threads * each).to_string().into_bytes())
    );
    for thread in 0..threads {
        for n in 0..each {
            let key = format!("{thread}/{n}");
            assert!(value(&mut session, key.as_bytes()).is_some(), "{key}");
        }
    }
}

/// More data than memory has segments for, several times over: heads roll, cleaners clean, swaps
/// and frees go through, and everything is there at the end.
#[test]
fn cleaning_and_restarts_keep_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut model: BTreeMap<Vec<u8>, (u64, usize)> = BTreeMap::new();
    let mut random = Random::new(7);
    for round in 0..3 {
        let store = open(dir.path());
        let mut session = store.session().unwrap();
        for (key, (n, bytes)) in &model {
            let found = value(&mut session, key);
            assert!(found == Some(vec![*n as u8; *bytes]), "round {round}");
        }
        session.set_level(Some(Level::Memory)).unwrap();
        for n in 0..60_000u64 {
            let key = format!("key {}", random.below(20_000)).into_bytes();
            if n % 16 == 0 {
                session.remove(T, &key).unwrap();
                model.remove(&key);
            } else {
                let bytes = 1000 + random.index(1000);
                session
                    .set(T, &key, vec![n as u8; bytes])
                    .unwrap_or_else(|e| panic!("{e} {n} {round} {:?}", store.stats()));
                model.insert(key, (n, bytes));
            }
        }
        session.set_level(Some(Level::Synced)).unwrap();
        session.set(T, b"end", b"").unwrap();
        model.insert(b"end".to_vec(), (0, 0));
        drop(session);
        let stats = store.stats().unwrap();
        assert!(stats.segments_listed <= stats.frames, "{stats:?}");
        if round == 1 {
            store.close().unwrap();
        }
    }
}

#[test]
fn progress_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let phases = Mutex::new(Vec::new());
    let store = Store::open_with_progress(options(dir.path()), |p| {
        phases.lock().unwrap().push(p.phase)
    })
    .unwrap();
    let phases = phases.into_inner().unwrap();
    assert!(
        phases.starts_with(&[Phase::Log, Phase::Making]),
        "{phases:?}"
    );
    let mut session = store.session().unwrap();
    session.set_level(Some(Level::Memory)).unwrap();
    for n in 0..10_000u32 {
        session.set(T, n.to_le_bytes(), [1; 500]).unwrap();
    }
    drop(session);
    drop(store);
    let seen = Mutex::new(Vec::new());
    let store =
        Store::open_with_progress(options(dir.path()), |p| seen.lock().unwrap().push(*p)).unwrap();
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.first().map(|p| p.phase), Some(Phase::Log));
    assert!(seen.iter().all(|p| p.phase != Phase::Making));
    let last = seen.last().unwrap();
    assert_eq!(last.phase, Phase::Done);
    assert!(last.entries_done >= 10_000 && last.bytes_done == last.bytes_total);
    let stats = store.stats().unwrap();
    assert!(stats.loaded_entries >= 10_000 && stats.loaded_bytes > 5_000_000);
}

#[test]
fn a_directory_has_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let refused = Store::open(options(dir.path())).expect_err("in use");
    assert!(refused.to_string().contains("in use"), "{refused}");
    drop(store);
    open(dir.path());
    let mut other = options(dir.path());
    other.cluster = "another".to_owned();
    let refused = Store::open(other).expect_err("another cluster");
    assert!(refused.to_string().contains("cluster"), "{refused}");
    // Not ours: nothing is touched.
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("precious.txt"), b"mine").unwrap();
    let refused = Store::open(options(foreign.path())).expect_err("not ours");
    assert!(
        refused.to_string().contains("not a Duramen store"),
        "{refused}"
    );
    let names: Vec<_> = std::fs::read_dir(foreign.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn a_store_in_memory_has_no_directory() {
    let store = Store::open(Options::memory(64 << 20)).unwrap();
    assert!(store.log().is_none() && store.stats().is_none());
    let mut session = store.session().unwrap();
    session.set(T, b"key", b"value").unwrap();
    assert_eq!(value(&mut session, b"key"), Some(b"value".to_vec()));
    assert!(matches!(
        store.create_table("durable", Some(Level::Synced)),
        Err(Error::NoDirectory(Level::Synced))
    ));
    drop(session);
    store.close().unwrap();
    assert!(matches!(store.close(), Err(Error::Closed)));
}

/// Ends running threads on drop.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A snapshot is one moment: of two counters that one thread raises in turn, the second is never
/// ahead in the copy.
#[test]
fn a_snapshot_is_one_moment_and_opens_as_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            session.set_level(Some(Level::Memory)).unwrap();
            let mut n = 0i64;
            while !done.load(Ordering::Acquire) {
                n += 1;
                session.increment(T, b"first", 1).unwrap();
                session.increment(T, b"second", 1).unwrap();
                session
                    .set(T, format!("{}", n % 5000).as_bytes(), [7; 900])
                    .unwrap_or_else(|error| panic!("{error}: {:?}", store.stats()));
            }
        });
        // Also if a snapshot is wrong: the scope waits for the counter before the test reports it.
        let end = End(&done);
        let mut last = 0;
        for n in 0..3 {
            let mut session = store.session().unwrap();
            // The counting thread may run late.
            let deadline = Instant::now() + Duration::from_secs(60);
            while number(&mut session, b"first") <= last {
                assert!(Instant::now() < deadline, "nobody counts");
            }
            let before: i64 = number(&mut session, b"second");
            let to = copies.path().join(n.to_string());
            let report = store.snapshot(&to).unwrap();
            assert!(report.bytes > 0 && report.segments > 0);
            let copy = open(&to);
            assert!(copy.stats().unwrap().clean_start);
            let mut session = copy.session().unwrap();
            let (first, second) = (
                number(&mut session, b"first"),
                number(&mut session, b"second"),
            );
            assert!(
                first == second || first == second + 1,
                "{first} and {second}"
            );
            assert!(second >= before && first > last, "{second} after {before}");
            last = first;
        }
        drop(end);
    });
    let refused = store.snapshot(copies.path().join("0")).unwrap_err();
    assert!(
        refused.to_string().contains("already holds a store"),
        "{refused}"
    );
    assert_eq!(store.stats().unwrap().last_snapshot_ok, Some(false));
}

fn number(session: &mut Session, key: &[u8]) -> i64 {
    value(session, key).map_or(0, |bytes| {
        String::from_utf8(bytes).unwrap().parse().unwrap()
    })
}

/// A directory has the room with which it was created. If the options require more later, the store
/// reports it, and a snapshot has the room.
#[test]
fn a_directory_that_has_become_too_small_says_so_and_a_snapshot_has_room() {
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = copies.path().join("copy");
    let sized = |dir: &Path, disk_bytes: u64| {
        let disk_bytes = disk_bytes << 20;
        Store::open(Options {
            disk_bytes,
            ..options(dir)
        })
        .unwrap()
    };
    let store = sized(dir.path(), 32);
    assert_eq!(store.directory().expect("a directory").lacking_room(), None);
    let mut session = store.session().unwrap();
    session.set(T, b"key", b"value").unwrap();
    drop((session, store));
    let store = sized(dir.path(), 8192);
    let (room, wanted) = store
        .directory()
        .expect("a directory")
        .lacking_room()
        .expect("made for less");
    assert!(room < wanted && wanted >= 8192 << 20, "{room} {wanted}");
    store.snapshot(&copy).unwrap();
    drop(store);
    let store = sized(&copy, 8192);
    assert_eq!(store.directory().expect("a directory").lacking_room(), None);
    let mut session = store.session().unwrap();
    assert_eq!(value(&mut session, b"key").unwrap(), b"value");
}
