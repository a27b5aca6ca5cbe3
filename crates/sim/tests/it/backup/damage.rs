//! Flipped bits and misplaced writes: no wrong byte is ever returned, and no data is silently
//! missing.

use duramen_base::planted::{Bug, with_bug};
use std::collections::BTreeMap;
use std::sync::Arc;

use duramen_backup::{Backup, Chunk, Error, Expected, Geometry, Options, ReplicaInfo};
use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::frame::{SLOT_BYTES, Slot, slot_at};
use duramen_format::segment::Kind;
use duramen_sim::Random;
use duramen_sim::disk::{Fault, SimDisk};

use crate::backup::model::{Crash, Run, content, fresh_disk, identity};

/// Its log is so short that it has all of its space from the beginning.
const SMALL: Geometry = Geometry {
    segment_bytes: 16 << 10,
    wal_bytes: 64 << 10,
    frames: 5,
};

fn options() -> Options {
    Options {
        bypass_bytes: 6000,
        ..Options::default()
    }
}

fn append(backup: &Backup, segment: u64, from: u32, to: u32, close: bool) {
    append_at(backup, 1, segment, from, to, close).unwrap();
}

fn append_at(
    backup: &Backup,
    epoch: u64,
    segment: u64,
    from: u32,
    to: u32,
    close: bool,
) -> Result<(), Error> {
    let chunk = Chunk {
        segment: SegmentId(segment),
        epoch,
        kind: Kind::Head,
        offset: from,
        bytes: &content(segment, from, to),
        certificate: Some(Certificate::of(&content(segment, 0, to))),
        open: from == 0,
        close,
    };
    backup.stage(chunk)
}

/// A store with everything that can be in one: whole frames, a frame with an open part and a tail
/// in its slot, bytes that went directly to a frame, commits alone, a freed frame. Returns the
/// lengths.
fn small_store(clean: bool) -> (SimDisk, BTreeMap<u64, u32>) {
    let disk = SimDisk::new(3, 2 << 20);
    let shared = Arc::new(disk.clone());
    let backup = Backup::create(shared, &options(), &SMALL, &identity()).unwrap();
    append(&backup, 1, 0, 5000, true);
    append(&backup, 2, 0, 700, false);
    backup.commit(Level::Synced).unwrap();
    append(&backup, 3, 0, 7001, false); // directly to its frame
    append(&backup, 2, 700, 900, false);
    backup.commit(Level::Synced).unwrap();
    while backup.flush_step().unwrap() {}
    append(&backup, 5, 0, 300, true);
    backup.commit(Level::Synced).unwrap();
    while backup.flush_step().unwrap() {}
    backup.free(SegmentId(5)).unwrap();
    // Continues until the log was full once: then 2 and 3 have slots with tails.
    let mut length = 900;
    while backup.stats().stalls == 0 {
        append(&backup, 2, length, length + 17, false);
        backup.commit(Level::Synced).unwrap();
        length += 17;
    }
    append(&backup, 3, 7001, 7100, false);
    append(&backup, 4, 0, 555, false);
    backup.commit(Level::Synced).unwrap();
    append(&backup, 4, 555, 600, false);
    backup.commit(Level::Synced).unwrap();
    if clean {
        backup.close().unwrap();
    }
    drop(backup);
    (
        disk,
        BTreeMap::from([(1, 5000), (2, length), (3, 7100), (4, 600)]),
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Everything is there.
    Recovered,
    /// The store does not open.
    Refused,
    /// A replica is reported as damaged.
    Damaged,
    /// A replica is missing: the control log lists it, so its absence is reported.
    Absent,
    /// The last commit is taken for one that a power cut tore.
    LastLost,
}

/// Opens the store to read and checks everything.
fn outcome(disk: &SimDisk, lengths: &BTreeMap<u64, u32>) -> Result<Outcome, String> {
    let opened = Backup::open_to_read(Arc::new(disk.clone()), &options());
    let (backup, found) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            assert!(
                error.to_string().len() > 30,
                "an error says what to do: {error}"
            );
            return Ok(Outcome::Refused);
        }
    };
    let found: BTreeMap<u64, ReplicaInfo> = found
        .into_iter()
        .map(|info| (info.segment.0, info))
        .collect();
    let mut worst = Outcome::Recovered;
    for (id, length) in lengths {
        let Some(info) = found.get(id) else {
            worst = worst.max(Outcome::Absent);
            continue;
        };
        let mut into = vec![0; SMALL.segment_bytes as usize];
        match backup.read(SegmentId(*id), &mut into) {
            Ok(info) if into[..info.length as usize] != content(*id, 0, info.length) => {
                return Err(format!("segment {id}: other bytes are given out"));
            }
            Ok(info) if info.length == *length => {}
            Ok(info) if *id == 4 && info.length == 555 => worst = worst.max(Outcome::LastLost),
            Ok(info) => {
                return Err(format!(
                    "segment {id} has {} of {length} bytes, and nobody says so",
                    info.length
                ));
            }
            Err(Error::DamagedSegment { .. }) => worst = worst.max(Outcome::Damaged),
            Err(error) => return Err(format!("segment {id}, {info:?}: {error}")),
        }
    }
    Ok(worst)
}

