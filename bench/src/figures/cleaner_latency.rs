//! The effect of cleaning on latency: single writes at 90 % utilization with the cleaner at work,
//! and with enough free memory that it has no work. Rumble14 Figure 9 and §8.4, but open-loop at 70
//! % of the store's throughput.

use crate::figure::Figure;
use crate::harness::store::{self, TABLE, key};
use crate::harness::{
    Bound, Chart, Chooser, Distribution, Doing, Latencies, Options, Report, Result, Row, Scale,
    Series, clock, median, progress,
};
use duramen_base::units::MIB;
use duramen_engine::{Session, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 16;
const LOAD: f64 = 0.7;

/// One side of the comparison.
struct Side {
    name: &'static str,
    store: Arc<Store>,
    chooser: Chooser,
    all: Latencies,
    p50_us: Vec<f64>,
    p99_9_us: Vec<f64>,
    relocated_bytes: u64,
}

/// Write latency at 90 % utilization and 70 % load, cleaners on and off
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CleanerLatencyFigure;

impl Figure for CleanerLatencyFigure {
    const NAME: &'static str = "cleaner-latency";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(options)?])
    }
}

fn report(options: &Options) -> Result<Report> {
    let about = "Latency of a single write (16 + 100 bytes, uniform, one thread, one write per call) at 70 % of the throughput \
        that the store sustains at 90 % utilization. Writes are due at fixed times and their latency counts from then, whether or \
        not the writer was late. `on`: 90 % utilization, one cleaner thread at work. `off`: the same live data and rate with so much \
        free memory that nothing is cleaned in the measured window. `off, busy`: as `off`, while a thread that does nothing but count \
        keeps another processor as busy as the cleaner does, for a host may stop a guest that uses all its processors: what is left of \
        the difference is the cleaner's, not the machine's.";
    let mut report = Report::new(
        "cleaner-latency",
        "Write latency with cleaners on and off",
        about,
        options,
    );
    let budget_bytes = options.size(1024, 192) * MIB;
    let (on, records) = filled(budget_bytes, 0.90)?;
    let window = Duration::from_secs(options.size(3, 1));
    let capacity = saturate(&on, records, Duration::from_secs(options.size(12, 4)))?;
    let rate = capacity * LOAD;
    progress!("sustains {capacity:.0} writes/s at 90 %: measuring at {rate:.0}");
    let mut sides = [
        side("off", on.clone(), records),
        side("off, busy", on.clone(), records),
        side("on", on, records),
    ];
    for round in 0..options.rounds() {
        // A window uses up free memory, so each one starts with a new store.
        sides[0].store = roomy(records, 2.0 * rate * window.as_secs_f64())?;
        sides[1].store = sides[0].store.clone();
        for side in &mut sides {
            let busy = Busy::new(side.name == "off, busy");
            measure(side, rate, window)?;
            drop(busy);
            let (p50, p99_9) = (side.p50_us[round], side.p99_9_us[round]);
            progress!(
                "round {}: cleaner {}: p50 {p50:.2} µs, p99.9 {p99_9:.1} µs",
                round + 1,
                side.name
            );
        }
    }
    add_results(&mut report, &sides, rate, capacity);
    Ok(report)
}

fn side(name: &'static str, store: Arc<Store>, records: u64) -> Side {
    Side {
        name,
        store,
        chooser: Chooser::new(Distribution::Uniform, records, 11),
        all: Latencies::default(),
        p50_us: Vec::new(),
        p99_9_us: Vec::new(),
        relocated_bytes: 0,
    }
}

/// A store of `budget_bytes` filled to `utilization`, and its number of records.
fn filled(budget_bytes: u64, utilization: f64) -> Result<(Arc<Store>, u64)> {
    let store = store::open(budget_bytes, 1)?;
    let mut records = 0;
    store::fill_to::<KEY_BYTES>(&store, utilization, VALUE_BYTES, &mut records)?;
    Ok((store, records))
}

/// A store with the same records and room for `writes` more without cleaning; its free memory has
/// already been backed once, since page faults do not belong to this comparison.
fn roomy(records: u64, writes: f64) -> Result<Arc<Store>> {
    let entry_bytes = store::footprint::<KEY_BYTES>(VALUE_BYTES)?.entry_bytes;
    let total = (records as f64 + writes) * entry_bytes;
    let store = store::open((total * 1.6) as u64 + 64 * MIB, 1)?;
    let ballast = store.tables().create("ballast").doing("creating a table")?;
    let mut session = store.session().doing("opening a session")?;
    let filler = vec![7u8; 64 << 10];
    for id in 0..(total * 1.2) as u64 / filler.len() as u64 {
        let (mut guard, key) = (session.pin(), key::<8>(id));
        let hash = guard.hash(&key);
        guard
            .write(ballast, hash, &key, &filler, None)
            .doing("writing ballast")?;
    }
    drop(session);
    store.tables().drop(ballast).doing("dropping the ballast")?;
    store::fill::<KEY_BYTES>(&store, 0..records, VALUE_BYTES)?;
    Ok(store)
}

