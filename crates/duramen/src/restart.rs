//! Restart: opens a disk and returns a serving store, either a new one or the stored one.
//!
//! **Invariants** (docs/protocols.md, "Restart")
//! - P1: nothing is written before everything listed has been read and verified. A refused
//!   directory stays unchanged.
//! - P2: every segment that the newest control segment lists is loaded; unlisted segments never are
//!   (docs/traps.md, trap 1).
//! - P3: new ids and versions are above all that were ever given.
//! - P4: segments that were open are closed at their ends, in the same commit as the new control
//!   segment; heads continue in new ones.

use crate::accepted::Left;
use crate::control;
use crate::durable::{Durable, LOCAL, Local, Replicas};
use crate::heat::Heat;
use crate::load::{self, Failed, Loaded};
use crate::{DiskMode as Mode, Error, Options, Phase, Progress};
use duramen_backup::disk::Disk;
use duramen_backup::{Backup, Expected, Geometry, Identity, ReplicaInfo};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::units::MIB;
use duramen_cluster::control::{State, segments_max};
use duramen_cluster::replication::{Config, Found, Master};
use duramen_engine::{LogOptions, Mode as EngineMode, TableId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Segment ids that a restart skips: more than can have been given without trace (a pass reserves a
/// few dozen).
const ID_GAP: u64 = 1 << 20;

/// Largest part of the write-ahead log for a group of entries: with the rest of its commit
/// (`PART_OF_WAL`) it still fits if the disk has no free frame.
const GROUP_PART_OF_WAL: u64 = 8;
/// A control segment of this length, and twice as long as its snapshot, is replaced: this is rare,
/// and the result is quick to read at a restart.
pub(crate) const CONTROL_ROLL_BYTES: u32 = 256 << 10;
/// A cache whose memory has no room for what a load usually keeps (engine::load::R8) tries these
/// parts of its limit, one after the other.
const LESSER_PARTS: [f64; 4] = [0.7, 0.4, 0.15, 0.0];
/// The engine's longest segment.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// Fewest segments of memory for which longer segments are chosen.
const MEMORY_SEGMENTS_MIN: u64 = 128;

/// Opens the store on a disk; creates it if there is none. `threads`: number of loading threads; 0
/// = two per core.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    options: &Options,
    threads: usize,
    progress: &(dyn Fn(&Progress) + Send + Sync),
) -> Result<(Durable, Loaded), Error> {
    let started = Instant::now();
    let settings = backup_options(options);
    let expected = Expected {
        cluster: Some(options.cluster.clone()),
        server: None,
    };
    progress(&Progress::new(Phase::Log, started));
    match Backup::open(disk.clone(), &settings, &expected) {
        Ok((backup, replicas)) => restart(backup, &replicas, options, threads, started, progress),
        Err(duramen_backup::Error::Absent { .. }) => {
            progress(&Progress::new(Phase::Making, started));
            let backup = create(disk, &settings, options)?;
            restart(backup, &[], options, threads, started, progress)
        }
        Err(error) => Err(Error::Disk(error)),
    }
}

fn backup_options(options: &Options) -> duramen_backup::Options {
    duramen_backup::Options {
        memory_bytes: duramen_backup::Options::copies_of(options.engine.memory_bytes),
        ..duramen_backup::Options::default()
    }
}

fn create(
    disk: Arc<dyn Disk>,
    settings: &duramen_backup::Options,
    options: &Options,
) -> Result<Backup, Error> {
    let segment_bytes = fitting_segment_bytes(options);
    let wanted = check_length(options, segment_bytes, &disk.label())?;
    let wal_bytes = options.wal_bytes.checked_next_multiple_of(MIB);
    let wal_bytes = wal_bytes.ok_or_else(|| Error::Misfit {
        place: disk.label(),
        reason: format!("a write-ahead log cannot have {} bytes", options.wal_bytes),
    })?;
    let geometry = Geometry {
        segment_bytes: segment_bytes as u32,
        wal_bytes,
        frames: frames_of(wanted, options.mode),
    };
    let identity = Identity {
        cluster: options.cluster.clone(),
        server: random() | 1, // never 0
        hash_seed: options.engine.hash_seed.unwrap_or_else(random),
    };
    Backup::create(disk, settings, &geometry, &identity).map_err(Error::Disk)
}

/// Segment size of a new log: larger if the list of all segments would not fit into one.
fn fitting_segment_bytes(options: &Options) -> u64 {
    let memory = options.engine.memory_bytes;
    let mut bytes = duramen_engine::segment_bytes(memory);
    while bytes < SEGMENT_BYTES_MAX
        && bytes * 2 * MEMORY_SEGMENTS_MIN <= memory
        && segments_wanted(options, bytes) > segments_max(bytes)
    {
        bytes *= 2;
    }
    bytes
}

/// Checks that a control segment has room for the list of all segments that the log may have on
/// disk.
pub(crate) fn check_length(
    options: &Options,
    segment_bytes: u64,
    place: &str,
) -> Result<u64, Error> {
    let (wanted, most) = (
        segments_wanted(options, segment_bytes),
        segments_max(segment_bytes),
    );
    if wanted <= most {
        return Ok(wanted);
    }
    Err(Error::Misfit {
        place: place.to_owned(),
        reason: format!(
            "a log of {} MiB with segments of {} KiB is too long, {} MiB is the most: less `flash-size`, \
             `disk-size` or `disk-expansion` makes it shorter; a new one has longer segments with more \
             `memory`, up to 8 MiB from 2 GiB on",
            wanted.saturating_mul(segment_bytes).div_ceil(1 << 20),
            segment_bytes >> 10,
            (most * segment_bytes) >> 20,
        ),
    })
}

/// Fewest segments of a log with which each head can write: a segment for each, the reserves of
/// `swap::disk_room`, which have one for each head too, and a few to clean.
fn segments_min(options: &Options) -> u64 {
    let heads = match options.engine.heads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        heads => heads,
    };
    let heads = heads as u64;
    (12 + 2 * heads + heads / 4).max(16)
}

