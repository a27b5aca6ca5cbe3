//! Logging by size of entry, with and without the write-ahead log, through the page cache and past
//! it: [Beineke18 Figures 11, 15, 16], on our backup. One thread is the log writer, one flushes;
//! every commit is synced.
//!
//! Paper: [Beineke18 §XI-B]; differs: every commit is on stable storage before the next begins,
//! where DXRAM acknowledges from memory.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Report, Result, Row, Scale, Series, median, progress,
};
use crate::servers::Scratch;
use duramen_backup::disk::{Disk, File, OpenHow};
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Chunk, Geometry, Identity, Mode};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::units::MIB;
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const SEGMENT_BYTES: u32 = 8 << 20;
const GEOMETRY: Geometry = Geometry {
    segment_bytes: SEGMENT_BYTES,
    wal_bytes: 256 << 20,
    frames: 160,
};
/// Bytes that wait for a log writer under full load when it begins the next commit: also the write
/// size for the measurement of the device.
const WAITING_BYTES: usize = 4 << 20;
/// Pieces shared by the threads: one is filled, one is staged, one waits.
const PIECES: usize = 3;
/// Closed segments that stay, so that frames are used in turn and not one alone.
const CLOSED: usize = 8;
/// File size for the measurement of the device: that of the frames which a run uses in turn. A
/// smaller file is written faster, from caches.
const DEVICE_BYTES: u64 = (CLOSED as u64 + 3) * SEGMENT_BYTES as u64;
/// Bytes written before the measurement: all frames that a run uses, several times over.
const WARM_BYTES: u64 = 4 * CLOSED as u64 * SEGMENT_BYTES as u64;
const WARM_MAX: Duration = Duration::from_secs(5);
const BLOCK: usize = 4096;

/// Logging by chunk size, buffered and direct, with and without the write-ahead log's stage
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LoggingFigure {
    /// Parent of the files: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One stream, by size of entry
    Stream,
    /// Many streams, with and without the write-ahead log
    Stage,
}

/// The result of one run.
#[derive(Clone, Copy)]
struct Run {
    bytes_per_second: f64,
    entries_per_second: f64,
    commits_per_second: f64,
    /// Bytes written to the device per byte of entries.
    amplification: f64,
}

impl Run {
    /// The median of every rate; the amplification of the first run.
    fn median(runs: &[Run]) -> Run {
        let of = |rate: fn(&Run) -> f64| median(&runs.iter().map(rate).collect::<Vec<_>>());
        Run {
            bytes_per_second: of(|run| run.bytes_per_second),
            entries_per_second: of(|run| run.entries_per_second),
            commits_per_second: of(|run| run.commits_per_second),
            amplification: runs.first().map_or(f64::NAN, |run| run.amplification),
        }
    }
}

impl Figure for LoggingFigure {
    const NAME: &'static str = "logging";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &LoggingFigure, options: &Options) -> Result<Report> {
    let about = "Commits are written one after another, each synced before the next begins; one thread flushes closed segments to \
        frames of 8 MiB, which are used again. `stream`: one open segment; one thread appends entries and certifies them, 4 MiB at a \
        time, one stages these, one commits what was staged meanwhile; the device's own figure is an overwrite of 4 MiB past the page \
        cache, synced, over as many bytes as the log's frames take; `beside the same appending`: the same thread appends and certifies \
        what is written, and there is no log. `each its own`: one thread appends, stages and commits, and every entry is a chunk of \
        its own, with a certificate. `stage`: one thread stages a few bytes for each of many open segments and commits them, with the \
        write-ahead log, and without it, where each segment's last block is written in its place and one sync follows.";
    let mut report = Report::new(
        "logging",
        "Logging by chunk size, with and without the write-ahead log",
        about,
        options,
    );
    report.level = "synced".to_owned();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Stream) {
        streams(options, &dir, &mut report)?;
    }
    if wanted(Part::Stage) {
        stages(options, &dir, &mut report)?;
    }
    Ok(report)
}

