//! The papers' tables and figures, with peers side by side; `docs/benchmarks.md` shows the results.
//!
//! One file per figure is in `figures`; shared code is in `harness`; the load generator is the
//! crate `duramen-load`.

pub mod figures;
pub mod harness;
pub mod servers;

use clap::Parser;
use harness::{Options, Report, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures Duramen: each figure is one subcommand that prints a table and writes JSON and plots.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct BenchArgs {
    #[command(subcommand)]
    figure: Figure,
}

const HELP: &str = "\
Interrupted (SIGINT, SIGTERM, SIGHUP), it ends the servers that it started and removes their files; a second signal ends it at once.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage, 128 + n ended by signal n.";

#[derive(Clone, Debug, clap::Subcommand)]
enum Figure {
    /// YCSB A, B, C, F and all-update in process, batched and single, beside dashmap (feature
    /// `peers`)
    Ycsb(Options),
    /// Write throughput as live data fill the log: 30 to 95 %, three object sizes, two
    /// distributions
    Utilization(figures::utilization::UtilizationArgs),
    /// Write latency at 90 % utilization and 70 % load, cleaners on and off
    CleanerLatency(Options),
    /// Latency of inserts from empty, and the size of the index on the way
    Growth(Options),
    /// Resident memory per live byte: `W1`-`W8`, `P1`-`P6`, and after deleting 90 %, beside four
    /// allocators
    Memory(figures::memory::MemoryArgs),
    /// One cell of `memory`, in a process of its own
    #[command(hide = true)]
    MemoryCell(figures::memory_cell::CellArgs),
    /// Duramen's server beside redis-server: CPU per request, round trips, idle cost, utilization
    Server(figures::server::ServerArgs),
    /// Durable writes beside redis-server, reads beside them, restart, snapshot
    Durability(figures::durability::DurabilityArgs),
    /// Logging by chunk size, buffered and direct, with and without the write-ahead log's stage
    Logging(figures::logging::LoggingArgs),
    /// Two-level against one-level cleaning on a disk of limited bandwidth
    TwoLevels(figures::two_levels::TwoLevelsArgs),
    /// Entries of another server's log replayed into a side log, by one thread and by two
    Replay(Options),
    /// Clusters beside Redis with replicas: replicated writes
    Cluster(figures::cluster::ClusterArgs),
    /// Large clusters in simulated time: recovery by size, placement, 10,000 servers
    Scale(figures::scale::ScaleArgs),
    /// From kill -9 of a server of a local cluster until the last of its keys is served again
    Recovery(figures::recovery::RecoveryArgs),
    /// Data ten times as large as memory: the flash tier beside memcached's extstore
    Tier(figures::tier::TierArgs),
    /// A program's heap on flash: by objects, by pages, by a mapped file, by swap; programs,
    /// restarts (needs root and cc)
    Flash(figures::flash::FlashArgs),
    /// The floor of `server`: a server with no store behind it
    #[command(hide = true)]
    EchoServer,
    /// Puts the JSON reports found in a directory into the marked sections of a document
    Render {
        /// Directory with the reports and plots
        #[arg(long, default_value = "docs/benchmarks")]
        from: PathBuf,
        /// The document
        #[arg(long, default_value = "docs/benchmarks.md")]
        into: PathBuf,
    },
}

impl BenchArgs {
    /// Runs the figure; errors go to standard error. Exit code 0 = measured, 1 = could not measure,
    /// 128 + n = ended by signal n.
    pub fn run(self) -> ExitCode {
        let result = harness::interrupt::watch().and_then(|()| self.figure.run());
        harness::interrupt::yield_to_signals();
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("error: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}

impl Figure {
    fn run(self) -> Result<()> {
        match self {
            Figure::Ycsb(options) => report(options, figures::ycsb::run),
            Figure::CleanerLatency(options) => report(options, figures::cleaner_latency::run),
            Figure::Growth(options) => report(options, figures::growth::run),
            Figure::Replay(options) => report(options, figures::replay::run),
            Figure::Utilization(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::utilization::run(&args)?)
            }
            Figure::Memory(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::memory::run(&args)?)
            }
            Figure::MemoryCell(args) => args.run(),
            Figure::Server(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::server::run(&args)?)
            }
            Figure::Durability(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::durability::run(&args)?)
            }
            Figure::Logging(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::logging::run(&args)?)
            }
            Figure::TwoLevels(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::two_levels::run(&args)?)
            }
            Figure::Cluster(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::cluster::run(&args)?)
            }
            Figure::Scale(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::scale::run(&args)?)
            }
            Figure::Recovery(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::recovery::run(&args)?)
            }
            Figure::Tier(mut args) => {
                args.options.note_command();
                finish(&args.options, figures::tier::run(&args)?)
            }
            Figure::Flash(mut args) => {
                args.options.note_command();
                let reports = figures::flash::run(&args)?;
                reports
                    .into_iter()
                    .try_for_each(|report| finish(&args.options, report))
            }
            Figure::EchoServer => duramen_load::echo::run(),
            Figure::Render { from, into } => {
                let figures = harness::render::render_into(&into, &from)?;
                println!("rendered {} into {}", figures.join(", "), into.display());
                Ok(())
            }
        }
    }
}

/// Runs a figure, prints its report and saves it.
fn report(mut options: Options, figure: impl FnOnce(&Options) -> Result<Report>) -> Result<()> {
    options.note_command();
    finish(&options, figure(&options)?)
}

fn finish(options: &Options, report: Report) -> Result<()> {
    report.print();
    report.save(&options.out)?;
    println!("\nsaved in {}", options.out.display());
    Ok(())
}

#[derive(Debug, clap::Parser)]
#[command(name = "duramen-bench", version, about)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

/// The program `duramen-bench`; `args` begins with the program's name.
pub fn cli_main(args: Vec<String>) -> ExitCode {
    Cli::parse_from(args).bench.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
