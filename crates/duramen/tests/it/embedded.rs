//! The embedded API from many threads: atomic transactions, expiry, walks, waits for the disk.

use duramen::{Condition, Error, Expiry, Level, Options, Session, Store, Table, Ttl, Version};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

const T: Table = Table::DEFAULT;
const MIB: usize = 1 << 20;

fn options(dir: &Path) -> Options {
    Options::new(dir, 64 << 20)
        .heads(2)
        .huge_pages(false)
        .wal_bytes(16 << 20)
}

fn in_memory() -> Arc<Store> {
    Store::open(Options::memory(64 << 20).heads(2).huge_pages(false)).unwrap()
}

fn text(session: &mut Session, key: &str) -> Option<String> {
    let value = session.get(T, key).unwrap()?;
    Some(String::from_utf8(value.bytes).unwrap())
}

/// Fills the store until it refuses; returns the number of objects.
fn fill(session: &mut Session) -> u32 {
    for n in 0u32.. {
        match session.set(T, format!("filler {n}"), vec![7; MIB / 2]) {
            Ok(_) => {}
            Err(Error::OutOfMemory { .. }) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("memory ends")
}

/// A step for which memory has no room leaves every key unchanged; with room it is done as a whole.
#[test]
fn a_transaction_without_room_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Options::new(dir.path(), 64 << 20).level(Level::Memory);
    for store in [in_memory(), Store::open(durable.huge_pages(false)).unwrap()] {
        let mut session = store.session().unwrap();
        session.set(T, "old", "as it was").unwrap();
        let fillers = fill(&mut session);
        let names: Vec<String> = (0..12).map(|n| format!("new {n}")).collect();
        let keys = names.iter().map(String::as_str).chain(["old"]);
        let keys: Vec<_> = keys.map(|key| (T, key)).collect();
        let step = |session: &mut Session, count: usize| {
            session.transaction(&keys, |tx| {
                tx.set(T, "old", "changed")?;
                let mut names = names.iter().take(count);
                names.try_for_each(|name| tx.set(T, name, vec![1; MIB - 100]))
            })
        };
        let changed = |session: &mut Session| {
            let made = names.iter().filter(|name| session.exists(T, name).unwrap());
            let made = made.count();
            (made, text(session, "old").unwrap())
        };
        let refused = step(&mut session, 6);
        let no_room = matches!(refused, Err(Error::OutOfMemory { .. }));
        assert!(no_room, "{refused:?}");
        assert_eq!(changed(&mut session), (0, "as it was".to_owned()));
        for n in 0..fillers / 2 {
            session.remove(T, format!("filler {n}")).unwrap();
        }
        if store.stats().is_some() {
            // More than an eighth of the write-ahead log is never one commit.
            let refused = step(&mut session, 12);
            let too_large = matches!(refused, Err(Error::TransactionTooLarge { .. }));
            assert!(too_large, "{refused:?}");
            assert_eq!(changed(&mut session), (0, "as it was".to_owned()));
        }
        step(&mut session, 6).unwrap();
        assert_eq!(changed(&mut session), (6, "changed".to_owned()));
        if store.stats().is_some() {
            store.close().unwrap();
            let next = Store::open(options(dir.path())).unwrap();
            assert_eq!(
                changed(&mut next.session().unwrap()),
                (6, "changed".to_owned())
            );
        }
    }
}

/// Threads overwrite large values in a nearly full store: steps find memory or are refused, none is
/// half done, and all threads make progress.
#[test]
fn transactions_under_pressure_are_whole() {
    let store = in_memory();
    let mut session = store.session().unwrap();
    let fillers = fill(&mut session);
    for n in 0..12 {
        session
            .remove(T, format!("filler {}", fillers - 1 - n))
            .unwrap();
    }
    drop(session);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let store = &store;
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                let keys = [(T, "x"), (T, "y"), (T, "z")];
                let mut done = 0;
                for n in 0..60u8 {
                    let value = vec![n.wrapping_mul(3).wrapping_add(thread); MIB / 4];
                    let written = session.transaction(&keys, |tx| {
                        let seen = keys.map(|(t, key)| tx.get(t, key));
                        let seen: Result<Vec<_>, _> = seen.into_iter().collect();
                        let seen = seen?;
                        assert!(seen.iter().all(|value| *value == seen[0]), "half done");
                        keys.iter().try_for_each(|(t, key)| tx.set(*t, key, &value))
                    });
                    match written {
                        Ok(()) => done += 1,
                        Err(Error::OutOfMemory { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(done > 0);
            });
        }
    });
}

