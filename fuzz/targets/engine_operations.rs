//! The engine against a `BTreeMap`: any sequence of operations on a few keys, with values large
//! enough to roll heads and to need the cleaner, moving time, and sometimes more data than the
//! budget.
#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duramen_base::expiry::is_expired;
use duramen_engine::{Clock, Condition, Decision, Error, Options, Session, Store, TableId};
use duramen_wire::resp::number::parse_integer;
use libfuzzer_sys::fuzz_target;

const TABLE: TableId = TableId::DEFAULT;
/// An arbitrary time.
const START_MS: u64 = 1_000_000;

/// One store for all inputs, so that the cleaner meets the remains of many of them.
struct Bed {
    session: Session,
    now_ms: Arc<AtomicU64>,
    /// Newest object version that each key ever had: versions only grow, also across inputs.
    newest: BTreeMap<Vec<u8>, u64>,
}

impl Bed {
    fn new() -> Bed {
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let store = Store::new(Options {
            heads: 1,
            huge_pages: false,
            hash_seed: Some(7),
            clock: Clock::Manual(now_ms.clone()),
            ..Options::new(64 << 20)
        })
        .expect("the smallest budget is enough");
        let session = store.session().expect("the first session");
        Bed {
            session,
            now_ms,
            newest: BTreeMap::new(),
        }
    }
}

thread_local! {
    static BED: RefCell<Bed> = RefCell::new(Bed::new());
}

#[derive(Clone)]
struct Expected {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: Option<u64>,
}

/// The model, and the state for checks of the engine.
struct Run<'b> {
    bed: &'b mut Bed,
    model: BTreeMap<Vec<u8>, Expected>,
}

