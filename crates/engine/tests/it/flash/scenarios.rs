//! Single scenarios of the flash tier.

use super::device::*;
use duramen_base::random::Random;
use duramen_engine::{Condition, Draft, Error, Guard, Options, Room, Session, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const VALUE_BYTES: usize = 1000;

/// A store of 4 MiB with `objects` objects of 1 KB.
fn filled(flash: &Arc<Flash>, objects: u64) -> (Arc<Store>, Session) {
    let store = Store::new(options(4 * MIB, flash)).unwrap();
    let mut session = store.session().unwrap();
    for n in 0..objects {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
        if n.is_multiple_of(1000) {
            check_budget(&store);
        }
    }
    (store, session)
}

#[test]
fn ten_times_as_much_as_memory_is_there_and_stays_there() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session) = filled(&flash, 40_000);
    let stats = store.stats();
    assert!(stats.flash.segments_demoted > 100, "{:?}", stats.flash);
    assert_eq!(stats.objects, 40_000);
    for n in 0..40_000 {
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES),
            "{n}"
        );
    }
    // Two more rounds, some 95 MB in all, so that flash has to be cleaned; every third key is
    // deleted.
    for round in 1..3 {
        for n in 0..40_000 {
            if n % 3 == 0 {
                let mut guard = session.pin();
                let hash = guard.hash(&key(n));
                guard.remove(TABLE, hash, &key(n)).unwrap();
            } else {
                let version = write(&mut session, &key(n), &value(n, round, VALUE_BYTES)).unwrap();
                assert_eq!(version, round + 1);
            }
        }
        check_budget(&store);
    }
    assert!(store.stats().flash.segments_cleaned > 0);
    for n in 0..40_000 {
        let expected = (n % 3 != 0).then(|| value(n, 2, VALUE_BYTES));
        assert_eq!(read(&mut session, &key(n)).unwrap(), expected, "{n}");
    }
    assert_eq!(store.stats().flash.read_errors, 0);
}

