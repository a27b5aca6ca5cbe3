//! Closing a store: no write is accepted and lost, and the directory is free for the next store.

use duramen::{Condition, Error, Level, Options, Store, Table};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

const T: Table = Table::DEFAULT;

fn options(dir: &Path) -> Options {
    Options::new(dir, 64 << 20)
        .heads(2)
        .huge_pages(false)
        .wal_bytes(16 << 20)
}

fn open(dir: &Path) -> Arc<Store> {
    Store::open(options(dir)).expect("the directory is free")
}

/// After `close` a session's `set` returned Ok, and the value was gone at the next start. The
/// directory stayed locked until the last session was dropped, so the next `open` failed.
#[test]
fn a_closed_store_accepts_nothing_and_leaves_its_directory() {
    for level in Level::ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        store.set_default_level(level).unwrap();
        let mut session = store.session().unwrap();
        session.set(T, "before", "1").unwrap();
        store.close().unwrap();
        let set = session.set(T, "after", "1");
        assert!(matches!(set, Err(Error::Closed)), "{level}: {set:?}");

        let next = open(dir.path());
        let mut after = next.session().unwrap();
        assert!(after.exists(T, "before").unwrap());
        assert!(!after.exists(T, "after").unwrap());
        // The first store is dropped after the second has begun: it must not touch the directory
        // any more.
        drop(session);
        drop(store);
        after.set(T, "later", "1").unwrap();
        let third = Store::open(options(dir.path()));
        assert!(matches!(third, Err(Error::Disk(_))), "two at a time");
        next.close().unwrap();
        let mut last = open(dir.path()).session().unwrap();
        assert!(last.exists(T, "later").unwrap());
    }
}

/// Every method that could lose a write, or read data that no longer belongs to the store, returns
/// `Closed`; with a directory and without.
#[test]
fn every_operation_of_a_closed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let minute = Duration::from_secs(60);
    for options in [
        options(&dir.path().join("store")),
        Options::memory(64 << 20),
    ] {
        let store = Store::open(options).unwrap();
        let table = store.table("users").unwrap();
        let mut session = store.session().unwrap();
        session.set(T, "key", "1").unwrap();
        store.close().unwrap();
        let s = &mut session;
        let answers: Vec<(&str, Result<(), Error>)> = vec![
            ("get", s.get(T, "key").map(drop)),
            ("get_with", s.get_with(T, "key", |_| ()).map(drop)),
            ("get_many", s.get_many(T, &["key"]).map(drop)),
            ("exists", s.exists(T, "key").map(drop)),
            ("version", s.version(T, "key").map(drop)),
            ("ttl", s.ttl(T, "key").map(drop)),
            ("scan", s.scan(T).next().unwrap().map(drop)),
            ("set", s.set(T, "key", "2").map(drop)),
            ("set_for", s.set_for(T, "key", "2", minute).map(drop)),
            (
                "set_until",
                s.set_until(T, "key", "2", SystemTime::now()).map(drop),
            ),
            (
                "set_if",
                s.set_if(T, "key", "2", Condition::Always).map(drop),
            ),
            ("set_many", s.set_many(T, &[("key", "2")])),
            ("remove", s.remove(T, "key").map(drop)),
            (
                "remove_if",
                s.remove_if(T, "key", Condition::Always).map(drop),
            ),
            ("take", s.take(T, "key").map(drop)),
            ("increment", s.increment(T, "key", 1).map(drop)),
            (
                "increment_float",
                s.increment_float(T, "key", 1.0).map(drop),
            ),
            ("append", s.append(T, "key", "2").map(drop)),
            ("expire", s.expire(T, "key", minute).map(drop)),
            (
                "expire_at",
                s.expire_at(T, "key", SystemTime::now()).map(drop),
            ),
            ("persist", s.persist(T, "key").map(drop)),
            (
                "transaction",
                s.transaction(&[(T, "key")], |tx| tx.set(T, "key", "2")),
            ),
            ("wait_durable", s.wait_durable(Level::Synced)),
            ("session", store.session().map(drop)),
            ("table", store.table("users").map(drop)),
            ("create_table", store.create_table("more", None).map(drop)),
            ("drop_table", store.drop_table(table)),
            ("clear_tables", store.clear_tables(&[T])),
            ("set_level", store.set_level(T, None)),
            ("set_default_level", store.set_default_level(Level::Memory)),
            (
                "snapshot",
                store.snapshot(dir.path().join("copy")).map(drop),
            ),
            ("flush", store.flush()),
            ("close", store.close()),
        ];
        for (name, answer) in answers {
            assert!(matches!(answer, Err(Error::Closed)), "{name}: {answer:?}");
        }
        assert_eq!(store.scrub(), None);
    }
    assert!(!dir.path().join("copy").exists());
    let mut session = open(&dir.path().join("store")).session().unwrap();
    assert_eq!(session.get(T, "key").unwrap().unwrap().bytes, b"1");
}

const ACCOUNTS: u64 = 12;
const THREADS: u64 = 4;

