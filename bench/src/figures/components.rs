//! Two of Nibble's parts against simpler ones: a slot per thread for epochs against one counter
//! that all operations advance, and the heads of the log by their number and choice. Merritt17
//! Figures 8(a) and 8(c).

use super::ycsb::{Kind, Load, Mix, Operation, Single, Worker, throughput};
use crate::figure::Figure;
use crate::harness::store::{self, BATCH, Shape};
use crate::harness::{
    Bound, Chart, Chooser, Contender, Distribution, Doing, Options, Random, Report, Result, Row,
    Series, alternate, fresh_seed, machine, progress,
};
use duramen_base::sync::Padded;
use duramen_base::units::MIB;
use duramen_engine as engine;
use duramen_engine::{Session, Store};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const GETS: Mix = mix("GET", 100);
const MIXED: Mix = mix("mix", 50);
const PUTS: Mix = mix("PUT", 0);

const fn mix(name: &'static str, reads_percent: u64) -> Mix {
    Mix {
        name,
        reads_percent,
        other: Kind::Update,
    }
}

/// Nibble's parts: epochs by slot or by counter, heads by number and choice
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ComponentsFigure {
    /// Bytes of values
    #[arg(long, value_delimiter = ',', default_value = "64,1024")]
    pub value_bytes: Vec<usize>,
    /// Megabytes of live values; with --quick an eighth
    #[arg(long, default_value_t = 1024)]
    pub live: u64,
    /// Numbers of heads
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,15")]
    pub heads: Vec<usize>,
    /// Threads; by default one, one per core, and twice as many as cores
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Milliseconds per measurement
    #[arg(long, default_value_t = 500)]
    pub window_ms: u64,
}

impl Figure for ComponentsFigure {
    const NAME: &'static str = "components";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ComponentsFigure, options: &Options) -> Result<Report> {
    let about = "One operation per call, uniform keys of 8 B, the store half full with one cleaner; `mix` is half GET, half PUT. Epochs: `slots` is the engine \
        as it is, where an operation writes its time, from the processor's clock, into its thread's own cache line; `counter` is the same, \
        and each operation also advances one counter that all threads share, as a single atomic epoch must (the engine's own pin stays, so that the difference \
        is the counter alone). Heads: `random` writes each object to a head chosen at random, `own` gives each thread one head, in turn.";
    let mut report = Report::new("components", "Epochs and heads", about, options);
    let threads = match args.threads.is_empty() {
        true => vec![1, machine::cores(), 2 * machine::cores()],
        false => args.threads.clone(),
    };
    pins(args, options, &threads, &mut report)?;
    epochs(args, options, &threads, &mut report)?;
    heads(args, options, &threads, &mut report)?;
    report.note(format!(
        "{} cores, shared with other work; the paper had 240. More threads than cores take turns, and seldom meet at a line of the cache.",
        machine::cores()
    ));
    Ok(report)
}

/// The shared counter of an epoch that its operations advance.
type Shared = Padded<AtomicU64>;

/// Millions of entries into the store, and exits, per second.
fn pin_rate(
    store: &Arc<Store>,
    counter: Option<&Shared>,
    threads: usize,
    window: Duration,
) -> Result<f64> {
    let sessions: Result<Vec<_>> = (0..threads).map(|_| session(store)).collect();
    let sessions = sessions?;
    let stop = AtomicBool::new(false);
    let work = |mut session: Session| {
        let (begun, mut done) = (Instant::now(), 0u64);
        // One batch at least, however late this thread gets a processor.
        while done == 0 || !stop.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                if let Some(counter) = counter {
                    counter.0.fetch_add(1, Ordering::SeqCst);
                }
                drop(black_box(session.pin()));
            }
            done += BATCH as u64;
        }
        done as f64 / begun.elapsed().as_secs_f64()
    };
    let work = &work;
    Ok(std::thread::scope(|scope| {
        let workers = sessions.into_iter();
        let workers: Vec<_> = workers
            .map(|session| scope.spawn(move || work(session)))
            .collect();
        std::thread::sleep(window);
        stop.store(true, Ordering::Relaxed);
        let rates = workers.into_iter().map(|it| it.join().expect("a worker"));
        rates.sum::<f64>() / 1e6
    }))
}

