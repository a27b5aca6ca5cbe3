//! The gain of two-level cleaning: write throughput and disk traffic against cleaning by combined
//! passes alone, on a disk that is held to a stated bandwidth. Rumble14 Figures 6 and 7.

use crate::figure::Figure;
use crate::harness::store::{self, TABLE, key};
use crate::harness::{Bound, Chooser, Distribution, Doing, Options, Report, Result, Row, progress};
use crate::servers::Scratch;
use duramen_backup::Mode;
use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::os::OsDisk;
use duramen_base::units::MIB;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEY_BYTES: usize = 16;
/// Write bandwidth of the disk, in bytes per second: so slow that the disk is the limit, as in the
/// paper.
const DISK_BYTES_PER_SECOND: f64 = 100e6;

/// The time when the disk will have finished its writes so far.
struct Lane(Mutex<Instant>);

impl Lane {
    /// Waits as long as a disk of that bandwidth would take for `bytes`, after all earlier writes.
    fn pass(&self, bytes: usize) {
        let done = {
            let mut busy_until = self.0.lock().expect("the lane");
            let from = (*busy_until).max(Instant::now());
            *busy_until = from + Duration::from_secs_f64(bytes as f64 / DISK_BYTES_PER_SECOND);
            *busy_until
        };
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

/// A file on a disk with limited write bandwidth.
struct SlowFile {
    file: Arc<dyn File>,
    lane: Arc<Lane>,
}

impl Front for SlowFile {
    fn below(&self) -> &dyn File {
        &*self.file
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.lane.pass(bytes.len());
        self.file.write_at(at, bytes)
    }
}

/// Two-level against one-level cleaning on a disk of limited bandwidth
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TwoLevelsFigure {
    /// Only objects of these sizes
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    pub value_bytes: Vec<usize>,
    /// Only these utilizations of memory, in percent
    #[arg(long, value_delimiter = ',', default_value = "70,80,90")]
    pub percent: Vec<u32>,
}

/// The result of one store.
struct Cell {
    writes_per_second: f64,
    /// Bytes written to the disk beside the write-ahead log and the first frame of users' data, per
    /// byte of users' data.
    cleaner_bytes_per_byte: f64,
    disk_bytes_per_byte: f64,
}

impl Figure for TwoLevelsFigure {
    const NAME: &'static str = "two-levels";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &TwoLevelsFigure, options: &Options) -> Result<Report> {
    let about = "Random overwrites by one thread at level `memory` (the log is shipped all the same), 16-byte keys, on a disk that writes \
        100 MB/s at most and may hold twice as much as memory. `two`: compaction in memory and combined cleaning. `one`: combined \
        cleaning alone, so that memory and disk hold the same log and the disk can be no emptier than memory.";
    let mut report = Report::new(
        "two-levels",
        "Two-level against one-level cleaning",
        about,
        options,
    );
    let mut rows = Vec::new();
    for &value_bytes in &args.value_bytes {
        for &percent in &args.percent {
            let utilization = f64::from(percent) / 100.0;
            let two = measure(options, utilization, value_bytes, true)?;
            let one = measure(options, utilization, value_bytes, false)?;
            for (levels, cell) in [("two", &two), ("one", &one)] {
                progress!(
                    "{value_bytes} B at {percent} %, {levels} level(s): {:.0} writes/s, {:.2} disk bytes per byte",
                    cell.writes_per_second,
                    cell.disk_bytes_per_byte
                );
                rows.push(
                    Row::new()
                        .with("value bytes", value_bytes)
                        .with("utilization %", percent)
                        .with("levels", levels)
                        .number("writes/s", cell.writes_per_second, 3)
                        .number(
                            "MB/s of entries",
                            cell.writes_per_second * (value_bytes + KEY_BYTES + 16) as f64 / 1e6,
                            3,
                        )
                        .number("disk bytes per byte", cell.disk_bytes_per_byte, 3)
                        .number(
                            "cleaner's disk bytes per byte",
                            cell.cleaner_bytes_per_byte,
                            3,
                        ),
                );
            }
            if percent == 90 {
                report.target(
                    format!("{value_bytes} B at 90 %: writes/s, two levels / one ≥ 4"),
                    two.writes_per_second / one.writes_per_second,
                    Bound::AtLeast(4.0),
                );
            }
            report.target(
                format!(
                    "{value_bytes} B at {percent} %: cleaner's disk traffic, one level / two ≥ 7"
                ),
                one.cleaner_bytes_per_byte / two.cleaner_bytes_per_byte.max(1e-3),
                Bound::AtLeast(7.0),
            );
        }
    }
    report.table("Random overwrites on a disk of 100 MB/s", rows);
    Ok(report)
}

fn measure(
    options: &Options,
    utilization: f64,
    value_bytes: usize,
    two_levels: bool,
) -> Result<Cell> {
    let scratch = Scratch::new(&std::env::temp_dir()).doing("making a directory")?;
    let memory_bytes = 256 * MIB;
    let lane = Arc::new(Lane(Mutex::new(Instant::now())));
    let disk = Fronted::new(
        Arc::new(OsDisk::new(scratch.path(), Mode::Buffered)),
        move |file| -> Arc<dyn File> {
            let lane = lane.clone();
            Arc::new(SlowFile { file, lane })
        },
    );
    let mut how = duramen::Options::new(scratch.path(), memory_bytes);
    how.engine.hash_seed = Some(1);
    // One writer needs one head, and its windows count more in a small store.
    (how.engine.heads, how.engine.cleaners) = (1, 1);
    how.level = duramen::Level::Memory;
    how.two_levels = two_levels;
    how.disk_expansion = 2.0;
    let durable = duramen::Store::open_on(Arc::new(disk), how, true, &|_| {})
        .doing("opening a store on a slow disk")?;
    let engine = durable.engine().clone();
    let mut records = 0;
    store::fill_to::<KEY_BYTES>(&engine, utilization, value_bytes, &mut records)?;
    let mut session = engine.session().doing("opening a session")?;
    let mut value = store::value(value_bytes);
    let mut chooser = Chooser::new(Distribution::Uniform, records, 3);
    let mut write_for = |window: Duration| -> Result<(u64, f64)> {
        let (begun, mut writes) = (Instant::now(), 0);
        while begun.elapsed() < window {
            for _ in 0..16 {
                let key = key::<KEY_BYTES>(chooser.next_key());
                value[..8].copy_from_slice(&key[..8]);
                let mut guard = session.pin();
                let hash = guard.hash(&key);
                guard
                    .write(TABLE, hash, &key, &value, None)
                    .doing("overwriting")?;
                writes += 1;
            }
        }
        Ok((writes, begun.elapsed().as_secs_f64()))
    };
    write_for(Duration::from_secs(options.size(12, 6)))?;
    let before = durable
        .stats()
        .ok_or("no log")
        .doing("asking for figures")?;
    let (writes, seconds) = write_for(Duration::from_secs(options.size(10, 4)))?;
    let after = durable
        .stats()
        .ok_or("no log")
        .doing("asking for figures")?;
    durable.close().doing("closing the store")?;
    let appended = (after.appended_bytes - before.appended_bytes) as f64;
    let wal = (after.wal_written_bytes - before.wal_written_bytes) as f64;
    let frames = (after.frame_written_bytes - before.frame_written_bytes) as f64;
    Ok(Cell {
        writes_per_second: writes as f64 / seconds,
        disk_bytes_per_byte: (wal + frames) / appended,
        cleaner_bytes_per_byte: (frames - appended).max(0.0) / appended,
    })
}
