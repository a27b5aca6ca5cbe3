//! The costs and the gains of a cluster: replicated writes beside Redis with replicas, reads beside
//! a single server.
//!
//! All processes of a run, those of peers too, share one machine and one disk. Each row prints how
//! many copies are durable, and how, when a write is acknowledged.

mod alarms;
mod migration;
mod reads;
mod writes;

use crate::figure::Figure;
use crate::harness::{Doing, Options, Report, Result};
use crate::servers::{find_duramen, find_program};
use std::path::PathBuf;

/// Clusters beside Redis with replicas: replicated writes
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClusterFigure {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    pub duramen: Option<PathBuf>,
    /// The program `redis-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub redis: Option<PathBuf>,
    /// Parent of the data directories: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Reactor threads of each of Duramen's servers: 1 is like for like with redis-server
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Minutes of the watch for false alarms [default: 10; with --quick a quarter]
    #[arg(long, value_name = "N")]
    pub minutes: Option<f64>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Acknowledged writes per second with three replicas
    Writes,
    /// Reads per second of one member, natively and by RESP
    Reads,
    /// Latency of requests while a tablet moves to another server
    Migration,
    /// Whether a living server is declared crashed under full load
    Alarms,
}

/// The programs, and the parent of their data directories.
struct Programs {
    duramen: PathBuf,
    /// `None` = not installed.
    redis: Option<PathBuf>,
    dir: PathBuf,
    threads: usize,
}

impl Figure for ClusterFigure {
    const NAME: &'static str = "cluster";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ClusterFigure, options: &Options) -> Result<Report> {
    let about = "Clusters on loopback, all processes on one machine and one disk; 100-byte values and 16-byte keys unless said.";
    let mut report = Report::new("cluster", "Clusters", about, options);
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&dir).doing(format!("making {}", dir.display()))?;
    let programs = Programs {
        duramen: find_duramen(args.duramen.as_deref())?,
        redis: args.redis.clone().or_else(|| find_program("redis-server")),
        dir,
        threads: args.threads,
    };
    if programs.redis.is_none() {
        report.note("redis-server: SKIPPED, it is not installed.");
    }
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Writes) {
        writes::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Reads) {
        reads::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Migration) {
        migration::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Alarms) {
        alarms::run(options, args.minutes, &programs, &mut report)?;
    }
    Ok(report)
}