/// The setting `disk-size` and the bytes that the log gets instead, if it is too short for each
/// head to write.
pub(crate) fn raised_disk(here: &Geometry, options: &Options) -> Option<(u64, u64)> {
    let raised = segments_min(options) * u64::from(here.segment_bytes);
    (1..raised)
        .contains(&options.disk_bytes)
        .then_some((options.disk_bytes, raised))
}

/// Segments that the log may have on disk.
pub(crate) fn segments_wanted(options: &Options, segment_bytes: u64) -> u64 {
    let bytes = if options.disk_bytes > 0 {
        options.disk_bytes
    } else {
        let flash = options.engine.flash.as_ref();
        let data =
            options.engine.memory_bytes_max() + flash.map_or(0, |flash| flash.device.bytes());
        (data as f64 * options.disk_expansion.max(1.0)) as u64
    };
    bytes.div_ceil(segment_bytes).max(segments_min(options))
}

/// Segments of a member's log, and the share of its frames for recoveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberDisk {
    /// Most segments of its log, on the disks of others.
    pub segments: u64,
    /// Frames that new copies of lost replicas leave free.
    pub refills_leave: u64,
}

/// The limits of a member, which keeps as many replicas for others as others keep for it. When its
/// log is recovered, its old replicas stay until all of its data has new ones: so the other
/// members need room for both. With `disk-expansion` 2 that is the reason why a log has less than
/// twice its data; with a small `disk-size` the log keeps what it has.
pub fn member_disk(
    options: &Options,
    segment_bytes: u64,
    replicas: u64,
    frames: u32,
) -> MemberDisk {
    let wanted = segments_wanted(options, segment_bytes);
    let flash = options.engine.flash.as_ref();
    let data = options.engine.memory_bytes_max() + flash.map_or(0, |flash| flash.device.bytes());
    let data = data.div_ceil(segment_bytes);
    let (frames, replicas) = (u64::from(frames), replicas.max(1));
    let fits = frames.saturating_sub(data) / replicas;
    let segments = fits.clamp(wanted.min(data + data / 4), wanted);
    // Less than all of the rest: copies may be spread unevenly. If it is small, copies come first.
    let left = frames.saturating_sub(replicas * segments);
    MemberDisk {
        segments,
        refills_leave: if left < data / 2 { 0 } else { left / 4 * 3 },
    }
}

