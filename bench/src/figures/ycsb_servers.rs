//! YCSB over RESP on replicated servers, at fixed utilizations of memory, beside Redis and Valkey
//! with replicas. Rumble14 §8.7, Figure 12; Ousterhout15 Figure 18.
//!
//! Differs from YCSB: a read-modify-write of F is a GET and a SET of two keys of the same
//! distribution. E is left out, as in the papers: there is no scan by key.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Contender, Distribution, Doing, Failure, Options, Report, Result, Row, alternate,
    progress,
};
use crate::servers::client::{ask, info_number};
use crate::servers::{Cluster, ProgramArgs, Programs, Redis, RedisGroup, Up, find_program};
use duramen_load::{Access, Command, Limit, Load};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// YCSB's objects, exponent, and the clients of the papers.
const VALUE_BYTES: usize = 1000;
const ZIPF: f64 = 0.99;
const CLIENTS: usize = 24;
/// Copies of each object, as in the papers.
const COPIES: usize = 3;
/// Bytes of memory for an object beside its value, until it is measured.
const BESIDE_BYTES: usize = 48;
/// Objects that a server may lack of the wanted utilization.
const NEAR: f64 = 32.0;
/// A run of D has one request for so many objects, so that its inserts hardly change the
/// utilization: they add 0.5 % of the objects.
const OBJECTS_PER_REQUEST_OF_D: u64 = 10;

/// A workload of YCSB: its requests, and how many of them are an operation.
struct Mix {
    name: &'static str,
    reads_percent: u64,
    requests_per_operation: f64,
    /// Writes add objects, and reads prefer the newest ones.
    inserts: bool,
}

const fn mix(name: &'static str, reads_percent: u64) -> Mix {
    Mix {
        name,
        reads_percent,
        requests_per_operation: 1.0,
        inserts: false,
    }
}

/// D is the last, because it adds objects.
const MIXES: [Mix; 5] = [
    mix("A, half updates", 50),
    mix("B, 5 % updates", 95),
    mix("C, reads", 100),
    // Of two operations one is a read, and one a read and a write.
    Mix {
        requests_per_operation: 1.5,
        ..mix("F, half read-modify-writes", 67)
    },
    Mix {
        inserts: true,
        ..mix("D, 5 % inserts, the latest are read", 95)
    },
];

/// YCSB A to D and F on replicated servers at 75 and 90 % of memory, beside Redis and Valkey
#[derive(Clone, Debug, clap::Args)]
pub(super) struct YcsbServersFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// The program `valkey-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub valkey: Option<PathBuf>,
    /// Utilizations of memory, in percent
    #[arg(long, value_delimiter = ',', default_value = "75,90")]
    pub percent: Vec<u64>,
    /// Megabytes of memory of a server; fewer than 256 are too few segments to clean at 90 %
    #[arg(long, value_name = "MB", default_value_t = 512)]
    pub memory: u64,
    /// Milliseconds of a measurement [default: 3000; 600 with --quick]
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u64>,
}

impl Figure for YcsbServersFigure {
    const NAME: &'static str = "ycsb-servers";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// A group of servers with the objects.
struct Side {
    name: String,
    address: SocketAddr,
    /// Objects of the workload.
    keys: u64,
    /// Keys that the server counts at the beginning.
    counted: u64,
    _cluster: Option<Cluster>,
    _redis: Option<RedisGroup>,
}

impl Side {
    /// Objects of the workload now, with those that D added.
    fn keys_now(&self) -> Result<u64> {
        Ok(self.keys + count(self.address)? - self.counted)
    }
}

fn count(address: SocketAddr) -> Result<u64> {
    let reply = ask(address, &["DBSIZE"])?;
    let count = reply.as_integer().and_then(|count| count.try_into().ok());
    count.ok_or("it is no number").doing("counting the keys")
}

fn report(args: &YcsbServersFigure, options: &Options) -> Result<Report> {
    let about = "24 connections over loopback, one request in flight on each, 1,000-byte values, Zipfian keys (exponent 0.99), two thirds of F's requests GETs. \
        Duramen: four members, the objects on one of them, its log on the three others; a write is acknowledged when all three have written it to their file systems \
        (`buffered`). Redis and Valkey: a master with an append-only file synced every second, and two replicas; it acknowledges before these have the write. All \
        processes share the machine. `objects` at the beginning.";
    let mut report = Report::new("ycsb-servers", "YCSB on servers", about, options);
    report.level = "buffered".to_owned();
    let programs = args.programs.find(&mut report)?;
    let sides = sides(args, &programs)?;
    let window = Duration::from_millis(args.window_ms.unwrap_or(options.size(3000, 600)));
    let mut rows = Vec::new();
    let mut bars: Vec<(String, Vec<f64>)> = Vec::new();
    for mix in &MIXES {
        let mut contenders: Vec<_> = sides
            .iter()
            .map(|side| Contender::new(&side.name, move || rate(side, mix, window)))
            .collect();
        let medians = alternate(options.rounds(), &mut contenders)?;
        drop(contenders);
        progress!("{}: {medians:?}", mix.name);
        let theirs = sides.iter().position(|side| side.name == "redis");
        let theirs = theirs.map_or(f64::NAN, |n| medians[n]);
        for (side, rate) in sides.iter().zip(&medians) {
            rows.push(
                Row::new()
                    .with("workload", mix.name)
                    .with("servers", side.name.as_str())
                    .with("objects", side.keys)
                    .number("operations/s", *rate, 3)
                    .number("of redis", rate / theirs, 3),
            );
            match bars.iter_mut().find(|(name, _)| *name == side.name) {
                Some((_, values)) => values.push(*rate),
                None => bars.push((side.name.clone(), vec![*rate])),
            }
        }
        report.target(
            format!(
                "{}: operations/s at the first utilization / redis ≥ 1",
                mix.name
            ),
            medians[0] / theirs,
            Bound::AtLeast(1.0),
        );
    }
    let groups = MIXES.iter().map(|mix| mix.name[..1].to_owned()).collect();
    let chart = Chart::bars("YCSB on servers", "operations per second", groups, bars);
    report.plot("", &chart);
    report.table("YCSB by 24 clients (Figure 12)", rows);
    Ok(report)
}

/// All groups, those of Duramen first.
fn sides(args: &YcsbServersFigure, programs: &Programs) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for &percent in &args.percent {
        sides.push(duramen(programs, args.memory, percent)?);
    }
    let keys = sides.iter().map(|side| side.keys).max().unwrap_or(1);
    let valkey = args
        .valkey
        .clone()
        .or_else(|| find_program("valkey-server"));
    for (name, program) in [("redis", programs.redis.clone()), ("valkey", valkey)] {
        if let Some(program) = program {
            sides.push(redis(name, &program, keys, &programs.dir)?);
        }
    }
    Ok(sides)
}

