//! Logging over a network against logging on the server's own disk: the same updates to a single
//! server, and to a cluster whose members keep the log of another one. Real processes on loopback.
//! Beineke18 §XI-D, Figure 21.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Contender, Doing, Failure, Options, Report, Result, Row, Scale, Series,
    alternate, progress,
};
use crate::servers::{Cluster, Duramen, ProgramArgs, Programs, Scratch, Server, Up};
use duramen_base::units::MIB;
use duramen_load::{Access, Command, Limit, Load};
use std::net::SocketAddr;

/// Updates that are sent together, as in the paper.
const BATCH: usize = 10;
const CONNECTIONS: usize = 16;
const KEY_BYTES: usize = 16;
/// Bytes of memory for an object beside key and value.
const BESIDE_BYTES: usize = 48;
/// A member's log that continues in another segment waits for the one before: with small segments,
/// many times a second.
const SEGMENT: [&str; 2] = ["--segment-size", "8mb"];

/// Logging over a network against the server's own disk, by size of objects
#[derive(Clone, Debug, clap::Args)]
pub(super) struct NetworkFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Bytes of values
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,4096")]
    pub value_bytes: Vec<usize>,
    /// Megabytes of objects, all of which each measurement updates [default: 256; 32 with --quick]
    #[arg(long, value_name = "MB")]
    pub data: Option<u64>,
}

impl Figure for NetworkFigure {
    const NAME: &'static str = "network";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// One way to log.
struct Side {
    name: &'static str,
    address: SocketAddr,
    _server: Option<Server>,
    _cluster: Option<Cluster>,
    _data: Option<Scratch>,
}

fn local(programs: &Programs, memory: &str) -> Result<Side> {
    let data = Scratch::new(&programs.dir).doing("making a directory")?;
    let how = Duramen {
        program: programs.duramen.clone(),
        memory: memory.to_owned(),
        threads: programs.threads,
        poll: "adaptive",
        dir: Some(data.path().join("data")),
        level: "buffered",
        more: Vec::new(),
    };
    let server = Server::duramen("own disk", &how)?;
    Ok(Side {
        name: "own disk",
        address: server.address,
        _server: Some(server),
        _cluster: None,
        _data: Some(data),
    })
}

fn remote(programs: &Programs, memory: &str, replicas: usize, name: &'static str) -> Result<Side> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: 3,
        replicas,
        spread: 1,
        memory: memory.to_owned(),
        threads: programs.threads,
        level: "buffered",
        more: SEGMENT.map(str::to_owned).into(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let owner = cluster.owner("key:000000000000")?;
    Ok(Side {
        name,
        address: cluster.resp[owner],
        _server: None,
        _cluster: Some(cluster),
        _data: None,
    })
}

fn report(args: &NetworkFigure, options: &Options) -> Result<Report> {
    let about = "All objects are updated in order by SET, ten in one message, over 16 connections; a reply comes when the update was written to the file system of the \
        server of each copy (level `buffered`). `own disk`: one server, one copy, in its own directory. `one backup`, `two backups`: three members; the log of the one \
        that is written to is on one, or both, of the others, in segments of 8 MB. All processes share the machine and its disk.";
    let mut report = Report::new("network", "Logging over a network", about, options);
    report.level = "buffered".to_owned();
    let programs = args.programs.find(&mut report)?;
    let data_bytes = args.data.unwrap_or(options.size(256, 32)) * MIB;
    let mut rows = Vec::new();
    let mut lines: Vec<Series> = Vec::new();
    let mut worst = f64::NAN;
    for &value_bytes in &args.value_bytes {
        // Headers and the index weigh more with small objects; half of the memory is free.
        let keys = data_bytes / value_bytes as u64;
        let object_bytes = (value_bytes + KEY_BYTES + BESIDE_BYTES) as u64;
        let memory_bytes = 2 * keys * object_bytes + 128 * MIB;
        let memory = format!("{}mb", memory_bytes / MIB);
        let sides = [
            local(&programs, &memory)?,
            remote(&programs, &memory, 1, "one backup")?,
            remote(&programs, &memory, 2, "two backups")?,
        ];
        let medians = measure(options, &sides, keys, value_bytes)?;
        progress!("{value_bytes} B: {medians:?} updates/s");
        worst = worst.min(medians[1] / medians[0]);
        for (side, rate) in sides.iter().zip(&medians) {
            let megabytes = rate * (value_bytes + KEY_BYTES) as f64 / 1e6;
            rows.push(
                Row::new()
                    .with("value bytes", value_bytes)
                    .with("log on", side.name)
                    .number("updates/s", *rate, 3)
                    .number("MB/s", megabytes, 3)
                    .number("of the own disk's", rate / medians[0], 3),
            );
            let point = (value_bytes as f64, megabytes);
            match lines.iter_mut().find(|line| line.name == side.name) {
                Some(line) => line.points.push(point),
                None => lines.push(Series {
                    name: side.name.to_owned(),
                    points: vec![point],
                }),
            }
        }
    }
    report.target(
        "updates/s, one backup over the network / own disk, least (paper: no loss) ≥ 0.9",
        worst,
        Bound::AtLeast(0.9),
    );
    let chart = Chart::lines("Logging over a network", "bytes of a value", "MB/s", lines);
    report.plot("", &chart.scales(Scale::Log, Scale::Linear));
    report.table("Updates by place of the log (Figure 21)", rows);
    Ok(report)
}

/// Updates per second of each side.
fn measure(options: &Options, sides: &[Side], keys: u64, value_bytes: usize) -> Result<Vec<f64>> {
    let mut contenders = Vec::new();
    for side in sides {
        let mut load = Load::usual(side.address, Command::Set, BATCH);
        (load.keys, load.value_bytes, load.connections) = (keys, value_bytes, CONNECTIONS);
        load.access = Access::Sequential { from: 0 };
        load.limit = Limit::Requests(keys);
        load.preload(0)?;
        contenders.push(Contender::new(side.name, move || {
            let outcome = load.run()?;
            match outcome.errors {
                0 => Ok(outcome.requests_per_second()),
                errors => Err(Failure::new(
                    format!("updating with the log on: {}", side.name),
                    format!("{errors} requests were refused"),
                )),
            }
        }));
    }
    alternate(options.rounds(), &mut contenders)
}
