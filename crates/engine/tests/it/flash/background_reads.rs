//! Dead data on flash become free in the background, even if flash is not short.

use super::device::*;
use duramen_engine::{Clock, Options, Session, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const VALUE_BYTES: usize = 1000;
const START_MS: u64 = 1_000_000;

/// A store of 4 MiB whose clock stands still, a session, and the clock.
fn with_clock(flash: &Arc<Flash>) -> (Arc<Store>, Session, Arc<AtomicU64>) {
    let now_ms = Arc::new(AtomicU64::new(START_MS));
    let store = Store::new(Options {
        clock: Clock::Manual(now_ms.clone()),
        ..options(4 * MIB, flash)
    })
    .unwrap();
    let session = store.session().unwrap();
    (store, session, now_ms)
}

fn write_until(session: &mut Session, n: u64, expires_at_ms: u64) {
    let mut guard = session.pin();
    let hash = guard.hash(&key(n));
    let value = value(n, 0, VALUE_BYTES);
    guard
        .write(TABLE, hash, &key(n), &value, Some(expires_at_ms))
        .unwrap();
}

/// True if only few slots of the device are used, as for copies, open segments and the like.
fn few_slots(store: &Store) -> bool {
    let stats = store.stats().flash;
    stats.used_bytes <= stats.bytes / 32
}

#[test]
fn what_expires_on_flash_leaves_index_and_device_by_itself() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session, now_ms) = with_clock(&flash);
    for n in 0..20_000 {
        write_until(&mut session, n, START_MS + 1000 + n % 500);
        check_budget(&store);
    }
    let full = store.stats();
    assert!(full.flash.segments > 100, "{:?}", full.flash);
    assert_eq!((full.objects, full.entries_expired), (20_000, 0));
    // No session reads or writes from here on.
    now_ms.fetch_add(10_000, Ordering::Relaxed);
    wait_for("everything leaves the index", || {
        store.tables().objects(TABLE) == 0 && store.tables().expiring_objects(TABLE) == 0
    });
    assert_eq!(store.stats().entries_expired, 20_000);
    wait_for("its slots of the device come free", || few_slots(&store));
    wait_for("nothing lives", || store.stats().live_bytes == 0);
    let report = store.memory_report();
    assert!(
        report.index_slots < 2_000,
        "{} slots for no object",
        report.index_slots
    );
    // All of it can be written again.
    for n in 0..20_000 {
        write(&mut session, &key(n), &value(n, 1, VALUE_BYTES)).unwrap();
    }
    for n in 0..20_000 {
        let found = read(&mut session, &key(n)).unwrap().unwrap();
        assert_eq!(found, value(n, 1, VALUE_BYTES), "{n}");
    }
}

/// A segment that could not be read once was never cleaned again: after half a minute in which
/// reads failed, most of the device was lost to data that had long expired, and every write waited
/// 5 s.
#[test]
fn what_expires_while_flash_cannot_be_read_gives_its_room_back_afterwards() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session, now_ms) = with_clock(&flash);
    for n in 0..20_000 {
        write_until(&mut session, n, START_MS + 1000 + n % 500);
    }
    flash.reads_fail.store(true, Ordering::Relaxed);
    now_ms.fetch_add(10_000, Ordering::Relaxed);
    wait_for("segments could not be read", || {
        store.stats().flash.read_errors > 10
    });
    flash.reads_fail.store(false, Ordering::Relaxed);
    wait_for("its slots of the device come free", || few_slots(&store));
    wait_for("nothing lives", || store.stats().live_bytes == 0);
    assert_eq!(store.tables().objects(TABLE), 0);
}

#[test]
fn a_key_on_flash_exists_in_the_millisecond_of_its_expiry() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session, now_ms) = with_clock(&flash);
    for n in 0..20_000 {
        let left_ms = if n % 4 == 0 { 1000 } else { 100 };
        write_until(&mut session, n, START_MS + left_ms);
    }
    assert!(store.stats().flash.segments > 100);
    now_ms.fetch_add(1000, Ordering::Relaxed);
    wait_for("the others leave the index", || {
        store.tables().objects(TABLE) == 5_000
    });
    for n in (0..20_000).step_by(40) {
        let expected = Some(value(n, 0, VALUE_BYTES));
        assert_eq!(read(&mut session, &key(n)).unwrap(), expected, "{n}");
    }
    now_ms.fetch_add(1, Ordering::Relaxed);
    for n in (0..20_000).step_by(40) {
        assert_eq!(read(&mut session, &key(n)).unwrap(), None, "{n}");
    }
}

#[test]
fn what_does_not_expire_stays_where_others_do() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session, now_ms) = with_clock(&flash);
    for n in 0..20_000 {
        match n % 4 {
            0 => {
                write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
            }
            // Expires very late, so the range from the earliest to the latest time gives no
            // estimate.
            1 => write_until(&mut session, n, u64::MAX / 2),
            _ => write_until(&mut session, n, START_MS + 1000),
        }
    }
    // Some of them no longer expire, or later.
    for n in (0..20_000).filter(|n| n % 8 == 2) {
        write(&mut session, &key(n), &value(n, 1, VALUE_BYTES)).unwrap();
    }
    now_ms.fetch_add(10_000, Ordering::Relaxed);
    wait_for("half of it, less what was written anew, goes", || {
        store.tables().objects(TABLE) == 12_500
    });
    for n in 0..20_000 {
        let expected = match n % 8 {
            0 | 1 | 4 | 5 => Some(value(n, 0, VALUE_BYTES)),
            2 => Some(value(n, 1, VALUE_BYTES)),
            _ => None,
        };
        assert_eq!(read(&mut session, &key(n)).unwrap(), expected, "{n}");
    }
}

#[test]
fn what_is_deleted_gives_its_slots_of_the_device_back() {
    let flash = Flash::new(64 * MIB);
    let (store, mut session, _) = with_clock(&flash);
    for n in 0..20_000 {
        write(&mut session, &key(n), &value(n, 0, VALUE_BYTES)).unwrap();
    }
    // One in 100 stays, in every segment.
    for n in (0..20_000).filter(|n| n % 100 != 0) {
        let mut guard = session.pin();
        let hash = guard.hash(&key(n));
        guard.remove(TABLE, hash, &key(n)).unwrap();
    }
    wait_for("slots come free", || few_slots(&store));
    for n in 0..20_000 {
        let expected = (n % 100 == 0).then(|| value(n, 0, VALUE_BYTES));
        assert_eq!(read(&mut session, &key(n)).unwrap(), expected, "{n}");
    }
}
