//! Postmark's churn: a trace in which each thread makes, reads and removes its own small files, on
//! Duramen and on dashmap with jemalloc. Time by threads and by utilization, and speed over the
//! trace. Merritt17 Figures 10, 11 and 12.

mod trace;

use crate::figure::Figure;
use crate::harness::dash;
use crate::harness::store::{TABLE, key};
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Report, Result, Row, Series, machine, median, progress,
};
use duramen_base::limits::MEMORY_BYTES_MIN;
use duramen_base::units::MIB;
use duramen_engine as engine;
use duramen_engine::{Session, Store};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use trace::{Kind, Step, Trace};

const KEY_BYTES: usize = 16;
/// Parts of the trace that are timed each.
const PARTS: usize = 20;
/// The paper's utilization while it varies the threads.
const USUAL_PERCENT: u64 = 17;

/// Postmark's churn of small files: time by threads and utilization, beside dashmap
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PostmarkFigure {
    /// Files of each thread at first; with --quick a fifth. The paper had 2 million
    #[arg(long, default_value_t = 100_000)]
    pub files: u32,
    /// Numbers of threads; by default one, and one per core
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Utilizations of the log at the trace's largest, in percent
    #[arg(long, value_delimiter = ',', default_value = "17,35,50,65,80,90")]
    pub percent: Vec<u64>,
}

impl Figure for PostmarkFigure {
    const NAME: &'static str = "postmark";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &PostmarkFigure, options: &Options) -> Result<Report> {
    let about = "Each thread performs the whole trace on objects of its own, one request per call (weak scaling): Postmark on a file system that keeps each file in one object. \
        Files of 500 to 4,096 B; 16 transactions per file, each of which creates or removes a file, and reads or extends one. Every GET is copied out and checked. \
        Utilization is that of the engine's segments when the trace holds most bytes. dashmap (rapidhash, jemalloc) performs the same trace in the same process, in turn.";
    let mut report = Report::new("postmark", "Postmark's churn", about, options);
    let trace = Trace::new(options.size(args.files, args.files / 5).max(100));
    let threads = match args.threads.is_empty() {
        true => vec![1, machine::cores()],
        false => args.threads.clone(),
    };
    let most = threads.iter().copied().max().unwrap_or(1);
    characteristics(&trace, &mut report);
    scaling(&trace, &threads, options, &mut report)?;
    utilization(args, &trace, most, options, &mut report)?;
    report.note(format!(
        "The trace was derived from Postmark's rules, not recorded: see the table in `bench/src/figures/postmark/trace.rs`. Each thread: {} requests on {} objects, at most {} MiB of values at once. \
         The first {:.0} % make the first files, the last {:.0} % remove all that are left. The paper's traces are {} times as long.",
        trace.steps.len(),
        trace.objects,
        trace.peak(u64::from) / MIB,
        100.0 * trace.setup_steps as f64 / trace.steps.len() as f64,
        100.0 - 100.0 * trace.end_step as f64 / trace.steps.len() as f64,
        183_000_000 / trace.steps.len().max(1),
    ));
    Ok(report)
}

/// One of the stores, as one thread sees it.
trait Files {
    /// Copies the object out; false if it is not there.
    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool;
    fn put(&mut self, id: u64, value: &[u8]) -> Result<()>;
    /// False if it is not there.
    fn remove(&mut self, id: u64) -> Result<bool>;
}

impl Files for Session {
    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let (key, guard) = (key::<KEY_BYTES>(id), self.pin());
        let found = guard.read(TABLE, guard.hash(&key), &key);
        let found = found.expect("the table exists");
        found
            .map(|object| out.extend_from_slice(object.value))
            .is_some()
    }

    fn put(&mut self, id: u64, value: &[u8]) -> Result<()> {
        let (key, mut guard) = (key::<KEY_BYTES>(id), self.pin());
        let hash = guard.hash(&key);
        let written = guard.write(TABLE, hash, &key, value, None);
        written.doing(format!("writing object {id}"))?;
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Result<bool> {
        let (key, mut guard) = (key::<KEY_BYTES>(id), self.pin());
        let hash = guard.hash(&key);
        let removed = guard.remove(TABLE, hash, &key);
        let removed = removed.doing(format!("removing object {id}"))?;
        Ok(removed.before.is_some())
    }
}

