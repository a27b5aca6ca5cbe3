//! The memory of a backup for each byte that it stores: its state by the number of segments, once
//! all of them are in frames, and the buffers that do not grow with them. Beineke18 §VI, Table II.

use crate::figure::Figure;
use crate::harness::{Bound, Doing, Failure, Options, Report, Result, Row, machine, progress};
use crate::servers::Scratch;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Chunk, Geometry, Identity, Mode};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::units::{KIB, MIB};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::path::PathBuf;
use std::sync::Arc;

/// Segments between two commits.
const GROUP: u64 = 16;
/// Longest and shortest segments of a store.
const SEGMENTS: [u64; 2] = [2 * MIB, 8 * MIB];
/// Bytes on disk of which the paper states the memory: about 1 TB, as 1000 zones of 64-byte
/// objects.
const DISK_BYTES: f64 = 1e12;
const LOGS: u64 = 4;
/// Memory for copies: the least of a store. It is reused, and full before the first measurement.
const COPIES_BYTES: u64 = 8 * MIB;

/// Memory of a backup by the number of segments that it stores
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BackupMemoryFigure {
    /// Parent of the files: needs room for all segments
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Numbers of segments [default: 1000,4000,16000; with --quick 1000,8000]
    #[arg(long, value_delimiter = ',')]
    pub segments: Vec<u64>,
    /// Kilobytes of a segment: small ones, so that many of them fit on a disk
    #[arg(long, value_delimiter = ',', default_value = "64,256")]
    pub segment_kib: Vec<u64>,
}

