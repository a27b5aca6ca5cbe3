//! Large clusters in simulated time: the duration of a recovery, and the load of the coordinator.
//!
//! The coordinator and the placement of replicas are the shipped code; the costs of a core's work
//! are measured with the shipped code at the beginning of the run. Servers are queues for their
//! cores, disk and network. The report lists the parameters that are not those of this machine.
//!
//! Paper: [Ousterhout15 §7.11, Figures 16 and 17].

mod cluster;
mod costs;
mod machine;
mod placement;
mod recovery;
mod steady;

use crate::figure::Figure;
use crate::harness::{Bound, Options, Report, Result, Row, progress};
use cluster::{Cluster, Plan};
use duramen_base::units::{GIB, MIB};
use machine::{MICROSECOND, Machine, SECOND};
use std::path::PathBuf;

/// Large clusters in simulated time: recovery by size, placement, 10,000 servers
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ScaleFigure {
    /// Directory in which the costs of a disk are measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Cores of each simulated server
    #[arg(long, default_value_t = 4)]
    pub cores: usize,
    /// Sequential reads of each server's disk, in MB/s (here: 1300 to 1500)
    #[arg(long, default_value_t = 1400.0)]
    pub disk_read: f64,
    /// Sequential writes of each server's disk, in MB/s (here: 1400 to 2200)
    #[arg(long, default_value_t = 1800.0)]
    pub disk_write: f64,
    /// Network of each server, each way, in MB/s
    #[arg(long, default_value_t = 3000.0)]
    pub network: f64,
    /// Servers of the largest cluster
    #[arg(long, default_value_t = 10_000)]
    pub servers: usize,
}

const MB: f64 = 1e6;
/// Data of each server, in Figure 16.
const NODE_BYTES: u64 = 500 * 1_000_000;

impl Figure for ScaleFigure {
    const NAME: &'static str = "scale";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &ScaleFigure, options: &Options) -> Result<Report> {
    let about = "Simulated time. The coordinator and the placement of replicas are the shipped code; replaying, dividing and keeping segments and \
        sockets cost what they cost a core of this machine, measured at the beginning of the run. Disks and network are parameters. \
        Recovered data are synced on three disks before they are served.";
    let mut report = Report::new("scale", "Large clusters, simulated", about, options);
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let costs = costs::measure(options, &dir)?;
    let machine = Machine {
        cores: args.cores,
        disk_read: args.disk_read * MB,
        disk_write: args.disk_write * MB,
        network: args.network * MB,
        latency: 40 * MICROSECOND,
        sync: 150 * MICROSECOND,
        costs,
    };
    report.table("Costs of a core, MB/s", vec![cost_row(&machine)]);
    sizes(options, machine, &mut report)?;
    placement::run(options, &mut report);
    largest(args, options, machine, &mut report)?;
    report.note(format!(
        "Each simulated server: {} cores, disk {} MB/s read and {} MB/s written (the middle of what was measured on this kind of machine), network {} MB/s each way \
         (about 25 Gbit/s), 40 µs from a send to whom it wakes, 150 µs for a sync.",
        args.cores, args.disk_read, args.disk_write, args.network
    ));
    Ok(report)
}

fn cost_row(machine: &Machine) -> Row {
    let costs = machine.costs;
    Row::new()
        .number("replay (1 KB)", costs.replay / MB, 3)
        .number("divide a segment", costs.divide / MB, 3)
        .number("keep a segment", costs.keep / MB, 3)
        .number("send", costs.send / MB, 3)
        .number("receive", costs.receive / MB, 3)
}

/// Figure 16: N servers recover N times 500 MB.
fn sizes(options: &Options, machine: Machine, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    let mut seconds = Vec::new();
    let counts: &[usize] = if options.quick {
        &[6, 80]
    } else {
        &[6, 10, 20, 40, 60, 80]
    };
    for &count in counts {
        let plan = Plan {
            servers: count + 1,
            dead_bytes: count as u64 * NODE_BYTES,
            // A partition for each server, and not one more because the log is a little longer than
            // the data.
            partition_bytes: NODE_BYTES + NODE_BYTES / 20,
            replicas: 3,
            seed: count as u64,
        };
        let outcome = Cluster::recover(machine, &plan)?;
        let took = outcome.took as f64 / SECOND as f64;
        progress!(
            "{count} servers, {:.1} GB: {took:.2} s",
            plan.dead_bytes as f64 / 1e9
        );
        seconds.push((count, took));
        rows.push(
            Row::new()
                .with("servers", count)
                .number("GB", plan.dead_bytes as f64 / 1e9, 3)
                .number("recovered after s", took, 3)
                .number("slowest / mean disk", outcome.disk_spread, 3)
                .number("coordinator, ms of a core", outcome.coordinator_ms, 3),
        );
    }
    report.table("Recovery by size of the cluster (Figure 16)", rows);
    let of = |wanted: usize| {
        let found = seconds.iter().find(|(count, _)| *count == wanted);
        found.map_or(f64::NAN, |(_, took)| *took)
    };
    report.target(
        "80 servers recover 40 GB, seconds ≤ 1.9",
        of(80),
        Bound::AtMost(1.9),
    );
    report.target(
        "80 servers / 6 servers ≤ 1.12",
        of(80) / of(6),
        Bound::AtMost(1.12),
    );
    Ok(())
}

/// The largest cluster: 1 PB in all.
fn largest(
    args: &ScaleFigure,
    options: &Options,
    machine: Machine,
    report: &mut Report,
) -> Result<()> {
    let servers = if options.quick {
        args.servers.min(1000)
    } else {
        args.servers
    };
    let dead_bytes = 100 * GIB;
    let plan = Plan {
        servers,
        dead_bytes,
        partition_bytes: 512 * MIB,
        replicas: 3,
        seed: 1,
    };
    let outcome = Cluster::recover(machine, &plan)?;
    let took = outcome.took as f64 / SECOND as f64;
    let steady = steady::load(servers)?;
    progress!(
        "{servers} servers: {took:.2} s, coordinator {:.3} of a core",
        steady.busy
    );
    let row = Row::new()
        .with("servers", servers)
        .number("TB in all", servers as f64 * dead_bytes as f64 / 1e12, 4)
        .number("GB of the dead server", dead_bytes as f64 / 1e9, 3)
        .number("recovered after s", took, 3)
        .number("noticed after ms, mean", outcome.noticed_ms, 3)
        .number(
            "coordinator in a recovery, ms of a core",
            outcome.coordinator_ms,
            3,
        )
        .number("coordinator else, part of a core", steady.busy, 3)
        .number("the same meanwhile", steady.busy_meanwhile, 3)
        .number("its messages/s", steady.messages_per_second, 3);
    report.table("The largest cluster", vec![row]);
    report.target(
        format!("coordinator of {servers} servers, part of a core ≤ 0.2"),
        steady.busy,
        Bound::AtMost(0.2),
    );
    report.target(
        format!("coordinator while a server of {servers} is recovered, part of a core ≤ 0.2"),
        steady.busy_meanwhile + outcome.coordinator_ms / 1e3 / took,
        Bound::AtMost(0.2),
    );
    Ok(())
}
