//! Side logs that are larger than memory: the replayed entries, their rivals, and the entries that
//! an abort takes back are mostly on flash. And writers that wait for flash while a range changes
//! hands.

use crate::cluster::cold::Tiered;
use crate::cluster::dead_log::DeadLog;
use crate::cluster::side::fill;
use crate::durable::disk::{Name, replay};
use crate::durable::world::{State, TABLE};
use crate::flash::device::{MIB, check_budget, key, value, wait_for};
use duramen_base::ids::{KeyRange, SegmentId};
use duramen_base::planted::{Bug, carry, with_bug};
use duramen_base::random::Random;
use duramen_engine::{Decision, Error, SideLog, SidePlan};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Expected versions and values of keys; `None`: absent, or not judged.
type Expected = BTreeMap<Name, (u64, Option<State>)>;

const KEYS: u64 = 14_000;
const VALUE_BYTES: u64 = 2_000;
/// Keys of this store alone.
const OWN: u64 = 5_000;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis() as u64
}

fn dead_log(random: &mut Random) -> DeadLog {
    DeadLog::new(random, KEYS, VALUE_BYTES, now_ms())
}

/// A store with memory for a fourth of the side log, and with keys of its own.
fn tiered(cleaners: usize) -> Tiered {
    let mut tiered = Tiered::new(6 * MIB, 96 * MIB, cleaners);
    for n in 0..OWN {
        tiered.put(n, 0);
    }
    tiered
}

fn own(expected: &mut Expected) {
    for n in 0..OWN {
        let state = State {
            value: value(n, 0, 1000),
            expires_at_ms: None,
        };
        expected.insert((TABLE.0, key(n)), (1, Some(state)));
    }
}

/// Some of the dead log's keys are here already, in older or newer versions than there.
fn rivals(tiered: &mut Tiered, log: &DeadLog, expected: &mut Expected) {
    for (n, (name, dead)) in log.expected.iter().enumerate() {
        expected.insert(name.clone(), (dead.version, dead.state.clone()));
        if !n.is_multiple_of(4) {
            continue;
        }
        let version = [2, 70][n / 4 % 2];
        if version == dead.version {
            continue;
        }
        let mut guard = tiered.session.pin();
        let hash = guard.hash(&name.1);
        for round in 1..=version {
            let bytes = if round == version { 1000 } else { 1 };
            let value = value(n as u64, round, bytes);
            let outcome = guard.write(TABLE, hash, &name.1, &value, None).unwrap();
            assert_eq!(outcome.after, Some(round));
            if round == version && version > dead.version {
                let state = State {
                    value,
                    expires_at_ms: None,
                };
                expected.insert(name.clone(), (version, Some(state)));
            }
        }
    }
}

fn check(tiered: &mut Tiered, expected: &Expected) -> Result<(), String> {
    let mut objects = 0;
    for (name, (version, state)) in expected {
        let guard = tiered.session.pin();
        let found = guard.read(TABLE, guard.hash(&name.1), &name.1).unwrap();
        let found = found.map(|object| (object.version, object.value, object.expires_at_ms));
        let wanted = state
            .as_ref()
            .map(|state| (*version, &state.value[..], state.expires_at_ms));
        objects += u64::from(wanted.is_some());
        if found != wanted {
            let short = |what: Option<(u64, &[u8], Option<u64>)>| {
                what.map(|(version, _, at)| (version, at))
            };
            let name = name.1.escape_ascii();
            return Err(format!(
                "{name} is {:?}, not {:?}",
                short(found),
                short(wanted)
            ));
        }
    }
    let counted = tiered.store.tables().objects(TABLE);
    if counted != objects {
        return Err(format!(
            "{counted} objects are counted, {objects} are there"
        ));
    }
    let all = tiered.store.ranges().count(TABLE, KeyRange::ALL).unwrap();
    let live = tiered.store.stats().live_bytes;
    if (all.objects, all.bytes) != (objects, live) {
        return Err(format!("{all:?} are there, {objects} and {live} counted"));
    }
    check_budget(&tiered.store);
    Ok(())
}

/// Commits, and waits until that is durable; then the disk alone must have everything, too.
fn commit(tiered: &mut Tiered, side: &SideLog, expected: &Expected) -> Result<(), String> {
    let commit = side.commit().unwrap();
    wait_for("the Swap", || {
        let store = tiered.store.clone();
        tiered.consumer.lock().unwrap().complete_everything(&store);
        commit.is_durable()
    });
    tiered.store.heads().close_all();
    let store = tiered.store.clone();
    let mut consumer = tiered.consumer.lock().unwrap();
    consumer.complete_everything(&store);
    let (left, _) = replay(&consumer.disk);
    for (name, (version, state)) in expected {
        let found = left.get(name).map(|found| (found.version, &found.value));
        let wanted = state.as_ref().map(|state| (*version, &state.value));
        if found != wanted {
            return Err(format!(
                "{:?} is not on disk as it should be",
                name.1.escape_ascii()
            ));
        }
    }
    Ok(())
}

