//! Exports in steps of bytes, of objects of any size, and what a side log reports about itself.

use crate::durable::world::{TABLE, World};
use duramen_base::ids::KeyRange;
use duramen_engine::{DirtyKey, SidePlan};
use std::collections::{BTreeMap, VecDeque};

const STEP: usize = 64 << 10;
const VALUE: usize = 300_000;
const KEYS: usize = 40;

fn key(n: usize) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn write(world: &mut World, n: usize) {
    let value = vec![7; VALUE + n];
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(&key(n));
    guard.write(TABLE, hash, &key(n), &value, None).unwrap();
}

/// Counts the keys of these entries.
fn count(entries: &[u8], shown: &mut BTreeMap<Vec<u8>, u32>) {
    let mut at = 0;
    while at < entries.len() {
        let entry = duramen_format::entry::parse(&entries[at..]).unwrap();
        *shown.entry(entry.key.to_vec()).or_default() += 1;
        at += entry.padded_bytes;
    }
}

/// A step took the whole bucket, or 64 keys.
#[test]
fn a_step_has_its_bytes_or_one_object_more() {
    let mut world = World::new(1, 1);
    (0..KEYS).for_each(|n| write(&mut world, n));
    let most = STEP + VALUE + KEYS + 1_000;
    let (mut shown, mut out, mut more) = (BTreeMap::new(), Vec::new(), true);
    let mut export = world.store.ranges().export(TABLE, KeyRange::ALL);
    while more {
        more = export.step(STEP, &mut out).unwrap();
        assert!(out.len() <= most, "{} bytes", out.len());
        count(&out, &mut shown);
        out.clear();
    }
    let keys = (0..KEYS).map(|n| DirtyKey::of_object(&key(n), 1));
    let mut keys: VecDeque<DirtyKey> = keys.collect();
    while !keys.is_empty() {
        world
            .store
            .ranges()
            .export_some_keys(TABLE, &mut keys, STEP, &mut out)
            .unwrap();
        assert!((1..=most).contains(&out.len()), "{} bytes", out.len());
        count(&out, &mut shown);
        out.clear();
    }
    assert_eq!(shown.len(), KEYS);
    assert!(shown.values().all(|times| *times == 2), "{shown:?}");
}

#[test]
fn marks_tell_the_bytes_of_what_was_written() {
    let mut world = World::new(2, 1);
    let store = world.store.clone();
    let watch = store.ranges().watch(TABLE, KeyRange::ALL, 1 << 20).unwrap();
    for _ in 0..3 {
        (0..4).for_each(|n| write(&mut world, n));
    }
    let bytes = watch.marked_bytes();
    assert!((4 * VALUE..4 * VALUE + 1_000).contains(&bytes), "{bytes}");
    let mut guard = world.sessions[0].pin();
    let hash = guard.hash(&key(0));
    guard.remove(TABLE, hash, &key(0)).unwrap();
    drop(guard);
    let bytes = watch.marked_bytes();
    assert!((3 * VALUE..3 * VALUE + 1_000).contains(&bytes), "{bytes}");
    watch.take();
    assert_eq!(watch.marked_bytes(), 0);
}

#[test]
fn a_side_log_tells_what_is_dead_in_it() {
    let mut source = World::new(3, 1);
    let target = World::new(3, 1);
    let side = target.store.side_log(SidePlan::default());
    for version in 0..4 {
        write(&mut source, 0);
        let mut keys = VecDeque::from([DirtyKey::of_object(&key(0), version)]);
        let mut out = Vec::new();
        let exported = source
            .store
            .ranges()
            .export_some_keys(TABLE, &mut keys, STEP, &mut out);
        exported.unwrap();
        side.replay(&out).unwrap();
        let dead = side.report().dead_bytes as usize;
        let expected = version as usize * VALUE;
        assert!((expected..=expected + 1_000).contains(&dead), "{dead}");
    }
    side.abort().unwrap();
}
