//! Enumerations beside writes: each object that exists all the time is returned once.

use crate::serve::world::{Got, SEED, TABLE, World, view};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::random::Random;
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::{Condition, Expiry, Operation, Single};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

fn write(world: &mut World, key: &[u8], value: &[u8]) {
    let operation = Operation::Write {
        value,
        condition: Condition::Always,
        expiry: Expiry::Never,
    };
    let got = world.do_now(&single(key, operation));
    assert!(matches!(got, Got::Written(_)), "{got:?}");
}

pub(crate) fn single<'a>(key: &'a [u8], operation: Operation<'a>) -> Single<'a> {
    Single {
        table: TABLE,
        key,
        operation,
        level: None,
        rpc: None,
    }
}

fn stable(n: u64) -> Vec<u8> {
    format!("stays {n}").into_bytes()
}

/// Writes or removes a key that comes and goes, or writes one of the `count` stable ones.
fn change(world: &mut World, random: &mut Random, count: u64) {
    let key = format!("comes and goes {}", random.below(300)).into_bytes();
    let old = stable(random.below(count));
    match random.below(3) {
        0 => write(world, &key, b"x"),
        1 => write(world, &old, &vec![2; random.below(300) as usize]),
        _ => {
            let condition = Condition::Always;
            world.do_now(&single(&key, Operation::Remove { condition }));
        }
    }
}

/// A scan like a client's, while keys are created, changed and removed, and while the owned range
/// is split.
pub(crate) fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new();
    let mut random = Random::new(seed);
    let count = 50 + random.below(1_500);
    for n in 0..count {
        write(&mut world, &stable(n), &vec![1; random.below(200) as usize]);
    }
    let bytes_max = 500 + random.below(20_000) as u32;
    let mut rest = vec![(KeyRange::ALL, 0)];
    let mut seen: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut pieces = 0;
    while let Some((range, cursor)) = rest.pop() {
        pieces += 1;
        if pieces > 100_000 {
            return Err("it does not end".to_owned());
        }
        // The owned range is split anywhere; the client returns for the rest.
        let owned = match random.below(3) {
            0 => KeyRange::ALL,
            _ => {
                let middle = range.first.0 / 2 + range.last.0 / 2;
                KeyRange::new(RouteHash::MIN, RouteHash(middle.max(range.first.0)))
            }
        };
        world.view = view(owned);
        let objects = world.enumerate(range, cursor, bytes_max)?;
        world.view = view(KeyRange::ALL);
        if objects.frame_bytes > 64 + bytes_max as usize && objects.keys.len() > 1 {
            return Err(format!("{} bytes of {bytes_max}", objects.frame_bytes));
        }
        if objects.last > owned.last || objects.last < range.first {
            return Err(format!(
                "an answer about {range}, which ends at {}",
                objects.last
            ));
        }
        for key in objects.keys {
            let route = KeyHasher::new(SEED).route(&key);
            if !KeyRange::new(range.first, objects.last).contains(route) {
                return Err("a key of another range".to_owned());
            }
            *seen.entry(key).or_default() += 1;
        }
        if let Some(first) = objects.last.next().filter(|first| *first <= range.last) {
            rest.push((KeyRange::new(first, range.last), cursor));
        }
        if let Some(next) = objects.cursor {
            if next <= cursor {
                return Err("it goes backwards".to_owned());
            }
            rest.push((KeyRange::new(range.first, objects.last), next));
        }
        for _ in 0..random.below(4) {
            change(&mut world, &mut random, count);
        }
        if random.below(8) == 0 {
            world.commit();
        }
    }
    for n in 0..count {
        let times = seen.get(&stable(n)).copied().unwrap_or(0);
        if times != 1 {
            return Err(format!(
                "key {n} of {count} came {times} times in {pieces} pieces"
            ));
        }
    }
    Ok(())
}

#[test]
fn enumerations_are_complete_beside_writes_and_splits() {
    for seed in 0..60 {
        if let Err(why) = run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}

/// Each thread kept the bytes of its largest step for ever: 16 objects, however small the answer.
#[test]
fn large_objects_leave_no_memory_with_the_thread() {
    let mut world = World::new();
    for n in 0..64 {
        write(&mut world, &stable(n), &vec![1; 200_000]);
    }
    let (mut cursor, mut found) = (0, 0);
    loop {
        let objects = world.enumerate(KeyRange::ALL, cursor, 100_000).unwrap();
        assert!(world.servant.kept_bytes() <= 600_000);
        found += objects.keys.len();
        match objects.cursor {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(found, 64);
}

/// Expired objects were not counted, so that one answer took as long as the table is large.
#[test]
fn an_answer_looks_at_a_limited_number_of_expired_objects() {
    let mut world = World::new();
    let expires_at_ms = world.clock_ms.load(Ordering::Relaxed) + 10;
    let mut session = world.store.session().unwrap();
    for n in 0..20_000 {
        let (mut guard, key) = (session.pin(), stable(n));
        let hash = guard.hash(&key);
        guard
            .write(TABLE, hash, &key, b"v", Some(expires_at_ms))
            .unwrap();
    }
    world.clock_ms.fetch_add(20, Ordering::Relaxed);
    let (mut cursor, mut answers) = (0, 1);
    while let Some(next) = world.enumerate(KeyRange::ALL, cursor, 1000).unwrap().cursor {
        (cursor, answers) = (next, answers + 1);
    }
    assert!((4..=6).contains(&answers), "{answers}");
}

#[test]
fn what_is_not_owned_is_not_enumerated() {
    let mut world = World::new();
    world.view = view(KeyRange::new(RouteHash(100), RouteHash(200)));
    let asked = KeyRange::new(RouteHash(0), RouteHash(150));
    assert!(world.enumerate(asked, 0, 1000).is_err());
    let asked = KeyRange::new(RouteHash(100), RouteHash(300));
    let objects = world.enumerate(asked, 0, 1000).unwrap();
    assert_eq!((objects.last, objects.cursor), (RouteHash(200), None));
}
