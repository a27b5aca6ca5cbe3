//! The reads of clients that keep what they have read, among the writes of guards and drafts.

use duramen_base::random::Random;
use duramen_engine::{Draft, Guard, Options, Store, TableId, Written};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;

type Pairs = BTreeSet<(u64, Vec<u8>)>;

/// Clients with the keys under which they are remembered, and those of which they were told.
#[derive(Default)]
struct Registry {
    remembered: Pairs,
    told: Pairs,
}

impl Registry {
    fn written(&mut self, writes: &[Written]) {
        for write in writes {
            let key = &*write.key;
            let stays = |client: &u64| write.readers.contains(client);
            let is_told = |(client, read): &(u64, Vec<u8>)| read[..] == *key && !stays(client);
            let told: Pairs = self
                .remembered
                .iter()
                .filter(|it| is_told(it))
                .cloned()
                .collect();
            self.remembered.retain(|it| !told.contains(it));
            self.told.extend(told);
        }
    }
}

/// As Redis does it: each write is told at once to those that have read the key.
#[derive(Clone, Default)]
struct Model {
    remembered: Pairs,
    told: Pairs,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u64, usize),
    Write(usize),
    Remove(usize),
}

fn name(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

impl Model {
    fn run(&mut self, step: Step) {
        match step {
            Step::Read(client, key) => {
                self.remembered.insert((client, name(key)));
            }
            Step::Write(key) | Step::Remove(key) => {
                let all = self.remembered.iter().filter(|it| it.1 == name(key));
                let told: Vec<_> = all.cloned().collect();
                self.remembered.retain(|it| !told.contains(it));
                self.told.extend(told);
            }
        }
    }
}

struct World {
    store: Arc<Store>,
    registry: Arc<Mutex<Registry>>,
    model: Model,
}

fn world() -> World {
    let store = Store::new(Options::new(64 * MIB)).expect("a store");
    let registry = Arc::new(Mutex::new(Registry::default()));
    let listener = Arc::clone(&registry);
    store
        .listeners()
        .when_written(move |writes| listener.lock().expect("a lock").written(writes));
    store.listeners().want_writes(true);
    World {
        store,
        registry,
        model: Model::default(),
    }
}

impl World {
    /// Runs a step, and returns the pair that was not remembered before.
    fn run(&self, guard: &mut Guard<'_>, step: Step, turn: u64) -> Option<(u64, Vec<u8>)> {
        match step {
            Step::Read(client, key) => {
                let key = name(key);
                let pair = (client, key.clone());
                let mut is_new = false;
                let remember = || {
                    let mut registry = self.registry.lock().expect("a lock");
                    is_new = registry.remembered.insert(pair.clone());
                    is_new
                };
                guard.begin_read(client, &key, remember).expect("a read");
                guard.read(TABLE, guard.hash(&key), &key).expect("a read");
                is_new.then_some(pair)
            }
            Step::Write(key) => {
                let (key, value) = (name(key), turn.to_be_bytes());
                let hash = guard.hash(&key);
                guard
                    .write(TABLE, hash, &key, &value, None)
                    .expect("a write");
                None
            }
            Step::Remove(key) => {
                let key = name(key);
                let hash = guard.hash(&key);
                // Only a removal of what is there is a change.
                guard.write(TABLE, hash, &key, b"", None).expect("a write");
                guard.remove(TABLE, hash, &key).expect("a removal");
                None
            }
        }
    }

    /// The same clients were told as in the model. One that was told keeps nothing of it, so it is
    /// remembered only here or there.
    fn check(&mut self, context: &str) {
        let mut registry = self.registry.lock().expect("a lock");
        let told = std::mem::take(&mut registry.told);
        assert_eq!(told, std::mem::take(&mut self.model.told), "{context}");
        self.model.remembered.retain(|it| !told.contains(it));
        assert_eq!(registry.remembered, self.model.remembered, "{context}");
    }
}

/// `kinds`: 4 = without removals.
fn steps(rng: &mut Random, clients: u64, keys: u64, (count, kinds): (u64, u64)) -> Vec<Step> {
    let mut step = || {
        let key = rng.below(keys) as usize;
        match rng.below(kinds) {
            0 | 1 => Step::Read(1 + rng.below(clients), key),
            4 => Step::Remove(key),
            _ => Step::Write(key),
        }
    };
    (0..count).map(|_| step()).collect()
}

#[test]
fn under_a_guard_clients_hear_of_changes_after_their_reads_alone() {
    let mut world = world();
    let mut rng = Random::new(1);
    let mut session = world.store.session().expect("a session");
    for turn in 0..400 {
        let (keys, count) = (1 + rng.below(20), rng.below(300));
        let steps = steps(&mut rng, 3, keys, (count, 5));
        {
            let mut guard = session.pin();
            for step in &steps {
                world.run(&mut guard, *step, turn);
                world.model.run(*step);
            }
        }
        world.check(&format!("turn {turn}: {steps:?}"));
    }
}

#[test]
fn in_a_draft_too_however_often_it_was_dropped_before() {
    let mut world = world();
    let mut rng = Random::new(2);
    let mut session = world.store.session().expect("a session");
    for turn in 0..400 {
        let (keys, count) = (1 + rng.below(20), rng.below(300));
        // A key that a draft makes and removes is no change of the store.
        let steps = steps(&mut rng, 1, keys, (count, 4));
        let before = world.registry.lock().expect("a lock").remembered.clone();
        for _ in 0..rng.below(3) {
            let ends_at = rng.below(count + 1) as usize;
            let mut guard = session.pin();
            guard.begin_draft(Box::new(Draft::new(8 << 20)));
            let new: Vec<_> = steps[..ends_at]
                .iter()
                .filter_map(|step| world.run(&mut guard, *step, turn))
                .collect();
            drop(guard.end_draft());
            let mut registry = world.registry.lock().expect("a lock");
            registry.remembered.retain(|it| !new.contains(it));
            assert_eq!(registry.remembered, before);
        }
        {
            let mut guard = session.pin();
            guard.begin_draft(Box::new(Draft::new(8 << 20)));
            for step in &steps {
                world.run(&mut guard, *step, turn);
                world.model.run(*step);
            }
            let mut draft = guard.end_draft().expect("a draft");
            if rng.below(2) == 0 {
                // It was suspended, and all its keys are there yet.
                let registry = &mut world.registry.lock().expect("a lock").remembered;
                draft.remember_again(&mut |key| registry.insert((1, key.to_vec())));
            }
            guard.lock_keys(&draft.keys()).expect("locks");
            guard.set_aside(draft.room()).expect("room");
            draft.apply(&mut guard);
            guard.unlock_keys();
        }
        world.check(&format!("turn {turn}: {steps:?}"));
    }
}

/// The key left the registry while the step was suspended, and its client was told.
#[test]
fn remembered_again_it_hears_of_no_change_before_its_read() {
    let mut world = world();
    let mut session = world.store.session().expect("a session");
    let pair = |key| (1, name(key));
    world
        .registry
        .lock()
        .expect("a lock")
        .remembered
        .insert(pair(1));
    let mut guard = session.pin();
    guard.begin_draft(Box::new(Draft::new(1 << 20)));
    for step in [Step::Write(1), Step::Read(1, 1), Step::Write(2)] {
        world.run(&mut guard, step, 1);
    }
    let mut draft = guard.end_draft().expect("a draft");
    {
        let remembered = &mut world.registry.lock().expect("a lock").remembered;
        remembered.clear();
        draft.remember_again(&mut |key| remembered.insert((1, key.to_vec())));
        assert_eq!(
            *remembered,
            Pairs::from([pair(1)]),
            "only keys that it has read"
        );
    }
    guard.lock_keys(&draft.keys()).expect("locks");
    guard.set_aside(draft.room()).expect("room");
    draft.apply(&mut guard);
    guard.unlock_keys();
    drop(guard);
    world.model.remembered = Pairs::from([pair(1)]);
    world.check("it is told of nothing");
}

#[test]
fn the_keys_that_the_client_of_a_draft_reads_count_in_its_memory() {
    let world = world();
    let mut session = world.store.session().expect("a session");
    let mut guard = session.pin();
    guard.begin_draft(Box::new(Draft::new(100_000)));
    let long = [b'k'; 1_000];
    let mut begin = |n: usize| guard.begin_read(1, &long[n..], || true);
    let read = (0..1_000).take_while(|n| begin(*n).is_ok()).count();
    assert!((30..100).contains(&read), "{read}");
    assert!(begin(0).is_ok(), "a key that it has read already");
    assert_eq!(guard.draft().map(|draft| draft.reads()), Some(read));
}
