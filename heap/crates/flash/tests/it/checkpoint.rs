//! Checkpoints: a later process continues from the last one, whatever happened since, and never
//! with a wrong object.

use crate::common::{Dice, Ram, value};
use duramen_flash::{BLOCK_BYTES, Error, ObjectStore, Owner, Scratch};
use std::collections::BTreeMap;
use std::path::Path;

const TABLE: u32 = 2;
const OBJECTS: u32 = 1500;
const LONGEST: usize = 300;

fn owner(index: u32) -> Owner {
    Owner {
        table: TABLE,
        index,
    }
}

fn assert_holds(store: &ObjectStore, model: &BTreeMap<u32, Vec<u8>>) {
    let mut scratch = Scratch::new(LONGEST);
    for index in 0..OBJECTS {
        let found = store.read(owner(index), &mut scratch).unwrap();
        assert_eq!(
            found,
            model.get(&index).map(Vec::as_slice),
            "object {index}"
        );
    }
}

fn scribble(store: &ObjectStore, model: &mut BTreeMap<u32, Vec<u8>>, dice: &mut Dice, count: u32) {
    for _ in 0..count {
        let index = dice.roll(OBJECTS.into()) as u32;
        if dice.roll(10) == 0 {
            store.free(owner(index)).unwrap();
            model.remove(&index);
        } else {
            let bytes = value(index, dice.roll(1 << 30) as u32, LONGEST);
            store.write(owner(index), &bytes).unwrap();
            model.insert(index, bytes);
        }
    }
}

/// Crashes at many moments after checkpoints, several lives long.
#[test]
fn a_crash_leaves_the_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let mut dice = Dice(1);
    let mut ram = Ram::new(24);
    let mut model = BTreeMap::new();
    {
        let store = ram.store();
        store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
        scribble(&store, &mut model, &mut dice, 2000);
        store.checkpoint(&path, b"blob 0").unwrap();
    }
    for life in 1..30u32 {
        let restored = ObjectStore::restore(ram.options(), &path).unwrap();
        assert_eq!(restored.blob, format!("blob {}", life - 1).as_bytes());
        assert_holds(&restored.store, &model);
        let mut after = model.clone();
        let many = dice.roll(9000) as u32;
        scribble(&restored.store, &mut after, &mut dice, many);
        restored
            .store
            .checkpoint(&path, format!("blob {life}").as_bytes())
            .unwrap();
        model = after.clone();
        // More is written, the garbage collector works, and the power goes.
        let many = dice.roll(9000) as u32;
        scribble(&restored.store, &mut after, &mut dice, many);
        ram = Ram::of(ram.copy());
    }
}

fn refused(ram: &Ram, path: &Path) -> Error {
    match ObjectStore::restore(ram.options(), path) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error,
    }
}

#[test]
fn a_checkpoint_that_the_device_outlived_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let ram = Ram::new(16);
    {
        let store = ram.store();
        store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
        store.checkpoint(&old, b"").unwrap();
        store.checkpoint(&new, b"").unwrap();
    }
    assert!(matches!(refused(&ram, &old), Error::Superseded { .. }));
    // Made, but the crash came before the superblock was written: both are good.
    let before = Ram::of(ram.copy());
    let store = ObjectStore::restore(before.options(), &new).unwrap().store;
    let third = dir.path().join("third");
    let moment = before.copy();
    store.checkpoint(&third, b"").unwrap();
    drop(store);
    for good in [&new, &third] {
        ObjectStore::restore(Ram::of(moment.clone()).options(), good).unwrap();
    }
    // Given up.
    let store = ObjectStore::restore(before.options(), &third)
        .unwrap()
        .store;
    store.give_up_checkpoint().unwrap();
    drop(store);
    assert!(matches!(refused(&before, &third), Error::Superseded { .. }));
    // Another device, and the same one created again.
    assert!(matches!(
        refused(&Ram::new(16), &new),
        Error::Superseded { .. }
    ));
    drop(ram.store());
    assert!(matches!(refused(&ram, &new), Error::Superseded { .. }));
}

/// A folder for thousands of files: in memory if the machine has a place for that.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn assert_damaged(ram: &Ram, path: &Path, what: &str) {
    let error = refused(ram, path);
    let named = matches!(
        error,
        Error::DamagedCheckpoint { .. } | Error::Foreign { .. }
    );
    assert!(named, "{what}: {error}");
}