/// Flips `count` bits of every byte that is not in a blank block, and of some that are. Returns the
/// number of each outcome.
fn flip_everything(clean: bool, count: u8) -> Result<BTreeMap<(String, Outcome), u32>, String> {
    let (disk, lengths) = small_store(clean);
    let mut random = Random::new(7);
    let mut counts = BTreeMap::new();
    for name in ["superblock", "wal", "frames"] {
        let bytes = disk.bytes_of(name);
        for (number, block) in bytes.chunks(4096).enumerate() {
            let blank = block.iter().all(|byte| *byte == 0);
            let step = if blank { 509 } else { 1 };
            for place in (0..block.len()).step_by(step) {
                let at = (number * 4096 + place) as u64;
                let bit = random.below(8) as u8;
                let flip = || (0..count).for_each(|n| disk.flip(name, at, (bit + 3 * n) % 8));
                flip();
                let outcome = outcome(&disk, &lengths)
                    .map_err(|problem| format!("bit {bit} of byte {at} of {name}: {problem}"))?;
                flip();
                let allowed = match outcome {
                    Outcome::LastLost => !clean && name == "wal",
                    Outcome::Absent => name == "frames",
                    _ => true,
                };
                if !allowed {
                    return Err(format!("bit {bit} of byte {at} of {name}: {outcome:?}"));
                }
                *counts.entry((name.to_owned(), outcome)).or_default() += 1;
            }
        }
    }
    Ok(counts)
}

#[test]
fn a_flipped_bit_anywhere_is_noticed_or_harmless() {
    for (clean, bits) in [(false, 1), (true, 1), (false, 2)] {
        let counts = flip_everything(clean, bits).unwrap();
        println!("clean {clean}, {bits} bits: {counts:?}");
        let count = |name: &str, outcome| counts.get(&(name.to_owned(), outcome)).copied();
        assert!(
            count("superblock", Outcome::Recovered) > Some(8192),
            "two copies"
        );
        if clean {
            // After a clean stop, a start needs nothing of the write-ahead log.
            let needed = [Outcome::Refused, Outcome::LastLost, Outcome::Damaged];
            assert!(
                needed
                    .iter()
                    .all(|&outcome| count("wal", outcome).is_none()),
                "{counts:?}"
            );
        } else if bits == 1 {
            // scan::S1: only the last commit's body may have been torn.
            assert_eq!(count("wal", Outcome::Refused), None, "{counts:?}");
            assert_eq!(count("wal", Outcome::Damaged), None, "{counts:?}");
        } else {
            assert!(count("wal", Outcome::Refused) > Some(1000), "{counts:?}");
        }
        // rebuild::U5: one bit of a slot is put back. The segments here have no entries.
        let least = if bits == 1 { 4000 } else { 10_000 };
        assert!(
            count("frames", Outcome::Damaged) > Some(least),
            "{counts:?}"
        );
    }
}

#[test]
fn planted_no_look_ahead_is_found() {
    assert!(with_bug(Bug::NoLookAhead, || flip_everything(false, 2)).is_err());
}

/// scan::S1, rebuild::U5: flips of the write-ahead log, and of slots, that a start puts back.
#[test]
fn planted_flips_that_are_taken_for_damage_are_found() {
    let lost = |bug| {
        let lost_of = |file: &str| {
            let counts = flip_everything(false, 1).unwrap();
            let counts = counts.into_iter();
            let lost = counts.filter(|((name, outcome), _)| {
                name == file && !matches!(outcome, Outcome::Recovered | Outcome::LastLost)
            });
            lost.map(|(_, count)| count).sum::<u32>()
        };
        match bug {
            Some((bug, file)) => with_bug(bug, || lost_of(file)),
            None => lost_of("wal"),
        }
    };
    assert_eq!(lost(None), 0);
    assert!(lost(Some((Bug::FlippedIsTorn, "wal"))) > 1000);
}