/// Entering and leaving alone: the highest rates that epochs allow.
fn pins(
    args: &ComponentsFigure,
    options: &Options,
    threads: &[usize],
    report: &mut Report,
) -> Result<()> {
    let window = Duration::from_millis(args.window_ms);
    let store = store::open(64 * MIB, 0)?;
    let (counter, mut rows) = (Shared::default(), Vec::new());
    for &threads in threads {
        let medians = alternate(
            options.rounds(),
            &mut [
                Contender::new("slots", || pin_rate(&store, None, threads, window)),
                Contender::new("counter", || {
                    pin_rate(&store, Some(&counter), threads, window)
                }),
            ],
        )?;
        progress!("pins of {threads} threads: {medians:?} M/s");
        rows.push(
            Row::new()
                .with("threads", threads)
                .number("slots, M/s", medians[0], 3)
                .number("counter, M/s", medians[1], 3)
                .number("slots / counter", medians[0] / medians[1], 3),
        );
    }
    report.table("Epochs alone: entering the store and leaving it", rows);
    Ok(())
}

/// One operation per call, after advancing a counter that all workers share.
struct Counting<'a> {
    single: Single,
    counter: &'a Shared,
}

impl Worker for Counting<'_> {
    fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]) {
        for operation in operations {
            self.run_one(*operation, value, out);
        }
    }

    fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]) {
        self.counter.0.fetch_add(1, Ordering::SeqCst);
        self.single.run_one(operation, value, out);
    }
}

/// One operation per call, by a session that is chosen at random: each has another head.
struct AnyHead {
    sessions: Vec<Single>,
    random: Random,
}

impl Worker for AnyHead {
    fn run(&mut self, operations: &[Operation; BATCH], value: &mut [u8], out: &mut [u8]) {
        for operation in operations {
            self.run_one(*operation, value, out);
        }
    }

    fn run_one(&mut self, operation: Operation, value: &mut [u8], out: &mut [u8]) {
        let chosen = self.random.below(self.sessions.len() as u64) as usize;
        self.sessions[chosen].run_one(operation, value, out);
    }
}

fn session(store: &Arc<Store>) -> Result<Session> {
    store.session().doing("opening a session")
}

/// Millions of operations per second of workers that `make` makes.
fn rate<W: Worker>(load: &Load, threads: usize, make: impl Fn() -> Result<W>) -> Result<f64> {
    let workers: Result<Vec<W>> = (0..threads).map(|_| make()).collect();
    Ok(throughput(load, workers?) / 1e6)
}

fn load_of(args: &ComponentsFigure, mix: Mix, records: u64, value_bytes: usize) -> Load {
    Load {
        mix,
        chooser: Chooser::new(Distribution::Uniform, records, fresh_seed()),
        value_bytes,
        duration: Duration::from_millis(args.window_ms),
    }
}

fn records_of(args: &ComponentsFigure, options: &Options, value_bytes: usize) -> u64 {
    options.size(args.live, args.live / 8).max(1) * MIB / value_bytes as u64
}

/// Figure 8(a).
fn epochs(
    args: &ComponentsFigure,
    options: &Options,
    threads: &[usize],
    report: &mut Report,
) -> Result<()> {
    let (mut rows, mut worst) = (Vec::new(), f64::NAN);
    for &value_bytes in &args.value_bytes {
        let records = records_of(args, options, value_bytes);
        let store = store::loaded::<8>(Shape {
            records,
            value_bytes,
            utilization: 0.5,
            cleaners: 1,
            loaders: machine::cores(),
        })?;
        for mix in [GETS, MIXED, PUTS] {
            for &threads in threads {
                let load = load_of(args, mix, records, value_bytes);
                let counter = Shared::default();
                let medians = alternate(
                    options.rounds(),
                    &mut [
                        Contender::new("slots", || {
                            rate(&load, threads, || Ok(Single(session(&store)?)))
                        }),
                        Contender::new("counter", || {
                            rate(&load, threads, || {
                                Ok(Counting {
                                    single: Single(session(&store)?),
                                    counter: &counter,
                                })
                            })
                        }),
                    ],
                )?;
                let gain = medians[0] / medians[1];
                progress!(
                    "{value_bytes} B, {}, {threads} threads: {gain:.2}",
                    mix.name
                );
                if threads == machine::cores() {
                    worst = worst.min(gain);
                }
                rows.push(
                    Row::new()
                        .with("value bytes", value_bytes)
                        .with("mix", mix.name)
                        .with("threads", threads)
                        .number("slots, M/s", medians[0], 3)
                        .number("counter, M/s", medians[1], 3)
                        .number("slots / counter", gain, 3),
                );
            }
        }
    }
    report.target(
        "epochs, a thread per core: slots / counter, least ≥ 1",
        worst,
        Bound::AtLeast(1.0),
    );
    report.table("Epochs in the store (Figure 8a)", rows);
    Ok(())
}