/// Each byte of a checkpoint is damaged, and it is cut at each length: refused. The restored file
/// is taken.
#[test]
fn a_damaged_checkpoint_is_refused() {
    let dir = folder();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(8);
    let mut model = BTreeMap::new();
    {
        let store = ram.store();
        store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
        scribble(&store, &mut model, &mut Dice(3), 300);
        store.checkpoint(&path, b"the caller's own").unwrap();
    }
    let mut whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        whole[at] ^= 1 << (at % 8);
        std::fs::write(&path, &whole).unwrap();
        assert_damaged(&ram, &path, &format!("byte {at}"));
        whole[at] ^= 1 << (at % 8);
    }
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_damaged(&ram, &path, &format!("cut to {length}"));
    }
    let longer = [&whole[..], &[0]].concat();
    std::fs::write(&path, &longer).unwrap();
    assert_damaged(&ram, &path, "a byte more");
    std::fs::write(&path, &whole).unwrap();
    let store = ObjectStore::restore(ram.options(), &path).unwrap().store;
    assert_holds(&store, &model);
}

/// The header with another format, and a valid checksum.
#[test]
fn a_checkpoint_of_another_version_is_refused_and_says_so() {
    let dir = folder();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(8);
    ram.store().checkpoint(&path, b"").unwrap();
    let mut whole = std::fs::read(&path).unwrap();
    for (format, older) in [
        (1u32, true),
        (2, true),
        (4, false),
        (u32::MAX, false),
        (0x1_0002, false),
    ] {
        whole[8..12].copy_from_slice(&format.to_le_bytes());
        let crc = crc32c::crc32c(&whole[..4092]);
        whole[4092..4096].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&path, &whole).unwrap();
        let error = refused(&ram, &path);
        let named = match older {
            true => matches!(error, Error::Older { found: 1..=2, .. }),
            false => matches!(error, Error::Newer { found, .. } if found > 3),
        };
        assert!(named, "format {format}: {error}");
    }
    std::fs::remove_file(&path).unwrap();
    let error = refused(&ram, &path);
    assert!(matches!(error, Error::NoCheckpoint { .. }), "{error}");
}

const PIECE: usize = 256 << 10;

fn piece(whole: &[u8], number: usize) -> std::ops::Range<usize> {
    let at = 4096 + number * PIECE;
    at..(at + PIECE).min(whole.len())
}

/// Tables of all lengths over many pieces of the file, more tables than one piece can name: each
/// location comes to its place. Whole pieces of another place or of another checkpoint are refused.
#[test]
fn a_checkpoint_of_many_pieces_is_put_together_rightly() {
    let dir = folder();
    let (path, next) = (dir.path().join("checkpoint"), dir.path().join("next"));
    let ram = Ram::new(64);
    let blob: Vec<u8> = (0..600_000u32).map(|n| (n * 7 / 3) as u8).collect();
    let mut model = BTreeMap::new();
    let mut dice = Dice(9);
    {
        let store = ram.store();
        for table in 0..20_000u32 {
            let objects = if table % 1000 == 0 { 70_001 } else { table % 5 };
            store.add_table(table, objects, 64).unwrap();
            for index in 0..objects.min(3) {
                let index = objects - 1 - index * (objects / 3);
                let owner = Owner { table, index };
                let bytes = value(index, table, 64);
                if dice.roll(3) > 0 {
                    store.write(owner, &bytes).unwrap();
                    model.insert(owner, bytes);
                }
            }
        }
        store.checkpoint(&path, &blob).unwrap();
        store.checkpoint(&next, &blob).unwrap();
    }
    let whole = std::fs::read(&next).unwrap();
    assert!(whole.len() > 25 * PIECE, "{} bytes", whole.len());
    let mut swapped = whole.clone();
    let (one, two) = (piece(&whole, 3), piece(&whole, 7));
    swapped[one.clone()].copy_from_slice(&whole[two.clone()]);
    swapped[two].copy_from_slice(&whole[one]);
    std::fs::write(&next, &swapped).unwrap();
    assert_damaged(&ram, &next, "two parts have changed places");
    let other = std::fs::read(&path).unwrap();
    for number in [0, 1, 20, whole.len() / PIECE] {
        let mut mixed = whole.clone();
        mixed[piece(&whole, number)].copy_from_slice(&other[piece(&whole, number)]);
        std::fs::write(&next, &mixed).unwrap();
        assert_damaged(&ram, &next, "a part of another checkpoint");
    }
    std::fs::write(&next, &whole).unwrap();
    let restored = ObjectStore::restore(ram.options(), &next).unwrap();
    assert!(restored.blob == blob);
    let mut scratch = Scratch::new(64);
    for (owner, bytes) in &model {
        let found = restored.store.read(*owner, &mut scratch).unwrap();
        assert_eq!(found, Some(&bytes[..]), "{owner}");
    }
    let live = restored.store.stats().live_bytes;
    // The counts of live objects are right: everything can be freed, and then nothing is live.
    for owner in model.keys() {
        restored.store.free(*owner).unwrap();
    }
    assert!(live > 0 && restored.store.stats().live_bytes == 0);
}

