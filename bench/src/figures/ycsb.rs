//! In-process YCSB: mixes A, B, C, F and all-update, uniform and Zipfian, beside dashmap in the
//! same run.
//!
//! Every driver draws its operations in groups of 16. "Batched" gives a group to the engine as one
//! batch (hash all keys, prefetch all buckets, prefetch all entries, then operate); "single" pins
//! and operates once per operation. Reads copy the value out and check that it belongs to the key;
//! updates replace the whole value.

use crate::figure::Figure;
use crate::harness::dash;
use crate::harness::store::{self, BATCH, Shape, TABLE, key};
use crate::harness::{
    Bound, Chart, Chooser, Contender, Distribution, Doing, Latencies, Options, Random, Report,
    Result, Row, alternate, clock, fresh_seed, machine, progress,
};
use duramen_engine::{Decision, Session, Store};
use serde_json::Value;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The effect of an operation on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Update,
    /// Read-modify-write as one atomic step.
    Modify,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub kind: Kind,
    pub id: u64,
}

/// A YCSB workload: the share of reads, and the kind of the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub name: &'static str,
    pub reads_percent: u64,
    pub other: Kind,
}

const UPDATES: Mix = Mix {
    name: "update",
    reads_percent: 0,
    other: Kind::Update,
};

const MIXES: [Mix; 5] = [
    Mix {
        name: "A 50/50",
        reads_percent: 50,
        other: Kind::Update,
    },
    Mix {
        name: "B 95/5",
        reads_percent: 95,
        other: Kind::Update,
    },
    Mix {
        name: "C read",
        reads_percent: 100,
        other: Kind::Update,
    },
    Mix {
        name: "F read/modify",
        reads_percent: 50,
        other: Kind::Modify,
    },
    UPDATES,
];

/// One thread's access to a store under test.
pub(super) trait Worker: Send {
    /// Performs the operations; updates write `value`, reads copy into `out`.
    fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]);
    /// Performs one operation, as a caller without batches would.
    fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]);
}

struct Batched(Session);
pub(super) struct Single(pub Session);

impl Worker for Batched {
    fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]) {
        let mut guard = self.0.pin();
        let keys: [[u8; 8]; BATCH] = std::array::from_fn(|n| key(operations[n].id));
        let hashes = keys.each_ref().map(|key| guard.hash(key));
        hashes
            .iter()
            .for_each(|hash| guard.pin().prefetch_bucket(TABLE, *hash));
        hashes
            .iter()
            .for_each(|hash| guard.pin().prefetch_entry(TABLE, *hash));
        for (n, operation) in operations.iter().enumerate() {
            perform(&mut guard, *operation, hashes[n], &keys[n], value, out);
        }
    }

    fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]) {
        run_single(&mut self.0, operation, value, out);
    }
}

impl Worker for Single {
    fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]) {
        for operation in operations {
            run_single(&mut self.0, *operation, value, out);
        }
    }

    fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]) {
        run_single(&mut self.0, operation, value, out);
    }
}

#[inline]
fn run_single(session: &mut Session, operation: Operation, value: &mut [u8], out: &mut [u8]) {
    let mut guard = session.pin();
    let key: [u8; 8] = key(operation.id);
    let hash = guard.hash(&key);
    perform(&mut guard, operation, hash, &key, value, out);
}

#[inline]
fn perform(
    guard: &mut duramen_engine::Guard<'_>,
    operation: Operation,
    hash: duramen_engine::KeyHash,
    key: &[u8; 8],
    value: &mut [u8],
    out: &mut [u8],
) {
    match operation.kind {
        Kind::Read => {
            let found = guard.read(TABLE, hash, key).expect("the table exists");
            let object = found.expect("every key was loaded");
            out.copy_from_slice(object.value);
            assert_eq!(out[..8], key[..], "a read found another key's value");
        }
        Kind::Update => {
            value[..8].copy_from_slice(key);
            let written = guard.write(TABLE, hash, key, value, None);
            written.expect("half of the memory is free");
        }
        Kind::Modify => {
            let modified = guard.update(TABLE, hash, key, |found, scratch| {
                let object = found.expect("every key was loaded");
                scratch.extend_from_slice(object.value);
                increment_tail(scratch);
                Decision::PutScratch {
                    expires_at_ms: None,
                }
            });
            modified.expect("half of the memory is free");
        }
    }
}

