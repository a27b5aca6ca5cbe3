//! The gain of two-level cleaning: write throughput and disk traffic against cleaning by combined
//! passes alone, on a disk that is held to a stated bandwidth; the processor time of it; and the
//! same without a log. Rumble14 Figures 6, 7, 8 and 11.

use crate::figure::Figure;
use crate::harness::store::{self, TABLE, key};
use crate::harness::{
    Bound, Chooser, Distribution, Doing, Options, Report, Result, Row, machine, progress,
};
use crate::servers::Scratch;
use duramen_backup::Mode;
use duramen_backup::disk::{File, Front, Fronted};
use duramen_backup::os::OsDisk;
use duramen_base::units::MIB;
use duramen_engine as engine;
use duramen_engine::{Session, Store};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEY_BYTES: usize = 16;
const MEMORY_BYTES: u64 = 256 * MIB;
/// Overwrites between two looks at the clock.
const BATCH: u64 = 16;
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

/// The log of a store, and how it is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    TwoLevels,
    OneLevel,
    None,
}

impl Log {
    const ALL: [Log; 3] = [Log::TwoLevels, Log::OneLevel, Log::None];

    fn name(self) -> &'static str {
        match self {
            Log::TwoLevels => "two",
            Log::OneLevel => "one",
            Log::None => "one, without a log",
        }
    }
}

/// The result of one store.
#[derive(Clone, Copy)]
struct Cell {
    writes_per_second: f64,
    /// Bytes written to the disk beside the write-ahead log and the first frame of users' data, per
    /// byte of users' data.
    cleaner_bytes_per_byte: f64,
    disk_bytes_per_byte: f64,
    /// Processors of the cleaner's threads.
    cleaner_cores: f64,
    /// Processors of the threads that write the log, in their own code and in the kernel.
    log_cores: [f64; 2],
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
        cleaning alone, so that memory and disk hold the same log and the disk can be no emptier than memory. `one, without a log`: cleaning in memory, and no disk. \
        `cores`: processor time over time, by the kernel's account of the threads; those of the log are the threads that a backup has in the paper.";
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
            let mut cells = Vec::new();
            for log in Log::ALL {
                let cell = measure(options, utilization, value_bytes, log)?;
                progress!(
                    "{value_bytes} B at {percent} %, {log:?}: {:.0} writes/s, {:.2} disk bytes per byte",
                    cell.writes_per_second,
                    cell.disk_bytes_per_byte
                );
                let row = Row::new()
                    .with("value bytes", value_bytes)
                    .with("utilization %", percent)
                    .with("levels", log.name());
                rows.push(cell.columns(row, value_bytes));
                cells.push(cell);
            }
            add_targets(&mut report, value_bytes, percent, &cells);
        }
    }
    report.table("Random overwrites on a disk of 100 MB/s", rows);
    Ok(report)
}

impl Cell {
    fn columns(&self, row: Row, value_bytes: usize) -> Row {
        let entry_bytes = (value_bytes + KEY_BYTES + 16) as f64;
        row.number("writes/s", self.writes_per_second, 3)
            .number(
                "MB/s of entries",
                self.writes_per_second * entry_bytes / 1e6,
                3,
            )
            .number("disk bytes per byte", self.disk_bytes_per_byte, 3)
            .number(
                "cleaner's disk bytes per byte",
                self.cleaner_bytes_per_byte,
                3,
            )
            .number("cleaner cores", self.cleaner_cores, 2)
            .number("log cores, own code", self.log_cores[0], 2)
            .number("log cores, kernel", self.log_cores[1], 2)
    }
}

fn add_targets(report: &mut Report, value_bytes: usize, percent: u32, cells: &[Cell]) {
    let [two, one, without] = [cells[0], cells[1], cells[2]];
    if percent == 90 {
        report.target(
            format!("{value_bytes} B at 90 %: writes/s, two levels / one ≥ 4"),
            two.writes_per_second / one.writes_per_second,
            Bound::AtLeast(4.0),
        );
    }
    report.target(
        format!("{value_bytes} B at {percent} %: cleaner's disk traffic, one level / two ≥ 7"),
        one.cleaner_bytes_per_byte / two.cleaner_bytes_per_byte.max(1e-3),
        Bound::AtLeast(7.0),
    );
    report.target(
        format!("{value_bytes} B at {percent} %: writes/s, without a log / two levels ≥ 1"),
        without.writes_per_second / two.writes_per_second,
        Bound::AtLeast(1.0),
    );
}

/// Overwrites of random keys by one thread.
struct Writer {
    session: Session,
    value: Vec<u8>,
    chooser: Chooser,
}

impl Writer {
    /// Fills a store to a utilization; a writer that overwrites its objects.
    fn filling(store: &Arc<Store>, utilization: f64, value_bytes: usize) -> Result<Writer> {
        let mut records = 0;
        store::fill_to::<KEY_BYTES>(store, utilization, value_bytes, &mut records)?;
        Ok(Writer {
            session: store.session().doing("opening a session")?,
            value: store::value(value_bytes),
            chooser: Chooser::new(Distribution::Uniform, records, 3),
        })
    }

