//! The backup under power cuts (more than 20,000 in a run), kills, failing devices and damage.
//! Scenarios by their numbers in docs/traps.md, "Scenarios".

mod damage;
mod many;
mod model;

use duramen_base::planted::{Bug, found_by, with_bug};
use std::sync::Arc;

use duramen_backup::{Backup, Chunk, Error, Expected, Geometry, rotate};
use duramen_base::ids::{Level, SegmentId};
use duramen_cipher::KeySource;
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use duramen_sim::disk::{Fault, SimDisk};

use model::{
    GEOMETRY, Run, content, crash_at, fresh_disk, fresh_disk_with, identity, options, some_key,
};

/// Seeds of this run: so many fixed ones (times `DURAMEN_SIM_TIMES`), or the one to be replayed.
fn seeds(fixed: u64) -> Vec<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse::<u64>()
                .unwrap_or_else(|_| panic!("{name} is a number")),
        )
    };
    match number("DURAMEN_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (1..=fixed * number("DURAMEN_SIM_TIMES").unwrap_or(1)).collect(),
    }
}

fn must(seed: u64, what: &str, result: Result<u64, String>) -> u64 {
    match result {
        Ok(operations) => operations,
        Err(problem) => panic!(
            "seed {seed}, {what}: {problem}\nreplay: DURAMEN_SIM_SEED={seed} cargo test -p duramen-sim --test it backup::"
        ),
    }
}

/// Scenarios 1, 2 and 39: a fault at every operation of a trace, then a second crash.
fn sweep(fault: Fault, fixed: u64, steps: u32, stride: u64) {
    sweep_from(&fresh_disk(99), fault, fixed, steps, stride);
}

fn sweep_from(base: &SimDisk, fault: Fault, fixed: u64, steps: u32, stride: u64) {
    let mut crashes = 0u64;
    for seed in seeds(fixed) {
        let operations = must(seed, "no fault", crash_at(base, seed, steps, None));
        let mut at = 1 + seed % stride;
        while at < operations {
            let result = crash_at(base, seed, steps, Some((at, fault)));
            must(seed, &format!("{fault:?} at operation {at}"), result);
            at += stride;
            // The crash at the operation, and the one at the end of the steps after it.
            crashes += 2;
        }
    }
    println!("{fault:?}: {crashes} crashes");
}

#[test]
fn scenario_01_02_39_power_cut_before_every_operation() {
    sweep(Fault::PowerCut, 64, 120, 1);
}

#[test]
fn scenario_01_02_39_power_cut_within_every_operation() {
    sweep(Fault::PowerCutWithin, 66, 120, 1);
}

#[test]
fn scenario_02_kill_at_every_operation() {
    sweep(Fault::Kill, 5, 120, 1);
}

#[test]
fn scenario_39_an_error_at_every_operation_loses_nothing_acknowledged() {
    sweep(Fault::Error, 8, 120, 1);
}

#[test]
fn scenario_39_a_full_disk_at_every_operation_loses_nothing() {
    sweep(Fault::Full, 5, 120, 1);
}

/// Encryption changes no rule: a torn, lost or unsynced sector of cipher text is one of plain text.
#[test]
fn scenario_01_02_39_every_fault_at_every_operation_of_an_encrypted_store() {
    let base = fresh_disk_with(99, Some(some_key()));
    for fault in [
        Fault::PowerCut,
        Fault::PowerCutWithin,
        Fault::Kill,
        Fault::Error,
        Fault::Full,
    ] {
        sweep_from(&base, fault, 4, 120, 1);
    }
}