/// The modification of a read-modify-write: the last byte goes up by one.
fn increment_tail(value: &mut [u8]) {
    if let Some(last) = value.last_mut() {
        *last = last.wrapping_add(1);
    }
}

/// dashmap: reads copied out, updates that replace the box.
mod peer {
    use super::{BATCH, Kind, Operation, Worker, increment_tail, store};
    use crate::harness::dash::{self, Map};

    pub(super) fn loaded(records: u64, value_bytes: usize) -> Map {
        let map = dash::new();
        std::thread::scope(|scope| {
            for n in 0..2 {
                let map = &map;
                scope.spawn(move || {
                    let mut value = store::value(value_bytes);
                    for id in (n..records).step_by(2) {
                        value[..8].copy_from_slice(&id.to_le_bytes());
                        map.insert(id, value.clone().into_boxed_slice());
                    }
                });
            }
        });
        map
    }

    pub(super) struct Dash<'a>(pub(super) &'a Map);

    impl Worker for Dash<'_> {
        fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]) {
            for operation in operations {
                self.run_one(*operation, value, out);
            }
        }

        #[inline]
        fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]) {
            match operation.kind {
                Kind::Read => {
                    let found = self.0.get(&operation.id).expect("every key was loaded");
                    out.copy_from_slice(&found);
                    assert_eq!(out[..8], operation.id.to_le_bytes());
                }
                Kind::Update => {
                    value[..8].copy_from_slice(&operation.id.to_le_bytes());
                    self.0
                        .insert(operation.id, value.to_vec().into_boxed_slice());
                }
                Kind::Modify => {
                    let mut found = self.0.get_mut(&operation.id).expect("every key was loaded");
                    let mut fresh = found.clone();
                    increment_tail(&mut fresh);
                    *found = fresh;
                }
            }
        }
    }
}

/// The settings of every worker of a run.
#[derive(Clone)]
pub(super) struct Load {
    pub mix: Mix,
    pub chooser: Chooser,
    pub value_bytes: usize,
    pub duration: Duration,
}

impl Load {
    fn draw(&self, chooser: &mut Chooser, rng: &mut Random) -> Operation {
        let kind = if rng.below(100) < self.mix.reads_percent {
            Kind::Read
        } else {
            self.mix.other
        };
        Operation {
            kind,
            id: chooser.next_key(),
        }
    }
}

/// A thread's own choices and buffers.
struct Own {
    chooser: Chooser,
    rng: Random,
    value: Vec<u8>,
    out: Vec<u8>,
}