/// rebuild::U5: one flipped bit anywhere in the slots loses nothing.
#[test]
fn planted_flipped_slots_that_are_lost_are_found() {
    let (disk, lengths) = small_store(false);
    let slots = 2 * SLOT_BYTES * u64::from(SMALL.frames);
    let lost = || {
        let outcome_at = |at: u64| {
            disk.flip("frames", at, 3);
            let outcome = outcome(&disk, &lengths).unwrap();
            disk.flip("frames", at, 3);
            (at, outcome)
        };
        let outcomes = (0..slots).step_by(7).map(outcome_at);
        let lost = outcomes.filter(|(_, outcome)| *outcome != Outcome::Recovered);
        lost.collect::<Vec<_>>()
    };
    assert_eq!(lost(), []);
    assert!(!with_bug(Bug::FlippedSlotIsLost, lost).is_empty());
}

#[test]
fn unreadable_sectors_are_refused_or_reported() {
    let (base, lengths) = small_store(false);
    for name in ["superblock", "wal", "frames"] {
        let blocks = base.bytes_of(name).len() as u64 / 4096;
        for block in 0..blocks {
            let disk = base.copy(1);
            disk.make_unreadable(name, block * 4096, 4096);
            outcome(&disk, &lengths)
                .unwrap_or_else(|problem| panic!("block {block} of {name}: {problem}"));
        }
    }
}

/// A damaged store that opens can be used: nothing panics, and the sound data stay sound.
#[test]
fn a_damaged_store_goes_on() {
    let (base, lengths) = small_store(false);
    let mut random = Random::new(11);
    let mut opened = 0;
    for _ in 0..600 {
        let name = ["wal", "frames"][random.below(2) as usize];
        let disk = base.copy(random.next_u64());
        disk.flip(name, random.below(disk.bytes_of(name).len() as u64 / 3), 3);
        let Ok((backup, found)) =
            Backup::open(Arc::new(disk.clone()), &options(), &Expected::default())
        else {
            continue;
        };
        opened += 1;
        let sound: Vec<_> = found
            .iter()
            .filter(|info| !info.damaged && lengths.contains_key(&info.segment.0))
            .collect();
        let mut into = vec![0; SMALL.segment_bytes as usize];
        let readable: Vec<u64> = sound
            .iter()
            .filter(|info| backup.read(info.segment, &mut into).is_ok())
            .map(|info| info.segment.0)
            .collect();
        append(&backup, 9, 0, 4000, true);
        backup.commit(Level::Synced).unwrap();
        while backup.flush_step().unwrap() {}
        for id in readable.into_iter().chain([9]) {
            let info = backup.read(SegmentId(id), &mut into).unwrap();
            assert!(into[..info.length as usize] == content(id, 0, info.length));
        }
    }
    assert!(opened > 300, "{opened} opened");
}

/// A store whose newest slot of a frame is blank or still the one before, and the segments that its
/// start finds damaged.
fn stores_with_a_lost_slot() -> Vec<(SimDisk, Vec<u64>)> {
    let (base, lengths) = small_store(false);
    let bytes = base.bytes_of("frames");
    let mut stores = Vec::new();
    for (frame, pair) in (0..SMALL.frames).zip(bytes.chunks_exact(2 * SLOT_BYTES as usize)) {
        let (first, second) = pair.split_at(SLOT_BYTES as usize);
        let stamp = |slot| Slot::decode(slot).map_or(0, |slot| slot.stamp);
        let (newest, older) = if stamp(first) > stamp(second) {
            (0, second)
        } else {
            (1, first)
        };
        for with in [older, &[0; SLOT_BYTES as usize]] {
            let disk = base.copy(7);
            disk.put("frames", slot_at(frame, newest), with);
            let (_, found) = Backup::open_to_read(Arc::new(disk.copy(8)), &options()).unwrap();
            let listed = found
                .iter()
                .filter(|info| info.damaged && lengths.contains_key(&info.segment.0));
            let damaged: Vec<u64> = listed.map(|info| info.segment.0).collect();
            if !damaged.is_empty() {
                stores.push((disk, damaged));
            }
        }
    }
    stores
}