#[test]
fn who_parks_is_told_all_that_it_lacks() {
    let flash = Flash::new(48 * MIB);
    let (_store, mut session) = filled(&flash, 20_000);
    session.set_parks(true);
    let keys: Vec<Vec<u8>> = (0..50).map(|n| key(n * 7)).collect();
    // A probe has no effect.
    {
        let guard = session.pin();
        let hash = guard.hash(&keys[0]);
        assert!(guard.pin().cold(TABLE, hash, &keys[0]).unwrap().is_some());
        assert!(guard.pin().take_colds().is_empty());
        assert!(
            guard
                .pin()
                .cold(TABLE, guard.hash(b"absent"), b"absent")
                .unwrap()
                .is_none()
        );
    }
    let mut runs = 0;
    let found = parked(&mut session, &flash, |guard| {
        runs += 1;
        let mut result = Ok(());
        let mut values = Vec::new();
        for key in &keys {
            match guard.read(TABLE, guard.hash(key), key) {
                Ok(found) => values.push(found.map(|object| object.value.to_vec())),
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| values)
    });
    for (n, found) in found.unwrap().into_iter().enumerate() {
        assert_eq!(found.unwrap(), value(n as u64 * 7, 0, VALUE_BYTES));
    }
    // Once in vain, once because entries were longer than expected, once successfully; more only
    // for entries that a cleaner moves meanwhile.
    assert!(runs < 20, "{runs} runs for {} keys", keys.len());
    // A write of a cold key that returned an error did nothing.
    let mut attempts = 0;
    let version = parked(&mut session, &flash, |guard| {
        attempts += 1;
        let hash = guard.hash(&keys[1]);
        let outcome = guard.write(TABLE, hash, &keys[1], b"new", None)?;
        Ok(outcome.after)
    });
    assert_eq!((version.unwrap(), attempts >= 2), (Some(2), true));
    assert_eq!(read(&mut session, &keys[1]).unwrap().unwrap(), b"new");
}

#[test]
fn a_scan_shows_what_is_on_flash() {
    let flash = Flash::new(48 * MIB);
    let (_store, mut session) = filled(&flash, 10_000);
    for parks in [false, true] {
        session.set_parks(parks);
        let (mut cursor, mut seen) = (0, std::collections::BTreeSet::new());
        loop {
            let step = parked(&mut session, &flash, |guard| {
                let mut keys = Vec::new();
                let next = guard
                    .walk()
                    .scan(TABLE, cursor, 100, |object| keys.push(object.key.to_vec()))?;
                Ok((next, keys))
            });
            let (next, keys) = step.unwrap();
            seen.extend(keys);
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(seen.len(), 10_000);
    }
}

#[test]
fn what_is_read_again_and_again_is_promoted() {
    let flash = Flash::new(48 * MIB);
    let (store, mut session) = filled(&flash, 20_000);
    let mut hot = || {
        for n in 100..400 {
            assert_eq!(
                read(&mut session, &key(n)).unwrap().unwrap(),
                value(n, 0, VALUE_BYTES)
            );
        }
    };
    wait_for("the hot set is in memory", || {
        let before = flash.reads.load(Ordering::Relaxed);
        hot();
        flash.reads.load(Ordering::Relaxed) - before < 30
    });
    let stats = store.stats().flash;
    assert!(
        stats.promotions >= 200 && stats.promoted_bytes > 0,
        "{stats:?}"
    );
    let hits = stats.promoted_hits;
    assert!(hits >= 200, "every value was right, but {hits} hits");
    check_budget(&store);
    // An overwrite is seen, whatever copies exist.
    assert_eq!(write(&mut session, &key(200), b"new").unwrap(), 2);
    assert_eq!(read(&mut session, &key(200)).unwrap().unwrap(), b"new");
}

#[test]
fn copies_take_what_memory_has_and_give_it_back() {
    let flash = Flash::new(64 * MIB);
    let store = Store::new(options(12 * MIB, &flash)).unwrap();
    let mut session = store.session().unwrap();
    let keys = 30_000;
    for n in 0..keys {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
    let is_hot = |n: &u64| n.is_multiple_of(4);
    let read_right = |session: &mut Session, n: u64| {
        let expected = value(n, 0, VALUE_BYTES);
        assert_eq!(read(session, &key(n)).unwrap().unwrap(), expected);
    };
    wait_for("copies take more than half of memory", || {
        for n in (0..keys).filter(is_hot) {
            read_right(&mut session, n);
        }
        check_budget(&store);
        store.stats().flash.promoted_bytes > 6 * MIB
    });
    // Entries that are read once evict nothing.
    let before = store.stats().flash;
    for n in (0..keys).filter(|n| !is_hot(n)) {
        read_right(&mut session, n);
    }
    let after = store.stats().flash;
    let promoted = after.promotions - before.promotions;
    let fetched = after.fetches - before.fetches;
    assert!(
        fetched > 10_000 && promoted * 10 < fetched,
        "{promoted} of {fetched}"
    );
    // An index that needs the memory gets it.
    let mut small = 0;
    let most = store.stats().flash.promoted_bytes;
    while store.stats().index_bytes < 5 * MIB {
        for n in small..small + 10_000 {
            write(&mut session, &key(1_000_000 + n), b"").unwrap();
        }
        small += 10_000;
    }
    check_budget(&store);
    let stats = store.stats();
    assert_eq!(stats.objects, keys + small);
    assert!(stats.flash.promoted_bytes < most, "{:?}", stats.flash);
    for n in (0..keys).filter(is_hot) {
        read_right(&mut session, n);
    }
}

/// promoted::P4: copies that are read move on when their window is given up, and rarely read
/// entries do not evict them.
#[test]
fn a_hot_set_that_fits_stays_whatever_is_read_beside_it() {
    let flash = Flash::new(64 * MIB);
    let store = Store::new(options(12 * MIB, &flash)).unwrap();
    let mut session = store.session().unwrap();
    let (keys, hot_part) = (30_000, 8);
    for n in 0..keys {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
    let mut read_right = |n: u64| {
        let expected = value(n, 0, VALUE_BYTES);
        assert_eq!(read(&mut session, &key(n)).unwrap().unwrap(), expected);
    };
    // Every round reads the hot keys, some 4 MB, and as many random others, of which some are
    // copied: each comes up once in seven rounds. An entry that is read as often as the hot keys
    // would rightly stay, too.
    let mut random = Random::new(1);
    let mut round = || {
        let before = store.stats().flash.fetches;
        for n in (0..keys).filter(|n| n.is_multiple_of(hot_part)) {
            read_right(n);
        }
        let fetched = store.stats().flash.fetches - before;
        for _ in 0..keys / hot_part {
            let other = random.below(keys - keys / hot_part);
            read_right(other + other / (hot_part - 1) + 1);
        }
        fetched
    };
    wait_for("the hot set is read from memory, round for round", || {
        let before = store.stats().flash.promotions;
        let fetched: u64 = (0..10).map(|_| round()).sum();
        let others = store.stats().flash.promotions - before;
        others > fetched && fetched < 10 * keys / hot_part / 50
    });
    check_budget(&store);
}

#[test]
fn a_watch_sees_no_change_in_demotion_and_promotion() {
    let flash = Flash::new(48 * MIB);
    let store = Store::new(options(4 * MIB, &flash)).unwrap();
    let mut session = store.session().unwrap();
    write(&mut session, &key(0), &value(0, 0, VALUE_BYTES)).unwrap();
    let stamp = |session: &mut Session| {
        let guard = session.pin();
        guard.stamp(TABLE, guard.hash(&key(0)), &key(0)).unwrap()
    };
    let first = stamp(&mut session);
    for n in 1..10_000 {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
    wait_for("the key is on flash", || {
        let guard = session.pin();
        guard
            .pin()
            .cold(TABLE, guard.hash(&key(0)), &key(0))
            .unwrap()
            .is_some()
    });
    for _ in 0..5 {
        assert!(first.still_holds(&stamp(&mut session)));
        read(&mut session, &key(0)).unwrap();
    }
    write(&mut session, &key(0), b"new").unwrap();
    assert!(!first.still_holds(&stamp(&mut session)));
}

#[test]
fn a_device_that_fails_to_write_leaves_memory_as_it_was() {
    let flash = Flash::new(48 * MIB);
    let (store, mut session) = filled(&flash, 10_000);
    flash.writes_fail.store(true, Ordering::Relaxed);
    let mut written = 10_000;
    let error = loop {
        match write(&mut session, &key(written), &value(written, 0, VALUE_BYTES)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 40_000, "memory has no end");
    };
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let stats = store.stats().flash;
    assert!(stats.is_off && stats.write_errors > 0, "{stats:?}");
    for n in 0..written {
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES)
        );
    }
    // Deletes go on, and make room.
    for n in 0..written {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        assert!(guard.remove(TABLE, hash, &key(n)).unwrap().before.is_some());
    }
    wait_for("room for a write", || {
        write(&mut session, &key(1), b"again").is_ok()
    });
}

#[test]
fn a_device_that_fails_to_read_never_gives_a_wrong_value() {
    let flash = Flash::new(48 * MIB);
    let (_store, mut session) = filled(&flash, 10_000);
    for damaged in [false, true] {
        flash.reads_fail.store(!damaged, Ordering::Relaxed);
        flash.damages.store(damaged, Ordering::Relaxed);
        let mut failed = 0;
        for n in 0..10_000 {
            match read(&mut session, &key(n)) {
                Ok(found) => assert_eq!(found.unwrap(), value(n, 0, VALUE_BYTES)),
                Err(error) => {
                    assert_eq!(error, Error::FlashFailed);
                    failed += 1;
                }
            }
        }
        assert!(failed > 2_000, "{failed} keys could not be read");
        assert_eq!(
            write(&mut session, &key(0), b"new"),
            Err(Error::FlashFailed)
        );
    }
    flash.damages.store(false, Ordering::Relaxed);
    for n in 0..10_000 {
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES)
        );
    }
}

/// Sets room aside for a step over two keys in memory, again and again, until one of them goes to
/// flash meanwhile and cannot be read.
fn an_entry_goes_to_flash_while_room_is_sought(alone: bool) {
    let flash = Flash::new(48 * MIB);
    let (_store, mut session) = filled(&flash, 5_000);
    let names = [key(50_000), key(50_001)];
    let mut room = Room::default();
    (0..600).for_each(|_| room.put(&names[0], VALUE_BYTES));
    let mut others = (0..5_000).cycle();
    let mut are_cold = true;
    wait_for("an entry goes to flash while room is sought", || {
        for name in names.iter().filter(|_| are_cold) {
            write(&mut session, name, b"before").unwrap();
        }
        for n in others.by_ref().take(100) {
            write(&mut session, &key(n), &value(n, 1, VALUE_BYTES)).unwrap();
        }
        let mut guard = match alone {
            true => session.pin_exclusive(),
            false => session.pin(),
        };
        let keys = names.each_ref().map(|name| (TABLE, guard.hash(name)));
        let meets_flash = |guard: &Guard<'_>| {
            let mut keys = names.iter().zip(keys);
            keys.any(|(name, (table, hash))| guard.pin().cold(table, hash, name).unwrap().is_some())
        };
        if !alone {
            guard.lock_keys(&keys).unwrap();
        }
        are_cold = meets_flash(&guard);
        if are_cold {
            return false;
        }
        flash.reads_fail.store(true, Ordering::Relaxed);
        let done = guard
            .set_aside(room)
            .and_then(|()| guard.pin().warm_alone(keys));
        are_cold = meets_flash(&guard);
        flash.reads_fail.store(false, Ordering::Relaxed);
        match done {
            Ok(()) => assert!(!are_cold, "a write of the step would meet flash"),
            Err(Error::OutOfMemory { .. }) => {}
            Err(error) => {
                assert_eq!(error, Error::FlashFailed);
                return true;
            }
        }
        false
    });
    for name in &names {
        assert_eq!(read(&mut session, name).unwrap().unwrap(), b"before");
    }
}

