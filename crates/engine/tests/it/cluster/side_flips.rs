//! Bits of entries flip in memory, and side logs meet them.

use crate::cluster::dead_log::{object, tombstone};
use crate::cluster::side::{complete_everything, name, used};
use crate::durable::disk::Name;
use crate::durable::world::{State, TABLE, World};
use duramen_base::ids::KeyRange;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::{Error, SideError, SidePlan};
use std::ops::Range;

/// Bits of an entry with a key of 9 bytes and a value of 7.
const ENTRY_BITS: usize = 8 * (16 + 9 + 7);

/// A name of 9 bytes, of which each bit has its own.
fn name_of(kind: &str, bit: usize) -> Name {
    name(&format!("{kind}-{bit:03}"))
}

fn theirs() -> State {
    State {
        value: b"of them".to_vec(),
        expires_at_ms: None,
    }
}

fn value_at(world: &mut World, name: &Name) -> Result<Option<Vec<u8>>, Error> {
    let guard = world.sessions[0].pin();
    let found = guard.read(TABLE, guard.hash(&name.1), &name.1)?;
    Ok(found.map(|object| object.value.to_vec()))
}

/// A bit of each entry flips that a replay meets in the index: it is newer or older than the entry
/// that comes, or a tombstone of its version comes. Returns the keys that are decided wrongly.
fn decided_wrongly(bits: Range<usize>) -> Vec<Name> {
    let mut world = World::new(12, 1);
    let kinds = ["newer", "older", "alive"];
    let names = || {
        let bits = bits.clone();
        bits.flat_map(|bit| kinds.map(|kind| (bit, kind, name_of(kind, bit))))
    };
    let mut entries = Vec::new();
    for (_, kind, name) in names() {
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&name.1);
        let mut write = || guard.write(TABLE, hash, &name.1, b"of here", None).unwrap();
        let version = [write(), write()][1].after.unwrap();
        entries.extend(match kind {
            "newer" => object(&name, version - 1, &theirs(), 0),
            "older" => object(&name, version + 1, &theirs(), 0),
            _ => tombstone(&name, version),
        });
    }
    complete_everything(&mut world);
    for (bit, _, name) in names() {
        assert!(world.store.flips().entry(TABLE, &name.1, &[bit]));
    }
    let side = world.store.side_log(SidePlan::default());
    side.replay(&entries).unwrap();
    let commit = side.commit().unwrap();
    complete_everything(&mut world);
    assert!(commit.is_durable());
    let mut wrong = Vec::new();
    for (_, kind, name) in names() {
        let expected: Option<&[u8]> = match kind {
            "newer" => Some(b"of here"),
            "older" => Some(b"of them"),
            _ => None,
        };
        if value_at(&mut world, &name).unwrap().as_deref() != expected {
            wrong.push(name);
        }
    }
    if wrong.is_empty() {
        let objects = 2 * bits.len() as u64;
        let all = world.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
        assert_eq!(all.objects, objects);
        assert_eq!(all.bytes, world.store.stats().live_bytes);
        assert_eq!(world.store.tables().objects(TABLE), objects);
    }
    wrong
}

/// sound::V1. A flipped bit of a version, a length or a key decided which of two entries stays.
#[test]
fn one_flipped_bit_of_an_entry_that_a_replay_meets_decides_nothing() {
    assert_eq!(decided_wrongly(0..ENTRY_BITS), []);
}

#[test]
fn planted_replays_that_do_not_verify_are_found() {
    let version = 8..60;
    let wrong = with_bug(Bug::RivalsUnverified, || decided_wrongly(version));
    assert!(!wrong.is_empty());
}

/// More damage may be of the same key: the side log fails, and changes nothing.
#[test]
fn a_replay_that_meets_more_damage_fails() {
    for bits in [[3, 40], [100, 101], [116, 117], [130, 200], [8, 250]] {
        let mut world = World::new(13, 1);
        let name = name_of("alive", 0);
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&name.1);
        guard.write(TABLE, hash, &name.1, b"of here", None).unwrap();
        drop(guard);
        complete_everything(&mut world);
        assert!(world.store.flips().entry(TABLE, &name.1, &bits));
        let side = world.store.side_log(SidePlan::default());
        let failed = Err(SideError::Store(Error::Damaged));
        let replayed = side.replay(&object(&name, 9, &theirs(), 0));
        assert_eq!(replayed, failed, "{bits:?}");
        side.abort().unwrap();
        assert_eq!(value_at(&mut world, &name), Err(Error::Damaged));
        assert_eq!(world.store.tables().objects(TABLE), 1);
    }
}

