//! Restarts of logs that are longer than the data that they keep: expired objects, less memory,
//! less disk, a clock that was set back.

use crate::two_levels::disk::{Device, Mistake, Running, Setup};
use crate::two_levels::scenarios::{
    busy_setup, clean_all, fresh, get, in_time, listed, log_bytes, put, remove, seal, with_writer,
    with_writer_that,
};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::{Session, TableId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const TABLE: TableId = TableId::DEFAULT;

fn put_until(session: &mut Session, key: &[u8], value: &[u8], expires_at_ms: u64) {
    let mut guard = session.pin();
    let hash = guard.hash(key);
    guard
        .write(TABLE, hash, key, value, Some(expires_at_ms))
        .unwrap();
}

fn live(n: u32) -> Vec<u8> {
    format!("live {n}").into_bytes()
}

fn replaced(n: u32) -> Vec<u8> {
    format!("replaced {n}").into_bytes()
}

/// Writes client sessions of `value_bytes` bytes that live for a while, `total` bytes of them,
/// beside a few megabytes that stay.
fn write_sessions(running: &Running, setup: &Setup, value_bytes: usize, total: usize) {
    with_writer_that(running, false, || {
        let started = Instant::now();
        let mut session = running.store.session().unwrap();
        for n in 0..500 {
            put(&mut session, &live(n), &[1; 10_000]).unwrap();
            put(&mut session, &replaced(n), b"older").unwrap();
        }
        let value = vec![2; value_bytes];
        let tick = (1 << 20) / (value_bytes + 48);
        for n in 0..total / (value_bytes + 48) {
            in_time(started);
            if n % tick == 0 {
                setup.now_ms.fetch_add(10, Ordering::Relaxed);
            }
            let until = setup.now_ms.load(Ordering::Relaxed) + 50;
            if n < 500 {
                put_until(&mut session, &replaced(n as u32), &value, until);
            }
            put_until(
                &mut session,
                format!("session:{n:012}").as_bytes(),
                &value,
                until,
            );
        }
    });
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
}

/// A setup in which the log may be three times as long as memory.
fn long_setup() -> Setup {
    Setup {
        disk_segments_max: 100,
        newest_first: true,
        ..busy_setup()
    }
}

/// Checks that the store holds exactly the objects that stay.
fn assert_whole(running: &Running) {
    let mut session = running.store.session().unwrap();
    for n in 0..500 {
        assert_eq!(get(&mut session, &live(n)), Some(vec![1; 10_000]));
        assert_eq!(get(&mut session, &replaced(n)), None, "{n} came back");
    }
}

/// A restart once held expired objects in memory until its end: a store of client sessions, less
/// than half full, could never be started again after a power cut. Now their values are not kept;
/// and short ones, whose keys alone would be too much, are not kept at all.
#[test]
fn what_has_expired_needs_no_memory_at_a_restart() {
    for value_bytes in [10_000, 100] {
        let setup = long_setup();
        let running = fresh(&setup);
        write_sessions(&running, &setup, value_bytes, 160 << 20);
        let alive = running.store.stats().live_bytes >> 20;
        let device = running.crash();
        let bytes = log_bytes(&device) >> 20;
        println!("values of {value_bytes}: {alive} MB alive, {bytes} MB of log");
        assert!(bytes > 120, "{bytes} MB");
        setup.now_ms.fetch_add(1000, Ordering::Relaxed);
        for threads in [1, 3] {
            let running = setup.start(device.clone(), Mistake::None, threads);
            assert_eq!(running.store.tables().objects(TABLE), 500);
            assert_whole(&running);
            // They also stay away when their segments are cleaned, here and at another start.
            seal(&running);
            clean_all(&running);
            assert_whole(&running);
            let running = setup.start(running.crash(), Mistake::None, threads);
            assert_eq!(running.store.tables().objects(TABLE), 500);
            assert_whole(&running);
        }
    }
}

/// Writes keys and removes each at once, until the log has `segments` segments. `expires`: each
/// would live for a while.
fn write_and_remove(running: &Running, setup: &Setup, segments: u64, expires: bool) {
    let until = setup.now_ms.load(Ordering::Relaxed) + 50;
    with_writer_that(running, false, || {
        let started = Instant::now();
        let log = running.store.log().unwrap();
        let mut session = running.store.session().unwrap();
        put(&mut session, b"stays", b"x").unwrap();
        let mut n = 0u64;
        while !n.is_multiple_of(1000) || log.swaps().disk().room().0 < segments {
            in_time(started);
            let key = n.to_le_bytes();
            match expires {
                true => put_until(&mut session, &key, &[2; 16], until),
                false => assert!(put(&mut session, &key, &[2; 16]).is_ok()),
            }
            assert!(remove(&mut session, &key).unwrap());
            n += 1;
        }
    });
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
}

/// Each tombstone of a key that came and went once kept its memory and a slot of the index until
/// the end of a start, though the running store had dropped both: so a store that wrote and
/// removed fresh keys could not be started in the memory that it had run in.
#[test]
fn what_came_and_went_needs_no_memory_at_a_restart() {
    for expires in [false, true] {
        let setup = long_setup();
        let running = fresh(&setup);
        write_and_remove(&running, &setup, 70, expires);
        let device = running.crash();
        let bytes = log_bytes(&device) >> 20;
        assert!(bytes > 120, "{bytes} MB");
        setup.now_ms.fetch_add(1000, Ordering::Relaxed);
        for (threads, newest_first) in [(1, true), (3, false)] {
            let setup = Setup {
                newest_first,
                ..setup.clone()
            };
            let running = setup.start(device.clone(), Mistake::None, threads);
            assert_eq!(running.store.tables().objects(TABLE), 1);
            let mut session = running.store.session().unwrap();
            assert_eq!(get(&mut session, b"stays").as_deref(), Some(&b"x"[..]));
        }
    }
}

/// Writes (`Some`) and removes (`None`) a key, each step in a segment of its own. Returns what
/// starts show of it, of which each adopts the segments in another order.
fn shown_after(steps: &[Option<&[u8]>]) -> BTreeSet<Option<Vec<u8>>> {
    let setup = Setup::small();
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for step in steps {
        match step {
            Some(value) => assert!(put(&mut session, b"key", value).is_ok()),
            None => assert!(remove(&mut session, b"key").unwrap()),
        }
        seal(&running);
    }
    drop(session);
    let device = running.crash();
    let listed: Vec<SegmentId> = device.listed.iter().map(|id| SegmentId(*id)).collect();
    let count = steps.len();
    assert_eq!(listed.len(), count);
    let digit = |code: usize, n: usize| code / count.pow(n as u32) % count;
    let codes = 0..count.pow(count as u32);
    let orders = codes.map(|code| (0..count).map(|n| digit(code, n)).collect::<Vec<_>>());
    let whole = orders.filter(|order| (0..count).all(|n| order.contains(&n)));
    let shown = whole.map(|order| {
        let store = setup.open(&device);
        store
            .tables()
            .restore(TABLE, "default", device.table_floor, None)
            .unwrap();
        let loader = store.loader(&listed, &device.passes);
        for n in order {
            let segment = listed[n];
            let bytes = &device.frames[&segment.0];
            let mut fill = |out: &mut [u8]| {
                out.copy_from_slice(bytes);
                Ok::<(), ()>(())
            };
            loader
                .adopt(segment, bytes.len() as u32, &mut fill)
                .unwrap();
        }
        loader.finish().unwrap();
        let mut session = store.session().unwrap();
        let shown = get(&mut session, b"key");
        assert_eq!(store.tables().objects(TABLE), u64::from(shown.is_some()));
        shown
    });
    shown.collect()
}

const CAME_TWICE: [Option<&[u8]>; 4] = [Some(b"v1"), None, Some(b"v2"), None];

/// load::R9: a tombstone leaves the index when it meets its victim, and nothing older comes back.
#[test]
fn what_was_removed_stays_away_in_any_order_of_segments() {
    let histories: [&[Option<&[u8]>]; 5] = [
        &[Some(b"v1"), None],
        &[Some(b"v1"), Some(b"v2"), None],
        &CAME_TWICE,
        &[Some(b"v1"), None, Some(b"v2"), Some(b"v3")],
        &[Some(b"v1"), Some(b"v2"), None, Some(b"v3")],
    ];
    for steps in histories {
        let last = steps.last().unwrap().map(<[u8]>::to_vec);
        assert_eq!(shown_after(steps), BTreeSet::from([last]), "{steps:?}");
    }
}

#[test]
fn a_tombstone_that_leaves_early_is_found() {
    let shown = with_bug(Bug::TombstoneLeavesEarly, || shown_after(&CAME_TWICE));
    assert!(shown.contains(&Some(b"v1".to_vec())), "{shown:?}");
}

/// Keys, most of them overwritten many times: a third of the log is alive.
fn churned(setup: &Setup, keys: u32, rounds: u32) -> Device {
    let running = fresh(setup);
    with_writer_that(&running, false, || {
        let started = Instant::now();
        let mut session = running.store.session().unwrap();
        for n in 0..keys * rounds {
            in_time(started);
            let key = n.wrapping_mul(2_654_435_761) % keys;
            put(&mut session, &key.to_le_bytes(), &[n as u8; 8_000]).unwrap();
        }
    });
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
    running.crash()
}

fn large_setup() -> Setup {
    Setup {
        memory_bytes: 256 << 20,
        disk_segments_max: 200,
        newest_first: true,
        ..busy_setup()
    }
}

/// A log that is longer than the disk's present limit was once refused for want of memory, although
/// its live data needed a third of it: compaction requested room on the disk, where its segment had
/// a place already.
#[test]
fn a_long_log_is_loaded_into_less_memory() {
    let device = churned(&large_setup(), 3_000, 10);
    assert!(listed_of(&device) > 90, "{} segments", listed_of(&device));
    let setup = Setup {
        memory_bytes: 64 << 20,
        disk_segments_max: 64,
        ..large_setup()
    };
    let running = setup.start(device, Mistake::None, 2);
    assert_eq!(running.store.tables().objects(TABLE), 3_000);
}

fn listed_of(device: &Device) -> usize {
    device.listed.len()
}

/// A start with a disk smaller than the log once refused every write and every removal for ever,
/// however little was alive. Now cleaning makes the log as short as required; removals work from
/// the first one on.
#[test]
fn a_log_that_is_too_long_becomes_shorter() {
    let device = churned(&large_setup(), 3_000, 10);
    let setup = Setup {
        disk_segments_max: 40,
        ..large_setup()
    };
    let found = listed_of(&device);
    assert!(found > 60, "{found} segments");
    let running = setup.start(device, Mistake::None, 2);
    with_writer(&running, || {
        let started = Instant::now();
        let mut session = running.store.session().unwrap();
        for key in 0..500u32 {
            assert!(remove(&mut session, &key.to_le_bytes()).unwrap());
        }
        // Its limit, less the segments for survivors and removals only.
        while running.store.log().unwrap().swaps().disk().room().0 >= 40 {
            in_time(started);
            std::thread::yield_now();
        }
        for key in 0..3_000u32 {
            in_time(started);
            while put(&mut session, &key.to_le_bytes(), &[3; 8_000]).is_err() {
                in_time(started);
            }
        }
    });
    assert!(listed(&running) <= 40, "{} segments", listed(&running));
}

/// The clock was set back while the store was down. Objects that had expired before stay absent for
/// good, whatever time the next start gets. Memory keeps nothing of them, except the key until it
/// is removed.
#[test]
fn what_had_expired_stays_away_when_the_clock_steps_back() {
    let setup = long_setup();
    let running = fresh(&setup);
    write_sessions(&running, &setup, 1_000, 160 << 20);
    let device = running.crash();
    let now_ms = setup.now_ms.load(Ordering::Relaxed) + 1000;
    let back = Setup {
        expired_until_ms: now_ms,
        ..setup
    };
    back.now_ms.store(500, Ordering::Relaxed); // before anything expired
    // A crash amid the removals: some are durable. The next start gets the time of the clock before
    // it was set back.
    let running = back.start(device, Mistake::None, 1);
    {
        let mut session = running.store.session().unwrap();
        let mut revived = running.store.revived();
        for _ in 0..3 {
            assert!(revived.step(&mut session).unwrap());
        }
    }
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
    let running = back.start(running.crash(), Mistake::None, 3);
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        let mut revived = running.store.revived();
        while revived.step(&mut session).unwrap() {}
        assert_eq!(running.store.tables().objects(TABLE), 500);
        // An object that is written under the present clock lives by that clock.
        put_until(&mut session, &replaced(7), b"newer", 600);
        assert!(get(&mut session, &replaced(7)).is_some());
        back.now_ms.store(700, Ordering::Relaxed);
    });
    assert_whole(&running);
    running.writer(|writer, log| writer.settle(log));
    let next = Setup {
        expired_until_ms: 700,
        ..back
    };
    let running = next.start(running.crash(), Mistake::None, 3);
    assert_eq!(running.store.tables().objects(TABLE), 500, "for good");
    assert_whole(&running);
}

