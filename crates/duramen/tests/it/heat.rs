//! Keys that were hot before a restart are in memory after it, if the store has a flash tier; and
//! no hint, right or wrong, changes a value.

use crate::tiered::{T, key, memory, value, write};
use duramen::{Level, Options, Session, Store};
use duramen_engine::{FlashOptions, FlashStats};
use duramen_format::heat::{BLOCK_BYTES, Block, Kind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Four times the data that memory holds.
const OBJECTS: u64 = 20_000;
const MEMORY: u64 = 32 * MIB;
/// One key in this many is hot.
const HOT_EVERY: u64 = 50;
const HOT: u64 = OBJECTS / HOT_EVERY;
const PATIENCE: Duration = Duration::from_secs(90);

fn open(dir: &Path) -> Arc<Store> {
    let mut options = Options::new(dir, MEMORY);
    options.engine.tiny = true;
    options.engine.heads = 1;
    options.engine.huge_pages = false;
    options.level = Level::Buffered;
    options.wal_bytes = 16 * MIB;
    options.disk_bytes = 512 * MIB;
    options.heat_interval = Duration::from_millis(50);
    options.engine.flash = Some(FlashOptions {
        device: memory(256 * MIB as usize),
    });
    Store::open(options).unwrap()
}

fn hot() -> impl Iterator<Item = u64> {
    (0..OBJECTS).step_by(HOT_EVERY as usize)
}

fn flash(store: &Store) -> FlashStats {
    store.engine().stats().flash
}

/// Reads every hot key; returns the number of fetches from flash.
fn read_hot(store: &Store, session: &mut Session, round: u64) -> u64 {
    let before = flash(store).fetches;
    for n in hot() {
        let found = session.get(T, key(n)).unwrap().map(|found| found.bytes);
        assert!(found == Some(value(n, round)), "key {n}");
    }
    flash(store).fetches - before
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        let waited = started.elapsed();
        assert!(
            waited < PATIENCE,
            "{waited:.0?} passed and still not: {what}"
        );
        std::thread::yield_now();
    }
}

/// Until almost no fetch is needed.
fn warm_up(store: &Store, session: &mut Session) {
    wait_for("hot keys are copied", || {
        read_hot(store, session, 0) <= HOT / 50
    });
}

/// Number of keys in the file of hints.
fn hints(dir: &Path) -> u64 {
    let bytes = std::fs::read(dir.join("heat")).unwrap_or_default();
    let blocks = bytes.chunks(BLOCK_BYTES).map(Block::decode);
    blocks
        .map(|block| block.expect("a whole file, at any time"))
        .filter(|block| block.kind == Kind::Keys)
        .map(|block| block.words.len() as u64)
        .sum()
}

fn wait_for_refill(store: &Store) {
    wait_for("the refill ends", || flash(store).refill_left == 0);
    let stats = store.engine().stats();
    assert!(stats.committed_bytes <= store.engine().memory_bytes());
}

/// A closed store with a hot set and its hints.
fn prepared(dir: &Path) {
    let store = open(dir);
    let mut session = store.session().unwrap();
    write(&mut session, 0..OBJECTS, 0);
    warm_up(&store, &mut session);
    drop(session);
    store.close().unwrap();
    assert!(hints(dir) > HOT / 2, "{} keys", hints(dir));
}

/// Opens the store and returns the fetches of its hot set once the refill has ended. One key may
/// take two.
fn fetches_after(dir: &Path, round: u64) -> u64 {
    let store = open(dir);
    wait_for_refill(&store);
    let mut session = store.session().unwrap();
    let fetches = read_hot(&store, &mut session, round);
    drop(session);
    drop(store); // not closed: the hints are the former ones, or become those of this life
    fetches
}

#[test]
fn a_hot_set_is_in_memory_again_after_the_refill() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let saved = std::fs::read(dir.path().join("heat")).unwrap();
    std::fs::remove_file(dir.path().join("heat")).unwrap();
    let without = fetches_after(dir.path(), 0);
    assert!(without > HOT / 2, "{without} of {HOT}");
    std::fs::write(dir.path().join("heat"), saved).unwrap();
    let with = fetches_after(dir.path(), 0);
    // Some keys that were in memory with their segments may go to flash after it.
    assert!(
        4 * with < without,
        "every value was right, but {with} and {without} of {HOT} were fetched"
    );
}

