//! Write throughput against memory utilization: the setting of Rumble14 Figures 6, 7 and 11, in
//! process.
//!
//! One store of fixed budget per object size and distribution. It is filled with sequential keys to
//! each utilization in turn; then objects are overwritten, in batches of 16, until the cleaner's
//! cost has converged; only then is throughput measured.

use crate::figure::Figure;
use crate::harness::store::{self, BATCH, TABLE, key};
use crate::harness::{
    Bound, Chart, Chooser, Distribution, Doing, Failure, Options, Random, Report, Result, Row,
    Series, median, progress,
};
use duramen_base::units::MIB;
use duramen_engine::{Error, Stats, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Write throughput as live data fill the log: 30 to 95 %, three object sizes, two
/// distributions
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UtilizationFigure {
    /// Writing threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Background cleaner threads
    #[arg(long, default_value_t = 1)]
    pub cleaners: usize,
    /// Object sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 10_000])]
    pub values: Vec<usize>,
    /// Utilizations to measure at, rising
    #[arg(long, value_delimiter = ',', default_values_t = [30, 50, 70, 80, 90, 95])]
    pub percents: Vec<u32>,
    /// Budget of the store, in MiB
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
}

/// RAMCloud's writes per second on this kind of machine, 100 B, uniform, no replication, one
/// cleaner thread.
const RAMCLOUD: [(u32, f64); 3] = [(50, 570e3), (80, 260e3), (90, 111e3)];

/// Overwrites until told to stop; publishes its counters.
struct Writers {
    stop: AtomicBool,
    done: Vec<AtomicU64>,
    refused: AtomicU64,
}

/// One measured point.
struct Point {
    operations_per_second: f64,
    /// Operations in the worst tenth of a second.
    worst_tick: u64,
    /// Longest time in which no operation ended, in milliseconds, to 100 ms.
    longest_pause_ms: u64,
    refused: u64,
    before: Stats,
    after: Stats,
    seconds: f64,
}

const TICK: Duration = Duration::from_millis(100);

impl Figure for UtilizationFigure {
    const NAME: &'static str = "utilization";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &UtilizationFigure, options: &Options) -> Result<Report> {
    let about = "Write throughput in process as live data fill more of the log (Rumble14 Figures 6, 7, 11): 16-byte keys, \
        overwrites in batches of 16, uniform and Zipfian (90 % of writes to 15 % of the objects), measured once the cleaner's \
        cost has converged. Write cost = bytes the cleaner relocated per byte written (0 is ideal).";
    let mut report = Report::new(
        "utilization",
        "Throughput against utilization",
        about,
        options,
    );
    let mut rows = Vec::new();
    let mut deletes = Vec::new();
    let mut lines = Vec::new();
    let mut costs = Vec::new();
    for &value_bytes in &args.values {
        for zipfian in [false, true] {
            let name = format!(
                "{value_bytes} B {}",
                if zipfian { "zipfian" } else { "uniform" }
            );
            let swept = sweep(args, options, value_bytes, zipfian, &name)?;
            if value_bytes == 100 && !zipfian {
                add_targets(&mut report, &swept.points);
            }
            let rate = |(percent, point): &(u32, Point)| {
                (f64::from(*percent), point.operations_per_second)
            };
            let cost = |(percent, point): &(u32, Point)| (f64::from(*percent), write_cost(point));
            lines.push(Series {
                name: name.clone(),
                points: swept.points.iter().map(rate).collect(),
            });
            costs.push(Series {
                name: name.clone(),
                points: swept.points.iter().map(cost).collect(),
            });
            rows.extend(
                swept
                    .points
                    .iter()
                    .map(|(percent, point)| row(&name, *percent, point)),
            );
            deletes.extend(swept.deletes);
        }
    }
    let failed: u64 = deletes
        .iter()
        .filter_map(|row| row.get("refused deletes")?.as_u64())
        .sum();
    report.target(
        "deletes succeed when the store refuses writes (refused deletes)",
        failed as f64,
        Bound::AtMost(0.0),
    );
    add_plots(&mut report, lines, costs);
    report.table("Overwrites at fixed utilization", rows);
    report.table("Filled until refused, then deletes", deletes);
    report.note(format!(
        "{} writer thread(s), {} cleaner thread(s).",
        args.threads, args.cleaners
    ));
    report.note(
        "RAMCloud's figures come from this project's earlier measurement of its code on the same kind of machine (one cleaner \
         thread, no replication): the ratio spans runs.",
    );
    Ok(report)
}

/// `lines` and `costs`: rates and write costs.
fn add_plots(report: &mut Report, mut lines: Vec<Series>, costs: Vec<Series>) {
    let anchor = RAMCLOUD
        .iter()
        .map(|(percent, rate)| (f64::from(*percent), *rate))
        .collect();
    lines.push(Series {
        name: "RAMCloud, 100 B uniform".to_owned(),
        points: anchor,
    });
    let x = "utilization, % of the log that is live";
    report.plot(
        "",
        &Chart::lines(
            "Throughput against utilization",
            x,
            "writes per second",
            lines,
        ),
    );
    report.plot(
        "cost",
        &Chart::lines(
            "Write cost against utilization",
            x,
            "bytes relocated per byte written",
            costs,
        ),
    );
}

struct Swept {
    points: Vec<(u32, Point)>,
    deletes: Option<Row>,
}

fn sweep(
    args: &UtilizationFigure,
    options: &Options,
    value_bytes: usize,
    zipfian: bool,
    name: &str,
) -> Result<Swept> {
    let budget_bytes = args.memory.unwrap_or(options.size(1024, 512)) * MIB;
    let store = store::open(budget_bytes, args.cleaners)?;
    let mut records = 0;
    let mut points = Vec::new();
    for &percent in &args.percents {
        store::fill_to::<16>(
            &store,
            f64::from(percent) / 100.0,
            value_bytes,
            &mut records,
        )?;
        let distribution = match zipfian {
            true => Distribution::zipfian_with_share(records, 0.90, 0.15),
            false => Distribution::Uniform,
        };
        let chooser = Chooser::new(distribution, records, u64::from(percent));
        let point = measure(args, options, &store, value_bytes, &chooser)?;
        progress!(
            "{name} at {percent} %: {:.0} writes/s, write cost {:.2}, worst 100 ms {}",
            point.operations_per_second,
            write_cost(&point),
            point.worst_tick
        );
        points.push((percent, point));
    }
    let deletes = (!zipfian)
        .then(|| fill_and_delete(&store, value_bytes, records))
        .transpose()?;
    Ok(Swept { points, deletes })
}

fn measure(
    args: &UtilizationFigure,
    options: &Options,
    store: &Arc<Store>,
    value_bytes: usize,
    chooser: &Chooser,
) -> Result<Point> {
    let writers = Writers {
        stop: AtomicBool::new(false),
        done: (0..args.threads).map(|_| AtomicU64::new(0)).collect(),
        refused: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|n| {
                let (writers, chooser) = (&writers, chooser.fork(n as u64 + 1));
                scope.spawn(move || overwrite(store, value_bytes, chooser, writers, n))
            })
            .collect();
        let point = observe(options, store, &writers);
        writers.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a writer does not panic")?;
        }
        Ok(point)
    })
}

