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
use crate::servers::{Duramen, ProgramArgs, Programs, Redis, Server};

/// Duramen's server beside redis-server: CPU per request, round trips, idle cost, utilization
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServerFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
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

fn start_duramen(
    programs: &Programs,
    name: &str,
    memory_bytes: u64,
    poll: &'static str,
) -> Result<Server> {
    let memory = format!("{}mb", memory_bytes >> 20);
    let how = Duramen {
        program: programs.duramen.clone(),
        memory,
        threads: programs.threads,
        poll,
        dir: None,
        level: "memory",
        more: Vec::new(),
    };
    Server::duramen(name, &how)
}

/// Duramen (adaptive polling, then none), redis-server if it is installed.
fn start_all(programs: &Programs, memory_bytes: u64) -> Result<Vec<Server>> {
    let mut servers = vec![
        start_duramen(programs, ADAPTIVE, memory_bytes, "adaptive")?,
        start_duramen(programs, OFF, memory_bytes, "off")?,
    ];
    if let Some(redis) = &programs.redis {
        servers.push(Server::redis(redis, Redis::No, &programs.dir)?);
    }
    Ok(servers)
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
    let programs = args.programs.find(&mut report)?;
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
        programs.threads
    ));
    Ok(report)
}