/// The power fails at each operation of a rotation: the store opens with the old key or with the
/// new one, and the same rotation completes.
#[test]
fn a_rotation_that_was_cut_is_completed_by_the_next_one() {
    let (old, new) = (some_key(), some_key());
    let base = fresh_disk_with(99, Some(old.clone()));
    let opens = |disk: &SimDisk, key: &KeySource| {
        let disk = disk.copy(1).with_key(Some(key.clone()));
        Backup::open(Arc::new(disk), &options(), &Expected::default()).is_ok()
    };
    let whole = base.copy(1);
    rotate(&whole, &new).expect("without a fault");
    let (mut before, mut after) = (0, 0);
    for seed in 0..20 {
        for at in 0..whole.operations() {
            for fault in [
                Fault::PowerCut,
                Fault::PowerCutWithin,
                Fault::Kill,
                Fault::Error,
            ] {
                let disk = base.copy(seed);
                disk.inject(at, fault);
                assert!(rotate(&disk, &new).is_err(), "{fault:?} at {at}");
                if !disk.is_down() {
                    disk.cut_power();
                }
                disk.restart();
                let opened = [&old, &new].map(|key| opens(&disk, key));
                assert!(opened[0] != opened[1], "{fault:?} at {at}, seed {seed}");
                before += u64::from(opened[0]);
                after += u64::from(opened[1]);
                rotate(&disk, &new).expect("it is completed");
                disk.cut_power();
                disk.restart();
                assert!(opens(&disk, &new) && !opens(&disk, &old));
            }
        }
    }
    assert!(before > 50 && after > 50, "{before} {after}");
}

/// A power cut during the creation of a store leaves nothing, or an unfinished creation, or a
/// store; none of them needs a person.
#[test]
fn a_creation_that_was_cut_is_finished_by_the_next_start() {
    let create = |disk: &SimDisk| {
        let shared = Arc::new(disk.clone());
        Backup::create(shared, &options(), &GEOMETRY, &identity())
    };
    let key = some_key();
    let whole = SimDisk::new(1, 4 << 20);
    drop(create(&whole).expect("a store is created"));
    let (mut again, mut opened) = (0, 0);
    for seed in 0..20 {
        for at in 0..whole.operations() {
            for fault in [
                Fault::PowerCut,
                Fault::PowerCutWithin,
                Fault::Kill,
                Fault::Full,
            ] {
                // Every fourth store is encrypted.
                let key = (seed % 4 == 0).then(|| key.clone());
                let disk = SimDisk::new(seed, 4 << 20).with_key(key);
                disk.inject(at, fault);
                drop(create(&disk));
                disk.restart();
                let exists = Backup::exists(&disk)
                    .unwrap_or_else(|error| panic!("{fault:?} at {at}, seed {seed}: {error}"));
                if exists {
                    opened += 1;
                } else {
                    again += 1;
                    drop(
                        create(&disk).unwrap_or_else(|error| panic!("{fault:?} at {at}: {error}")),
                    );
                }
                let mut run = Run::new(disk, seed);
                for _ in 0..20 {
                    run.step().unwrap();
                }
            }
        }
    }
    assert!(again > 100 && opened > 100, "{again} {opened}");
}

/// The next process sees the writes of a killed one, and yet a power cut loses them. (A process
/// that continued a store whose creation had been killed lost all of it in the next power cut:
/// names and superblock were in the cache alone.)
#[test]
fn what_a_killed_creation_left_in_the_cache_is_made_durable_by_the_next_start() {
    let create = |disk: &SimDisk| {
        let shared = Arc::new(disk.clone());
        Backup::create(shared, &options(), &GEOMETRY, &identity())
    };
    let open = |disk: &SimDisk| {
        let shared = Arc::new(disk.clone());
        Backup::open(shared, &options(), &Expected::default())
    };
    let whole = SimDisk::new(1, 4 << 20);
    drop(create(&whole).expect("a store is created"));
    let mut opened = 0;
    for seed in 0..10 {
        for at in 0..whole.operations() {
            let disk = SimDisk::new(seed, 4 << 20);
            disk.inject(at, Fault::Kill);
            drop(create(&disk));
            disk.restart();
            if Backup::exists(&disk).expect("nothing is damaged") {
                opened += 1;
                drop(open(&disk).expect("a whole store"));
            } else {
                drop(create(&disk).expect("an unfinished creation is finished"));
            }
            disk.cut_power();
            disk.restart();
            if let Err(error) = open(&disk) {
                panic!("seed {seed}, killed at operation {at}: {error}");
            }
        }
    }
    assert!(opened > 10, "{opened}");
}