impl Files for &dash::Map {
    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let found = dash::Map::get(self, &id);
        found.map(|value| out.extend_from_slice(&value)).is_some()
    }

    fn put(&mut self, id: u64, value: &[u8]) -> Result<()> {
        self.insert(id, value.into());
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Result<bool> {
        Ok(dash::Map::remove(self, &id).is_some())
    }
}

/// A run of the trace by some threads.
struct Run {
    seconds: f64,
    /// Seconds of each part of the trace, the mean over the threads.
    parts: Vec<f64>,
}

/// Performs the trace; the ids of thread `n` are apart from those of others.
fn perform(files: &mut impl Files, steps: &[Step], n: usize) -> Result<Vec<f64>> {
    let mut value = vec![0x5a; usize::from(u16::MAX)];
    let mut out = Vec::with_capacity(value.len());
    let mut seconds = Vec::with_capacity(PARTS);
    for part in steps.chunks(steps.len().div_ceil(PARTS)) {
        let begun = Instant::now();
        for step in part {
            let id = (n as u64) << 32 | u64::from(step.object);
            let value = &mut value[..step.bytes.into()];
            out.clear();
            match step.kind {
                Kind::Get => {
                    let is_there = files.get(id, &mut out);
                    assert!(is_there && out.len() == value.len(), "object {id}");
                    assert_eq!(out[..8], id.to_le_bytes());
                    black_box(&out);
                }
                Kind::Miss => assert!(!files.get(id, &mut out), "object {id}"),
                Kind::Insert | Kind::Overwrite => {
                    value[..8].copy_from_slice(&id.to_le_bytes());
                    files.put(id, value)?;
                }
                Kind::Remove => assert!(files.remove(id)?, "object {id}"),
            }
        }
        seconds.push(begun.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

fn run<F: Files + Send>(trace: &Trace, workers: Vec<F>) -> Result<Run> {
    let count = workers.len();
    let start = Barrier::new(count);
    let all: Result<Vec<(f64, Vec<f64>)>> = std::thread::scope(|scope| {
        let threads = workers.into_iter().enumerate().map(|(n, mut files)| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let begun = Instant::now();
                let parts = perform(&mut files, &trace.steps, n)?;
                Ok((begun.elapsed().as_secs_f64(), parts))
            })
        });
        let threads: Vec<_> = threads.collect();
        let threads = threads.into_iter();
        threads.map(|it| it.join().expect("a worker")).collect()
    });
    let all = all?;
    let part = |n| all.iter().map(|(_, parts)| parts[n]).sum::<f64>() / count as f64;
    Ok(Run {
        seconds: all.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max),
        parts: (0..all[0].1.len()).map(part).collect(),
    })
}

/// The memory of a store in which the trace of `threads` threads takes `percent` of the segments.
fn memory_bytes(trace: &Trace, threads: usize, percent: u64) -> u64 {
    // A header of 16 bytes, and alignment to 8.
    let entry = |bytes: u16| (16 + KEY_BYTES as u64 + u64::from(bytes)).next_multiple_of(8);
    let live = threads as u64 * trace.peak(entry);
    // The index, by the mean size of an object; and the engine's tables.
    live * 100 / percent + live / 2300 * 12 + 8 * MIB
}

/// Cleaner's work in a run.
struct Cleaned {
    run: Run,
    memory_bytes: u64,
    /// Bytes relocated per byte written.
    write_cost: f64,
    /// Cores that cleaned.
    cores: f64,
}

fn on_duramen(trace: &Trace, threads: usize, percent: u64) -> Result<Cleaned> {
    let memory_bytes = memory_bytes(trace, threads, percent);
    if memory_bytes < MEMORY_BYTES_MIN {
        let least = MEMORY_BYTES_MIN / MIB;
        let why = format!("the trace is too small: {percent} % of a store's least {least} MiB");
        return Err(Failure::new("making a store", why));
    }
    let mut how = engine::Options::new(memory_bytes);
    (how.cleaners, how.hash_seed) = (1, Some(1));
    let store: Arc<Store> = Store::new(how).doing("opening a store")?;
    let sessions: Result<Vec<_>> = (0..threads)
        .map(|_| store.session().doing("opening a session"))
        .collect();
    let run = run(trace, sessions?)?;
    let stats = store.stats();
    assert_eq!(stats.objects, 0, "Postmark removes what it made");
    Ok(Cleaned {
        memory_bytes,
        write_cost: stats.cleaner.bytes_relocated as f64 / stats.appended_bytes as f64,
        cores: stats.cleaner.busy_ns as f64 / 1e9 / run.seconds,
        run,
    })
}