/// Largest number of frames of a small store in a directory: a frame costs 16 KiB before it is
/// used, so up to here there may be more than the options require, and the store can grow with
/// them.
const FRAMES_SMALL: u64 = 4096;

/// Frames for this many segments, with some more for control segments and for victims whose swap is
/// in flight.
fn frames_needed(segments: u64) -> u64 {
    segments + segments / 8 + 16
}

/// Frames of a directory that is created for this many segments.
fn frames_of(segments: u64, mode: Mode) -> u32 {
    let needed = frames_needed(segments);
    let frames = match mode {
        Mode::Raw => needed,
        Mode::Buffered | Mode::Direct => needed.max(FRAMES_SMALL.min(4 * needed)),
    };
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// Segments that fit into this many frames: the inverse of `frames_needed`, or one less.
fn segments_of(frames: u32) -> u64 {
    u64::from(frames).saturating_sub(16) * 8 / 9
}

/// Frames of a copy: as many as here, or as many as the options now require (memory or flash may
/// have been added since).
pub(crate) fn frames_of_copy(here: &Geometry, options: &Options) -> u32 {
    let wanted = segments_wanted(options, u64::from(here.segment_bytes));
    here.frames.max(frames_of(wanted, options.mode))
}

/// Bytes of segments that the directory has room for, and those that the options require, if the
/// latter are more: it was created for less memory or flash.
pub(crate) fn lacking_room(here: &Geometry, options: &Options) -> Option<(u64, u64)> {
    let segment_bytes = u64::from(here.segment_bytes);
    let wanted = segments_wanted(options, segment_bytes);
    let lacks = u64::from(here.frames) < frames_needed(wanted);
    lacks.then(|| {
        (
            segments_of(here.frames) * segment_bytes,
            wanted.saturating_mul(segment_bytes),
        )
    })
}

/// A number that cannot be guessed or repeated.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

fn restart(
    backup: Backup,
    replicas: &[ReplicaInfo],
    options: &Options,
    threads: usize,
    started: Instant,
    progress: &(dyn Fn(&Progress) + Send + Sync),
) -> Result<(Durable, Loaded), Error> {
    let state = control::read(&backup, replicas, options.version_floor)?;
    // The control segment counts until the next one does.
    let newest = control::newest(replicas).map(|replica| replica.segment);
    backup.forget_rebuilt(&|id| state.segments.contains_key(&id) || newest == Some(id));
    let fill = |left: &Left, kept_part| {
        let listed = check_complete(&backup, &state, replicas, left)?;
        let engine = make_engine(&backup, &state, replicas, left.version_max(), options)?;
        for (table, info) in &state.tables {
            let restored =
                engine
                    .tables()
                    .restore(TableId(*table), &info.name, info.floor, info.level);
            restored.map_err(Error::from)?;
        }
        let server = backup.identity().server;
        let heat = Heat::new(options, &engine, server, backup.heat_cipher());
        let manifest = load::Manifest {
            state: &state,
            listed: &listed,
            left: &left.images,
            kept: heat.as_ref().map_or(&[], Heat::segments),
            kept_part,
        };
        let loaded = load::load(&engine, &backup, &manifest, threads, started, progress)?;
        Ok((engine, heat, loaded))
    };
    let (left, (engine, heat, mut loaded)) =
        fill_what_is_left((&backup, &state, replicas), options, fill)?;
    loaded.clean = state.clean;
    loaded.took = started.elapsed();
    // Until these keys are removed, the next start needs the former clock (docs/protocols.md,
    // "Restart" 8).
    let clock_floor_ms = if loaded.has_revived {
        backup.clock().ms()
    } else {
        0
    };
    control::note_flipped(&backup, std::mem::take(&mut loaded.mended));
    let master = make_master(&backup, state, &backup.replicas());
    let local = Local::new(backup, options, heat, clock_floor_ms);
    let durable = Durable::new(options, engine, master, Replicas::Local(local));
    // P4. Without room it stays staged: reads are served, writes are refused until there is room.
    match durable.commit_once(&mut durable.common.lock(), Level::Synced) {
        Ok(()) | Err(Error::DiskFull(_)) => {}
        Err(error) => return Err(error),
    }
    if let Replicas::Local(local) = &durable.replicas {
        left.settle(&durable, &local.backup)?;
    }
    progress(&Progress {
        bytes_done: loaded.bytes,
        bytes_total: loaded.bytes,
        entries_done: loaded.entries,
        entries_total: loaded.entries,
        ..Progress::new(Phase::Done, started)
    });
    Ok((durable, loaded))
}

/// Loads with `fill`; if that is refused for damage whose loss was accepted, without it.
fn fill_what_is_left<T>(
    (backup, state, replicas): (&Backup, &State, &[ReplicaInfo]),
    options: &Options,
    fill: impl Fn(&Left, Option<f64>) -> Result<T, Failed>,
) -> Result<(Left, T), Error> {
    let all = Left::default();
    let refused = match fill_what_fits(options, |part| fill(&all, part)) {
        Err(refused @ Error::Damaged { .. }) => refused,
        filled => return Ok((all, filled?)),
    };
    let left = Left::of(backup, state, replicas)?.ok_or(refused)?;
    let filled = fill_what_fits(options, |part| fill(&left, part))?;
    Ok((left, filled))
}

/// Loads with `fill`. A cache without memory for everything keeps less, in a new engine.
fn fill_what_fits<T>(
    options: &Options,
    fill: impl Fn(Option<f64>) -> Result<T, Failed>,
) -> Result<T, Error> {
    let mut filled = fill(None);
    for part in LESSER_PARTS {
        let is_too_much = matches!(&filled, Err(failed) if failed.lacks_memory);
        if !is_too_much || options.engine.mode != EngineMode::Cache {
            break;
        }
        filled = fill(Some(part));
    }
    filled.map_err(|failed| failed.error)
}

/// Checks that every listed segment is there as the control log describes it, but for those of
/// which a part is left.
fn check_complete(
    backup: &Backup,
    state: &State,
    replicas: &[ReplicaInfo],
    left: &Left,
) -> Result<Vec<ReplicaInfo>, Error> {
    let damaged = |reason| control::damaged(backup, reason);
    let by_id: BTreeMap<SegmentId, &ReplicaInfo> = replicas
        .iter()
        .map(|replica| (replica.segment, replica))
        .collect();
    let mut found = Vec::with_capacity(state.segments.len());
    for (id, listed) in &state.segments {
        let Some(replica) = by_id.get(id) else {
            return Err(damaged(format!(
                "segment {id} ({}) is part of the data and is missing",
                listed.kind.name()
            )));
        };
        if left.images.contains_key(id) {
            found.push(**replica);
            continue;
        }
        let is_whole = listed
            .closed
            .is_none_or(|certificate| replica.certificate() == certificate);
        if replica.damaged || replica.kind != listed.kind || !is_whole {
            return Err(damaged(format!(
                "segment {id} ({}) is damaged: {} bytes of it are valid{}",
                listed.kind.name(),
                replica.length,
                listed
                    .closed
                    .map_or(String::new(), |all| format!(", it has {}", all.length)),
            )));
        }
        // A closed replica is whole, whatever its epoch.
        if listed.closed.is_none() && !replica.closed && replica.epoch < listed.epoch {
            return Err(damaged(format!(
                "segment {id} is of replication epoch {}, the data need {}",
                replica.epoch, listed.epoch
            )));
        }
        found.push(**replica);
    }
    Ok(found)
}

/// Makes the engine, with ids and versions above all that were ever given (P3).
fn make_engine(
    backup: &Backup,
    state: &State,
    replicas: &[ReplicaInfo],
    lost_version: u64,
    options: &Options,
) -> Result<Arc<duramen_engine::Store>, Error> {
    let geometry = backup.geometry();
    let segment_bytes = u64::from(geometry.segment_bytes);
    let seen = replicas
        .iter()
        .map(|replica| replica.segment.0 + 1)
        .max()
        .unwrap_or(1);
    let first_segment = if replicas.is_empty() {
        1
    } else {
        seen.max(state.next_segment.0) + ID_GAP
    };
    let room = segments_of(geometry.frames);
    let log = LogOptions {
        disk_segments_max: check_length(options, segment_bytes, &backup.disk().label())?.min(room),
        disk_segments_room: room,
        segments_found: state.segments.len() as u64,
        first_segment,
        version_floor: state.safe_version.max(lost_version) + 1,
        expired_until_ms: backup.clock().ms(),
        doubts_clock: true,
        level: options.level,
        segment_bytes,
        two_levels: options.two_levels,
        group_bytes_max: geometry.wal_bytes / GROUP_PART_OF_WAL,
        ..LogOptions::new(backup.identity().server)
    };
    let engine = duramen_engine::Options {
        hash_seed: Some(backup.identity().hash_seed),
        log: Some(log),
        ..options.engine.clone()
    };
    Ok(duramen_engine::Store::new(engine)?)
}

fn make_master(backup: &Backup, state: State, replicas: &[ReplicaInfo]) -> Master {
    let found: Vec<Found> = replicas
        .iter()
        .map(|replica| Found {
            backup: LOCAL,
            segment: replica.segment,
            epoch: replica.epoch,
            certificate: replica.certificate(),
            closed: replica.closed,
        })
        .collect();
    Master::new(replication_config(backup), state, &[LOCAL], &found)
}

/// One replica, on this disk.
pub(crate) fn replication_config(backup: &Backup) -> Config {
    let segment_bytes = backup.geometry().segment_bytes;
    Config::one_backup(
        backup.identity().server,
        segment_bytes,
        CONTROL_ROLL_BYTES.min(segment_bytes / 4),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::limits::TABLES_MAX;
    use duramen_format::certificate::Certificate;
    use duramen_format::control::{ListedSegment, Record, TABLE_NAME_BYTES_MAX};
    use duramen_format::segment::Kind;

    /// A log of 64 GB on segments of 2 MiB had a list of all segments that fitted into no control
    /// segment: the server ended at that point, and at each start after that.
    #[test]
    fn the_list_of_all_segments_fits_into_one() {
        let options = |memory, disk_bytes| Options {
            disk_bytes,
            ..Options::new("/nowhere", memory)
        };
        let chosen = |memory, disk| fitting_segment_bytes(&options(memory, disk)) / MIB;
        assert_eq!(
            (chosen(1 << 30, 100 << 30), chosen(1 << 30, 200 << 30)),
            (2, 4)
        );
        assert_eq!(
            chosen(64 * MIB, 1 << 40),
            2,
            "memory keeps its number of segments"
        );
        let longest = segments_max(8 * MIB) * 8 * MIB;
        assert!(longest > 2 << 40);
        let check = |disk| check_length(&options(16 << 30, disk), 8 * MIB, "here");
        assert_eq!(check(longest).ok(), Some(segments_max(8 * MIB)));
        let refused = check(longest + 1).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("is too long")));
        // A snapshot of the longest list, with all tables, leaves a quarter of its segment.
        let mut state = State::default();
        let segment = |n: u64| {
            Record::Segments(vec![ListedSegment {
                segment: SegmentId(n * 16_000 + (1 << 20)),
                epoch: 9_000,
                generation: 9_000,
                head: 9_000,
                kind: Kind::Head,
                closed: Some(Certificate {
                    length: u32::MAX,
                    crc: u32::MAX,
                }),
            }])
        };
        let most = segments_max(2 * MIB);
        (0..most).for_each(|n| state.apply(&segment(n)).unwrap());
        for table in 0..TABLES_MAX as u32 {
            let create = Record::TableCreate {
                table,
                floor: u64::MAX / 2,
                level: None,
                name: "n".repeat(TABLE_NAME_BYTES_MAX),
            };
            state.apply(&create).unwrap();
        }
        let mut bytes = Vec::new();
        state
            .snapshot()
            .iter()
            .for_each(|record| record.encode(&mut bytes));
        assert!(bytes.len() as u64 <= 2 * MIB / 4 * 3, "{}", bytes.len());
        let mut copy = State::default();
        state
            .snapshot()
            .iter()
            .for_each(|record| copy.apply(record).unwrap());
        assert_eq!(copy, state);
    }

    /// Sums with such numbers overflowed, and a debug build panicked.
    #[test]
    fn absurd_lengths_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let options = || Options::new(folder.path().join("new"), 64 * MIB);
        for options in [
            options().wal_bytes(u64::MAX),
            options().wal_bytes(1 << 60),
            options().disk_bytes(u64::MAX),
        ] {
            assert!(crate::Store::open(options).is_err());
        }
        assert!(!folder.path().join("new").join("superblock").exists());
    }

    /// Frames of a member's directory, as a new one gets them.
    fn frames_of_member(options: &Options, replicas: u64) -> u32 {
        (frames_needed(segments_wanted(options, 2 * MIB) * replicas)) as u32
    }

    /// Three members with two replicas had logs at their limit. A member with four fifths of its
    /// memory live was never recovered: the others' disks had no room for the old copies and the
    /// new ones.
    #[test]
    fn the_disks_of_the_others_have_room_for_the_recovery_of_a_log() {
        for memory in [128 * MIB, 256 * MIB, 1 << 30, 16 << 30] {
            let options = Options::memory(memory);
            for replicas in 1..=3 {
                let frames = frames_of_member(&options, replicas);
                let disk = member_disk(&options, 2 * MIB, replicas, frames);
                let data = memory / (2 * MIB);
                assert!(disk.segments >= data + data / 4, "{memory} {replicas}");
                let free = u64::from(frames) - replicas * disk.segments;
                for members in replicas + 1..=8 {
                    let copies = replicas * data * 95 / 100;
                    assert!(
                        (members - 1) * free >= copies,
                        "{memory} {members} {replicas}"
                    );
                }
                // Copies of lost replicas fit, and leave room for the recovery of one log, if a
                // member more is there.
                assert!(disk.refills_leave <= free);
                assert!((replicas + 1) * disk.refills_leave >= replicas * data * 95 / 100);
            }
        }
    }

    #[test]
    fn a_small_disk_is_used_as_far_as_it_was_asked_for() {
        for (disk, segments) in [
            (64, 32),
            (140, 70),
            (160, 80),
            (200, 88),
            (256, 120),
            (512, 256),
        ] {
            let options = Options {
                disk_bytes: disk * MIB,
                ..Options::memory(128 * MIB)
            };
            let frames = frames_of_member(&options, 2);
            let limits = member_disk(&options, 2 * MIB, 2, frames);
            assert_eq!(limits.segments, segments, "{disk} MiB, {frames} frames");
        }
        let options = Options::memory(128 * MIB);
        let tiny = member_disk(&options, 2 * MIB, 2, 10);
        assert_eq!((tiny.segments, tiny.refills_leave), (80, 0));
    }

    #[test]
    fn a_directory_has_the_room_that_it_was_made_for() {
        for segments in (16..6000).chain([1 << 20, (1 << 20) + 7]) {
            let options = Options {
                disk_bytes: segments * MIB,
                mode: Mode::Raw,
                ..Options::new("/nowhere", 1 << 30).heads(1)
            };
            let geometry = Geometry {
                segment_bytes: MIB as u32,
                wal_bytes: 64 * MIB,
                frames: frames_of(segments, Mode::Raw),
            };
            assert_eq!(lacking_room(&geometry, &options), None, "{segments}");
            assert!(segments_of(geometry.frames) + 1 >= segments);
            let smaller = Geometry {
                frames: geometry.frames - 1,
                ..geometry
            };
            let (room, wanted) = lacking_room(&smaller, &options).expect("one less");
            assert!(room < wanted, "{segments}");
        }
    }
}