impl Figure for BackupMemoryFigure {
    const NAME: &'static str = "backup-memory";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// Memory at one number of segments.
struct Point {
    segments: u64,
    /// Resident memory of the process beyond that before the backup was made.
    resident_bytes: f64,
    /// Buffers for copies: none of them waits for a frame.
    copies_bytes: u64,
}

fn report(args: &BackupMemoryFigure, options: &Options) -> Result<Report> {
    let about = "A backup stores whole segments of four masters; when all of them are in frames, the resident memory of the process counts, beyond that before. \
        The slope is the memory of a segment. It does not depend on the length of the segment, which is therefore small here; `of the disk` is for the segments of a store, of 2 to 8 MiB. \
        Buffers for data in flight are beside that: a limit that is set, and does not grow with the disk.";
    let mut report = Report::new("backup-memory", "Memory of a backup", about, options);
    report.level = "synced".to_owned();
    let counts = match args.segments.is_empty() {
        true => options.size(vec![1000, 4000, 16_000], vec![1000, 8000]),
        false => args.segments.clone(),
    };
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let (mut rows, mut slopes, mut per_segment) = (Vec::new(), Vec::new(), f64::NAN);
    for &kib in &args.segment_kib {
        let points = grow(&dir, kib * KIB, &counts)?;
        let (first, last) = (&points[0], &points[points.len() - 1]);
        let grown = (last.segments - first.segments) as f64;
        let slope = (last.resident_bytes - first.resident_bytes) / grown;
        per_segment = slope.max(if per_segment.is_nan() {
            slope
        } else {
            per_segment
        });
        for point in &points {
            progress!(
                "{kib} KiB x {}: {:.0} B",
                point.segments,
                point.resident_bytes
            );
            rows.push(
                Row::new()
                    .with("segment KiB", kib)
                    .with("segments", point.segments)
                    .number("resident KiB", point.resident_bytes / KIB as f64, 4)
                    .number("copies KiB", point.copies_bytes as f64 / KIB as f64, 4),
            );
        }
        slopes.push(Row::new().with("segment KiB", kib).number(
            "bytes of memory per segment",
            slope,
            3,
        ));
    }
    report.table("Resident memory", rows);
    report.table("Memory of a segment", slopes);
    totals(per_segment, &mut report);
    Ok(report)
}

/// Table II, for a terabyte.
fn totals(per_segment: f64, report: &mut Report) {
    let rows = SEGMENTS.map(|bytes| {
        let segments = DISK_BYTES / bytes as f64;
        let state = segments * per_segment;
        Row::new()
            .with("segment MiB", bytes / MIB)
            .number("segments of 1 TB", segments, 3)
            .number("their memory, MB", state / 1e6, 3)
            .number("disk bytes per byte of it", DISK_BYTES / state, 3)
    });
    report.table("Memory of 1 TB on disk (Table II)", rows.to_vec());
    let of_disk = SEGMENTS[0] as f64 / per_segment;
    report.target(
        "segments of 2 MiB: disk bytes per byte of memory (paper: 300 to 700) ≥ 700",
        of_disk,
        Bound::AtLeast(700.0),
    );
    let budget = duramen_backup::Options::copies_of(1024 * MIB) / MIB;
    report.note(format!(
        "Buffers for data in flight: {budget} MiB at most beside a store of 1 GiB, whatever the disk holds (`copies_of` in `crates/backup/src/types.rs`). \
         The paper's have 290 MB, and 3.1 MB for each zone of 256 MB: most of it versions, which the index of the master has here."
    ));
}

fn failed(doing: &'static str) -> impl Fn(duramen_backup::Error) -> Failure {
    move |error| Failure::new(doing, error.to_string())
}

/// Stores segments up to each of `counts`.
fn grow(dir: &std::path::Path, segment_bytes: u64, counts: &[u64]) -> Result<Vec<Point>> {
    let scratch = Scratch::new(dir).doing(format!("making a directory in {}", dir.display()))?;
    let disk = Arc::new(OsDisk::new(&scratch.path().join("store"), Mode::Buffered));
    let most = counts.iter().copied().max().unwrap_or(1);
    let geometry = Geometry {
        segment_bytes: segment_bytes as u32,
        wal_bytes: 64 * MIB,
        frames: most as u32 + 64,
    };
    let identity = Identity {
        cluster: "bench".to_owned(),
        server: 1,
        hash_seed: 1,
    };
    let bytes: Vec<u8> = (0..segment_bytes).map(|n| (n * 7) as u8).collect();
    let before = machine::rss_bytes(None)?;
    let settings = duramen_backup::Options {
        memory_bytes: COPIES_BYTES,
        ..duramen_backup::Options::default()
    };
    let backup = Backup::create(disk, &settings, &geometry, &identity);
    let backup = backup.map_err(failed("making a backup"))?;
    let (mut next, mut points) = (0, Vec::new());
    for &segments in counts {
        while next < segments {
            store(&backup, next, &bytes)?;
            next += 1;
            if next % GROUP == 0 || next == segments {
                let committed = backup.commit(Level::Synced);
                committed.map_err(failed("committing"))?;
                while backup.flush_step().map_err(failed("flushing"))? {}
            }
        }
        points.push(Point {
            segments,
            resident_bytes: machine::rss_bytes(None)?.saturating_sub(before) as f64,
            copies_bytes: backup.figures().copies().bytes,
        });
    }
    Ok(points)
}

/// Stages a whole segment of one of the masters.
fn store(backup: &Backup, number: u64, bytes: &[u8]) -> Result<()> {
    let chunk = Chunk {
        segment: SegmentId(number + 1),
        epoch: 1,
        kind: Kind::Head,
        offset: 0,
        bytes,
        certificate: Some(Certificate::EMPTY.extended(bytes)),
        open: true,
        close: true,
    };
    let log = number % LOGS + 1;
    backup.stage_of(log, chunk).map_err(failed("staging"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = BackupMemoryFigure {
            dir: None,
            segments: vec![20, 400],
            segment_kib: vec![16],
        };
        let report = report(&args, &Options::for_tests()).unwrap();
        let rows: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(rows, [2, 1, 2]);
        for row in &report.tables[0].rows {
            let waiting = row.get("copies KiB").and_then(Value::as_f64);
            assert!(waiting.is_some_and(|kib| kib <= (COPIES_BYTES / KIB) as f64));
        }
    }
}
