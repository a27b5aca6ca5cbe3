//! One module per figure of `docs/benchmarks.md`, and their table.

mod backup_memory;
mod cleaner_latency;
mod cluster;
mod components;
mod device;
mod durability;
mod flash;
mod growth;
mod guards;
mod hits;
mod lfs;
mod loaded;
mod logging;
mod memory;
mod memory_cell;
mod network;
mod postmark;
mod recovery;
mod reorganisation;
mod replay;
mod scale;
mod selection;
mod server;
mod stress;
mod tier;
mod timeline;
mod tls;
mod two_levels;
mod types;
mod utilization;
mod ycsb;
mod ycsb_servers;
mod zones;

use crate::figure::{Entry, Figure, entry};
use crate::harness::{Options, Report, Result, render};
use std::path::PathBuf;

/// All figures, in the order of the help; then helpers of them.
pub static FIGURES: [Entry; 36] = [
    entry::<ycsb::YcsbFigure>(),
    entry::<components::ComponentsFigure>(),
    entry::<postmark::PostmarkFigure>(),
    entry::<utilization::UtilizationFigure>(),
    entry::<cleaner_latency::CleanerLatencyFigure>(),
    entry::<growth::GrowthFigure>(),
    entry::<memory::MemoryFigure>(),
    entry::<stress::StressFigure>(),
    entry::<server::ServerFigure>(),
    entry::<timeline::TimelineFigure>(),
    entry::<loaded::LoadedFigure>(),
    entry::<types::TypesFigure>(),
    entry::<tls::TlsFigure>(),
    entry::<guards::GuardsFigure>(),
    entry::<durability::DurabilityFigure>(),
    entry::<logging::LoggingFigure>(),
    entry::<backup_memory::BackupMemoryFigure>(),
    entry::<two_levels::TwoLevelsFigure>(),
    entry::<lfs::LfsFigure>(),
    entry::<reorganisation::ReorganisationFigure>(),
    entry::<selection::SelectionFigure>(),
    entry::<hits::HitsFigure>(),
    entry::<zones::ZonesFigure>(),
    entry::<hits::CacheWritesFigure>(),
    entry::<replay::ReplayFigure>(),
    entry::<cluster::ClusterFigure>(),
    entry::<ycsb_servers::YcsbServersFigure>(),
    entry::<network::NetworkFigure>(),
    entry::<scale::ScaleFigure>(),
    entry::<recovery::RecoveryFigure>(),
    entry::<tier::TierFigure>(),
    entry::<device::DeviceFigure>(),
    entry::<flash::FlashArgs>(),
    entry::<Render>(),
    entry::<memory_cell::CellArgs>(),
    entry::<EchoServer>(),
];

impl Figure for flash::FlashArgs {
    const NAME: &'static str = "flash";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        let options = options.clone();
        flash::run(&flash::FlashArgs {
            options,
            ..self.clone()
        })
    }
}

/// Puts the JSON reports found in a directory into the marked sections of a document
#[derive(Clone, Debug, clap::Args)]
struct Render {
    /// Directory with the reports and plots
    #[arg(long, default_value = "docs/benchmarks")]
    from: PathBuf,
    /// The document
    #[arg(long, default_value = "docs/benchmarks.md")]
    into: PathBuf,
}

impl Figure for Render {
    const NAME: &'static str = "render";

    fn run(&self, _: &Options) -> Result<Vec<Report>> {
        let figures = render::render_into(&self.into, &self.from)?;
        println!(
            "rendered {} into {}",
            figures.join(", "),
            self.into.display()
        );
        Ok(Vec::new())
    }
}

/// The floor of `server`: a server with no store behind it
#[derive(Clone, Debug, clap::Args)]
#[command(hide = true)]
struct EchoServer;

impl Figure for EchoServer {
    const NAME: &'static str = "echo-server";

    fn run(&self, _: &Options) -> Result<Vec<Report>> {
        duramen_load::echo::run()?;
        Ok(Vec::new())
    }
}
