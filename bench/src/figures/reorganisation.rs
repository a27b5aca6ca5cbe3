//! The cost of cleaning the log on disk while it is written: by the order of updates and their
//! size, by the utilization of the disk at which cleaning begins, and by the size of segments.
//! Beineke18 §XI-B, Figures 12 to 14.
//!
//! The paper's servers have a backup that cleans alone; here the master cleans, and the disk gets
//! its survivors. Updates are made in memory, and count when all of them are on stable storage.

use super::selection::Access;
use crate::figure::Figure;
use crate::harness::store::{self, TABLE, key};
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Report, Result, Row, Series, median, progress,
};
use crate::servers::Scratch;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Geometry, Identity, Mode};
use duramen_base::units::MIB;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const KEY_BYTES: usize = 16;
/// Live data, of the memory of the store.
const UTILIZATION: f64 = 0.6;
/// Disk for each byte of memory, where cleaning of the disk is not to be needed.
const ROOMY: f64 = 6.0;
/// Disk for each byte of memory, unless varied: the default of the store.
const USUAL: f64 = 2.0;
/// The engine's choice for these memories.
const USUAL_SEGMENT: u64 = 2 * MIB;
/// As the paper: updates of twice as many objects as there are.
const UPDATES_PER_OBJECT: u64 = 2;
/// Updates between two looks at the clock.
const BATCH: u64 = 16;

/// The cost of cleaning on disk by order of updates, disk room and segment size
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ReorganisationFigure {
    /// Parent of the files: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Megabytes of memory of the store [default: 1024; 256 with --quick]
    #[arg(long, value_name = "MB")]
    pub memory: Option<u64>,
    /// Bytes of values
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024")]
    pub value_bytes: Vec<usize>,
    /// Disk for each byte of memory
    #[arg(long, value_delimiter = ',', default_value = "1.25,1.5,2,3")]
    pub expansion: Vec<f64>,
    /// Megabytes of a segment; the engine has 8 at most
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub segment_mb: Vec<u64>,
}

impl Figure for ReorganisationFigure {
    const NAME: &'static str = "reorganisation";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// One store and its updates.
#[derive(Clone, Copy)]
struct Case {
    access: Access,
    value_bytes: usize,
    expansion: f64,
    segment_bytes: u64,
}

/// The result of a case: medians.
struct Cell {
    updates_per_second: f64,
    megabytes_per_second: f64,
    /// Written to frames per byte of updates.
    frames_per_byte: f64,
    /// Relocated in memory per byte of updates.
    write_cost: f64,
    passes: f64,
}

impl Cell {
    fn median(cells: &[Cell]) -> Cell {
        let of = |value: fn(&Cell) -> f64| median(&cells.iter().map(value).collect::<Vec<_>>());
        Cell {
            updates_per_second: of(|cell| cell.updates_per_second),
            megabytes_per_second: of(|cell| cell.megabytes_per_second),
            frames_per_byte: of(|cell| cell.frames_per_byte),
            write_cost: of(|cell| cell.write_cost),
            passes: of(|cell| cell.passes),
        }
    }

