//! Ranges and side logs of a store that is mostly on flash, against a map: random steps, each
//! judged at once.

use crate::cluster::cold::{Copied, Tiered, alive, take_over};
use crate::cluster::dead_log::{object, tombstone};
use crate::durable::disk::replay;
use crate::durable::world::{State, TABLE};
use crate::flash::device::{MIB, check_budget, key, value, wait_for};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::random::Random;
use duramen_base::test_tier;
use duramen_engine::{DirtyKey, Error, SideLog, SidePlan};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const KEYS: u64 = 16_000;
const STEPS: usize = 40;

struct World {
    tiered: Tiered,
    random: Random,
    /// Version and value of each present object, by number of key.
    model: BTreeMap<u64, (u64, Vec<u8>)>,
    round: u64,
    /// A range was purged: without a record of that, the disk has more than the store.
    purged: bool,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            tiered: Tiered::new(6 * MIB, 80 * MIB, seed as usize % 2),
            random: Random::new(seed),
            model: BTreeMap::new(),
            round: 0,
            purged: false,
        }
    }

    fn some_value(&mut self, n: u64) -> Vec<u8> {
        self.round += 1;
        let bytes = 100 + self.random.below(2_500) as usize;
        value(n, self.round, bytes)
    }

    fn some_range(&mut self) -> KeyRange {
        if self.random.below(4) == 0 {
            return KeyRange::ALL;
        }
        let (a, b) = (self.random.below(16_384), self.random.below(16_384));
        KeyRange::new(
            RouteHash(RouteHash::first_of_slot(a.min(b) as u16).0 + self.random.below(1 << 20)),
            RouteHash::last_of_slot(a.max(b) as u16),
        )
    }

    /// The expected content of a range.
    fn inside(&self, range: &KeyRange) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let model = self.model.iter();
        let inside = model.filter(|(n, _)| self.tiered.is_in(range, **n));
        inside
            .map(|(n, (_, value))| (key(*n), value.clone()))
            .collect()
    }

    fn put(&mut self, n: u64) {
        let value = self.some_value(n);
        let mut guard = self.tiered.session.pin();
        let hash = guard.hash(&key(n));
        let outcome = guard.write(TABLE, hash, &key(n), &value, None).unwrap();
        drop(guard);
        let version = outcome.after.unwrap();
        let known = self.model.insert(n, (version, value));
        assert_eq!(outcome.before, known.as_ref().map(|(version, _)| *version));
        assert!(known.is_none_or(|(known, _)| version > known));
    }

    fn remove(&mut self, n: u64) {
        let mut guard = self.tiered.session.pin();
        let hash = guard.hash(&key(n));
        let before = guard.remove(TABLE, hash, &key(n)).unwrap().before;
        let known = self.model.remove(&n);
        assert_eq!(before, known.map(|(version, _)| version));
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=4 => {
                let first = self.random.below(KEYS);
                let count = self.random.below(1_500);
                (first..(first + count).min(KEYS)).for_each(|n| self.put(n));
            }
            5 => {
                let first = self.random.below(KEYS);
                (first..(first + 300).min(KEYS)).for_each(|n| self.remove(n));
            }
            6 | 7 => self.export(),
            8 => self.export_keys(),
            9 => {
                let range = self.some_range();
                let counted = self.tiered.store.ranges().count(TABLE, range).unwrap();
                assert_eq!(counted.objects, self.inside(&range).len() as u64);
            }
            10 => {
                let range = self.some_range();
                if range != KeyRange::ALL || self.random.below(8) == 0 {
                    self.purge(&range);
                }
            }
            11 | 12 => self.side_log(),
            _ => {
                for _ in 0..self.random.below(30) {
                    self.tiered.store.clean_step(1 << 20);
                }
            }
        }
        check_budget(&self.tiered.store);
    }

    fn export(&mut self) {
        let range = self.some_range();
        let mut export = self.tiered.store.ranges().export(TABLE, range);
        let (mut copied, mut out) = (Copied::new(), Vec::new());
        loop {
            let fails = self.random.below(8) == 0;
            self.tiered.flash.reads_fail.store(fails, Ordering::Relaxed);
            let more = export.step(1 + self.random.below(200_000) as usize, &mut out);
            self.tiered.flash.reads_fail.store(false, Ordering::Relaxed);
            take_over(&mut copied, &mut out);
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => assert!(fails && error == Error::FlashFailed),
            }
            if self.random.below(8) == 0 {
                self.tiered.store.clean_step(1 << 20);
            }
        }
        assert!(alive(copied) == self.inside(&range), "{range:?}");
    }

    fn export_keys(&mut self) {
        let keys: Vec<u64> = (0..500).map(|_| self.random.below(KEYS)).collect();
        let wanted = keys.iter().map(|n| DirtyKey::of_object(&key(*n), 77));
        let wanted: Vec<_> = wanted.collect();
        let mut out = Vec::new();
        let store = &self.tiered.store;
        store
            .ranges()
            .export_keys(TABLE, &wanted, &mut out)
            .unwrap();
        let mut copied = Copied::new();
        assert_eq!(take_over(&mut copied, &mut out), 500);
        for n in keys {
            let known = self.model.get(&n);
            let found = copied[&key(n)].clone();
            match known {
                Some((version, value)) => assert_eq!(found, (*version, Some(value.clone()))),
                None => assert_eq!(found, (77, None)),
            }
        }
    }

    fn purge(&mut self, range: &KeyRange) {
        let inside = self.inside(range).len() as u64;
        let purged = self.tiered.store.ranges().purge(TABLE, *range).unwrap();
        assert_eq!(purged.objects, inside);
        let tiered = &self.tiered;
        self.model.retain(|n, _| !tiered.is_in(range, *n));
        self.purged = true;
    }

    /// Entries of another log come, in pieces, with other steps between. Entries that are given up
    /// belong to keys that were absent.
    fn side_log(&mut self) {
        let gives_up = self.random.below(3) == 0;
        let side = self.tiered.store.side_log(SidePlan::default());
        let mut came: BTreeMap<u64, (u64, Option<Vec<u8>>)> = BTreeMap::new();
        let versions = self.tiered.store.version_floor();
        for _ in 0..self.random.below(20) {
            let mut piece = Vec::new();
            for _ in 0..self.random.below(400) {
                let n = self.random.below(KEYS);
                if gives_up && self.model.contains_key(&n) {
                    continue;
                }
                // A key that was here and is absent now comes back above all its earlier versions
                // (`try_roll`, range::watch::W2).
                let version = match self.model.contains_key(&n) {
                    true => 1 + self.random.below(versions + 20),
                    false => versions + 1 + self.random.below(20),
                };
                let name = (TABLE.0, key(n));
                let value = (self.random.below(6) > 0).then(|| self.some_value(n));
                match &value {
                    Some(value) => {
                        let state = State {
                            value: value.clone(),
                            expires_at_ms: None,
                        };
                        piece.extend(object(&name, version, &state, 3));
                    }
                    None => piece.extend(tombstone(&name, version)),
                }
                // Of two objects of one version the first is as good as the second, but a tombstone
                // wins over both.
                let known = came.entry(n).or_default();
                let rank = |version: u64, dead: bool| (version, dead);
                if rank(version, value.is_none()) > rank(known.0, known.1.is_none() && known.0 > 0)
                {
                    *known = (version, value);
                }
            }
            side.replay(&piece).unwrap();
            for _ in 0..self.random.below(4) {
                self.tiered.store.clean_step(1 << 20);
            }
            if self.random.below(4) == 0 {
                self.export_keys_of_nobody();
            }
        }
        if gives_up {
            side.abort().unwrap();
        } else {
            self.commit(&side, came);
        }
        assert_eq!(
            self.tiered.store.tables().objects(TABLE),
            self.model.len() as u64
        );
    }

    /// A walk beside a side log that is being filled.
    fn export_keys_of_nobody(&mut self) {
        let key = DirtyKey::of_object(b"nobody", 5);
        let mut out = Vec::new();
        let exported = self
            .tiered
            .store
            .ranges()
            .export_keys(TABLE, &[key], &mut out);
        assert!(exported.is_ok() && !out.is_empty());
    }

    fn commit(&mut self, side: &SideLog, came: BTreeMap<u64, (u64, Option<Vec<u8>>)>) {
        let commit = side.commit().unwrap();
        wait_for("the Swap", || {
            let store = self.tiered.store.clone();
            let mut consumer = self.tiered.consumer.lock().unwrap();
            consumer.complete_everything(&store);
            commit.is_durable()
        });
        for (n, (version, value)) in came {
            let known = self.model.get(&n).map_or(0, |(version, _)| *version);
            match value {
                Some(value) if version > known => {
                    self.model.insert(n, (version, value));
                }
                None if version >= known => {
                    self.model.remove(&n);
                }
                _ => {}
            }
        }
    }

    fn judge(&mut self) {
        let there = self.inside(&KeyRange::ALL);
        for n in 0..KEYS {
            assert_eq!(self.tiered.read(n).as_ref(), there.get(&key(n)), "key {n}");
        }
        let store = self.tiered.store.clone();
        let all = store.ranges().count(TABLE, KeyRange::ALL).unwrap();
        assert_eq!(all.objects, there.len() as u64);
        assert_eq!(all.bytes, store.stats().live_bytes);
        if self.purged {
            return;
        }
        store.heads().close_all();
        let mut consumer = self.tiered.consumer.lock().unwrap();
        consumer.complete_everything(&store);
        let (left, _) = replay(&consumer.disk);
        let left = left.into_iter().map(|((_, key), found)| (key, found.value));
        assert!(left.collect::<BTreeMap<_, _>>() == there, "on disk");
    }
}

#[test]
fn ranges_and_side_logs_behave_like_a_map() {
    let mut demoted = 0;
    for seed in 1..=test_tier::runs(2, 8) {
        let mut world = World::new(seed);
        (0..KEYS).step_by(2).for_each(|n| world.put(n));
        for _ in 0..STEPS {
            world.step();
        }
        world.judge();
        demoted += world.tiered.store.stats().flash.segments_demoted;
    }
    assert!(demoted > 1000, "{demoted} segments went to flash");
}
