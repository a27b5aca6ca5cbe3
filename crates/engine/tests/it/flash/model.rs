//! The tier against a model: random operations on ten times as much data as memory holds, cleaning
//! step by step.

use super::device::*;
use duramen_base::expiry::is_expired;
use duramen_engine::{Clock, Error, Options, Store};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug)]
enum Op {
    Read(u16),
    /// First key, number of keys, bytes of their values.
    Fill(u16, u8, u16),
    Remove(u16, u8),
    Expiring(u16, u16),
    Transaction(u16, u16),
    Scan,
    Clear,
    Clean(u8),
    Pass(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6000u16;
    prop_oneof![
        20 => key().prop_map(Op::Read),
        20 => (key(), any::<u8>(), 50..2500u16).prop_map(|(k, n, v)| Op::Fill(k, n, v)),
        6 => (key(), any::<u8>()).prop_map(|(k, n)| Op::Remove(k, n)),
        3 => (key(), 1..2000u16).prop_map(|(k, ms)| Op::Expiring(k, ms)),
        4 => (key(), key()).prop_map(|(a, b)| Op::Transaction(a, b)),
        1 => Just(Op::Scan),
        1 => Just(Op::Clear),
        8 => any::<u8>().prop_map(Op::Clean),
        1 => (0..600u16).prop_map(Op::Pass),
    ]
}

type Model = BTreeMap<u16, (Vec<u8>, Option<u64>)>;

struct World {
    store: Arc<Store>,
    session: duramen_engine::Session,
    flash: Arc<Flash>,
    clock: Arc<AtomicU64>,
    model: Model,
    versions: BTreeMap<u16, u64>,
    round: u64,
}

impl World {
    fn new(parks: bool) -> World {
        let flash = Flash::new(24 * MIB);
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let store = Store::new(Options {
            cleaners: 0,
            clock: Clock::Manual(clock.clone()),
            ..options(4 * MIB, &flash)
        })
        .unwrap();
        let mut session = store.session().unwrap();
        session.set_parks(parks);
        World {
            session,
            store,
            flash,
            clock,
            model: Model::new(),
            versions: BTreeMap::new(),
            round: 0,
        }
    }

    fn put(&mut self, n: u16, bytes: usize, expires_at_ms: Option<u64>) {
        self.round += 1;
        let (name, value) = (key(n.into()), value(n.into(), self.round, bytes));
        let written = parked(&mut self.session, &self.flash, |guard| {
            let hash = guard.hash(&name);
            guard.write(TABLE, hash, &name, &value, expires_at_ms)
        });
        match written {
            Ok(outcome) => {
                let version = outcome.after.expect("written");
                let last = self.versions.insert(n, version).unwrap_or(0);
                assert!(version > last, "version {version} after {last}");
                self.model.insert(n, (value, expires_at_ms));
            }
            Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        }
    }

    fn live(&self, n: u16) -> Option<&Vec<u8>> {
        let now = self.clock.load(Ordering::Relaxed);
        let (value, expires_at_ms) = self.model.get(&n)?;
        expires_at_ms
            .is_none_or(|at| !is_expired(at, now))
            .then_some(value)
    }

