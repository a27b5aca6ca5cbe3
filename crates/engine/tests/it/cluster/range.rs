//! Walks, watches and whole migrations.

use crate::cluster::dead_log::object;
use crate::durable::disk::{Name, replay};
use crate::durable::world::{State, TABLE, World};
use crate::flash::device::PATIENCE;
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::planted::{Bug, carry, has_bug, with_bug};
use duramen_base::random::Random;
use duramen_engine::{DirtyKey, Error, MARK_BYTES, SidePlan, Store};
use duramen_format::hash::KeyHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RANGE: KeyRange = KeyRange::new(
    RouteHash::first_of_slot(2000),
    RouteHash(RouteHash::last_of_slot(12_000).0 - 99_999),
);

/// Room for the marks of ten keys.
const ROOM: usize = 10 * (b"key-0".len() + MARK_BYTES);

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn is_typed(key: &[u8]) -> bool {
    key.last().is_some_and(|byte| byte.is_multiple_of(2))
}

fn keys_inside(seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let hasher = KeyHasher::new(seed);
    (0..)
        .map(key)
        .filter(move |key| RANGE.contains(hasher.route(key)))
}

/// Scenario 36: objects that exist all the time are shown exactly once while the index grows and
/// shrinks, other keys come and go, and objects are overwritten.
#[test]
fn scenario_36_stable_objects_are_shown_exactly_once() {
    for seed in 0..4 {
        let mut world = World::new(seed, 2);
        let stable: BTreeSet<Vec<u8>> = keys_inside(seed).take(5000).collect();
        let write = |guard: &mut duramen_engine::Guard<'_>, key: &[u8]| {
            let hash = guard.hash(key);
            let value = (&b"value"[..], is_typed(key));
            guard.write_as(TABLE, hash, key, value, None).unwrap();
        };
        for key in &stable {
            write(&mut world.sessions[0].pin(), key);
        }
        let stop = AtomicBool::new(false);
        let mut session = world.store.session().unwrap();
        let mut shown: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut exported = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed);
                let volatile: Vec<Vec<u8>> = keys_inside(seed).skip(5000).take(40_000).collect();
                while !stop.load(Ordering::Relaxed) {
                    for key in &volatile {
                        let mut guard = session.pin();
                        write(&mut guard, key);
                        let again = stable.iter().nth(random.below(20) as usize).unwrap();
                        write(&mut guard, again);
                    }
                    for key in &volatile {
                        let mut guard = session.pin();
                        let hash = guard.hash(key);
                        guard.remove(TABLE, hash, key).unwrap();
                    }
                }
            });
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let guard = world.sessions[0].pin();
                cursor = guard
                    .walk()
                    .scan_range(TABLE, &RANGE, at, 10, |object| {
                        assert_eq!(object.is_typed, is_typed(object.key));
                        *shown.entry(object.key.to_vec()).or_default() += 1;
                    })
                    .unwrap();
            }
            let mut export = world.store.ranges().export(TABLE, RANGE);
            while export.step(20_000, &mut exported).unwrap() {
                if exported.len() >= 20_000 {
                    count(&mut exported, &mut shown);
                }
            }
            count(&mut exported, &mut shown);
            stop.store(true, Ordering::Relaxed);
        });
        for key in &stable {
            assert_eq!(
                shown.get(key),
                Some(&2),
                "{:?}",
                key.escape_ascii().to_string()
            );
        }
    }
}

fn count(exported: &mut Vec<u8>, shown: &mut BTreeMap<Vec<u8>, u32>) {
    let mut at = 0;
    while at < exported.len() {
        let entry = duramen_format::entry::parse(&exported[at..]).unwrap();
        assert_eq!(entry.is_typed, is_typed(entry.key));
        *shown.entry(entry.key.to_vec()).or_default() += 1;
        at += entry.padded_bytes;
    }
    exported.clear();
}

