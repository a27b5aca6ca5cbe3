//! A device that stands still while writers lack memory.

use super::device::*;
use duramen_engine::{Error, Session, Store};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 1000;
/// Keys of a transaction: their objects take several segments.
const KEYS: u64 = 300;

/// Writes new keys as one step, until a write finds no memory.
fn write_together(session: &mut Session, first: u64) -> Result<(), Error> {
    let mut guard = session.pin();
    let keys: Vec<Vec<u8>> = (first..first + KEYS).map(key).collect();
    let hashes: Vec<_> = keys.iter().map(|key| (TABLE, guard.hash(key))).collect();
    guard.lock_keys(&hashes)?;
    let written = keys.iter().zip(&hashes).try_for_each(|(key, (_, hash))| {
        let value = [7; VALUE_BYTES];
        guard.write(TABLE, *hash, key, &value, None).map(|_| ())
    });
    guard.unlock_keys();
    written
}

/// A transaction that lacks memory wrote whole segments itself, with its keys and its head locked,
/// and waited for cleaner threads that did: as long as the device stood still.
#[test]
fn a_transaction_without_memory_does_not_wait_for_the_device() {
    let flash = Flash::new(128 * MIB);
    let store = Store::new(options(4 * MIB, &flash)).unwrap();
    let mut session = store.session().unwrap();
    let mut next = 0;
    let mut together = |session: &mut Session| {
        next += KEYS;
        write_together(session, next)
    };
    let mut done = 0;
    wait_for("transactions are written beside demotions", || {
        done += u64::from(together(&mut session).is_ok());
        done >= 150
    });
    assert!(store.stats().flash.segments_demoted > 100);
    let writers = || flash.writers.read().unwrap().clone();
    let me = std::thread::current().id();
    assert!(!writers().is_empty() && !writers().contains(&me));
    flash.writes_stand_still.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            let mut session = store.session().unwrap();
            while together(&mut session).is_ok() {}
            std::thread::current().id()
        });
        let began = Instant::now();
        while !stuck.is_finished() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_over = stuck.is_finished();
        flash.writes_stand_still.store(false, Ordering::Relaxed);
        let me = stuck.join().unwrap();
        assert!(is_over, "it waited for the device");
        assert!(!writers().contains(&me));
    });
    wait_for("the device goes on", || together(&mut session).is_ok());
}
