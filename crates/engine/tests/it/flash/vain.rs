//! A full store comes to rest: no cleaning goes on that gains nothing, and writers are refused
//! soon.

use super::device::*;
use duramen_base::random::Random;
use duramen_engine::{Error, Options, Session, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FLASH_BYTES: u64 = 48 * MIB;
/// Time in which a cleaner thread looks for work several times.
const QUIET: Duration = Duration::from_millis(1000);
/// Passes until the rest: several rounds of all cleaners over all segments.
const PASSES_MAX: u64 = 2000;
/// Refusals in succession each of which may be as slow as one of the patient waits.
const SLOW_REFUSALS_MAX: usize = 3;

/// Lengths of values in thousandths of a segment: of these, two, five and twelve fill a segment but
/// for an end of more than a twentieth; and different lengths.
const SIZES: [&[usize]; 4] = [&[430], &[185], &[77], &[430, 185, 60, 290]];

/// A store, and the length of its segments.
fn store(with_flash: bool, cleaners: usize) -> (Arc<Store>, u64) {
    let flash = Flash::new(FLASH_BYTES);
    let (memory, segment_bytes) = match with_flash {
        true => (32 * MIB, MIB / 2),
        false => (64 * MIB, 2 * MIB),
    };
    let options = options(memory, &flash);
    let flash = options.flash.clone().filter(|_| with_flash);
    let store = Store::new(Options {
        heads: 2,
        cleaners,
        flash,
        ..options
    });
    (store.unwrap(), segment_bytes)
}

/// The value of a key.
fn of(n: u64, round: u64, sizes: &[usize], segment_bytes: u64) -> Vec<u8> {
    let size = sizes[Random::new(n).below(sizes.len() as u64) as usize];
    value(n, round, size * segment_bytes as usize / 1000)
}

/// Writes keys until the store is full. Returns their number.
fn fill(session: &mut Session, value_of: impl Fn(u64) -> Vec<u8>) -> u64 {
    let started = Instant::now();
    for n in 0.. {
        assert!(started.elapsed() < PATIENCE);
        match write(session, &key(n), &value_of(n)) {
            Ok(_) => {}
            Err(Error::OutOfMemory { .. }) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// Waits until no cleaner has done anything for a while. Each change before is one of a bounded
/// number, so the wait ends.
fn comes_to_rest(store: &Store) {
    let work = || {
        let stats = store.stats();
        let flash = stats.flash;
        (
            stats.cleaner.passes,
            stats.cleaner.bytes_relocated,
            flash.segments_demoted + flash.segments_cleaned,
        )
    };
    let begun = work();
    let (mut last, mut since) = (begun, Instant::now());
    wait_for("the full store is at rest", || {
        std::thread::sleep(Duration::from_millis(20));
        let now = work();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let passes = now.0 - begun.0;
        assert!(passes < PASSES_MAX, "{passes} passes and no rest");
        since.elapsed() > QUIET
    });
}

fn a_full_store_comes_to_rest(with_flash: bool, cleaners: usize) {
    for sizes in SIZES {
        let (store, segment_bytes) = store(with_flash, cleaners);
        let mut session = store.session().unwrap();
        let value_of = |n, round| of(n, round, sizes, segment_bytes);
        let keys = fill(&mut session, |n| value_of(n, 0));
        let before = store.stats();
        comes_to_rest(&store);
        let after = store.stats();
        let passes = after.cleaner.passes - before.cleaner.passes;
        println!("{sizes:?}, flash {with_flash}: {keys} keys, {passes} passes until the rest");
        let room = store.memory_bytes() + after.flash.bytes;
        assert!(
            after.live_bytes * 2 > room,
            "{} of {room}",
            after.live_bytes
        );
        // Each overwrite needs room before it gives some.
        let (mut slow, mut refused) = (0, 0);
        let mut random = Random::new(7);
        let started = Instant::now();
        for round in 1..200 {
            let n = random.below(keys);
            let began = Instant::now();
            if let Err(error) = write(&mut session, &key(n), &value_of(n, round)) {
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                refused += 1;
                // It needs the clock, because a wait is no work: 2 s or 5 s, and 50 ms afterwards.
                slow += usize::from(began.elapsed() > Duration::from_millis(1_900));
            }
        }
        println!(
            "{refused} refused in {:.1?}, {slow} slow",
            started.elapsed()
        );
        assert!(slow <= SLOW_REFUSALS_MAX, "{slow} of {refused}");
        comes_to_rest(&store);
        // Room that is given back is found at once.
        for n in (0..keys).step_by(8) {
            let mut guard = session.pin();
            let hash = guard.hash(&key(n));
            guard.remove(TABLE, hash, &key(n)).unwrap();
        }
        for n in (0..keys).step_by(16) {
            if let Err(error) = write(&mut session, &key(n), &value_of(n, 0)) {
                panic!("{sizes:?}: {error}: key {n} of {keys}");
            }
        }
    }
}

#[test]
#[ignore = "full tier"]
fn with_flash() {
    a_full_store_comes_to_rest(true, 1);
}

#[test]
#[ignore = "full tier"]
fn with_flash_and_two_cleaners() {
    a_full_store_comes_to_rest(true, 2);
}

#[test]
fn in_memory() {
    a_full_store_comes_to_rest(false, 1);
}