/// Runs `work` in a thread for each worker, all from one moment on, and sets its flag when the time
/// of the load is over.
fn in_threads<W: Worker, T: Send>(
    load: &Load,
    workers: Vec<W>,
    work: impl Fn(&mut W, &mut Own, &AtomicBool) -> T + Sync,
) -> Vec<T> {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(workers.len() + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let (stop, start, work) = (&stop, &start, &work);
                scope.spawn(move || {
                    let mut own = Own {
                        chooser: load.chooser.fork(fresh_seed()),
                        rng: Random::new(fresh_seed()),
                        value: store::value(load.value_bytes),
                        out: vec![0; load.value_bytes],
                    };
                    start.wait();
                    work(&mut worker, &mut own, stop)
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(load.duration);
        stop.store(true, Ordering::Relaxed);
        let threads = threads.into_iter();
        threads
            .map(|thread| thread.join().expect("a worker does not panic"))
            .collect()
    })
}

/// Operations per second of all workers together.
pub(super) fn throughput(load: &Load, workers: Vec<impl Worker>) -> f64 {
    let rates = in_threads(load, workers, |worker, own, stop| {
        let begun = Instant::now();
        let mut done = 0u64;
        // One group at least, however late this thread gets a processor.
        while done == 0 || !stop.load(Ordering::Relaxed) {
            let operations = std::array::from_fn(|_| load.draw(&mut own.chooser, &mut own.rng));
            worker.run(&operations, &mut own.value, &mut own.out);
            black_box(&own.out);
            done += BATCH as u64;
        }
        done as f64 / begun.elapsed().as_secs_f64()
    });
    rates.iter().sum()
}

/// Latency of single operations, every one timed, with all workers busy.
fn latency(load: &Load, workers: Vec<impl Worker>) -> Latencies {
    clock::ns_per_tick();
    let of_threads = in_threads(load, workers, |worker, own, stop| {
        let mut latencies = Latencies::default();
        while !stop.load(Ordering::Relaxed) {
            let operation = load.draw(&mut own.chooser, &mut own.rng);
            let begun = clock::now();
            worker.run_one(operation, &mut own.value, &mut own.out);
            let ended = clock::now();
            black_box(&own.out);
            latencies.record_ns(clock::to_ns(ended.saturating_sub(begun)));
        }
        latencies
    });
    let mut all = Latencies::default();
    of_threads.iter().for_each(|latencies| all.add(latencies));
    all
}

fn sessions(store: &Arc<Store>, threads: usize) -> Result<Vec<Session>> {
    (0..threads)
        .map(|_| store.session().doing("opening a session"))
        .collect()
}

/// The stores of one value size, loaded.
struct Stores {
    duramen: Arc<Store>,
    dashmap: dash::Map,
}

impl Stores {
    fn load(records: u64, value_bytes: usize) -> Result<Stores> {
        let before = machine::rss_bytes(None)?;
        let duramen = store::loaded::<8>(Shape {
            records,
            value_bytes,
            utilization: 0.5,
            cleaners: 1,
            loaders: 2,
        })?;
        let after = machine::rss_bytes(None)?;
        progress!(
            "duramen: {:.0} bytes of RSS per record",
            (after - before) as f64 / records as f64
        );
        let dashmap = {
            progress!("loading {records} records into dashmap");
            peer::loaded(records, value_bytes)
        };
        Ok(Stores { duramen, dashmap })
    }

    /// Overwrites uniformly until the log's whole size was appended: only then was the free half of
    /// the log freed by the cleaner, and not unused from the start.
    fn age(&self, load: &Load) -> Result<()> {
        let begun = self.duramen.stats();
        let deadline = Instant::now() + Duration::from_secs(60);
        progress!("overwriting until the cleaner is in its steady state");
        loop {
            let now = self.duramen.stats();
            let appended = now.appended_bytes - begun.appended_bytes;
            if appended >= now.segment_budget_bytes || Instant::now() > deadline {
                return Ok(());
            }
            let workers = sessions(&self.duramen, 2)?;
            throughput(load, workers.into_iter().map(Batched).collect());
        }
    }

    /// Medians of the contenders, by name, and the engine's own counters for the batched and single
    /// runs.
    fn compare(
        &self,
        load: &Load,
        threads: usize,
        rounds: usize,
    ) -> Result<(Vec<(String, f64)>, CleanerShare)> {
        let before = self.duramen.stats();
        let begun = Instant::now();
        let mut contenders = vec![
            Contender::new("batched", || {
                let workers = sessions(&self.duramen, threads)?;
                Ok(throughput(load, workers.into_iter().map(Batched).collect()))
            }),
            Contender::new("single", || {
                let workers = sessions(&self.duramen, threads)?;
                Ok(throughput(load, workers.into_iter().map(Single).collect()))
            }),
        ];
        contenders.push(Contender::new("dashmap", || {
            Ok(throughput(
                load,
                (0..threads).map(|_| peer::Dash(&self.dashmap)).collect(),
            ))
        }));
        let medians = alternate(rounds, &mut contenders)?;
        let names = contenders.iter().map(|contender| contender.name.clone());
        let named = names.zip(medians).collect();
        drop(contenders);
        let after = self.duramen.stats();
        let share = CleanerShare {
            utilization: after.utilization,
            write_cost: ratio(
                after.cleaner.bytes_relocated - before.cleaner.bytes_relocated,
                after.appended_bytes - before.appended_bytes,
            ),
            cleaner_cores: (after.cleaner.busy_ns - before.cleaner.busy_ns) as f64
                / begun.elapsed().as_nanos() as f64,
        };
        Ok((named, share))
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// The cleaner's work during a row.
struct CleanerShare {
    utilization: f64,
    /// Bytes relocated per byte that writers appended.
    write_cost: f64,
    /// Cores busy with cleaning, over the time of the whole row, with the peers' turns.
    cleaner_cores: f64,
}

/// Millions per second of the cells that have targets.
#[derive(Default)]
struct Cells(Vec<(String, f64)>);

impl Cells {
    fn put(&mut self, name: String, figure: f64) {
        self.0.push((name, figure));
    }

    fn get(&self, name: &str) -> f64 {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or(f64::NAN, |(_, figure)| *figure)
    }
}

/// YCSB A, B, C, F and all-update in process, batched and single, beside dashmap
#[derive(Clone, Debug, clap::Args)]
pub(super) struct YcsbFigure;

impl Figure for YcsbFigure {
    const NAME: &'static str = "ycsb";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(options)?])
    }
}

fn report(options: &Options) -> Result<Report> {
    let about = "YCSB in process: 8-byte keys, reads copy out, updates replace, engine at 50 % utilization with one cleaner. \
        `batched` = groups of 16, `single` = one operation per call; dashmap runs in the same process, in turn (A B A B), with \
        rapidhash and jemalloc. Figures in millions of operations per second, medians.";
    let mut report = Report::new("ycsb", "YCSB in process", about, options);
    let mut cells = Cells::default();
    let mut rows = Vec::new();
    let mut latency_rows = Vec::new();
    for (value_bytes, records) in [
        (64, options.size(24_000_000, 2_000_000)),
        (1000, options.size(2_400_000, 400_000)),
    ] {
        let stores = Stores::load(records, value_bytes)?;
        stores.age(&Load {
            mix: UPDATES,
            chooser: Chooser::new(Distribution::Uniform, records, 7),
            value_bytes,
            duration: Duration::from_millis(500),
        })?;
        for distribution in [Distribution::Uniform, Distribution::Zipfian(0.99)] {
            let chooser = Chooser::new(distribution, records, 42);
            for mix in MIXES {
                let duration = Duration::from_millis(options.size(500, 300));
                let load = Load {
                    mix,
                    chooser: chooser.clone(),
                    value_bytes,
                    duration,
                };
                for threads in [1, 2] {
                    let (medians, share) = stores.compare(&load, threads, options.rounds())?;
                    let case = format!(
                        "{value_bytes} {} {} {threads}",
                        distribution.name(),
                        mix.name
                    );
                    rows.push(throughput_row(
                        &case,
                        value_bytes,
                        distribution,
                        mix,
                        threads,
                        &medians,
                        &share,
                    ));
                    for (name, figure) in medians {
                        cells.put(format!("{name} {case}"), figure / 1e6);
                    }
                }
                if distribution == Distribution::Uniform {
                    latency_rows.extend(latency_row(&stores, &load)?);
                }
            }
        }
    }
    add_targets(&mut report, &cells, &latency_rows);
    add_plots(&mut report, &cells);
    report.table("Throughput, millions of operations per second", rows);
    report.table(
        "Latency of one operation by a single call, 2 threads, uniform, microseconds",
        latency_rows,
    );
    add_notes(&mut report);
    Ok(report)
}

fn add_notes(report: &mut Report) {
    report.note(
        "FASTER and Nibble are compared through this project's earlier measurements on the same kind of machine (FASTER: 6.2 M/s \
         uniform reads and 5.5 M/s in-place updates on 2 threads, 3.0 M/s reads on 1; Nibble: 2.1 M/s updates; dashmap was 8.8 M/s \
         beside them): those ratios span runs, the ones with dashmap do not.",
    );
    report.note(
        "The limit of this kind of machine, measured earlier: 30 M prefetched lookups of a 64-byte object per second and core (1 KB: \
         10 M), 2.2 M without prefetching.",
    );
    report.note(format!(
        "{} cores: with 2 threads the cleaner shares them with the load.",
        machine::cores()
    ));
}

fn throughput_row(
    case: &str,
    value_bytes: usize,
    distribution: Distribution,
    mix: Mix,
    threads: usize,
    medians: &[(String, f64)],
    share: &CleanerShare,
) -> Row {
    let mut row = Row::new()
        .with("value", value_bytes)
        .with("keys", distribution.name())
        .with("mix", mix.name)
        .with("threads", threads);
    for (name, figure) in medians {
        row = row.number(name, figure / 1e6, 3);
    }
    if let (Some(ours), Some(peer)) = (medians.first(), medians.get(2)) {
        row = row.number("batched / dashmap", ours.1 / peer.1, 3);
    }
    progress!("{case}: {medians:?}");
    row.number("utilization", share.utilization, 3)
        .number("write cost", share.write_cost, 3)
        .number("cleaner cores", share.cleaner_cores, 2)
}

fn latency_row(stores: &Stores, load: &Load) -> Result<Vec<Row>> {
    let mut measured = Vec::new();
    let workers = sessions(&stores.duramen, 2)?;
    measured.push((
        "duramen",
        latency(load, workers.into_iter().map(Single).collect()),
    ));
    measured.push((
        "dashmap",
        latency(load, (0..2).map(|_| peer::Dash(&stores.dashmap)).collect()),
    ));
    let row = |(name, latencies): (&str, Latencies)| {
        let summary = latencies.summary();
        Row::new()
            .with("store", name)
            .with("value", load.value_bytes)
            .with("mix", load.mix.name)
            .number("p50", summary.p50_us, 3)
            .number("p99", summary.p99_us, 3)
            .number("p99.9", summary.p99_9_us, 3)
            .number("p99.99", summary.p99_99_us, 3)
            .number("max", summary.max_us, 3)
    };
    Ok(measured.into_iter().map(row).collect())
}

fn add_targets(report: &mut Report, cells: &Cells, latency_rows: &[Row]) {
    let at_least = Bound::AtLeast;
    let reads = cells.get("batched 64 uniform C read 2");
    report.target(
        "uniform reads, 64 B, batches of 16, 2 threads ≥ 18 M/s",
        reads,
        at_least(18.0),
    );
    let dashmap = cells.get("dashmap 64 uniform C read 2");
    report.target("the same ≥ 2x dashmap", reads / dashmap, at_least(2.0));
    report.target(
        "the same ≥ 2.8x FASTER (6.2 M/s)",
        reads / 6.2,
        at_least(2.8),
    );
    let single = cells.get("single 64 uniform C read 2");
    report.target(
        "single-call reads, 2 threads ≥ FASTER (6.2 M/s)",
        single / 6.2,
        at_least(1.0),
    );
    for (name, mix) in [("50/50", "A 50/50"), ("all-update", "update")] {
        let figure = cells.get(&format!("batched 64 uniform {mix} 2"));
        let target = format!("{name} at 50 % utilization, cleaners at work, 2 threads ≥ 6 M/s");
        report.target(target, figure, at_least(6.0));
    }
    let large = cells.get("batched 1000 uniform C read 2");
    report.target(
        "uniform reads, 1000 B, 2 threads ≥ 8 M/s",
        large,
        at_least(8.0),
    );
    let tail = |mix: &str| {
        let of_mix = |row: &&Row| {
            let is =
                |column: &str, text: &str| row.get(column).and_then(Value::as_str) == Some(text);
            is("store", "duramen")
                && is("mix", mix)
                && row.get("value").and_then(Value::as_u64) == Some(64)
        };
        let found = latency_rows.iter().find(of_mix);
        found
            .and_then(|row| row.get("p99.9")?.as_f64())
            .unwrap_or(f64::NAN)
    };
    for mix in ["C read", "A 50/50", "update"] {
        let target = format!("p99.9 of a single operation, {mix}, 2 threads ≤ 10 µs");
        report.target(target, tail(mix), Bound::AtMost(10.0));
    }
}

fn add_plots(report: &mut Report, cells: &Cells) {
    for value_bytes in [64, 1000] {
        let groups = MIXES.iter().map(|mix| mix.name.to_owned()).collect();
        let series = |name: &str, distribution: &str| {
            let cell = |mix: &Mix| {
                cells.get(&format!(
                    "{name} {value_bytes} {distribution} {} 2",
                    mix.name
                ))
            };
            (
                format!("{name}, {distribution}"),
                MIXES.iter().map(cell).collect::<Vec<f64>>(),
            )
        };
        let mut bars = Vec::new();
        for distribution in ["uniform", "zipfian"] {
            for name in ["batched", "single", "dashmap"] {
                bars.push(series(name, distribution));
            }
        }
        bars.retain(|(_, values)| values.iter().any(|value| value.is_finite()));
        let title = format!("YCSB in process, {value_bytes}-byte values, 2 threads");
        let chart = Chart::bars(&title, "million operations per second", groups, bars);
        report.plot(&format!("{value_bytes}b"), &chart);
    }
}
