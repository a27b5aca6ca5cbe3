//! Replicated writes, acknowledged: three copies on disks beside a Redis master with two replicas
//! and `WAIT 2`.
//!
//! Three durable copies on both sides. Redis's are those of the master and its two replicas;
//! Duramen's are those of three backups, none of which is the master: one more process on the same
//! machine.

use super::measure;
use crate::harness::{Bound, Options, Report, Result, Row};
use crate::servers::{Cluster, Programs, Redis, RedisGroup, Up};
use duramen_load::{Command, Load};
use std::net::SocketAddr;

/// Connections, and requests that each sends before it waits.
const SHAPES: [(usize, usize); 3] = [(1, 1), (50, 1), (50, 16)];
const KEYS: u64 = 100_000;
/// Copies that are durable when a write is acknowledged.
pub(super) const COPIES: usize = 3;

/// A group that accepts writes at one address.
pub(super) struct Side {
    pub(super) name: &'static str,
    acknowledged: &'static str,
    pub(super) address: SocketAddr,
    pub(super) wait_replicas: u32,
    /// The group; one of the two is set.
    _cluster: Option<Cluster>,
    _redis: Option<RedisGroup>,
}

pub(super) fn duramen(
    programs: &Programs,
    level: &'static str,
    name: &'static str,
) -> Result<Side> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: COPIES + 1,
        replicas: COPIES,
        spread: 1,
        memory: "256mb".to_owned(),
        threads: programs.threads,
        level,
        // A head that continues in another segment waits until the one before is synced: with small
        // segments, thirty times a second.
        // On a busy machine a member may be silent for seconds; nobody measures its death here.
        more: ["--segment-size", "8mb", "--verdict-timeout", "10s"]
            .map(str::to_owned)
            .into(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let owner = cluster.owner("key:000000000000")?;
    Ok(Side {
        name,
        acknowledged: match level {
            "synced" => "3 disks synced",
            _ => "written to 3 systems",
        },
        address: cluster.resp[owner],
        wait_replicas: 0,
        _cluster: Some(cluster),
        _redis: None,
    })
}

pub(super) fn redis(
    programs: &Programs,
    append: Redis,
    name: &'static str,
    acknowledged: &'static str,
) -> Result<Option<Side>> {
    let Some(program) = &programs.redis else {
        return Ok(None);
    };
    let group = RedisGroup::start(program, append, COPIES - 1, &programs.dir)?;
    Ok(Some(Side {
        name,
        acknowledged,
        address: group.master.address,
        wait_replicas: COPIES as u32 - 1,
        _cluster: None,
        _redis: Some(group),
    }))
}

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let mut sides = vec![
        duramen(programs, "synced", "duramen synced")?,
        duramen(programs, "buffered", "duramen buffered")?,
    ];
    sides.extend(redis(
        programs,
        Redis::Always,
        "redis always, WAIT 2",
        "fdatasync here, received by 2",
    )?);
    sides.extend(redis(
        programs,
        Redis::No,
        "redis, WAIT 2",
        "in memory here, received by 2",
    )?);
    let mut loads = Vec::new();
    for side in &sides {
        let mut load = Load::usual(side.address, Command::Set, 64);
        load.keys = KEYS;
        load.preload(0)?;
        load.wait_replicas = side.wait_replicas;
        loads.push((side.name, load));
    }
    let mut rows = Vec::new();
    for shape in SHAPES {
        let measured = measure(options, &loads, shape)?;
        for (side, (rate, latencies)) in sides.iter().zip(&measured) {
            rows.push(
                Row::new()
                    .with(
                        "connections x pipeline",
                        format!("{} x {}", shape.0, shape.1),
                    )
                    .with("servers", side.name)
                    .with("acknowledged when", side.acknowledged)
                    .number("SET/s", *rate, 3)
                    .number("p50 µs", latencies.p50_us, 3)
                    .number("p99 µs", latencies.p99_us, 3)
                    .number("p99.9 µs", latencies.p99_9_us, 3),
            );
        }
        let rates: Vec<f64> = measured.iter().map(|(rate, _)| *rate).collect();
        targets(&sides, &rates, shape, report);
    }
    report.table("SET, 100-byte values, three copies", rows);
    Ok(())
}

fn targets(
    sides: &[Side],
    rates: &[f64],
    (connections, pipeline): (usize, usize),
    report: &mut Report,
) {
    if connections != 50 {
        return;
    }
    let rate = |name: &str| {
        let at = sides.iter().position(|side| side.name == name)?;
        rates.get(at).copied()
    };
    for (ours, theirs) in [
        ("duramen synced", "redis always, WAIT 2"),
        ("duramen buffered", "redis, WAIT 2"),
    ] {
        if let (Some(ours_rate), Some(theirs_rate)) = (rate(ours), rate(theirs)) {
            report.target(
                format!("{connections} x {pipeline}, {ours} / {theirs} ≥ 2"),
                ours_rate / theirs_rate,
                Bound::AtLeast(2.0),
            );
        }
    }
}
