//! A program's heap on flash [Badam11 §5]: random accesses by object, by page, by a mapped file and
//! by swap; programs; memcached; the cost of the machinery; restarts. A memory cgroup limits RAM,
//! so that the page cache gives no way an advantage.
//!
//! The measured programs are the C programs of `heap/crates/alloc/examples`, built here; each
//! checks that it reads the data that it wrote.

mod array;
mod cache;
mod lru;
mod machinery;
mod memcached;
mod packets;
mod programs;
mod restart;
mod swap;
mod throttled;
mod tool;

use crate::harness::{Options, Report, Result};
use std::path::PathBuf;

/// A program's heap on flash: by objects, by pages, by a mapped file, by swap; programs,
/// restarts (needs root and cc)
#[derive(Clone, Debug, clap::Args)]
pub struct FlashArgs {
    #[command(flatten)]
    pub options: Options,
    /// Parent of flash files and swap: on the device to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The library `libduramen_alloc.a`, with `libduramen_direct.a` beside it; by default the one
    /// beside this program
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// The directory from `heap/crates/alloc/examples/memcached/build`; without it memcached is
    /// left out
    #[arg(long, value_name = "DIR")]
    pub memcached: Option<PathBuf>,
    /// Megabytes of data of the array and the programs [default: 384; 96 with --quick]
    #[arg(long, value_name = "MB")]
    pub data_mb: Option<u64>,
    /// Only these parts, each of which is a report of its own
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Part>,
}

/// Parts of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Figure 3 and Table 5: random reads and writes of 128 bytes
    Array,
    /// The same with 512 bytes, 1 KB and 2 KB, half of them writes
    Sizes,
    /// Table 4: the cost of a page that is in RAM, step by step
    Machinery,
    /// The RAM object cache: S3-FIFO against least recently used
    Cache,
    /// Figure 5(a): a packet cache by direct calls, by objects, by pages and by swap
    Packets,
    /// Figures 5(b) and 6: B+tree, HashCache
    Programs,
    /// Restart from a checkpoint
    Restart,
    /// Figure 4: memcached with its slabs replaced, by size, by instances and by device
    Memcached,
}

const PARTS: [Part; 8] = [
    Part::Array,
    Part::Sizes,
    Part::Machinery,
    Part::Cache,
    Part::Packets,
    Part::Programs,
    Part::Restart,
    Part::Memcached,
];

/// RAM for the programs, in percent of the data.
const RAM_PERCENT: u64 = 8;

/// Runs the wanted parts.
///
/// # Errors
/// No C compiler, no library, no room; a program that failed.
pub fn run(args: &FlashArgs) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    if args.only.is_empty() || args.only.contains(&Part::Cache) {
        reports.push(cache::run(args)?);
    }
    if args.only == [Part::Cache] {
        return Ok(reports); // that needs no program
    }
    let bench = tool::Bench::new(args)?;
    for part in PARTS {
        if !args.only.is_empty() && !args.only.contains(&part) {
            continue;
        }
        let report = match part {
            Part::Array => array::shares(args, &bench)?,
            Part::Sizes => array::sizes(args, &bench)?,
            Part::Machinery => machinery::run(args, &bench)?,
            Part::Packets => packets::run(args, &bench)?,
            Part::Programs => programs::run(args, &bench)?,
            Part::Restart => restart::run(args, &bench)?,
            Part::Cache => continue,
            Part::Memcached => match &args.memcached {
                Some(built) => memcached::run(args, &bench, built)?,
                None => continue,
            },
        };
        reports.push(report);
    }
    Ok(reports)
}
