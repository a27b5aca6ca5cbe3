//! Reads of a cluster's member beside those of a single server.
//!
//! All keys are on one member, so that both sides have as many threads; the generator offers both
//! the same load. The additional work of a member: it checks the owner of the key, the version of
//! the client's map, and its right to answer (its read lease).

use super::measure;
use crate::harness::{Bound, Options, Report, Result, Row};
use crate::servers::{Cluster, Duramen, Programs, Server, Up};
use duramen_load::{Command, Load, Native};

/// Connections, and requests that each sends before it waits.
const SHAPES: [(usize, usize); 2] = [(50, 1), (50, 16)];
const KEYS: u64 = 500_000;
const MEMORY: &str = "512mb";
/// Least part of the single server's rate: 90-quality's "within 10 %".
const LEAST: f64 = 0.9;

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: 3,
        replicas: 2,
        spread: 1,
        memory: MEMORY.to_owned(),
        threads: programs.threads,
        level: "buffered",
        more: Vec::new(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let owner = cluster.owner("key:000000000000")?;
    let native = Native::of_database(&cluster.coordinator)?;
    let how = Duramen {
        program: programs.duramen.clone(),
        memory: MEMORY.to_owned(),
        threads: programs.threads,
        poll: "adaptive",
        dir: None,
        level: "memory",
        more: Vec::new(),
    };
    let single = Server::duramen("single server", &how)?;
    let usual = |address, native| Load {
        keys: KEYS,
        native,
        ..Load::usual(address, Command::Get, 1)
    };
    let sides = [
        ("single server, RESP", usual(single.address, None)),
        ("member, native", usual(cluster.native[owner], Some(native))),
        ("member, RESP", usual(cluster.resp[owner], None)),
    ];
    for (_, load) in &sides[..2] {
        load.preload(0)?;
    }
    let mut rows = Vec::new();
    for shape in SHAPES {
        let measured = measure(options, &sides, shape)?;
        let (connections, pipeline) = shape;
        for ((name, _), (rate, latencies)) in sides.iter().zip(&measured) {
            rows.push(
                Row::new()
                    .with(
                        "connections x pipeline",
                        format!("{connections} x {pipeline}"),
                    )
                    .with("server", *name)
                    .number("requests/s", *rate, 4)
                    .number("p50 µs", latencies.p50_us, 3)
                    .number("p99 µs", latencies.p99_us, 3),
            );
        }
        for (at, name) in [(1, "native client"), (2, "RESP")] {
            report.target(
                format!("{connections} x {pipeline}, reads of a member, {name} / single server ≥ {LEAST}"),
                measured[at].0 / measured[0].0,
                Bound::AtLeast(LEAST),
            );
        }
    }
    report.table("GET, 100-byte values, all keys on one server", rows);
    Ok(())
}
