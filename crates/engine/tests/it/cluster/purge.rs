//! Purges: exactly the range is removed, whatever else happens, and returning keys are
//! distinguished from the old ones.

use crate::cluster::dead_log::object;
use crate::durable::disk::Name;
use crate::durable::world::{State, TABLE, World};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_engine::{Error, SidePlan, TableId};
use duramen_format::hash::KeyHasher;
use std::sync::atomic::{AtomicBool, Ordering};

const SLOTS: KeyRange = KeyRange::new(
    RouteHash::first_of_slot(4000),
    RouteHash::last_of_slot(9000),
);

fn key(n: u64) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn write(world: &mut World, key: &[u8]) -> u64 {
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(key);
    guard
        .write(TABLE, hash, key, b"value", None)
        .unwrap()
        .after
        .unwrap()
}

fn is_there(world: &mut World, key: &[u8]) -> bool {
    let guard = world.sessions[0].pin();
    guard.read(TABLE, guard.hash(key), key).unwrap().is_some()
}

/// A range is purged while others write beside it, and the index grows.
fn purge_beside_writers(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed, 2);
    let hasher = KeyHasher::new(seed);
    let range = if seed.is_multiple_of(2) {
        SLOTS
    } else {
        // Begins and ends inside a slot.
        KeyRange::new(
            RouteHash(SLOTS.first.0 + 12_345),
            RouteHash(SLOTS.last.0 - 54_321),
        )
    };
    let keys: Vec<Vec<u8>> = (0..20_000).map(key).collect();
    for key in &keys {
        write(&mut world, key);
    }
    let inside: Vec<&Vec<u8>> = keys
        .iter()
        .filter(|key| range.contains(hasher.route(key)))
        .collect();
    let stop = AtomicBool::new(false);
    let mut session = world.store.session().unwrap();
    let (purged, added) = std::thread::scope(|scope| {
        let stop = &stop;
        let hasher = &hasher;
        let adder = scope.spawn(carry(move || {
            let mut added = Vec::new();
            let mut n = 1_000_000;
            // At most as many as there is memory for, in case the purge does not get to run.
            while added.len() < 1000 || !stop.load(Ordering::Relaxed) && added.len() < 200_000 {
                n += 1;
                let key = key(n);
                if range.contains(hasher.route(&key)) {
                    continue;
                }
                let mut guard = session.pin();
                let hash = guard.hash(&key);
                guard.write(TABLE, hash, &key, b"new", None).unwrap();
                added.push(key);
            }
            added
        }));
        let purged = world.store.ranges().purge(TABLE, range).unwrap();
        stop.store(true, Ordering::Relaxed);
        (purged, adder.join().unwrap())
    });
    if purged.objects != inside.len() as u64 {
        return Err(format!("{} of {} went", purged.objects, inside.len()));
    }
    assert!(purged.bytes >= 24 * purged.objects);
    for key in &keys {
        if is_there(&mut world, key) == range.contains(hasher.route(key)) {
            return Err(format!("{key:?} was taken for another"));
        }
    }
    for key in &added {
        assert!(is_there(&mut world, key));
    }
    let left = (keys.len() - inside.len() + added.len()) as u64;
    assert_eq!(world.store.tables().objects(TABLE), left);
    let version = write(&mut world, inside[0]);
    assert!(version > 1, "versions go on where they were");
    Ok(())
}

#[test]
fn a_range_goes_and_nothing_else() {
    for seed in 0..6 {
        purge_beside_writers(seed).unwrap();
    }
    let world = World::new(9, 1);
    let none = world.store.ranges().purge(TableId(77), SLOTS);
    assert_eq!(none, Err(Error::NoSuchTable(TableId(77))));
}

#[test]
fn a_purge_that_skips_is_found() {
    assert!((0..4).any(|seed| with_bug(Bug::PurgeSkips, || purge_beside_writers(seed)).is_err()));
}

/// Scenario 35: a tablet leaves, its keys are removed elsewhere, it comes back, the old log is
/// cleaned. At no moment does a crash bring back objects of the first time.
#[test]
fn scenario_35_what_comes_back_is_told_from_what_was() {
    let mut world = World::new(35, 2);
    let names: Vec<Name> = (0..60).map(|n| (TABLE.0, key(n))).collect();
    let mut versions = Vec::new();
    for name in &names {
        for _ in 0..3 {
            let value = world.value(20_000);
            let mut guard = world.sessions[0].pin();
            let hash = guard.hash(&name.1);
            let outcome = guard.write(TABLE, hash, &name.1, &value, None).unwrap();
            versions.push(outcome.after.unwrap());
        }
    }
    let store = world.store.clone();
    world.consumer.lock().unwrap().complete_everything(&store);
    let purged = store.ranges().purge(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(purged.objects, names.len() as u64);
    // Elsewhere half of the keys were written again, and half removed.
    let created = store.heads().try_roll();
    let safe = *versions.iter().max().unwrap() + 100;
    let side = store.side_log(SidePlan {
        floors: Vec::new(),
        version_floor: safe,
    });
    let state = |n: usize| State {
        value: vec![n as u8; 10_000],
        expires_at_ms: None,
    };
    for (n, name) in names.iter().enumerate().step_by(2) {
        side.replay(&object(name, safe, &state(n), 0)).unwrap();
    }
    side.commit().unwrap();
    // After a crash only segments above the tablet's creation count.
    let judge = |world: &World| {
        let mut disk = world.consumer.lock().unwrap().disk.clone();
        disk.listed.retain(|segment| *segment >= created.0);
        let (left, _) = crate::durable::disk::replay(&disk);
        for (n, name) in names.iter().enumerate() {
            match left.get(name) {
                Some(found) => assert_eq!((n % 2, found.version), (0, safe)),
                None => assert_eq!(n % 2, 1, "{name:?} is lost"),
            }
        }
    };
    world.consumer.lock().unwrap().complete_everything(&store);
    judge(&world);
    // The old ones are all dead: cleaning removes them.
    for _ in 0..200 {
        store.clean_step(1 << 20);
        world.consumer.lock().unwrap().clean_one(&store);
        judge(&world);
    }
    let disk = world.consumer.lock().unwrap().disk.clone();
    let old = disk
        .listed
        .iter()
        .filter(|segment| **segment < created.0)
        .count();
    assert!(old <= 2, "{old} old segments are still there");
    for name in names.iter().skip(1).step_by(2) {
        assert!(
            write(&mut world, &name.1) > safe,
            "versions go on above the safe version"
        );
    }
}
