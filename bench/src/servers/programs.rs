//! The programs of figures that measure Duramen beside redis-server.

use super::{find_duramen, find_program};
use crate::harness::{Doing, Report, Result};
use std::path::PathBuf;

/// Arguments that name the programs.
#[derive(Clone, Debug, clap::Args)]
pub struct ProgramArgs {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    duramen: Option<PathBuf>,
    /// The program `redis-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    redis: Option<PathBuf>,
    /// Parent of the servers' directories: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Reactor threads of each of Duramen's servers: 1 is like for like with redis-server
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// The programs, and the parent of their directories.
pub struct Programs {
    pub duramen: PathBuf,
    /// `None` = not installed.
    pub redis: Option<PathBuf>,
    pub dir: PathBuf,
    pub threads: usize,
}

impl ProgramArgs {
    /// Finds them; notes in the report if redis-server is missing.
    ///
    /// # Errors
    /// There is no Duramen, or no directory.
    pub fn find(&self, report: &mut Report) -> Result<Programs> {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        std::fs::create_dir_all(&dir).doing(format!("making {}", dir.display()))?;
        let redis = self.redis.clone().or_else(|| find_program("redis-server"));
        if redis.is_none() {
            report.note("redis-server: SKIPPED, it is not installed.");
        }
        Ok(Programs {
            duramen: find_duramen(self.duramen.as_deref())?,
            redis,
            dir,
            threads: self.threads,
        })
    }
}