/// A recovery of more data than memory holds.
fn recover(seed: u64, cleaners: usize) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut tiered = tiered(cleaners);
    let log = dead_log(&mut random);
    let mut expected = Expected::new();
    own(&mut expected);
    rivals(&mut tiered, &log, &mut expected);
    let side = tiered.store.side_log(SidePlan {
        floors: Vec::new(),
        version_floor: log.version_max + 5,
    });
    fill(&side, &log, &mut random);
    assert!(side.report().kept_bytes > 12 * MIB, "{:?}", side.report());
    check_budget(&tiered.store);
    check(&mut tiered, &expected)?;
    commit(&mut tiered, &side, &expected)?;
    drop(side);
    check(&mut tiered, &expected)?;
    // It is part of the log like everything else: it can be written to, demoted and cleaned.
    for n in 0..OWN {
        tiered.put(n, 1);
        let state = State {
            value: value(n, 1, 1000),
            expires_at_ms: None,
        };
        let last = expected.insert((TABLE.0, key(n)), (2, Some(state)));
        assert!(last.is_some());
    }
    check(&mut tiered, &expected)
}

#[test]
fn a_side_log_larger_than_memory_is_taken_over() {
    recover(1, 0).unwrap();
    recover(2, 1).unwrap();
}

/// The error of a run, either a failed check or a panic.
fn wrong(run: impl FnOnce() -> Result<(), String>) -> String {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => "nothing".to_owned(),
        Ok(Err(wrong)) => wrong,
        Err(panic) => match panic.downcast::<String>() {
            Ok(said) => *said,
            Err(_) => "something".to_owned(),
        },
    }
}

#[test]
fn a_segment_that_leaves_memory_too_early_is_found() {
    let wrong = wrong(|| with_bug(Bug::UnwrittenLeavesMemory, || recover(1, 0)));
    assert!(wrong.contains("a header"), "{wrong}");
}

#[test]
fn a_rival_on_flash_that_is_not_seen_is_found() {
    let wrong = wrong(|| with_bug(Bug::SideForgetsCold, || recover(1, 0)));
    assert!(
        wrong.contains("are counted") || wrong.contains(", not "),
        "{wrong}"
    );
}

/// An abort leaves nothing, neither in memory nor on flash. `fails`: the device fails meanwhile.
fn give_up(seed: u64, cleaners: usize, fails: bool) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut tiered = tiered(cleaners);
    let log = dead_log(&mut random);
    let mut expected = Expected::new();
    own(&mut expected);
    let side = tiered.store.side_log(SidePlan::default());
    fill(&side, &log, &mut random);
    let cold = tiered.store.stats().flash;
    assert!(cold.used_bytes > 12 * MIB, "{cold:?}");
    tiered.flash.reads_fail.store(fails, Ordering::Relaxed);
    if random.below(2) == 0 {
        side.abort().unwrap();
    } else {
        drop(side);
    }
    tiered.flash.reads_fail.store(false, Ordering::Relaxed);
    if fails {
        // Some entries could not be read for the counters, but the index points to none of them any
        // more.
        assert_eq!(tiered.store.tables().objects(TABLE), OWN);
        for name in log.expected.keys() {
            let guard = tiered.session.pin();
            let found = guard.read(TABLE, guard.hash(&name.1), &name.1);
            assert!(found.unwrap().is_none());
        }
        for n in 0..OWN {
            assert_eq!(tiered.read(n).unwrap(), value(n, 0, 1000));
        }
        return Ok(());
    }
    check(&mut tiered, &expected)?;
    for name in log.expected.keys() {
        let guard = tiered.session.pin();
        let found = guard.read(TABLE, guard.hash(&name.1), &name.1).unwrap();
        if found.is_some() {
            return Err("something is left".to_owned());
        }
    }
    wait_for("its flash is free", || {
        tiered.store.clean_step(64 << 10);
        tiered.store.stats().flash.used_bytes < 10 * MIB
    });
    // And once more, completely: there is room for it again.
    for (name, dead) in &log.expected {
        expected.insert(name.clone(), (dead.version, dead.state.clone()));
    }
    let side = tiered.store.side_log(SidePlan::default());
    fill(&side, &log, &mut random);
    commit(&mut tiered, &side, &expected)?;
    check(&mut tiered, &expected)
}

#[test]
fn an_abort_takes_back_what_is_on_flash() {
    give_up(3, 0, false).unwrap();
    give_up(4, 1, false).unwrap();
}

#[test]
fn an_abort_succeeds_though_flash_cannot_be_read() {
    give_up(5, 0, true).unwrap();
    give_up(6, 1, true).unwrap();
}

#[test]
fn an_abort_that_forgets_what_is_on_flash_is_found() {
    let wrong = wrong(|| with_bug(Bug::AbortForgetsCold, || give_up(3, 0, false)));
    assert!(wrong.contains("are counted"), "{wrong}");
}