/// A cluster with one member whose memory is so full.
fn duramen(programs: &Programs, megabytes: u64, percent: u64) -> Result<Side> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: COPIES + 1,
        replicas: COPIES,
        spread: 1,
        memory: format!("{megabytes}mb"),
        threads: programs.threads,
        level: "buffered",
        more: Vec::new(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let address = cluster.resp[cluster.owner("key:000000000000")?];
    let keys = fill(address, percent as f64 / 100.0)?;
    Ok(Side {
        name: format!("duramen, {percent} %"),
        address,
        keys,
        counted: count(address)?,
        _cluster: Some(cluster),
        _redis: None,
    })
}

fn redis(name: &str, program: &Path, keys: u64, dir: &Path) -> Result<Side> {
    let group = RedisGroup::start(program, Redis::EverySecond, COPIES - 1, dir)?;
    let address = group.master.address;
    load_of(address, keys).preload(0)?;
    Ok(Side {
        name: name.to_owned(),
        address,
        keys,
        counted: count(address)?,
        _cluster: None,
        _redis: Some(group),
    })
}

fn load_of(address: SocketAddr, keys: u64) -> Load {
    let mut load = Load::usual(address, Command::Set, 1);
    (load.keys, load.value_bytes, load.connections) = (keys, VALUE_BYTES, CLIENTS);
    load.access = Access::Random(Distribution::Zipfian(ZIPF));
    load
}

/// Adds objects until the server's memory is so full. Returns their number.
fn fill(address: SocketAddr, utilization: f64) -> Result<u64> {
    let number = |field: &str| {
        let told = info_number(address, field)?;
        told.ok_or("the server does not tell it")
            .doing(format!("reading `{field}`"))
    };
    let mut keys = 0;
    loop {
        let budget_bytes = number("duramen_segment_budget_bytes")?;
        let live_bytes = number("duramen_live_bytes")?;
        let entry_bytes = match keys {
            0 => (VALUE_BYTES + BESIDE_BYTES) as f64,
            keys => live_bytes / keys as f64,
        };
        let missing = (utilization * budget_bytes - live_bytes) / entry_bytes;
        if missing < NEAR {
            return Ok(keys);
        }
        // The index takes its share of the budget meanwhile: approach in steps.
        let from = keys;
        keys += (missing / 2.0).ceil() as u64;
        load_of(address, keys).preload(from)?;
    }
}

/// Operations per second.
fn rate(side: &Side, mix: &Mix, window: Duration) -> Result<f64> {
    let mut load = load_of(side.address, side.keys);
    load.command = Command::Mixed {
        reads_percent: mix.reads_percent,
    };
    load.limit = Limit::Time(window);
    if mix.inserts {
        load.keys = side.keys_now()?;
        load.access = Access::Latest {
            theta: ZIPF,
            unread: CLIENTS as u64,
        };
        load.limit = Limit::Requests(side.keys / OBJECTS_PER_REQUEST_OF_D);
    }
    let outcome = load.run()?;
    // An insert that is delayed for long enough is not there yet when it is read.
    let nulls_most = if mix.inserts {
        outcome.requests / 1000
    } else {
        0
    };
    if outcome.errors > 0 || outcome.nulls > nulls_most {
        return Err(Failure::new(
            format!("running {} on {}", mix.name, side.name),
            format!(
                "{} errors, {} objects not found",
                outcome.errors, outcome.nulls
            ),
        ));
    }
    Ok(outcome.requests_per_second() / mix.requests_per_operation)
}
