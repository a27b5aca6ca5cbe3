//! How much memory the backup takes, under load and after restarts.

use crate::{GEOMETRY, Writer, check, disk, flush_all, identity};
use duramen_backup::{Backup, Expected, Geometry, Mode, Options};
use duramen_base::ids::{Level, SegmentId};

/// Sixteen segments of a megabyte wait for their frames, and nobody flushes. Copies of all of them
/// once stood in memory, beside the budget: as many as the write-ahead log held.
#[test]
fn what_waits_for_frames_takes_no_more_memory_than_stated() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        wal_bytes: 24 << 20,
        frames: 30,
        ..GEOMETRY
    };
    let options = Options {
        memory_bytes: 3 << 20,
        ..Options::default()
    };
    let open = || disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(open(), &options, &geometry, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    let step = 100_000; // less than goes straight to a frame
    for segment in 1..=16 {
        for from in (0..1_000_000).step_by(step) {
            writer
                .append(segment, from, from + step, from == 900_000)
                .unwrap();
            backup.commit(Level::Buffered).unwrap();
            let held = backup.copies().bytes;
            // Above the limit there is one commit, as it is staged and as it waits.
            assert!(
                held <= options.memory_bytes + 4 * step as u64,
                "{held} at segment {segment}"
            );
        }
    }
    assert!(backup.stats().stalls > 0, "commits waited for frames");
    let all = |backup: &Backup| {
        for segment in 1..=16 {
            assert!(check(backup, segment, 1_000_000).closed);
        }
    };
    all(&backup);
    drop(backup); // as after kill -9
    let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
    let held = backup.copies().bytes;
    assert!(
        held <= options.memory_bytes + 2 * step as u64,
        "{held} after the restart"
    );
    all(&backup);
    flush_all(&backup);
    let held = backup.copies().bytes;
    assert!(
        held <= 2 * u64::from(geometry.segment_bytes) + 100_000,
        "{held} when nothing waits"
    );
    all(&backup);
}

/// What goes straight to its frame is not kept in memory. Each replica that waited for its slot
/// once had memory for a segment all the same, of which it used less than a block: at 256 MiB of
/// budget 400 MiB, after seconds of writing.
#[test]
fn what_went_straight_to_its_frame_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        frames: 30,
        ..GEOMETRY
    };
    let options = Options::default();
    let open = || disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(open(), &options, &geometry, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    for segment in 1..=20 {
        for (from, to) in [(0, 300_001), (300_001, 600_003), (600_003, 900_007)] {
            writer.append(segment, from, to, to == 900_007).unwrap();
            backup.commit(Level::Buffered).unwrap();
        }
    }
    let held = backup.copies().bytes;
    assert!(held < 3 << 20, "{held}");
    flush_all(&backup);
    for segment in 1..=20 {
        assert!(check(&backup, segment, 900_007).closed);
    }
}

/// Segments that stay open give their memory back as well, when what is certified of them has gone
/// to their frames.
#[test]
fn open_segments_take_no_more_memory_than_stated() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        wal_bytes: 24 << 20,
        frames: 30,
        ..GEOMETRY
    };
    let options = Options {
        memory_bytes: 2 << 20,
        ..Options::default()
    };
    let disk = disk(folder.path(), Mode::Buffered, true);
    let backup = Backup::create(disk, &options, &geometry, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    let step = 100_000;
    for from in (0..1_000_000).step_by(step) {
        for segment in 1..=8 {
            writer.append(segment, from, from + step, false).unwrap();
            backup.commit(Level::Buffered).unwrap();
        }
        let held = backup.copies().bytes;
        assert!(held <= options.memory_bytes + 4 * step as u64, "{held}");
    }
    for segment in 1..=8 {
        check(&backup, segment, 1_000_000);
    }
}

/// Segments that were written and freed again and again lie in the write-ahead log still: a restart rebuilt them all, in
/// memory beside the data.
#[test]
fn what_nobody_lists_gives_its_memory_back() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        wal_bytes: 24 << 20,
        frames: 6,
        ..GEOMETRY
    };
    let open = || disk(folder.path(), Mode::Buffered, true);
    let options = Options::default();
    let backup = Backup::create(open(), &options, &geometry, &identity()).unwrap();
    let writer = Writer { backup: &backup };
    for segment in 1..=12 {
        for from in (0..1_000_000).step_by(100_000) {
            writer.append(segment, from, from + 100_000, false).unwrap();
            backup.commit(Level::Buffered).unwrap();
        }
        if segment > 1 && segment < 12 {
            flush_all(&backup);
            backup.free(SegmentId(segment)).unwrap();
        }
    }
    drop(backup); // as after kill -9
    let (backup, found) = Backup::open(open(), &options, &Expected::default()).unwrap();
    assert!(found.len() > 2, "nothing was rebuilt of what is over");
    let before = backup.copies().bytes;
    let is_listed = |segment: SegmentId| [1, 12].contains(&segment.0);
    backup.forget_rebuilt(&is_listed);
    let left: Vec<u64> = backup.replicas().iter().map(|r| r.segment.0).collect();
    assert_eq!(left, [1, 12]);
    let held = backup.copies().bytes;
    assert!(before > held + 1_000_000, "{before}, then {held}");
    check(&backup, 1, 1_000_000);
    check(&backup, 12, 1_000_000);
    // Their frames and their part of the log can be used again.
    for segment in 20..40 {
        let writer = Writer { backup: &backup };
        writer.append(segment, 0, 1_000_000, true).unwrap();
        backup.commit(Level::Synced).unwrap();
        backup.free(SegmentId(segment)).unwrap();
    }
    drop(backup);
    let (backup, _) = Backup::open(open(), &options, &Expected::default()).unwrap();
    check(&backup, 1, 1_000_000);
    check(&backup, 12, 1_000_000);
}