    fn columns(&self, row: Row) -> Row {
        row.number("M updates/s", self.updates_per_second / 1e6, 3)
            .number("MB/s", self.megabytes_per_second, 3)
            .number("frames written per byte", self.frames_per_byte, 3)
            .number("relocated per byte", self.write_cost, 3)
            .number("passes over the disk", self.passes, 3)
    }
}

/// The place and the size of all stores of a run.
struct Place {
    dir: PathBuf,
    memory_bytes: u64,
    rounds: usize,
}

fn report(args: &ReorganisationFigure, options: &Options) -> Result<Report> {
    let about = "All objects are written once in order, 60 % of memory; then one thread updates twice as many in the stated order, in batches of 16, past the page cache. \
        The time counts until all updates are synced. The disk has the stated room for each byte of memory: it is cleaned when it is full, so that less room means that cleaning begins \
        with fewer dead entries. `no cleaning`: the disk has 6 times the memory, and no pass over it was needed. Memory is compacted in all of them. `frames written per byte`: \
        bytes of segments that the disk gets, beside its write-ahead log, per byte of updates.";
    let title = "Cleaning on disk, while the log is written";
    let mut report = Report::new("reorganisation", title, about, options);
    report.level = "memory, synced at the end".to_owned();
    let place = Place {
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        memory_bytes: args.memory.unwrap_or(options.size(1024, 256)) * MIB,
        rounds: options.rounds(),
    };
    distributions(args, &place, &mut report)?;
    thresholds(args, &place, &mut report)?;
    segments(args, &place, &mut report)?;
    report.note(format!(
        "{} MiB of memory, {} rounds, medians. The store has no thresholds in percent; the room on disk takes their place. Its segments have 8 MiB at most.",
        place.memory_bytes / MIB,
        place.rounds
    ));
    Ok(report)
}

/// Figure 12.
fn distributions(args: &ReorganisationFigure, place: &Place, report: &mut Report) -> Result<()> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let mut least = f64::INFINITY;
    for access in Access::ALL {
        let mut values = Vec::new();
        for &value_bytes in &args.value_bytes {
            let case = |expansion| Case {
                access,
                value_bytes,
                expansion,
                segment_bytes: USUAL_SEGMENT,
            };
            let cells = alternately(place, &[case(USUAL), case(ROOMY)])?;
            let share = cells[0].updates_per_second / cells[1].updates_per_second;
            progress!("{}, {value_bytes} B: {share:.2}", access.name());
            least = least.min(share);
            values.push(cells[0].updates_per_second / 1e6);
            let row = Row::new()
                .with("updates", access.name())
                .with("value bytes", value_bytes);
            let row = cells[0].columns(row);
            rows.push(
                row.number(
                    "no cleaning, M updates/s",
                    cells[1].updates_per_second / 1e6,
                    3,
                )
                .number("its passes over the disk", cells[1].passes, 3)
                .number("with cleaning / without", share, 3),
            );
        }
        bars.push((access.name().to_owned(), values));
    }
    report.target(
        "disk of twice the memory: updates with cleaning / without, least ≥ 0.8",
        least,
        Bound::AtLeast(0.8),
    );
    let groups = args.value_bytes.iter().map(|bytes| format!("{bytes} B"));
    let chart = Chart::bars(
        "Updates while the disk is cleaned",
        "M updates/s",
        groups.collect(),
        bars,
    );
    report.plot("distributions", &chart);
    report.table("By order and size of updates (Figure 12)", rows);
    Ok(())
}

/// Figure 13.
fn thresholds(args: &ReorganisationFigure, place: &Place, report: &mut Report) -> Result<()> {
    let value_bytes = args.value_bytes[0];
    let case = |expansion| Case {
        access: Access::Random,
        value_bytes,
        expansion,
        segment_bytes: USUAL_SEGMENT,
    };
    let mut cases: Vec<Case> = args.expansion.iter().map(|it| case(*it)).collect();
    cases.push(case(ROOMY));
    let cells = alternately(place, &cases)?;
    let roomy = &cells[cells.len() - 1];
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for (case, cell) in cases.iter().zip(&cells) {
        let live = 100.0 * UTILIZATION / case.expansion;
        points.push((live, cell.updates_per_second / 1e6));
        let row = Row::new()
            .number("disk / memory", case.expansion, 3)
            .number("live % of the full disk", live, 3);
        rows.push(cell.columns(row).number(
            "of the roomiest",
            cell.updates_per_second / roomy.updates_per_second,
            3,
        ));
    }
    let series = vec![Series {
        name: "duramen".to_owned(),
        points,
    }];
    let chart = Chart::lines(
        "Updates by the utilization at which the disk is cleaned",
        "live, % of the full disk",
        "M updates/s",
        series,
    );
    report.plot("thresholds", &chart);
    report.table(
        &format!("By room on the disk, {value_bytes} B, random (Figure 13)"),
        rows,
    );
    Ok(())
}

/// Figure 14.
fn segments(args: &ReorganisationFigure, place: &Place, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for &value_bytes in [args.value_bytes.first(), args.value_bytes.last()]
        .into_iter()
        .flatten()
    {
        for expansion in [ROOMY, USUAL] {
            let case = |mib: &u64| Case {
                access: Access::Random,
                value_bytes,
                expansion,
                segment_bytes: mib * MIB,
            };
            let cases: Vec<Case> = args.segment_mb.iter().map(case).collect();
            let cells = alternately(place, &cases)?;
            for (case, cell) in cases.iter().zip(&cells) {
                let row = Row::new()
                    .with("value bytes", value_bytes)
                    .with("segment MiB", case.segment_bytes / MIB)
                    .with("disk / memory", expansion);
                rows.push(cell.columns(row).number(
                    "of the first size",
                    cell.updates_per_second / cells[0].updates_per_second,
                    3,
                ));
            }
        }
    }
    report.table("By size of segments, random (Figure 14)", rows);
    Ok(())
}

/// Runs the cases in turn.
fn alternately(place: &Place, cases: &[Case]) -> Result<Vec<Cell>> {
    let mut all: Vec<Vec<Cell>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..place.rounds {
        for (case, cells) in cases.iter().zip(&mut all) {
            cells.push(measure(place, case)?);
        }
    }
    Ok(all.iter().map(|cells| Cell::median(cells)).collect())
}