impl Run<'_> {
    fn now_ms(&self) -> u64 {
        self.bed.now_ms.load(Ordering::Relaxed)
    }

    fn live(&self, key: &[u8]) -> Option<&Expected> {
        let now_ms = self.now_ms();
        self.model
            .get(key)
            .filter(|found| found.expires_at_ms.is_none_or(|at| !is_expired(at, now_ms)))
    }

    /// Records a write; `expected` is the expected result.
    fn wrote(&mut self, key: &[u8], version: u64, value: Vec<u8>, expires_at_ms: Option<u64>) {
        let newest = self.bed.newest.entry(key.to_vec()).or_default();
        assert!(version > *newest, "version {version} after {newest}");
        *newest = version;
        self.model.insert(
            key.to_vec(),
            Expected {
                value,
                version,
                expires_at_ms,
            },
        );
    }

    fn check(&mut self, key: &[u8]) {
        let expected = self.live(key).cloned();
        let guard = self.bed.session.pin();
        let found = guard
            .read(TABLE, guard.hash(key), key)
            .expect("reads do not fail");
        match (found, expected) {
            (None, None) => {}
            (Some(found), Some(expected)) => {
                assert_eq!(found.key, key);
                assert_eq!(found.value, expected.value);
                assert_eq!(found.version, expected.version);
                assert_eq!(found.expires_at_ms, expected.expires_at_ms);
            }
            (found, expected) => panic!(
                "found {:?}, expected {:?}",
                found.map(|object| object.version),
                expected.map(|object| object.version)
            ),
        }
    }

    fn write(&mut self, key: &[u8], value: Vec<u8>, life_ms: u64, condition: Condition) {
        let now_ms = self.now_ms();
        let expires_at_ms = (life_ms > 0).then_some(now_ms + life_ms);
        let current = self.live(key).map(|found| found.version);
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Version(version) => current == Some(version),
            Condition::NewerThan(version) => current.is_none_or(|found| found < version),
        };
        let mut guard = self.bed.session.pin();
        let hash = guard.hash(key);
        let result = guard.conditional_write(TABLE, hash, key, &value, expires_at_ms, condition);
        drop(guard);
        match result {
            Ok(outcome) => {
                assert!(holds);
                assert_eq!(outcome.before, current);
                let version = outcome.after.expect("a write leaves an object");
                self.wrote(key, version, value, expires_at_ms);
            }
            Err(Error::ConditionFailed { current: found }) => {
                assert!(!holds);
                assert_eq!(found, current);
            }
            Err(Error::OutOfMemory { .. }) => assert!(holds),
            Err(other) => panic!("{other}"),
        }
    }

    fn remove(&mut self, key: &[u8]) {
        let current = self.live(key).map(|found| found.version);
        let mut guard = self.bed.session.pin();
        let hash = guard.hash(key);
        let outcome = guard
            .remove(TABLE, hash, key)
            .expect("deletes always succeed");
        assert_eq!((outcome.before, outcome.after), (current, None));
        self.model.remove(key);
    }

    fn increment(&mut self, key: &[u8], by: i64) {
        let expected = match self.live(key) {
            None => Ok(0),
            Some(found) => parse_integer(&found.value).ok_or(Error::NotAnInteger),
        }
        .and_then(|number| number.checked_add(by).ok_or(Error::Overflow));
        let expires_at_ms = self.live(key).and_then(|found| found.expires_at_ms);
        let mut guard = self.bed.session.pin();
        let hash = guard.hash(key);
        let result = guard.increment(TABLE, hash, key, by);
        drop(guard);
        match result {
            Ok(done) => {
                assert_eq!(Ok(done.value), expected);
                let value = done.value.to_string().into_bytes();
                self.wrote(key, done.version, value, expires_at_ms);
            }
            Err(Error::OutOfMemory { .. }) => {}
            Err(error) => assert_eq!(Err(error), expected),
        }
    }

    /// Appends to the value through a closure.
    fn append(&mut self, key: &[u8], more: &[u8]) {
        let mut value = self
            .live(key)
            .map_or(Vec::new(), |found| found.value.clone());
        let expires_at_ms = self.live(key).and_then(|found| found.expires_at_ms);
        value.extend_from_slice(more);
        let mut guard = self.bed.session.pin();
        let hash = guard.hash(key);
        let result = guard.update(TABLE, hash, key, |found, scratch| {
            if let Some(object) = found {
                scratch.extend_from_slice(object.value);
            }
            scratch.extend_from_slice(more);
            Decision::PutScratch { expires_at_ms }
        });
        drop(guard);
        match result {
            Ok(outcome) => {
                let version = outcome.after.expect("a write leaves an object");
                self.wrote(key, version, value, expires_at_ms);
            }
            Err(Error::OutOfMemory { .. }) => {}
            Err(Error::ValueTooLarge { bytes, .. }) => assert_eq!(bytes, value.len()),
            Err(other) => panic!("{other}"),
        }
    }

    /// Several keys as one step: each is read and then written or removed, under locks.
    fn transaction(&mut self, keys: &[Vec<u8>], value: &[u8], removed: u8) {
        let now_ms = self.now_ms();
        let live = |found: &&Expected| found.expires_at_ms.is_none_or(|at| !is_expired(at, now_ms));
        let mut outcomes = Vec::new();
        let mut guard = self.bed.session.pin();
        let hashes: Vec<_> = keys.iter().map(|key| (TABLE, guard.hash(key))).collect();
        for (table, hash) in &hashes {
            guard.pin().prefetch_bucket(*table, *hash);
        }
        for (table, hash) in &hashes {
            guard.pin().prefetch_entry(*table, *hash);
        }
        match guard.lock_keys(&hashes) {
            Ok(()) => {}
            Err(Error::OutOfMemory { .. }) => return,
            Err(other) => panic!("{other}"),
        }
        for (n, (key, (table, hash))) in keys.iter().zip(&hashes).enumerate() {
            let current = self.model.get(key).filter(live).map(|found| found.version);
            let found = guard.read(*table, *hash, key).expect("reads do not fail");
            // A key that occurred before in this transaction is checked against its earlier change.
            if !keys[..n].contains(key) {
                assert_eq!(found.map(|object| object.version), current);
            }
            let before = guard.stamp(*table, *hash, key).expect("stamps do not fail");
            let result = if removed >> n & 1 == 1 {
                guard.remove(*table, *hash, key)
            } else {
                guard.write(*table, *hash, key, value, None)
            };
            let after = guard.stamp(*table, *hash, key).expect("stamps do not fail");
            match result {
                Ok(outcome) => {
                    if outcome.before.is_some() || outcome.after.is_some() {
                        assert!(
                            !before.still_holds(&after),
                            "a change that WATCH would not see"
                        );
                    }
                    outcomes.push((key, outcome.after));
                }
                Err(Error::OutOfMemory { .. }) => assert!(before.still_holds(&after)),
                Err(other) => panic!("{other}"),
            }
        }
        guard.unlock_keys();
        drop(guard);
        for (key, version) in outcomes {
            match version {
                Some(version) => self.wrote(key, version, value.to_vec(), None),
                None => {
                    self.model.remove(key);
                }
            }
        }
    }

    /// A whole scan shows each live object at least once and nothing else.
    fn scan(&mut self, count: usize) {
        let mut seen = BTreeMap::new();
        let mut cursor = 0;
        let guard = self.bed.session.pin();
        loop {
            cursor = guard
                .walk()
                .scan(TABLE, cursor, count, |object| {
                    seen.insert(object.key.to_vec(), object.version);
                })
                .expect("the table exists");
            if cursor == 0 {
                break;
            }
        }
        drop(guard);
        let now_ms = self.now_ms();
        let live: BTreeMap<Vec<u8>, u64> = self
            .model
            .iter()
            .filter(|(_, found)| found.expires_at_ms.is_none_or(|at| !is_expired(at, now_ms)))
            .map(|(key, found)| (key.clone(), found.version))
            .collect();
        assert_eq!(seen, live);
    }

    fn step(&mut self, [operation, key, a, b]: [u8; 4]) {
        // Few keys, some of them long, so that operations use the same ones.
        let key = match key % 64 {
            63 => vec![b'k'; 60_000],
            62 => vec![b'k'; 300],
            n => vec![n; 1 + usize::from(n) % 20],
        };
        let length = match a % 8 {
            0 => usize::from(b) * 4096,
            1 => usize::from(b) * 256,
            _ => usize::from(b),
        };
        let value = vec![a ^ b; length];
        let life_ms = u64::from(a / 8 % 4) * 50;
        let known = self.bed.newest.get(&key).copied().unwrap_or(0);
        match operation % 13 {
            0..=2 => self.write(&key, value, life_ms, Condition::Always),
            3 => self.write(&key, value, life_ms, Condition::Absent),
            4 => self.write(&key, value, life_ms, Condition::Present),
            5 => self.write(&key, value, life_ms, Condition::Version(known)),
            6 => self.write(
                &key,
                value,
                life_ms,
                Condition::NewerThan(known + u64::from(b % 2)),
            ),
            7 => self.remove(&key),
            8 => self.increment(&key, i64::from_ne_bytes([a; 8]) >> (b % 64)),
            9 => self.append(&key, &value[..length.min(2000)]),
            10 => self.scan(1 + usize::from(b)),
            11 => {
                let keys = [0, 1, a % 3, 7].map(|offset: u8| vec![offset + b % 8; 4]);
                self.transaction(&keys, &value[..length.min(5000)], a ^ b);
            }
            _ => {
                self.bed.now_ms.fetch_add(u64::from(b), Ordering::Relaxed);
            }
        }
        self.check(&key);
    }
}

fuzz_target!(|data: &[u8]| {
    BED.with_borrow_mut(|bed| {
        bed.session
            .store()
            .clone()
            .tables().clear(TABLE)
            .expect("table 0 exists");
        let mut run = Run {
            bed,
            model: BTreeMap::new(),
        };
        for step in data.as_chunks::<4>().0 {
            run.step(*step);
        }
        let keys: Vec<Vec<u8>> = run.model.keys().cloned().collect();
        for key in keys {
            run.check(&key);
        }
        run.scan(10);
    });
});