#[test]
fn a_transaction_that_is_given_up_changes_nothing() {
    let store = in_memory();
    let mut session = store.session().unwrap();
    session.set(T, "a", "1").unwrap();
    let keys = [(T, "a"), (T, "b")];
    let aborted = session.transaction(&keys, |tx| {
        tx.set(T, "a", "2")?;
        tx.remove(T, "b")?;
        Err::<(), _>(Error::Aborted)
    });
    assert!(matches!(aborted, Err(Error::Aborted)));
    let value = session.transaction(&keys, |tx| {
        let sum = tx.increment(T, "a", 41)?;
        tx.abort();
        Ok(sum)
    });
    assert_eq!(value.unwrap(), 42);
    let failed = session.transaction(&keys, |tx| {
        tx.set(T, "b", "text")?;
        tx.increment(T, "b", 1)
    });
    assert!(matches!(failed, Err(Error::NotAnInteger)));
    // A panic releases its locks, and leaves no change.
    let panic = catch_unwind(AssertUnwindSafe(|| {
        session.transaction(&keys, |tx| {
            tx.set(T, "a", "3")?;
            tx.set(T, "b", "3")?;
            if tx.exists(T, "b")? {
                panic!("in the closure");
            }
            Ok(())
        })
    }));
    assert!(panic.is_err());
    assert_eq!(text(&mut session, "a").unwrap(), "1");
    assert!(!session.exists(T, "b").unwrap());
    let mut other = store.session().unwrap();
    for _ in 0..4 {
        other.increment(T, "a", 1).unwrap(); // of every head
        other = store.session().unwrap();
    }
    session
        .transaction(&keys, |tx| tx.set(T, "b", "4"))
        .unwrap();
    assert_eq!(text(&mut session, "b").unwrap(), "4");
    store.close().unwrap();
}

#[test]
fn a_transaction_knows_its_keys_and_its_changes() {
    let store = in_memory();
    let users = store.table("users").unwrap();
    let mut session = store.session().unwrap();
    let version = session.set(T, "a", "1").unwrap().after;
    session.set(users, "a", "of users").unwrap();
    let late = Expiry::At(UNIX_EPOCH + Duration::from_secs(1 << 40));
    // The same key twice is one key; the same key of two tables is two.
    session
        .transaction(&[(T, "a"), (users, "a"), (T, "a"), (T, "c")], |tx| {
            assert!(matches!(tx.get(T, "b"), Err(Error::NotInTransaction)));
            assert!(matches!(
                tx.set(users, "c", "1"),
                Err(Error::NotInTransaction)
            ));
            let too_long = tx.set(T, "c", vec![0; duramen::VALUE_BYTES_MAX + 1]);
            assert!(matches!(too_long, Err(Error::ValueTooLarge { .. })));
            assert_eq!(tx.get(T, "a")?.unwrap(), b"1");
            assert!(tx.remove(T, "a")? && !tx.remove(T, "a")?);
            assert_eq!(tx.get(T, "a")?, None);
            tx.set_with(T, "a", "10", late)?;
            assert_eq!(tx.increment(T, "a", 5)?, 15); // and keeps its expiry
            assert_eq!(tx.version(T, "a")?, version, "as it was");
            tx.set_with(T, "c", "gone", Expiry::At(UNIX_EPOCH))?;
            assert!(!tx.exists(T, "c")?);
            tx.set(users, "a", "changed")
        })
        .unwrap();
    assert_eq!(text(&mut session, "a").unwrap(), "15");
    assert!(matches!(session.ttl(T, "a").unwrap(), Ttl::Left(_)));
    assert!(session.version(T, "a").unwrap() > version);
    assert!(!session.exists(T, "c").unwrap());
    assert_eq!(session.get(users, "a").unwrap().unwrap().bytes, b"changed");
    let nothing: [(Table, &str); 0] = [];
    session.transaction(&nothing, |_| Ok(())).unwrap();
    store.drop_table(users).unwrap();
    let gone = session.transaction(&[(users, "a")], |tx| tx.set(users, "a", "1"));
    assert!(matches!(gone, Err(Error::NoSuchTable(_))));
}

