//! A store whose memory is full, restarted with other options.
//!
//! The live data of a full store leave room for the windows of its heads and cleaners. With more
//! of them, or with less memory, a start finds less room than their reserves. Then a head got no
//! window for tombstones, cleaning freed none, as almost nothing was dead, and deletes were refused
//! without end. But a full store becomes usable again only by deletes.

use crate::tiered::{T, memory};
use duramen::{Error, Level, Options, Session, Store};
use duramen_base::waits::{self, Resource};
use duramen_engine::{Clock, Departure, FlashOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Shape {
    memory_mib: u64,
    heads: usize,
    cleaners: usize,
    flash_mib: u64,
    value_bytes: usize,
}

const USUAL: Shape = Shape {
    memory_mib: 64,
    heads: 1,
    cleaners: 1,
    flash_mib: 0,
    value_bytes: 1000,
};

fn open(dir: &Path, shape: Shape) -> Result<Arc<Store>, Error> {
    Store::open(options(dir, shape))
}

fn options(dir: &Path, shape: Shape) -> Options {
    let mut options = Options::new(dir, shape.memory_mib * MIB);
    options.engine.heads = shape.heads;
    options.engine.cleaners = shape.cleaners;
    options.engine.huge_pages = false;
    options.level = Level::Memory; // a close makes it durable nevertheless
    options.wal_bytes = 16 * MIB;
    options.engine.flash = (shape.flash_mib > 0).then(|| FlashOptions {
        device: memory((shape.flash_mib * MIB) as usize),
    });
    options
}

fn key(n: u32) -> [u8; 4] {
    n.to_le_bytes()
}

fn is_full(result: Result<impl Sized, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::OutOfMemory { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Fills a store, and closes it; returns the number of its keys.
fn fill(dir: &Path, shape: Shape) -> u32 {
    let store = open(dir, shape).unwrap();
    let mut session = store.session().unwrap();
    let value = vec![1; shape.value_bytes];
    let mut keys = 0;
    while !is_full(session.set(T, key(keys), &value)) {
        keys += 1;
    }
    drop(session);
    store.close().unwrap();
    keys
}

/// Each session can delete, and after some deletes each can write. False: the data do not fit.
fn becomes_usable(dir: &Path, shape: Shape, keys: u32) -> bool {
    let store = match open(dir, shape) {
        Ok(store) => store,
        Err(Error::Misfit { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    let mut sessions: Vec<Session> = (0..2 * shape.heads)
        .map(|_| store.session().unwrap())
        .collect();
    let value = vec![2; shape.value_bytes];
    let mut next = 0..keys;
    let mut remove = |session: &mut Session| {
        let n = next
            .next()
            .expect("a full store takes no write after all keys were deleted");
        // Scattered over the log.
        let n = (u64::from(n) * 7919 % u64::from(keys)) as u32;
        assert!(session.remove(T, key(n)).unwrap(), "key {n}");
        n
    };
    let mut removed = Vec::new();
    for session in &mut sessions {
        removed.push(remove(session));
    }
    for (n, session) in (keys..).zip(&mut sessions) {
        while is_full(session.set(T, key(n), &value)) {
            for _ in 0..200 {
                removed.push(remove(session));
            }
        }
    }
    drop(sessions);
    store.close().unwrap();
    drop(store);
    let store = open(dir, shape).unwrap();
    let mut session = store.session().unwrap();
    for n in removed {
        assert_eq!(session.get(T, key(n)).unwrap(), None, "key {n}");
    }
    let stats = store.engine().stats();
    let (objects, index) = (stats.objects, stats.index_bytes);
    assert!(
        objects > u64::from(keys) / 2,
        "{objects} of {keys}, the index has {index} bytes"
    );
    true
}

/// Restarts a store that is full in one shape with others, of which each has a copy. Returns the
/// number of those into which the data fit.
fn restart(before: Shape, after: &[Shape]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    let keys = fill(&first, before);
    let mut started = 0;
    for shape in after {
        let copy = dir.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        for file in std::fs::read_dir(&first).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        started += usize::from(becomes_usable(&copy, *shape, keys));
        std::fs::remove_dir_all(copy).unwrap();
    }
    started
}

#[test]
fn with_more_heads_a_full_store_deletes() {
    let after = [2, 4].map(|heads| Shape { heads, ..USUAL });
    assert_eq!(restart(USUAL, &after), 2);
}

#[test]
fn with_more_cleaners_a_full_store_deletes() {
    let with = |cleaners| Shape { cleaners, ..USUAL };
    assert_eq!(restart(with(0), &[0, 1, 4].map(with)), 3);
}

/// Down to the least memory with which it starts.
#[test]
#[ignore = "full tier"]
fn with_less_memory_a_full_store_deletes() {
    let with = |memory_mib| Shape {
        memory_mib,
        ..USUAL
    };
    let after: Vec<Shape> = (66..76).rev().map(with).collect();
    let started = restart(with(76), &after);
    assert!((5..10).contains(&started), "{started}");
}

#[test]
fn a_full_store_of_small_objects_deletes() {
    let before = Shape {
        value_bytes: 20,
        ..USUAL
    };
    assert_eq!(restart(before, &[Shape { heads: 4, ..before }]), 1);
}

#[test]
fn with_more_heads_a_store_with_full_flash_deletes() {
    let before = Shape {
        flash_mib: 64,
        ..USUAL
    };
    assert_eq!(restart(before, &[Shape { heads: 4, ..before }]), 1);
}

/// The memory of holes in the index counted as used after a start, until cleaners had closed them:
/// a store refused writes that it had taken before.
#[test]
fn a_store_takes_writes_at_once_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape {
        value_bytes: 20,
        ..USUAL
    };
    let keys = fill(dir.path(), shape);
    let store = open(dir.path(), shape).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..keys / 4 {
        session.remove(T, key(n)).unwrap();
    }
    session.set(T, key(keys), [1; 20]).unwrap();
    drop(session);
    store.close().unwrap();
    drop(store);
    for start in 1..5 {
        let store = open(dir.path(), shape).unwrap();
        let mut session = store.session().unwrap();
        let set = session.set(T, key(keys + start), [1; 20]);
        set.unwrap_or_else(|error| panic!("start {start}: {error}"));
        drop(session);
        store.close().unwrap();
    }
}

/// core::doubt::DC3: segments of keys that had expired by a clock that jumped ahead counted as
/// empty. Cleaning copied them whole, again and again, and writes waited for it in vain.
#[test]
fn a_full_store_takes_writes_after_its_clock_jumped_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let (wall_ms, steady_ms) = (Arc::new(AtomicU64::new(1 << 40)), Arc::default());
    let mut options = options(dir.path(), USUAL);
    options.engine.clock = Clock::Stepped {
        wall_ms: Arc::clone(&wall_ms),
        steady_ms: Arc::clone(&steady_ms),
    };
    let store = Store::open(options).unwrap();
    let mut session = store.session().unwrap();
    let hour = Duration::from_secs(3600);
    let mut keys = 0;
    while !is_full(session.set_for(T, key(keys), [1; 100], hour)) {
        keys += 1;
    }
    steady_ms.fetch_add(5_000, Ordering::Relaxed);
    wall_ms.fetch_add(7_200_000, Ordering::Relaxed);
    let began = Instant::now();
    for n in keys..keys + 5_000 {
        while is_full(session.set(T, key(n), [2; 100])) {
            let waited = began.elapsed();
            assert!(waited < Duration::from_secs(60), "{} writes", n - keys);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(session.get(T, key(0)).unwrap(), None);
    drop(session);
    store.close().unwrap();
}

/// The thread that writes frames removed these keys. It waited for a head, for memory or a commit
/// like any writer, and these may wait for the room on disk that it makes.
#[test]
fn keys_of_a_doubted_clock_are_removed_by_a_thread_that_nobody_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let (wall_ms, steady_ms) = (Arc::new(AtomicU64::new(1 << 40)), Arc::default());
    let mut options = options(dir.path(), USUAL);
    options.level = Level::Synced; // only durable entries expire
    options.engine.clock = Clock::Stepped {
        wall_ms: Arc::clone(&wall_ms),
        steady_ms,
    };
    let store = Store::open(options).unwrap();
    let engine = store.engine();
    engine.listeners().when_departed(|_, _, _| {});
    engine.listeners().want_departures(Departure::Expired, true); // so they leave when they are met
    let hour = Duration::from_secs(3600);
    let mut session = store.session().unwrap();
    session.set_for(T, key(0), [1; 100], hour).unwrap();
    drop(session);
    wall_ms.fetch_add(7_200_000, Ordering::Relaxed);
    let mut session = engine.session().unwrap();
    let mut guard = session.pin();
    let (gone, other) = (guard.hash(&key(0)), guard.hash(&key(1)));
    guard.write(T, other, &key(1), &[1; 100], None).unwrap(); // the guard has the head
    let began = Instant::now();
    let waiting = loop {
        assert_eq!(guard.read(T, gone, &key(0)), Ok(None));
        let mut waits = waits::longer_than(Duration::ZERO);
        waits.retain(|wait| wait.wants == Resource::Head && wait.thread.starts_with("duramen-"));
        if let Some(wait) = waits.pop() {
            break wait.thread;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody waits");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(waiting, "duramen-doubts");
    drop(guard);
    drop(session);
    while engine.tables().objects(T) > 1 {
        assert!(began.elapsed() < Duration::from_secs(120), "it stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    store.close().unwrap();
}

/// A log that was made for much memory has long segments, which it keeps. In little memory their
/// heads and cleaners were counted as if they took short ones, so nothing was left for data: an
/// almost empty store refused all writes.
#[test]
fn long_segments_leave_room_for_data_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let in_memory = |memory_mib| Shape {
        memory_mib,
        heads: 16,
        cleaners: 4,
        ..USUAL
    };
    let store = open(dir.path(), in_memory(3 << 10)).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..1000 {
        session.set(T, key(n), [1; 1000]).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    for memory_mib in [64, 96, 128, 256, 512] {
        let store = open(dir.path(), in_memory(memory_mib)).unwrap();
        for n in 1000..1032 {
            let mut session = store.session().unwrap();
            session.set(T, key(n), [1; 1000]).unwrap();
        }
        store.close().unwrap();
    }
    let Err(Error::Engine(duramen_engine::Error::BudgetTooSmall { minimum, .. })) =
        open(dir.path(), in_memory(40))
    else {
        panic!("40 MiB are too little for a few segments of 8 MiB");
    };
    assert!((48 * MIB..=128 * MIB).contains(&minimum), "{minimum}");
    let store = open(dir.path(), in_memory(minimum / MIB)).unwrap();
    let mut session = store.session().unwrap();
    session.set(T, key(0), [2; 1000]).unwrap();
}
