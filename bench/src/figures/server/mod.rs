//! Duramen's server beside redis-server and beside the floor, in one run: processor time per
//! request, round trips, idle cost, throughput against utilization.
//!
//! All servers are processes of their own on loopback. The same generator drives each in turn (A B
//! A B); processor time is that of the server process in the kernel's statistics over the measured
//! run.

mod idle;
mod requests;
mod round_trip;
mod utilization;

use crate::figure::Figure;
use crate::harness::{Options, Report, Result};
use crate::servers::{Duramen, Server, find_duramen, find_program};
use std::path::PathBuf;

/// Duramen's server beside redis-server: CPU per request, round trips, idle cost, utilization
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerFigure {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    pub duramen: Option<PathBuf>,
    /// The program `redis-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub redis: Option<PathBuf>,
    /// Reactor threads of Duramen: 1 is like for like with redis-server
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Processor time per request, 50 connections
    Requests,
    /// The same by redis-benchmark
    RedisBenchmark,
    /// One connection
    RoundTrip,
    /// Idle processor time, 10,000 idle connections, start time
    Idle,
    /// SET throughput against utilization
    Utilization,
}

/// The paths of the programs.
pub(super) struct Programs {
    duramen: PathBuf,
    /// `None` = not installed.
    redis: Option<PathBuf>,
    threads: usize,
}

impl Programs {
    fn find(args: &ServerFigure) -> Result<Programs> {
        Ok(Programs {
            duramen: find_duramen(args.duramen.as_deref())?,
            redis: args.redis.clone().or_else(|| find_program("redis-server")),
            threads: args.threads,
        })
    }

    fn start_duramen(&self, name: &str, memory_bytes: u64, poll: &'static str) -> Result<Server> {
        let memory = format!("{}mb", memory_bytes >> 20);
        let how = Duramen {
            program: self.duramen.clone(),
            memory,
            threads: self.threads,
            poll,
            dir: None,
            level: "memory",
            more: Vec::new(),
        };
        Server::duramen(name, &how)
    }

    /// Duramen (adaptive polling, then none), redis-server if it is installed.
    fn start_all(&self, memory_bytes: u64) -> Result<Vec<Server>> {
        let mut servers = vec![
            self.start_duramen(ADAPTIVE, memory_bytes, "adaptive")?,
            self.start_duramen(OFF, memory_bytes, "off")?,
        ];
        if let Some(redis) = &self.redis {
            servers.push(Server::redis(redis)?);
        }
        Ok(servers)
    }
}

/// Names of the contenders in the tables.
const ADAPTIVE: &str = "duramen";
const OFF: &str = "duramen, poll off";
const REDIS: &str = "redis";
const FLOOR: &str = "floor";

impl Figure for ServerFigure {
    const NAME: &'static str = "server";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ServerFigure, options: &Options) -> Result<Report> {
    let about = "Duramen's server beside Debian's redis-server (no persistence) and beside a one-thread echo server with no store behind \
        it (the floor), on loopback, 100-byte values, 16-byte keys. Server CPU = user and system time of the server's process per \
        request (per key for MGET and MSET).";
    let mut report = Report::new("server", "Server against redis-server", about, options);
    let programs = Programs::find(args)?;
    if programs.redis.is_none() {
        report.note("redis-server: SKIPPED, it is not installed.");
    }
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Requests) {
        requests::run(options, &programs, &mut report)?;
    }
    if wanted(Part::RedisBenchmark) {
        requests::redis_benchmark(options, &programs, &mut report)?;
    }
    if wanted(Part::RoundTrip) {
        round_trip::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Idle) {
        idle::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Utilization) {
        utilization::run(options, &programs, &mut report)?;
    }
    report.note(format!(
        "Duramen with {} reactor thread(s); the generator has one thread.",
        args.threads
    ));
    Ok(report)
}