/// By the present clock, and by the clock of the last write.
#[test]
fn a_restart_keeps_a_key_in_the_millisecond_of_its_expiry() {
    let setup = busy_setup();
    let running = fresh(&setup);
    let at_ms = setup.now_ms.load(Ordering::Relaxed) + 1000;
    with_writer(&running, || {
        let mut session = running.store.session().unwrap();
        put_until(&mut session, b"key", b"value", at_ms);
    });
    running.writer(|writer, log| {
        writer.stage(log);
        writer.commit(log);
    });
    let device = running.crash();
    for (now_ms, expired_until_ms, is_there) in [
        (at_ms, 0, true),
        (at_ms + 1, 0, false),
        (at_ms - 500, at_ms, true),
        (at_ms - 500, at_ms + 1, false),
    ] {
        let next = Setup {
            expired_until_ms,
            ..setup.clone()
        };
        next.now_ms.store(now_ms, Ordering::Relaxed);
        let running = next.start(device.clone(), Mistake::None, 1);
        with_writer(&running, || {
            let mut session = running.store.session().unwrap();
            let mut revived = running.store.revived();
            while revived.step(&mut session).unwrap() {}
            let found = get(&mut session, b"key").is_some();
            assert_eq!(found, is_there, "at {now_ms}, {expired_until_ms}");
            assert_eq!(running.store.tables().objects(TABLE), u64::from(is_there));
        });
    }
}

