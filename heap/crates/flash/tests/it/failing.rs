//! Checkpoints that fail or are cut short, and devices that have changed: the checkpoint under its
//! name can always be used.

use crate::common::{Ram, value};
use duramen_flash::{BLOCK_BYTES, Error, ObjectStore, Owner, Reader, Scratch};
use std::path::Path;
use std::sync::atomic::Ordering;

const TABLE: u32 = 1;
const OBJECTS: u32 = 900;
const LONGEST: usize = 300;

fn owner(index: u32) -> Owner {
    Owner {
        table: TABLE,
        index,
    }
}

/// Writes this version of all objects; false: the device failed or has no room.
fn write_all(store: &ObjectStore, version: u32) -> bool {
    (0..OBJECTS).all(|index| {
        let bytes = value(index, version, LONGEST);
        store.write(owner(index), &bytes).is_ok()
    })
}

fn assert_version(store: &ObjectStore, version: u32, what: &str) {
    let mut scratch = Scratch::new(LONGEST);
    for index in 0..OBJECTS {
        let found = store.read(owner(index), &mut scratch).unwrap();
        let wanted = value(index, version, LONGEST);
        assert_eq!(found, Some(&wanted[..]), "{what}: object {index}");
    }
}

/// A new store with version 1 in a checkpoint.
fn begun(ram: &Ram, path: &Path) -> ObjectStore {
    let store = ram.store();
    store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
    assert!(write_all(&store, 1));
    store.checkpoint(path, b"1").unwrap();
    store
}

fn version_of(blob: &[u8]) -> u32 {
    std::str::from_utf8(blob).unwrap().parse().unwrap()
}

/// The superblock of a checkpoint could not be written, after its file had replaced the previous
/// one's. The store went on with the blocks of the previous one and filled blocks of the new one,
/// and a restore took the new one: 200 of 200 objects were damaged. Here each write and each sync
/// fails.
#[test]
fn a_checkpoint_whose_device_fails_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let mut failed = 0;
    for due in 0.. {
        let ram = Ram::new(40);
        let store = begun(&ram, &path);
        assert!(write_all(&store, 2));
        store.flush().unwrap();
        ram.0.until_failure.store(due, Ordering::SeqCst);
        let made = store.checkpoint(&path, b"2");
        let was_reached = ram.0.until_failure.swap(-1, Ordering::SeqCst) < 0;
        // The program goes on: all blocks that no checkpoint holds are filled again.
        for version in 3..12 {
            if !write_all(&store, version) {
                break;
            }
        }
        let crashed = Ram::of(ram.copy());
        drop(store);
        let restored = ObjectStore::restore(crashed.options(), &path).unwrap();
        let wanted = if made.is_ok() { 2 } else { 1 };
        let what = format!("operation {due} failed, {made:?}");
        assert_eq!(version_of(&restored.blob), wanted, "{what}");
        assert_version(&restored.store, wanted, &what);
        assert!(!dir.path().join("checkpoint.new").exists(), "{what}");
        failed += u32::from(made.is_err());
        if !was_reached {
            assert!(failed > 0 && due > 2, "{failed} of {due} failed");
            return;
        }
    }
}

/// After a failure a later checkpoint works, and the file of the failed one is never taken,
/// wherever it was kept.
#[test]
fn a_checkpoint_that_failed_is_void_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let (path, kept) = (dir.path().join("checkpoint"), dir.path().join("kept"));
    let ram = Ram::new(40);
    let store = begun(&ram, &path);
    assert!(write_all(&store, 2));
    // The directory is missing when the file is to be put in place: the checkpoint fails, and so it
    // does before anything is written.
    let gone = dir.path().join("gone");
    assert!(store.checkpoint(&gone.join("checkpoint"), b"2").is_err());
    // A directory in its place is not touched.
    std::fs::create_dir(&gone).unwrap();
    assert!(store.checkpoint(&gone, b"2").is_err());
    assert!(gone.is_dir() && !dir.path().join("gone.new").exists());
    // A checkpoint whose superblock was not written (the last operation but one), as if the process
    // had been killed then.
    store.flush().unwrap();
    let before = ram.copy();
    store.checkpoint(&path, b"2").unwrap();
    std::fs::copy(&path, &kept).unwrap();
    drop(store);
    let killed = Ram::of(before);
    let store = ObjectStore::restore(killed.options(), &kept).unwrap().store;
    assert_version(&store, 2, "killed before the superblock");
    for version in 3..9 {
        assert!(write_all(&store, version));
        let text = version.to_string();
        store.checkpoint(&path, text.as_bytes()).unwrap();
        let refused = ObjectStore::restore(Ram::of(killed.copy()).options(), &kept);
        assert!(matches!(refused, Err(Error::Superseded { .. })));
    }
}