/// A test of the tests: each planted bug is found.
/// Finds the bug by its recorded seed and the operation at which the fault comes.
fn finds(bug: Bug, fault: Fault, (seed, at): (u64, u64)) {
    let base = fresh_disk(99);
    let others = (1..400).flat_map(|seed| {
        let stride = 1 + seed as usize % 3;
        (1..200).step_by(stride).map(move |at| (seed, at))
    });
    found_by((seed, at), others, |(seed, at)| {
        let found = std::panic::catch_unwind(|| {
            with_bug(bug, || crash_at(&base, seed, 150, Some((at, fault))))
        });
        (!matches!(found, Ok(Ok(_)))).then(|| format!("operation {at} of {seed}"))
    });
    // Without the bug this history passes: so the bug was found, and nothing else.
    let without = crash_at(&base, seed, 150, Some((at, fault)));
    must(seed, &format!("no bug, {fault:?} at {at}"), without);
}

#[test]
fn planted_trap_10_slot_in_place_is_found() {
    finds(Bug::SlotInPlace, Fault::PowerCutWithin, (2, 85));
}

#[test]
fn planted_trap_10_slot_before_data_is_found() {
    finds(Bug::SlotBeforeData, Fault::PowerCutWithin, (1, 1));
}

#[test]
fn planted_trap_11_close_from_memory_is_found() {
    finds(Bug::CloseFromMemory, Fault::Kill, (1, 1));
}

#[test]
fn planted_trim_before_header_is_found() {
    finds(Bug::TrimBeforeHeader, Fault::PowerCut, (3, 1));
}

#[test]
fn planted_sync_again_is_found() {
    finds(Bug::SyncAgain, Fault::Error, (2, 112));
}

/// Commits of many rounds of the ring, on a disk that others have filled since the beginning. The
/// first one that fails.
fn commits_on_a_full_disk() -> Result<u64, Error> {
    let geometry = Geometry {
        segment_bytes: 16 << 10,
        wal_bytes: 1 << 20,
        frames: 16,
    };
    let disk = SimDisk::new(5, 8 << 20);
    let backup = Backup::create(Arc::new(disk.clone()), &options(), &geometry, &identity())?;
    assert!(
        backup.flusher().secure_frames(6)? >= 6,
        "the owner takes space ahead (Swapping, 7)"
    );
    disk.set_capacity(disk.used_bytes());
    let capacity = disk.used_bytes();
    let mut commits = 0;
    for segment in 1..=200 {
        let bytes = content(segment, 0, geometry.segment_bytes);
        for (number, chunk) in bytes.chunks(2048).enumerate() {
            let end = (number * 2048 + chunk.len()) as u32;
            backup.stage(Chunk {
                segment: SegmentId(segment),
                epoch: 1,
                kind: Kind::Head,
                offset: (number * 2048) as u32,
                bytes: chunk,
                certificate: Some(Certificate::of(&bytes[..end as usize])),
                open: number == 0,
                close: end == geometry.segment_bytes,
            })?;
            backup.commit(Level::Synced)?;
            commits += 1;
        }
        while backup.flush_step()? {}
        if segment > 2 {
            backup.free(SegmentId(segment - 2))?;
        }
        opens_with(&disk, SegmentId(segment))?;
    }
    assert!(
        disk.used_bytes() <= capacity && commits > 4 * 256,
        "{commits}"
    );
    Ok(commits)
}

/// After a power cut the store opens, wherever in the ring its commits lie, and has this segment.
fn opens_with(disk: &SimDisk, segment: SegmentId) -> Result<(), Error> {
    let disk = disk.copy(segment.0);
    disk.set_capacity(disk.used_bytes());
    disk.cut_power();
    disk.restart();
    let (_, replicas) = Backup::open(Arc::new(disk), &options(), &Expected::default())?;
    let mut replicas = replicas.iter();
    assert!(replicas.any(|replica| replica.segment == segment && replica.closed));
    Ok(())
}

/// The write-ahead log has space for a part of itself: commits go round in that part.
#[test]
fn commits_go_on_in_the_space_that_the_log_has() {
    commits_on_a_full_disk().expect("each commit fits");
}

#[test]
fn planted_commits_beyond_the_space_are_found() {
    let found = with_bug(Bug::CommitBeyondSpace, commits_on_a_full_disk);
    assert!(matches!(found, Err(Error::Full { .. })), "{found:?}");
}

/// A program that maps `wal` kept the pages that a device had lost.
#[test]
fn planted_stale_cache_is_found() {
    finds(Bug::StaleCache, Fault::Error, (30, 8));
}