fn overwrite(
    store: &Arc<Store>,
    value_bytes: usize,
    mut chooser: Chooser,
    writers: &Writers,
    n: usize,
) -> Result<()> {
    let mut session = store.session().doing("opening a session")?;
    let mut value = store::value(value_bytes);
    while !writers.stop.load(Ordering::Relaxed) {
        let ids: [u64; BATCH] = std::array::from_fn(|_| chooser.next_key());
        let keys = ids.map(key::<16>);
        let mut guard = session.pin();
        let hashes = keys.each_ref().map(|key| guard.hash(key));
        hashes
            .iter()
            .for_each(|hash| guard.pin().prefetch_bucket(TABLE, *hash));
        hashes
            .iter()
            .for_each(|hash| guard.pin().prefetch_entry(TABLE, *hash));
        let mut written = 0;
        for (key, hash) in keys.iter().zip(hashes) {
            value[..8].copy_from_slice(&key[..8]);
            match guard.write(TABLE, hash, key, &value, None) {
                Ok(_) => written += 1,
                Err(Error::OutOfMemory { .. }) => {
                    _ = writers.refused.fetch_add(1, Ordering::Relaxed)
                }
                Err(error) => return Err(Failure::new("overwriting", error)),
            }
        }
        writers.done[n].fetch_add(written, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits until the cost converges, then samples progress every 100 ms.
fn observe(options: &Options, store: &Arc<Store>, writers: &Writers) -> Point {
    let done = || {
        writers
            .done
            .iter()
            .map(|done| done.load(Ordering::Relaxed))
            .sum::<u64>()
    };
    converge(options, store);
    let (before, begun, first) = (store.stats(), Instant::now(), done());
    let windows = options.rounds();
    let window_ticks = options.size(6, 5);
    let mut last = first;
    let (mut worst_tick, mut pause_ms, mut longest_pause_ms) = (u64::MAX, 0, 0);
    let mut rates = Vec::new();
    for _ in 0..windows {
        let (window_begun, window_first) = (Instant::now(), last);
        for _ in 0..window_ticks {
            std::thread::sleep(TICK);
            let now = done();
            worst_tick = worst_tick.min(now - last);
            pause_ms = if now == last {
                pause_ms + TICK.as_millis() as u64
            } else {
                0
            };
            longest_pause_ms = longest_pause_ms.max(pause_ms);
            last = now;
        }
        rates.push((last - window_first) as f64 / window_begun.elapsed().as_secs_f64());
    }
    Point {
        operations_per_second: median(&rates),
        worst_tick,
        longest_pause_ms,
        refused: writers.refused.load(Ordering::Relaxed),
        before,
        after: store.stats(),
        seconds: begun.elapsed().as_secs_f64(),
    }
}

/// Waits until two successive slices of writing (a quarter of the log each) cost the cleaner the
/// same, to 5 %, at least one whole log has been written, or the time is over.
fn converge(options: &Options, store: &Arc<Store>) {
    let deadline = Instant::now() + Duration::from_secs(options.size(8, 4));
    let slice = store.memory_bytes() / 4;
    let (mut from, mut last_cost, mut slices) = (store.stats(), f64::NAN, 0);
    while Instant::now() < deadline {
        std::thread::sleep(TICK);
        let now = store.stats();
        if now.appended_bytes - from.appended_bytes < slice {
            continue;
        }
        let cost = cost_between(&from, &now);
        slices += 1;
        if slices >= 4 && (cost - last_cost).abs() <= 0.05 * cost.max(0.1) {
            return;
        }
        (from, last_cost) = (now, cost);
    }
}

fn cost_between(before: &Stats, after: &Stats) -> f64 {
    let relocated = (after.cleaner.bytes_relocated - before.cleaner.bytes_relocated) as f64;
    relocated / (after.appended_bytes - before.appended_bytes).max(1) as f64
}

fn write_cost(point: &Point) -> f64 {
    cost_between(&point.before, &point.after)
}

fn row(name: &str, percent: u32, point: &Point) -> Row {
    let ramcloud = RAMCLOUD
        .iter()
        .find(|(p, _)| *p == percent && name == "100 B uniform");
    let busy = point.after.cleaner.busy_ns - point.before.cleaner.busy_ns;
    let stall_ns = point.after.writer_stall_ns - point.before.writer_stall_ns;
    Row::new()
        .with("objects", name)
        .with("utilization %", percent)
        .number("measured utilization", point.after.utilization, 3)
        .number("writes/s", point.operations_per_second, 3)
        .number(
            "x RAMCloud",
            ramcloud.map_or(f64::NAN, |(_, rate)| point.operations_per_second / rate),
            3,
        )
        .number("write cost", write_cost(point), 3)
        .number("cleaner cores", busy as f64 / 1e9 / point.seconds, 2)
        .number(
            "writers stalled, share of time",
            stall_ns as f64 / 1e9 / point.seconds,
            2,
        )
        .with("worst 100 ms", point.worst_tick)
        .with("longest pause ms", point.longest_pause_ms)
        .with("refused", point.refused)
}

fn add_targets(report: &mut Report, points: &[(u32, Point)]) {
    let at = |percent: u32| {
        points
            .iter()
            .find(|(p, _)| *p == percent)
            .map(|(_, point)| point)
    };
    for (percent, rate) in RAMCLOUD.iter().filter(|(percent, _)| *percent >= 80) {
        let ratio = at(*percent).map_or(f64::NAN, |point| point.operations_per_second / rate);
        let target = format!(
            "100 B uniform at {percent} % ≥ 5x RAMCloud ({:.0} k/s)",
            rate / 1e3
        );
        report.target(target, ratio, Bound::AtLeast(5.0));
    }
    let pause = at(95).map_or(f64::NAN, |point| point.longest_pause_ms as f64);
    report.target(
        "no second without progress at 95 % (longest pause, ms)",
        pause,
        Bound::AtMost(900.0),
    );
}

/// Fills the store until it refuses a write, then deletes 5 % of the objects; each deletion must
/// succeed.
fn fill_and_delete(store: &Arc<Store>, value_bytes: usize, records: u64) -> Result<Row> {
    let mut session = store.session().doing("opening a session")?;
    let value = store::value(value_bytes);
    let limit = records + records / 5;
    let mut next = records;
    let refused = loop {
        let (mut guard, key) = (session.pin(), key::<16>(next));
        let hash = guard.hash(&key);
        match guard.write(TABLE, hash, &key, &value, None) {
            Ok(_) if next < limit => next += 1,
            Ok(_) => break false,
            Err(Error::OutOfMemory { .. }) => break true,
            Err(error) => return Err(Failure::new("filling up", error)),
        }
    };
    let full = store.stats();
    let mut rng = Random::new(9);
    let (mut deleted, mut failed, mut slowest) = (0u64, 0u64, Duration::ZERO);
    for _ in 0..next / 20 {
        let (mut guard, key) = (session.pin(), key::<16>(rng.below(next)));
        let hash = guard.hash(&key);
        let begun = Instant::now();
        match guard.remove(TABLE, hash, &key) {
            Ok(outcome) => deleted += u64::from(outcome.before.is_some()),
            Err(_) => failed += 1,
        }
        slowest = slowest.max(begun.elapsed());
    }
    Ok(Row::new()
        .with("objects", format!("{value_bytes} B"))
        .with("store refused a write", refused)
        .number("utilization then", full.utilization, 4)
        .with("deleted", deleted)
        .with("refused deletes", failed)
        .number("slowest delete µs", slowest.as_nanos() as f64 / 1e3, 3))
}