    fn check(&mut self, n: u16) {
        let name = key(n.into());
        let found = parked(&mut self.session, &self.flash, |guard| {
            let found = guard.read(TABLE, guard.hash(&name), &name)?;
            Ok(found.map(|object| object.value.to_vec()))
        });
        assert_eq!(found.unwrap().as_ref(), self.live(n), "key {n}");
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Read(n) => {
                for n in *n..(*n + 20).min(6000) {
                    self.check(n);
                }
            }
            Op::Fill(first, count, bytes) => {
                for n in *first..*first + u16::from(*count) {
                    self.put(n, usize::from(*bytes), None);
                }
            }
            Op::Expiring(n, ms) => {
                let at = self.clock.load(Ordering::Relaxed) + u64::from(*ms);
                self.put(*n, 100, Some(at));
            }
            Op::Remove(first, count) => {
                for n in *first..*first + u16::from(*count) {
                    let name = key(n.into());
                    let removed = parked(&mut self.session, &self.flash, |guard| {
                        let hash = guard.hash(&name);
                        guard.remove(TABLE, hash, &name)
                    });
                    assert_eq!(removed.unwrap().before.is_some(), self.live(n).is_some());
                    self.model.remove(&n);
                }
            }
            Op::Transaction(a, b) => self.swap(*a, *b),
            Op::Scan => self.scan(),
            Op::Clear => {
                self.store.tables().clear(TABLE).unwrap();
                self.model.clear();
            }
            Op::Clean(steps) => {
                for _ in 0..*steps {
                    self.store.clean_step(64 << 10);
                }
            }
            Op::Pass(ms) => {
                self.clock.fetch_add(u64::from(*ms), Ordering::Relaxed);
            }
        }
        check_budget(&self.store);
    }

    /// Exchanges two values in one step.
    fn swap(&mut self, a: u16, b: u16) {
        let (Some(first), Some(second), true) = (self.live(a), self.live(b), a != b) else {
            return;
        };
        let (first, second) = (first.clone(), second.clone());
        let names = (key(a.into()), key(b.into()));
        let mut guard = self.session.pin();
        let hashes = (guard.hash(&names.0), guard.hash(&names.1));
        guard
            .lock_keys(&[(TABLE, hashes.0), (TABLE, hashes.1)])
            .unwrap();
        let read = |hash, name: &Vec<u8>| {
            let object = guard.read(TABLE, hash, name).unwrap();
            object.expect("it is alive").value.to_vec()
        };
        assert_eq!(
            (read(hashes.0, &names.0), read(hashes.1, &names.1)),
            (first.clone(), second.clone())
        );
        if guard
            .write(TABLE, hashes.0, &names.0, &second, None)
            .is_ok()
        {
            self.model.insert(a, (second, None));
            self.versions.remove(&a);
        }
        if guard.write(TABLE, hashes.1, &names.1, &first, None).is_ok() {
            self.model.insert(b, (first, None));
            self.versions.remove(&b);
        }
    }

    fn scan(&mut self) {
        let (mut cursor, mut seen) = (0, BTreeMap::new());
        loop {
            let step = parked(&mut self.session, &self.flash, |guard| {
                let mut found = Vec::new();
                let next = guard.walk().scan(TABLE, cursor, 50, |object| {
                    found.push((object.key.to_vec(), object.value.to_vec()));
                })?;
                Ok((next, found))
            });
            let (next, found) = step.unwrap();
            seen.extend(found);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let keys: Vec<u16> = self.model.keys().copied().collect();
        let live = keys
            .iter()
            .filter_map(|n| Some((key(u64::from(*n)), self.live(*n)?.clone())));
        assert_eq!(seen, live.collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_tier_behaves_like_a_map(parks: bool, ops in proptest::collection::vec(op(), 1..250)) {
        let mut world = World::new(parks);
        for op in &ops {
            world.run(op);
        }
        for n in 0..6300 {
            world.check(n);
        }
    }
}

/// The model's data really are many times as large as its memory.
#[test]
fn the_model_goes_beyond_memory() {
    let mut world = World::new(true);
    for first in (0..6000).step_by(250) {
        world.run(&Op::Fill(first, 250, 2500));
    }
    let stats = world.store.stats();
    assert!(
        stats.flash.segments_demoted > 50 && stats.flash.fetches == 0,
        "{:?}",
        stats.flash
    );
    for first in (0..6000).step_by(500) {
        world.run(&Op::Read(first));
        world.run(&Op::Remove(first + 100, 200));
        world.run(&Op::Fill(first, 250, 800));
    }
    world.run(&Op::Scan);
}