/// Figure 11: one stream.
fn streams(options: &Options, dir: &Path, report: &mut Report) -> Result<()> {
    let sizes: &[usize] = options.size(
        &[
            64,
            256,
            1 << 10,
            4 << 10,
            16 << 10,
            64 << 10,
            256 << 10,
            1 << 20,
        ],
        &[64, 1 << 10, 64 << 10, 1 << 20],
    );
    let time = options.size(Duration::from_secs(3), Duration::from_millis(800));
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for mode in [Mode::Direct, Mode::Buffered] {
        let name = if mode == Mode::Direct {
            "direct"
        } else {
            "buffered"
        };
        let mut points = Vec::new();
        for size in sizes {
            let measured = Streamed::measure(options, dir, mode, *size, time)?;
            let (rate, device) = (measured.ours.bytes_per_second, measured.device);
            let entries = measured.ours.entries_per_second;
            progress!(
                "{name}, {size} B: {:.0} of {:.0} MB/s",
                rate / 1e6,
                device / 1e6
            );
            points.push((*size as f64, rate / 1e6));
            rows.push(
                Row::new()
                    .with("mode", name)
                    .with("entry bytes", *size)
                    .number("MB/s", rate / 1e6, 3)
                    .number("entries/s", entries, 3)
                    .number("of the device", rate / device, 2)
                    .number(
                        "of the device beside the same appending",
                        rate / measured.beside,
                        2,
                    )
                    .number("written per byte", measured.ours.amplification, 3),
            );
            if *size == 64 && mode == Mode::Direct {
                let target = "entries of 64 B per second, in large chunks ≥ 1 M";
                report.target(target, entries, Bound::AtLeast(1e6));
            }
            if *size == 1 << 10 {
                let target = format!("bandwidth of the device at 1 KiB, {name} ≥ 0.9");
                report.target(target, rate / device, Bound::AtLeast(0.9));
                let target =
                    format!("the same, of the device beside the same appending, {name} ≥ 0.9");
                report.target(target, rate / measured.beside, Bound::AtLeast(0.9));
            }
        }
        series.push(Series {
            name: name.to_owned(),
            points,
        });
    }
    rows.push(alone(options, dir, time, report)?);
    let chart = Chart::lines("One stream, synced", "bytes of an entry", "MB/s", series);
    report.plot("stream", &chart.scales(Scale::Log, Scale::Linear));
    report.table("One stream (Figure 11)", rows);
    Ok(())
}

/// One size of entries in one mode: medians, of the log and of the device without it.
struct Streamed {
    ours: Run,
    device: f64,
    beside: f64,
}