/// The first write of the step was done, and the second one refused.
#[test]
fn what_goes_to_flash_while_room_is_sought_is_read_before_the_first_write() {
    for alone in [false, true] {
        an_entry_goes_to_flash_while_room_is_sought(alone);
    }
}

/// A change of a draft read an entry that had gone to flash, and ended the process when the device
/// failed.
#[test]
fn a_draft_with_an_entry_that_cannot_be_read_is_refused() {
    let flash = Flash::new(48 * MIB);
    let (_store, mut session) = filled(&flash, 5_000);
    let (name, other) = (key(4_999), key(50_000));
    let mut guard = session.pin();
    guard.begin_draft(Box::new(Draft::new(1 << 20)));
    for name in [&name, &other] {
        let hash = guard.hash(name);
        guard.write(TABLE, hash, name, b"after", None).unwrap();
    }
    let draft = guard.end_draft().expect("it has one");
    drop(guard);
    for n in 5_000..15_000 {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
    let mut guard = session.pin();
    guard.lock_keys(&draft.keys()).unwrap();
    flash.reads_fail.store(true, Ordering::Relaxed);
    assert_eq!(draft.holds_when_locked(&guard), Err(Error::FlashFailed));
    guard.unlock_keys();
    drop(guard);
    assert_eq!(read(&mut session, &other), Ok(None));
    flash.reads_fail.store(false, Ordering::Relaxed);
    let mut guard = session.pin();
    guard.lock_keys(&draft.keys()).unwrap();
    assert_eq!(draft.holds_when_locked(&guard), Ok(true));
    flash.reads_fail.store(true, Ordering::Relaxed);
    guard.set_aside(draft.room()).unwrap();
    draft.apply(&mut guard);
    guard.unlock_keys();
    drop(guard);
    flash.reads_fail.store(false, Ordering::Relaxed);
    for name in [&name, &other] {
        assert_eq!(read(&mut session, name).unwrap().unwrap(), b"after");
    }
}

/// The device has whole entries with right checksums: of other keys, and older values.
#[test]
fn a_device_that_keeps_what_lay_there_before_never_gives_that_for_something_else() {
    let flash = Flash::new(32 * MIB);
    let (store, mut session) = filled(&flash, 15_000);
    let mut rounds = vec![0; 15_000];
    // Every slot of the device has been used, in the same order each time.
    for n in (0..15_000).chain(0..15_000) {
        rounds[n as usize] += 1;
        let value = value(n, rounds[n as usize], VALUE_BYTES);
        write(&mut session, &key(n), &value).unwrap();
    }
    assert!(store.stats().flash.segments_cleaned > 0, "slots come again");
    flash.forgets.store(true, Ordering::Relaxed);
    for n in 0..15_000 {
        let round = rounds[n as usize] + 1;
        match write(&mut session, &key(n), &value(n, round, VALUE_BYTES)) {
            Ok(_) => rounds[n as usize] = round,
            Err(error) => assert!(
                matches!(error, Error::FlashFailed | Error::OutOfMemory { .. }),
                "{error}"
            ),
        }
    }
    let mut found_out = 0;
    for n in 0..15_000 {
        match read(&mut session, &key(n)) {
            Ok(found) => assert_eq!(
                found.unwrap_or_else(|| panic!("key {n} looks absent")),
                value(n, rounds[n as usize], VALUE_BYTES)
            ),
            Err(error) => {
                assert_eq!(error, Error::FlashFailed);
                found_out += 1;
            }
        }
    }
    assert!(found_out > 100, "{found_out} lies met");
    assert!(store.stats().flash.read_errors > 0);
}

#[test]
fn a_full_device_is_out_of_memory_and_deletes_make_room() {
    let flash = Flash::new(8 * MIB);
    let store = Store::new(options(4 * MIB, &flash)).unwrap();
    let mut session = store.session().unwrap();
    let mut written = 0;
    let error = loop {
        match write(&mut session, &key(written), &value(written, 0, VALUE_BYTES)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 20_000, "12 MiB hold more than there is");
    };
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(written > 7_000, "{written} objects are all that fits");
    for n in 0..written {
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES)
        );
    }
    for n in (0..written).filter(|n| n % 2 == 0) {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        assert!(guard.remove(TABLE, hash, &key(n)).unwrap().before.is_some());
    }
    // Half of it can be written again, several times.
    for round in 1..4 {
        for n in (0..written).filter(|n| n % 2 == 0 && n % 8 != 0) {
            wait_for("room", || {
                write(&mut session, &key(n), &value(n, round, VALUE_BYTES)).is_ok()
            });
        }
    }
    for n in 0..written {
        let expected = match n {
            n if n % 8 == 0 => None,
            n if n % 2 == 0 => Some(value(n, 3, VALUE_BYTES)),
            n => Some(value(n, 0, VALUE_BYTES)),
        };
        assert_eq!(read(&mut session, &key(n)).unwrap(), expected, "{n}");
    }
}

