//! A cache with a tier: segments that memory has no room for go to flash, and segments that flash
//! has no room for are evicted.

use super::device::*;
use duramen_engine::{Error, Mode, Options, Store};
use std::sync::Arc;

fn cache(memory: u64, flash: &Arc<Flash>) -> Arc<Store> {
    Store::new(Options {
        mode: Mode::Cache,
        ..options(memory, flash)
    })
    .unwrap()
}

#[test]
fn three_times_memory_and_flash_what_is_new_or_read_stays() {
    const VALUE_BYTES: usize = 1000;
    const COUNT: u64 = 48_000;
    const HOT: u64 = 200;
    let flash = Flash::new(12 * MIB);
    let store = cache(4 * MIB, &flash);
    let mut session = store.session().unwrap();
    for n in 0..COUNT {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
        if n.is_multiple_of(1000) {
            check_budget(&store);
            for hot in 0..HOT.min(n) {
                if let Some(found) = read(&mut session, &key(hot)).unwrap() {
                    assert_eq!(found, value(hot, 0, VALUE_BYTES));
                }
            }
        }
    }
    let mut found = vec![false; COUNT as usize];
    for n in 0..COUNT {
        if let Some(value_found) = read(&mut session, &key(n)).unwrap() {
            assert_eq!(value_found, value(n, 0, VALUE_BYTES), "{n}");
            found[n as usize] = true;
        }
    }
    let among = |range: std::ops::Range<u64>| range.filter(|n| found[*n as usize]).count() as u64;
    // Objects that were written and are absent were evicted, and counted as such.
    let (all, stats) = (among(0..COUNT), store.stats());
    assert!(stats.flash.segments_demoted > 100, "{:?}", stats.flash);
    assert!(stats.entries_evicted >= COUNT - all, "{stats:?}");
    assert!(all > 8_000, "{all} of some 15,000 for which there is room");
    assert!(among(COUNT - 4_000..COUNT) > 3_500, "what is new");
    assert!(among(0..HOT) > HOT / 2, "what was read: {}", among(0..HOT));
    assert!(among(HOT..COUNT / 3) < 3_000, "what is old");
}

#[test]
fn a_cache_evicts_when_what_is_on_flash_takes_too_much_index() {
    let flash = Flash::new(96 * MIB);
    let store = cache(8 * MIB, &flash);
    let mut session = store.session().unwrap();
    for n in 0..600_000 {
        write(&mut session, &key(n), b"0123456789abcdef").unwrap();
        if n.is_multiple_of(10_000) {
            check_budget(&store);
        }
    }
    let stats = store.stats();
    assert!(stats.entries_evicted > 100_000, "{stats:?}");
    wait_for("data: each key is there or was evicted", || {
        let stats = store.stats(); // not of one moment, while cleaners evict
        stats.objects + stats.entries_evicted >= 600_000
    });
    let newest = (590_000..600_000).filter(|n| read(&mut session, &key(*n)).unwrap().is_some());
    assert!(newest.count() > 9_000);
}

#[test]
fn a_cache_whose_device_fails_goes_on_in_memory() {
    let flash = Flash::new(12 * MIB);
    let store = cache(4 * MIB, &flash);
    let mut session = store.session().unwrap();
    for n in 0..30_000 {
        if n == 10_000 {
            flash
                .writes_fail
                .store(true, std::sync::atomic::Ordering::Relaxed);
        }
        write(&mut session, &key(n), &value(n, 0, 1000)).unwrap();
    }
    assert!(store.stats().flash.is_off);
    check_budget(&store);
    let newest = (29_500..30_000).filter(|n| read(&mut session, &key(*n)).unwrap().is_some());
    assert!(newest.count() > 250);
}

/// core::slots::I1. The slot of an entry on flash stayed damaged until a restart: reads and writes
/// of its key were errors, and a cleaner that had read the entry back made nothing of it.
#[test]
fn a_flipped_bit_of_a_slot_is_put_back_by_the_cleaner_that_reads_its_entry_back() {
    const VALUE_BYTES: usize = 1000;
    for bit in [3, 38, 50] {
        let flash = Flash::new(12 * MIB);
        let store = cache(4 * MIB, &flash);
        let mut session = store.session().unwrap();
        for n in 0..8_000 {
            write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
        }
        assert!(!store.flips().entry(TABLE, &key(7), &[]), "it is on flash");
        assert!(store.flips().slot(TABLE, &key(7), &[bit]), "bit {bit}");
        assert_eq!(read(&mut session, &key(7)), Err(Error::Damaged));
        for n in 8_000..40_000 {
            match write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)) {
                Ok(_) | Err(Error::Damaged) => {} // or a key of the same home
                Err(error) => panic!("{n}: {error}"),
            }
        }
        let found = read(&mut session, &key(7)).unwrap();
        assert!(found.is_none_or(|found| found == value(7, 0, VALUE_BYTES)));
        let stats = store.stats();
        assert_eq!((stats.flipped_bits, stats.damaged_entries), (1, 1));
    }
}
