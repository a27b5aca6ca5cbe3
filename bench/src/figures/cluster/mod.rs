//! The costs and the gains of a cluster: replicated writes beside Redis with replicas, reads beside
//! a single server.
//!
//! All processes of a run, those of peers too, share one machine and one disk. Each row prints how
//! many copies are durable, and how, when a write is acknowledged.

mod alarms;
mod migration;
mod reads;
mod sizes;
mod writes;

use crate::figure::Figure;
use crate::harness::{Contender, Failure, Latencies, Options, Report, Result, alternate, progress};
use crate::servers::ProgramArgs;
use duramen_load::{Limit, Load, Summary};
use std::cell::RefCell;
use std::time::Duration;

/// Clusters beside Redis with replicas: replicated writes
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClusterFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
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
    /// Latency of one client by size of objects, with three replicas; a report of its own
    Sizes,
    /// Reads per second of one member, natively and by RESP
    Reads,
    /// Latency of requests while a tablet moves to another server
    Migration,
    /// Whether a living server is declared crashed under full load
    Alarms,
}

impl Figure for ClusterFigure {
    const NAME: &'static str = "cluster";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        let mut reports = Vec::new();
        if self.only != [Part::Sizes] {
            reports.push(report(self, options)?);
        }
        if self.wants(Part::Sizes) {
            reports.push(sizes::report(self, options)?);
        }
        Ok(reports)
    }
}

impl ClusterFigure {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

fn report(args: &ClusterFigure, options: &Options) -> Result<Report> {
    let about = "Clusters on loopback, all processes on one machine and one disk; 100-byte values and 16-byte keys unless said.";
    let mut report = Report::new("cluster", "Clusters", about, options);
    let programs = args.programs.find(&mut report)?;
    if args.wants(Part::Writes) {
        writes::run(options, &programs, &mut report)?;
    }
    if args.wants(Part::Reads) {
        reads::run(options, &programs, &mut report)?;
    }
    if args.wants(Part::Migration) {
        migration::run(options, &programs, &mut report)?;
    }
    if args.wants(Part::Alarms) {
        alarms::run(options, args.minutes, &programs, &mut report)?;
    }
    Ok(report)
}

/// Offers the load of each side in turn, with so many connections and requests that each sends
/// before it waits; returns each side's rate and latencies.
fn measure(
    options: &Options,
    sides: &[(&'static str, Load)],
    (connections, pipeline): (usize, usize),
) -> Result<Vec<(f64, Summary)>> {
    let window = Duration::from_millis(options.size(1500, 400));
    let all: Vec<RefCell<Latencies>> = sides.iter().map(|_| RefCell::default()).collect();
    let mut contenders: Vec<_> = sides
        .iter()
        .zip(&all)
        .map(|((name, load), latencies)| {
            Contender::new(*name, move || {
                let load = Load {
                    connections,
                    pipeline,
                    limit: Limit::Time(window),
                    ..load.clone()
                };
                let outcome = load.run()?;
                if outcome.errors + outcome.nulls > 0 {
                    return Err(Failure::new(
                        format!("asking {name}"),
                        format!("{} errors, {} not found", outcome.errors, outcome.nulls),
                    ));
                }
                latencies.borrow_mut().add(&outcome.latencies);
                Ok(outcome.requests_per_second())
            })
        })
        .collect();
    let rates = alternate(options.rounds(), &mut contenders)?;
    drop(contenders);
    for ((name, _), rate) in sides.iter().zip(&rates) {
        progress!("{connections} x {pipeline}: {name}: {rate:.0} requests/s");
    }
    let latencies = all.iter().map(|latencies| latencies.borrow().summary());
    Ok(rates.into_iter().zip(latencies).collect())
}
