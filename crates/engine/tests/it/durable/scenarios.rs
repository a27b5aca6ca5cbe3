//! Scenarios of docs/traps.md, "Scenarios", by name, and the details of the write path.

use crate::durable::disk::{Name, replay};
use crate::durable::threads;
use crate::durable::world::{State, TABLE, World};
use duramen_base::ids::Level;
use duramen_engine::{
    Collected, Condition, Decision, Error, Guard, LogOptions, Options, Outcome, Position, Room,
    Store, TableId,
};

fn name(key: &str) -> Name {
    (TABLE.0, key.as_bytes().to_vec())
}

/// Runs one step of a session, and returns its result with its position.
fn step<T>(
    world: &mut World,
    session: usize,
    work: impl FnOnce(&mut Guard<'_>) -> T,
) -> (T, Position) {
    let mut guard = world.sessions[session].pin();
    let result = work(&mut guard);
    let position = guard.order().take_position();
    assert!(!guard.order().has_position());
    (result, position)
}

fn put(world: &mut World, session: usize, key: &str, value: &[u8]) -> Outcome {
    let (outcome, position) = step(world, session, |guard| {
        let hash = guard.hash(key.as_bytes());
        guard
            .write(TABLE, hash, key.as_bytes(), value, None)
            .unwrap()
    });
    let state = State {
        value: value.to_vec(),
        expires_at_ms: None,
    };
    let place = world.push(&name(key), Some(state));
    world.reply(position, vec![(name(key), place)]);
    outcome
}

fn remove(world: &mut World, session: usize, key: &str) -> (Outcome, Position) {
    let removed = step(world, session, |guard| {
        let hash = guard.hash(key.as_bytes());
        guard.remove(TABLE, hash, key.as_bytes()).unwrap()
    });
    world.push(&name(key), None);
    removed
}

fn get(world: &mut World, session: usize, key: &str) -> (Option<Vec<u8>>, Position) {
    step(world, session, |guard| {
        let hash = guard.hash(key.as_bytes());
        let found = guard.read(TABLE, hash, key.as_bytes()).unwrap();
        found.map(|object| object.value.to_vec())
    })
}

fn complete_everything(world: &mut World) {
    let store = world.store.clone();
    world.consumer.lock().unwrap().complete_everything(&store);
    world.send_replies();
}

fn reached(world: &World, position: &Position) -> Level {
    world.store.log().unwrap().reached(position)
}

#[test]
fn scenario_09_an_overwrite_that_is_lost_leaves_what_it_replaced() {
    let mut world = World::new(9, 2);
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    for key in &keys {
        put(&mut world, 0, key, &vec![1; 40_000]);
    }
    complete_everything(&mut world);
    // More than a segment of data, so that the head rolls; none of it is committed.
    for key in &keys {
        put(&mut world, 0, key, &vec![2; 20_000]);
    }
    let mut cleaned = 0;
    let store = world.store.clone();
    for _ in 0..400 {
        cleaned += u32::from(store.clean_step(1 << 20));
        let log = store.log().unwrap();
        if let Some(ready) = log.next_survivor() {
            world
                .consumer
                .lock()
                .unwrap()
                .disk
                .write_survivor(ready.segment, ready.bytes);
            log.swaps().survivor_durable(ready.segment);
        }
        assert_eq!(
            log.next_swap(),
            None,
            "what killed the old versions is not durable"
        );
    }
    assert!(cleaned > 0);
    world.crash().unwrap();
    complete_everything(&mut world);
    world.restart().unwrap();
    assert_eq!(get(&mut world, 0, "key-7").0, Some(vec![2; 20_000]));
}

#[test]
fn scenario_10_replies_wait_for_what_they_saw() {
    let mut world = World::new(10, 2);
    put(&mut world, 0, "removed", b"old");
    put(&mut world, 0, "other", b"old");
    complete_everything(&mut world);
    for key in ["removed", "other"] {
        assert!(get(&mut world, 1, key).1.is_none(), "durable by now");
    }
    assert!(get(&mut world, 1, "never").1.is_none());
    put(&mut world, 0, "written", b"new");
    remove(&mut world, 0, "removed");
    let (found, hit) = get(&mut world, 1, "written");
    assert_eq!(found.as_deref(), Some(&b"new"[..]));
    let (found, miss) = get(&mut world, 1, "removed");
    assert_eq!(found, None);
    let conditional = |key: &'static str, condition| {
        move |guard: &mut Guard<'_>| {
            let hash = guard.hash(key.as_bytes());
            guard.conditional_write(TABLE, hash, key.as_bytes(), b"x", None, condition)
        }
    };
    let (failed, on_hit) = step(&mut world, 1, conditional("written", Condition::Absent));
    assert!(matches!(failed, Err(Error::ConditionFailed { .. })));
    let (failed, on_miss) = step(&mut world, 1, conditional("removed", Condition::Present));
    assert_eq!(failed, Err(Error::ConditionFailed { current: None }));
    let (unchanged, kept) = step(&mut world, 1, |guard| {
        let hash = guard.hash(b"written");
        guard.update(TABLE, hash, b"written", |_, _| Decision::Keep)
    });
    assert!(unchanged.is_ok());
    let (_, stamped) = step(&mut world, 1, |guard| {
        let hash = guard.hash(b"removed");
        guard.stamp(TABLE, hash, b"removed").unwrap()
    });
    let (_, scanned) = step(&mut world, 1, |guard| {
        guard.walk().scan(TABLE, 0, 1 << 20, |_| {}).unwrap()
    });
    let (_, nothing_removed) = remove(&mut world, 1, "removed");
    let appended = world.store.log().expect("a log").appended();
    let (_, everything) = step(&mut world, 1, |guard| guard.order().observe(&appended));
    let all = [
        hit,
        miss,
        on_hit,
        on_miss,
        kept,
        stamped,
        scanned,
        nothing_removed,
        everything,
    ];
    for (n, position) in all.iter().enumerate() {
        assert!(!position.is_none(), "reply {n} saw what can be lost");
        assert_eq!(position.level(), Level::Synced);
        assert_eq!(reached(&world, position), Level::Memory, "reply {n}");
    }
    let log_of = world.store.clone();
    let log = log_of.log().unwrap();
    let mut collected = Collected::default();
    log.collect(&mut collected);
    log.complete(&mut collected, Level::Buffered);
    assert!(all.iter().all(|p| reached(&world, p) == Level::Buffered));
    assert!(!get(&mut world, 1, "written").1.is_none(), "not yet synced");
    log.complete_all(Level::Synced);
    assert!(all.iter().all(|p| reached(&world, p) == Level::Synced));
    for key in ["written", "removed"] {
        assert!(get(&mut world, 1, key).1.is_none());
    }
}

