//! Turns of the ways in which a native client works, one way after the other, so that drift of the
//! machine affects all alike.

use crate::cluster::ClusterArgs;
use duramen_client::{Error, Object, Table};
use duramen_load::Latencies;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(super) struct TurnArgs {
    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
    /// Value size in bytes
    #[arg(long, default_value_t = 100, value_parser = super::bytes_of_value())]
    value: usize,
    /// Measure SET instead of GET
    #[arg(long)]
    set: bool,
    /// Turns of each way
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// Seconds of each turn
    #[arg(long, default_value_t = 1.0, value_parser = super::amount)]
    seconds: f64,
}

/// Operations of a turn.
pub(super) struct Work {
    pub(super) names: Vec<String>,
    pub(super) value: Vec<u8>,
    is_set: bool,
    pub(super) turn: Duration,
}

impl Work {
    /// Makes the work of a turn, on `keys` keys `prefix:N`.
    pub(super) fn new(args: &TurnArgs, prefix: &str, keys: u64) -> Work {
        Work {
            names: (0..keys).map(|key| format!("{prefix}:{key}")).collect(),
            value: vec![b'v'; args.value],
            is_set: args.set,
            turn: Duration::from_secs_f64(args.seconds),
        }
    }

    pub(super) fn key(&self, request: u64) -> &[u8] {
        // Requests that follow each other use keys that are not neighbours in memory.
        let key = request.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.names.len() as u64;
        self.names[key as usize].as_bytes()
    }

    /// The value that an operation writes; `None` if it reads.
    pub(super) fn written(&self) -> Option<&[u8]> {
        self.is_set.then_some(&*self.value)
    }
}

/// Checks that a key was found: every key of the work was written before.
pub(super) fn is_there(found: Option<Object>) -> Result<(), Error> {
    match found {
        Some(_) => Ok(()),
        None => Err(Error::Refused(
            "a key that was written is absent".to_owned(),
        )),
    }
}

/// The turns of one way.
#[derive(Default)]
pub(super) struct Turns {
    latencies: Latencies,
    /// Operations per second of each turn.
    rates: Vec<f64>,
}

impl Turns {
    /// A turn of the blocking client: each thread has one operation at a time.
    pub(super) fn with_threads(
        &mut self,
        table: &Table,
        work: &Work,
        threads: u32,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let one = |thread: u64| {
            let mut latencies = Latencies::default();
            let (mut last, mut request) = (Instant::now(), thread << 32);
            while last.duration_since(begun) < work.turn {
                let key = work.key(request);
                match work.written() {
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
        let mut of_turn = Latencies::default();
        for latencies in all {
            of_turn.add(&latencies?);
        }
        self.add(&of_turn, begun);
        Ok(())
    }

    /// Adds a turn that has just ended.
    pub(super) fn add(&mut self, latencies: &Latencies, begun: Instant) {
        let seconds = begun.elapsed().as_secs_f64();
        self.rates.push(latencies.count() as f64 / seconds);
        self.latencies.add(latencies);
    }

    /// The median of its turns.
    pub(super) fn rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates[self.rates.len() / 2]
    }

    /// Its figures; `unit` names the operations, and `over` the way that has the given rate.
    pub(super) fn figures(&mut self, way: &str, unit: &str, over: (&str, f64)) -> Value {
        let rate = self.rate();
        json!({
            "way": way,
            (format!("{unit}_per_second")): rate,
            (format!("rate_over_{}", over.0)): rate / over.1,
            "p50_us": self.latencies.at_us(0.50),
            "p99_us": self.latencies.at_us(0.99),
        })
    }
}

/// A figure to print.
pub(super) fn number(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or(f64::NAN)
}