/// A call of the store inside of a closure that holds keys, or memory, of the same store would wait
/// for itself for ever.
#[test]
fn calls_from_inside_of_a_closure_are_refused() {
    let (store, another) = (in_memory(), in_memory());
    let (mut session, mut inner) = (store.session().unwrap(), store.session().unwrap());
    let mut elsewhere = another.session().unwrap();
    session
        .transaction(&[(T, "key")], |tx| {
            assert!(matches!(inner.get(T, "key"), Err(Error::Nested)));
            assert!(matches!(inner.scan(T).next(), Some(Err(Error::Nested))));
            let nested = inner.transaction(&[(T, "key")], |tx| tx.set(T, "key", "1"));
            assert!(matches!(nested, Err(Error::Nested)));
            assert!(matches!(store.session(), Err(Error::Nested)));
            assert!(matches!(store.create_table("t", None), Err(Error::Nested)));
            assert!(matches!(store.clear_tables(&[T]), Err(Error::Nested)));
            assert!(matches!(store.flush(), Err(Error::Nested)));
            assert!(matches!(store.close(), Err(Error::Nested)));
            elsewhere.set(T, "key", "another store's")?;
            tx.set(T, "key", "1")
        })
        .unwrap();
    session
        .get_with(T, "key", |_| {
            assert!(matches!(store.close(), Err(Error::Nested)))
        })
        .unwrap()
        .unwrap();
    inner.set(T, "key", "2").unwrap();
    store.close().unwrap();
}

#[test]
fn what_expires_does_so_in_time_and_what_persists_does_not() {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let mut options = Options::memory(64 << 20).huge_pages(false);
    options.engine.clock = duramen_engine::Clock::Manual(clock.clone());
    let store = Store::open(options).unwrap();
    let mut session = store.session().unwrap();
    let s = &mut session;
    let second = Duration::from_secs(1);
    let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
    s.set_for(T, "second", "v", second).unwrap();
    s.set_until(T, "until", "v", at(1_001_000)).unwrap();
    s.set_for(T, "persists", "v", second).unwrap();
    s.set(T, "given", "v").unwrap();
    assert_eq!(
        s.set_until(T, "past", "v", at(999_999)).unwrap().after,
        None
    );
    assert_eq!(
        s.get(T, "until").unwrap().unwrap().expires_at,
        Some(at(1_001_000))
    );
    assert!(s.persist(T, "persists").unwrap() && !s.persist(T, "persists").unwrap());
    assert!(s.expire(T, "given", 2 * second).unwrap());
    assert!(!s.expire(T, "absent", second).unwrap() && !s.persist(T, "absent").unwrap());
    assert_eq!(s.ttl(T, "second").unwrap(), Ttl::Left(second));
    assert_eq!(s.ttl(T, "persists").unwrap(), Ttl::Never);
    assert_eq!(s.ttl(T, "absent").unwrap(), Ttl::Absent);
    // Numbers and appended bytes keep their time, a plain `set` does not.
    s.set_for(T, "number", "1", second).unwrap();
    s.increment(T, "number", 1).unwrap();
    s.append(T, "number", "0").unwrap();
    s.set_for(T, "kept", "1", second).unwrap();
    s.set_with(T, "kept", "2", Expiry::Keep, Condition::Present)
        .unwrap();
    s.set_for(T, "for good", "1", second).unwrap();
    s.set(T, "for good", "2").unwrap();
    // A key exists in the millisecond of its time of expiry.
    clock.store(1_001_000, Ordering::Relaxed);
    assert!(s.exists(T, "second").unwrap() && s.exists(T, "until").unwrap());
    assert_eq!(s.ttl(T, "second").unwrap(), Ttl::Left(Duration::ZERO));
    // Writes that keep the time keep the key; a new time that has come removes it.
    s.increment(T, "number", 1).unwrap();
    s.set_with(T, "kept", "3", Expiry::Keep, Condition::Present)
        .unwrap();
    s.transaction(&[(T, "number"), (T, "given")], |tx| {
        tx.increment(T, "number", 1)?;
        tx.set_with(T, "given", "w", Expiry::After(2 * second))
    })
    .unwrap();
    assert!(s.exists(T, "number").unwrap() && s.exists(T, "kept").unwrap());
    s.set(T, "now", "v").unwrap();
    assert!(s.expire_at(T, "now", at(1_001_000)).unwrap());
    assert!(!s.exists(T, "now").unwrap());
    s.set(T, "now", "v").unwrap();
    let outcome = s.set_until(T, "now", "v", at(1_001_000)).unwrap();
    assert!(outcome.after.is_none() && !s.exists(T, "now").unwrap());
    s.set(T, "zero", "v").unwrap();
    s.transaction(&[(T, "zero")], |tx| {
        tx.set_with(T, "zero", "w", Duration::ZERO)
    })
    .unwrap();
    assert!(!s.exists(T, "zero").unwrap());
    clock.store(1_001_001, Ordering::Relaxed);
    for key in ["second", "until", "number", "kept"] {
        assert!(!s.exists(T, key).unwrap(), "{key}");
    }
    for key in ["persists", "given", "for good"] {
        assert!(s.exists(T, key).unwrap(), "{key}");
    }
    assert!(s.expire_at(T, "given", at(5)).unwrap());
    assert!(!s.exists(T, "given").unwrap());
}

