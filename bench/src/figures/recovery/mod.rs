//! Time without a crashed server's data: from `kill -9` to the last of its keys, with the
//! detection.

mod probe;
mod watch;

use crate::figure::Figure;
use crate::harness::machine::{cpu_ns, touch_free_memory};
use crate::harness::{Bound, Doing, Failure, Options, Report, Result, Row, median, progress};
use crate::servers::client;
use crate::servers::{Cluster, Up, find_duramen};
use duramen_base::units::MIB;
use duramen_load::{Command, Load};
use duramen_wire::resp::Reply;
use std::path::PathBuf;
use std::time::Instant;
use watch::{Phases, Watch};

/// Value sizes in bytes, and the target of each.
const SIZES: [(usize, &str); 2] = [
    (100, "s from kill -9 to the last key, 100 B ≤ 3"),
    (1000, "s from kill -9 to the last key, 1 KB ≤ 3"),
];
const KEY_BYTES: u64 = 16;
/// The target in seconds.
const LIMIT: f64 = 3.0;

/// From kill -9 of a server of a local cluster until the last of its keys is served again
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RecoveryFigure {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    pub duramen: Option<PathBuf>,
    /// Parent of the data directories: on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Servers, the one that is killed included
    #[arg(long, default_value_t = 5)]
    pub servers: usize,
    /// Replicas of everything
    #[arg(long, default_value_t = 2)]
    pub replicas: usize,
    /// Acknowledgement level of writes while data is loaded
    #[arg(long, default_value_t, value_enum)]
    pub level: Level,
    /// MB of keys and values on the server that is killed
    #[arg(long, default_value_t = 1000)]
    pub megabytes: u64,
    /// Only this value size
    #[arg(long)]
    pub value: Option<usize>,
    /// More arguments for `duramen up`
    #[arg(long = "up", value_name = "WORD", allow_hyphen_values = true)]
    pub more: Vec<String>,
}

/// Acknowledgement level of writes.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum Level {
    #[default]
    Buffered,
    Synced,
}

/// The result of one run; times in seconds since the kill.
struct Found {
    keys: u64,
    phases: Phases,
    first: f64,
    last: f64,
    /// Processor time of the living servers, from the kill to the last key.
    cpu: f64,
}

impl Figure for RecoveryFigure {
    const NAME: &'static str = "recovery";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &RecoveryFigure, options: &Options) -> Result<Report> {
    let about = format!(
        "{} servers and a coordinator on loopback, {} replicas, one machine and one disk for all. One server has all the data; it \
         is killed; keys spread over all its partitions are read by a Redis client that follows MOVED until each has its value again.",
        args.servers, args.replicas
    );
    let mut report = Report::new("recovery", "Recovery of a crashed server", &about, options);
    let program = find_duramen(args.duramen.as_deref())?;
    let rounds = options.rounds.unwrap_or(1);
    let mut rows = Vec::new();
    for (value_bytes, target) in SIZES {
        if args.value.is_some_and(|only| only != value_bytes) {
            continue;
        }
        let mut lasts = Vec::new();
        for _ in 0..rounds {
            let found = measure(args, options, &program, value_bytes)?;
            lasts.push(found.last);
            rows.push(row(value_bytes, &found));
        }
        report.target(target.to_owned(), median(&lasts), Bound::AtMost(LIMIT));
    }
    report.table("From the kill on", rows);
    report.note("Phases are those that the coordinator tells: detect = until it is called crashed; fence, collect = until its backups have said what they have; replay = until all partitions are done, and durable; switch = until their owners are stored. Cores used: processor time of the servers that live, from the kill to the last key, by that time; 'of a core' is what is replayed (read, divided, sent, replayed and written again to all replicas) by it.");
    Ok(report)
}