#[test]
fn scenario_11_heads_that_stall_independently_keep_the_order_of_a_key() {
    let mut world = World::new(11, 2);
    let increment = |world: &mut World, session: usize| {
        let (done, position) = step(world, session, |guard| {
            let hash = guard.hash(b"sum");
            guard.increment(TABLE, hash, b"sum", 1).unwrap()
        });
        let state = State {
            value: done.value.to_string().into_bytes(),
            expires_at_ms: None,
        };
        let place = world.push(&name("sum"), Some(state));
        world.reply(position, vec![(name("sum"), place)]);
    };
    for n in 0..60 {
        increment(&mut world, n % 2);
        if n % 7 == 3 {
            world.collect();
        }
        // Each head keeps another prefix of the collected data; no number may be there without
        // those before it.
        for _ in 0..8 {
            let disk = {
                let consumer = world.consumer.lock().unwrap();
                consumer.crash(&mut world.random, false)
            };
            assert_eq!(disk.gap(&name("sum")), None);
        }
        if n % 17 == 16 {
            world.complete_one();
        }
    }
    complete_everything(&mut world);
    let (recovered, _) = replay(&world.consumer.lock().unwrap().disk);
    assert_eq!(recovered[&name("sum")].value, b"60");
}

#[test]
fn scenario_17_writes_race_with_rolls_and_cleaning() {
    threads::run(17, 1.5, true).unwrap();
}