#[test]
fn conditions_are_judged_with_the_write() {
    let store = in_memory();
    let mut session = store.session().unwrap();
    let s = &mut session;
    let fails = |result: Result<duramen::Outcome, Error>, found: Option<Version>| {
        let failed =
            matches!(&result, Err(Error::ConditionFailed { current }) if *current == found);
        assert!(failed, "{result:?}");
    };
    fails(s.set_if(T, "key", "0", Condition::Present), None);
    fails(s.remove_if(T, "key", Condition::Present), None);
    let first = s.set_if(T, "key", "1", Condition::Absent).unwrap().after;
    fails(s.set_if(T, "key", "0", Condition::Absent), first);
    let version = first.unwrap();
    let newer = s
        .set_if(T, "key", "2", Condition::Version(version))
        .unwrap();
    assert_eq!(newer.before, first);
    fails(
        s.set_if(T, "key", "0", Condition::Version(version)),
        newer.after,
    );
    fails(
        s.remove_if(T, "key", Condition::Version(version)),
        newer.after,
    );
    fails(
        s.set_if(T, "key", "0", Condition::NewerThan(version)),
        newer.after,
    );
    let above = Version(newer.after.unwrap().0 + 1);
    s.remove_if(T, "key", Condition::NewerThan(above)).unwrap();
    assert!(!s.exists(T, "key").unwrap());
    assert!(
        s.set(T, "key", "3").unwrap().after > newer.after,
        "across a removal"
    );
    assert_eq!(s.take(T, "key").unwrap().unwrap().bytes, b"3");
    assert!(s.take(T, "key").unwrap().is_none() && !s.remove(T, "key").unwrap());
    assert!(matches!(
        s.append(T, "long", vec![0; duramen::VALUE_BYTES_MAX + 1]),
        Err(Error::ValueTooLarge { .. })
    ));
    assert!(!s.exists(T, "long").unwrap());
    assert_eq!(s.increment_float(T, "float", 1.5).unwrap().value, 1.5);
    assert_eq!(
        s.get_with(T, "float", <[u8]>::to_vec).unwrap().unwrap(),
        b"1.5"
    );
    let values = s.get_many(T, &["float", "absent"]).unwrap();
    assert!(values[0].is_some() && values[1].is_none());
}

