//! The speed of workloads whose objects change their size, `W1` to `W8`, with cleaning against
//! without it. Rumble14 §8.5, Figure 10.

use super::memory_cell::{Bookkeeping, Cell, Log, Workload};
use crate::figure::Figure;
use crate::harness::store;
use crate::harness::{
    Bound, Chart, Contender, Failure, Options, Random, Report, Result, Row, alternate, machine,
    progress,
};
use duramen_base::units::MIB;
use duramen_engine::Store;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Ids of a writer's objects are apart from those of others.
const IDS_PER_WRITER: u64 = 1 << 40;
/// Utilization at which what is cleaned is nearly all dead: cleaning costs little, and memory is
/// used again.
const EASY_PERCENT: u64 = 30;

/// Speed of `W1` to `W8` with cleaning against without, by utilization
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StressFigure {
    /// Megabytes that live at most [default: 256; 48 with --quick]
    #[arg(long, value_name = "MB")]
    pub live: Option<u64>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// Utilizations, in percent
    #[arg(long, value_delimiter = ',', default_value = "70,80,90")]
    pub percent: Vec<u64>,
}

impl Figure for StressFigure {
    const NAME: &'static str = "stress";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &StressFigure, options: &Options) -> Result<Report> {
    let about = "Each workload writes five times the live data in objects of the first size, deletes a part at random, and writes five times the live data in objects of the second size; \
        older objects are deleted at random to stay within the live data. One operation per call, 16-byte keys, nothing is replicated. Utilization: live entries and index over the memory budget. \
        `one writer`: the cleaner has a processor of its own. `all`: as many writers as processors, beside the cleaner. Speeds are relative to the same writers without cleaning, in a memory that \
        has room for all that they write; and to 30 % utilization, where memory is used again, and what is cleaned is nearly all dead.";
    let title = "Speed of changing workloads";
    let mut report = Report::new("stress", title, about, options);
    let live_bytes = args.live.unwrap_or(options.size(256, 48)) * MIB;
    let wanted = |w: &Workload| args.only.is_empty() || args.only.iter().any(|n| *n == w.name);
    let workloads = Workload::all()
        .into_iter()
        .filter(|w| w.name.starts_with('W'));
    let workloads: Vec<Workload> = workloads.filter(|w| wanted(w)).collect();
    let mut highest = Vec::new();
    for writers in [1, machine::cores()] {
        let name = if writers == 1 { "one writer" } else { "all" };
        let (mut rows, mut bars) = (Vec::new(), Vec::new());
        for workload in &workloads {
            let (row, shares) = measure(args, options, workload, live_bytes, writers)?;
            progress!("{}, {name}: {shares:?}", workload.name);
            rows.push(row);
            bars.push(shares);
        }
        let groups = workloads.iter().map(|w| w.name.to_owned()).collect();
        let series = args.percent.iter().enumerate().map(|(n, percent)| {
            let values = bars.iter().map(|shares| shares[n]).collect();
            (format!("{percent} %"), values)
        });
        let chart = Chart::bars(
            &format!("Speed with cleaning / without, {name}"),
            "ratio",
            groups,
            series.collect(),
        );
        report.plot(&name.replace(' ', "-"), &chart);
        report.table(&format!("Writes per second, {name}"), rows);
        if let Some(at) = args.percent.iter().position(|percent| *percent == 90) {
            let least = bars
                .iter()
                .map(|shares| shares[at])
                .fold(f64::NAN, f64::min);
            highest.push((name, writers, least));
        }
    }
    for (name, writers, least) in highest {
        let bound = if writers == 1 { 0.95 } else { 0.5 };
        report.target(
            format!("{name}, 90 %: speed with cleaning / without, least ≥ {bound} (the paper's)"),
            least,
            Bound::AtLeast(bound),
        );
    }
    report.note(format!(
        "{} MiB live, {} rounds in turn, medians. A memory that is used for the first time costs its writers the zeroing of its pages; at a fixed utilization, most memory is used again.",
        live_bytes / MIB,
        options.rounds()
    ));
    Ok(report)
}