/// A clock was set back. One of the segments that then count as evicted was so full of live data
/// that no pass took it: the token stood for ever, and so did each tombstone of a fresh key.
#[test]
fn a_token_ends_though_its_segment_is_full() {
    let setup = Setup {
        steady_ms: Some(Arc::default()),
        ..busy_setup()
    };
    setup.now_ms.store(10_000_000, Ordering::Relaxed);
    let segment_bytes = duramen_engine::segment_bytes(setup.memory_bytes) as usize;
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    assert!(!running.store.remove_doubted().unwrap());
    put_until(&mut session, b"key", b"value", 20_000_000);
    for (key, bytes) in [(b"a", segment_bytes / 2), (b"b", segment_bytes * 49 / 100)] {
        put(&mut session, key, &vec![7; bytes]).unwrap();
    }
    for n in 0..30u8 {
        put(&mut session, &[b'f', n], &vec![7; segment_bytes * 9 / 20]).unwrap();
    }
    seal(&running);
    setup.now_ms.fetch_sub(5_000, Ordering::Relaxed);
    assert!(!running.store.remove_doubted().unwrap());
    let stands = || running.store.log().unwrap().swaps().eviction_victim() != SegmentId::NONE;
    let started = Instant::now();
    while !stands() {
        in_time(started); // a cleaner may have noticed the step, and announces it now
        std::thread::yield_now();
    }
    with_writer(&running, || {
        let mut n = 0u64;
        while stands() {
            n += 1;
            assert!(n < 3_000_000, "the token stands for ever");
            // Without room the cleaner has the time that it needs.
            if put(&mut session, &n.to_le_bytes(), b"").is_ok() {
                let _ = remove(&mut session, &n.to_le_bytes());
            }
        }
    });
    assert_eq!(get(&mut session, b"key").as_deref(), Some(&b"value"[..]));
}

