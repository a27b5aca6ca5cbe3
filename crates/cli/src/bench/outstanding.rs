//! `duramen bench outstanding`: the blocking client with many threads, and the asynchronous one
//! with as many operations in flight on one thread, in turn, so that drift of the machine affects
//! both alike.

use super::turns::{TurnArgs, Turns, Work, is_there, number};
use crate::cluster;
use crate::failure::Failure;
use duramen_client::asynchronous::{AsyncClient, AsyncTable, wait};
use duramen_client::{Client, Error};
use duramen_load::Latencies;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct OutstandingArgs {
    /// The table; its keys `outstanding:N` are written
    #[arg(long, default_value = "db0")]
    table: String,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000,
        value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,
    /// Operations in flight: threads of the blocking client, futures of the asynchronous one
    #[arg(long, default_value = "1,16,256", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    outstanding: Vec<u32>,
    #[command(flatten)]
    turns: TurnArgs,
}

const HELP: &str = "\
Both clients use TCP. Each operation is a call of its own: the asynchronous client joins those that
are in flight at once.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage.";

pub(super) fn run(args: &OutstandingArgs) -> Result<(), Failure> {
    let unmeasured = |error: Error| Failure::Unmeasured(error.to_string());
    let options = cluster::options(&args.turns.cluster)?;
    let client = Client::connect(options.clone()).map_err(unmeasured)?;
    let blocking = client.table(&args.table).map_err(unmeasured)?;
    let asynchronous = AsyncClient::new(options).map_err(unmeasured)?;
    let asynchronous = asynchronous.table_with_id(blocking.id());
    let work = Work::new(&args.turns, "outstanding", args.keys);
    let written = |name| (name, &*work.value);
    let objects: Vec<(&String, &[u8])> = work.names.iter().map(written).collect();
    for written in wait(asynchronous.set_many(&objects, duramen_client::Write::default())) {
        written.map_err(unmeasured)?;
    }
    for outstanding in &args.outstanding {
        let (mut threads, mut futures) = (Turns::default(), Turns::default());
        for _ in 0..args.turns.rounds {
            let turn = threads.with_threads(&blocking, &work, *outstanding);
            turn.map_err(unmeasured)?;
            with_futures(&asynchronous, &work, *outstanding, &mut futures).map_err(unmeasured)?;
        }
        let over = ("threads", threads.rate());
        for (name, mut turns) in [("threads", threads), ("futures", futures)] {
            let mut figures = turns.figures(name, "operations", over);
            figures["outstanding"] = json!(outstanding);
            print(args, *outstanding, &figures);
        }
    }
    Ok(())
}

fn print(args: &OutstandingArgs, outstanding: u32, figures: &Value) {
    if args.turns.cluster.json {
        return println!("{figures}");
    }
    let of = |name| number(figures, name);
    println!(
        "{outstanding:>5} {:<8} {:>9.0} operations/s ({:.2} x threads)  p50 {:>8.1} us  p99 {:>8.1} us",
        figures["way"].as_str().unwrap_or_default(),
        of("operations_per_second"),
        of("rate_over_threads"),
        of("p50_us"),
        of("p99_us")
    );
}

/// The futures of a thread that are ready to be polled.
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
    match work.written() {
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
fn with_futures(
    table: &AsyncTable,
    work: &Work,
    many: u32,
    turns: &mut Turns,
) -> Result<(), Error> {
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
    let mut latencies = Latencies::default();
    while running > 0 {
        for index in ready.take() {
            let mut context = Context::from_waker(&wakers[index]);
            while let Some((since, operation)) = &mut in_flight[index] {
                let Poll::Ready(result) = operation.as_mut().poll(&mut context) else {
                    break;
                };
                result?;
                let now = Instant::now();
                latencies.record_ns(now.duration_since(*since).as_nanos() as u64);
                let goes_on = now.duration_since(begun) < work.turn;
                in_flight[index] = goes_on.then(|| (now, begin(table, work, requests)));
                requests += 1;
                running -= u32::from(!goes_on);
            }
        }
    }
    turns.add(&latencies, begun);
    Ok(())
}