#[test]
fn scenario_18_a_key_made_again_after_a_crash_has_a_greater_version() {
    let mut world = World::new(18, 2);
    let mut last = 0;
    for life in 0..6 {
        for n in 0..20 {
            let outcome = put(&mut world, n % 2, "key", &vec![life; 30_000]);
            assert!(outcome.after > Some(last), "life {life}");
            last = outcome.after.unwrap();
            if n % 3 != 0 {
                let (removed, _) = remove(&mut world, 1 - n % 2, "key");
                assert_eq!((removed.before, removed.after), (Some(last), None));
            }
            // Filled, so that segments close and the key's tombstones are cleaned away.
            put(
                &mut world,
                0,
                &format!("other-{}", n % 4),
                &vec![1; 500_000],
            );
            complete_everything(&mut world);
            while world.store.clean_step(1 << 20) {
                complete_everything(&mut world);
            }
        }
        world.restart().unwrap();
    }
}

/// A store of a build from before typed objects: all its segments have version 1.
#[test]
fn segments_of_version_1_are_loaded_beside_those_of_today() {
    let mut world = World::new(21, 2);
    for n in 0..40 {
        put(&mut world, n % 2, &format!("key-{n}"), &vec![1; 100_000]);
    }
    complete_everything(&mut world);
    for (bytes, _) in world.consumer.lock().unwrap().disk.segments.values_mut() {
        if let Some((header, sum)) = bytes
            .get_mut(..64)
            .and_then(|block| block.split_at_mut_checked(60))
        {
            header[4..6].copy_from_slice(&1u16.to_le_bytes());
            sum.copy_from_slice(&crc32c::crc32c(header).to_le_bytes());
        }
    }
    world.restart().unwrap();
    for n in 0..40 {
        let (found, _) = get(&mut world, n % 2, &format!("key-{n}"));
        assert_eq!(found, Some(vec![1; 100_000]));
        if n % 3 == 0 {
            put(&mut world, n % 2, &format!("key-{n}"), b"new");
        }
    }
    complete_everything(&mut world);
    world.restart().unwrap();
    assert_eq!(get(&mut world, 0, "key-3").0, Some(b"new".to_vec()));
    assert_eq!(get(&mut world, 0, "key-4").0, Some(vec![1; 100_000]));
}

#[test]
fn a_full_disk_refuses_writes_and_lets_reads_go_on() {
    let mut world = World::new(1, 1);
    put(&mut world, 0, "key", b"value");
    complete_everything(&mut world);
    let log_of = world.store.clone();
    let log = log_of.log().unwrap();
    log.disk_full(true);
    let ((written, removed), position) = step(&mut world, 0, |guard| {
        let hash = guard.hash(b"key");
        let written = guard.write(TABLE, hash, b"key", b"new", None);
        (written, guard.remove(TABLE, hash, b"key"))
    });
    assert_eq!(
        (written, removed),
        (Err(Error::DiskFull), Err(Error::DiskFull))
    );
    assert!(position.is_none());
    assert_eq!(get(&mut world, 0, "key").0.as_deref(), Some(&b"value"[..]));
    log.disk_full(false);
    put(&mut world, 0, "key", b"new");
    log.disk_failed();
    let (written, _) = step(&mut world, 0, |guard| {
        let hash = guard.hash(b"key");
        guard.write(TABLE, hash, b"key", b"newer", None)
    });
    assert_eq!(written, Err(Error::DiskFailed));
}