    /// Returns the number of overwrites, and the seconds that they took.
    fn write_for(&mut self, window: Duration) -> Result<(u64, f64)> {
        let (begun, mut writes) = (Instant::now(), 0);
        while begun.elapsed() < window {
            for _ in 0..BATCH {
                let key = key::<KEY_BYTES>(self.chooser.next_key());
                self.value[..8].copy_from_slice(&key[..8]);
                let mut guard = self.session.pin();
                let hash = guard.hash(&key);
                guard
                    .write(TABLE, hash, &key, &self.value, None)
                    .doing("overwriting")?;
            }
            writes += BATCH;
        }
        Ok((writes, begun.elapsed().as_secs_f64()))
    }
}

/// Processor time of the cleaner's threads and of those of the log, by the kernel's account.
struct Threads {
    cleaner_ns: u64,
    log_ns: u64,
    /// Samples of the log's threads in their own code, and in the kernel.
    log_ticks: [u64; 2],
}

impl Threads {
    fn now() -> Threads {
        let cleaner = machine::threads("cleaner-");
        let log = machine::threads("duramen-");
        Threads {
            cleaner_ns: cleaner.cpu_ns,
            log_ns: log.cpu_ns,
            log_ticks: log.ticks,
        }
    }

    /// Processors of the cleaner, and of the log in its own code and in the kernel, since then.
    fn cores(&self, seconds: f64) -> (f64, [f64; 2]) {
        let now = Threads::now();
        let cores = |now: u64, then: u64| now.saturating_sub(then) as f64 / 1e9 / seconds;
        let [user, kernel] = [0, 1].map(|n| (now.log_ticks[n] - self.log_ticks[n]) as f64);
        let log = cores(now.log_ns, self.log_ns);
        let part = |ticks: f64| log * ticks / (user + kernel).max(1.0);
        (
            cores(now.cleaner_ns, self.cleaner_ns),
            [part(user), part(kernel)],
        )
    }
}

fn measure(options: &Options, utilization: f64, value_bytes: usize, log: Log) -> Result<Cell> {
    let (warm_up, window) = (options.size(12, 6), options.size(10, 4));
    let (warm_up, window) = (Duration::from_secs(warm_up), Duration::from_secs(window));
    if log == Log::None {
        let mut how = engine::Options::new(MEMORY_BYTES);
        (how.heads, how.cleaners, how.hash_seed) = (1, 1, Some(1));
        let store = Store::new(how).doing("opening a store")?;
        let mut writer = Writer::filling(&store, utilization, value_bytes)?;
        writer.write_for(warm_up)?;
        let threads = Threads::now();
        let (writes, seconds) = writer.write_for(window)?;
        return Ok(Cell {
            writes_per_second: writes as f64 / seconds,
            cleaner_bytes_per_byte: 0.0,
            disk_bytes_per_byte: 0.0,
            cleaner_cores: threads.cores(seconds).0,
            log_cores: [0.0; 2],
        });
    }
    let scratch = Scratch::new(&std::env::temp_dir()).doing("making a directory")?;
    let durable = open(&scratch, log == Log::TwoLevels)?;
    let stats = || durable.stats().ok_or("no log").doing("asking for figures");
    let mut writer = Writer::filling(durable.engine(), utilization, value_bytes)?;
    writer.write_for(warm_up)?;
    let (before, threads) = (stats()?, Threads::now());
    let (writes, seconds) = writer.write_for(window)?;
    let (after, (cleaner_cores, log_cores)) = (stats()?, threads.cores(seconds));
    drop(writer);
    durable.close().doing("closing the store")?;
    let appended = (after.appended_bytes - before.appended_bytes) as f64;
    let wal = (after.wal_written_bytes - before.wal_written_bytes) as f64;
    let frames = (after.frame_written_bytes - before.frame_written_bytes) as f64;
    Ok(Cell {
        writes_per_second: writes as f64 / seconds,
        disk_bytes_per_byte: (wal + frames) / appended,
        cleaner_bytes_per_byte: (frames - appended).max(0.0) / appended,
        cleaner_cores,
        log_cores,
    })
}

/// A store whose log is on a slow disk.
fn open(scratch: &Scratch, two_levels: bool) -> Result<Arc<duramen::Store>> {
    let lane = Arc::new(Lane(Mutex::new(Instant::now())));
    let disk = Fronted::new(
        Arc::new(OsDisk::new(scratch.path(), Mode::Buffered)),
        move |file| -> Arc<dyn File> {
            let lane = lane.clone();
            Arc::new(SlowFile { file, lane })
        },
    );
    let mut how = duramen::Options::new(scratch.path(), MEMORY_BYTES);
    how.engine.hash_seed = Some(1);
    // One writer needs one head, and its windows count more in a small store.
    (how.engine.heads, how.engine.cleaners) = (1, 1);
    how.level = duramen::Level::Memory;
    how.two_levels = two_levels;
    how.disk_expansion = 2.0;
    duramen::Store::open_on(Arc::new(disk), how, true, &|_| {})
        .doing("opening a store on a slow disk")
}
