//! `duramen bench local`: a native client on the server's machine, over TCP and through shared
//! memory in turn, so that drift of the machine affects both alike.

use crate::cluster::{self, ClusterArgs};
use crate::failure::Failure;
use duramen_client::{Client, Error, Options, Table};
use duramen_load::Latencies;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LocalArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Directory of the server's Unix socket: its setting `native-socket-dir`
    #[arg(long, value_name = "DIR")]
    socket_dir: PathBuf,
    /// The table; its keys `local:N` are written
    #[arg(long, default_value = "db0")]
    table: String,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Value size in bytes
    #[arg(long, default_value_t = 100, value_parser = super::bytes_of_value())]
    value: usize,
    /// Measure SET instead of GET
    #[arg(long)]
    set: bool,
    /// Turns of each way
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each turn
    #[arg(long, default_value_t = 1.0, value_parser = super::amount)]
    seconds: f64,
}

const HELP: &str = "\
One connection with one request at a time. `spins`: the client spins for an answer;
`sleeps`: it sleeps at once. The server spins by its own settings `poll` and `poll-spin-us`.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage.";

/// Longer than any answer: the client never sleeps.
const SPIN: Duration = Duration::from_secs(1);

struct Way {
    name: &'static str,
    client: Client,
    table: Table,
    latencies: Latencies,
    /// Requests per second of each turn.
    rates: Vec<f64>,
}

pub(super) fn run(args: &LocalArgs) -> Result<(), Failure> {
    let mut ways = ways(args)?;
    let value = vec![b'v'; args.value];
    for key in 0..args.keys {
        let written = ways[0].table.set(name(key).as_bytes(), &value);
        written.map_err(|error| unmeasured(&error))?;
    }
    let turn = Duration::from_secs_f64(args.seconds);
    for _ in 0..args.rounds {
        for way in &mut ways {
            way.turn(args.keys, args.set.then_some(&value), turn)?;
        }
    }
    let rate_of_tcp = ways[0].rate();
    for way in &mut ways {
        let figures = way.figures(rate_of_tcp);
        if args.cluster.json {
            println!("{figures}");
        } else {
            let of = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "{:<22} {:>9.0} requests/s ({:.2} x TCP)  p50 {:>6.2} us  p99 {:>7.2} us",
                way.name,
                of("requests_per_second"),
                of("rate_over_tcp"),
                of("p50_us"),
                of("p99_us")
            );
        }
    }
    Ok(())
}

fn ways(args: &LocalArgs) -> Result<Vec<Way>, Failure> {
    let usual = cluster::options(&args.cluster)?;
    let local = |spin| Options {
        socket_dir: Some(args.socket_dir.clone()),
        spin,
        ..usual.clone()
    };
    let all = [
        ("TCP", usual.clone()),
        ("shared memory, spins", local(SPIN)),
        ("shared memory, sleeps", local(Duration::ZERO)),
    ];
    all.into_iter()
        .map(|(name, options)| {
            let client = Client::connect(options).map_err(|error| unmeasured(&error))?;
            let table = client.table(&args.table);
            Ok(Way {
                name,
                table: table.map_err(|error| unmeasured(&error))?,
                client,
                latencies: Latencies::default(),
                rates: Vec::new(),
            })
        })
        .collect()
}

fn name(key: u64) -> String {
    format!("local:{key}")
}

fn unmeasured(error: &Error) -> Failure {
    Failure::Unmeasured(error.to_string())
}

impl Way {
    /// Reads keys, or writes a value to them, for this time.
    fn turn(&mut self, keys: u64, value: Option<&Vec<u8>>, turn: Duration) -> Result<(), Failure> {
        let names: Vec<String> = (0..keys).map(name).collect();
        let begun = Instant::now();
        let (mut last, mut requests) = (begun, 0u64);
        while last.duration_since(begun) < turn {
            // Neighbours in time are no neighbours in memory.
            let key = requests.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
            let key = names[key as usize].as_bytes();
            let is_there = match value {
                Some(value) => self.table.set(key, value).map(|_| true),
                None => self.table.get(key).map(|found| found.is_some()),
            };
            if !is_there.map_err(|error| unmeasured(&error))? {
                let absent = "a key that was written is absent";
                return Err(Failure::Unmeasured(absent.to_owned()));
            }
            let now = Instant::now();
            self.latencies
                .record_ns(now.duration_since(last).as_nanos() as u64);
            last = now;
            requests += 1;
        }
        if let Some(why) = self.client.why_not_local() {
            let why = format!("the server gave no shared memory: {why}");
            return Err(Failure::Unmeasured(why));
        }
        self.rates
            .push(requests as f64 / last.duration_since(begun).as_secs_f64());
        Ok(())
    }

    /// The median of its turns.
    fn rate(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates[self.rates.len() / 2]
    }

    fn figures(&mut self, rate_of_tcp: f64) -> Value {
        let rate = self.rate();
        json!({
            "way": self.name,
            "requests_per_second": rate,
            "rate_over_tcp": rate / rate_of_tcp,
            "p50_us": self.latencies.at_us(0.50),
            "p99_us": self.latencies.at_us(0.99),
        })
    }
}
