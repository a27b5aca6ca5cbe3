//! Writers that lack memory for the index, while it can come free only by way of flash.

use super::device::*;
use duramen_engine::{Error, Session, Store, TableId};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const REFUSALS: usize = 20;
/// One of them may wait as long as a writer waits for memory; the ones after it are brief.
const ALL_REFUSALS: Duration = Duration::from_secs(40);

/// Writes small new keys until one is refused. Returns the number of the next one. The session
/// parks: a key whose bucket has a like one on flash is left out, the device may stand still.
fn fill(session: &mut Session, table: TableId, from: u64, step: u64) -> u64 {
    for n in (from..).step_by(step as usize) {
        let key = n.to_be_bytes();
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        match guard.write(table, hash, &key, b"v", None) {
            Ok(_) => {}
            Err(Error::Cold(_)) => drop(guard.pin().take_colds()),
            Err(Error::OutOfMemory { .. }) => return n + step,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// The index of a cleared table is kept until its entries on flash are counted. Each write that
/// needed its memory waited on its thread for as long as that took, one after the other.
#[test]
fn writers_wait_for_index_memory_once_and_not_in_turn() {
    let flash = Flash::new(64 * MIB);
    let store = Store::new(options(8 * MIB, &flash)).unwrap();
    let other = store.tables().create("other").unwrap();
    let mut session = store.session().unwrap();
    let mut next = fill(&mut session, other, 0, 1);
    for n in 0..next / 2 {
        let mut guard = session.pin();
        let hash = guard.hash(&n.to_be_bytes());
        guard.remove(other, hash, &n.to_be_bytes()).unwrap();
    }
    session.set_parks(true);
    next = fill(&mut session, TABLE, next, 1);
    assert!(store.stats().flash.segments > 0);
    flash.stands_still.store(true, Ordering::Relaxed);
    store.tables().clear(other).unwrap();
    next = fill(&mut session, TABLE, next, 1);
    let began = Instant::now();
    for _ in 0..REFUSALS {
        next = fill(&mut session, TABLE, next, 1);
    }
    let took = began.elapsed();
    flash.stands_still.store(false, Ordering::Relaxed);
    println!("{REFUSALS} refusals in {took:.1?}");
    assert!(took < ALL_REFUSALS, "{took:?}");
    assert!(session.work().take_waited());
    wait_for("the memory of the cleared table is found", || {
        let from = next;
        next = fill(&mut session, TABLE, next, 1);
        next > from + 1_000
    });
}
