//! Many threads, with demotion and cleaning at work: every value read was written, and no newer one
//! is missed.

use super::device::*;
use duramen_base::random::Random;
use duramen_engine::{Options, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 24_000;
const WRITERS: u64 = 2;

/// Writes the keys of one writer in rounds, and notes the round of each.
fn write_rounds(store: &Arc<Store>, writer: u64, rounds: &[AtomicU64]) {
    let mut session = store.session().unwrap();
    let started = Instant::now();
    for round in 1..6 {
        for n in (writer..KEYS).step_by(WRITERS as usize) {
            // Some are left alone for a while, and get cold.
            if round > 1 && (n / 64 + round) % 3 == 0 {
                continue;
            }
            let value = value(n, round, 200 + n as usize % 2500);
            write(&mut session, &key(n), &value).unwrap();
            rounds[n as usize].store(round, Ordering::Release);
        }
        if started.elapsed() > Duration::from_secs(15) && round > 1 {
            return;
        }
    }
}

#[test]
fn readers_and_writers_beyond_memory() {
    let flash = Flash::new(96 * MIB);
    let store = Store::new(Options {
        heads: 2,
        cleaners: 2,
        ..options(8 * MIB, &flash)
    })
    .unwrap();
    // Round of each key that is certainly written.
    let rounds: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (store, rounds) = (&store, &rounds);
                scope.spawn(move || write_rounds(store, writer, rounds))
            })
            .collect();
        for reader in 0..3u64 {
            let (store, rounds, over, reads, flash) = (&store, &rounds, &over, &reads, &flash);
            scope.spawn(move || {
                let mut session = store.session().unwrap();
                session.set_parks(reader > 0);
                let mut random = Random::new(reader);
                while !over.load(Ordering::Relaxed) {
                    let n = random.below(if reader == 2 { 200 } else { KEYS });
                    let before = rounds[n as usize].load(Ordering::Acquire);
                    let name = key(n);
                    let found = parked(&mut session, flash, |guard| {
                        let found = guard.read(TABLE, guard.hash(&name), &name)?;
                        Ok(found.map(|object| object.value.to_vec()))
                    });
                    match found.unwrap() {
                        None => assert_eq!(before, 0, "key {n} was lost"),
                        Some(found) => {
                            let round = (1..6)
                                .find(|round| found == value(n, *round, 200 + n as usize % 2500));
                            assert!(round.expect("a value that was written") >= before);
                        }
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for writer in writers {
            failed.fetch_or(writer.join().is_err(), Ordering::Relaxed);
        }
        // Readers that a busy machine kept from running begin now.
        let started = Instant::now();
        while reads.load(Ordering::Relaxed) <= 100 && started.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        // also when a writer failed, or the readers would go on for ever
        over.store(true, Ordering::Relaxed);
    });
    assert!(!failed.load(Ordering::Relaxed), "a writer failed");
    check_budget(&store);
    let mut session = store.session().unwrap();
    for n in 0..KEYS {
        let round = rounds[n as usize].load(Ordering::Relaxed);
        let expected = value(n, round, 200 + n as usize % 2500);
        assert_eq!(
            read(&mut session, &key(n)).unwrap().unwrap(),
            expected,
            "{n}"
        );
    }
    let stats = store.stats().flash;
    let is_good = stats.segments_demoted > 50 && stats.read_errors == 0;
    assert!(is_good, "{stats:?}");
    assert!(reads.load(Ordering::Relaxed) > 100);
}
