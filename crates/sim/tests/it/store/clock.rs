//! A store whose wall clock jumps ahead and is set back, on a simulated disk.
//!
//! A key that was absent by the present clock before a clean stop is absent after the next start,
//! and one that was there is there: whatever the clock showed in between.

use duramen::{Level, Options, Store};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, with_bug};
use duramen_base::test_tier;
use duramen_engine::{Clock, Departure, TableId};
use duramen_sim::Random;
use duramen_sim::disk::SimDisk;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const T: TableId = TableId::DEFAULT;
const KEYS: u64 = 40;
/// Longest time to live of a key. A jump is at most as long.
const TTL_MS_MAX: u64 = 100_000;
const START_MS: u64 = 1_000_000;

struct Clocked {
    disk: SimDisk,
    random: Random,
    wall_ms: Arc<AtomicU64>,
    steady_ms: Arc<AtomicU64>,
    /// By how much the wall clock is ahead, and steps until it is set back.
    ahead_ms: u64,
    steps_ahead: u64,
}

impl Clocked {
    fn new(seed: u64) -> Clocked {
        Clocked {
            disk: SimDisk::new(seed, 1 << 30),
            random: Random::new(seed),
            wall_ms: Arc::new(AtomicU64::new(START_MS)),
            steady_ms: Arc::new(AtomicU64::new(0)),
            ahead_ms: 0,
            steps_ahead: 0,
        }
    }

    fn open(&self) -> Arc<Store> {
        let mut options = Options::new("", 64 << 20);
        options.engine.heads = 1;
        options.engine.cleaners = 0;
        options.engine.huge_pages = false;
        options.engine.hash_seed = Some(1);
        options.engine.clock = Clock::Stepped {
            wall_ms: self.wall_ms.clone(),
            steady_ms: self.steady_ms.clone(),
        };
        options.wal_bytes = 2 << 20;
        let store = Store::open_on(Arc::new(self.disk.clone()), options, false, &|_| {});
        let store = store.expect("it opens");
        // So keys that have expired leave the index when they are met.
        store.engine().listeners().when_departed(|_, _, _| {});
        store
            .engine()
            .listeners()
            .want_departures(Departure::Expired, true);
        store
    }

    /// Time passes. The clock jumps ahead now and then, and is set back a few steps later: before
    /// as much time has passed as the jump was long.
    fn pass(&mut self) {
        let passed_ms = 1 + self.random.below(500);
        self.steady_ms.fetch_add(passed_ms, Ordering::Relaxed);
        self.wall_ms.fetch_add(passed_ms, Ordering::Relaxed);
        if self.ahead_ms == 0 && self.random.below(20) == 0 {
            self.ahead_ms = 10_000 + self.random.below(TTL_MS_MAX - 10_000);
            self.steps_ahead = 1 + self.random.below(15);
            self.wall_ms.fetch_add(self.ahead_ms, Ordering::Relaxed);
        } else if self.ahead_ms > 0 {
            self.steps_ahead -= 1;
            if self.steps_ahead == 0 {
                self.set_back();
            }
        }
    }

    fn set_back(&mut self) {
        let ahead_ms = std::mem::take(&mut self.ahead_ms);
        self.wall_ms.fetch_sub(ahead_ms, Ordering::Relaxed);
    }

