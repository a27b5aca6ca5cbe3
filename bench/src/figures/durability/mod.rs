//! The costs of acknowledged writes, of reads beside them, of a restart, of a snapshot: Duramen's
//! server beside redis-server with its append-only file, in one run, on one disk.
//!
//! Each row prints its acknowledgement level. The raw figure of the disk (overwrite of preallocated
//! 4 KiB and fdatasync) is measured in the same rounds, in the same directory.

mod disk;
mod reads;
mod restart;
mod snapshot;
mod writes;

use crate::figure::Figure;
use crate::harness::{Doing, Options, Report, Result};
use crate::servers::{self, Duramen, ProgramArgs, Redis, Scratch, Server};
use duramen_base::ids::Level;
use duramen_base::units::MIB;
use std::path::{Path, PathBuf};

/// Durable writes beside redis-server, reads beside them, restart, snapshot
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DurabilityFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Disk mode of Duramen: buffered or direct
    #[arg(long, default_value = "buffered")]
    pub disk_mode: String,
    /// Of restart: only values of these sizes
    #[arg(long, value_delimiter = ',', default_value = "100,1000")]
    pub restart_value_bytes: Vec<usize>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Acknowledged writes per second by connections, pipeline and level
    Writes,
    /// Reads while others write as fast as they can
    Reads,
    /// Time until a restarted server serves again
    Restart,
    /// Write latency and memory while a snapshot is taken
    Snapshot,
}

/// The programs, and Duramen's disk mode.
struct Programs {
    found: servers::Programs,
    disk_mode: String,
}

impl Programs {
    fn scratch(&self) -> Result<Scratch> {
        Scratch::new(&self.found.dir).doing(format!(
            "making a directory in {}",
            self.found.dir.display()
        ))
    }

    /// Starts Duramen; at level `memory` without a directory.
    fn duramen(&self, level: Level, memory_bytes: u64, dir: &Path) -> Result<Server> {
        let how = Duramen {
            program: self.found.duramen.clone(),
            memory: format!("{}mb", memory_bytes / MIB),
            threads: self.found.threads,
            poll: "adaptive",
            dir: (level != Level::Memory).then(|| dir.to_owned()),
            level: level.name(),
            more: if level == Level::Memory {
                Vec::new()
            } else {
                vec!["--disk-mode".to_owned(), self.disk_mode.clone()]
            },
        };
        Server::duramen(&format!("duramen {}", level.name()), &how)
    }

    /// Starts redis-server with an append-only file (`always`, `everysec`) or without (`no`);
    /// `None`: not installed.
    fn redis(&self, append: Redis, dir: &Path) -> Result<Option<Server>> {
        let start = |program: &PathBuf| Server::redis(program, append, dir);
        self.found.redis.as_ref().map(start).transpose()
    }
}

impl Figure for DurabilityFigure {
    const NAME: &'static str = "durability";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &DurabilityFigure, options: &Options) -> Result<Report> {
    let about = "Duramen's server beside Debian's redis-server on loopback and on one disk; 100-byte values and 16-byte keys unless said. \
        `synced` and `appendfsync always` both mean: fdatasync before the reply. `everysec` may lose a second.";
    let mut report = Report::new(
        "durability",
        "Durable writes, reads beside them, restart, snapshot",
        about,
        options,
    );
    let programs = Programs {
        found: args.programs.find(&mut report)?,
        disk_mode: args.disk_mode.clone(),
    };
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Writes) {
        writes::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Reads) {
        reads::run(options, &programs, &mut report)?;
    }
    if wanted(Part::Restart) {
        restart::run(options, &programs, &args.restart_value_bytes, &mut report)?;
    }
    if wanted(Part::Snapshot) {
        snapshot::run(options, &programs, &mut report)?;
    }
    report.note(format!(
        "Duramen with {} reactor thread(s), disk mode {}; the generator has one thread.",
        programs.found.threads, args.disk_mode
    ));
    Ok(report)
}
