//! `duramen bench outstanding`: the blocking client with many threads, and the asynchronous one
//! with as many operations in flight on one thread, in turn, so that drift of the machine affects
//! both alike.

use crate::cluster::{self, ClusterArgs};
use crate::failure::Failure;
use duramen_client::asynchronous::{AsyncClient, AsyncTable, wait};
use duramen_client::{Client, Error, Object, Table};
use duramen_load::Latencies;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct OutstandingArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The table; its keys `outstanding:N` are written
    #[arg(long, default_value = "db0")]
    table: String,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Value size in bytes
    #[arg(long, default_value_t = 100, value_parser = super::bytes_of_value())]
    value: usize,
    /// Measure SET instead of GET
    #[arg(long)]
    set: bool,
    /// Operations in flight: threads of the blocking client, futures of the asynchronous one
    #[arg(long, default_value = "1,16,256", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    outstanding: Vec<u32>,
    /// Turns of each way
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each turn
    #[arg(long, default_value_t = 1.0, value_parser = super::amount)]
    seconds: f64,
}

const HELP: &str = "\
Both clients use TCP. Each operation is a call of its own: the asynchronous client joins those that
are in flight at once.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage.";

/// Operations of a turn.
struct Work {
    names: Vec<String>,
    /// `None`: reads.
    value: Option<Vec<u8>>,
    turn: Duration,
}

impl Work {
    fn key(&self, request: u64) -> &[u8] {
        // Neighbours in time are no neighbours in memory.
        let key = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.names.len() as u64;
        self.names[key as usize].as_bytes()
    }
}

/// The turns of one way with one number of operations in flight.
#[derive(Default)]
struct Way {
    latencies: Latencies,
    /// Operations per second of each turn.
    rates: Vec<f64>,
}

pub(super) fn run(args: &OutstandingArgs) -> Result<(), Failure> {
    let unmeasured = |error: Error| Failure::Unmeasured(error.to_string());
    let options = cluster::options(&args.cluster)?;
    let client = Client::connect(options.clone()).map_err(unmeasured)?;
    let blocking = client.table(&args.table).map_err(unmeasured)?;
    let asynchronous = AsyncClient::new(options).map_err(unmeasured)?;
    let asynchronous = asynchronous.table_with_id(blocking.id());
    let value = vec![b'v'; args.value];
    let work = Work {
        names: (0..args.keys)
            .map(|key| format!("outstanding:{key}"))
            .collect(),
        value: args.set.then(|| value.clone()),
        turn: Duration::from_secs_f64(args.seconds),
    };
    let objects: Vec<(&String, &[u8])> = work.names.iter().map(|name| (name, &value[..])).collect();
    for written in wait(asynchronous.set_many(&objects, duramen_client::Write::default())) {
        written.map_err(unmeasured)?;
    }
    for outstanding in &args.outstanding {
        let (mut threads, mut futures) = (Way::default(), Way::default());
        for _ in 0..args.rounds {
            with_threads(&blocking, &work, *outstanding, &mut threads).map_err(unmeasured)?;
            with_futures(&asynchronous, &work, *outstanding, &mut futures).map_err(unmeasured)?;
        }
        let rate_of_threads = threads.rate();
        for (name, mut way) in [("threads", threads), ("futures", futures)] {
            print(
                args,
                *outstanding,
                &way.figures(name, *outstanding, rate_of_threads),
            );
        }
    }
    Ok(())
}

fn print(args: &OutstandingArgs, outstanding: u32, figures: &Value) {
    if args.cluster.json {
        return println!("{figures}");
    }
    let of = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "{outstanding:>5} {:<8} {:>9.0} operations/s ({:.2} x threads)  p50 {:>8.1} us  p99 {:>8.1} us",
        figures["way"].as_str().unwrap_or_default(),
        of("operations_per_second"),
        of("rate_over_threads"),
        of("p50_us"),
        of("p99_us")
    );
}

fn is_there(found: Option<Object>) -> Result<(), Error> {
    match found {
        Some(_) => Ok(()),
        None => Err(Error::Refused(
            "a key that was written is absent".to_owned(),
        )),
    }
}