    fn step(&mut self, store: &Arc<Store>) {
        self.pass();
        let mut session = store.engine().session().expect("a session");
        let key = self.random.below(KEYS).to_le_bytes();
        match self.random.below(12) {
            0..=4 => {
                let mut guard = session.pin();
                let hash = guard.hash(&key);
                let expires_at_ms = guard.now_ms() + 1 + self.random.below(TTL_MS_MAX);
                let value = vec![1; 1 + self.random.below(200_000) as usize];
                let written = guard.write(T, hash, &key, &value, Some(expires_at_ms));
                written.expect("there is room");
            }
            // It meets the key, and leaves it as it is.
            5 | 6 => {
                let mut guard = session.pin();
                let hash = guard.hash(&key);
                let keep = |_: Option<duramen_engine::Object<'_>>, _: &mut Vec<u8>| {
                    duramen_engine::Decision::Keep
                };
                guard.update(T, hash, &key, keep).expect("a key");
            }
            7 | 8 => assert!(store.log().unwrap().try_commit_here(Level::Synced)),
            9 => drop(store.engine().clean_step(1 << 20)),
            _ => drop(store.background_step()),
        }
    }

    fn shown(store: &Arc<Store>) -> Vec<bool> {
        let mut session = store.engine().session().expect("a session");
        let guard = session.pin();
        let is_there = |number: u64| {
            let key = number.to_le_bytes();
            guard.read(T, guard.hash(&key), &key).unwrap().is_some()
        };
        (0..KEYS).map(is_there).collect()
    }

    /// Some lives, each with a clean stop; the first difference that a start makes.
    fn difference(mut self) -> Option<String> {
        for life in 0..3 {
            let store = self.open();
            for step in 0..150 {
                self.step(&store);
                if step % 4 == 0 {
                    let _ = store.background_step(); // a running store does it all the time
                }
            }
            if self.ahead_ms > 0 {
                self.set_back();
            }
            let before = Clocked::shown(&store);
            store.close().expect("a clean stop");
            drop(store);
            let store = self.open();
            let after = Clocked::shown(&store);
            if let Some(key) = (0..before.len()).find(|key| before[*key] != after[*key]) {
                let was = if before[key] { "there" } else { "absent" };
                return Some(format!("life {life}: key {key} was {was} before the stop"));
            }
            store.close().expect("a clean stop");
        }
        None
    }
}

/// A key that had expired while the clock was ahead came back after a clean stop: the stop
/// recorded the clock that had been set back, and the log on disk still had the object.
#[test]
fn a_clock_that_jumps_and_is_set_back_brings_no_key_back() {
    for seed in 0..test_tier::runs(40, 2_000) {
        if let Some(difference) = Clocked::new(seed).difference() {
            panic!("seed {seed}: {difference}");
        }
    }
}

/// The list on disk has neither the new segments of a head before their first commit, nor a
/// survivor before its Swap. When the clock was set back at such a time, the next commit announced
/// them all the same, and the process ended.
#[test]
fn a_clock_is_set_back_while_segments_are_not_listed_yet() {
    let clocked = Clocked::new(1);
    let store = clocked.open();
    let step_back = || {
        clocked.wall_ms.fetch_sub(2_000, Ordering::Relaxed);
        store.engine().remove_doubted().expect("no key is doubted");
    };
    let commit = || assert!(store.log().unwrap().try_commit_here(Level::Synced));
    let write = |number: u64| {
        let mut session = store.engine().session().expect("a session");
        let mut guard = session.pin();
        let key = number.to_le_bytes();
        let (hash, value) = (guard.hash(&key), vec![1; 190_000]);
        let written = guard.write(T, hash, &key, &value, Some(START_MS + TTL_MS_MAX));
        written.expect("there is room");
    };
    step_back(); // so the time before the next step is known
    (0..12).for_each(&write); // more than a segment
    step_back();
    commit();
    for round in 0..60 {
        // All segments, and numbers that no segment has.
        (1..400).for_each(|id| store.engine().segments().relocate(SegmentId(id)));
        let _ = store.engine().clean_step(1 << 18);
        step_back();
        write(12 + round % 8);
        commit();
        if round % 3 == 0 {
            let _ = store.background_step();
        }
    }
    let before = Clocked::shown(&store);
    assert!((0..20).all(|key| before[key]));
    store.close().expect("a clean stop");
    drop(store);
    assert_eq!(Clocked::shown(&clocked.open()), before);
}

#[test]
fn expiry_by_a_clock_that_jumped_is_found() {
    let finds = |seed| with_bug(Bug::ClockBelieved, || Clocked::new(seed).difference());
    let why = duramen_base::planted::found_by(0, 1..40, finds);
    assert!(why.contains("was absent"), "{why}");
}