/// Transfers until an error; returns how many transfers were acknowledged.
fn transfer(store: &Arc<Store>, accounts: &[(Table, String)], thread: u64) -> (u64, Error) {
    // On a busy machine the store may be closed before this thread begins.
    let mut session = match store.session() {
        Ok(session) => session,
        Err(error) => return (0, error),
    };
    let counter = format!("transfers of {thread}");
    for n in 0u64.. {
        // Neighbours in either order: their locks must not make a ring.
        let (from, to) = ((n * 7 + thread) % ACCOUNTS, (n * 5) % ACCOUNTS);
        let [from, to] = [from, to].map(|n| &accounts[n as usize].1);
        let keys = [(T, from), (T, to), (T, &counter)];
        let moved = session.transaction(&keys, |tx| {
            tx.increment(T, from, -3)?;
            tx.increment(T, to, 3)?;
            tx.increment(T, &counter, 1)
        });
        match moved {
            Ok(_) => {}
            Err(error) => return (n, error),
        }
    }
    unreachable!("it ends with the store")
}

/// Threads move money between accounts and count their transfers in the same step, others add it
/// up, and the store is closed meanwhile. At the next start every acknowledged transfer is there,
/// no other is, and the sum is unchanged.
#[test]
fn transfers_that_are_cut_short_by_close_are_whole() {
    for level in [Level::Memory, Level::Synced] {
        let dir = tempfile::tempdir().unwrap();
        let mut total = [0; THREADS as usize];
        for round in 0..3u64 {
            let store = open(dir.path());
            store.set_default_level(level).unwrap();
            let accounts: Vec<_> = (0..ACCOUNTS).map(|n| (T, format!("account {n}"))).collect();
            let sum = |session: &mut duramen::Session| {
                session.transaction(&accounts, |tx| {
                    let amounts = accounts.iter().map(|(t, key)| tx.increment(*t, key, 0));
                    amounts.sum::<Result<i64, Error>>()
                })
            };
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut session = match store.session() {
                        Ok(session) => session,
                        Err(error) => return error,
                    };
                    loop {
                        match sum(&mut session) {
                            Ok(sum) => assert_eq!(sum, 0, "seen half done"),
                            Err(error) => break error,
                        }
                    }
                });
                let workers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (store, accounts) = (&store, &accounts);
                        scope.spawn(move || transfer(store, accounts, thread))
                    })
                    .collect();
                let deadline = Instant::now() + Duration::from_secs(60);
                while store.memory().objects < ACCOUNTS + THREADS {
                    assert!(Instant::now() < deadline, "nobody gets on");
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20 * round)); // at different moments
                store.close().unwrap();
                for (worker, total) in workers.into_iter().zip(&mut total) {
                    let (acknowledged, end) = worker.join().unwrap();
                    assert!(matches!(end, Error::Closed), "{end}");
                    *total += acknowledged;
                }
                let end = reader.join().unwrap();
                assert!(matches!(end, Error::Closed), "{end}");
            });
            let next = open(dir.path());
            assert!(next.stats().unwrap().clean_start, "{level}");
            let mut session = next.session().unwrap();
            assert_eq!(sum(&mut session).unwrap(), 0);
            for (thread, total) in total.iter().enumerate() {
                let counter = session.increment(T, format!("transfers of {thread}"), 0);
                assert_eq!(
                    counter.unwrap().value as u64,
                    *total,
                    "{level}, round {round}"
                );
            }
            next.close().unwrap();
        }
    }
}

/// The close waits for a running closure, and its writes are durable.
#[test]
fn close_waits_for_the_transaction_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (inside, began) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let store = &store;
        let closed = &closed;
        let worker = scope.spawn(move || {
            let mut session = store.session().unwrap();
            session.transaction(&[(T, "key")], |tx| {
                inside.send(()).unwrap();
                waits.recv().unwrap();
                assert!(!closed.load(Ordering::SeqCst));
                tx.set(T, "key", "value")
            })
        });
        began.recv().unwrap();
        let closer = scope.spawn(|| {
            store.close().unwrap();
            closed.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20)); // the close may be waiting by now
        go_on.send(()).unwrap();
        worker.join().unwrap().unwrap();
        closer.join().unwrap();
    });
    assert!(
        open(dir.path())
            .session()
            .unwrap()
            .exists(T, "key")
            .unwrap()
    );
}

/// A snapshot in progress when its store is closed returns an error, and leaves no store that looks
/// whole.
#[test]
fn close_ends_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
    let store = open(&live);
    store.set_default_level(Level::Memory).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..30u32 {
        session
            .set(T, n.to_le_bytes(), vec![n as u8; 1 << 20])
            .unwrap();
    }
    let (seen, began) = mpsc::sync_channel(100);
    std::thread::scope(|scope| {
        let snapshot = scope.spawn(|| {
            store.snapshot_with_progress(&copy, |_| {
                let _ = seen.try_send(());
                std::thread::sleep(Duration::from_millis(5));
            })
        });
        began.recv().unwrap();
        store.close().unwrap();
        let result = snapshot.join().unwrap();
        let refused = Store::open(options(&copy));
        match result {
            Err(Error::Closed) => assert!(matches!(refused, Err(Error::Disk(_)))),
            Ok(_) => assert!(refused.is_ok(), "it was done before"),
            Err(error) => panic!("{error}"),
        }
    });
    assert_eq!(open(&live).count(T), 30);
}

/// A panic of the closure that shows the progress of a snapshot left it running for ever: `close`
/// waited for it, and no other could begin.
#[test]
fn a_snapshot_whose_progress_panics_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("live"));
    store.session().unwrap().set(T, "key", "value").unwrap();
    let snapshot = || store.snapshot_with_progress(dir.path().join("first"), |_| panic!("shown"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(snapshot));
    assert!(panicked.is_err());
    assert!(!store.stats().unwrap().snapshot_running);
    store.snapshot(dir.path().join("second")).unwrap();
    store.close().unwrap();
}