/// A store with so many heads, loaded to a half.
fn with_heads(records: u64, value_bytes: usize, heads: usize) -> Result<Arc<Store>> {
    let live_bytes = store::footprint::<8>(value_bytes)?.entry_bytes * records as f64;
    let memory_bytes = (2.0 * live_bytes + 12.0 * records as f64) as u64 + 32 * MIB;
    let memory_bytes = memory_bytes.max(duramen_base::limits::MEMORY_BYTES_MIN);
    let mut how = engine::Options::new(memory_bytes);
    (how.cleaners, how.heads, how.hash_seed) = (1, heads, Some(1));
    let store = Store::new(how).doing(format!("opening a store of {heads} heads"))?;
    store::fill_parallel::<8>(&store, records, value_bytes, machine::cores())?;
    Ok(store)
}

/// Figure 8(c).
fn heads(
    args: &ComponentsFigure,
    options: &Options,
    threads: &[usize],
    report: &mut Report,
) -> Result<()> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for &value_bytes in &args.value_bytes {
        let records = records_of(args, options, value_bytes);
        let stores = args.heads.iter();
        let stores = stores.map(|&heads| Ok((heads, with_heads(records, value_bytes, heads)?)));
        let stores = stores.collect::<Result<Vec<_>>>()?;
        for &threads in threads {
            let load = load_of(args, PUTS, records, value_bytes);
            let mut contenders = Vec::new();
            for (heads, store) in &stores {
                let (load, heads) = (&load, *heads);
                contenders.push(Contender::new("random", move || {
                    rate(load, threads, || {
                        let sessions = (0..heads).map(|_| Ok(Single(session(store)?)));
                        Ok(AnyHead {
                            sessions: sessions.collect::<Result<_>>()?,
                            random: Random::new(fresh_seed()),
                        })
                    })
                }));
                contenders.push(Contender::new("own", move || {
                    rate(load, threads, || Ok(Single(session(store)?)))
                }));
            }
            let medians = alternate(options.rounds(), &mut contenders)?;
            drop(contenders);
            for (pair, (heads, _)) in medians.chunks(2).zip(&stores) {
                progress!("{value_bytes} B, {threads} threads, {heads} heads: {pair:?}");
                rows.push(
                    Row::new()
                        .with("value bytes", value_bytes)
                        .with("threads", threads)
                        .with("heads", *heads)
                        .number("random, M/s", pair[0], 3)
                        .number("own, M/s", pair[1], 3)
                        .number("random / one head", pair[0] / medians[0], 3)
                        .number("own / random", pair[1] / pair[0], 3),
                );
            }
            for (n, choice) in ["random", "own"].into_iter().enumerate() {
                let of = stores.iter().zip(medians.chunks(2));
                lines.push(Series {
                    name: format!("{value_bytes} B, {threads} threads, {choice}"),
                    points: of
                        .map(|((heads, _), pair)| (*heads as f64, pair[n]))
                        .collect(),
                });
            }
        }
    }
    let chart = Chart::lines("PUT by heads", "heads of the log", "M PUT/s", lines);
    report.plot("heads", &chart);
    report.table("PUT by number of heads and their choice (Figure 8c)", rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = ComponentsFigure {
            value_bytes: vec![64],
            live: 8,
            heads: vec![1, 2],
            threads: vec![1, 2],
            window_ms: 10,
        };
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        let counts: Vec<usize> = report.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(counts, [2, 6, 4]);
        for table in &report.tables {
            for row in &table.rows {
                let rate = |(name, cell): &(String, serde_json::Value)| {
                    !name.ends_with("M/s") || cell.as_f64().is_some_and(|rate| rate > 0.0)
                };
                assert!(row.cells().iter().all(rate), "{}: {row:?}", table.title);
            }
        }
    }

    #[test]
    fn a_random_choice_uses_every_head() {
        let store = with_heads(100, 64, 4).unwrap();
        let before = store.stats().segments_open;
        let sessions = (0..4).map(|_| Single(session(&store).unwrap())).collect();
        let mut any = AnyHead {
            sessions,
            random: Random::new(1),
        };
        let (mut value, mut out) = (store::value(64), vec![0; 64]);
        for id in 0..100 {
            let operation = Operation {
                kind: Kind::Update,
                id,
            };
            any.run_one(operation, &mut value, &mut out);
        }
        assert!(
            store.stats().segments_open >= before.max(4),
            "one segment per head"
        );
        let used = any
            .sessions
            .iter()
            .filter(|it| it.0.work().appended_bytes() > 0);
        assert_eq!(used.count(), 4);
    }
}