#[test]
fn what_is_counted_is_what_is_there() {
    let mut world = World::new(1, 1);
    let hasher = KeyHasher::new(1);
    let (mut inside, mut parts) = (0u64, vec![0u64; 256]);
    for n in 0..30_000 {
        let key = key(n);
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&key);
        guard.write(TABLE, hash, &key, &[1; 100], None).unwrap();
        let route = hasher.route(&key);
        inside += u64::from(RANGE.contains(route));
        parts[usize::from(route.slot()) / 64] += 1;
    }
    let counted = world.store.ranges().count(TABLE, RANGE).unwrap();
    assert_eq!(counted.objects, inside);
    let all = world.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(all.objects, 30_000);
    let statistics = world.store.ranges().statistics(TABLE).unwrap();
    let found: Vec<u64> = statistics.parts.iter().map(|part| part.entries).collect();
    assert_eq!(found, parts, "of a small table, exact");
    let bytes: u64 = statistics.parts.iter().map(|part| part.bytes).sum();
    assert_eq!(bytes, all.bytes);
}

/// A writer that checks, under its guard, whether it may write, as a server does.
fn write_while_allowed(
    store: &Arc<Store>,
    locked: &AtomicBool,
    written: &AtomicU64,
    seed: u64,
    keys: &[Vec<u8>],
) {
    let mut random = Random::new(seed);
    let mut session = store.session().unwrap();
    loop {
        let key = &keys[random.below(keys.len() as u64) as usize];
        let mut guard = session.pin();
        if locked.load(Ordering::SeqCst) {
            return;
        }
        let hash = guard.hash(key);
        let done = if random.below(4) == 0 {
            guard.remove(TABLE, hash, key).map(drop)
        } else {
            let value = random.below(1 << 40).to_le_bytes();
            guard.write(TABLE, hash, key, &value, None).map(drop)
        };
        match done {
            Ok(()) => {}
            // It was outside, to find another head or memory, while a thread waited for guards:
            // nothing was written.
            Err(Error::TryAgain) => continue,
            Err(error) => panic!("{error}"),
        }
        written.fetch_add(1, Ordering::Relaxed);
        drop(guard);
        if random.below(64) == 0 {
            std::thread::yield_now();
        }
    }
}

type Found = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn content(world: &mut World) -> Found {
    let guard = world.sessions[0].pin();
    let (mut found, mut cursor) = (Found::new(), Some(0));
    while let Some(at) = cursor {
        cursor = guard
            .walk()
            .scan_range(TABLE, &RANGE, at, 1000, |object| {
                found.insert(object.key.to_vec(), (object.value.to_vec(), object.version));
            })
            .unwrap();
    }
    found
}

/// The source purges the range, which has `count` objects; a key that the target creates anew has a
/// higher version than the source ever gave. `gone`: a key that neither has.
fn purge_source(source: &mut World, count: usize, (target, gone): (&mut World, Option<&Vec<u8>>)) {
    let store = source.store.clone();
    let safe = store.version_floor();
    let purged = store.ranges().purge(TABLE, RANGE).unwrap();
    assert_eq!(purged.objects, count as u64);
    assert!(content(source).is_empty());
    if let Some(key) = gone {
        let mut guard = target.sessions[0].pin();
        let hash = guard.hash(key);
        let outcome = guard.write(TABLE, hash, key, b"again", None).unwrap();
        assert!(outcome.after.unwrap() >= safe);
    }
}

/// Waits until writers have written so many keys more.
fn wait_for(written: &AtomicU64, more: u64) {
    let until = written.load(Ordering::Relaxed) + more;
    while written.load(Ordering::Relaxed) < until {
        std::thread::yield_now();
    }
}