#[test]
fn tables_of_level_memory_show_what_can_be_lost() {
    let mut world = World::new(2, 1);
    let store = world.store.clone();
    let table = store
        .tables()
        .create_with("cache", Some(Level::Memory))
        .unwrap();
    let access = |world: &mut World, table: TableId| {
        let (_, written) = step(world, 0, |guard| {
            let hash = guard.hash(b"k");
            guard.write(table, hash, b"k", b"v", None).unwrap()
        });
        let (_, read) = step(world, 0, |guard| {
            let hash = guard.hash(b"k");
            guard.read(table, hash, b"k").unwrap().is_some()
        });
        (written, read)
    };
    let (written, read) = access(&mut world, table);
    assert_eq!(written.level(), Level::Memory);
    assert!(
        !written.is_none(),
        "whoever asks can wait for it all the same"
    );
    assert!(read.is_none());
    store
        .tables()
        .set_level(table, Some(Level::Buffered))
        .unwrap();
    let (written, read) = access(&mut world, table);
    assert_eq!(
        (written.level(), read.level()),
        (Level::Buffered, Level::Buffered)
    );
    store.tables().set_level(table, None).unwrap();
    store.log().unwrap().set_default_level(Level::Memory);
    assert!(access(&mut world, table).1.is_none());
    assert_eq!(store.tables().level(table), Ok(None));
}

#[test]
fn a_group_larger_than_a_segment_is_refused_and_a_whole_one_moves_on() {
    let mut world = World::new(3, 1);
    let large = vec![7; 900_000];
    let keys = ["a", "b", "c"];
    // The first of the 2 MiB segments is half full when the group begins, and the group fills a
    // second one.
    put(&mut world, 0, "before", &large);
    let (results, position) = step(&mut world, 0, |guard| {
        let hashes = keys.map(|key| guard.hash(key.as_bytes()));
        guard.lock_keys(&hashes.map(|hash| (TABLE, hash))).unwrap();
        let written = [0, 1, 2].map(|n| {
            guard
                .write(TABLE, hashes[n], keys[n].as_bytes(), &large, None)
                .map(|outcome| outcome.after.is_some())
        });
        guard.unlock_keys();
        written
    });
    assert_eq!(results[..2], [Ok(true), Ok(true)]);
    assert!(matches!(results[2], Err(Error::GroupTooLarge { .. })));
    for key in &keys[..2] {
        assert_eq!(get(&mut world, 0, key).0.as_ref(), Some(&large));
    }
    complete_everything(&mut world);
    assert_eq!(reached(&world, &position), Level::Synced);
    let (recovered, _) = replay(&world.consumer.lock().unwrap().disk);
    assert_eq!(recovered.len(), 3);
    let stats = world.store.stats();
    assert_eq!(stats.live_bytes, world.store.memory_report().live_bytes);
}

/// A group that was longer than a segment, or met a full disk half-way, once kept the part that it
/// had done.
#[test]
fn a_group_with_room_goes_over_segments_and_is_kept_whole() {
    let mut world = World::new(5, 1);
    let large = vec![7; 900_000];
    let keys = ["a", "b", "c", "d", "e"];
    let store = world.store.clone();
    let log = store.log().unwrap();
    let (_, position) = step(&mut world, 0, |guard| {
        let hashes = keys.map(|key| guard.hash(key.as_bytes()));
        let locks = hashes.map(|hash| (TABLE, hash));
        let mut room = Room::default();
        keys.iter()
            .for_each(|key| room.put(key.as_bytes(), large.len()));
        log.disk_full(true);
        assert_eq!(guard.lock_keys_for(&locks, room), Err(Error::DiskFull));
        log.disk_full(false);
        guard.lock_keys_for(&locks, room).unwrap();
        for (key, hash) in keys.iter().zip(hashes) {
            let key = key.as_bytes();
            guard.write(TABLE, hash, key, &large, None).unwrap();
            log.disk_full(true); // found by others
            let mut collected = Collected::default();
            log.collect(&mut collected);
            assert!(collected.is_empty(), "a part of an open group");
        }
        log.disk_full(false);
        guard.unlock_keys();
    });
    complete_everything(&mut world);
    assert_eq!(reached(&world, &position), Level::Synced);
    let (recovered, _) = replay(&world.consumer.lock().unwrap().disk);
    assert_eq!(recovered.len(), keys.len());
    let stats = world.store.stats();
    assert_eq!(stats.live_bytes, world.store.memory_report().live_bytes);
}