fn write_one(session: &mut Session, id: u64, value: &mut [u8]) -> Result<()> {
    let key = key::<KEY_BYTES>(id);
    value[..8].copy_from_slice(&key[..8]);
    let mut guard = session.pin();
    let hash = guard.hash(&key);
    guard
        .write(TABLE, hash, &key, value, None)
        .doing("writing")?;
    Ok(())
}

/// A thread that keeps a processor busy and touches no memory, until it is dropped.
struct Busy(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Busy {
    fn new(wanted: bool) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = wanted.then(|| {
            std::thread::spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        Busy(stop, thread)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().expect("a loop that counts");
        }
    }
}

/// Writes per second of one thread at full speed, over the second half of `duration`.
fn saturate(store: &Arc<Store>, records: u64, duration: Duration) -> Result<f64> {
    let mut session = store.session().doing("opening a session")?;
    let mut value = store::value(VALUE_BYTES);
    let mut chooser = Chooser::new(Distribution::Uniform, records, 5);
    let mut rate = 0.0;
    for _ in 0..2 {
        let (begun, mut done) = (Instant::now(), 0u64);
        while begun.elapsed() < duration / 2 {
            for _ in 0..64 {
                write_one(&mut session, chooser.next_key(), &mut value)?;
            }
            done += 64;
        }
        rate = done as f64 / begun.elapsed().as_secs_f64();
    }
    Ok(rate)
}

/// Writes at `rate` per second for `window`; each latency counts from the time when the write was
/// due.
fn measure(side: &mut Side, rate: f64, window: Duration) -> Result<()> {
    let mut session = side.store.session().doing("opening a session")?;
    let mut value = store::value(VALUE_BYTES);
    let mut latencies = Latencies::default();
    let relocated = side.store.stats().cleaner.bytes_relocated;
    let interval = 1e9 / clock::ns_per_tick() / rate;
    let start = clock::now();
    for n in 0..(rate * window.as_secs_f64()) as u64 {
        let due = start + (n as f64 * interval) as u64;
        while clock::now() < due {
            std::hint::spin_loop();
        }
        write_one(&mut session, side.chooser.next_key(), &mut value)?;
        latencies.record_ns(clock::to_ns(clock::now().saturating_sub(due)));
    }
    side.relocated_bytes += side.store.stats().cleaner.bytes_relocated - relocated;
    side.p50_us.push(latencies.at_us(0.50));
    side.p99_9_us.push(latencies.at_us(0.999));
    side.all.add(&latencies);
    Ok(())
}

fn add_results(report: &mut Report, sides: &[Side; 3], rate: f64, capacity: f64) {
    let [off, busy, on] = sides;
    let ratio = |of: fn(&Side) -> &Vec<f64>| median(of(on)) / median(of(off));
    let median_ratio = ratio(|side| &side.p50_us);
    report.target(
        "median write latency, on / off ≤ 1.05",
        median_ratio,
        Bound::AtMost(1.05),
    );
    let tail_ratio = ratio(|side| &side.p99_9_us);
    report.target(
        "p99.9 of write latency, on / off ≤ 2",
        tail_ratio,
        Bound::AtMost(2.0),
    );
    report.target(
        "p99.9, on / off on a machine as busy ≤ 2",
        median(&on.p99_9_us) / median(&busy.p99_9_us),
        Bound::AtMost(2.0),
    );
    let rows = sides.iter().map(|side| {
        let summary = side.all.summary();
        Row::new()
            .with("cleaner", side.name)
            .number("p50 µs (median of rounds)", median(&side.p50_us), 3)
            .number("p99.9 µs (median of rounds)", median(&side.p99_9_us), 3)
            .number("p99 µs", summary.p99_us, 3)
            .number("p99.99 µs", summary.p99_99_us, 3)
            .number("longest µs", summary.max_us, 3)
            .with("MiB relocated in the windows", side.relocated_bytes / MIB)
            .with("writes", summary.operations)
    });
    report.table("Latency from the intended start", rows.collect());
    let series = sides.iter().map(|side| Series {
        name: format!("cleaner {}", side.name),
        points: side.all.exceedance(),
    });
    let chart = Chart::lines(
        "Write latency",
        "microseconds",
        "share of writes that took longer",
        series.collect(),
    );
    report.plot("", &chart.scales(Scale::Log, Scale::Log));
    report.note(format!(
        "Saturated, one thread sustains {capacity:.0} writes/s at 90 % utilization; the load is {rate:.0}/s."
    ));
}
