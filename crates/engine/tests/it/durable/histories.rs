//! Random histories over several heads, a slow consumer, and a crash.

use crate::durable::disk::Name;
use crate::durable::world::{State, TABLE, World};
use duramen_base::ids::Home;
use duramen_base::planted::{Bug, found_by, with_bug};
use duramen_base::test_tier;
use duramen_engine::{Condition, Decision, Error, TableId};
use std::sync::atomic::Ordering;

const HEADS: usize = 3;
/// Maximum bytes appended in one history: nothing is cleaned here.
const BYTES_MAX: usize = 24 << 20;

fn name(table: TableId, key: u64) -> Name {
    (table.0, format!("key-{key}").into_bytes())
}

fn part_name(table: TableId, key: u64) -> Name {
    let part = Home::from_bytes([7; Home::BYTES]).key(key);
    (table.parts().0, part.as_bytes().to_vec())
}

struct Run {
    world: World,
    other: TableId,
    keys: u64,
    /// Every second name is that of a part.
    has_parts: bool,
    left_bytes: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::new(seed, HEADS);
        let other = world.store.tables().create("other").unwrap();
        let keys = if seed.is_multiple_of(2) { 6 } else { 60 };
        Run {
            world,
            other,
            keys,
            has_parts: false,
            left_bytes: BYTES_MAX,
        }
    }

    fn with_parts(seed: u64) -> Run {
        let mut run = Run::new(seed);
        run.has_parts = true;
        for table in [TABLE, run.other] {
            run.world.sessions[0].pin().make_parts(table).unwrap();
        }
        run
    }

    fn any_name(&mut self) -> Name {
        let table = if self.world.random.below(5) == 0 {
            self.other
        } else {
            TABLE
        };
        let key = self.world.random.below(self.keys);
        match self.has_parts && key % 2 == 1 {
            true => part_name(table, key),
            false => name(table, key),
        }
    }

    fn any_value(&mut self) -> Vec<u8> {
        let bytes = match self.world.random.below(40) {
            0 => 500_000,
            1..4 => 40_000,
            n => 8 + n as usize,
        };
        let bytes = if self.left_bytes > 2_000_000 {
            bytes
        } else {
            8
        };
        self.left_bytes = self.left_bytes.saturating_sub(bytes + 100);
        self.world.value(bytes)
    }

    fn step(&mut self) {
        let session = self.world.random.below(HEADS as u64) as usize;
        match self.world.random.below(100) {
            0..30 => self.write(session),
            30..42 => self.remove(session),
            42..60 => self.read(session),
            60..68 => self.condition(session),
            68..76 => self.transaction(session),
            76..77 => self.clear(session),
            77..79 => {
                let ms = self.world.random.below(300);
                self.world.clock.fetch_add(ms, Ordering::Relaxed);
            }
            79..82 => self.scan(session),
            82..92 => self.world.collect(),
            _ => self.world.complete_one(),
        }
    }

    fn write(&mut self, session: usize) {
        let (name, value) = (self.any_name(), self.any_value());
        let expires_at_ms = (self.world.random.below(6) == 0).then(|| {
            let now_ms = self.world.clock.load(Ordering::Relaxed);
            now_ms + 1 + self.world.random.below(400)
        });
        let expires_at_ms = expires_at_ms.filter(|_| !TableId(name.0).is_parts());
        let mut guard = self.world.sessions[session].pin();
        let hash = guard.hash(&name.1);
        let outcome = guard
            .write(TableId(name.0), hash, &name.1, &value, expires_at_ms)
            .unwrap();
        let position = guard.order().take_position();
        drop(guard);
        let state = State {
            value,
            expires_at_ms,
        };
        let place = self.world.push(&name, Some(state));
        let version = outcome.after.unwrap();
        self.world
            .reply_with_version(position, (name, place), version, true);
    }

    fn remove(&mut self, session: usize) {
        let name = self.any_name();
        let (mut place, present) = self.world.now(&name);
        let mut guard = self.world.sessions[session].pin();
        let hash = guard.hash(&name.1);
        let outcome = guard.remove(TableId(name.0), hash, &name.1).unwrap();
        let position = guard.order().take_position();
        drop(guard);
        assert_eq!(outcome.before.is_some(), present.is_some());
        // An expired object is removed too: from then on it is gone for good.
        if self.world.exists(&name) {
            place = self.world.push(&name, None);
        }
        match outcome.before {
            Some(version) => {
                self.world
                    .reply_with_version(position, (name, place), version, false);
            }
            None => self.world.reply(position, vec![(name, place)]),
        }
    }

    fn read(&mut self, session: usize) {
        let name = self.any_name();
        let (place, expected) = self.world.now(&name);
        let guard = self.world.sessions[session].pin();
        let hash = guard.hash(&name.1);
        let found = guard.read(TableId(name.0), hash, &name.1).unwrap();
        assert_eq!(
            found.map(|object| object.value.to_vec()),
            expected.map(|state| state.value)
        );
        let position = guard.order().take_position();
        drop(guard);
        self.world.reply(position, vec![(name, place)]);
    }

    fn condition(&mut self, session: usize) {
        let (name, value) = (self.any_name(), self.any_value());
        let (mut place, present) = self.world.now(&name);
        let condition = if self.world.random.below(2) == 0 {
            Condition::Absent
        } else {
            Condition::Present
        };
        let holds = (condition == Condition::Present) == present.is_some();
        let mut guard = self.world.sessions[session].pin();
        let hash = guard.hash(&name.1);
        let table = TableId(name.0);
        match guard.conditional_write(table, hash, &name.1, &value, None, condition) {
            Ok(_) => assert!(holds),
            Err(error) => assert!(!holds && matches!(error, Error::ConditionFailed { .. })),
        }
        let position = guard.order().take_position();
        drop(guard);
        if holds {
            let state = State {
                value,
                expires_at_ms: None,
            };
            place = self.world.push(&name, Some(state));
        }
        self.world.reply(position, vec![(name, place)]);
    }

    /// Some keys written, removed and written again in one step; now and then they are larger than
    /// the rest of their segment, so that the group moves on.
    fn transaction(&mut self, session: usize) {
        let count = 2 + self.world.random.below(3);
        let mut names: Vec<Name> = (0..count).map(|_| self.any_name()).collect();
        names.sort();
        names.dedup();
        let steps: Vec<(Name, Option<Vec<u8>>)> = (0..count * 2)
            .map(|_| {
                let name = names[self.world.random.below(names.len() as u64) as usize].clone();
                let value = (self.world.random.below(4) != 0).then(|| self.any_value());
                (name, value)
            })
            .collect();
        let (store, consumer) = (self.world.store.clone(), self.world.consumer.clone());
        let mut guard = self.world.sessions[session].pin();
        let keys: Vec<_> = names
            .iter()
            .map(|name| (TableId(name.0), guard.hash(&name.1)))
            .collect();
        guard.lock_keys(&keys).unwrap();
        let mut done = Vec::new();
        for (at, (name, value)) in steps.iter().enumerate() {
            if at == 1 {
                // A commit amid the group takes none of it.
                consumer.lock().unwrap().collect(&store);
            }
            let hash = guard.hash(&name.1);
            let result = guard.update(TableId(name.0), hash, &name.1, |_, _| match value {
                Some(value) => Decision::Put {
                    value,
                    expires_at_ms: None,
                },
                None => Decision::Remove,
            });
            match result {
                Ok(_) => done.push((name.clone(), value.clone())),
                // More than a segment holds, if values are as large as here: the writes before it
                // stay.
                Err(Error::GroupTooLarge { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        guard.unlock_keys();
        let position = guard.order().take_position();
        drop(guard);
        let mut last = std::collections::BTreeMap::new();
        for (name, value) in done {
            let state = value.map(|value| State {
                value,
                expires_at_ms: None,
            });
            // Removing an absent key leaves no trace, so it is no part of the group that must
            // survive together.
            let changes = state.is_some() || self.world.exists(&name);
            if changes {
                let place = self.world.push(&name, state);
                last.insert(name, place);
            }
        }
        let group: Vec<(Name, usize)> = last.into_iter().collect();
        self.world.note_group(group.clone());
        self.world.reply(position, group);
    }

    /// One table is cleared, and a key written, in one exclusive step.
    fn clear(&mut self, session: usize) {
        let (table, value) = (self.other, self.any_value());
        let kept = name(TABLE, 0);
        let mut guard = self.world.sessions[session].pin_exclusive();
        guard.clear(table).unwrap();
        let hash = guard.hash(&kept.1);
        guard.write(TABLE, hash, &kept.1, &value, None).unwrap();
        let position = guard.order().take_position();
        drop(guard);
        let mut group = Vec::new();
        for name in self.world.names() {
            if TableId(name.0).whole() == table {
                let place = self.world.push(&name, None);
                group.push((name, place));
            }
        }
        let state = State {
            value,
            expires_at_ms: None,
        };
        let place = self.world.push(&kept, Some(state));
        group.push((kept, place));
        self.world.reply(position, group);
    }

    fn scan(&mut self, session: usize) {
        let guard = self.world.sessions[session].pin();
        let (mut cursor, mut seen) = (0, std::collections::BTreeSet::new());
        loop {
            cursor = guard
                .walk()
                .scan(TABLE, cursor, 10, |object| {
                    seen.insert((TABLE.0, object.key.to_vec()));
                })
                .unwrap();
            if cursor == 0 {
                break;
            }
        }
        let position = guard.order().take_position();
        drop(guard);
        let mut shown = Vec::new();
        for name in self.world.names() {
            if name.0 == TABLE.0 {
                let (place, present) = self.world.now(&name);
                assert_eq!(seen.contains(&name), present.is_some());
                shown.push((name, place));
            }
        }
        self.world.reply(position, shown);
    }
}

/// Several runs, each ended by a crash and begun by a restart, with a cleaner at work.
fn live_and_die(mut run: Run) -> Result<u64, String> {
    run.keys = 40;
    let store = run.world.store.clone();
    run.world
        .consumer
        .lock()
        .unwrap()
        .complete_everything(&store);
    drop(store);
    let mut swaps = 0;
    for _ in 0..4 {
        run.left_bytes = 2 * BYTES_MAX;
        for _ in 0..700 {
            if run.world.random.below(4) == 0 {
                run.world.clean();
            } else {
                run.step();
            }
        }
        swaps += run.world.consumer.lock().unwrap().swaps;
        run.world.restart()?;
    }
    Ok(swaps)
}

#[test]
fn lives_and_deaths_of_a_store_that_is_cleaned() {
    let mut swaps = 0;
    let seeds = test_tier::runs(10, 40);
    for seed in 0..seeds {
        match live_and_die(Run::new(seed)) {
            Ok(some) => swaps += some,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(swaps > 2 * seeds, "cleaned only {swaps} times");
}

#[test]
fn lives_and_deaths_of_parts_that_are_cleaned() {
    let mut swaps = 0;
    let seeds = test_tier::runs(6, 40);
    for seed in 0..seeds {
        match live_and_die(Run::with_parts(seed)) {
            Ok(some) => swaps += some,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(swaps > 2 * seeds, "cleaned only {swaps} times");
}

fn run(seed: u64, steps: u64) -> Result<(), String> {
    run_to_its_end(Run::new(seed), steps)
}

fn run_to_its_end(mut run: Run, steps: u64) -> Result<(), String> {
    for step in 0..steps {
        run.step();
        // The store runs on: checking the state after a supposed crash changes nothing.
        if step % 16 == 0 {
            run.world.crash()?;
        }
    }
    run.world.crash()?;
    run.world
        .consumer
        .lock()
        .unwrap()
        .complete_everything(&run.world.store);
    // Now every operation so far is promised.
    run.world.crash()
}

#[test]
fn what_was_promised_survives_every_crash() {
    for seed in 0..test_tier::runs(30, 120) {
        if let Err(wrong) = run(seed, 400) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn what_was_promised_of_parts_survives_every_crash() {
    for seed in 0..test_tier::runs(15, 120) {
        if let Err(wrong) = run_to_its_end(Run::with_parts(seed), 400) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// Finds the bug by its recorded seed.
fn is_found(bug: Bug, seed: u64) {
    found_by(seed, 0..400, |seed| with_bug(bug, || run(seed, 400)).err());
    // Without the bug the same seed passes: so the bug was found, and nothing else.
    assert_eq!(run(seed, 400), Ok(()), "seed {seed}");
}

#[test]
fn trap_4_planted_in_hits_is_found() {
    is_found(Bug::HitsDoNotWait, 0);
}

#[test]
fn trap_4_planted_in_misses_is_found() {
    is_found(Bug::MissesDoNotWait, 0);
}

#[test]
fn trap_5_planted_is_found() {
    is_found(Bug::AnyHead, 0);
}

#[test]
fn a_group_in_parts_is_found() {
    is_found(Bug::GroupsInParts, 18);
}