/// Blocks of the last checkpoint are not overwritten; when they fill the device, an error reports
/// it, and giving the checkpoint up helps.
#[test]
fn held_blocks_are_not_reused_before_the_next_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(8);
    let store = ram.store();
    store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
    for index in 0..OBJECTS {
        store.write(owner(index), &[1; LONGEST]).unwrap();
    }
    store.checkpoint(&path, b"").unwrap();
    let mut written = 0u32;
    let error = loop {
        match store.write(owner(written % OBJECTS), &[2; LONGEST]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(
            u64::from(written) * 316 < 40 * BLOCK_BYTES as u64,
            "it is never full"
        );
    };
    assert!(
        matches!(error, Error::Full { held_bytes, .. } if held_bytes > 0),
        "{error}"
    );
    store.give_up_checkpoint().unwrap();
    for index in 0..OBJECTS {
        store.write(owner(index), &[3; LONGEST]).unwrap();
    }
    let mut scratch = Scratch::new(LONGEST);
    assert_eq!(
        store.read(owner(7), &mut scratch).unwrap(),
        Some(&[3; LONGEST][..])
    );
}

/// Garbage is collected while checkpoints are made on a nearly full device: blocks that become held
/// while they are being emptied free nothing, and the reserve may run out.
#[test]
fn checkpoints_while_a_full_device_is_collected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    let ram = Ram::new(16);
    let store = ram.store();
    store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut model = BTreeMap::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                store.checkpoint(&path, b"").unwrap();
            }
        });
        let mut dice = Dice(11);
        for version in 0..30_000 {
            let index = dice.roll(OBJECTS.into()) as u32;
            let bytes = value(index, version, LONGEST);
            match store.write(owner(index), &bytes) {
                Ok(()) => {
                    model.insert(index, bytes);
                }
                Err(Error::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    store.checkpoint(&path, b"").unwrap();
    assert_holds(&store, &model);
    drop(store);
    let restored = ObjectStore::restore(ram.options(), &path).unwrap();
    assert_holds(&restored.store, &model);
}

const CHILD: &str = "DURAMEN_FLASH_TEST_CHILD";
/// The versions of the child's objects in the state of checkpoint `round`.
fn version(index: u32, round: u32) -> u32 {
    round - (round + index) % 3
}

/// The child until it is killed: rounds of overwrites, each closed by a checkpoint, and more
/// overwrites after it.
fn live_until_killed(dir: &Path) -> ! {
    let device = duramen_disk::FileDevice::open(&dir.join("flash"), 3 << 20).unwrap();
    let options = duramen_flash::Options {
        device: std::sync::Arc::new(device),
    };
    let store = ObjectStore::create(options).unwrap();
    store.add_table(TABLE, OBJECTS, LONGEST).unwrap();
    for round in 3.. {
        for index in 0..OBJECTS {
            let bytes = value(index, version(index, round), LONGEST);
            if round == 3 || version(index, round) == round {
                store.write(owner(index), &bytes).unwrap();
            }
        }
        let path = dir.join("checkpoint");
        store.checkpoint(&path, &round.to_le_bytes()).unwrap();
        println!("round {round}");
    }
    unreachable!("it is killed");
}

/// A process is killed at many moments: all objects of its last checkpoint are there, and none is
/// ever wrong.
#[test]
fn kill_9_leaves_the_last_checkpoint() {
    use std::io::BufRead;
    if let Some(dir) = std::env::var_os(CHILD) {
        live_until_killed(Path::new(&dir));
    }
    for life in 0..4u32 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "checkpoint::kill_9_leaves_the_last_checkpoint",
            ])
            .env(CHILD, dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = 0;
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines {
            let line = line.unwrap();
            if let Some(round) = line.strip_prefix("round ") {
                said = round.parse().unwrap();
            }
            if said >= 3 + life * 2 {
                break; // killed at any point of its work
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(said >= 3, "the child made no checkpoint");
        let device = duramen_disk::FileDevice::open(&dir.path().join("flash"), 0).unwrap();
        let options = duramen_flash::Options {
            device: std::sync::Arc::new(device),
        };
        let restored = ObjectStore::restore(options, &dir.path().join("checkpoint")).unwrap();
        let round = u32::from_le_bytes(restored.blob[..].try_into().unwrap());
        assert!(
            round >= said,
            "checkpoint {said} was told of, {round} is found"
        );
        let mut scratch = Scratch::new(LONGEST);
        for index in 0..OBJECTS {
            let found = restored.store.read(owner(index), &mut scratch).unwrap();
            let wanted = value(index, version(index, round), LONGEST);
            assert_eq!(found, Some(&wanted[..]), "object {index}");
        }
    }
}