/// The first start after the loss noticed it. Its first commit wrote a header that asked for the
/// older slot, so the next start found a shorter replica sound: a recovery lost acknowledged data.
/// Where commits of the replica were left, they kept the whole log from being trimmed.
#[test]
fn what_was_lost_stays_lost_and_does_not_hold_up_the_log() {
    let stores = stores_with_a_lost_slot();
    assert!(stores.len() > 2, "{} stores", stores.len());
    for (disk, damaged) in stores {
        let open = || Backup::open(Arc::new(disk.clone()), &options(), &Expected::default());
        let is_damaged = |found: &[ReplicaInfo], id: u64| {
            let info = found.iter().find(|info| info.segment.0 == id);
            info.is_some_and(|info| info.damaged)
        };
        for life in 0..3 {
            let (backup, found) = open().unwrap();
            for id in &damaged {
                assert!(is_damaged(&found, *id), "segment {id} in life {life}");
                let info = found.iter().find(|info| info.segment.0 == *id).unwrap();
                let (from, to) = (info.length, info.length + 1);
                let continued = append_at(&backup, info.epoch.max(1), *id, from, to, false);
                assert!(matches!(continued, Err(Error::UnknownSegment { .. })));
            }
            // Several times the length of the log.
            for n in 0..40 {
                let id = 100 + life * 40 + n;
                append(&backup, id, 0, 5_000, true);
                backup.commit(Level::Synced).unwrap();
                while backup.flush_step().unwrap() {}
                backup.free(SegmentId(id)).unwrap();
            }
        }
        // Opened again, and whole. The header may still have the mark.
        let (backup, _) = open().unwrap();
        for id in &damaged {
            append_at(&backup, 2, *id, 0, 300, false).unwrap();
        }
        backup.commit(Level::Synced).unwrap();
        drop(backup);
        let (_, found) = open().unwrap();
        for id in &damaged {
            assert!(!is_damaged(&found, *id), "segment {id} was opened again");
        }
    }
}

/// Writes that go elsewhere, or nowhere, without an error. Acknowledged data may be lost, but each
/// byte that is returned is right.
#[test]
fn misdirected_and_lost_writes_never_give_out_wrong_bytes() {
    let base = fresh_disk(5);
    for fault in [Fault::Misdirected, Fault::Lost] {
        for seed in 1..12 {
            for at in (2..130).step_by(3) {
                let mut run = Run::new(base.copy(seed * 1000 + at), seed);
                run.disk.inject(at, fault);
                for _ in 0..100 {
                    // Its own reads may find the damage already.
                    if run.step_unchecked().is_err() {
                        break;
                    }
                }
                run.stop(Crash::Power);
                run.nothing_wrong_is_read()
                    .unwrap_or_else(|problem| panic!("{fault:?} at {at}, seed {seed}: {problem}"));
            }
        }
    }
}

/// After a failed sync no write is accepted, acknowledged data can still be read, and the next
/// opening finds them.
#[test]
fn a_failed_sync_is_final_for_writes_and_not_for_reads() {
    let (disk, lengths) = small_store(false);
    let open = || Backup::open(Arc::new(disk.clone()), &options(), &Expected::default());
    let (backup, _) = open().unwrap();
    append(&backup, 9, 0, 100, false);
    backup.commit(Level::Buffered).unwrap();
    disk.inject(disk.operations(), Fault::Error);
    assert!(matches!(backup.sync(), Err(Error::Failed { .. })));
    assert!(
        matches!(backup.sync(), Err(Error::Failed { .. })),
        "a second try is not believed"
    );
    assert!(matches!(
        backup.commit(Level::Synced),
        Err(Error::Failed { .. })
    ));
    assert!(matches!(backup.flush_step(), Err(Error::Failed { .. })));
    assert!(backup.stats().failed.contains("sync the write-ahead log"));
    let mut into = vec![0; SMALL.segment_bytes as usize];
    for (id, length) in &lengths {
        assert_eq!(
            backup.read(SegmentId(*id), &mut into).unwrap().length,
            *length
        );
    }
    drop(backup);
    disk.cut_power();
    disk.restart();
    assert_eq!(outcome(&disk, &lengths), Ok(Outcome::Recovered));
    open().unwrap();
}
