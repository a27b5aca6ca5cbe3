//! Bits of entries flip in memory: cleaning and purges neither copy them nor decide by them.

use crate::two_levels::disk::{Mistake, Running, Setup};
use crate::two_levels::scenarios::{
    busy_setup, clean_all, fresh, get, in_time, listed, put, remove, seal, with_writer,
};
use duramen_base::ids::{KeyRange, RouteHash, SegmentId};
use duramen_base::planted::{Bug, with_bug};
use duramen_engine::{Error, Mode, TableId};
use std::collections::BTreeSet;
use std::time::Instant;

const KEYS: u8 = 30;

fn key(n: u8) -> Vec<u8> {
    format!("key {n:03}").into_bytes()
}

/// Objects, overwritten ones and tombstones, in several closed segments.
fn filled(setup: &Setup) -> Running {
    let running = fresh(setup);
    let mut session = running.store.session().unwrap();
    for round in 0..3u8 {
        for n in (0..KEYS).filter(|n| n % (round + 1) == 0) {
            put(&mut session, &key(n), &[n ^ round; 40]).unwrap();
        }
        for n in (0..KEYS).filter(|n| n % 10 == round) {
            remove(&mut session, &key(n)).unwrap();
        }
        seal(&running);
    }
    drop(session);
    running
}

fn shown(running: &Running) -> Vec<Option<Vec<u8>>> {
    let mut session = running.store.session().unwrap();
    (0..KEYS).map(|n| get(&mut session, &key(n))).collect()
}

/// One closed segment, of which every other entry is dead: compaction alone gains memory.
fn half_dead(setup: &Setup) -> Running {
    let running = fresh(setup);
    let mut session = running.store.session().unwrap();
    for n in 0..KEYS {
        put(&mut session, &key(n), &[n; 9_000]).unwrap();
    }
    seal(&running);
    for n in (0..KEYS).step_by(2) {
        put(&mut session, &key(n), &[n; 10]).unwrap();
    }
    drop(session);
    running
}

fn combine(running: &Running) {
    let before = listed(running);
    clean_all(running);
    assert!(listed(running) < before, "it cleans");
}

/// Compacts the one segment, and nothing else.
fn compact(running: &Running) {
    let compactions = || running.store.stats().cleaner.compactions;
    let is_compacted = (0..1_000).any(|_| {
        running.store.clean_step(1);
        compactions() > 0
    });
    assert!(is_compacted);
    assert_eq!(running.store.stats().cleaner.passes, 0);
    seal(running);
}

/// The two ways to clean, each with a store in which it is the one that is done.
type Way = (fn(&Setup) -> Running, fn(&Running));
const WAYS: [Way; 2] = [(filled, combine), (half_dead, compact)];

/// sound::V1: kind, version, checksum, table, lengths, key, value, and behind it, of every third
/// entry, dead or alive, tombstones too.
#[test]
fn one_flipped_bit_of_any_entry_is_put_back_by_a_cleaner() {
    let setup = Setup::small();
    for (fill, clean) in WAYS {
        let expected = shown(&fill(&setup));
        let mut found = 0;
        for n in (0..70).step_by(3) {
            for byte in [0, 2, 9, 12, 13, 14, 15, 17, 22, 30, 60] {
                let running = fill(&setup);
                if !running.store.flips().nth_entry(n, &[8 * byte + n % 8]) {
                    continue;
                }
                clean(&running);
                assert_eq!(shown(&running), expected, "byte {byte} of entry {n}");
                found += running.store.stats().flipped_bits;
                assert_eq!(running.store.stats().damaged_entries, 0);
                let again = setup.start(running.crash(), Mistake::None, 1);
                assert_eq!(shown(&again), expected, "byte {byte} of entry {n}, started");
            }
        }
        assert!(found > 100, "{found}");
    }
}

/// sound::V2: nothing of the segment is moved or dropped, and its replica stays listed: so a start
/// finds everything as it was.
#[test]
fn a_segment_with_more_damage_is_kept() {
    let setup = Setup::small();
    let expected = shown(&filled(&setup));
    let mut found = 0;
    for n in (0..70).step_by(7) {
        let running = filled(&setup);
        if !running.store.flips().nth_entry(n, &[8 * 3, 8 * 4 + 1]) {
            continue;
        }
        clean_all(&running);
        // A segment that no cleaner chose was not looked at.
        found += running.store.stats().damaged_entries;
        let again = setup.start(running.crash(), Mistake::None, 1);
        assert_eq!(shown(&again), expected, "entry {n}");
    }
    assert!(found > 4, "{found}");
}