/// A backlog is committed in parts that are cut between segments: a group over several segments
/// would be cut too, and a crash between two parts would keep one half of it.
#[test]
fn a_backlog_is_not_cut_inside_a_group() {
    let store = Store::new(Options {
        huge_pages: false,
        heads: 1,
        cleaners: 0,
        log: Some(LogOptions::new(9)),
        ..Options::new(64 << 20)
    })
    .unwrap();
    let log = store.log().unwrap();
    let large = vec![7; 900_000];
    let mut session = store.session().unwrap();
    let mut group = |first: usize| {
        let keys: Vec<String> = (first..first + 5).map(|n| format!("key-{n}")).collect();
        let mut guard = session.pin();
        let hashes: Vec<_> = keys.iter().map(|key| guard.hash(key.as_bytes())).collect();
        let locks: Vec<_> = hashes.iter().map(|hash| (TABLE, *hash)).collect();
        let mut room = Room::default();
        keys.iter()
            .for_each(|key| room.put(key.as_bytes(), large.len()));
        guard.lock_keys_for(&locks, room).unwrap();
        for (key, hash) in keys.iter().zip(hashes) {
            let key = key.as_bytes();
            guard.write(TABLE, hash, key, &large, None).unwrap();
        }
    };
    group(0);
    store.heads().close_all(); // the next group begins with a segment
    group(5);
    let mut part = Collected::default();
    assert!(log.collect_part(&mut part, 1), "the second group is left");
    let whole = 5 * large.len() as u64;
    assert!(
        (whole..2 * whole).contains(&part.bytes()),
        "{}",
        part.bytes()
    );
    assert!(!log.collect_part(&mut part, u64::MAX));
    assert!(part.bytes() > 2 * whole);
    log.complete(&mut part, Level::Synced);
}

#[test]
fn closing_the_heads_leaves_closed_segments_alone() {
    let mut world = World::new(4, 3);
    for n in 0..30 {
        put(&mut world, n % 3, &format!("key-{n}"), b"value");
    }
    world.store.heads().close_all();
    complete_everything(&mut world);
    let consumer = world.consumer.clone();
    let consumer = consumer.lock().unwrap();
    assert!(consumer.disk.segments.values().all(|(_, closed)| *closed));
    drop(consumer);
    put(&mut world, 0, "later", b"value");
    complete_everything(&mut world);
    world.restart().unwrap();
}

#[test]
fn deletes_go_on_when_writes_cannot() {
    let mut world = World::new(5, 2);
    let write = |world: &mut World, n: u32| {
        let key = format!("key-{n}");
        step(world, 0, |guard| {
            let hash = guard.hash(key.as_bytes());
            guard.write(TABLE, hash, key.as_bytes(), &[1; 100], None)
        })
        .0
    };
    let mut keys = 0;
    loop {
        match write(&mut world, keys) {
            Ok(_) => keys += 1,
            Err(Error::OutOfMemory { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        if keys % 4096 == 0 {
            complete_everything(&mut world);
        }
    }
    assert!(keys > 100_000);
    for n in 0..keys {
        let key = format!("key-{n}");
        let (removed, _) = step(&mut world, (n % 2) as usize, |guard| {
            let hash = guard.hash(key.as_bytes());
            guard.remove(TABLE, hash, key.as_bytes())
        });
        assert!(removed.unwrap().before.is_some(), "{key}");
    }
    assert_eq!(world.store.tables().objects(TABLE), 0);
    write(&mut world, 0).unwrap();
}