/// The row of a workload, and its speeds relative to those without cleaning, by utilization.
fn measure(
    args: &StressFigure,
    options: &Options,
    workload: &Workload,
    live_bytes: u64,
    writers: usize,
) -> Result<(Row, Vec<f64>)> {
    let least = live_bytes as f64 * workload.least_bytes_per_live_byte();
    // The engine's own tables, and a segment for each writer and the cleaner.
    let beside = 12.0 * MIB as f64;
    let of = |percent: u64| (least * 100.0 / percent as f64 + beside) as u64;
    // All that is ever written: both phases and their deletions.
    let roomy = (least * (2 * workload.churn + 1) as f64 + 4.0 * beside) as u64;
    let budgets: Vec<u64> = args.percent.iter().map(|percent| of(*percent)).collect();
    let budgets = budgets.into_iter().chain([of(EASY_PERCENT), roomy]);
    let mut contenders: Vec<_> = budgets
        .map(|bytes| Contender::new("", move || write(workload, live_bytes, bytes, writers)))
        .collect();
    let rates = alternate(options.rounds(), &mut contenders)?;
    let (without, easy) = (rates[rates.len() - 1], rates[rates.len() - 2]);
    let mut row = Row::new()
        .with("workload", workload.name)
        .with("objects", workload.describe())
        .number("without cleaning, M/s", without / 1e6, 3)
        .number("30 %, M/s", easy / 1e6, 3);
    let mut shares = Vec::new();
    for (percent, rate) in args.percent.iter().zip(&rates) {
        row = row
            .number(&format!("{percent} % / without"), rate / without, 3)
            .number(&format!("{percent} % / 30 %"), rate / easy, 3);
        shares.push(rate / without);
    }
    Ok((row, shares))
}

/// Objects written per second, all phases and deletions included. NaN: a write was refused.
fn write(workload: &Workload, live_bytes: u64, memory_bytes: u64, writers: usize) -> Result<f64> {
    let store: Arc<Store> = store::open(memory_bytes, 1)?;
    let start = Barrier::new(writers);
    let least_bytes = workload
        .after
        .as_ref()
        .map_or(u64::MAX, |after| *after.start());
    let least_bytes = least_bytes.min(*workload.before.start()) + 16;
    let work = |n: usize| -> Result<Option<(f64, u64)>> {
        let share = live_bytes / writers as u64;
        let first_id = n as u64 * IDS_PER_WRITER;
        let mut cell = Cell {
            heap: Log::of(store.clone(), first_id)?,
            bookkeeping: Bookkeeping::new(share / least_bytes),
            baseline: 0,
        };
        let mut random = Random::new(17 + n as u64);
        start.wait();
        let begun = Instant::now();
        let completed = cell.phases(workload, share, &mut random);
        let seconds = begun.elapsed().as_secs_f64();
        Ok(completed.then(|| (seconds, cell.heap.written(first_id))))
    };
    let work = &work;
    let done: Result<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers).map(|n| scope.spawn(move || work(n))).collect();
        let threads = threads.into_iter();
        let joined = threads.map(|it| it.join());
        joined
            .map(|it| it.map_err(|_| Failure::new("writing", "a writer panicked"))?)
            .collect()
    });
    let done: Option<Vec<(f64, u64)>> = done?.into_iter().collect();
    let Some(done) = done else {
        return Ok(f64::NAN);
    };
    let seconds = done.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    Ok(done.iter().map(|(_, written)| *written).sum::<u64>() as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = StressFigure {
            live: Some(24),
            only: vec!["W2".to_owned()],
            percent: vec![50],
        };
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        assert_eq!(report.tables.len(), 2);
        for table in &report.tables {
            assert_eq!(table.rows.len(), 1);
            for column in ["without cleaning, M/s", "30 %, M/s", "50 % / without"] {
                let cell = table.rows[0].get(column).and_then(Value::as_f64);
                assert!(cell.is_some_and(|rate| rate > 0.0), "{column}");
            }
        }
    }

    #[test]
    fn a_memory_that_is_too_small_gives_no_speed() {
        let workload = &Workload::all()[1];
        let rate = write(workload, 200 * MIB, 64 * MIB, 1).unwrap();
        assert!(rate.is_nan(), "{rate}");
    }
}