/// The large segment of [`half_dead`] after a cleaner has moved its first entries: by a
/// compaction, or by a pass.
fn half_cleaned(setup: &Setup, by_pass: bool) -> Running {
    let running = half_dead(setup);
    if by_pass {
        let first = running.writer(|writer, _| writer.device.listed.first().copied());
        let first = SegmentId(first.expect("a segment"));
        running.store.segments().relocate(first);
    }
    let has_begun = (0..1_000).any(|_| {
        running.store.clean_step(1);
        running.store.stats().cleaner.bytes_relocated > 0
    });
    assert!(has_begun);
    running
}

/// swap::given_up: more bits flip in a victim after its first entries have left it. Its cleaner
/// stopped there until the next start, and with it all later passes.
#[test]
fn a_victim_that_is_damaged_while_it_is_cleaned_stops_no_other() {
    let setup = Setup::small();
    for by_pass in [false, true] {
        let running = half_cleaned(&setup, by_pass);
        let expected = shown(&running);
        let bits = [8 * 40, 8 * 41 + 3];
        let last = key(KEYS - 1);
        assert!(running.store.flips().entry(TableId::DEFAULT, &last, &bits));
        seal(&running);
        clean_all(&running);
        assert_eq!(running.store.stats().passes_given_up, 1, "pass: {by_pass}");
        let mut session = running.store.session().unwrap();
        for round in 0..3u8 {
            for n in 100..130 {
                put(&mut session, &key(n), &[n ^ round; 40]).unwrap();
            }
            seal(&running);
        }
        for (n, value) in (0..KEYS - 1).zip(&expected) {
            assert_eq!(get(&mut session, &key(n)), *value, "key {n}, {by_pass}");
        }
        drop(session);
        combine(&running);
        let again = setup.start(running.crash(), Mistake::None, 1);
        assert_eq!(shown(&again), expected, "started, pass: {by_pass}");
        let mut session = again.store.session().unwrap();
        assert_eq!(get(&mut session, &key(129)), Some(vec![129 ^ 2; 40]));
    }
}

/// context::C6. A cleaner stayed at an entry whose slot could not be put back until the next start,
/// and with it all later passes.
#[test]
fn a_slot_that_stays_damaged_stops_no_other_victim() {
    let setup = Setup::small();
    for by_pass in [false, true] {
        let running = half_cleaned(&setup, by_pass);
        let expected = shown(&running);
        let (last, bits) = (key(KEYS - 1), [3, 50, 60]);
        assert!(running.store.flips().slot(TableId::DEFAULT, &last, &bits));
        seal(&running);
        clean_all(&running);
        assert_eq!(running.store.stats().passes_given_up, 1, "pass: {by_pass}");
        let mut session = running.store.session().unwrap();
        let mut others = 100..200u8;
        let other = others.find(|n| put(&mut session, &key(*n), b"").is_ok());
        let other = key(other.expect("a key of a sound bucket"));
        for round in 0..3u8 {
            for _ in 0..30 {
                put(&mut session, &other, &[round; 40]).unwrap();
            }
            seal(&running);
        }
        drop(session);
        combine(&running);
        let again = setup.start(running.crash(), Mistake::None, 1);
        assert_eq!(shown(&again), expected, "started, pass: {by_pass}");
    }
}

/// A pass that evicts was given up at a slot that could not be put back. Its token then stood for
/// ever, and each fresh key left a tombstone that nothing could drop.
#[test]
fn a_cache_evicts_an_entry_whose_slot_stays_damaged() {
    let setup = Setup {
        mode: Mode::Cache,
        disk_segments_max: 400,
        ..busy_setup()
    };
    let running = fresh(&setup);
    let (first, bits) = (key(0), [3, 50, 60]);
    let mut session = running.store.session().unwrap();
    put(&mut session, &first, &[1; 4000]).unwrap();
    assert!(running.store.flips().slot(TableId::DEFAULT, &first, &bits));
    with_writer(&running, || {
        let started = Instant::now();
        let mut n = 0u32;
        while !n.is_multiple_of(100) || running.store.stats().entries_evicted < 3_000 {
            in_time(started);
            match put(&mut session, &n.to_le_bytes(), &[7; 4000]) {
                Ok(_) | Err(Error::Damaged) => n += 1, // or a key of the same partition
                Err(error) => panic!("{n}: {error}"),
            }
        }
    });
    assert_eq!(running.store.stats().passes_given_up, 0);
    assert_eq!(put(&mut session, &first, b"x"), Err(Error::Damaged));
}

