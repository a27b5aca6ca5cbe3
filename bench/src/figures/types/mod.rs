//! Commands of collections, scripts, transactions and messages, beside redis-server and Valkey.
//!
//! All servers are processes of their own, in memory, on loopback. Each part drives them in turn.

mod collections;
mod messages;

use crate::figure::Figure;
use crate::harness::{Bound, Failure, Options, Report, Result, machine};
use crate::servers::{Duramen, ProgramArgs, Programs, Redis, Scratch, Server, find_program};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Collections, scripts, transactions and messages beside redis-server and Valkey: CPU per request
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TypesFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// The program `valkey-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub valkey: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Processor time per command at 16 requests in flight
    Commands,
    /// A rate limiter's script, on two threads
    Scripts,
    /// EXEC of five commands
    Transactions,
    /// PUBLISH to many subscribers
    Publish,
    /// Two clients that wake each other by BLPOP
    Blocking,
    /// Memory of a small hash
    Memory,
}

/// Numbers of a run.
struct Sizes {
    keys: u64,
    window: Duration,
    rounds: usize,
    subscribers: usize,
    publications: usize,
    round_trips: usize,
    hashes: u64,
}

impl Figure for TypesFigure {
    const NAME: &'static str = "types";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &TypesFigure, options: &Options) -> Result<Report> {
    let about = "Servers in memory, clients over loopback on the same machine. Server CPU: user and system time of the server's process per request. Collections have one to \
        three members; scripts, transactions and messages are described at their tables.";
    let mut report = Report::new("types", "Types", about, options);
    let programs = args.programs.find(&mut report)?;
    machine::raise_file_limit()?;
    let sizes = Sizes {
        keys: options.size(1_000_000, 100_000),
        window: Duration::from_millis(options.size(2000, 600)),
        rounds: options.rounds(),
        subscribers: options.size(1000, 1000),
        publications: options.size(1000, 200),
        round_trips: options.size(20_000, 4000),
        hashes: 1_000_000,
    };
    let scratch = Scratch::new(&programs.dir);
    let scratch = scratch.map_err(|error| Failure::new("making a directory", error))?;
    let start = |threads, poll| servers(args, &programs, (threads, poll), scratch.path());
    let has = |part| args.only.is_empty() || args.only.contains(&part);
    // Polling between requests would count as processor time of requests.
    let all = start(programs.threads, "off")?;
    if has(Part::Commands) {
        collections::commands(&all, &sizes, &mut report)?;
    }
    if has(Part::Transactions) {
        collections::transactions(&all, &sizes, &mut report)?;
    }
    if has(Part::Publish) {
        messages::publish(&all, &sizes, &mut report)?;
    }
    drop(all);
    if has(Part::Blocking) {
        let all = start(programs.threads, "adaptive")?;
        messages::ping_pong(&all, &sizes, &mut report)?;
    }
    if has(Part::Scripts) {
        collections::scripts(&start(2, "off")?, &sizes, &mut report)?;
    }
    if has(Part::Memory) {
        let all = start(programs.threads, "off")?;
        collections::memory(&all, &sizes, &mut report)?;
    }
    report.note(format!(
        "Duramen with {} reactor thread(s) that sleep when nothing is to be done, with BLPOP also its default polling; the others with one.",
        programs.threads
    ));
    Ok(report)
}

/// Duramen first, then the others that there are.
fn servers(
    args: &TypesFigure,
    programs: &Programs,
    (threads, poll): (usize, &'static str),
    dir: &Path,
) -> Result<Vec<Server>> {
    let how = Duramen {
        program: programs.duramen.clone(),
        memory: "2gb".to_owned(),
        threads,
        poll,
        dir: None,
        level: "memory",
        more: Vec::new(),
    };
    let mut all = vec![Server::duramen("duramen", &how)?];
    let valkey = args.valkey.clone();
    let valkey = valkey.or_else(|| find_program("valkey-server"));
    for (name, program) in [("redis", &programs.redis), ("valkey", &valkey)] {
        if let Some(program) = program {
            all.push(Server::redis_with(name, program, Redis::No, dir, &[])?);
        }
    }
    Ok(all)
}

/// Adds the ratios of the others to Duramen as targets; the first is Duramen's.
fn targets(report: &mut Report, what: &str, servers: &[Server], ratios: &[f64], least: f64) {
    for (server, ratio) in servers.iter().zip(ratios).skip(1) {
        let text = format!("{what}, beside {}: ≥ {least}", server.name);
        report.target(text, *ratio, Bound::AtLeast(least));
    }
}