/// A turn of the blocking client: each thread has one operation at a time.
fn with_threads(table: &Table, work: &Work, threads: u32, way: &mut Way) -> Result<(), Error> {
    let begun = Instant::now();
    let one = |thread: u64| {
        let mut latencies = Latencies::default();
        let (mut last, mut request) = (Instant::now(), thread << 32);
        while last.duration_since(begun) < work.turn {
            let key = work.key(request);
            match &work.value {
                Some(value) => drop(table.set(key, value)?),
                None => is_there(table.get(key)?)?,
            }
            let now = Instant::now();
            latencies.record_ns(now.duration_since(last).as_nanos() as u64);
            (last, request) = (now, request + 1);
        }
        Ok::<Latencies, Error>(latencies)
    };
    let all: Vec<Result<Latencies, Error>> = std::thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (0..u64::from(threads))
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let joined = running.into_iter().map(join);
        joined.map(|it| it.expect("no panic")).collect()
    });
    let mut count = 0;
    for latencies in all {
        let latencies = latencies?;
        count += latencies.count();
        way.latencies.add(&latencies);
    }
    way.rates.push(count as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// The futures of a thread that can go on.
struct Ready {
    woken: Mutex<Vec<usize>>,
    thread: Thread,
}

impl Ready {
    fn take(&self) -> Vec<usize> {
        loop {
            let woken = std::mem::take(&mut *lock(&self.woken));
            if !woken.is_empty() {
                return woken;
            }
            std::thread::park();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes one future.
struct One {
    index: usize,
    ready: Arc<Ready>,
}

impl Wake for One {
    fn wake(self: Arc<Self>) {
        let mut woken = lock(&self.ready.woken);
        woken.push(self.index);
        let is_first = woken.len() == 1;
        drop(woken);
        if is_first {
            self.ready.thread.unpark();
        }
    }
}

type Operation = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

fn begin(table: &AsyncTable, work: &Work, request: u64) -> Operation {
    let key = work.key(request);
    match &work.value {
        Some(value) => {
            let written = table.set(key, value);
            Box::pin(async { written.await.map(|_| ()) })
        }
        None => {
            let found = table.get(key);
            Box::pin(async { is_there(found.await?) })
        }
    }
}

/// A turn of the asynchronous client: this thread has so many operations in flight.
fn with_futures(table: &AsyncTable, work: &Work, many: u32, way: &mut Way) -> Result<(), Error> {
    let ready = Arc::new(Ready {
        woken: Mutex::new((0..many as usize).collect()),
        thread: std::thread::current(),
    });
    let waker = |index| {
        let ready = ready.clone();
        Waker::from(Arc::new(One { index, ready }))
    };
    let wakers: Vec<Waker> = (0..many as usize).map(waker).collect();
    let begun = Instant::now();
    let mut requests = 0;
    let mut in_flight: Vec<Option<(Instant, Operation)>> = Vec::new();
    for _ in 0..many {
        in_flight.push(Some((Instant::now(), begin(table, work, requests))));
        requests += 1;
    }
    let mut running = many;
    let mut count = 0u64;
    while running > 0 {
        for index in ready.take() {
            let mut context = Context::from_waker(&wakers[index]);
            while let Some((since, operation)) = &mut in_flight[index] {
                let Poll::Ready(result) = operation.as_mut().poll(&mut context) else {
                    break;
                };
                result?;
                let now = Instant::now();
                way.latencies
                    .record_ns(now.duration_since(*since).as_nanos() as u64);
                count += 1;
                let goes_on = now.duration_since(begun) < work.turn;
                in_flight[index] = goes_on.then(|| (now, begin(table, work, requests)));
                requests += 1;
                running -= u32::from(!goes_on);
            }
        }
    }
    way.rates.push(count as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

impl Way {
    /// The median of its turns.
    fn rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates[self.rates.len() / 2]
    }

    fn figures(&mut self, name: &str, outstanding: u32, rate_of_threads: f64) -> Value {
        let rate = self.rate();
        json!({
            "way": name,
            "outstanding": outstanding,
            "operations_per_second": rate,
            "rate_over_threads": rate / rate_of_threads,
            "p50_us": self.latencies.at_us(0.50),
            "p99_us": self.latencies.at_us(0.99),
        })
    }
}