/// Scenario 34: a migration beside writers. In the end the target has the source's content.
fn migrate(seed: u64) -> Result<(), String> {
    let (mut source, mut target) = (World::new(seed, 2), World::new(seed, 2));
    let keys: Vec<Vec<u8>> = keys_inside(seed).take(300).collect();
    let stores = [source.store.clone(), target.store.clone()];
    let (locked, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let created = target.store.heads().try_roll();
    let side = target.store.side_log(SidePlan::default());
    let mut start_again = false;
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (store, locked, written, keys) = (&stores[0], &locked, &written, &keys);
            scope.spawn(carry(move || {
                write_while_allowed(store, locked, written, seed + writer, keys)
            }));
        }
        wait_for(&written, 300);
        let ranges = stores[0].ranges();
        let watch = ranges.watch(TABLE, RANGE, 1 << 20).unwrap();
        let mut export = ranges.export(TABLE, RANGE);
        let mut out = Vec::new();
        let mut more = true;
        while more {
            more = export.step(1000, &mut out).unwrap();
            side.replay(&out).unwrap();
            out.clear();
            wait_for(&written, 5);
        }
        for round in 0..3 {
            if round == 2 {
                locked.store(true, Ordering::SeqCst);
                stores[0].quiesce();
            }
            let dirty = watch.take();
            start_again |= dirty.start_again;
            let exported = ranges.export_keys(TABLE, &dirty.keys, &mut out);
            exported.unwrap();
            side.replay(&out).unwrap();
            out.clear();
        }
    });
    assert!(!start_again);
    side.raise_version_floor(stores[0].version_floor());
    let commit = side.commit().unwrap();
    target
        .consumer
        .lock()
        .unwrap()
        .complete_everything(&stores[1]);
    assert!(commit.is_durable());
    let (there, here) = (content(&mut source), content(&mut target));
    if there != here {
        let differing = keys.iter().filter(|key| there.get(*key) != here.get(*key));
        let differing = differing.map(|key| (there.get(key), here.get(key)));
        return Err(format!(
            "source, target: {:?}",
            differing.collect::<Vec<_>>()
        ));
    }
    // After a crash of the target too.
    let mut disk = target.consumer.lock().unwrap().disk.clone();
    disk.listed.retain(|segment| *segment >= created.0);
    let (left, _) = replay(&disk);
    assert_eq!(left.len(), here.len());
    let gone = keys.iter().find(|key| !here.contains_key(*key));
    purge_source(&mut source, there.len(), (&mut target, gone));
    Ok(())
}

#[test]
fn scenario_34_a_migration_beside_writers_loses_nothing() {
    for seed in 0..12 {
        if let Err(wrong) = migrate(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn removals_that_are_not_marked_are_found() {
    assert!((0..20).any(|seed| with_bug(Bug::RemovalsAreNotMarked, || migrate(seed)).is_err()));
}

/// A write that was allowed before the lock is among the last dirty keys, however late it comes.
fn late_write_is_seen() -> bool {
    let mut world = World::new(3, 1);
    let store = world.store.clone();
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, ROOM).unwrap();
    let ended = AtomicBool::new(false);
    let mut guard = world.sessions[0].pin(); // and finds that it may write
    std::thread::scope(|scope| {
        let last = scope.spawn(carry(|| {
            store.quiesce();
            let dirty = watch.take();
            ended.store(true, Ordering::SeqCst);
            dirty
        }));
        // The other thread has every chance to go wrong before this one writes. If it does, it
        // ends, however late it runs. If it waits as it must, only some patience shows that: hence
        // many turns, each of which takes long on a busy machine.
        let began = Instant::now();
        let mut turns = 0;
        let is_patient = |turns: u32| match has_bug(Bug::QuiesceDoesNotWait) {
            false => turns < 20_000 && began.elapsed() < Duration::from_secs(10),
            true => {
                let waited = began.elapsed();
                assert!(
                    waited < PATIENCE,
                    "{waited:.0?} passed and still not: its end"
                );
                true
            }
        };
        while !ended.load(Ordering::SeqCst) && is_patient(turns) {
            std::thread::yield_now();
            turns += 1;
        }
        let hash = guard.hash(b"late");
        guard.write(TABLE, hash, b"late", b"value", None).unwrap();
        drop(guard);
        !last.join().unwrap().keys.is_empty()
    })
}

#[test]
fn a_write_between_scan_and_lock_is_not_missed() {
    assert!(late_write_is_seen());
}

#[test]
fn a_quiesce_that_does_not_wait_is_found() {
    assert!(!with_bug(Bug::QuiesceDoesNotWait, late_write_is_seen));
}

/// The holder of a transaction's locks is waited for as well.
#[test]
fn a_transaction_is_waited_for() {
    let mut world = World::new(3, 2);
    let store = world.store.clone();
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, ROOM).unwrap();
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(b"key");
    guard.lock_keys(&[(TABLE, hash)]).unwrap();
    std::thread::scope(|scope| {
        let last = scope.spawn(|| {
            store.quiesce();
            watch.take()
        });
        while watch.marked() == 0 {
            guard.write(TABLE, hash, b"key", b"value", None).unwrap();
        }
        guard.unlock_keys();
        drop(guard);
        assert_eq!(last.join().unwrap().keys.len(), 1);
    });
}

#[test]
fn marks_are_bounded_and_a_cleared_table_voids_them() {
    let mut world = World::new(4, 1);
    let store = world.store.clone();
    let write = |world: &mut World, n: u64| {
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&key(n));
        guard.write(TABLE, hash, &key(n), b"value", None).unwrap();
    };
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, ROOM).unwrap();
    (0..10).for_each(|n| write(&mut world, n));
    write(&mut world, 3);
    let dirty = watch.take();
    assert_eq!((dirty.keys.len(), dirty.start_again), (10, false));
    (0..11).for_each(|n| write(&mut world, n));
    let dirty = watch.take();
    assert_eq!((dirty.keys.len(), dirty.start_again), (10, true));
    drop(watch);
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, ROOM).unwrap();
    assert!(!watch.take().start_again);
    store.tables().clear(TABLE).unwrap();
    assert!(watch.take().start_again);
}

