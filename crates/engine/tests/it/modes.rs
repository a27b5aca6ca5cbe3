//! The mode of a store, which changes while it is used, and the reads that a cache counts.

use duramen_engine::{Error, Mode, Options, Session, Store, TableId};

const TABLE: TableId = TableId::DEFAULT;
const MIB: u64 = 1 << 20;

fn put(session: &mut Session, key: u64) -> Result<(), Error> {
    let mut guard = session.pin();
    let bytes = key.to_le_bytes();
    let written = guard.write(TABLE, guard.hash(&bytes), &bytes, &[3; 200], None);
    written.map(|_| ())
}

fn has(session: &mut Session, key: u64) -> bool {
    let guard = session.pin();
    let bytes = key.to_le_bytes();
    let found = guard.read(TABLE, guard.hash(&bytes), &bytes);
    found.unwrap().is_some()
}

#[test]
fn a_full_store_becomes_a_cache_and_a_store_again() {
    let mut options = Options::new(64 * MIB);
    options.heads = 1;
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    let full = (0..).find(|key| put(&mut session, *key).is_err()).unwrap();
    assert_eq!(store.stats().entries_evicted, 0);
    store.set_mode(Mode::Cache);
    let more = full + 200_000;
    (full..more).for_each(|key| put(&mut session, key).expect("a cache evicts"));
    assert!(
        store.stats().entries_evicted > 100_000,
        "{:?}",
        store.stats()
    );
    store.set_mode(Mode::Store);
    for key in (0..more).filter(|key| key % 2 == 0) {
        let mut guard = session.pin();
        let bytes = key.to_le_bytes();
        guard.remove(TABLE, guard.hash(&bytes), &bytes).unwrap();
    }
    let refused = (more..)
        .find(|key| put(&mut session, *key).is_err())
        .unwrap();
    assert!(refused > more + 10_000, "{} were removed", full / 2);
    assert!((more..refused).all(|key| has(&mut session, key)));
}

#[test]
fn a_cache_counts_the_reads_that_are_to_count() {
    let mut options = Options::new(64 * MIB);
    options.mode = Mode::Cache;
    let store = Store::new(options).unwrap();
    let mut session = store.session().unwrap();
    put(&mut session, 1).unwrap();
    let mut guard = session.pin();
    let bytes = 1u64.to_le_bytes();
    let hash = guard.hash(&bytes);
    let mut reads = |counts: bool, number: usize| {
        guard.pin_mut().set_counts_reads(counts);
        for _ in 0..number {
            guard.read(TABLE, hash, &bytes).unwrap().unwrap();
        }
        guard.recent_reads(TABLE, hash, &bytes).unwrap()
    };
    assert_eq!(reads(true, 2), Some(2));
    assert_eq!(reads(false, 5), Some(2));
    assert_eq!(reads(true, 3), Some(5));
    assert_eq!(reads(true, 9), Some(7));
    assert_eq!(
        guard
            .recent_reads(TABLE, guard.hash(b"none"), b"none")
            .unwrap(),
        None
    );
}
