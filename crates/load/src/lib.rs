//! A load generator for servers: the command `duramen bench load`, and the figures of `bench/`.
//!
//! Each thread drives its share of the connections from one epoll instance. Closed loop: a
//! connection sends its pipeline of requests, waits for all replies, and sends the next. Open loop
//! (`Load::rate`): pipelines are due at fixed times; they wait if no connection is free, and their
//! latency counts from the due time.

pub mod clock;
mod connection;
pub mod echo;
mod error;
mod keys;
mod latency;
mod native;
mod requests;
mod worker;

pub use duramen_base::random::Random;
pub use error::{Doing, Failure, Result};
pub use keys::{Chooser, Distribution, Zipf, fresh_seed};
pub use latency::{Latencies, Summary};
pub use native::Native;
pub use requests::{Access, Command, key, value};

use duramen_tls::Identity;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

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
    /// TLS instead of plain bytes.
    pub tls: Option<Tls>,
    /// The user of each connection, with RESP.
    pub login: Option<Login>,
    /// The native protocol instead of RESP; with GET, SET and mixed alone.
    pub native: Option<Native>,
}

/// How connections are encrypted.
#[derive(Clone, Debug)]
pub struct Tls {
    pub identity: Arc<Identity>,
    /// Name or address that the server's certificate must have.
    pub host: String,
}

/// The user that connections log in as.
#[derive(Clone)]
pub struct Login {
    /// None: the server's default user.
    pub user: Option<String>,
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Login");
        shown.field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// The request.
    fn words(&self) -> Vec<&str> {
        let user = self.user.as_deref();
        let words = std::iter::once("AUTH").chain(user);
        words.chain(std::iter::once(&*self.password)).collect()
    }
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
    /// Latencies of pipelines without a write; they are part of `latencies`.
    pub read_latencies: Latencies,
    /// Latencies of pipelines of writes alone; they are part of `latencies`.
    pub write_latencies: Latencies,
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
            tls: None,
            login: None,
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
        if self.native.is_some()
            && matches!(
                self.command,
                Command::Mget(_) | Command::Mset(_) | Command::Words(_)
            )
        {
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
            all.read_latencies.add(&part.read_latencies);
            all.write_latencies.add(&part.write_latencies);
        }
        if all.seconds == 0.0 {
            all.seconds = begun.elapsed().as_secs_f64();
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn latencies_of_reads_and_of_writes_are_apart() {
        let mixed = Command::Mixed { reads_percent: 75 };
        let mut load = Load::usual(server(), mixed, 1);
        (load.connections, load.keys) = (4, 1000);
        load.limit = Limit::Requests(2000);
        let outcome = load.run().unwrap();
        let (reads, writes) = (&outcome.read_latencies, &outcome.write_latencies);
        assert_eq!(reads.count() + writes.count(), 2000);
        assert!(reads.count() > 2 * writes.count() && writes.count() > 300);
        load.pipeline = 64;
        let outcome = load.run().unwrap();
        let apart = outcome.read_latencies.count() + outcome.write_latencies.count();
        assert!(
            apart < outcome.requests,
            "a pipeline of both kinds is neither"
        );
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

    /// The due time of each late pipeline was kept, and no reply was read while pipelines were
    /// due: a rate that no machine has took all memory, and the run never ended.
    #[test]
    fn a_rate_that_cannot_be_kept_ends_in_time() {
        let mut load = Load::usual(server(), Command::Get, 4);
        (load.connections, load.keys, load.rate) = (8, 1000, Some(1e9));
        load.limit = Limit::Time(Duration::from_millis(200));
        let outcome = load.run().unwrap();
        assert!(outcome.requests > 0);
        assert_eq!(outcome.latencies.count(), outcome.requests);
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
