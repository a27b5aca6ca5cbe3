//! `duramen restore` that is cut off at any operation of its target disk: afterwards the target is
//! refused, or is the whole store, and a second restore copies all of it. Only the beginning of a
//! copy is ever overwritten.

use duramen::{Error, Level, Options, Store};
use duramen_backup::Error as DiskError;
use duramen_backup::disk::Disk;
use duramen_backup::inspect::check_copy;
use duramen_backup::restore::Restore;
use duramen_base::test_tier;
use duramen_engine::TableId;
use duramen_sim::disk::{Fault, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;

const T: TableId = TableId::DEFAULT;
const FAULTS: [Fault; 3] = [Fault::PowerCutWithin, Fault::Kill, Fault::Full];
const DISK_BYTES: u64 = 1 << 30;
const OBJECTS: u32 = 8;
const FILES: [&str; 3] = ["superblock", "wal", "frames"];

fn options() -> Options {
    let mut options = Options::new("", 64 << 20);
    options.engine.heads = 1;
    options.engine.cleaners = 0;
    options.engine.huge_pages = false;
    options.engine.hash_seed = Some(1);
    options.wal_bytes = 1 << 20;
    options.disk_bytes = 32 << 20;
    options
}

fn open(disk: &SimDisk) -> Result<Arc<Store>, Error> {
    Store::open_on(Arc::new(disk.clone()), options(), false, &|_| {})
}

/// A store of several segments, and a snapshot of it.
fn snapshot() -> SimDisk {
    let store = open(&SimDisk::new(1, DISK_BYTES)).expect("an empty disk");
    let mut session = store.engine().session().expect("a session");
    for number in 0..OBJECTS {
        let key = format!("key {number}").into_bytes();
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        guard
            .write(T, hash, &key, &vec![number as u8; 100_000], None)
            .expect("room");
    }
    drop(session);
    let log = store.log().expect("a durable store");
    assert!(log.try_commit_here(Level::Synced), "nobody else commits");
    while store.background_step().expect("nothing goes wrong") {}
    let copy = SimDisk::new(2, DISK_BYTES);
    store
        .snapshot_to(Arc::new(copy.clone()), &|_| {})
        .expect("nothing goes wrong");
    copy.restart();
    copy
}

fn restore(from: &SimDisk, to: &SimDisk) -> Result<(), DiskError> {
    let restore = Restore::begin(from, Arc::new(to.clone()))?;
    restore.copy(&mut |_| {})?;
    let mut problems = Vec::new();
    check_copy(restore.disk().clone(), &mut |_, _| {}, &mut |check, _| {
        problems.extend(check.problem.as_ref().map(DiskError::damage));
    })?;
    assert_eq!(problems, [""; 0]);
    restore.finish()
}

/// Whether the disk has the whole store.
fn is_whole(disk: &SimDisk) -> bool {
    let store = match open(disk) {
        Ok(store) => store,
        Err(Error::Disk(DiskError::Unfinished { .. })) => return false,
        Err(other) => panic!("{other}"),
    };
    let mut session = store.engine().session().expect("a session");
    let guard = session.pin();
    for number in 0..OBJECTS {
        let key = format!("key {number}").into_bytes();
        let found = guard.read(T, guard.hash(&key), &key).expect("the table");
        let value = found.expect("all or nothing").value.to_vec();
        assert!(value == vec![number as u8; 100_000], "key {number}");
    }
    true
}

fn files(disk: &SimDisk) -> Vec<Vec<u8>> {
    FILES.map(|name| disk.bytes_of(name)).into()
}

#[test]
fn cut_anywhere_it_is_refused_or_whole_and_can_be_begun_anew() {
    let source = snapshot();
    let before = files(&source);
    let whole = SimDisk::new(3, DISK_BYTES);
    restore(&source, &whole).expect("nothing goes wrong");
    let operations = whole.operations();
    assert!(operations > 8, "{operations}");
    whole.restart();
    assert!(is_whole(&whole));
    let mut seen = BTreeMap::new();
    // The quick tier cuts at each fifth operation.
    let stride = test_tier::runs(5, 1);
    for operation in (0..operations).step_by(stride as usize) {
        for fault in FAULTS {
            let target = SimDisk::new(operation << 4 | 3, DISK_BYTES);
            target.inject(operation, fault);
            let made = restore(&source, &target).is_ok();
            assert!(
                !made,
                "{fault:?} at {operation}: an error is never passed over"
            );
            if fault != Fault::Kill {
                target.cut_power(); // also where the process went on: the rest is never synced
            }
            target.restart();
            let is_there = !target.names().expect("it is up").is_empty();
            let found = if !is_there {
                "nothing"
            } else if is_whole(&target) {
                // Only the second copy of the superblock can have been missing.
                assert!(operation + 2 >= operations, "{fault:?} at {operation}");
                "whole"
            } else {
                target.restart();
                restore(&source, &target).expect("it is begun anew");
                target.cut_power();
                target.restart();
                // Reading back takes longest: once for each operation.
                let is_read = fault == Fault::PowerCutWithin;
                assert!(!is_read || is_whole(&target), "{fault:?} at {operation}");
                "refused"
            };
            *seen.entry(found).or_insert(0) += 1;
        }
    }
    println!("{operations} operations: {seen:?}");
    assert!(
        seen["refused"] * stride > operations,
        "most cuts leave something"
    );
    assert_eq!(files(&source), before, "the snapshot is only read");
}

#[test]
fn only_the_beginning_of_a_copy_is_written_over() {
    let source = snapshot();
    let store = SimDisk::new(4, DISK_BYTES);
    drop(open(&store).expect("an empty disk"));
    store.restart();
    let before = files(&store);
    let refused = restore(&source, &store);
    assert!(
        matches!(refused, Err(DiskError::Exists { .. })),
        "{refused:?}"
    );
    assert_eq!(files(&store), before);
    // The beginning of a copy is no source of a restore either.
    let target = SimDisk::new(5, DISK_BYTES);
    target.inject(5, Fault::Kill);
    assert!(restore(&source, &target).is_err());
    target.restart();
    let refused = restore(&target, &SimDisk::new(6, DISK_BYTES));
    assert!(
        matches!(refused, Err(DiskError::Unfinished { .. })),
        "{refused:?}"
    );
    // A target that is too small is refused before anything is written.
    let small = SimDisk::new(7, 1 << 20);
    let refused = restore(&source, &small);
    assert!(
        matches!(refused, Err(DiskError::TooSmall { .. })),
        "{refused:?}"
    );
    assert!(small.names().expect("it is up").is_empty());
}