#[test]
fn tables_are_cleared_and_dropped_with_what_they_have_on_flash() {
    let flash = Flash::new(48 * MIB);
    let (store, mut session) = filled(&flash, 10_000);
    let other = store.tables().create("other").unwrap();
    for n in 0..10_000 {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        let value = value(n, 7, VALUE_BYTES);
        guard.write(other, hash, &key(n), &value, None).unwrap();
    }
    store.tables().drop(other).unwrap();
    let expected = 10_000 * (VALUE_BYTES as u64 + 32);
    wait_for("what was dropped is counted as dead", || {
        store.stats().live_bytes.abs_diff(expected) < expected / 50
    });
    for n in 0..10_000 {
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES)
        );
    }
    store.tables().clear(TABLE).unwrap();
    assert_eq!(store.stats().live_bytes, 0);
    for n in (0..10_000).step_by(11) {
        assert_eq!(read(&mut session, &key(n)).unwrap(), None);
    }
    // All of the device is free again, several times over.
    for round in 0..3 {
        for n in 0..20_000 {
            write(&mut session, &key(n), &value(n, round, VALUE_BYTES)).unwrap();
        }
        store.tables().clear(TABLE).unwrap();
    }
}

#[test]
fn transactions_and_who_is_alone_never_meet_a_cold_key() {
    let flash = Flash::new(48 * MIB);
    let (store, mut session) = filled(&flash, 10_000);
    session.set_parks(true);
    for n in (0..4_000).step_by(40) {
        let mut guard = session.pin();
        let (a, b) = (key(n), key(n + 1));
        let keys = [(TABLE, guard.hash(&a)), (TABLE, guard.hash(&b))];
        guard.lock_keys(&keys).unwrap();
        let first = guard
            .read(TABLE, keys[0].1, &a)
            .unwrap()
            .unwrap()
            .value
            .to_vec();
        guard.write(TABLE, keys[1].1, &b, &first, None).unwrap();
        guard.remove(TABLE, keys[0].1, &a).unwrap();
        guard.unlock_keys();
        assert!(guard.pin().take_colds().is_empty());
    }
    {
        let mut alone = session.pin_exclusive();
        let hash = alone.hash(&key(7));
        let absent = Condition::Absent;
        let refused = alone.conditional_write(TABLE, hash, &key(7), b"x", None, absent);
        assert_eq!(refused, Err(Error::ConditionFailed { current: Some(1) }));
    }
    session.set_parks(false);
    for n in (0..4_000).step_by(40) {
        assert_eq!(read(&mut session, &key(n)).unwrap(), None);
        assert_eq!(
            read(&mut session, &key(n + 1)).unwrap().unwrap(),
            value(n, 0, VALUE_BYTES)
        );
    }
    check_budget(&store);
}

/// A segment has room for one of them, so cleaning gains nothing.
#[test]
fn values_of_a_megabyte_go_to_flash_too() {
    let flash = Flash::new(320 * MIB);
    let store = Store::new(Options {
        tiny: false,
        ..options(64 * MIB, &flash)
    })
    .unwrap();
    let mut session = store.session().unwrap();
    for n in 0..120 {
        write(&mut session, &key(n), &value(n, 0, MIB as usize)).unwrap();
        check_budget(&store);
    }
    // And they are not moved in memory first.
    let (cleaned, demoted) = {
        let stats = store.stats();
        (stats.cleaner.segments_cleaned, stats.flash.segments_demoted)
    };
    assert!(
        demoted > 40 && cleaned < 50 * demoted,
        "{cleaned} segments cleaned, {demoted} demoted"
    );
    for n in 0..120 {
        assert!(read(&mut session, &key(n)).unwrap().unwrap() == value(n, 0, MIB as usize));
    }
}
