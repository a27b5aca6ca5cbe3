//! The engine against a model: random operations while a cleaner works, indexes grow and shrink,
//! and time passes.

use duramen_base::expiry::is_expired;
use duramen_base::random::Random;
use duramen_engine::{Clock, Condition, Decision, Error, Guard, Options, Session, Store, TableId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Read(u16),
    Write(u16, u16, Option<u16>),
    Remove(u16),
    WriteIf(u16, u16, u8),
    Increment(u16, i32),
    Append(u16, u8),
    Clear,
    Pass(u16),
    Scan,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop_oneof![3 => 0..40u16, 2 => 0..3000u16];
    prop_oneof![
        6 => key().prop_map(Op::Read),
        12 => (key(), 0..4000u16, proptest::option::weighted(0.2, 1..2000u16)).prop_map(|(k, v, t)| Op::Write(k, v, t)),
        6 => key().prop_map(Op::Remove),
        4 => (key(), 0..200u16, 0..5u8).prop_map(|(k, v, c)| Op::WriteIf(k, v, c)),
        3 => (key(), -5..5i32).prop_map(|(k, n)| Op::Increment(k, n)),
        2 => (key(), any::<u8>()).prop_map(|(k, b)| Op::Append(k, b)),
        1 => (0..600u16).prop_map(Op::Pass),
        1 => Just(Op::Scan),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(prop_oneof![300 => op(), 1 => Just(Op::Clear)], 1..1500)
}

#[derive(Clone, Debug, PartialEq)]
struct Expected {
    value: Vec<u8>,
    version: u64,
    expires_at_ms: Option<u64>,
    is_typed: bool,
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<Vec<u8>, Expected>,
    /// Highest version ever seen for a key: it must only grow, through deletion too.
    versions: BTreeMap<Vec<u8>, u64>,
}

impl Model {
    fn live(&self, key: &[u8], now_ms: u64) -> Option<&Expected> {
        self.objects.get(key).filter(|object| {
            object
                .expires_at_ms
                .is_none_or(|at| !is_expired(at, now_ms))
        })
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>, version: u64, expires_at_ms: Option<u64>) {
        self.put_as(key, (value, false), version, expires_at_ms);
    }

    fn put_as(
        &mut self,
        key: &[u8],
        (value, is_typed): (Vec<u8>, bool),
        version: u64,
        expires_at_ms: Option<u64>,
    ) {
        let last = self.versions.insert(key.to_vec(), version).unwrap_or(0);
        assert!(version > last, "version {version} after {last}");
        self.objects.insert(
            key.to_vec(),
            Expected {
                value,
                version,
                expires_at_ms,
                is_typed,
            },
        );
    }
}

fn key_of(n: u16) -> Vec<u8> {
    // Lengths from 1 to past the small form's limit.
    format!(
        "{n:0width$}",
        width = 1 + n as usize % 11 + if n.is_multiple_of(97) { 300 } else { 0 }
    )
    .into_bytes()
}

fn value_of(n: u16) -> Vec<u8> {
    let bytes = if n.is_multiple_of(131) {
        70_000
    } else {
        n as usize % 1500
    };
    (0..bytes).map(|i| (i as u16 ^ n) as u8).collect()
}

/// The model's rule for an integer to increment: its one canonical text, not `+4`, `04` or ` 4`.
fn integer(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn check(guard: &Guard<'_>, model: &Model, key: &[u8]) {
    let found = guard.read(TABLE, guard.hash(key), key).unwrap();
    let expected = model.live(key, guard.now_ms());
    assert_eq!(
        found.map(|o| o.value.to_vec()),
        expected.map(|e| e.value.clone()),
        "value of {key:?}"
    );
    assert_eq!(found.map(|o| o.version), expected.map(|e| e.version));
    assert_eq!(found.map(|o| o.is_typed), expected.map(|e| e.is_typed));
    assert_eq!(
        found.and_then(|o| o.expires_at_ms),
        expected.and_then(|e| e.expires_at_ms)
    );
}

fn run(session: &mut Session, clock: &AtomicU64, model: &mut Model, op: &Op) {
    if let Op::Clear = op {
        session.store().clone().tables().clear(TABLE).unwrap();
        model.objects.clear();
        return;
    }
    if let Op::Pass(ms) = op {
        clock.fetch_add(u64::from(*ms), Ordering::Relaxed);
        return;
    }
    let mut guard = session.pin();
    let now_ms = guard.now_ms();
    match op {
        Op::Read(k) => check(&guard, model, &key_of(*k)),
        Op::Write(k, v, ttl) => {
            let (key, value) = (key_of(*k), value_of(*v));
            let expires_at_ms = ttl.map(|ttl| now_ms + u64::from(ttl));
            let before = model.live(&key, now_ms).map(|e| e.version);
            let is_typed = v.is_multiple_of(3) && !value.is_empty();
            let hash = guard.hash(&key);
            let outcome = guard
                .write_as(TABLE, hash, &key, (&value, is_typed), expires_at_ms)
                .unwrap();
            assert_eq!(outcome.before, before);
            let value = (value, is_typed);
            model.put_as(&key, value, outcome.after.unwrap(), expires_at_ms);
        }
        Op::Remove(k) => {
            let key = key_of(*k);
            let before = model.live(&key, now_ms).map(|e| e.version);
            let outcome = guard.remove(TABLE, guard.hash(&key), &key).unwrap();
            assert_eq!((outcome.before, outcome.after), (before, None));
            model.objects.remove(&key);
        }
        Op::WriteIf(k, v, c) => write_if(&mut guard, model, &key_of(*k), value_of(*v), *c),
        Op::Increment(k, n) => increment(&mut guard, model, &key_of(*k), i64::from(*n)),
        Op::Append(k, byte) => append(&mut guard, model, &key_of(*k), *byte),
        Op::Scan => scan(&guard, model),
        Op::Clear | Op::Pass(_) => unreachable!("handled above"),
    }
}

fn write_if(guard: &mut Guard<'_>, model: &mut Model, key: &[u8], value: Vec<u8>, choice: u8) {
    let current = model.live(key, guard.now_ms()).map(|e| e.version);
    let (condition, holds) = match choice {
        0 => (Condition::Absent, current.is_none()),
        1 => (Condition::Present, current.is_some()),
        2 => (Condition::Version(current.unwrap_or(1)), current.is_some()),
        3 => (
            Condition::NewerThan(current.unwrap_or(9)),
            current.is_none(),
        ),
        _ => (Condition::Always, true),
    };
    match guard.conditional_write(TABLE, guard.hash(key), key, &value, None, condition) {
        Ok(outcome) => {
            assert!(holds, "{condition:?} on {current:?}");
            model.put(key, value, outcome.after.unwrap(), None);
        }
        Err(error) => {
            assert!(!holds);
            assert_eq!(error, Error::ConditionFailed { current });
        }
    }
}

fn increment(guard: &mut Guard<'_>, model: &mut Model, key: &[u8], by: i64) {
    let old = model.live(key, guard.now_ms()).cloned();
    let number = old.as_ref().map_or(Some(0), |e| integer(&e.value));
    match guard.increment(TABLE, guard.hash(key), key, by) {
        Ok(done) => {
            assert!(old.as_ref().is_none_or(|e| !e.is_typed));
            assert_eq!(Some(done.value), number.map(|old| old + by));
            let value = done.value.to_string().into_bytes();
            let expires_at_ms = old.and_then(|e| e.expires_at_ms);
            model.put(key, value, done.version, expires_at_ms);
        }
        Err(Error::WrongType) => assert!(old.is_some_and(|e| e.is_typed)),
        Err(error) => assert_eq!((error, number), (Error::NotAnInteger, None)),
    }
}

fn append(guard: &mut Guard<'_>, model: &mut Model, key: &[u8], byte: u8) {
    let outcome = guard.update(TABLE, guard.hash(key), key, |found, scratch| {
        scratch.extend_from_slice(found.map_or(&[], |o| o.value));
        scratch.push(byte);
        let plain = Decision::PutScratch {
            expires_at_ms: None,
        };
        found.map_or(plain, |o| o.put_scratch(o.expires_at_ms))
    });
    let old = model.live(key, guard.now_ms()).cloned();
    let expires_at_ms = old.as_ref().and_then(|e| e.expires_at_ms);
    let is_typed = old.as_ref().is_some_and(|e| e.is_typed);
    let mut value = old.map_or(Vec::new(), |e| e.value);
    value.push(byte);
    let value = (value, is_typed);
    model.put_as(key, value, outcome.unwrap().after.unwrap(), expires_at_ms);
}

fn scan(guard: &Guard<'_>, model: &Model) {
    let mut seen = BTreeMap::new();
    let mut cursor = 0;
    loop {
        cursor = guard
            .walk()
            .scan(TABLE, cursor, 10, |o| {
                seen.insert(o.key.to_vec(), o.version);
            })
            .unwrap();
        if cursor == 0 {
            break;
        }
    }
    let now_ms = guard.now_ms();
    let expected: BTreeMap<_, _> = model
        .objects
        .keys()
        .filter_map(|key| Some((key.clone(), model.live(key, now_ms)?.version)))
        .collect();
    assert_eq!(seen, expected);
}

fn store(memory_bytes: u64) -> (Arc<Store>, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let mut options = Options::new(memory_bytes);
    options.clock = Clock::Manual(clock.clone());
    (Store::new(options).unwrap(), clock)
}

proptest! {
    // A failure prints its shrunk operations; integration tests have no place for a file of seeds.
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engine_is_the_model(ops in ops()) {
        let (store, clock) = store(64 * MIB);
        let mut session = store.session().unwrap();
        let mut model = Model::default();
        for op in &ops {
            run(&mut session, &clock, &mut model, op);
        }
        let guard = session.pin();
        for key in model.versions.keys() {
            check(&guard, &model, key);
        }
    }
}

/// The budget is written over many times, so that every entry is moved again and again while it is
/// used.
#[test]
fn the_model_holds_through_cleaning() {
    let (store, clock) = store(64 * MIB);
    let mut session = store.session().unwrap();
    let mut model = Model::default();
    let mut random = Random::new(1);
    let mut next = |below: u64| random.below(below);
    for round in 0..600_000u32 {
        let k = next(30_000) as u16;
        let op = match next(20) {
            0 => Op::Remove(k),
            1 => Op::Read(k),
            2 => Op::Append(k, round as u8),
            3 => Op::Write(k, next(900) as u16, Some(next(50_000) as u16 + 1)),
            4 if round % 1000 == 0 => Op::Pass(300),
            _ => Op::Write(k, next(900) as u16, None),
        };
        run(&mut session, &clock, &mut model, &op);
    }
    let stats = store.stats();
    assert!(
        stats.cleaner.segments_cleaned > 50,
        "the cleaner has to have worked: {stats:?}"
    );
    let guard = session.pin();
    for key in model.versions.keys() {
        check(&guard, &model, key);
    }
    let now_ms = guard.now_ms();
    drop(guard);
    let live = model
        .objects
        .keys()
        .filter(|key| model.live(key, now_ms).is_some())
        .count() as u64;
    assert!(store.stats().objects >= live);
    // Per segment and in total the same, as soon as no entry is being moved from one segment to
    // another.
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let report = store.memory_report();
        assert!(report.total_bytes <= report.budget_bytes);
        let live_bytes = store.stats().live_bytes;
        if report.live_bytes == live_bytes {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "segments sum to {}, the store to {live_bytes}",
            report.live_bytes
        );
    }
}