/// A checkpoint at A, then one at B, killed before B's superblock. A was restored and used; B had
/// the number of A's next one, and was taken although its blocks had been filled again.
#[test]
fn of_two_checkpoints_that_are_honoured_the_one_not_restored_is_void() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let ram = Ram::new(40);
    let store = begun(&ram, &a);
    assert!(write_all(&store, 2));
    store.flush().unwrap();
    let superblocks = ram.copy()[..BLOCK_BYTES].to_vec();
    store.checkpoint(&b, b"2").unwrap();
    drop(store);
    let mut bytes = ram.copy();
    bytes[..BLOCK_BYTES].copy_from_slice(&superblocks);
    let killed = Ram::of(bytes);
    // B is whole, and may be chosen.
    let chosen = Ram::of(killed.copy());
    let restored = ObjectStore::restore(chosen.options(), &b).unwrap();
    assert_version(&restored.store, 2, "b");
    drop(restored);
    let refused = ObjectStore::restore(Ram::of(chosen.copy()).options(), &a);
    assert!(
        matches!(refused, Err(Error::Superseded { .. })),
        "a is void"
    );
    // A is chosen.
    let restored = ObjectStore::restore(killed.options(), &a).unwrap();
    assert_version(&restored.store, 1, "a");
    for version in 3..9 {
        assert!(write_all(&restored.store, version));
    }
    let refused = ObjectStore::restore(Ram::of(killed.copy()).options(), &b);
    assert!(
        matches!(refused, Err(Error::Superseded { .. })),
        "b is void"
    );
    restored.store.checkpoint(&a, b"8").unwrap();
    let refused = ObjectStore::restore(Ram::of(killed.copy()).options(), &b);
    assert!(matches!(refused, Err(Error::Superseded { .. })), "for ever");
    drop(restored);
    let restored = ObjectStore::restore(killed.options(), &a).unwrap();
    assert_version(&restored.store, 8, "a again");
}

/// A failed sync may have lost earlier writes, and the next sync would not report that.
#[test]
fn after_a_failed_sync_nothing_is_said_to_be_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(40);
    let store = begun(&ram, &path);
    ram.0.until_failure.store(0, Ordering::SeqCst); // no data is to be written: the sync fails
    assert!(store.checkpoint(&path, b"2").is_err());
    let error = store.checkpoint(&path, b"3").unwrap_err().to_string();
    assert!(error.contains("failed before"), "{error}");
    drop(store);
    let restored = ObjectStore::restore(ram.options(), &path).unwrap();
    assert_version(&restored.store, 1, "the one before");
}

/// Restored on a longer file, a heap allocated all of it, while the store had only the blocks of
/// before: the program was ended by SIGBUS. The new blocks are free.
#[test]
fn a_longer_device_gives_more_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(16);
    drop(begun(&ram, &path));
    let mut bytes = ram.copy();
    bytes.resize(64 * BLOCK_BYTES, 0xa5);
    let longer = Ram::of(bytes);
    let store = ObjectStore::restore(longer.options(), &path).unwrap().store;
    assert_eq!(store.stats().capacity_bytes, 63 * BLOCK_BYTES as u64);
    assert_version(&store, 1, "restored");
    // Far more than the former room.
    store.add_table(2, 200, 32 << 10).unwrap();
    for index in 0..150 {
        let bytes = value(index, 1, 32 << 10);
        let owner = Owner { table: 2, index };
        store.write(owner, &bytes).unwrap();
    }
    store.checkpoint(&path, b"2").unwrap();
    drop(store);
    let store = ObjectStore::restore(longer.options(), &path).unwrap().store;
    assert_version(&store, 1, "restored again");
    drop(store);
    // Shorter than the checkpoint: refused, and unchanged on the whole device.
    let shorter = Ram::of(longer.copy()[..32 * BLOCK_BYTES].to_vec());
    let error = ObjectStore::restore(shorter.options(), &path)
        .err()
        .unwrap();
    assert!(error.to_string().contains("become shorter"), "{error}");
    assert_version(
        &ObjectStore::restore(longer.options(), &path).unwrap().store,
        1,
        "whole",
    );
}

/// A device with sectors longer than those of locations: each read is widened, by each way of
/// reading.
#[test]
fn objects_are_read_from_devices_of_any_alignment() {
    for unit in [512, 1024, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let ram = Ram::new(40);
        ram.0.alignment.store(unit, Ordering::SeqCst);
        let store = begun(&ram, &path);
        for version in 2..8 {
            assert!(write_all(&store, version)); // garbage is collected
        }
        store.flush().unwrap();
        assert_version(&store, 7, "one by one");
        store.checkpoint(&path, b"7").unwrap();
        drop(store);
        let store = ObjectStore::restore(ram.options(), &path).unwrap().store;
        assert_version(&store, 7, "restored");
        let mut reader = Reader::new(&store, 8, LONGEST, false).unwrap();
        let (mut next, mut told) = (0, 0);
        while told < OBJECTS {
            while next < OBJECTS && reader.submit(owner(next), next.into()).unwrap() {
                next += 1;
            }
            reader.start().unwrap();
            reader.wait().unwrap();
            told += reader.poll(|done| {
                let wanted = value(done.owner.index, 7, LONGEST);
                assert_eq!(done.result.unwrap(), Some(&wanted[..]));
            }) as u32;
        }
    }
}
