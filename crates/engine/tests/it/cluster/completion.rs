//! Completion records: docs/traps.md, scenarios 29 to 31, as far as they concern the log.

use crate::cluster::dead_log::object;
use crate::durable::disk::Name;
use crate::durable::world::{State, TABLE, World, hook_up, load, start};
use duramen_base::ids::{ClientId, RouteHash, RpcId};
use duramen_base::test_tier;
use duramen_engine::{Completions, Error, LogOptions, SidePlan};
use duramen_format::entry::Completion;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A simple tracker: answers by client and request, and the last acknowledged request.
#[derive(Default)]
struct Tracker {
    met: Mutex<BTreeMap<(u64, u64), Vec<u8>>>,
    /// Requests up to this one are acknowledged.
    acked: AtomicU64,
}

impl Completions for Tracker {
    fn met(&self, record: &Completion<'_>) {
        let id = (record.client.0, record.rpc.0);
        let before = self.met.lock().unwrap().insert(id, record.result.to_vec());
        assert!(before.is_none_or(|before| before == record.result));
    }

    fn keep(&self, record: &Completion<'_>) -> bool {
        record.rpc.0 > self.acked.load(Ordering::Relaxed)
    }
}

fn record(rpc: u64, result: &[u8]) -> Completion<'_> {
    Completion {
        table: TABLE.0,
        route: RouteHash(rpc << 32),
        client: ClientId(7),
        rpc: RpcId(rpc),
        ack: RpcId(0),
        result,
    }
}

/// A write that takes effect once: the value and the answer, in one group.
fn write_once(world: &mut World, rpc: u64, key: &str, bytes: usize) -> Result<(), Error> {
    let value = world.value(bytes);
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(key.as_bytes());
    guard.lock_keys(&[(TABLE, hash)])?;
    guard.reserve(bytes + 1000)?;
    guard.write(TABLE, hash, key.as_bytes(), &value, None)?;
    guard.complete(&record(rpc, &rpc.to_le_bytes()))?;
    guard.unlock_keys();
    let position = guard.order().take_position();
    drop(guard);
    let name: Name = (TABLE.0, key.as_bytes().to_vec());
    let state = State {
        value,
        expires_at_ms: None,
    };
    let place = world.push(&name, Some(state));
    world.reply(position, vec![(name, place)]);
    Ok(())
}

/// Starts again from the disk; returns the tracker that was shown the loaded records.
fn restart(world: &mut World) -> Arc<Tracker> {
    let mut disk = world.consumer.lock().unwrap().disk.clone();
    disk.restart();
    let mut log = LogOptions::new(7);
    log.first_segment = disk.segments.keys().next_back().copied().unwrap_or(0) + 1;
    log.version_floor = disk.version_floor + 1;
    let (store, consumer) = start(1, 2, &world.clock, log);
    let tracker = Arc::<Tracker>::default();
    store.set_completions(tracker.clone());
    world.sessions.clear();
    load(&store, &disk, &mut world.random);
    hook_up(&store, &consumer);
    consumer.lock().unwrap().disk = disk;
    world.sessions = (0..2).map(|_| store.session().unwrap()).collect();
    (world.store, world.consumer) = (store, consumer);
    tracker
}

fn clean(world: &mut World, steps: u64) {
    let store = world.store.clone();
    for _ in 0..steps {
        store.clean_step(1 << 20);
        world.consumer.lock().unwrap().complete_everything(&store);
    }
}