/// A walk shows an object that exists during all of it, while the index grows and shrinks.
#[test]
fn a_scan_shows_what_stays() {
    let store = in_memory();
    let mut session = store.session().unwrap();
    let stays = 20_000u32;
    let key = |n: u32| format!("stays {n}");
    for n in 0..stays {
        session.set(T, key(n), n.to_le_bytes()).unwrap();
    }
    session.set(T, "large", vec![1; MIB]).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = store.session().unwrap();
            for round in 0u32.. {
                for n in 0..5000 {
                    match round % 2 {
                        0 => drop(session.set(T, format!("comes {n}"), "and goes").unwrap()),
                        _ => drop(session.remove(T, format!("comes {n}")).unwrap()),
                    }
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        });
        let _end = End(&ends);
        for _ in 0..3 {
            let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for object in session.scan(T) {
                let (key, value) = object.unwrap();
                if key.starts_with(b"stays") {
                    let n = u32::from_le_bytes(value.bytes.try_into().unwrap());
                    seen.insert(key, n);
                }
            }
            assert_eq!(seen.len(), stays as usize);
            for n in 0..stays {
                assert_eq!(seen[key(n).as_bytes()], n);
            }
        }
    });
    let gone = store.table("gone").unwrap();
    store.drop_table(gone).unwrap();
    let mut scan = session.scan(gone);
    assert!(matches!(scan.next(), Some(Err(Error::NoSuchTable(_)))));
    assert!(scan.next().is_none(), "after an error there is nothing");
}

/// Ends running threads on drop, also if a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// At level `memory` calls return at once; data for which a call waited is on the disk at that
/// time, and survives a kill.
#[test]
fn what_was_waited_for_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
    let store = Store::open(options(&live).level(Level::Memory)).unwrap();
    let mut session = store.session().unwrap();
    session.set_many(T, &[("a", "1"), ("b", "2")]).unwrap();
    session
        .transaction(&[(T, "c")], |tx| tx.set(T, "c", "3"))
        .unwrap();
    session.wait_durable(Level::Synced).unwrap();
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&live).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let killed = Store::open(options(&copy)).unwrap();
    let mut found = killed.session().unwrap();
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        assert_eq!(text(&mut found, key).as_deref(), Some(value));
    }
    assert!(!killed.stats().unwrap().clean_start);
    store.close().unwrap();
}

#[test]
fn tables_are_found_by_name_whoever_makes_them() {
    let store = in_memory();
    let tables: Vec<Table> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| store.table("users").unwrap()))
            .collect();
        makers
            .into_iter()
            .map(|maker| maker.join().unwrap())
            .collect()
    });
    assert!(
        tables
            .iter()
            .all(|table| *table == tables[0] && *table != T)
    );
    assert_eq!(store.find_table("users"), Some(tables[0]));
    let mut session = store.session().unwrap();
    session.set(tables[0], "key", "value").unwrap();
    let names: Vec<_> = store
        .tables()
        .into_iter()
        .map(|info| (info.name, info.objects))
        .collect();
    assert_eq!(names, [("default".to_owned(), 0), ("users".to_owned(), 1)]);
    let cleared = store.clear_tables(&[tables[0], Table(77)]);
    assert!(matches!(cleared, Err(Error::NoSuchTable(_))));
    assert_eq!(store.count(tables[0]), 1, "all or none");
    assert!(matches!(
        store.table("no blanks"),
        Err(Error::BadTableName(_))
    ));
    assert!(matches!(
        store.create_table("users", None),
        Err(Error::TableExists(_))
    ));
    assert!(matches!(store.drop_table(T), Err(Error::NoSuchTable(_))));
}

