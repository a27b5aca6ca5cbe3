//! A whole store under random schedules: sessions that write, overwrite, remove, let expire and
//! transact, and beside them a migration that sends the objects, then the marked keys. The copy
//! equals the source in the end.

use super::thread;
use duramen_base::ids::KeyRange;
use duramen_base::planted::{Bug, plant};
use duramen_base::sync::{AtomicU64, Ordering, yield_now};
use duramen_engine::{LogOptions, Options, Session, Store, TableId};
use duramen_format::entry::{self, Kind};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const TABLE: TableId = TableId::DEFAULT;
const WRITERS: u64 = 2;
/// Milliseconds; in the past.
const PAST_MS: u64 = 1;

/// A target's state: the newest version of each key, and its value if it is an object.
type Copied = BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>;

fn store() -> Arc<Store> {
    let mut options = Options::new(64 << 20);
    options.heads = 1;
    options.cleaners = 0;
    options.huge_pages = false;
    options.hash_seed = Some(1);
    options.log = Some(LogOptions::new(1));
    let store = Store::new(options).expect("a store");
    store
}

/// An action of a writer on a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Write,
    Remove,
    Expire,
    /// Writes it, removes it and perhaps writes it again.
    Transact,
}

fn write(session: &mut Session, deed: Deed, key: &[u8], value: u8) {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    match deed {
        Deed::Write => {
            guard.write(TABLE, hash, key, &[value], None).expect("room");
        }
        Deed::Remove => {
            guard.remove(TABLE, hash, key).expect("a table");
        }
        Deed::Expire => {
            let expired = guard.write(TABLE, hash, key, &[value], Some(PAST_MS));
            expired.expect("room");
        }
        Deed::Transact => {
            guard.lock_keys(&[(TABLE, hash)]).expect("room for a key");
            guard.write(TABLE, hash, key, &[100], None).expect("room");
            guard.remove(TABLE, hash, key).expect("a table");
            if value.is_multiple_of(2) {
                guard.write(TABLE, hash, key, &[value], None).expect("room");
            }
        }
    }
}

/// As a side log does: the newest version stays, and a tombstone of an equal one wins.
fn receive(copied: &mut Copied, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let entry = entry::parse(bytes).expect("an entry");
        let known = copied.get(entry.key).map_or(0, |(version, _)| *version);
        let is_object = entry.kind == Kind::Object;
        if entry.version > known || entry.version == known && !is_object {
            let value = is_object.then(|| entry.value.to_vec());
            assert_ne!(value.as_deref(), Some(&[100][..]), "half of a transaction");
            copied.insert(entry.key.to_vec(), (entry.version, value));
        }
        bytes = &bytes[entry.padded_bytes..];
    }
}

fn key(n: u64) -> [u8; 1] {
    [b'a' + n as u8]
}

/// Starts the writers, each with its number; the first result is how many are running.
fn writers(
    store: &Arc<Store>,
    work: impl Fn(&mut Session, u64) + Copy + Send + 'static,
) -> (Arc<AtomicU64>, Vec<thread::JoinHandle<()>>) {
    let running = Arc::new(AtomicU64::new(WRITERS));
    let start = |seed| {
        let mut session = store.session().expect("a session");
        let running = running.clone();
        thread::spawn(move || {
            work(&mut session, seed);
            running.fetch_sub(1, Ordering::SeqCst);
        })
    };
    let writers = (0..WRITERS).map(start).collect();
    (running, writers)
}

/// The deeds of both writers go over `keys` keys, in turn.
fn migrate(keys: u64, deeds: &'static [Deed]) {
    let store = store();
    let mut session = store.session().expect("a session");
    for n in 0..keys {
        write(&mut session, Deed::Write, &key(n), 1);
    }
    let (running, writers) = writers(&store, move |session, seed| {
        for (n, deed) in (0u64..).zip(deeds) {
            let key = key((n * WRITERS + seed) % keys);
            write(session, *deed, &key, (n * 2 + seed) as u8);
        }
    });
    let mut copied = Copied::new();
    let watch = store
        .ranges()
        .watch(TABLE, KeyRange::ALL, 1 << 14)
        .expect("there is memory");
    let mut export = store.ranges().export(TABLE, KeyRange::ALL);
    let mut bytes = Vec::new();
    while export.step(1 << 16, &mut bytes).expect("a table") {}
    receive(&mut copied, &bytes);
    loop {
        let last = running.load(Ordering::SeqCst) == 0;
        if last {
            store.quiesce();
        }
        let dirty = watch.take();
        assert!(!dirty.start_again);
        bytes.clear();
        store
            .ranges()
            .export_keys(TABLE, &dirty.keys, &mut bytes)
            .expect("a table");
        receive(&mut copied, &bytes);
        if last {
            break;
        }
        yield_now();
    }
    for writer in writers {
        writer.join().expect("no writer fails");
    }
    for key in (0..keys).map(key) {
        let guard = session.pin();
        let found = guard.read(TABLE, guard.hash(&key), &key).expect("a table");
        let found = found.map(|object| (object.version, object.value.to_vec()));
        let copy = copied.get(&key[..]);
        let copy = copy.and_then(|(version, value)| Some((*version, value.clone()?)));
        assert_eq!(copy, found, "the copy of {key:?} differs");
    }
}

/// A walk over all objects while transactions run: it shows none that only a part of a transaction
/// has made.
fn walk(deeds: u64) {
    let store = store();
    let (running, writers) = writers(&store, move |session, seed| {
        (0..deeds).for_each(|n| write(session, Transact, &key(seed), (2 * n) as u8));
    });
    while running.load(Ordering::SeqCst) > 0 {
        let mut export = store.ranges().export(TABLE, KeyRange::ALL);
        let mut bytes = Vec::new();
        while export.step(1 << 16, &mut bytes).expect("a table") {}
        receive(&mut Copied::new(), &bytes);
        yield_now();
    }
    for writer in writers {
        writer.join().expect("no writer fails");
    }
}

use Deed::{Expire, Remove, Transact, Write};

#[test]
fn a_walk_shows_no_half_of_a_transaction() {
    shuttle::check_random(|| walk(3), 300);
    shuttle::check_pct(|| walk(3), 300, 3);
}

#[test]
fn the_copy_is_what_the_source_has() {
    let deeds: &'static [Deed] = &[Write, Remove, Transact, Expire, Write, Transact, Remove];
    shuttle::check_random(move || migrate(3, deeds), 300);
    shuttle::check_pct(move || migrate(3, deeds), 300, 3);
}

#[test]
fn walks_that_show_halves_are_found() {
    let explore = || {
        let _bug = plant(Bug::WalksShowHalves);
        shuttle::check_pct(|| walk(3), 60_000, 3);
    };
    assert!(catch_unwind(AssertUnwindSafe(explore)).is_err());
}

/// range::watch::W1, reversed: a thread that takes the mark finds the key unchanged. Each of twelve
/// keys is changed once.
fn is_found(deeds: &'static [Deed; 6]) {
    let explore = || {
        let _bug = plant(Bug::MarkedBeforeSeen);
        shuttle::check_pct(move || migrate(12, deeds), 6_000, 3);
    };
    assert!(catch_unwind(AssertUnwindSafe(explore)).is_err());
}

#[test]
fn a_removal_that_is_marked_too_early_is_found() {
    is_found(&[Remove; 6]);
}

#[test]
fn an_overwrite_that_is_marked_too_early_is_found() {
    is_found(&[Write; 6]);
}

#[test]
fn an_expiry_that_is_marked_too_early_is_found() {
    is_found(&[Expire; 6]);
}
