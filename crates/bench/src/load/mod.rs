//! A load generator for any server that speaks RESP: `duramen bench load`; the figure `server` uses
//! it too.
//!
//! Each thread drives its share of the connections from one epoll instance. Closed loop: a
//! connection sends its pipeline of requests, waits for all replies, and sends the next. Open loop
//! (`--rate`): pipelines are due at fixed times; they wait if no connection is free, and their
//! latency counts from the due time.

pub mod client;
mod connection;
mod native;
mod requests;
mod worker;

pub use native::Native;
pub use requests::{Access, Command, key, value};

use crate::harness::{Distribution, Doing, Failure, Latencies, Options, Report, Result, Row};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Arguments of `duramen bench load`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    pub options: Options,
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub server: String,
    /// get, set, mget, mset or mixed
    #[arg(long, value_enum, default_value_t = CommandName::Get)]
    pub command: CommandName,
    /// Keys of one MGET or MSET
    #[arg(long, default_value_t = 70)]
    pub multi: usize,
    /// Percent of GET in `mixed`
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub reads: u64,
    #[arg(long, default_value_t = 50)]
    pub connections: usize,
    /// Requests that a connection sends before it waits for their replies
    #[arg(long, default_value_t = 16)]
    pub pipeline: usize,
    /// Number of different keys
    #[arg(long, default_value_t = 1_000_000)]
    pub keys: u64,
    /// Value size in bytes
    #[arg(long, default_value_t = 100)]
    pub value: usize,
    /// Draw keys by YCSB's Zipfian distribution with this exponent instead of uniformly
    #[arg(long, value_name = "EXPONENT")]
    pub zipfian: Option<f64>,
    /// Seconds to run
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Requests per second to offer (open loop); without it, as many as the server answers
    #[arg(long)]
    pub rate: Option<f64>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// End each pipeline with a WAIT for so many replicas
    #[arg(long, value_name = "REPLICAS", default_value_t = 0)]
    pub wait_replicas: u32,
    /// Spin for replies instead of sleeping: shows the server's latency without the generator's
    /// wake-up
    #[arg(long)]
    pub spin: bool,
    /// Write every key once before measuring
    #[arg(long)]
    pub preload: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CommandName {
    Get,
    Set,
    Mget,
    Mset,
    Mixed,
}

/// One run against one server.
#[derive(Clone, Debug)]
pub struct Load {
    pub server: SocketAddr,
    pub command: Command,
    pub access: Access,
    pub keys: u64,
    pub value_bytes: usize,
    pub connections: usize,
    pub pipeline: usize,
    pub threads: usize,
    pub spin: bool,
    /// Each pipeline ends with a `WAIT` for so many replicas, without a time limit; 0 = none.
    pub wait_replicas: u32,
    pub limit: Limit,
    /// Requests per second offered by all connections together; `None` = closed loop.
    pub rate: Option<f64>,
    /// The native protocol instead of RESP; with GET, SET and mixed alone.
    pub native: Option<Native>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Time(Duration),
    /// This many requests, rounded up to whole pipelines of every thread.
    Requests(u64),
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests answered; one MGET is one request.
    pub requests: u64,
    pub errors: u64,
    /// GETs that found nothing.
    pub nulls: u64,
    pub seconds: f64,
    pub latencies: Latencies,
}

impl Outcome {
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

impl Load {
    /// 50 connections, 1 M keys of 100 bytes: the setting of `anchors`, for two seconds.
    pub fn usual(server: SocketAddr, command: Command, pipeline: usize) -> Load {
        Load {
            server,
            command,
            access: Access::Random(Distribution::Uniform),
            keys: 1_000_000,
            value_bytes: 100,
            connections: 50,
            pipeline,
            threads: 1,
            spin: false,
            wait_replicas: 0,
            limit: Limit::Time(Duration::from_secs(2)),
            rate: None,
            native: None,
        }
    }

    /// Writes keys `from..self.keys`, in order, each once.
    pub fn preload(&self, from: u64) -> Result<()> {
        let load = Load {
            command: Command::Set,
            access: Access::Sequential { from },
            connections: 4,
            pipeline: 64,
            threads: 1,
            spin: false,
            wait_replicas: 0,
            limit: Limit::Requests(self.keys.saturating_sub(from)),
            rate: None,
            ..self.clone()
        };
        let outcome = load.run()?;
        match outcome.errors {
            0 => Ok(()),
            errors => Err(Failure::new(
                "loading keys",
                format!("{errors} of {} writes were refused", outcome.requests),
            )),
        }
    }

    /// Runs to the end.
    pub fn run(&self) -> Result<Outcome> {
        self.run_watched(&AtomicU64::new(0))
    }