/// A migration once kept a million marked keys, of any length, beside the memory budget.
#[test]
fn marks_are_bounded_by_bytes_and_charged_to_memory() {
    let mut world = World::new(4, 1);
    let store = world.store.clone();
    let charged = || store.memory_report().overhead_bytes;
    let before = charged();
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, 1 << 20).unwrap();
    assert_eq!(charged() - before, 2 << 20, "twice: for those being sent");
    let long = |n: u64| vec![n as u8; 10_000];
    let mut marked = 0;
    while !watch.is_half_full() {
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&long(marked));
        guard.write(TABLE, hash, &long(marked), b"v", None).unwrap();
        marked += 1;
    }
    assert_eq!(marked, (1 << 20) / 2 / (10_000 + MARK_BYTES as u64) + 1);
    assert_eq!(watch.take().keys.len(), marked as usize);
    assert!(!watch.is_half_full());
    drop(watch);
    assert_eq!(charged(), before);
    // More than the memory: the watch begins with less, rather than not at all.
    let memory = store.memory_report().budget_bytes as usize;
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, memory).unwrap();
    let more = charged() - before;
    assert!((128 << 10..memory as u64).contains(&more), "{more}");
    drop(watch);
    assert_eq!(charged(), before);
}

/// An object that has expired at the source meanwhile does not stay at the target without its
/// expiry.
#[test]
fn an_expiry_that_was_set_meanwhile_kills_what_was_sent() {
    let (mut source, mut target) = (World::new(5, 1), World::new(5, 1));
    let name: Name = (TABLE.0, b"key".to_vec());
    let write = |world: &mut World, expires_at_ms: Option<u64>| {
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&name.1);
        guard
            .write(TABLE, hash, &name.1, b"value", expires_at_ms)
            .unwrap();
    };
    write(&mut source, None);
    let store = source.store.clone();
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, ROOM).unwrap();
    let side = target.store.side_log(SidePlan::default());
    let mut out = Vec::new();
    let mut export = store.ranges().export(TABLE, KeyRange::ALL);
    while export.step(1 << 20, &mut out).unwrap() {}
    let sent = State {
        value: b"value".to_vec(),
        expires_at_ms: None,
    };
    assert_eq!(out, object(&name, 1, &sent, 0));
    side.replay(&out).unwrap();
    let now_ms = source.clock.load(Ordering::Relaxed);
    write(&mut source, Some(now_ms + 5));
    let dirty = watch.take();
    source.clock.fetch_add(1000, Ordering::Relaxed);
    target.clock.fetch_add(1000, Ordering::Relaxed);
    out.clear();
    store
        .ranges()
        .export_keys(TABLE, &dirty.keys, &mut out)
        .unwrap();
    side.replay(&out).unwrap();
    let guard = target.sessions[0].pin();
    assert!(
        guard
            .read(TABLE, guard.hash(b"key"), b"key")
            .unwrap()
            .is_none()
    );
    drop(guard);
    // The same if it left the index before any thread looked: a tombstone of the marked version.
    out.clear();
    store
        .ranges()
        .export_keys(TABLE, &[DirtyKey::of_object(b"other", 7)], &mut out)
        .unwrap();
    let entry = duramen_format::entry::parse(&out).unwrap();
    assert_eq!(
        (entry.kind, entry.version),
        (duramen_format::entry::Kind::Tombstone, 7)
    );
}