/// Makes a log with segments of this size, which a store then opens: a store alone would choose its
/// own.
fn create(disk: &Arc<OsDisk>, case: &Case, memory_bytes: u64) -> Result<()> {
    let wanted = (memory_bytes as f64 * case.expansion) as u64 / case.segment_bytes;
    let geometry = Geometry {
        segment_bytes: case.segment_bytes as u32,
        wal_bytes: 64 * MIB,
        frames: 2 * wanted as u32 + 64,
    };
    let identity = Identity {
        cluster: "duramen".to_owned(),
        server: 1,
        hash_seed: 1,
    };
    let settings = duramen_backup::Options::default();
    Backup::create(disk.clone(), &settings, &geometry, &identity)
        .map(drop)
        .map_err(|error| Failure::new("making a log", error.to_string()))
}

fn open(dir: &Path, case: &Case, memory_bytes: u64) -> Result<Arc<duramen::Store>> {
    let disk = Arc::new(OsDisk::new(dir, Mode::Direct));
    create(&disk, case, memory_bytes)?;
    let mut how = duramen::Options::new(dir, memory_bytes)
        .level(duramen::Level::Memory)
        .disk_mode(duramen::DiskMode::Direct);
    how.engine.hash_seed = Some(1);
    // One writer needs one head, and its windows count more in a small store.
    (how.engine.heads, how.engine.cleaners) = (1, 1);
    how.disk_expansion = case.expansion;
    duramen::Store::open_on(disk, how, true, &|_| {}).doing("opening a store on its log")
}

fn measure(place: &Place, case: &Case) -> Result<Cell> {
    let scratch = Scratch::new(&place.dir).doing("making a directory")?;
    let store = open(scratch.path(), case, place.memory_bytes)?;
    let engine = store.engine().clone();
    let mut records = 0;
    store::fill_to::<KEY_BYTES>(&engine, UTILIZATION, case.value_bytes, &mut records)?;
    store.flush().doing("syncing the first writes")?;
    let mut next = case.access.objects(records as u32);
    let mut value = store::value(case.value_bytes);
    let mut session = engine.session().doing("opening a session")?;
    let stats = || store.stats().ok_or("no log").doing("asking for figures");
    let (before, cleaned) = (stats()?, engine.stats());
    let begun = Instant::now();
    let updates = records * UPDATES_PER_OBJECT / BATCH * BATCH;
    for _ in 0..updates / BATCH {
        let mut guard = session.pin();
        for _ in 0..BATCH {
            let key = key::<KEY_BYTES>(next().into());
            value[..8].copy_from_slice(&key[..8]);
            let hash = guard.hash(&key);
            let written = guard.write(TABLE, hash, &key, &value, None);
            written.doing("updating an object")?;
        }
    }
    store.flush().doing("syncing the updates")?;
    let seconds = begun.elapsed().as_secs_f64();
    let (after, now) = (stats()?, engine.stats());
    store.close().doing("closing the store")?;
    let bytes = (updates * (KEY_BYTES + case.value_bytes) as u64) as f64;
    let frames = after.frame_written_bytes - before.frame_written_bytes;
    let relocated = now.cleaner.bytes_relocated - cleaned.cleaner.bytes_relocated;
    Ok(Cell {
        updates_per_second: updates as f64 / seconds,
        megabytes_per_second: bytes / 1e6 / seconds,
        frames_per_byte: frames as f64 / bytes,
        write_cost: relocated as f64 / bytes,
        passes: (now.cleaner.passes - cleaned.cleaner.passes) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = ReorganisationFigure {
            dir: None,
            memory: Some(96),
            value_bytes: vec![1024],
            expansion: vec![1.5],
            segment_mb: vec![2],
        };
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        let rows: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(rows, [4, 2, 4]);
        for row in report.tables.iter().flat_map(|table| &table.rows) {
            let rate = row.get("M updates/s").and_then(Value::as_f64);
            assert!(rate.is_some_and(|rate| rate > 0.0), "{row:?}");
        }
    }

    /// The sizes are those of the log, and not the store's own choice.
    #[test]
    fn a_store_keeps_the_segments_of_its_log() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let case = Case {
            access: Access::Random,
            value_bytes: 1024,
            expansion: USUAL,
            segment_bytes: 8 * MIB,
        };
        let store = open(scratch.path(), &case, 256 * MIB).unwrap();
        let mut records = 0;
        store::fill_to::<KEY_BYTES>(store.engine(), 0.3, 1024, &mut records).unwrap();
        store.flush().unwrap();
        let stats = store.stats().unwrap();
        assert_eq!(stats.frame_bytes, 8 * MIB);
        store.close().unwrap();
    }
}
