//! Side logs: docs/traps.md, scenarios 18, 19, 23, and related cases.

use crate::cluster::dead_log::{DeadLog, object, tombstone};
use crate::durable::disk::{Name, replay};
use crate::durable::world::{State, TABLE, World};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, carry, found_by, with_bug};
use duramen_base::random::Random;
use duramen_base::test_tier;
use duramen_engine::{Error, SideError, SideLog, SidePlan, TableId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const KEYS: u64 = 40;
const VALUE_BYTES: u64 = 60_000;

pub fn name(key: &str) -> Name {
    (TABLE.0, key.as_bytes().to_vec())
}

pub fn complete_everything(world: &mut World) {
    let store = world.store.clone();
    world.consumer.lock().unwrap().complete_everything(&store);
    world.send_replies();
}

/// Replays a log by one thread, or by two at once.
pub fn fill(side: &SideLog, log: &DeadLog, random: &mut Random) {
    let order = log.in_some_order(random);
    if random.below(2) == 0 {
        order.iter().for_each(|segment| {
            side.replay(segment).unwrap();
        });
        return;
    }
    let (first, second) = order.split_at(order.len() / 2);
    std::thread::scope(|scope| {
        for half in [first, second] {
            scope.spawn(carry(move || {
                for segment in half {
                    side.replay(segment).unwrap();
                }
            }));
        }
    });
}

/// Compares a store's content with the expected result of a log.
fn check(world: &mut World, log: &DeadLog) -> Result<(), String> {
    let guard = world.sessions[0].pin();
    let mut objects = 0;
    for (name, expected) in &log.expected {
        let found = guard
            .read(TABLE, guard.hash(&name.1), &name.1)
            .unwrap()
            .map(|object| (object.version, object.value.to_vec(), object.expires_at_ms));
        let wanted = expected
            .state
            .clone()
            .map(|state| (expected.version, state.value, state.expires_at_ms));
        objects += u64::from(wanted.is_some());
        if found != wanted {
            let short = |found: &Option<(u64, Vec<u8>, Option<u64>)>| {
                found
                    .as_ref()
                    .map(|(version, value, at)| (*version, value.len(), *at))
            };
            return Err(format!(
                "{name:?} is {:?}, not {:?}",
                short(&found),
                short(&wanted)
            ));
        }
    }
    drop(guard);
    let counted = world.store.tables().objects(TABLE);
    if counted != objects {
        return Err(format!(
            "{counted} objects are counted, {objects} are there"
        ));
    }
    Ok(())
}

/// The histories begin with the recovered states.
fn take_over(world: &mut World, log: &DeadLog) {
    for (name, expected) in &log.expected {
        let place = world.push(name, expected.state.clone());
        world.reply(Default::default(), vec![(name.clone(), place)]);
    }
}

/// A recovery, and then a run with crashes, judged like the run of any store.
fn recover_and_live(seed: u64) -> Result<u64, String> {
    let mut world = World::new(seed, 2);
    let mut random = Random::new(seed ^ 0x5eed);
    let now_ms = world.clock.load(Ordering::Relaxed);
    let log = DeadLog::new(&mut random, KEYS, VALUE_BYTES, now_ms);
    let plan = SidePlan {
        floors: Vec::new(),
        version_floor: log.version_max + 5,
    };
    let side = world.store.side_log(plan);
    fill(&side, &log, &mut random);
    // A concurrent cleaner must not touch the side log.
    for _ in 0..random.below(20) {
        world.clean();
    }
    check(&mut world, &log)?;
    let commit = side.commit().unwrap();
    while !commit.is_durable() {
        let (left, _) = replay(&world.consumer.lock().unwrap().disk);
        if !left.is_empty() {
            return Ok(0); // the record is durable, and not yet reported to the engine
        }
        complete_everything(&mut world);
    }
    drop(side);
    check(&mut world, &log)?;
    take_over(&mut world, &log);
    world.crash()?;
    let mut swaps = 0;
    for _ in 0..3 {
        for _ in 0..250 {
            live(&mut world, &log)?;
        }
        swaps += world.consumer.lock().unwrap().swaps;
        world.restart()?;
    }
    Ok(swaps)
}

/// One step of a run: a write, a removal, or a step of the cleaner or the disk.
fn live(world: &mut World, log: &DeadLog) -> Result<(), String> {
    let name = name(&format!("key-{}", world.random.below(KEYS)));
    match world.random.below(8) {
        0 => world.collect(),
        1 => world.complete_one(),
        2..=4 => world.clean(),
        5 => {
            let mut guard = world.sessions[0].pin();
            let hash = guard.hash(&name.1);
            let outcome = guard.remove(TABLE, hash, &name.1).unwrap();
            let position = guard.order().take_position();
            drop(guard);
            if outcome.before.is_some() {
                let place = world.push(&name, None);
                world.reply(position, vec![(name, place)]);
            }
        }
        _ => {
            let bytes = world.random.below(VALUE_BYTES) as usize;
            let value = world.value(bytes);
            let mut guard = world.sessions[1].pin();
            let hash = guard.hash(&name.1);
            let outcome = guard.write(TABLE, hash, &name.1, &value, None);
            let position = guard.order().take_position();
            drop(guard);
            match outcome {
                Ok(outcome) => {
                    // Scenario 18: versions strictly grow.
                    let version = outcome.after.unwrap();
                    let known = log.expected[&name].version;
                    if version <= known {
                        return Err(format!("{name:?} got version {version} after {known}"));
                    }
                    let state = State {
                        value,
                        expires_at_ms: None,
                    };
                    let place = world.push(&name, Some(state));
                    world.reply(position, vec![(name, place)]);
                }
                Err(Error::OutOfMemory { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    Ok(())
}

#[test]
fn scenario_19_any_order_and_repetition_gives_the_same_state() {
    let mut swaps = 0;
    let seeds = test_tier::runs(20, 60);
    for seed in 0..seeds {
        match recover_and_live(seed) {
            Ok(some) => swaps += some,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(swaps > seeds, "cleaned only {swaps} times");
}

/// Finds the bug by its recorded seed.
fn is_found(bug: Bug, seed: u64) {
    found_by(seed, 0..300, |seed| {
        with_bug(bug, || recover_and_live(seed)).err()
    });
    // Without the bug the same seed passes: so the bug was found, and nothing else.
    assert!(recover_and_live(seed).is_ok(), "seed {seed}");
}

#[test]
fn a_forgotten_tombstone_is_found() {
    is_found(Bug::SideForgetsTombstones, 0);
}

#[test]
fn a_lower_version_that_wins_is_found() {
    is_found(Bug::SideLastWins, 0);
}

#[test]
fn what_is_replaced_without_being_named_is_found() {
    is_found(Bug::SideNamesNoVictim, 0);
}

/// A crash before the Swap is durable leaves nothing, one after it everything; each step between is
/// tried.
#[test]
fn the_swap_is_the_one_moment() {
    for seed in 0..10 {
        let mut world = World::new(seed, 2);
        let mut random = Random::new(seed);
        let now_ms = world.clock.load(Ordering::Relaxed);
        let log = DeadLog::new(&mut random, KEYS, VALUE_BYTES, now_ms);
        let side = world.store.side_log(SidePlan::default());
        fill(&side, &log, &mut random);
        let commit = side.commit().unwrap();
        assert_eq!(side.replay(&[]), Err(SideError::Closed));
        assert_eq!(side.abort(), Err(SideError::Closed));
        complete_heads(&mut world);
        let mut was_durable = false;
        loop {
            let (left, version_max) = replay(&world.consumer.lock().unwrap().disk);
            let alive = log.expected.values().filter(|key| key.state.is_some());
            if left.is_empty() {
                assert!(!was_durable && !commit.is_durable());
            } else {
                was_durable = true;
                assert_eq!(left.len(), alive.count());
                for (name, found) in &left {
                    assert_eq!(found.version, log.expected[name].version);
                }
                assert!(version_max >= log.version_max);
            }
            let store = world.store.clone();
            if !world.consumer.lock().unwrap().clean_one(&store) {
                break;
            }
        }
        assert!(was_durable && commit.is_durable());
        check(&mut world, &log).unwrap();
    }
}

/// Makes the heads' appends durable, and nothing else.
fn complete_heads(world: &mut World) {
    let store = world.store.clone();
    let mut consumer = world.consumer.lock().unwrap();
    consumer.collect(&store);
    consumer.complete_one(&store, false);
}

/// Segments with something in them.
pub fn used(report: &duramen_engine::MemoryReport) -> usize {
    let segments = report.segments.iter();
    let used = segments.filter(|segment| segment.appended_bytes > 0);
    used.count()
}

/// A side log that was given up, at any moment, leaves the store as it was; also one that was
/// complete, and whose Swap nobody has got.
#[test]
fn an_abort_leaves_nothing() {
    for seed in 0..30 {
        let mut world = World::new(seed, 2);
        let mut random = Random::new(seed);
        let now_ms = world.clock.load(Ordering::Relaxed);
        let log = DeadLog::new(&mut random, KEYS, VALUE_BYTES, now_ms);
        let other = b"own key";
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(other);
        guard.write(TABLE, hash, other, b"own", None).unwrap();
        drop(guard);
        complete_everything(&mut world);
        let before = world.store.memory_report();
        let side = world.store.side_log(SidePlan::default());
        fill(&side, &log, &mut random);
        // The consumer has got some segments, and has written some.
        let store = world.store.clone();
        for _ in 0..random.below(4) {
            world.consumer.lock().unwrap().clean_one(&store);
        }
        world.consumer.lock().unwrap().sleeps = true;
        let commit = (seed >= 20).then(|| side.commit().unwrap());
        let in_hands = random.below(2) == 0;
        let ready = if in_hands {
            store.log().unwrap().next_survivor()
        } else {
            None
        };
        let bytes = ready
            .as_ref()
            .map(|ready| (ready.segment, ready.bytes.to_vec()));
        world.consumer.lock().unwrap().sleeps = false;
        if let Some(commit) = commit {
            assert_eq!(side.abort(), Err(SideError::Closed));
            assert!(side.withdraw(), "nobody has got it");
            assert!(!side.withdraw(), "it is taken back");
            assert!(!commit.is_durable());
        }
        if random.below(2) == 0 {
            side.abort().unwrap();
        } else {
            drop(side);
        }
        if let (Some((segment, bytes)), Some(ready)) = (bytes, ready) {
            store.clean_step(1 << 20);
            assert_eq!(ready.bytes, bytes, "what is being read stays");
            store.log().unwrap().swaps().survivor_durable(segment);
        }
        assert!(store.log().unwrap().next_survivor().is_none());
        assert!(store.log().unwrap().next_swap().is_none());
        store.clean_step(1 << 20);
        store.clean_step(1 << 20);
        let after = store.memory_report();
        assert_eq!(store.tables().objects(TABLE), 1);
        assert_eq!(after.live_bytes, before.live_bytes);
        assert_eq!(used(&after), used(&before), "{:?}", after.segments);
        let guard = world.sessions[0].pin();
        assert!(guard.read(TABLE, hash, other).unwrap().is_some());
        for name in log.expected.keys() {
            let hash = guard.hash(&name.1);
            assert!(guard.read(TABLE, hash, &name.1).unwrap().is_none());
        }
        drop(guard);
        // And once more, completely.
        let side = world.store.side_log(SidePlan::default());
        fill(&side, &log, &mut random);
        let commit = side.commit().unwrap();
        complete_everything(&mut world);
        assert!(commit.is_durable());
    }
}

/// Hands out the Swap of a complete side log, and withdraws it then. Returns whether that was
/// refused, and the Swap was carried out.
fn withdraws_too_late() -> bool {
    let mut world = World::new(3, 2);
    let mut random = Random::new(3);
    let now_ms = world.clock.load(Ordering::Relaxed);
    let log = DeadLog::new(&mut random, KEYS, VALUE_BYTES, now_ms);
    let side = world.store.side_log(SidePlan::default());
    fill(&side, &log, &mut random);
    world.consumer.lock().unwrap().sleeps = true;
    let commit = side.commit().unwrap();
    complete_heads(&mut world);
    let store = world.store.clone();
    let writer = store.log().unwrap();
    while let Some(ready) = writer.next_survivor() {
        writer.swaps().survivor_durable(ready.segment);
    }
    let swap = writer.next_swap().expect("all is durable");
    if side.withdraw() {
        return false;
    }
    assert_eq!(side.abort(), Err(SideError::Closed));
    writer.swaps().swapped(&swap);
    assert!(!side.withdraw(), "it has ended");
    check(&mut world, &log).unwrap();
    commit.is_durable()
}

/// Its record may be durable, and a restart would find the side log.
#[test]
fn a_swap_that_was_handed_out_is_not_taken_back() {
    assert!(withdraws_too_late());
    let found = !with_bug(Bug::WithdrawnAfterHanded, withdraws_too_late);
    assert!(found, "not found");
}

#[test]
fn scenario_23_out_of_memory_is_told_and_nothing_is_left() {
    let mut world = World::new(23, 2);
    let side = world.store.side_log(SidePlan::default());
    let state = State {
        value: vec![1; 900_000],
        expires_at_ms: None,
    };
    let error = (0..1000u64)
        .find_map(|n| {
            side.replay(&object(&name(&n.to_string()), 1, &state, 0))
                .err()
        })
        .expect("64 MB are full some time");
    assert!(
        matches!(error, SideError::Store(Error::OutOfMemory { .. })),
        "{error}"
    );
    assert_eq!(side.replay(&[]), Err(SideError::Closed), "it has failed");
    side.abort().unwrap();
    complete_everything(&mut world);
    assert_eq!(world.store.tables().objects(TABLE), 0);
    let mut guard = world.sessions[0].pin();
    for n in 0..20u64 {
        let key = n.to_le_bytes();
        let hash = guard.hash(&key);
        guard.write(TABLE, hash, &key, &state.value, None).unwrap();
    }
}

/// Members of which each key was overwritten three times had no room for each other's logs: every
/// version entered, and stayed until the end.
#[test]
fn an_overwritten_log_takes_little_more_than_its_live_bytes() {
    let world = World::new(7, 2);
    let side = world.store.side_log(SidePlan::default());
    let (mut version, mut live) = (0, BTreeMap::new());
    let mut segments: Vec<Vec<u8>> = Vec::new();
    let mut random = Random::new(7);
    for _ in 0..24 {
        // A backup gives the versions of a key as neighbours.
        let mut segment: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for _ in 0..100 {
            version += 1;
            let state = State {
                value: vec![3; 1 + random.below(8_000) as usize],
                expires_at_ms: None,
            };
            let key = random.below(800);
            let bytes = object(&name(&key.to_string()), version, &state, 0);
            live.insert(key, bytes.len() as u64);
            segment.entry(key).or_default().extend(bytes);
        }
        segments.push(segment.into_values().flatten().collect());
    }
    for segment in segments.iter().rev() {
        side.replay(segment).unwrap();
    }
    let (report, live) = (side.report(), live.values().sum::<u64>());
    assert!(report.bytes > 2 * live, "{report:?}");
    assert_eq!((report.kept_bytes, report.dead_bytes), (live, 0));
}

#[test]
fn a_hot_key_enters_once_and_its_tombstone_takes_nothing() {
    let mut world = World::new(8, 1);
    let side = world.store.side_log(SidePlan::default());
    let state = State {
        value: vec![3; 1_000],
        expires_at_ms: None,
    };
    let of = |key: &str, version| object(&name(key), version, &state, 0);
    let hot: Vec<u8> = (1..=1_000).flat_map(|n| of("hot", n)).collect();
    let killed = [of("killed", 1_001), tombstone(&name("killed"), 1_001)].concat();
    assert_eq!(side.replay(&[hot, killed].concat()), Ok(1_002));
    let report = side.report();
    assert_eq!(report.kept_bytes, of("hot", 1_000).len() as u64);
    assert_eq!((report.entries, report.kept_objects), (1_002, 1));
    assert_eq!((report.dead_bytes, report.version_max), (0, 1_001));
    side.commit().unwrap();
    complete_everything(&mut world);
    let guard = world.sessions[0].pin();
    let hash = guard.hash(b"hot");
    let found = guard.read(TABLE, hash, b"hot").unwrap();
    assert_eq!(found.map(|object| object.version), Some(1_000));
    assert_eq!(world.store.tables().objects(TABLE), 1);
}

/// A survivor has the entries of segments of any age: the newer version may be in front.
fn newer_in_front() -> Option<u64> {
    let mut world = World::new(9, 1);
    let side = world.store.side_log(SidePlan::default());
    let state = State {
        value: vec![3; 100],
        expires_at_ms: None,
    };
    let of = |version| object(&name("key"), version, &state, 0);
    side.replay(&[of(7), of(6)].concat()).unwrap();
    side.commit().unwrap();
    complete_everything(&mut world);
    let guard = world.sessions[0].pin();
    let found = guard.read(TABLE, guard.hash(b"key"), b"key").unwrap();
    found.map(|object| object.version)
}

#[test]
fn versions_that_are_skipped_by_their_place_are_found() {
    assert_eq!(newer_in_front(), Some(7));
    assert_eq!(with_bug(Bug::SkipsByPlace, newer_in_front), Some(6));
}

#[test]
fn floors_damage_and_unknown_tables() {
    let mut world = World::new(1, 1);
    let other = world.store.tables().create("other").unwrap();
    let plan = SidePlan {
        floors: vec![(TABLE, 10)],
        version_floor: 77,
    };
    let side = world.store.side_log(plan);
    let state = State {
        value: b"v".to_vec(),
        expires_at_ms: None,
    };
    let mut bytes = Vec::new();
    bytes.extend(object(&name("old"), 9, &state, 0));
    bytes.extend(object(&name("new"), 10, &state, 0));
    bytes.extend(object(&(other.0, b"old".to_vec()), 3, &state, 0));
    bytes.extend(object(&(900, b"none".to_vec()), 3, &state, 0));
    bytes.extend(tombstone(&name("gone"), 30));
    assert_eq!(side.replay(&bytes), Ok(5));
    let whole = object(&name("more"), 11, &state, 0);
    let mut damaged = whole.clone();
    damaged.extend(&whole);
    *damaged.last_mut().unwrap() ^= 3; // one bit would be put back
    let error = side.replay(&damaged).unwrap_err();
    assert!(
        matches!(error, SideError::Damaged { offset, .. } if offset == whole.len()),
        "{error}"
    );
    damaged.truncate(whole.len() + 9);
    assert!(matches!(
        side.replay(&damaged),
        Err(SideError::Damaged { .. })
    ));
    side.replay(&whole).unwrap();
    let commit = side.commit().unwrap();
    complete_everything(&mut world);
    assert!(commit.is_durable());
    let mut guard = world.sessions[0].pin();
    let has =
        |table: TableId, key: &[u8]| guard.read(table, guard.hash(key), key).unwrap().is_some();
    assert!(!has(TABLE, b"old") && has(TABLE, b"new") && has(TABLE, b"more"));
    assert!(has(other, b"old"));
    let hash = guard.hash(b"gone");
    let outcome = guard.write(TABLE, hash, b"gone", b"again", None).unwrap();
    assert!(outcome.after.unwrap() > 77, "{outcome:?}");
}

#[test]
fn a_replayed_key_exists_in_the_millisecond_of_its_expiry() {
    let mut world = World::new(5, 1);
    let now_ms = world.clock.load(Ordering::Relaxed);
    let state = |at_ms| State {
        value: vec![7; 10],
        expires_at_ms: Some(at_ms),
    };
    let side = world.store.side_log(SidePlan::default());
    let last = object(&name("last"), 1, &state(now_ms), 0);
    let over = object(&name("over"), 2, &state(now_ms - 1), 0);
    side.replay(&[last, over].concat()).unwrap();
    let commit = side.commit().unwrap();
    complete_everything(&mut world);
    assert!(commit.is_durable());
    assert_eq!(world.store.tables().objects(TABLE), 1);
    let mut has = |key: &[u8]| {
        let guard = world.sessions[0].pin();
        guard.read(TABLE, guard.hash(key), key).unwrap().is_some()
    };
    assert!(has(b"last") && !has(b"over"));
    world.clock.store(now_ms + 1, Ordering::Relaxed);
    assert!(!has(b"last"));
}

/// Until the Swap is durable, no cleaner takes its segments, even if they are the emptiest of all.
fn cleaners_keep_off() -> Result<(), String> {
    let mut world = World::new(5, 1);
    let side = world.store.side_log(SidePlan::default());
    let state = State {
        value: vec![7; 100_000],
        expires_at_ms: Some(world.clock.load(Ordering::Relaxed) + 10),
    };
    // Every version replaces the one before, so nearly all of it is dead.
    for version in 1..100 {
        let bytes = object(&name("key"), version, &state, 0);
        side.replay(&bytes).unwrap();
    }
    let store = world.store.clone();
    while let Some(ready) = store.log().unwrap().next_survivor() {
        let mut consumer = world.consumer.lock().unwrap();
        consumer.disk.write_survivor(ready.segment, ready.bytes);
        store.log().unwrap().swaps().survivor_durable(ready.segment);
    }
    world.clock.fetch_add(1000, Ordering::Relaxed);
    for _ in 0..50 {
        if store.clean_step(1 << 20) {
            return Err("something of it was cleaned".to_owned());
        }
    }
    // An older version still finds that there was a newer one.
    let older = State {
        value: b"older".to_vec(),
        expires_at_ms: None,
    };
    side.replay(&object(&name("key"), 98, &older, 0)).unwrap();
    let guard = world.sessions[0].pin();
    let hash = guard.hash(b"key");
    if guard.read(TABLE, hash, b"key").unwrap().is_some() {
        return Err("it came back".to_owned());
    }
    drop(guard);
    side.commit().unwrap();
    complete_everything(&mut world);
    let mut worked = false;
    for _ in 0..50 {
        worked |= store.clean_step(1 << 20);
    }
    assert!(worked, "now it is like any other");
    world.crash()
}

#[test]
fn nothing_is_cleaned_before_the_swap() {
    cleaners_keep_off().unwrap();
}

#[test]
fn cleaning_before_the_swap_is_found() {
    assert!(with_bug(Bug::SideIsCleaned, cleaners_keep_off).is_err());
}

fn write(world: &mut World, session: usize, key: &[u8]) {
    let mut guard = world.sessions[session].pin();
    let hash = guard.hash(key);
    guard.write(TABLE, hash, key, b"value", None).unwrap();
}

#[test]
fn a_position_between_before_and_after() {
    let mut world = World::new(3, 3);
    for session in 0..3 {
        write(&mut world, session, &[1, session as u8]);
    }
    complete_everything(&mut world);
    let before: Vec<u64> = world
        .consumer
        .lock()
        .unwrap()
        .disk
        .segments
        .keys()
        .copied()
        .collect();
    let position = world.store.heads().try_roll();
    assert!(before.iter().all(|segment| SegmentId(*segment) < position));
    for session in 0..3 {
        write(&mut world, session, &[2, session as u8]);
    }
    let side = world.store.side_log(SidePlan::default());
    let state = State {
        value: b"v".to_vec(),
        expires_at_ms: None,
    };
    side.replay(&object(&name("side"), 1, &state, 0)).unwrap();
    side.commit().unwrap();
    complete_everything(&mut world);
    let disk = world.consumer.lock().unwrap().disk.clone();
    let (after, _): (Vec<u64>, Vec<u64>) = disk
        .segments
        .keys()
        .partition(|segment| **segment > position.0);
    assert_eq!(after.len(), 4, "three heads and a side segment");
    assert_eq!(replay(&disk).0.len(), 7);
}

/// A head that was in use at that moment: its next entries were below the position, and a restart
/// took them for those of an earlier time.
#[test]
fn a_head_that_is_in_use_is_closed_before_the_commit() {
    let mut world = World::new(3, 3);
    for session in 1..3 {
        write(&mut world, session, &[1, session as u8]);
    }
    complete_everything(&mut world);
    let store = world.store.clone();
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(&[1, 0]);
    guard.write(TABLE, hash, &[1, 0], b"value", None).unwrap();
    let position = store.heads().try_roll();
    drop(guard);
    let side = store.side_log(SidePlan::default());
    let state = State {
        value: b"v".to_vec(),
        expires_at_ms: None,
    };
    side.replay(&object(&name("side"), 1, &state, 0)).unwrap();
    side.commit_above(position).unwrap();
    for session in 0..3 {
        write(&mut world, session, &[2, session as u8]);
    }
    complete_everything(&mut world);
    let disk = world.consumer.lock().unwrap().disk.clone();
    let is_after = |segment: &&u64| **segment > position.0;
    let after = disk.segments.keys().filter(is_after).count();
    assert_eq!(after, 4, "three heads and a side segment");
    assert_eq!(replay(&disk).0.len(), 7);
}