fn row(value_bytes: usize, found: &Found) -> Row {
    let Phases {
        detected,
        fenced,
        replayed,
        done,
        partitions,
        bytes,
        entries,
    } = found.phases;
    let replaying = (replayed - fenced).max(1e-3);
    let cores = (found.cpu / found.last).max(1e-3);
    let (megabytes, entries) = (bytes as f64 / 1e6, entries as f64 / 1e6);
    Row::new()
        .with("value bytes", value_bytes)
        .with("keys", found.keys)
        .with("partitions", partitions)
        .number("detect s", detected, 3)
        .number("fence, collect s", fenced - detected, 3)
        .number("replay s", replayed - fenced, 3)
        .number("switch s", done - replayed, 3)
        .number("first key s", found.first, 3)
        .number("last key s", found.last, 3)
        .number("cores used", cores, 3)
        .number("replay MB/s", megabytes / replaying, 3)
        .number("of a core", megabytes / replaying / cores, 3)
        .number("replay M entries/s", entries / replaying, 3)
        .number("M of a core", entries / replaying / cores, 3)
}

/// Processor time of these, in seconds.
fn cpu_s(pids: &[u32]) -> Result<f64> {
    let spent: Result<Vec<u64>> = pids.iter().map(|pid| cpu_ns(*pid)).collect();
    Ok(spent?.into_iter().sum::<u64>() as f64 / 1e9)
}

fn measure(
    args: &RecoveryFigure,
    options: &Options,
    program: &std::path::Path,
    value_bytes: usize,
) -> Result<Found> {
    let megabytes = options.size(args.megabytes, args.megabytes.min(64));
    let object = KEY_BYTES + value_bytes as u64;
    let keys = megabytes * 1_000_000 / object;
    // Header and rounding per entry, index, and room for the cleaner.
    let memory = (keys * (object + 48) * 5 / 4 + 256 * MIB).max(512 * MIB);
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&dir).doing(format!("making {}", dir.display()))?;
    let up = Up {
        program: program.to_owned(),
        servers: args.servers,
        replicas: args.replicas,
        spread: 1,
        memory: memory.to_string(),
        threads: 1,
        level: match args.level {
            Level::Buffered => "buffered",
            Level::Synced => "synced",
        },
        more: args.more.clone(),
    };
    progress!("{value_bytes} B: starting {} servers", args.servers);
    let cluster = Cluster::start(&up, &dir)?;
    let owner = cluster.owner(&duramen_load::key(0))?;
    let address = cluster.resp[owner];
    let begun = Instant::now();
    let load = Load {
        keys,
        value_bytes,
        ..Load::usual(address, Command::Set, 64)
    };
    load.preload(0)?;
    progress!(
        "{value_bytes} B: {keys} keys in {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let survivors: Vec<_> = cluster
        .resp
        .iter()
        .copied()
        .filter(|at| *at != address)
        .collect();
    let probe = probe::Probe::new(&survivors, keys, value_bytes)?;
    let watch = Watch::begin(&cluster.coordinator)?;
    let living = cluster.pids.iter().copied();
    let living: Vec<u32> = living.filter(|pid| *pid != cluster.pids[owner]).collect();
    touch_free_memory(2 * keys * object);
    let before = cpu_s(&living)?;
    let killed = Instant::now();
    kill(cluster.pids[owner])?;
    let (first, last) = probe.run(killed)?;
    let cpu = cpu_s(&living)? - before;
    let phases = watch.end(killed)?;
    progress!("{value_bytes} B: last key after {last:.3} s; {phases:?}");
    count(&survivors, keys)?;
    Ok(Found {
        keys,
        phases,
        first,
        last,
        cpu,
    })
}

/// kill -9.
fn kill(pid: u32) -> Result<()> {
    let doing = "killing a server";
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or("it has no process").doing(doing)?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).doing(doing)
}

/// Checks that all keys exist.
fn count(survivors: &[std::net::SocketAddr], keys: u64) -> Result<()> {
    let mut found = 0;
    for address in survivors {
        if let Reply::Integer(n) = client::ask(*address, &["DBSIZE"])? {
            found += u64::try_from(n).unwrap_or(0);
        }
    }
    match found == keys {
        true => Ok(()),
        false => Err(Failure::new(
            "counting keys after the recovery",
            format!("{found} of {keys} are there"),
        )),
    }
}
