//! A cache with a directory that has reached its limit starts again, also with less memory.

use duramen::{Error, Level, Options, Session, Store, Table};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const T: Table = Table::DEFAULT;

fn open(dir: &Path, memory_mib: u64) -> Arc<Store> {
    let options = Options::new(dir, memory_mib << 20)
        .heads(2)
        .huge_pages(false)
        .wal_bytes(64 << 20)
        .disk_bytes(256 << 20)
        .level(Level::Buffered)
        .cache();
    Store::open(options).expect("a cache starts")
}

/// Repeats what is refused while the disk lags behind.
fn insist(mut operation: impl FnMut() -> Result<(), Error>) {
    let started = Instant::now();
    while let Err(error) = operation() {
        let is_late = started.elapsed() > Duration::from_secs(30);
        assert!(matches!(error, Error::DiskFull(_)) && !is_late, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The numbers of the last values that were written, by key; `None`: it was removed.
#[derive(Default)]
struct Written {
    last: HashMap<String, Option<u64>>,
    next: u64,
}

impl Written {
    fn set(&mut self, session: &mut Session, key: &str, bytes: usize) {
        let mut value = vec![7; bytes.max(8)];
        value[..8].copy_from_slice(&self.next.to_le_bytes());
        insist(|| session.set(T, key, &value).map(drop));
        self.last.insert(key.to_owned(), Some(self.next));
        self.next += 1;
    }

    fn remove(&mut self, session: &mut Session, key: &str) {
        insist(|| session.remove(T, key).map(drop));
        self.last.insert(key.to_owned(), None);
    }

    /// Every key is absent, or has its last value. Returns the number of those that are there.
    fn check(&self, session: &mut Session) -> usize {
        let mut found = 0;
        for (key, last) in &self.last {
            let Some(value) = session.get(T, key).unwrap() else {
                continue;
            };
            let number = u64::from_le_bytes(value.bytes[..8].try_into().unwrap());
            assert_eq!(Some(number), *last, "{key}");
            found += 1;
        }
        found
    }

    /// Sets new keys and old ones until the cache has evicted, and some more.
    fn fill(&mut self, store: &Arc<Store>, bytes: usize, more: u32) {
        let mut session = store.session().unwrap();
        let before = store.engine().stats().entries_evicted;
        let mut left = more;
        while left > 0 {
            let key = match self.next % 4 {
                0 => format!("key {}", self.next / 5),
                _ => format!("key {}", self.next),
            };
            self.set(&mut session, &key, bytes);
            if store.engine().stats().entries_evicted > before {
                left -= 1;
            }
        }
    }

    /// Removes a third of the keys, and replaces another third.
    fn change(&mut self, store: &Arc<Store>, bytes: usize) {
        let mut session = store.session().unwrap();
        let mut keys: Vec<String> = self.last.keys().cloned().collect();
        keys.sort_unstable();
        for (n, key) in keys.iter().enumerate() {
            match n % 3 {
                0 => self.remove(&mut session, key),
                1 => self.set(&mut session, key, bytes / 8),
                _ => {}
            }
        }
        session.wait_durable(Level::Synced).unwrap();
    }
}

/// A cache at its limit did not start again: the objects that it had evicted were on disk still,
/// and nothing evicts while segments are loaded. Nor did it start with less memory. An object that
/// was evicted at a start never comes back in place of a newer one.
#[test]
#[ignore = "full tier"]
fn a_cache_at_its_limit_starts_with_the_same_memory_and_with_less() {
    for bytes in [20_000, 2_000] {
        let dir = tempfile::tempdir().unwrap();
        let mut written = Written::default();
        for (round, memory_mib) in [128, 128, 64, 48, 128].into_iter().enumerate() {
            let store = open(dir.path(), memory_mib);
            let mut session = store.session().unwrap();
            let found = written.check(&mut session);
            println!(
                "{memory_mib} MiB, values of {bytes}: {found} of {}",
                written.last.len()
            );
            assert!(round == 0 || found > 0);
            if round % 2 == 1 {
                written.change(&store, bytes);
            }
            written.fill(&store, bytes, 20_000_000 / bytes as u32);
            written.check(&mut session);
            session.wait_durable(Level::Synced).unwrap();
            if round % 3 == 2 {
                store.close().unwrap();
            }
        }
        let store = open(dir.path(), 48);
        written.change(&store, bytes);
        drop(store);
        // As much memory as there ever was: what was evicted and is the newest may be there again.
        let store = open(dir.path(), 256);
        let found = written.check(&mut store.session().unwrap());
        assert!(found > 0, "{found}");
    }
}

/// The same while writers are at work: passes are cut off at any step.
#[test]
fn a_cache_that_stops_under_writes_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..5u32 {
        let store = open(dir.path(), 64);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2u32 {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    let mut session = store.session().unwrap();
                    for n in 0u32.. {
                        let key = format!("{round} {writer} {n}");
                        match session.set(T, key, vec![1; 20_000]) {
                            Err(Error::Closed) => return,
                            _ if stop.load(Ordering::Relaxed) => return,
                            _ => {}
                        }
                    }
                });
            }
            while store.engine().stats().entries_evicted < 500 + u64::from(round) * 300 {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                store.close().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    open(dir.path(), 64);
}