impl Streamed {
    fn measure(
        options: &Options,
        dir: &Path,
        mode: Mode,
        size: usize,
        time: Duration,
    ) -> Result<Streamed> {
        let (mut device, mut beside, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.rounds() {
            device.push(device_rate(dir, time)?);
            beside.push(device_beside(dir, size, time)?);
            ours.push(stream(dir, mode, size, time)?);
        }
        Ok(Streamed {
            ours: Run::median(&ours),
            device: median(&device),
            beside: median(&beside),
        })
    }
}

/// Entries of which each is a chunk of its own.
fn alone(options: &Options, dir: &Path, time: Duration, report: &mut Report) -> Result<Row> {
    let runs = (0..options.rounds()).map(|_| each_its_own(dir, time));
    let run = Run::median(&runs.collect::<Result<Vec<_>>>()?);
    let entries = run.entries_per_second;
    report.target(
        "64 B entries, each a chunk of its own, per second, one thread ≥ 1 M",
        entries,
        Bound::AtLeast(1e6),
    );
    Ok(Row::new()
        .with("mode", "direct, each its own")
        .with("entry bytes", 64)
        .number("MB/s", entries * 64.0 / 1e6, 3)
        .number("entries/s", entries, 3)
        .number("written per byte", run.amplification, 3))
}

/// Figures 15 and 16: many streams.
fn stages(options: &Options, dir: &Path, report: &mut Report) -> Result<()> {
    let time = options.size(Duration::from_secs(2), Duration::from_millis(500));
    let counts: &[usize] = options.size(&[1, 4, 16, 64], &[1, 64]);
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for size in [64, 256] {
        let (mut staged, mut bare) = (Vec::new(), Vec::new());
        for count in counts {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..options.rounds() {
                with.push(staged_rate(dir, *count, size, time)?.bytes_per_second);
                without.push(bare_rate(dir, *count, size, time)?);
            }
            let (with, without) = (median(&with), median(&without));
            progress!("{count} segments x {size} B: {:.1}x", with / without);
            staged.push((*count as f64, with / 1e6));
            bare.push((*count as f64, without / 1e6));
            rows.push(
                Row::new()
                    .with("open segments", *count)
                    .with("bytes each", size)
                    .number("with the stage, MB/s", with / 1e6, 3)
                    .number("commits/s", with / (count * size) as f64, 3)
                    .number("without, MB/s", without / 1e6, 3)
                    .number("times", with / without, 3),
            );
            if *count == 64 {
                let target = format!("the stage against none, 64 open segments, {size} B ≥ 5");
                report.target(target, with / without, Bound::AtLeast(5.0));
            }
        }
        for (name, points) in [("with", staged), ("without", bare)] {
            series.push(Series {
                name: format!("{name}, {size} B"),
                points,
            });
        }
    }
    let chart = Chart::lines("Many streams, synced", "open segments", "MB/s", series);
    report.plot("stage", &chart.scales(Scale::Log, Scale::Log));
    report.table(
        "A few bytes for each of many segments (Figures 15, 16)",
        rows,
    );
    Ok(())
}

fn scratch(dir: &Path) -> Result<Scratch> {
    Scratch::new(dir).doing(format!("making a directory in {}", dir.display()))
}

fn failed(doing: &'static str) -> impl Fn(duramen_backup::Error) -> Failure {
    move |error| Failure::new(doing, error.to_string())
}

/// Bytes per second of overwrites of a commit's size, past the page cache, each synced.
fn device_rate(dir: &Path, time: Duration) -> Result<f64> {
    let scratch = scratch(dir)?;
    let (_, file) = raw_file(scratch.path(), DEVICE_BYTES)?;
    let piece = vec![0x5a; WAITING_BYTES + BLOCK];
    let start = piece.as_ptr().align_offset(BLOCK);
    let piece = &piece[start..start + WAITING_BYTES];
    let (mut bytes, begun) = (0, Instant::now());
    while begun.elapsed() < time {
        file.write_durably(bytes % DEVICE_BYTES, piece)
            .doing("writing to the device")?;
        bytes += piece.len() as u64;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// A file that was written once, so that overwriting it changes no metadata.
fn raw_file(dir: &Path, bytes: u64) -> Result<(OsDisk, Arc<dyn File>)> {
    let disk = OsDisk::new(dir, Mode::Direct);
    let file = disk.open("raw", OpenHow::Create).doing("making a file")?;
    file.allocate(0, bytes, true).doing("filling a file")?;
    Ok((disk, file))
}

/// The open segments of a log writer, and its closed ones.
struct Writer {
    backup: Arc<Backup>,
    open: Vec<Open>,
    /// For the flusher's thread, which frees them later.
    closed: Arc<Mutex<VecDeque<SegmentId>>>,
    next: u64,
    source: Arc<Source>,
}

/// The source of entries.
struct Source(Vec<u8>);

impl Source {
    fn new() -> Source {
        let byte = |n: u32| (n.wrapping_mul(2_654_435_761) >> 9) as u8;
        Source((0..2 * MIB as u32).map(byte).collect())
    }

    /// Appends entries up to `bytes` in all, as heads do in memory. Returns their number.
    fn append(&self, to: &mut Vec<u8>, entry: usize, bytes: usize) -> u64 {
        let count = bytes / entry;
        for number in 0..count {
            to.extend_from_slice(self.entry(number, entry));
        }
        count as u64
    }

    fn entry(&self, number: usize, bytes: usize) -> &[u8] {
        &self.0[number % 4096..][..bytes]
    }
}

/// A part of a segment in memory: at a multiple of the block size, as in an engine's windows.
struct Piece {
    storage: Vec<u8>,
    start: usize,
    /// Of the segment up to the piece's end.
    certificate: Certificate,
    last: bool,
}

impl Piece {
    fn new() -> Piece {
        let storage = vec![0; WAITING_BYTES + BLOCK];
        let start = storage.as_ptr().align_offset(BLOCK);
        Piece {
            storage,
            start,
            certificate: Certificate::EMPTY,
            last: false,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.storage[self.start..][..WAITING_BYTES]
    }

    /// Fills it with entries and certifies them, on top of `before`. Returns their number.
    fn fill(&mut self, source: &Source, entry: usize, before: Certificate) -> u64 {
        let into = &mut self.storage[self.start..][..WAITING_BYTES];
        for (number, place) in into.chunks_mut(entry).enumerate() {
            place.copy_from_slice(source.entry(number, place.len()));
        }
        self.certificate = before.extended(self.bytes());
        self.last = self.certificate.length == SEGMENT_BYTES;
        (WAITING_BYTES / entry) as u64
    }
}

struct Open {
    segment: SegmentId,
    bytes: Vec<u8>,
    shipped: usize,
    certificate: Certificate,
}

impl Writer {
    fn new(backup: Arc<Backup>, open: usize) -> Writer {
        let mut writer = Writer {
            backup,
            open: Vec::new(),
            closed: Arc::default(),
            next: 1,
            source: Arc::new(Source::new()),
        };
        for _ in 0..open {
            let fresh = writer.fresh(Vec::with_capacity(SEGMENT_BYTES as usize));
            writer.open.push(fresh);
        }
        writer
    }

    fn fresh(&mut self, mut bytes: Vec<u8>) -> Open {
        bytes.clear();
        let segment = SegmentId(self.next);
        self.next += 1;
        Open {
            segment,
            bytes,
            shipped: 0,
            certificate: Certificate::EMPTY,
        }
    }

    /// Appends entries to an open segment. Returns their number.
    fn append(&mut self, number: usize, entry: usize, bytes: usize) -> u64 {
        let open = &mut self.open[number];
        let room = SEGMENT_BYTES as usize - open.bytes.len();
        self.source.append(&mut open.bytes, entry, bytes.min(room))
    }

    /// Stages the new bytes of a segment, in pieces of at most `piece` bytes; a segment without
    /// room for `entry` is closed.
    fn ship(&mut self, number: usize, piece: usize, entry: usize) -> Result<()> {
        let open = &mut self.open[number];
        let full = open.bytes.len() + entry > SEGMENT_BYTES as usize;
        while open.shipped < open.bytes.len() {
            let end = (open.shipped + piece).min(open.bytes.len());
            let new = &open.bytes[open.shipped..end];
            open.certificate = open.certificate.extended(new);
            let chunk = Chunk {
                segment: open.segment,
                epoch: 1,
                kind: Kind::Head,
                offset: open.shipped as u32,
                bytes: new,
                certificate: Some(open.certificate),
                open: open.shipped == 0,
                close: full && end == open.bytes.len(),
            };
            self.backup
                .stage_certified(chunk)
                .map_err(failed("staging"))?;
            open.shipped = end;
        }
        if full {
            let bytes = std::mem::take(&mut open.bytes);
            self.replace(number, bytes);
        }
        Ok(())
    }

    /// Stages the bytes of a piece.
    fn ship_piece(&mut self, number: usize, piece: &Piece) -> Result<()> {
        let open = &mut self.open[number];
        let chunk = Chunk {
            segment: open.segment,
            epoch: 1,
            kind: Kind::Head,
            offset: open.shipped as u32,
            bytes: piece.bytes(),
            certificate: Some(piece.certificate),
            open: open.shipped == 0,
            close: piece.last,
        };
        self.backup
            .stage_certified(chunk)
            .map_err(failed("staging"))?;
        open.shipped += WAITING_BYTES;
        if piece.last {
            self.replace(number, Vec::new());
        }
        Ok(())
    }

    /// Replaces a closed segment by a fresh one.
    fn replace(&mut self, number: usize, memory: Vec<u8>) {
        let fresh = self.fresh(memory);
        let old = std::mem::replace(&mut self.open[number], fresh);
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.push_back(old.segment);
    }
}

/// Flushes closed segments, and frees those closed long ago: the log does not grow for ever.
fn flush(backup: &Backup, closed: &Mutex<VecDeque<SegmentId>>, stop: &AtomicBool) -> Result<()> {
    // Relaxed: the flag carries nothing with it.
    while !stop.load(Ordering::Relaxed) {
        let flushed = backup.flush_step().map_err(failed("flushing"))?;
        let oldest = {
            let mut closed = closed.lock().unwrap_or_else(PoisonError::into_inner);
            (closed.len() > CLOSED)
                .then(|| closed.pop_front())
                .flatten()
        };
        if let Some(oldest) = oldest {
            backup.free(oldest).map_err(failed("freeing"))?;
        } else if !flushed {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// The thread that commits a round's chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    /// The thread that staged them.
    Here,
    /// A thread of its own, while the next round is staged.
    Beside,
}

/// Commits once per send; a send returns when the previous commit is done.
fn commit_beside(backup: &Backup, rounds: &Receiver<()>) -> Result<()> {
    while rounds.recv().is_ok() {
        commit(backup)?;
    }
    Ok(())
}

fn commit(backup: &Backup) -> Result<()> {
    let committed = backup.commit(Level::Synced);
    committed.map(|_| ()).map_err(failed("committing"))
}

/// Runs a log writer and a flusher for `time`; `round` appends and ships, and returns the entries
/// and their bytes.
fn log(
    dir: &Path,
    mode: Mode,
    (open, commits): (usize, Commits),
    time: Duration,
    mut round: impl FnMut(&mut Writer) -> Result<(u64, u64)>,
) -> Result<Run> {
    let scratch = scratch(dir)?;
    let disk = Arc::new(OsDisk::new(&scratch.path().join("store"), mode));
    let identity = Identity {
        cluster: "bench".to_owned(),
        server: 1,
        hash_seed: 1,
    };
    let made = Backup::create(
        disk,
        &duramen_backup::Options::default(),
        &GEOMETRY,
        &identity,
    );
    let backup = Arc::new(made.map_err(failed("creating a store"))?);
    let mut writer = Writer::new(backup.clone(), open);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let closed = writer.closed.clone();
        let (stop, backup) = (&stop, &backup);
        let flusher = scope.spawn(move || flush(backup, &closed, stop));
        // No room in the channel: only the next round is staged while this one is written.
        let (rounds, to_commit) = std::sync::mpsc::sync_channel(0);
        let committer = scope.spawn(move || commit_beside(backup, &to_commit));
        let mut step = || -> Result<(u64, u64)> {
            let counted = round(&mut writer)?;
            match commits {
                Commits::Here => commit(backup)?,
                Commits::Beside => rounds.send(()).doing("handing over to the committer")?,
            }
            Ok(counted)
        };
        let measured = measure(backup, time, &mut step);
        drop(rounds);
        stop.store(true, Ordering::Relaxed);
        let ended = [committer, flusher].map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        for end in ended {
            end?; // the cause of a failed send
        }
        measured
    })
}

/// Steps for `time`, after a warm-up.
fn measure(
    backup: &Backup,
    time: Duration,
    step: &mut dyn FnMut() -> Result<(u64, u64)>,
) -> Result<Run> {
    // First once around all frames that will be used, so that later writes find their space.
    let warm = Instant::now();
    let mut warmed = 0;
    while warm.elapsed() < time / 2
        || warmed > 0 && warmed < WARM_BYTES && warm.elapsed() < WARM_MAX
    {
        let (_, size) = step()?;
        // A run that fills segments writes every frame once before it reuses it.
        if size >= MIB {
            warmed += size;
        }
    }
    let before = backup.stats();
    let (mut entries, mut bytes) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < time {
        let (more, size) = step()?;
        entries += more;
        bytes += size;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let after = backup.stats();
    // Staged chunks without a commit do not count.
    let committed = (after.payload_bytes - before.payload_bytes) as f64;
    let entries = entries as f64 * committed / (bytes as f64).max(1.0);
    let written = after.wal_written_bytes + after.frame_written_bytes
        - before.wal_written_bytes
        - before.frame_written_bytes;
    Ok(Run {
        bytes_per_second: committed / seconds,
        entries_per_second: entries / seconds,
        commits_per_second: (after.commits - before.commits) as f64 / seconds,
        amplification: written as f64 / committed.max(1.0),
    })
}

/// Filled and empty pieces of an appender, with the number of entries.
type Filled = Receiver<(Piece, u64)>;
type Empty = SyncSender<Piece>;

/// Runs `body` beside a thread that appends entries and certifies them, as fast as pieces return.
fn beside_appender(entry: usize, body: impl FnOnce(Filled, Empty) -> Result<Run>) -> Result<Run> {
    let source = Source::new();
    let (full, filled) = std::sync::mpsc::sync_channel(PIECES);
    let (empty, emptied) = std::sync::mpsc::sync_channel::<Piece>(PIECES);
    for _ in 0..PIECES {
        let piece = Piece::new();
        empty.send(piece).doing("making room for entries")?;
    }
    std::thread::scope(|scope| {
        let appender = scope.spawn(move || {
            let mut certificate = Certificate::EMPTY;
            // Both channels close at the end of the measurement.
            while let Ok(mut piece) = emptied.recv() {
                let count = piece.fill(&source, entry, certificate);
                certificate = if piece.last {
                    Certificate::EMPTY
                } else {
                    piece.certificate
                };
                if full.send((piece, count)).is_err() {
                    return;
                }
            }
        });
        let run = body(filled, empty);
        let joined = appender.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        run
    })
}

/// One open segment. One thread appends and certifies, one stages, one commits.
fn stream(dir: &Path, mode: Mode, entry: usize, time: Duration) -> Result<Run> {
    beside_appender(entry, |filled, empty| {
        log(dir, mode, (1, Commits::Beside), time, move |writer| {
            let (piece, count) = filled.recv().doing("waiting for entries")?;
            writer.ship_piece(0, &piece)?;
            empty.send(piece).doing("giving memory back")?;
            Ok((count, count * entry as u64))
        })
    })
}

/// Bytes per second of the device as in [`device_rate`], with entries that another thread appends
/// and certifies meanwhile.
fn device_beside(dir: &Path, entry: usize, time: Duration) -> Result<f64> {
    let scratch = scratch(dir)?;
    let (_, file) = raw_file(scratch.path(), DEVICE_BYTES)?;
    let run = beside_appender(entry, |filled, empty| {
        let (mut bytes, mut entries, begun) = (0, 0, Instant::now());
        while begun.elapsed() < time {
            let (piece, count) = filled.recv().doing("waiting for entries")?;
            file.write_durably(bytes % DEVICE_BYTES, piece.bytes())
                .doing("writing to the device")?;
            empty.send(piece).doing("giving memory back")?;
            bytes += WAITING_BYTES as u64;
            entries += count;
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Run {
            bytes_per_second: bytes as f64 / seconds,
            entries_per_second: entries as f64 / seconds,
            commits_per_second: bytes as f64 / WAITING_BYTES as f64 / seconds,
            amplification: 1.0,
        })
    })?;
    Ok(run.bytes_per_second)
}

/// As `stream` with 64 B, but every entry is staged by itself, and one thread does everything
/// except flushing.
fn each_its_own(dir: &Path, time: Duration) -> Result<Run> {
    log(dir, Mode::Direct, (1, Commits::Here), time, |writer| {
        let count = writer.append(0, 64, 256 << 10);
        writer.ship(0, 64, 64)?;
        Ok((count, count * 64))
    })
}

/// One entry for each of many open segments per commit.
fn staged_rate(dir: &Path, open: usize, entry: usize, time: Duration) -> Result<Run> {
    let run = log(dir, Mode::Direct, (open, Commits::Here), time, |writer| {
        let mut count = 0;
        for number in 0..open {
            count += writer.append(number, entry, entry);
            writer.ship(number, usize::MAX / 2, entry)?;
        }
        Ok((count, count * entry as u64))
    })?;
    progress!(
        "{open} x {entry} B: {:.0} commits/s",
        run.commits_per_second
    );
    Ok(run)
}

/// The same without a write-ahead log: each segment's last block is written in its place, and one
/// sync makes them durable.
fn bare_rate(dir: &Path, open: usize, entry: usize, time: Duration) -> Result<f64> {
    let scratch = scratch(dir)?;
    let each = MIB;
    let (_disk, file) = raw_file(scratch.path(), each * open as u64)?;
    let memory = vec![0x5a; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let block = &memory[start..start + BLOCK];
    let (mut length, mut bytes, begun) = (0u64, 0, Instant::now());
    while begun.elapsed() < time {
        for number in 0..open as u64 {
            let at = number * each + length % each / BLOCK as u64 * BLOCK as u64;
            file.write_at(at, block).doing("writing a block")?;
        }
        file.sync_data().doing("syncing the file")?;
        length += entry as u64;
        bytes += (open * entry) as u64;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}