fn on_dashmap(trace: &Trace, threads: usize) -> Result<Run> {
    let map = dash::new();
    let run = run(trace, vec![&map; threads])?;
    assert!(map.is_empty(), "Postmark removes what it made");
    Ok(run)
}

/// Figure 10.
fn characteristics(trace: &Trace, report: &mut Report) {
    let part = trace.steps.len().div_ceil(PARTS);
    let rows = trace.steps.chunks(part).zip(1..).map(|(steps, n)| {
        let share = |kind| {
            let of_kind = steps.iter().filter(|step| step.kind == kind);
            100.0 * of_kind.count() as f64 / steps.len() as f64
        };
        Row::new()
            .with("% of the trace", n * 100 / PARTS)
            .number("GET %", share(Kind::Get), 3)
            .number("GET, not found %", share(Kind::Miss), 3)
            .number("PUT, overwriting %", share(Kind::Overwrite), 3)
            .number("PUT, inserting %", share(Kind::Insert), 3)
            .number("DEL %", share(Kind::Remove), 3)
    });
    report.table("Requests over the trace (Figure 10b)", rows.collect());
    let rows = [2, 6, 10, 14, 18, 24, 32, 64].map(|most| {
        Row::new()
            .with("requests per object, at most", most)
            .number(
                "% of all requests",
                100.0 * trace.share_of_objects_with(most),
                3,
            )
    });
    report.table(
        "Requests by reuse of their object (Figure 10a)",
        rows.to_vec(),
    );
}

/// The median run, by its time.
fn middle(runs: &[Run]) -> f64 {
    median(&runs.iter().map(|run| run.seconds).collect::<Vec<_>>())
}

/// Figure 11, and the speed over the trace.
fn scaling(trace: &Trace, threads: &[usize], options: &Options, report: &mut Report) -> Result<()> {
    let (mut rows, mut over_time) = (Vec::new(), Vec::new());
    let (mut first, mut gain) = (None, f64::NAN);
    for &threads in threads {
        let (mut ours, mut theirs, mut cost) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..options.rounds() {
            let cleaned = on_duramen(trace, threads, USUAL_PERCENT)?;
            cost = cleaned.write_cost;
            ours.push(cleaned.run);
            theirs.push(on_dashmap(trace, threads)?);
        }
        let seconds = (middle(&ours), middle(&theirs));
        let steps = (trace.steps.len() * threads) as f64;
        progress!("{threads} threads: {seconds:?} s");
        let alone = *first.get_or_insert(seconds);
        gain = seconds.1 / seconds.0;
        rows.push(
            Row::new()
                .with("threads", threads)
                .number("duramen, s", seconds.0, 3)
                .number("dashmap, s", seconds.1, 3)
                .number("duramen, M requests/s", steps / seconds.0 / 1e6, 3)
                .number("dashmap, M requests/s", steps / seconds.1 / 1e6, 3)
                .number("dashmap's time / duramen's", gain, 3)
                .number("duramen's time / one thread's", seconds.0 / alone.0, 3)
                .number("dashmap's time / one thread's", seconds.1 / alone.1, 3)
                .number("write cost", cost, 3),
        );
        over_time = vec![
            parts_of(trace, &ours, threads, "duramen"),
            parts_of(trace, &theirs, threads, "dashmap"),
        ];
    }
    let rows_over_time = (0..PARTS.min(over_time[0].points.len())).map(|n| {
        let start = Row::new().number("% of the trace", over_time[0].points[n].0, 3);
        over_time.iter().fold(start, |row, series| {
            row.number(&format!("{}, M/s", series.name), series.points[n].1, 3)
        })
    });
    report.table(
        &format!("Time by threads, {USUAL_PERCENT} % utilization (Figure 11)"),
        rows,
    );
    report.table(
        "Speed over the trace, most threads",
        rows_over_time.collect(),
    );
    report.target(
        "most threads, 17 % utilization: dashmap's time / duramen's ≥ 1",
        gain,
        Bound::AtLeast(1.0),
    );
    let chart = Chart::lines(
        "Postmark: speed over the trace",
        "% of the trace",
        "M requests/s, all threads",
        over_time,
    );
    report.plot("time", &chart);
    Ok(())
}