/// The clock is two hours ahead at a start, and is set right. A key that had expired by it is
/// written and removed; the segments of both are cleaned, but not the one that has the expired
/// object. Returns what the next start shows.
fn removed_after_a_step_back() -> Option<Vec<u8>> {
    const HOUR: u64 = 3_600_000;
    let setup = Setup {
        steady_ms: Some(Arc::default()),
        ..Setup::small()
    };
    let segment_bytes = duramen_engine::segment_bytes(setup.memory_bytes) as usize;
    let large = vec![7; segment_bytes * 9 / 20];
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    let until = setup.now_ms.load(Ordering::Relaxed) + HOUR;
    put_until(&mut session, b"key", b"older", until);
    // So full that no pass takes it.
    for (key, bytes) in [(b"a", segment_bytes / 2), (b"b", segment_bytes * 49 / 100)] {
        put(&mut session, key, &vec![7; bytes]).unwrap();
    }
    seal(&running);
    let first = running.writer(|writer, _| writer.device.listed.clone());
    drop(session);
    setup.now_ms.fetch_add(2 * HOUR, Ordering::Relaxed);
    let running = setup.start(running.crash(), Mistake::None, 1);
    let mut session = running.store.session().unwrap();
    assert_eq!(get(&mut session, b"key"), None);
    setup.now_ms.fetch_sub(2 * HOUR, Ordering::Relaxed);
    assert!(!running.store.remove_doubted().unwrap());
    put(&mut session, b"key", b"newer").unwrap();
    put(&mut session, b"c", &large).unwrap();
    seal(&running);
    assert!(remove(&mut session, b"key").unwrap());
    assert!(remove(&mut session, b"c").unwrap());
    seal(&running);
    clean_all(&running);
    put(&mut session, b"d", b"x").unwrap();
    seal(&running);
    clean_all(&running);
    drop(session);
    let listed = running.writer(|writer, _| writer.device.listed.clone());
    assert!(first.is_subset(&listed), "{first:?} of {listed:?}");
    let next = Setup {
        expired_until_ms: setup.now_ms.load(Ordering::Relaxed),
        ..setup
    };
    let running = next.start(running.crash(), Mistake::None, 1);
    let mut session = running.store.session().unwrap();
    assert!(get(&mut session, b"a").is_some() && get(&mut session, b"c").is_none());
    get(&mut session, b"key")
}

