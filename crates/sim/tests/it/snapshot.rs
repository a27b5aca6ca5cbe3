//! A snapshot that is cut off at any operation of its target disk: afterwards the target is
//! refused, or is the whole store. It is never a part of it, and never an empty one.

use duramen::{Error, Level, Options, Store};
use duramen_backup::disk::Disk;
use duramen_base::test_tier;
use duramen_engine::TableId;
use duramen_sim::disk::{Fault, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;

const T: TableId = TableId::DEFAULT;
const FAULTS: [Fault; 5] = [
    Fault::PowerCut,
    Fault::PowerCutWithin,
    Fault::Kill,
    Fault::Error,
    Fault::Full,
];

fn options() -> Options {
    let mut options = Options::new("", 64 << 20);
    options.engine.heads = 2;
    options.engine.cleaners = 0;
    options.engine.huge_pages = false;
    options.engine.hash_seed = Some(1);
    options.wal_bytes = 2 << 20;
    options
}

fn open(disk: &SimDisk) -> Result<Arc<Store>, Error> {
    Store::open_on(Arc::new(disk.clone()), options(), false, &|_| {})
}

type Data = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(store: &Arc<Store>, keys: &Data) -> Data {
    let mut session = store.engine().session().expect("a session");
    let guard = session.pin();
    let read = |key: &Vec<u8>| {
        let found = guard.read(T, guard.hash(key), key).expect("the table");
        found.map(|object| (key.clone(), object.value.to_vec()))
    };
    keys.keys().filter_map(read).collect()
}

/// A store of several segments, some of them closed, and its data.
fn fill(store: &Arc<Store>, objects: u32) -> Data {
    let mut session = store.engine().session().expect("a session");
    let mut data = Data::new();
    for number in 0..objects {
        let key = format!("key {number}").into_bytes();
        let value = vec![number as u8; 100_000];
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        guard.write(T, hash, &key, &value, None).expect("room");
        data.insert(key, value);
    }
    let log = store.log().expect("a durable store");
    assert!(log.try_commit_here(Level::Synced), "nobody else commits");
    while store.background_step().expect("nothing goes wrong") {}
    data
}

/// The state of a snapshot after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing reached the disk: not even the name of a file.
    Nothing,
    Refused,
    Whole,
}

fn look(disk: &SimDisk, data: &Data) -> Found {
    disk.restart();
    if disk.names().expect("it is up").is_empty() {
        return Found::Nothing;
    }
    let before: Vec<_> = ["superblock", "wal", "frames"]
        .map(|name| disk.bytes_of(name))
        .into();
    match open(disk) {
        Ok(store) => {
            assert_eq!(&contents(&store, data), data, "all or nothing");
            assert!(store.stats().expect("a directory").clean_start);
            Found::Whole
        }
        Err(error) => {
            let clear = matches!(error, Error::Disk(duramen_backup::Error::Unfinished { .. }));
            assert!(clear, "{error}");
            for (name, before) in ["superblock", "wal", "frames"].iter().zip(before) {
                assert_eq!(disk.bytes_of(name), before, "a refusal writes nothing");
            }
            Found::Refused
        }
    }
}

#[test]
fn cut_anywhere_it_is_refused_or_whole() {
    for objects in [0, 12] {
        let source = SimDisk::new(1, 1 << 30);
        let store = open(&source).expect("an empty disk");
        let data = fill(&store, objects);
        let whole = SimDisk::new(2, 1 << 30);
        store
            .snapshot_to(Arc::new(whole.clone()), &|_| {})
            .expect("nothing goes wrong");
        let operations = whole.operations();
        assert!(operations > 10, "{operations}");
        assert_eq!(look(&whole, &data), Found::Whole);
        let mut seen = BTreeMap::new();
        // The quick tier cuts at each fifth operation.
        let stride = test_tier::runs(5, 1);
        for operation in (0..operations).step_by(stride as usize) {
            for fault in FAULTS {
                let target = SimDisk::new(operation << 4 | 3, 1 << 30);
                target.inject(operation, fault);
                let made = store.snapshot_to(Arc::new(target.clone()), &|_| {});
                // An operation that fails once is tried again where that can help: a frame
                // elsewhere, space a little less ahead.
                let made = made.is_ok();
                let once = matches!(fault, Fault::Error | Fault::Full);
                assert!(!made || once, "{fault:?} at {operation}");
                if once {
                    target.cut_power(); // the snapshot was given up, and its rest is never synced
                }
                let found = look(&target, &data);
                assert!(!made || found == Found::Whole, "at {operation}");
                if found == Found::Whole && !made {
                    // Only the second copy of the superblock can have been missing.
                    assert!(operation + 2 >= operations, "{fault:?} at {operation}");
                }
                *seen.entry(format!("{found:?}")).or_insert(0) += 1;
            }
        }
        println!("{objects} objects, {operations} operations: {seen:?}");
        assert!(
            seen["Refused"] * stride > operations,
            "most cuts leave something"
        );
        drop(store);
    }
}

/// The remains of a power cut are neither continued nor overwritten.
#[test]
fn a_snapshot_is_not_made_over_an_unfinished_one() {
    let store = open(&SimDisk::new(1, 1 << 30)).expect("an empty disk");
    let data = fill(&store, 5);
    let target = SimDisk::new(2, 1 << 30);
    target.inject(8, Fault::PowerCut);
    let made = store.snapshot_to(Arc::new(target.clone()), &|_| {});
    assert!(made.is_err());
    assert_eq!(look(&target, &data), Found::Refused);
    let again = store.snapshot_to(Arc::new(target.clone()), &|_| {});
    assert!(matches!(
        again,
        Err(Error::Disk(duramen_backup::Error::Unfinished { .. }))
    ));
}
