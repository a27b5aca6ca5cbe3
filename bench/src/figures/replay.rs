//! The rate at which a recovery master takes over another server's log: entries replayed into a
//! side log, by one thread and by two, by size of objects. Ousterhout15 §7.11, Table V.

use crate::figure::Figure;
use crate::harness::store::{self, TABLE};
use crate::harness::{
    Bound, Chart, Doing, Options, Report, Result, Row, Scale, Series, median, progress,
};
use duramen_base::ids::SegmentId;
use duramen_base::units::MIB;
use duramen_engine::{LogOptions, Options as StoreOptions, SidePlan, Store};
use duramen_format::entry::NewObject;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of entries per message: a backup's part of a segment.
const CHUNK_BYTES: usize = 1 << 20;
const KEY_BYTES: usize = 16;
/// Smallest object, and the target with it.
const SMALL: (usize, &str) = (100, "M entries/s of 100 B, one thread ≥ 1");
const LARGE: (usize, &str) = (1000, "MB/s of 1 KB, one thread ≥ 500");

/// Entries of another server's log replayed into a side log, by one thread and by two
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ReplayFigure {
    /// Bytes of values; targets are those of 100 and 1,000
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,64,100,128,256,1000,1024,2048,4096"
    )]
    pub value_bytes: Vec<usize>,
    /// Megabytes of entries of each size [default: 512; 64 with --quick]
    #[arg(long, value_name = "MB")]
    pub data: Option<u64>,
}

impl Figure for ReplayFigure {
    const NAME: &'static str = "replay";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ReplayFigure, options: &Options) -> Result<Report> {
    let about = "Entries of a dead server's log, in chunks of 1 MB and in random order of keys, are verified and replayed into a side log \
        of an empty store; every eighth key comes twice, with another version. Nothing is written to a disk. Rates count entries as they come.";
    let mut report = Report::new("replay", "Replay of a log into a side log", about, options);
    let mut rows = Vec::new();
    let mut lines = ["one thread", "two threads"].map(|name| Series {
        name: name.to_owned(),
        points: Vec::new(),
    });
    for &value_bytes in &args.value_bytes {
        let bytes = args.data.unwrap_or(options.size(512, 64)) * MIB;
        let chunks = chunks(bytes, value_bytes);
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..options.rounds() {
            for (threads, figures) in (1..).zip(&mut figures) {
                figures.push(replay(&chunks, bytes, threads)?);
            }
        }
        for (threads, figures) in (1usize..).zip(&figures) {
            let seconds = median(&figures.iter().map(|f| f.1).collect::<Vec<f64>>());
            let entries = figures.first().map_or(0, |f| f.0);
            let total: usize = chunks.iter().map(Vec::len).sum();
            let (entries_m, mb) = (entries as f64 / seconds / 1e6, total as f64 / seconds / 1e6);
            progress!("{value_bytes} B, {threads} threads: {entries_m:.2} M/s, {mb:.0} MB/s");
            rows.push(
                Row::new()
                    .with("value bytes", value_bytes)
                    .with("threads", threads)
                    .with("entries", entries)
                    .number("M entries/s", entries_m, 3)
                    .number("MB/s", mb, 3),
            );
            lines[threads - 1].points.push((value_bytes as f64, mb));
            if threads == 1 && value_bytes == SMALL.0 {
                report.target(SMALL.1, entries_m, Bound::AtLeast(1.0));
            }
            if threads == 1 && value_bytes == LARGE.0 {
                report.target(LARGE.1, mb, Bound::AtLeast(500.0));
            }
        }
    }
    let chart = Chart::lines("Replay by size", "bytes of a value", "MB/s", lines.into());
    report.plot("", &chart.scales(Scale::Log, Scale::Linear));
    report.table("Replay (Table V)", rows);
    Ok(report)
}

/// The rate of one thread, with values of this size.
pub(super) fn bytes_per_second(options: &Options, value_bytes: usize) -> Result<f64> {
    let bytes = options.size(256, 64) * MIB;
    let chunks = chunks(bytes, value_bytes);
    let total: usize = chunks.iter().map(Vec::len).sum();
    let mut rates = Vec::new();
    for _ in 0..options.rounds() {
        rates.push(total as f64 / replay(&chunks, bytes, 1)?.1);
    }
    Ok(median(&rates))
}

/// Entries in the form of a backup's messages.
pub(super) fn chunks(bytes: u64, value_bytes: usize) -> Vec<Vec<u8>> {
    let value = store::value(value_bytes);
    let keys = bytes / (value_bytes + KEY_BYTES + 16) as u64;
    let (mut chunks, mut chunk) = (Vec::new(), Vec::new());
    for n in 0..keys {
        // Spread over the hashes; every eighth entry is another version of an earlier one.
        let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (id, version) = if n % 8 == 7 {
            ((n - 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20, 2)
        } else {
            (id, 1)
        };
        let mut key = [b'k'; KEY_BYTES];
        key[..8].copy_from_slice(&id.to_le_bytes());
        let object = NewObject {
            table: TABLE.0,
            version,
            expires_at_ms: None,
            key: &key,
            value: &value,
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let at = chunk.len();
        chunk.resize(at + object.padded_bytes(), 0);
        object.write_to(&mut chunk[at..]);
        if chunk.len() >= CHUNK_BYTES {
            chunks.push(std::mem::take(&mut chunk));
        }
    }
    chunks.push(chunk);
    chunks
}

/// The entries replayed, and the duration in seconds.
fn replay(chunks: &[Vec<u8>], bytes: u64, threads: usize) -> Result<(u64, f64)> {
    let mut options = StoreOptions::new(2 * bytes + 256 * MIB);
    options.log = Some(LogOptions::new(1));
    let store: Arc<Store> = Store::new(options).doing("opening a store")?;
    let side = store.side_log(SidePlan::default());
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    let replayed = std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                side.replay(chunk).doing("replaying a chunk")?;
            }
            Ok(())
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others
            .into_iter()
            .map(|other| other.join().expect("a replaying thread"))
            .fold(mine, Result::and)
    });
    let seconds = begun.elapsed().as_secs_f64();
    replayed?;
    Ok((side.report().entries, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = ReplayFigure {
            value_bytes: vec![1, 100],
            data: Some(1),
        };
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        assert_eq!(report.tables[0].rows.len(), 4, "by size and threads");
        assert_eq!(report.targets.len(), 1, "of 100 B alone");
        for row in &report.tables[0].rows {
            let rate = row.get("M entries/s").and_then(Value::as_f64);
            assert!(rate.is_some_and(|rate| rate > 0.0), "{row:?}");
        }
    }
}
