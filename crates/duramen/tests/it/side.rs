//! Side logs over a real directory: a committed one is there after any end, an abandoned one leaves
//! nothing.

use duramen::{Options, Session, Store};
use duramen_base::ids::SegmentId;
use duramen_engine::{SideLog, SidePlan, TableId};
use duramen_format::entry::NewObject;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const T: TableId = TableId::DEFAULT;
const VALUE_BYTES: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn open(dir: &Path) -> Arc<Store> {
    let mut options = Options::new(dir, 64 << 20);
    options.engine.heads = 2;
    options.engine.huge_pages = false;
    options.wal_bytes = 16 << 20;
    Store::open(options).unwrap()
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Some ten megabytes of another log, several segments.
fn fill(side: &SideLog, keys: u64, version: u64) {
    for n in 0..keys {
        let (key, value) = (key(n), vec![version as u8; VALUE_BYTES]);
        let object = NewObject {
            table: T.0,
            version,
            expires_at_ms: None,
            key: &key,
            value: &value,
            victim: SegmentId(99),
            is_typed: false,
        };
        let mut bytes = vec![0; object.padded_bytes()];
        object.write_to(&mut bytes);
        side.replay(&bytes).unwrap();
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        let waited = begun.elapsed();
        assert!(
            waited < PATIENCE,
            "{waited:.0?} passed and still not: {what}"
        );
        std::thread::yield_now();
    }
}

fn first_byte(session: &mut Session, n: u64) -> Option<u8> {
    let value = session.get(T, key(n)).unwrap()?;
    value.bytes.first().copied()
}

#[test]
fn what_was_taken_over_is_there_after_a_drop() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut session = store.session().unwrap();
    session.set(T, b"own", b"value").unwrap();
    let side = store.engine().side_log(SidePlan::default());
    fill(&side, 500, 1);
    fill(&side, 250, 7);
    let commit = side.commit().unwrap();
    wait_until("the swap", || commit.is_durable());
    let written = session.set(T, key(3), b"newer").unwrap();
    assert!(written.after > Some(duramen::Version(7)));
    session.remove(T, key(4)).unwrap();
    // Nothing is closed, nothing is flushed.
    drop((session, side, store));
    let again = open(dir.path());
    let mut session = again.session().unwrap();
    assert_eq!(session.get(T, b"own").unwrap().unwrap().bytes, b"value");
    for n in 0..500 {
        let expected = match n {
            3 => Some(b'n'),
            4 => None,
            0..250 => Some(7),
            _ => Some(1),
        };
        assert_eq!(first_byte(&mut session, n), expected, "key {n}");
    }
}

#[test]
fn what_was_given_up_leaves_no_frames() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let frames = || store.stats().unwrap().frames_used;
    let before = frames();
    for round in 0..3 {
        let side = store.engine().side_log(SidePlan::default());
        fill(&side, 500, 1);
        if round > 0 {
            wait_until("a frame", || frames() > before);
        }
        drop(side);
        wait_until("the end of all frames", || frames() == before);
    }
    let mut session = store.session().unwrap();
    assert_eq!(first_byte(&mut session, 1), None);
    drop(session);
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.engine().tables().objects(T), 0);
}