/// The large segment should leave its place, and its compaction is given up. Returns what the next
/// start shows.
fn shown_after_a_stop(setup: &Setup, bug: Option<Bug>) -> Vec<Option<Vec<u8>>> {
    let running = half_cleaned(setup, false);
    let bits = [8 * 40, 8 * 41 + 3];
    let last = key(KEYS - 1);
    assert!(running.store.flips().entry(TableId::DEFAULT, &last, &bits));
    seal(&running);
    let first = running.writer(|writer, _| writer.device.listed.first().copied());
    running
        .store
        .segments()
        .relocate(SegmentId(first.expect("a segment")));
    match bug {
        Some(bug) => with_bug(bug, || clean_all(&running)),
        None => clean_all(&running),
    }
    shown(&setup.start(running.crash(), Mistake::None, 1))
}

#[test]
fn a_segment_that_is_cleaned_after_its_compaction_was_given_up_is_found() {
    let setup = Setup::small();
    let expected = shown(&half_dead(&setup));
    assert_eq!(shown_after_a_stop(&setup, None), expected);
    let bug = Some(Bug::StoppedIsCleaned);
    assert_ne!(shown_after_a_stop(&setup, bug), expected);
}

#[test]
fn planted_copies_that_are_not_verified_are_found() {
    let setup = Setup::small();
    let is_wrong = |(fill, clean): Way, bug: Option<Bug>| {
        let running = fill(&setup);
        running.store.set_verify_reads(false); // to see what was copied
        let expected = shown(&running);
        // In the value of an object that is alive.
        assert!(
            running
                .store
                .flips()
                .entry(TableId::DEFAULT, &key(7), &[8 * 40])
        );
        match bug {
            Some(bug) => with_bug(bug, || clean(&running)),
            None => clean(&running),
        }
        shown(&running) != expected
    };
    for way in WAYS {
        assert!(is_wrong(way, Some(Bug::CopiesUnverified)));
        assert!(!is_wrong(way, None));
    }
}

/// The keys that a purge of half of the routes leaves, after a bit of this key has flipped.
fn left_of_purge(setup: &Setup, n: u8, bit: usize) -> BTreeSet<usize> {
    let running = filled(setup);
    let start_of_key = 8 * 16;
    if bit > 0 {
        let bits = [start_of_key + bit];
        running
            .store
            .flips()
            .entry(TableId::DEFAULT, &key(n), &bits);
    }
    let (low, _) = KeyRange::ALL.split(RouteHash(u64::MAX / 2)).unwrap();
    running.store.ranges().purge(TableId::DEFAULT, low).unwrap();
    let left = shown(&running);
    let left = left.iter().enumerate().filter(|(_, value)| value.is_some());
    left.map(|(n, _)| n).collect()
}

#[test]
fn planted_purges_that_do_not_verify_are_found() {
    let setup = Setup::small();
    let expected = left_of_purge(&setup, 0, 0);
    let all: BTreeSet<usize> = (0..usize::from(KEYS)).filter(|n| n % 10 > 2).collect();
    let purged = *all.difference(&expected).next().expect("half of them") as u8;
    let mut found = false;
    for bit in 1..20 {
        assert_eq!(left_of_purge(&setup, purged, bit), expected, "bit {bit}");
        let objects = |bug| {
            let running = filled(&setup);
            let bits = [8 * 16 + bit];
            running
                .store
                .flips()
                .entry(TableId::DEFAULT, &key(purged), &bits);
            let (low, _) = KeyRange::ALL.split(RouteHash(u64::MAX / 2)).unwrap();
            let purge = || {
                running
                    .store
                    .ranges()
                    .purge(TableId::DEFAULT, low)
                    .unwrap()
                    .objects
            };
            match bug {
                Some(bug) => with_bug(bug, purge),
                None => purge(),
            }
        };
        found |= objects(Some(Bug::PurgesUnverified)) != objects(None);
    }
    assert!(found);
}
