//! Inserts from empty: the cost of index growth for the single insert, and the bytes of the index
//! meanwhile.

use crate::figure::Figure;
use crate::harness::store::{self, TABLE, key};
use crate::harness::{
    Bound, Chart, Doing, Latencies, Options, Report, Result, Row, Scale, Series, clock, progress,
};
use duramen_engine::Store;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 64;
/// Points of the plots.
const SLICES: u64 = 100;
/// The index is at rest when it has not shrunk for this time.
const RESTED_AFTER: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(30);

/// The result of one pass of inserts.
struct Pass {
    all: Latencies,
    /// Per slice: keys so far, index bytes per object, the slice's p99.9 and longest insert.
    slices: Vec<Slice>,
    seconds: f64,
    /// Index bytes per object when the index is at rest, and the time from the last insert until
    /// then.
    at_rest: f64,
    rest_seconds: f64,
}

struct Slice {
    keys: u64,
    index_bytes_per_object: f64,
    p99_9_us: f64,
    max_us: f64,
}

/// Latency of inserts from empty, and the size of the index on the way
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GrowthFigure;

impl Figure for GrowthFigure {
    const NAME: &'static str = "growth";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(options)?])
    }
}

fn report(options: &Options) -> Result<Report> {
    let keys = options.size(50_000_000, 2_000_000);
    let about = "One thread inserts keys (8 + 64 bytes) into an empty store, one per call, every one timed, with one cleaner thread. \
        `fresh` = the process's first pass, where the virtual machine must also find memory behind every page; `again` = a second \
        store in the same process, whose memory the machine has already given once. The index's size counts when its background work is done.";
    let mut report = Report::new(
        "growth",
        "Insert latency while the index grows",
        about,
        options,
    );
    let mut rows = Vec::new();
    let (mut index, mut tails) = (Vec::new(), Vec::new());
    for name in ["fresh", "again"] {
        let pass = insert(keys)?;
        rows.push(row(name, keys, &pass));
        let points =
            |of: fn(&Slice) -> f64| pass.slices.iter().map(|s| (s.keys as f64, of(s))).collect();
        index.push(Series {
            name: name.to_owned(),
            points: points(|s| s.index_bytes_per_object),
        });
        tails.push(Series {
            name: format!("{name}, p99.9"),
            points: points(|s| s.p99_9_us),
        });
        tails.push(Series {
            name: format!("{name}, longest"),
            points: points(|s| s.max_us),
        });
        let p99_99_us = pass.all.at_us(0.9999);
        let target = format!(
            "p99.99 of an insert, {} M keys, {name} ≤ 1000 µs",
            keys / 1_000_000
        );
        report.target(target, p99_99_us, Bound::AtMost(1000.0));
        let target = format!("index bytes per object, {name} ≤ 12");
        report.target(target, pass.at_rest, Bound::AtMost(12.0));
    }
    let x = "keys inserted";
    report.plot(
        "index",
        &Chart::lines("Index bytes per object", x, "bytes", index),
    );
    let chart = Chart::lines(
        "Latency of an insert, per slice of 1 %",
        x,
        "microseconds",
        tails,
    );
    report.plot("latency", &chart.scales(Scale::Linear, Scale::Log));
    report.table("Inserts from empty, microseconds", rows);
    Ok(report)
}

fn insert(keys: u64) -> Result<Pass> {
    let entry_bytes = store::footprint::<8>(VALUE_BYTES)?.entry_bytes;
    // A fifth more than the entries and 16 bytes of index each need, so that no cleaning is forced.
    let budget_bytes = (keys as f64 * (entry_bytes + 16.0) * 1.2) as u64;
    let store = store::open(budget_bytes, 1)?;
    let mut session = store.session().doing("opening a session")?;
    let mut value = store::value(VALUE_BYTES);
    clock::ns_per_tick();
    let begun = Instant::now();
    let (mut all, mut slices) = (Latencies::default(), Vec::new());
    for slice in 0..SLICES {
        let mut latencies = Latencies::default();
        let (from, to) = (keys * slice / SLICES, keys * (slice + 1) / SLICES);
        for id in from..to {
            let key = key::<8>(id);
            value[..8].copy_from_slice(&key);
            let start = clock::now();
            let mut guard = session.pin();
            let hash = guard.hash(&key);
            let written = guard.write(TABLE, hash, &key, &value, None);
            drop(guard);
            let end = clock::now();
            written.doing(format!("inserting key {id}"))?;
            latencies.record_ns(clock::to_ns(end.saturating_sub(start)));
        }
        slices.push(Slice {
            keys: to,
            index_bytes_per_object: store.stats().index_bytes as f64 / to as f64,
            p99_9_us: latencies.at_us(0.999),
            max_us: latencies.summary().max_us,
        });
        all.add(&latencies);
    }
    let seconds = begun.elapsed().as_secs_f64();
    progress!("{keys} inserts in {seconds:.1} s");
    let (at_rest, rest_seconds) = at_rest(&store, keys);
    Ok(Pass {
        all,
        slices,
        seconds,
        at_rest,
        rest_seconds,
    })
}

/// Index bytes per object when the background work is done, and its duration in seconds.
fn at_rest(store: &Store, keys: u64) -> (f64, f64) {
    let begun = Instant::now();
    let mut least = (store.stats().index_bytes, begun);
    while least.1.elapsed() < RESTED_AFTER && begun.elapsed() < REST_MAX {
        std::thread::sleep(RESTED_AFTER / 10);
        let bytes = store.stats().index_bytes;
        if bytes < least.0 {
            least = (bytes, Instant::now());
        }
    }
    let seconds = least.1.duration_since(begun).as_secs_f64();
    (least.0 as f64 / keys as f64, seconds)
}

fn row(name: &str, keys: u64, pass: &Pass) -> Row {
    let summary = pass.all.summary();
    let last = pass
        .slices
        .last()
        .map_or(f64::NAN, |slice| slice.index_bytes_per_object);
    let most = pass
        .slices
        .iter()
        .map(|s| s.index_bytes_per_object)
        .fold(0.0, f64::max);
    Row::new()
        .with("pass", name)
        .with("keys", keys)
        .number("inserts/s", keys as f64 / pass.seconds, 3)
        .number("p50", summary.p50_us, 3)
        .number("p99", summary.p99_us, 3)
        .number("p99.9", summary.p99_9_us, 3)
        .number("p99.99", summary.p99_99_us, 3)
        .number("longest", summary.max_us, 3)
        .number("index bytes per object at the end", last, 3)
        .number("most on the way", most, 3)
        .number("at rest", pass.at_rest, 3)
        .number("seconds until rest", pass.rest_seconds, 3)
}