/// Scenario 31: through cleaning, a crash, a side log, and another crash the answers stay, until
/// they are acknowledged.
#[test]
fn scenario_31_answers_stay_until_they_are_acknowledged() {
    let mut world = World::new(1, 2);
    let tracker = Arc::<Tracker>::default();
    world.store.set_completions(tracker.clone());
    // Every object is soon replaced, so that the segments are nearly empty except for the records.
    for rpc in 1..=300 {
        write_once(&mut world, rpc, &format!("key-{}", rpc % 3), 60_000).unwrap();
        if rpc % 10 == 0 {
            clean(&mut world, 2);
        }
    }
    clean(&mut world, 100);
    assert!(world.consumer.lock().unwrap().swaps > 0);
    let all: BTreeMap<(u64, u64), Vec<u8>> = (1..=300u64)
        .map(|rpc| ((7, rpc), rpc.to_le_bytes().to_vec()))
        .collect();
    let tracker = restart(&mut world);
    assert_eq!(
        *tracker.met.lock().unwrap(),
        all,
        "after cleaning and a crash"
    );
    tracker.acked.store(200, Ordering::Relaxed);
    for n in 0..100 {
        write_once(&mut world, 301 + n, &format!("key-{}", n % 3), 60_000).unwrap();
        clean(&mut world, 2);
    }
    // Segments that are not cleaned for another reason are searched for droppable records.
    for n in 0..400 {
        write_once(&mut world, 401 + n, "key-1", 60_000).unwrap();
        clean(&mut world, 2);
    }
    let tracker = restart(&mut world);
    let met = tracker.met.lock().unwrap().clone();
    assert!(
        (201..=800).all(|rpc| met.contains_key(&(7, rpc))),
        "unacknowledged"
    );
    let left = met.range(..(7, 201)).count();
    assert!(
        left < 150,
        "{left} of 200 acknowledged records are still there"
    );
    let report = world.store.memory_report();
    assert!(report.live_bytes >= 600 * 48);
}

/// A record and its effect both exist or neither, whichever commits a crash leaves.
#[test]
fn scenario_29_a_crash_leaves_the_effect_and_its_record_or_neither() {
    for seed in 0..test_tier::runs(10, 30) {
        let mut world = World::new(seed, 2);
        for rpc in 1..=60u64 {
            write_once(&mut world, rpc, &format!("key-{rpc}"), 90_000).unwrap();
            match world.random.below(3) {
                0 => world.collect(),
                1 => world.complete_one(),
                _ => {}
            }
        }
        let disk = {
            let consumer = world.consumer.lock().unwrap();
            consumer.crash(&mut world.random, false)
        };
        let (mut keys, mut records) = (Vec::new(), Vec::new());
        for id in &disk.listed {
            let (bytes, _) = &disk.segments[id];
            let mut at = duramen_format::segment::HEADER_BYTES.min(bytes.len());
            while at < bytes.len() {
                let entry = duramen_format::entry::parse(&bytes[at..]).unwrap();
                match Completion::of(&entry) {
                    Some(record) => records.push(format!("key-{}", record.rpc).into_bytes()),
                    None => keys.push(entry.key.to_vec()),
                }
                at += entry.padded_bytes;
            }
        }
        assert_eq!(keys, records);
    }
}

#[test]
fn a_side_log_takes_records_over_once() {
    let mut world = World::new(2, 1);
    let tracker = Arc::<Tracker>::default();
    world.store.set_completions(tracker.clone());
    let mut bytes = Vec::new();
    for rpc in 1..=20u64 {
        let answer = [rpc as u8; 5];
        let record = record(rpc, &answer);
        let at = bytes.len();
        bytes.resize(at + record.padded_bytes(), 0);
        record.write_to(&mut bytes[at..]);
    }
    let state = State {
        value: b"v".to_vec(),
        expires_at_ms: None,
    };
    bytes.extend(object(&(TABLE.0, b"k".to_vec()), 3, &state, 0));
    let given_up = world.store.side_log(SidePlan::default());
    given_up.replay(&bytes).unwrap();
    drop(given_up);
    let side = world.store.side_log(SidePlan {
        floors: vec![(TABLE, 3)],
        version_floor: 0,
    });
    side.replay(&bytes).unwrap();
    let kept = side.report().kept_bytes;
    side.replay(&bytes).unwrap();
    assert_eq!(side.report().kept_bytes, kept, "nothing is taken twice");
    side.commit().unwrap();
    let store = world.store.clone();
    world.consumer.lock().unwrap().complete_everything(&store);
    assert_eq!(tracker.met.lock().unwrap().len(), 20);
    drop(store);
    let tracker = restart(&mut world);
    assert_eq!(tracker.met.lock().unwrap().len(), 20);
    assert_eq!(tracker.met.lock().unwrap()[&(7, 9)], [9; 5]);
}

#[test]
#[should_panic(expected = "a completion belongs to a group")]
fn a_record_alone_is_a_mistake() {
    let mut world = World::new(2, 1);
    let _ = world.sessions[0].pin().complete(&record(1, b""));
}