/// Speeds of the parts of the trace, medians over the runs.
fn parts_of(trace: &Trace, runs: &[Run], threads: usize, name: &str) -> Series {
    let steps = trace.steps.len() as f64 / PARTS as f64 * threads as f64;
    let point = |n: usize| {
        let seconds: Vec<f64> = runs.iter().map(|run| run.parts[n]).collect();
        (
            (n + 1) as f64 * 100.0 / PARTS as f64,
            steps / median(&seconds) / 1e6,
        )
    };
    Series {
        name: name.to_owned(),
        points: (0..runs[0].parts.len()).map(point).collect(),
    }
}

/// Figure 12.
fn utilization(
    args: &PostmarkFigure,
    trace: &Trace,
    threads: usize,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let mut runs: Vec<Vec<Cleaned>> = args.percent.iter().map(|_| Vec::new()).collect();
    let mut theirs = Vec::new();
    for _ in 0..options.rounds() {
        for (percent, runs) in args.percent.iter().zip(&mut runs) {
            runs.push(on_duramen(trace, threads, *percent)?);
        }
        theirs.push(on_dashmap(trace, threads)?);
    }
    let peer = middle(&theirs);
    let (mut rows, mut points, mut least) = (Vec::new(), Vec::new(), f64::NAN);
    for (percent, runs) in args.percent.iter().zip(&runs) {
        let of = |value: fn(&Cleaned) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        let seconds = of(|cleaned| cleaned.run.seconds);
        least = least.min(seconds);
        progress!("{percent} %: {seconds:.2} s");
        points.push((*percent as f64, seconds));
        rows.push(
            Row::new()
                .with("utilization %", *percent)
                .number(
                    "memory, MiB",
                    of(|it| it.memory_bytes as f64) / MIB as f64,
                    4,
                )
                .number("duramen, s", seconds, 3)
                .number("time / the least", seconds / least, 3)
                .number("dashmap's time / duramen's", peer / seconds, 3)
                .number("write cost", of(|it| it.write_cost), 3)
                .number("cleaner cores", of(|it| it.cores), 2),
        );
        if *percent == 80 {
            report.target(
                "80 % utilization: duramen's time / the least (paper: Nibble a little more than 2) ≤ 2",
                seconds / least,
                Bound::AtMost(2.0),
            );
        }
    }
    let ends = points.iter().map(|point| (point.0, peer)).collect();
    let series = |name: &str, points| Series {
        name: name.to_owned(),
        points,
    };
    let lines = vec![series("duramen", points), series("dashmap", ends)];
    let chart = Chart::lines(
        "Postmark by utilization",
        "utilization, %",
        "seconds",
        lines,
    );
    report.plot("utilization", &chart);
    report.table("Time by utilization, most threads (Figure 12)", rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = PostmarkFigure {
            files: 50_000,
            threads: vec![1, 2],
            percent: vec![30, 50],
        };
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        let rows: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(rows, [20, 8, 2, 20, 2]);
        for column in ["duramen, s", "dashmap, s", "write cost"] {
            let cell = report.tables[2].rows[1].get(column);
            assert!(
                cell.and_then(serde_json::Value::as_f64).is_some(),
                "{column}"
            );
        }
    }

    #[test]
    fn the_budget_gives_the_wanted_utilization() {
        let trace = Trace::new(20_000);
        let memory_bytes = memory_bytes(&trace, 1, 50);
        let store = Store::new(engine::Options::new(memory_bytes)).unwrap();
        let mut session = store.session().unwrap();
        perform(&mut session, &trace.steps[..trace.setup_steps], 0).unwrap();
        let live = trace.peak(u64::from) as f64;
        let here: u64 = store.stats().live_bytes;
        // Files grow after the setup, so that the peak is above its end.
        let at_peak = store.stats().utilization * live / here as f64;
        assert!((0.45..0.62).contains(&at_peak), "{at_peak}");
    }
}