#[test]
fn hints_are_there_without_a_clean_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut session = store.session().unwrap();
    write(&mut session, 0..OBJECTS, 0);
    warm_up(&store, &mut session);
    // The first one may have begun before.
    for _ in 0..2 {
        let _ = std::fs::remove_file(dir.path().join("heat"));
        wait_for("hints are written in the background", || {
            read_hot(&store, &mut session, 0);
            hints(dir.path()) > 0
        });
    }
    drop(session);
    drop(store);
    let with = fetches_after(dir.path(), 0);
    assert!(
        5 * with < 2 * HOT,
        "every value was right, but {with} of {HOT} were fetched"
    );
}

/// Keys that were written again, or removed: their places in the hints lead to present data, or
/// nowhere.
#[test]
fn old_hints_bring_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let old = std::fs::read(dir.path().join("heat")).unwrap();
    let store = open(dir.path());
    let mut session = store.session().unwrap();
    // All segments are cleaned meanwhile, or overwritten.
    write(&mut session, 0..OBJECTS, 1);
    for n in hot().step_by(2) {
        session.remove(T, key(n)).unwrap();
    }
    drop(session);
    store.close().unwrap();
    drop(store);
    std::fs::write(dir.path().join("heat"), old).unwrap();
    let store = open(dir.path());
    wait_for_refill(&store);
    let mut session = store.session().unwrap();
    let gone: Vec<u64> = hot().step_by(2).collect();
    for n in 0..OBJECTS {
        let found = session.get(T, key(n)).unwrap().map(|found| found.bytes);
        let expected = gone.binary_search(&n).is_err().then(|| value(n, 1));
        assert!(found == expected, "key {n}");
    }
}

#[test]
fn whatever_the_hints_are_the_store_opens_and_no_value_is_another() {
    let dir = tempfile::tempdir().unwrap();
    prepared(dir.path());
    let path = dir.path().join("heat");
    let whole = std::fs::read(&path).unwrap();
    let key_block = whole.len() - BLOCK_BYTES;
    let mut kinds: Vec<(&str, Vec<u8>, bool)> = vec![
        (
            "cut within a block",
            whole[..whole.len() - 100].to_vec(),
            true,
        ),
        ("empty", Vec::new(), false),
        ("not ours", b"something else".repeat(1000), true),
    ];
    for at in [6, 40, BLOCK_BYTES - 1] {
        let mut flipped = whole.clone();
        flipped[key_block + at] ^= 0x10;
        kinds.push(("a byte is flipped", flipped, true));
    }
    // With matching checksums: hashes of no key, missing tables, another store's blocks.
    let sealed = |change: &dyn Fn(&mut Block)| {
        let blocks = whole.chunks(BLOCK_BYTES);
        let changed = blocks.flat_map(|block| {
            let mut block = Block::decode(block).unwrap();
            change(&mut block);
            block.encode()
        });
        changed.collect::<Vec<u8>>()
    };
    let junk = sealed(&|block| block.words.iter_mut().for_each(|word| *word = !*word));
    kinds.push(("no such keys", junk, false));
    let tables = sealed(&|block| block.table = u32::MAX - 7);
    kinds.push(("no such table", tables, false));
    let other = sealed(&|block| block.server ^= 1);
    kinds.push(("of another store", other, true));
    for (what, bytes, is_told) in kinds {
        std::fs::write(&path, bytes).unwrap();
        let store = open(dir.path());
        assert_eq!(
            store
                .directory()
                .expect("a directory")
                .hint_damage()
                .is_some(),
            is_told,
            "{what}"
        );
        wait_for_refill(&store);
        let mut session = store.session().unwrap();
        read_hot(&store, &mut session, 0);
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let store = open(dir.path());
    assert!(
        store
            .directory()
            .expect("a directory")
            .hint_damage()
            .is_some()
    );
    let mut session = store.session().unwrap();
    warm_up(&store, &mut session);
    drop(session);
    store.close().unwrap(); // though new hints cannot be written
}