/// core::doubt::DC4.
#[test]
fn what_is_removed_after_the_clock_was_set_back_stays_away() {
    assert_eq!(removed_after_a_step_back(), None);
}

#[test]
fn a_set_back_clock_that_is_not_noticed_is_found() {
    let shown = with_bug(Bug::SetBackUnseen, removed_after_a_step_back);
    assert_eq!(shown.as_deref(), Some(&b"older"[..]));
}

/// The value of a key after a start and after the next one, with a write between. Of the key's log
/// only this is left: a tombstone, the object that it removed, and the first version, whose killer
/// was lost, and the operator accepted that.
fn shown_after_a_loss() -> [Option<Vec<u8>>; 2] {
    let setup = Setup {
        newest_first: true,
        ..Setup::small()
    };
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    for value in [&b"first"[..], b"second", b"third"] {
        if value == b"third" {
            assert!(remove(&mut session, b"key").unwrap());
            seal(&running);
        }
        put(&mut session, b"key", value).unwrap();
        seal(&running);
    }
    assert!(remove(&mut session, b"key").unwrap());
    drop(session);
    seal(&running);
    let mut device = running.crash();
    let killer = device.frames.iter().find_map(|(id, bytes)| {
        let mut parts = bytes.windows(6);
        parts.any(|part| part == b"second").then_some(*id)
    });
    assert!(device.listed.remove(&killer.expect("its segment")));
    let running = setup.start(device, Mistake::None, 1);
    let mut session = running.store.session().unwrap();
    let shown = get(&mut session, b"key");
    put(&mut session, b"key", b"new").unwrap();
    drop(session);
    seal(&running);
    let running = setup.start(running.crash(), Mistake::None, 1);
    let mut session = running.store.session().unwrap();
    [shown, get(&mut session, b"key")]
}

/// load::R11. The index has the first version again. A write to it got the version after that one,
/// and the next start took the tombstone for newer.
#[test]
fn a_write_over_what_an_accepted_loss_shows_again_outlives_a_restart() {
    let expected = [Some(b"first".to_vec()), Some(b"new".to_vec())];
    assert_eq!(shown_after_a_loss(), expected);
}

#[test]
fn a_load_that_leaves_low_versions_is_found() {
    let shown = with_bug(Bug::LoadLeavesVersions, shown_after_a_loss);
    assert_eq!(shown, [Some(b"first".to_vec()), None]);
}
