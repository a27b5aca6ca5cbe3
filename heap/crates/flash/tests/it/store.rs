//! The store against a map: after any writes, overwrites, frees and collection, a read returns the
//! last written value.

use crate::common::{Dice, Ram, value};
use duramen_flash::{BLOCK_BYTES, Error, ObjectStore, Owner, Reader, Scratch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const TABLE: u32 = 5;

fn owner(index: u32) -> Owner {
    Owner {
        table: TABLE,
        index,
    }
}

fn assert_reads(store: &ObjectStore, model: &BTreeMap<u32, Vec<u8>>, objects: u32, longest: usize) {
    let mut scratch = Scratch::new(longest);
    for index in 0..objects {
        let found = store.read(owner(index), &mut scratch).unwrap();
        assert_eq!(
            found,
            model.get(&index).map(Vec::as_slice),
            "object {index}"
        );
        assert_eq!(store.contains(owner(index)), model.contains_key(&index));
    }
}

/// Overwrites and frees at random until the device was filled many times over, at different
/// utilizations.
#[test]
fn what_is_read_is_what_was_written_last_while_garbage_is_collected() {
    for (blocks, objects, longest) in [(12, 2000, 300), (20, 60, 32 << 10), (40, 20_000, 128)] {
        let ram = Ram::new(blocks);
        let store = ram.store();
        store.add_table(TABLE, objects, longest).unwrap();
        let mut model = BTreeMap::new();
        let mut dice = Dice(objects.into());
        let mut version = 0;
        while store.stats().bytes_written < 12 * (blocks * BLOCK_BYTES) as u64 {
            for _ in 0..500 {
                let index = dice.roll(objects.into()) as u32;
                version += 1;
                if dice.roll(8) == 0 {
                    let existed = store.free(owner(index)).unwrap();
                    assert_eq!(existed, model.remove(&index).is_some());
                } else {
                    let bytes = value(index, version, longest);
                    store.write(owner(index), &bytes).unwrap();
                    model.insert(index, bytes);
                }
            }
        }
        assert_reads(&store, &model, objects, longest);
        assert!(store.stats().bytes_relocated > 0, "garbage was collected");
    }
}

#[test]
fn a_full_store_says_so_and_goes_on_when_something_is_freed() {
    let ram = Ram::new(10);
    let store = ram.store();
    store.add_table(TABLE, 10_000, 1000).unwrap();
    let mut written = 0;
    let error = loop {
        match store.write(owner(written), &[7; 1000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("flash is full"), "{error}");
    let fit = 9 * BLOCK_BYTES / 1016;
    assert!(written as usize > fit / 2, "{written} of {fit} fitted");
    let mut scratch = Scratch::new(1000);
    for index in 0..written {
        assert_eq!(
            store.read(owner(index), &mut scratch).unwrap(),
            Some(&[7; 1000][..])
        );
    }
    for index in (0..written).step_by(2) {
        store.free(owner(index)).unwrap();
    }
    for index in (0..written / 2).step_by(2) {
        store.write(owner(index), &[8; 1000]).unwrap();
    }
    assert_eq!(
        store.read(owner(0), &mut scratch).unwrap(),
        Some(&[8; 1000][..])
    );
    assert_eq!(
        store.read(owner(1), &mut scratch).unwrap(),
        Some(&[7; 1000][..])
    );
}

/// Many short objects stay, and a few long ones among them are written again and again: a block in
/// which half of the bytes are dead has nearly as many live objects as at first, and was taken for
/// full.
#[test]
fn blocks_of_many_short_live_and_few_long_dead_objects_are_collected() {
    const GROUPS: u32 = 320;
    const SHORT: u32 = 33;
    const LONG_TABLE: u32 = TABLE + 1;
    for one_length in [false, true] {
        let ram = Ram::new(32);
        let store = ram.store();
        if one_length {
            store.add_table_of(TABLE, GROUPS * SHORT, 128).unwrap();
            store.add_table_of(LONG_TABLE, GROUPS, 4096).unwrap();
        } else {
            store.add_table(TABLE, GROUPS * SHORT, 128).unwrap();
            store.add_table(LONG_TABLE, GROUPS, 4096).unwrap();
        }
        let long = |index| Owner {
            table: LONG_TABLE,
            index,
        };
        for group in 0..GROUPS {
            store.write(long(group), &[1; 4096]).unwrap();
            for index in group * SHORT..(group + 1) * SHORT {
                store.write(owner(index), &[index as u8; 128]).unwrap();
            }
        }
        let data = u64::from(GROUPS) * (4112 + u64::from(SHORT) * 144);
        for round in 2..6 {
            for group in 0..GROUPS {
                store.write(long(group), &[round; 4096]).unwrap();
            }
            let live = store.stats().live_bytes;
            assert!(
                (data..data * 21 / 20).contains(&live),
                "{live} of {data} bytes are live"
            );
        }
        let mut scratch = Scratch::new(4096);
        for group in 0..GROUPS {
            let found = store.read(long(group), &mut scratch).unwrap();
            assert_eq!(found, Some(&[5; 4096][..]));
        }
        for index in 0..GROUPS * SHORT {
            let found = store.read(owner(index), &mut scratch).unwrap();
            assert_eq!(found, Some(&[index as u8; 128][..]));
        }
    }
}

#[test]
fn misuse_is_an_error() {
    let store = Ram::new(8).store();
    store.add_table(TABLE, 10, 100).unwrap();
    let mut scratch = Scratch::new(100);
    assert!(matches!(
        store.add_table(TABLE, 1, 1),
        Err(Error::TableExists { table: TABLE })
    ));
    assert!(matches!(
        store.add_table(9, 1, 1 << 20),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        store.write(owner(0), &[0; 101]),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        store.write(owner(10), &[0]),
        Err(Error::NoSuchOwner { .. })
    ));
    let elsewhere = Owner { table: 1, index: 0 };
    assert!(matches!(
        store.read(elsewhere, &mut scratch),
        Err(Error::NoSuchOwner { .. })
    ));
    assert!(matches!(
        store.free(elsewhere),
        Err(Error::NoSuchOwner { .. })
    ));
    store.add_table(8, 1, 5000).unwrap();
    let large = Owner { table: 8, index: 0 };
    store.write(large, &[1; 5000]).unwrap();
    assert!(matches!(
        store.read(large, &mut scratch),
        Err(Error::TooLarge { .. })
    ));
    // An object may be empty.
    store.write(owner(3), &[]).unwrap();
    assert_eq!(store.read(owner(3), &mut scratch).unwrap(), Some(&[][..]));
    assert!(store.remove_table(8) && !store.remove_table(8));
}

/// Threads read objects that others overwrite and the collector moves; every value names its object
/// and a version that only grows.
#[test]
fn readers_see_whole_versions_that_only_grow() {
    const OBJECTS: u32 = 3000;
    const LONGEST: usize = 400;
    let store = Arc::new(Ram::new(16).store());
    store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
    for index in 0..OBJECTS {
        store
            .write(owner(index), &value(index, 0, LONGEST))
            .unwrap();
    }
    let check = |index: u32, found: &[u8], least: &mut u32| {
        let version = u32::from_le_bytes(*found[4..].first_chunk().unwrap());
        assert_eq!(found, value(index, version, LONGEST), "object {index}");
        assert!(version >= *least, "object {index} went back");
        *least = version;
    };
    let writing = AtomicU32::new(2);
    let goes_on = || writing.load(Ordering::SeqCst) > 0;
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (store, writing) = (&store, &writing);
            scope.spawn(move || {
                let mut dice = Dice(half);
                for version in 1..40_000 {
                    let index = dice.roll(u64::from(OBJECTS / 2)) as u32 * 2 + half as u32;
                    store
                        .write(owner(index), &value(index, version, LONGEST))
                        .unwrap();
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            let mut least = vec![0; OBJECTS as usize];
            let mut scratch = Scratch::new(LONGEST);
            let mut dice = Dice(77);
            while goes_on() {
                let index = dice.roll(OBJECTS.into()) as u32;
                let found = store.read(owner(index), &mut scratch).unwrap().unwrap();
                check(index, found, &mut least[index as usize]);
            }
        });
        scope.spawn(|| {
            let mut least = vec![0; OBJECTS as usize];
            let mut reader = Reader::new(&store, 16, LONGEST, false).unwrap();
            let mut dice = Dice(78);
            // At least once, however late the thread runs.
            loop {
                while reader.has_room() {
                    let index = dice.roll(OBJECTS.into()) as u32;
                    assert!(reader.submit(owner(index), index.into()).unwrap());
                }
                reader.wait().unwrap();
                // Two reads of one object may end in any order, so the test checks only whole
                // versions.
                reader.poll(|completed| {
                    let found = completed.result.unwrap().unwrap();
                    check(completed.tag as u32, found, &mut 0);
                    least[completed.tag as usize] += 1;
                });
                if !goes_on() && least.iter().any(|reads| *reads > 0) {
                    break;
                }
            }
        });
    });
}

#[test]
fn a_failing_device_is_reported_and_what_is_in_memory_is_still_read() {
    let ram = Ram::new(10);
    let store = ram.store();
    store.add_table(TABLE, 10_000, 1000).unwrap();
    store.write(owner(0), b"in memory").unwrap();
    ram.0.fails_writes.store(true, Ordering::SeqCst);
    let mut index = 1;
    let error = loop {
        match store.write(owner(index), &[1; 1000]) {
            Ok(()) => index += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Device { .. }), "{error}");
    let mut scratch = Scratch::new(1000);
    assert_eq!(
        store.read(owner(0), &mut scratch).unwrap(),
        Some(&b"in memory"[..])
    );
    assert!(matches!(store.flush(), Err(Error::Device { .. })));
}

/// Unreadable flash is an error for the object that is read, and for no other.
#[test]
fn what_cannot_be_read_is_an_error_and_nothing_else_is() {
    let ram = Ram::new(12);
    let store = ram.store();
    store.add_table(TABLE, 4000, 100).unwrap();
    for index in 0..2000 {
        store.write(owner(index), &value(index, 1, 100)).unwrap();
    }
    store.flush().unwrap();
    let mut scratch = Scratch::new(100);
    ram.0.fails_reads.store(true, Ordering::SeqCst);
    for ring in [true, false] {
        let mut reader = Reader::new(&store, 4, 100, ring).unwrap();
        assert!(reader.submit(owner(7), 7).unwrap());
        reader.wait().unwrap();
        let told = reader.poll(|completed| {
            assert!(matches!(completed.result, Err(Error::Device { .. })));
        });
        assert_eq!(told, 1);
    }
    let error = store.read(owner(7), &mut scratch).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    // The collector cannot read either: objects that it cannot move stay in their place, and
    // writers go on as long as there is room.
    const LAST: u32 = 30;
    for version in 2..=LAST {
        for index in 2000..4000 {
            let bytes = value(index, version, 100);
            store.write(owner(index), &bytes).unwrap();
        }
    }
    ram.0.fails_reads.store(false, Ordering::SeqCst);
    store.flush().unwrap();
    for index in 0..4000 {
        let version = if index < 2000 { 1 } else { LAST };
        let found = store.read(owner(index), &mut scratch).unwrap();
        assert_eq!(found, Some(&value(index, version, 100)[..]));
    }
}

/// A file that was cut after it was opened.
#[test]
fn a_device_that_became_shorter_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash");
    let device = duramen_disk::FileDevice::open(&path, 4 << 20).unwrap();
    let options = duramen_flash::Options {
        device: Arc::new(device),
    };
    let store = ObjectStore::create(options).unwrap();
    store.add_table(TABLE, 100, 500).unwrap();
    for index in 0..100 {
        store.write(owner(index), &value(index, 3, 500)).unwrap();
    }
    store.flush().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(BLOCK_BYTES as u64).unwrap();
    let mut scratch = Scratch::new(500);
    let error = store.read(owner(5), &mut scratch).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    for ring in [true, false] {
        let mut reader = Reader::new(&store, 4, 500, ring).unwrap();
        assert!(reader.submit(owner(5), 7).unwrap());
        let mut told = 0;
        while told == 0 {
            reader.wait().unwrap();
            told += reader.poll(|completed| {
                assert!(matches!(completed.result, Err(Error::Device { .. })));
            });
        }
    }
}

/// Each bit of a small store's flash is flipped: a read is then right or an error.
#[test]
fn no_flipped_bit_makes_a_wrong_object() {
    let ram = Ram::new(64); // enough for the collector to leave the objects where they are
    let store = ram.store();
    store.add_table(TABLE, 20, 64).unwrap();
    for index in 0..20 {
        store.write(owner(index), &value(index, 1, 64)).unwrap();
    }
    store.flush().unwrap();
    let mut scratch = Scratch::new(64);
    let mut damaged = 0;
    for byte in BLOCK_BYTES..BLOCK_BYTES + 32 + 20 * 80 {
        ram.flip(byte, (byte % 8) as u32);
        for index in 0..20 {
            match store.read(owner(index), &mut scratch) {
                Ok(found) => assert_eq!(found, Some(&value(index, 1, 64)[..])),
                Err(Error::Damaged { owner, .. }) => {
                    assert_eq!(owner.index, index);
                    damaged += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        ram.flip(byte, (byte % 8) as u32);
    }
    assert!(damaged > 500, "{damaged} reads were refused");
}

/// On a real file, without the page cache if the file system can, by io_uring if the kernel can.
#[test]
fn a_file_serves_many_reads_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash");
    let device = duramen_disk::FileDevice::open(&path, 8 << 20).unwrap();
    let again = duramen_disk::FileDevice::open(&path, 8 << 20);
    assert!(
        matches!(again, Err(duramen_disk::Error::InUse { .. })),
        "two processes on one file"
    );
    let small = duramen_disk::FileDevice::open(&dir.path().join("small"), 1 << 19);
    assert!(matches!(small, Err(duramen_disk::Error::TooSmall { .. })));
    let options = duramen_flash::Options {
        device: Arc::new(device),
    };
    let store = ObjectStore::create(options).unwrap();
    store.add_table(TABLE, 10_000, 500).unwrap();
    for index in 0..10_000 {
        store.write(owner(index), &value(index, 3, 500)).unwrap();
    }
    for ring in [true, false] {
        let mut reader = Reader::new(&store, 64, 500, ring).unwrap();
        let (mut next, mut told) = (0, 0);
        while told < 10_000 {
            while next < 10_000 && reader.submit(owner(next), next.into()).unwrap() {
                next += 1;
            }
            reader.wait().unwrap();
            told += reader.poll(|completed| {
                let index = completed.tag as u32;
                assert_eq!(completed.result.unwrap(), Some(&value(index, 3, 500)[..]));
            });
        }
        assert_eq!(reader.under_way(), 0);
        // Dropped with reads in flight.
        for index in 0..30 {
            assert!(reader.submit(owner(index), 0).unwrap());
        }
        reader.start().unwrap();
    }
}