    /// [`run`](Self::run), counting answered requests in `progress` as it goes.
    pub fn run_watched(&self, progress: &AtomicU64) -> Result<Outcome> {
        if self.native.is_some() && matches!(self.command, Command::Mget(_) | Command::Mset(_)) {
            return Err(Failure::new(
                "offering native load",
                "it has GET, SET and mixed alone",
            ));
        }
        let threads = self.threads.clamp(1, self.connections.max(1));
        let begun = Instant::now();
        let parts = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|n| scope.spawn(move || worker::run(self, n, threads, progress)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        let mut all = Outcome::default();
        for part in parts {
            let part: Outcome = part.expect("a generator thread does not panic")?;
            all.requests += part.requests;
            all.errors += part.errors;
            all.nulls += part.nulls;
            all.seconds = all.seconds.max(part.seconds);
            all.latencies.add(&part.latencies);
        }
        if all.seconds == 0.0 {
            all.seconds = begun.elapsed().as_secs_f64();
        }
        Ok(all)
    }
}

/// The address of `host:port`.
fn resolve(server: &str) -> Result<SocketAddr> {
    let mut found = server
        .to_socket_addrs()
        .doing(format!("resolving `{server}` (give HOST:PORT)"))?;
    found
        .next()
        .ok_or("it has no address")
        .doing(format!("resolving `{server}`"))
}

/// Runs `duramen bench load`.
pub fn run(args: &LoadArgs) -> Result<Report> {
    let about = "Load offered to one server by this program's own generator.";
    let mut report = Report::new("load", "Load on one server", about, &args.options);
    let load = Load {
        server: resolve(&args.server)?,
        command: match args.command {
            CommandName::Get => Command::Get,
            CommandName::Set => Command::Set,
            CommandName::Mget => Command::Mget(args.multi),
            CommandName::Mset => Command::Mset(args.multi),
            CommandName::Mixed => Command::Mixed {
                reads_percent: args.reads,
            },
        },
        access: Access::Random(
            args.zipfian
                .map_or(Distribution::Uniform, Distribution::Zipfian),
        ),
        keys: args.keys,
        value_bytes: args.value,
        connections: args.connections,
        pipeline: args.pipeline,
        threads: args.threads,
        spin: args.spin,
        wait_replicas: args.wait_replicas,
        limit: Limit::Time(Duration::from_secs_f64(args.seconds)),
        rate: args.rate,
        native: None,
    };
    if args.preload {
        load.preload(0)?;
    }
    let outcome = load.run()?;
    let summary = outcome.latencies.summary();
    let row = Row::new()
        .with("command", format!("{:?}", args.command).to_lowercase())
        .with("connections", args.connections)
        .with("pipeline", args.pipeline)
        .with("requests", outcome.requests)
        .with("errors", outcome.errors)
        .with("not found", outcome.nulls)
        .number("requests/s", outcome.requests_per_second(), 4)
        .number("p50 µs", summary.p50_us, 3)
        .number("p99 µs", summary.p99_us, 3)
        .number("p99.9 µs", summary.p99_9_us, 3)
        .number("p99.99 µs", summary.p99_99_us, 3)
        .number("longest µs", summary.max_us, 3);
    report.table("Load", vec![row]);
    report.note(match args.rate {
        Some(rate) => format!(
            "Open loop, {rate:.0} requests/s offered: latency counts from when a request was due."
        ),
        None => "Closed loop: latency counts from sending a pipeline to its last reply.".to_owned(),
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::echo;
    use std::net::{Ipv4Addr, TcpListener};

    /// An echo server on a thread that ends with the test process.
    fn server() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || echo::serve(&listener));
        address
    }

    #[test]
    fn every_request_is_answered_once_whatever_the_shape() {
        let server = server();
        for (connections, pipeline, threads) in [(1, 1, 1), (3, 16, 2), (50, 64, 1)] {
            for command in [
                Command::Get,
                Command::Set,
                Command::Mget(70),
                Command::Mset(75),
            ] {
                let mut load = Load::usual(server, command, pipeline);
                (load.connections, load.threads, load.keys) = (connections, threads, 1000);
                load.limit = Limit::Requests(2000);
                let outcome = load.run().unwrap();
                assert_eq!(
                    outcome.requests, 2000,
                    "{command:?} over {connections} connections"
                );
                assert_eq!(outcome.latencies.count(), 2000);
                assert_eq!((outcome.errors, outcome.nulls), (0, 0));
            }
        }
    }

    #[test]
    fn an_open_loop_offers_its_rate() {
        let mut load = Load::usual(server(), Command::Get, 4);
        (load.connections, load.keys, load.rate) = (8, 1000, Some(2000.0));
        load.limit = Limit::Requests(1000);
        let outcome = load.run().unwrap();
        assert_eq!(outcome.requests, 1000);
        // The last of 1000 requests is due after half a second: a busy machine may end later, none
        // earlier.
        assert!(outcome.seconds > 0.45, "done after {} s", outcome.seconds);
    }

    #[test]
    fn preloading_touches_every_key_once() {
        let mut load = Load::usual(server(), Command::Get, 1);
        load.keys = 1234;
        let progress = AtomicU64::new(0);
        load.preload(0).unwrap();
        let sets = Load {
            command: Command::Set,
            access: Access::Sequential { from: 234 },
            limit: Limit::Requests(u64::MAX),
            ..load
        };
        assert_eq!(sets.run_watched(&progress).unwrap().requests, 1000);
        assert_eq!(progress.into_inner(), 1000);
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        // The system never gives this port to a program that requests a free one.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let error = Load::usual(address, Command::Get, 1)
            .run()
            .unwrap_err()
            .to_string();
        assert!(error.contains(&address.to_string()), "{error}");
    }
}
