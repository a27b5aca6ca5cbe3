//! Parts of large collections: entries with an index of their own beside that of their table. Here
//! they are written one by one, as no collection does. They are cleared and dropped with their
//! table, loaded, moved and purged by their home, and no objects of the table.

use crate::cluster::cold::{Copied, Tiered, alive, take_over};
use crate::cluster::dead_log::{object, tombstone};
use crate::durable::disk::{Name, replay};
use crate::durable::world::{State, TABLE, World, load, start};
use crate::flash::device::MIB;
use duramen_base::ids::{Home, KeyRange, PartKey, RouteHash, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_base::random::Random;
use duramen_engine::{Error, Guard, LogOptions, Options, SidePlan, Store, TableId};
use duramen_format::hash;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PARTS: TableId = TABLE.parts();

/// The `n`th part, in a home of this slot.
fn part(slot: u16, n: u64) -> PartKey {
    Home::draw(slot, &mut || (n / 10).wrapping_mul(0x9e37_79b9_7f4a_7c15)).key(n % 10 + 1)
}

fn put(guard: &mut Guard<'_>, table: TableId, key: &[u8], value: &[u8]) {
    let hash = guard.hash(key);
    guard.write(table, hash, key, value, None).unwrap();
}

fn get(guard: &Guard<'_>, table: TableId, key: &[u8]) -> Option<Vec<u8>> {
    let found = guard.read(table, guard.hash(key), key).unwrap();
    found.map(|object| object.value.to_vec())
}

fn fill(store: &Arc<Store>, table: TableId, count: u64) {
    let mut session = store.session().unwrap();
    session.pin().make_parts(table).unwrap();
    for n in 0..count {
        let mut guard = session.pin();
        put(&mut guard, table, format!("key-{n}").as_bytes(), b"object");
        let key = part((n % 16_384) as u16, n);
        put(&mut guard, table.parts(), key.as_bytes(), b"\0part");
    }
}

fn store(cleaners: usize) -> Arc<Store> {
    let options = Options {
        huge_pages: false,
        heads: 1,
        cleaners,
        ..Options::new(64 << 20)
    };
    Store::new(options).unwrap()
}

#[test]
fn parts_are_no_objects_of_their_table() {
    let store = store(0);
    let mut session = store.session().unwrap();
    let key = part(5, 5);
    let mut guard = session.pin();
    let hash = guard.hash(key.as_bytes());
    let early = guard.write(PARTS, hash, key.as_bytes(), b"\0", None);
    assert_eq!(early.map(drop), Err(Error::NoSuchTable(PARTS)));
    drop(guard);
    fill(&store, TABLE, 100);
    let mut guard = session.pin();
    put(&mut guard, TABLE, key.as_bytes(), b"not the part");
    assert_eq!(get(&guard, PARTS, key.as_bytes()).unwrap(), b"\0part");
    assert_eq!(get(&guard, TABLE, key.as_bytes()).unwrap(), b"not the part");
    assert_eq!(
        (store.tables().objects(TABLE), store.tables().objects(PARTS)),
        (101, 100)
    );
    let (mut shown, mut cursor) = (0, Some(0));
    while let Some(at) = cursor {
        let scanned = guard
            .walk()
            .scan_range(TABLE, &KeyRange::ALL, at, 10, |_| shown += 1);
        cursor = scanned.unwrap();
    }
    assert_eq!(shown, 101);
    guard.remove(PARTS, hash, key.as_bytes()).unwrap();
    assert_eq!(get(&guard, PARTS, key.as_bytes()), None);
    drop(guard);
    assert_eq!(
        (store.tables().objects(TABLE), store.tables().objects(PARTS)),
        (101, 99)
    );
    assert_eq!(store.tables().list().len(), 1);
    // They are no table of their own (table::T3, table::T4).
    let gone = Err(Error::NoSuchTable(PARTS));
    assert_eq!(store.tables().clear(PARTS), gone);
    assert_eq!(store.tables().drop(PARTS), gone);
    let adopted = store.tables().adopt(TableId(7).parts(), "parts", None);
    assert!(matches!(adopted, Err(Error::TooManyTables { .. })));
}

/// writes::N3
#[test]
fn no_listener_hears_of_parts() {
    let store = store(0);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    store.listeners().when_written(move |writes| {
        let keys = writes.iter().map(|write| (write.table, write.key.clone()));
        told.lock().unwrap().extend(keys);
    });
    store.listeners().want_writes(true);
    fill(&store, TABLE, 2);
    let mut session = store.session().unwrap();
    let (key, mut guard) = (part(0, 0), session.pin());
    let hash = guard.hash(key.as_bytes());
    guard.remove(PARTS, hash, key.as_bytes()).unwrap();
    drop(guard);
    let keys = [b"key-0", b"key-1"].map(|key| (TABLE, key[..].into()));
    assert_eq!(*heard.lock().unwrap(), keys);
}

/// Clears a table with parts. `others`: so many entries are in another table.
fn clear(cleaners: usize, count: u64, others: u64) -> Result<(), String> {
    let store = store(cleaners);
    let other = store.tables().create("other").unwrap();
    if others > 0 {
        fill(&store, other, others);
    }
    let before = store.stats().live_bytes;
    fill(&store, TABLE, count);
    store.tables().clear(TABLE).unwrap();
    let left = (store.tables().objects(TABLE), store.tables().objects(PARTS));
    if left != (0, 0) {
        return Err(format!("{left:?} are left"));
    }
    let began = Instant::now();
    while store.stats().live_bytes != before {
        if cleaners == 0 || began.elapsed() > Duration::from_secs(60) {
            let live = store.stats().live_bytes;
            return Err(format!("{live} bytes live, not {before}"));
        }
        std::thread::yield_now();
    }
    let mut session = store.session().unwrap();
    let mut guard = session.pin();
    for n in 0..count.min(100) {
        let key = part((n % 16_384) as u16, n);
        if get(&guard, PARTS, key.as_bytes()).is_some() {
            return Err(format!("part {key} is there"));
        }
    }
    put(&mut guard, PARTS, part(5, 3).as_bytes(), b"\0again");
    drop(guard);
    assert_eq!(store.tables().objects(other.parts()), others);
    assert_eq!(store.tables().objects(PARTS), 1);
    Ok(())
}

#[test]
fn a_clear_takes_the_parts_too() {
    for cleaners in [0, 1] {
        for (count, others) in [(100, 0), (100, 100), (10_000, 100)] {
            clear(cleaners, count, others).unwrap();
        }
    }
}

#[test]
fn a_clear_that_leaves_the_parts_is_found() {
    for others in [0, 100] {
        assert!(with_bug(Bug::ClearLeavesParts, || clear(0, 100, others)).is_err());
    }
}

#[test]
fn a_dropped_table_gives_back_both_indexes() {
    let store = store(0);
    let before = store.memory_report().overhead_bytes;
    for _ in 0..3 {
        let table = store.tables().create("a").unwrap();
        fill(&store, table, 1000);
        assert!(store.memory_report().overhead_bytes > before);
        store.tables().drop(table).unwrap();
        assert_eq!(store.tables().objects(table.parts()), 0);
        let mut session = store.session().unwrap();
        let made = session.pin().make_parts(table);
        assert_eq!(made, Err(Error::NoSuchTable(table.parts())));
        assert_eq!(store.memory_report().overhead_bytes, before);
    }
}

/// Loads a store from all that is durable, and compares it with the plain replay.
fn check_restart(world: &mut World) {
    let mut disk = world.consumer.lock().unwrap().disk.clone();
    disk.restart();
    let (expected, _) = replay(&disk);
    let highest = disk.segments.keys().next_back().copied().unwrap_or(0);
    let mut log = LogOptions::new(7);
    log.first_segment = highest + 1;
    log.version_floor = disk.version_floor + 1;
    let (store, _) = start(3, 1, &world.clock, log);
    load(&store, &disk, &mut world.random);
    let mut session = store.session().unwrap();
    let guard = session.pin();
    for ((table, key), found) in &expected {
        let (table, hash) = (TableId(*table), guard.hash(key));
        let loaded = guard.read(table, hash, key).unwrap().expect("an entry");
        assert_eq!(
            (loaded.value, loaded.version),
            (&found.value[..], found.version)
        );
    }
    drop(guard);
    for table in [TABLE, PARTS] {
        let names = expected.keys().filter(|name| name.0 == table.0);
        assert_eq!(store.tables().objects(table), names.count() as u64);
    }
}

fn commit(world: &World) {
    let store = world.store.clone();
    world.consumer.lock().unwrap().complete_everything(&store);
}

#[test]
fn parts_are_loaded_as_they_were() {
    let mut world = World::new(3, 1);
    fill(&world.store, TABLE, 500);
    let mut session = world.store.session().unwrap();
    for n in 0..500 {
        let (key, mut guard) = (part(n as u16, n), session.pin());
        let hash = guard.hash(key.as_bytes());
        match n % 5 {
            0 => put(&mut guard, PARTS, key.as_bytes(), b"\0newer"),
            1 => drop(guard.remove(PARTS, hash, key.as_bytes()).unwrap()),
            _ => {}
        }
    }
    commit(&world);
    check_restart(&mut world);
    world.store.tables().clear(TABLE).unwrap();
    commit(&world);
    check_restart(&mut world); // no part from before the clear
    fill(&world.store, TABLE, 50);
    commit(&world);
    check_restart(&mut world);
    let consumer = world.consumer.lock().unwrap();
    assert_eq!(replay(&consumer.disk).0.len(), 100);
}

/// If all parts of a table are lost, their tombstones keep older versions away.
#[test]
fn a_lost_part_is_buried_where_none_is_left() {
    let world = World::new(6, 1);
    let log = world.store.log().unwrap();
    log.swaps().announce_lost(&[SegmentId(77)], &[]);
    let mut session = world.store.session().unwrap();
    let (key, mut guard) = (part(5, 5), session.pin());
    let hash = guard.hash(key.as_bytes());
    let lost = (SegmentId(77), (5, true));
    guard
        .bury_lost(PARTS, (hash, key.as_bytes()), lost.0, lost.1)
        .unwrap();
    assert_eq!(get(&guard, PARTS, key.as_bytes()), None);
    drop(guard);
    commit(&world);
    let name = (PARTS.0, key.as_bytes().to_vec());
    let told = world.consumer.lock().unwrap().disk.tell(&name);
    assert!(told.contains("Tombstone version 5 victim 77"), "{told}");
}

fn range_of(slot: u16) -> KeyRange {
    KeyRange::new(
        RouteHash::first_of_slot(slot),
        RouteHash::last_of_slot(slot),
    )
}

type Content = BTreeMap<Name, Vec<u8>>;

/// Changes parts of the slot that were exported, and objects with the same keys elsewhere.
fn change_beside(source: &World, slot: u16, expected: &mut Content) {
    let mut session = source.store.session().unwrap();
    let mut guard = session.pin();
    let [changed, removed] = [1, 4].map(|n| part(slot, n));
    put(&mut guard, PARTS, changed.as_bytes(), b"\0newer");
    let hash = guard.hash(removed.as_bytes());
    guard.remove(PARTS, hash, removed.as_bytes()).unwrap();
    put(&mut guard, TABLE, removed.as_bytes(), b"of another slot");
    let name = |part: PartKey| (PARTS.0, part.as_bytes().to_vec());
    expected.insert(name(changed), b"\0newer".to_vec());
    expected.remove(&name(removed));
}

/// Moves one slot: returns what the target has, and what it should have.
fn move_slot(slot: u16) -> (Content, Content) {
    let (source, target) = (World::new(1, 1), World::new(1, 1));
    let mut expected = Content::new();
    let mut session = source.store.session().unwrap();
    session.pin().make_parts(TABLE).unwrap();
    let mut guard = session.pin();
    for n in 0..300 {
        let key = part(slot - 1 + (n % 3) as u16, n);
        let value = format!("\0part {n}").into_bytes();
        put(&mut guard, PARTS, key.as_bytes(), &value);
        if n % 3 == 1 {
            expected.insert((PARTS.0, key.as_bytes().to_vec()), value);
        }
    }
    let keys = (0..).map(|n| format!("key-{n}").into_bytes());
    for key in keys.filter(|key| hash::slot(key) == slot).take(2) {
        put(&mut guard, TABLE, &key, b"object");
        expected.insert((TABLE.0, key), b"object".to_vec());
    }
    drop(guard);
    commit(&source);
    let watch = source.store.ranges().watch(TABLE, range_of(slot), 1 << 20);
    let watch = watch.unwrap();
    let side = target.store.side_log(SidePlan::default());
    let mut export = source.store.ranges().export(TABLE, range_of(slot));
    let (mut out, mut more) = (Vec::new(), true);
    while more {
        more = export.step(2000, &mut out).unwrap();
        side.replay(&out).unwrap();
        out.clear();
    }
    change_beside(&source, slot, &mut expected);
    let dirty = watch.take();
    assert!(!dirty.start_again);
    let exported = source
        .store
        .ranges()
        .export_keys(TABLE, &dirty.keys, &mut out);
    exported.unwrap();
    side.replay(&out).unwrap();
    side.raise_version_floor(source.store.version_floor());
    let done = side.commit().unwrap();
    commit(&target);
    assert!(done.is_durable());
    let (found, _) = replay(&target.consumer.lock().unwrap().disk);
    let found = found.into_iter();
    let found: Content = found.map(|(name, state)| (name, state.value)).collect();
    let mut there = target.store.session().unwrap();
    let guard = there.pin();
    for ((table, key), value) in &found {
        let shown = get(&guard, TableId(*table), key);
        assert_eq!(shown.as_ref(), Some(value));
    }
    drop(guard);
    let parts = found.keys().filter(|name| name.0 == PARTS.0).count() as u64;
    assert_eq!(target.store.tables().objects(PARTS), parts);
    (found, expected)
}

#[test]
fn parts_move_with_the_slot_of_their_home() {
    let (found, expected) = move_slot(77);
    assert_eq!(expected.len(), 101);
    assert!(found == expected);
}

#[test]
fn parts_that_move_by_their_key_are_found() {
    let (found, expected) = with_bug(Bug::PartRoutesByKey, || move_slot(77));
    assert!(found != expected);
}

#[test]
fn parts_are_counted_and_purged_with_their_range() {
    let world = World::new(2, 1);
    fill(&world.store, TABLE, 3000);
    let all = world.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(all.objects, 3000, "parts are no objects");
    assert_eq!(all.bytes, world.store.stats().live_bytes);
    let statistics = world.store.ranges().statistics(TABLE).unwrap().parts;
    let entries: u64 = statistics.iter().map(|part| part.entries).sum();
    let bytes: u64 = statistics.iter().map(|part| part.bytes).sum();
    assert_eq!((entries, bytes), (6000, all.bytes));
    // 64 slots, of which each has one part.
    let range = KeyRange::new(RouteHash::first_of_slot(64), RouteHash::last_of_slot(127));
    let inside = world.store.ranges().count(TABLE, range).unwrap();
    assert_eq!(statistics[1].entries, inside.objects + 64);
    let purged = world.store.ranges().purge(TABLE, range).unwrap();
    assert_eq!(
        (purged.objects, purged.bytes),
        (inside.objects, inside.bytes)
    );
    assert_eq!(world.store.tables().objects(PARTS), 3000 - 64);
    let left = world.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(left.bytes, all.bytes - inside.bytes);
    world.store.ranges().purge(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(
        (
            world.store.tables().objects(TABLE),
            world.store.tables().objects(PARTS)
        ),
        (0, 0)
    );
}

/// A side log's floors are those of whole tables, and it makes the index of parts itself.
#[test]
fn a_side_log_takes_parts_from_its_floor_on() {
    let target = World::new(4, 1);
    let plan = SidePlan {
        floors: vec![(TABLE, 10)],
        ..SidePlan::default()
    };
    let side = target.store.side_log(plan);
    let state = |value: &[u8]| State {
        value: value.to_vec(),
        expires_at_ms: None,
    };
    let name = |n: u64| (PARTS.0, part(9, n).as_bytes().to_vec());
    let entries = [
        object(&name(0), 9, &state(b"\0too old"), 0),
        object(&name(1), 10, &state(b"\0kept"), 0),
        object(&name(2), 11, &state(b"\0removed"), 0),
        tombstone(&name(2), 11),
    ];
    side.replay(&entries.concat()).unwrap();
    side.raise_version_floor(20);
    side.commit().unwrap();
    commit(&target);
    assert_eq!(target.store.tables().objects(PARTS), 1);
    let mut session = target.store.session().unwrap();
    assert_eq!(get(&session.pin(), PARTS, &name(1).1).unwrap(), b"\0kept");
}

/// range::G5: a segment on flash holds objects and parts, and is read once for both.
#[test]
fn an_export_from_flash_leaves_no_part_out() {
    const COUNT: u64 = 8000;
    let mut tiered = Tiered::new(6 * MIB, 64 * MIB, 0);
    let value = |n: u64| [&[0u8][..], &n.to_le_bytes(), &[7; 900]].concat();
    tiered.session.pin().make_parts(TABLE).unwrap();
    let mut expected = BTreeMap::new();
    for n in 0..COUNT {
        let (key, mut guard) = (part((n % 16_384) as u16, n), tiered.session.pin());
        let name = format!("key-{n}").into_bytes();
        put(&mut guard, TABLE, &name, &value(n));
        put(&mut guard, PARTS, key.as_bytes(), &value(n));
        expected.insert(name, value(n));
        expected.insert(key.as_bytes().to_vec(), value(n));
    }
    let flash = tiered.store.stats().flash;
    assert!(
        flash.live_bytes.max(flash.used_bytes) > 4 * MIB,
        "{flash:?}"
    );
    let all = tiered.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(
        (all.objects, all.bytes),
        (COUNT, tiered.store.stats().live_bytes)
    );
    let mut export = tiered.store.ranges().export(TABLE, KeyRange::ALL);
    let (mut copied, mut out, mut more) = (Copied::new(), Vec::new(), true);
    while more {
        more = export.step(20_000, &mut out).unwrap();
        take_over(&mut copied, &mut out);
    }
    assert!(alive(copied) == expected);
    tiered.store.ranges().purge(TABLE, KeyRange::ALL).unwrap();
    assert_eq!(
        (
            tiered.store.tables().objects(TABLE),
            tiered.store.tables().objects(PARTS)
        ),
        (0, 0)
    );
}

#[test]
fn random_parts_survive_restarts() {
    let mut random = Random::new(11);
    let mut world = World::new(11, 2);
    world
        .store
        .session()
        .unwrap()
        .pin()
        .make_parts(TABLE)
        .unwrap();
    for round in 0..20 {
        for _ in 0..120 {
            let n = random.below(60);
            let session = random.below(2) as usize;
            let (key, mut guard) = (part(n as u16, n), world.sessions[session].pin());
            let hash = guard.hash(key.as_bytes());
            match random.below(4) {
                0 => drop(guard.remove(PARTS, hash, key.as_bytes()).unwrap()),
                1 => put(&mut guard, TABLE, format!("k{n}").as_bytes(), &[1; 12_000]),
                _ => put(&mut guard, PARTS, key.as_bytes(), &[0; 9000]),
            }
        }
        if round % 7 == 6 {
            world.store.tables().clear(TABLE).unwrap();
        }
        for _ in 0..50 {
            world.clean();
        }
        commit(&world);
        check_restart(&mut world);
    }
}