/// A device that cannot be read, or a store with no room in memory and on flash, ends the attempt,
/// and no data are lost.
#[test]
fn a_side_log_that_cannot_go_on_is_given_up() {
    let mut random = Random::new(7);
    let log = dead_log(&mut random);
    let mut tiered = Tiered::new(6 * MIB, 10 * MIB, 1);
    for n in 0..2_000 {
        tiered.put(n, 0);
    }
    let side = tiered.store.side_log(SidePlan::default());
    let refused = log.segments.iter().find_map(|part| side.replay(part).err());
    assert!(
        matches!(
            refused,
            Some(duramen_engine::SideError::Store(Error::OutOfMemory { .. }))
        ),
        "{refused:?}"
    );
    check_budget(&tiered.store);
    drop(side);
    assert_eq!(tiered.store.tables().objects(TABLE), 2_000);
    for n in 0..2_000 {
        assert_eq!(tiered.read(n).unwrap(), value(n, 0, 1000));
    }
}

/// swap::D7: until the Swap, durable held segments can be read again, byte for byte, also from
/// flash.
#[test]
fn what_is_held_on_flash_can_be_replicated_again() {
    let mut random = Random::new(8);
    let tiered = tiered(0);
    let log = dead_log(&mut random);
    let side = tiered.store.side_log(SidePlan::default());
    fill(&side, &log, &mut random);
    let disk = tiered.consumer.lock().unwrap().disk.clone();
    let reads = tiered.flash.reads.load(Ordering::Relaxed);
    let mut had = 0;
    for (id, (bytes, _)) in &disk.segments {
        let length = bytes.len() as u32;
        let again = tiered
            .store
            .segments()
            .unswapped_bytes(SegmentId(*id), 0, length, true);
        if let Some(again) = again {
            assert!(again == *bytes, "segment {id}");
            let part =
                tiered
                    .store
                    .segments()
                    .unswapped_bytes(SegmentId(*id), 64, length - 64, true);
            assert!(part.unwrap() == bytes[64..bytes.len() - 64]);
            had += 1;
        }
    }
    let reads = tiered.flash.reads.load(Ordering::Relaxed) - reads;
    assert!(had > 100 && reads > 100, "{had} segments, {reads} reads");
    // A segment that cannot be read is not returned.
    tiered.flash.damages.store(true, Ordering::Relaxed);
    let lost = disk.segments.keys().filter(|id| {
        let again = tiered
            .store
            .segments()
            .unswapped_bytes(SegmentId(**id), 0, 64, true);
        again.is_none()
    });
    assert!(lost.count() > 50);
}

/// Number of keys with a counter, which is on flash when it is used.
const COUNTERS: u64 = 3_000;

/// Writers that check, under their guard, whether they may write, as servers do: some wait for
/// flash under the guard, others park. After the lock and `quiesce` no write follows that was
/// allowed before. True: one did.
fn count_beside_a_lock(seed: u64) -> bool {
    let mut tiered = Tiered::new(6 * MIB, 64 * MIB, 1);
    for n in 0..COUNTERS {
        tiered.put(n, 0);
    }
    for n in COUNTERS..20_000 {
        tiered.put(n, 0);
    }
    let (locked, quiet, done) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    let broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (store, flash) = (&tiered.store, &*tiered.flash);
            let (locked, quiet, done, broken) = (&locked, &quiet, &done, &broken);
            scope.spawn(carry(move || {
                let mut session = store.session().unwrap();
                session.set_parks(writer % 2 == 0);
                let mut random = Random::new(seed * 8 + writer);
                while !locked.load(Ordering::SeqCst) {
                    let name = key(random.below(COUNTERS));
                    let step = crate::flash::device::parked(&mut session, flash, |guard| {
                        if locked.load(Ordering::SeqCst) {
                            return Ok(()); // checked each time that the closure runs
                        }
                        let hash = guard.hash(&name);
                        let written = guard.update(TABLE, hash, &name, |found, scratch| {
                            scratch.extend_from_slice(found.expect("a counter").value);
                            scratch.push(1);
                            Decision::PutScratch {
                                expires_at_ms: None,
                            }
                        });
                        if written.is_ok() && quiet.load(Ordering::SeqCst) {
                            broken.store(true, Ordering::SeqCst);
                        }
                        written.map(drop)
                    });
                    match step {
                        Ok(()) | Err(Error::TryAgain) => {}
                        Err(error) => panic!("{error}"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let enough = 200 + seed * 37 % 300;
        wait_for("some counting", || done.load(Ordering::Relaxed) > enough);
        locked.store(true, Ordering::SeqCst);
        tiered.store.quiesce();
        quiet.store(true, Ordering::SeqCst);
    });
    broken.load(Ordering::SeqCst)
}

#[test]
fn who_waits_for_flash_writes_nothing_after_a_lock() {
    for seed in 0..4 {
        assert!(!count_beside_a_lock(seed));
    }
}

#[test]
fn a_lock_that_does_not_wait_for_who_waits_for_flash_is_found() {
    assert!((0..200).any(|seed| with_bug(Bug::QuiesceDoesNotWait, || count_beside_a_lock(seed))));
}