/// A destructor of a thread-local that began a transaction, or read with a closure, after the
/// store's own thread-local was destroyed ended the process.
#[test]
fn a_destructor_of_a_thread_local_may_use_closures() {
    struct Last(Session);
    impl Drop for Last {
        fn drop(&mut self) {
            let bytes = self.0.get_with(T, "count", <[u8]>::len);
            assert_eq!(bytes.unwrap(), Some(1));
            let counted = self
                .0
                .transaction(&[(T, "count")], |tx| tx.increment(T, "count", 1));
            counted.unwrap();
        }
    }
    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    let store = in_memory();
    let session = store.session().unwrap();
    let thread = std::thread::spawn(move || {
        LAST.set(Some(Last(session)));
        LAST.with_borrow_mut(|last| {
            let session = &mut last.as_mut().unwrap().0;
            let counted = session.transaction(&[(T, "count")], |tx| tx.increment(T, "count", 1));
            counted.unwrap();
        });
    });
    thread.join().unwrap();
    let mut session = store.session().unwrap();
    assert_eq!(text(&mut session, "count").as_deref(), Some("2"));
}

/// An empty path left a file `LOCK` in the working directory.
#[test]
fn an_empty_path_is_refused_and_leaves_nothing() {
    let refused = Store::open(options(Path::new("")));
    assert!(matches!(refused, Err(Error::Disk(_))));
    assert!(!Path::new("LOCK").exists());
}

/// The error named another limit than the documentation, and with so many sessions a table could
/// not be cleared, get another level, or be copied.
#[test]
fn a_store_full_of_sessions_still_takes_steps_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(&dir.path().join("store"))).unwrap();
    let table = store.table("table").unwrap();
    let mut sessions: Vec<_> = (0..1024).map(|_| store.session().unwrap()).collect();
    let refused = store.session().map(drop);
    assert!(matches!(
        refused,
        Err(Error::TooManySessions { limit: 1024 })
    ));
    sessions[1023].set(table, "key", "value").unwrap();
    store.set_level(table, Some(Level::Buffered)).unwrap();
    store.snapshot(dir.path().join("copy")).unwrap();
    store.clear_tables(&[table]).unwrap();
    store.drop_table(table).unwrap();
    assert!(!sessions[0].exists(T, "key").unwrap());
    store.close().unwrap();
}

/// A key that calls the store when it is asked for its bytes.
struct Calling<'a>(&'a Store);

impl AsRef<[u8]> for Calling<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.clear_tables(&[T]).unwrap();
        b"key"
    }
}

/// The keys of a transaction were asked for their bytes under its guard: such a key waited for its
/// own thread, and so did the store.
#[test]
fn a_key_of_a_transaction_may_call_the_store() {
    let (ended, end) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let store = Store::open(Options::memory(64 << 20)).unwrap();
        let mut session = store.session().unwrap();
        let keys = [(T, Calling(&store))];
        session
            .transaction(&keys, |tx| tx.set(T, "key", "value"))
            .unwrap();
        assert!(session.exists(T, "key").unwrap());
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60))
        .expect("it waits for itself");
    thread.join().unwrap();
}

/// `rm -rf` of the directory of an open store went unnoticed: writes returned as `Synced`.
#[test]
fn a_store_whose_directory_is_deleted_takes_no_more_writes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    let store = Store::open(options(&dir)).unwrap();
    let mut session = store.session().unwrap();
    session.set(T, "before", "value").unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let refused = loop {
        match session.set(T, "key", "value") {
            Ok(_) => assert!(Instant::now() < until, "it is not noticed"),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::DiskFailed(_)), "{refused}");
    assert!(session.exists(T, "before").unwrap());
    assert!(matches!(store.close(), Err(Error::DiskFailed(_))));
}

/// A thousand cleaners took all segments, and the store refused its first writes.
#[test]
fn a_small_store_has_no_more_cleaners_than_it_can_bear() {
    let memory = |cleaners| Options::memory(64 << 20).heads(2).cleaners(cleaners);
    let filled = |cleaners| {
        let store = Store::open(memory(cleaners).huge_pages(false)).unwrap();
        fill(&mut store.session().unwrap())
    };
    let usual = filled(1);
    let many = filled(1_000);
    assert!(many >= usual * 3 / 4, "{many} values instead of {usual}");
}
