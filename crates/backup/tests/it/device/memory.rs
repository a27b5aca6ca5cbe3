//! The memory of the backup, under load and after restarts.

use crate::device::{GEOMETRY, Writer, bytes_of, check, disk, flush_all, identity};
use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::{Backup, Chunk, Error, Expected, Geometry, Mode, Options};
use duramen_base::ids::{Level, SegmentId};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sixteen segments of a megabyte wait for their frames without a flusher. Copies of all of them
/// once took memory beside the budget: as much as the write-ahead log held.
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
    let step = 100_000; // less than goes directly to a frame
    for segment in 1..=16 {
        for from in (0..1_000_000).step_by(step) {
            writer
                .append(segment, from, from + step, from == 900_000)
                .unwrap();
            backup.commit(Level::Buffered).unwrap();
            let held = backup.figures().copies().bytes;
            // Above the limit there is one commit, as staged chunks and as copies.
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
    let held = backup.figures().copies().bytes;
    assert!(
        held <= options.memory_bytes + 2 * step as u64,
        "{held} after the restart"
    );
    all(&backup);
    flush_all(&backup);
    let held = backup.figures().copies().bytes;
    assert!(
        held <= 2 * u64::from(geometry.segment_bytes) + 100_000,
        "{held} when nothing waits"
    );
    all(&backup);
}

/// Bytes that go directly to their frame are not kept in memory. Each replica that waited for its
/// slot once had memory for a whole segment, and used less than a block of it: at 256 MiB of budget
/// 400 MiB, after seconds of writing.
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
    let held = backup.figures().copies().bytes;
    assert!(held < 3 << 20, "{held}");
    flush_all(&backup);
    for segment in 1..=20 {
        assert!(check(&backup, segment, 900_007).closed);
    }
}

/// Segments that stay open free their memory as well, when their certified bytes have gone to their
/// frames.
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
        let held = backup.figures().copies().bytes;
        assert!(held <= options.memory_bytes + 4 * step as u64, "{held}");
    }
    for segment in 1..=8 {
        check(&backup, segment, 1_000_000);
    }
}

/// Segments that were written and freed again and again are still in the write-ahead log: a restart
/// rebuilt them all, in memory beside the data.
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
    let before = backup.figures().copies().bytes;
    let is_listed = |segment: SegmentId| [1, 12].contains(&segment.0);
    backup.forget_rebuilt(&is_listed);
    let left: Vec<u64> = backup.replicas().iter().map(|r| r.segment.0).collect();
    assert_eq!(left, [1, 12]);
    let held = backup.figures().copies().bytes;
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

/// A disk without space for more frames.
struct Full {
    below: Arc<dyn File>,
    full: Arc<AtomicBool>,
}

impl Front for Full {
    fn below(&self) -> &dyn File {
        &*self.below
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> std::io::Result<()> {
        if self.full.load(Ordering::Acquire) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.below.allocate(at, bytes, zero)
    }
}

/// Part of a segment of another server's log.
fn append(backup: &Backup, segment: u64, from: usize, to: usize, close: bool) -> Result<(), Error> {
    let all = bytes_of(segment, to);
    let chunk = Chunk {
        segment: SegmentId(segment),
        epoch: 1,
        kind: Kind::Head,
        offset: from as u32,
        bytes: &all[from..],
        certificate: Some(Certificate::of(&all)),
        open: from == 0,
        close,
    };
    backup.stage_of(9, chunk)?;
    backup.commit(Level::Buffered).map(drop)
}

/// On a full disk, other servers' data waited in memory for as long as the write-ahead log had room
/// for it: a member of 64 MB took 52 MB beside its budget.
#[test]
fn a_full_disk_has_a_bound_for_what_waits_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        wal_bytes: 32 << 20,
        frames: 200,
        ..GEOMETRY
    };
    let options = Options {
        memory_bytes: 2 << 20,
        ..Options::default()
    };
    let full = Arc::new(AtomicBool::new(false));
    let flag = full.clone();
    let below = disk(folder.path(), Mode::Buffered, true);
    let front = Fronted::new(below, move |below| -> Arc<dyn File> {
        let full = flag.clone();
        Arc::new(Full { below, full })
    });
    let backup = Backup::create(Arc::new(front), &options, &geometry, &identity()).unwrap();
    append(&backup, 1, 0, 1000, false).unwrap();
    full.store(true, Ordering::Release);
    let step = 100_000;
    let refused = (2..30).find(|&segment| {
        (0..1_000_000).step_by(step).any(|from| {
            let appended = append(&backup, segment, from, from + step, from == 900_000);
            assert!(
                matches!(appended, Ok(()) | Err(Error::Busy { .. })),
                "{appended:?}"
            );
            let _ = backup.flush_step(); // as the background thread does
            appended.is_err()
        })
    });
    assert_eq!(refused, Some(7), "four segments wait, and what was open");
    let stats = backup.stats();
    assert!(
        stats.frames_used + 100 < stats.frames,
        "by number, most frames are free"
    );
    assert_eq!(stats.frames_free(), 0);
    // Cleaners continue for a while: their segments free more than they take.
    let whole = (30..190).find(|&segment| append(&backup, segment, 0, step, true).is_err());
    assert!(matches!(whole, Some(60..80)), "{whole:?}");
    assert!(
        backup.figures().copies().bytes < 10 << 20,
        "{}",
        backup.figures().copies().bytes
    );
    append(&backup, 1, 1000, 90_000, true).expect("what is open goes on");
    full.store(false, Ordering::Release);
    flush_all(&backup);
    append(&backup, 100, 0, step, false).expect("the disk has space");
    assert!(backup.stats().frames_free() > 0);
}