/// bucket::B7: a partition with a damaged slot does not grow. That was taken for a lack of memory,
/// also where the bit could be put back.
#[test]
fn a_replay_into_a_partition_with_a_damaged_slot_lacks_no_memory() {
    for (bits, expected) in [
        (&[50][..], Ok(())),
        (&[3, 50, 60][..], Err(SideError::Store(Error::Damaged))),
    ] {
        let mut world = World::new(16, 1);
        let own = name("own");
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&own.1);
        guard.write(TABLE, hash, &own.1, b"of here", None).unwrap();
        drop(guard);
        complete_everything(&mut world);
        assert!(world.store.flips().slot(TABLE, &own.1, bits));
        let mut entries = Vec::new();
        for n in 0..900 {
            entries.extend(object(&name_of("their", n), 5, &theirs(), 0));
        }
        let side = world.store.side_log(SidePlan::default());
        assert_eq!(side.replay(&entries).map(|_| ()), expected, "{bits:?}");
        side.abort().unwrap();
        assert_eq!(world.store.tables().objects(TABLE), 1, "{bits:?}");
    }
}

/// sound::V1. An abort takes entries out of the index by their tables and keys: with a flipped bit
/// a slot stayed, and pointed into memory that is used again.
#[test]
fn flipped_bits_of_a_side_log_that_is_given_up_leave_nothing() {
    for is_more in [false, true] {
        let mut world = World::new(14, 1);
        let own = name("own");
        let mut guard = world.sessions[0].pin();
        let hash = guard.hash(&own.1);
        guard.write(TABLE, hash, &own.1, b"of here", None).unwrap();
        drop(guard);
        complete_everything(&mut world);
        let before = world.store.memory_report();
        let side = world.store.side_log(SidePlan::default());
        for bit in 0..ENTRY_BITS {
            let entry = object(&name_of("their", bit), 5, &theirs(), 0);
            side.replay(&entry).unwrap();
        }
        for bit in 0..ENTRY_BITS {
            let name = name_of("their", bit);
            let bits = [bit, (bit + 77) % ENTRY_BITS];
            let more = is_more && bit % 50 == 10;
            let bits = if more { &bits[..] } else { &bits[..1] };
            assert!(world.store.flips().entry(TABLE, &name.1, bits));
        }
        side.abort().unwrap();
        assert_eq!(world.store.tables().objects(TABLE), 1, "{is_more}");
        let found = value_at(&mut world, &own).unwrap();
        assert_eq!(found.as_deref(), Some(&b"of here"[..]));
        for bit in 0..ENTRY_BITS {
            let found = value_at(&mut world, &name_of("their", bit));
            assert_eq!(found, Ok(None), "{is_more}, bit {bit}");
        }
        world.store.clean_step(1 << 20);
        let after = world.store.memory_report();
        assert_eq!(after.live_bytes, before.live_bytes, "{is_more}");
        assert_eq!(used(&after), used(&before), "{is_more}");
    }
}

/// bucket::B7. An abort passed over a damaged slot: it stayed for ever, as its entry was gone.
#[test]
fn flipped_bits_of_slots_of_a_side_log_that_is_given_up_leave_nothing() {
    let mut world = World::new(17, 1);
    for bit in 0..64 {
        let name = name_of("their", bit);
        let side = world.store.side_log(SidePlan::default());
        side.replay(&object(&name, 5, &theirs(), 0)).unwrap();
        assert!(world.store.flips().slot(TABLE, &name.1, &[bit]));
        side.abort().unwrap();
        assert_eq!(world.store.tables().objects(TABLE), 0, "bit {bit}");
        assert_eq!(value_at(&mut world, &name), Ok(None), "bit {bit}");
    }
    let stats = world.store.stats();
    assert_eq!((stats.flipped_bits, stats.damaged_entries), (64, 0));
}

#[test]
fn planted_aborts_that_do_not_verify_are_found() {
    let left = |bug: Option<Bug>| {
        let world = World::new(15, 1);
        let side = world.store.side_log(SidePlan::default());
        let name = name_of("their", 0);
        side.replay(&object(&name, 5, &theirs(), 0)).unwrap();
        let in_key = 8 * 16 + 3;
        assert!(world.store.flips().entry(TABLE, &name.1, &[in_key]));
        match bug {
            Some(bug) => with_bug(bug, || side.abort()).unwrap(),
            None => side.abort().unwrap(),
        }
        world.store.tables().objects(TABLE)
    };
    assert_eq!(left(None), 0);
    assert_eq!(left(Some(Bug::AbortsUnverified)), 1);
}
