//! Latency of one client's reads and replicated writes by size of objects, beside a Redis master
//! with two replicas. Ousterhout15 §5.4.1, Table IV.

use super::ClusterFigure;
use super::writes::{COPIES, Side, duramen, redis};
use crate::harness::{
    Bound, Contender, Failure, Latencies, Options, Report, Result, Row, alternate, progress,
};
use crate::servers::Redis;
use duramen_base::units::MIB;
use duramen_load::{Access, Command, Limit, Load};
use std::cell::RefCell;
use std::time::Duration;

/// Sizes of the paper's objects.
const VALUE_BYTES: [usize; 5] = [100, 1000, 10_000, 100_000, 1_000_000];
/// Objects of each size take so much, within bounds: those of all sizes fit together.
const DATA_BYTES: u64 = 16 * MIB;
const KEYS_MIN: u64 = 32;
/// Bytes on their way while the objects are written for the first time.
const LOADING_BYTES: usize = 1 << 20;
const KEYS_MAX: u64 = 100_000;

/// Runs the part.
pub(super) fn report(args: &ClusterFigure, options: &Options) -> Result<Report> {
    let about = "One client with one connection, one request at a time, keys of 16 bytes in random order. Duramen: four members, the objects on one of them, its log on the \
        three others; a write is acknowledged when all three have written it to their file systems (`buffered`). Redis: a master and two replicas without files; a write is \
        SET and `WAIT 2`, sent together. All processes share one machine.";
    let title = "One client of a cluster, by size of objects";
    let mut report = Report::new("cluster-sizes", title, about, options);
    report.level = "buffered".to_owned();
    let programs = args.programs.find(&mut report)?;
    let mut sides = vec![duramen(&programs, "buffered", "duramen")?];
    sides.extend(redis(
        &programs,
        Redis::No,
        "redis, WAIT 2",
        "in memory here, received by 2",
    )?);
    let window = Duration::from_millis(options.size(1500, 300));
    let mut rows = Vec::new();
    for value_bytes in VALUE_BYTES {
        let keys = (DATA_BYTES / value_bytes as u64).clamp(KEYS_MIN, KEYS_MAX);
        for side in &sides {
            let mut all = load(side, Command::Set, keys, value_bytes);
            all.access = Access::Sequential { from: 0 };
            all.limit = Limit::Requests(keys);
            all.pipeline = (LOADING_BYTES / value_bytes).clamp(1, 64);
            run(&all, side)?;
        }
        for (name, command) in [("GET", Command::Get), ("SET", Command::Set)] {
            let found: Vec<_> = sides
                .iter()
                .map(|_| RefCell::new(Latencies::default()))
                .collect();
            let mut contenders: Vec<_> = sides
                .iter()
                .zip(&found)
                .map(|(side, found)| {
                    let mut load = load(side, command, keys, value_bytes);
                    load.limit = Limit::Time(window);
                    if command == Command::Set {
                        load.wait_replicas = side.wait_replicas;
                    }
                    Contender::new(side.name, move || {
                        let latencies = run(&load, side)?;
                        found.borrow_mut().add(&latencies);
                        Ok(latencies.at_us(0.5))
                    })
                })
                .collect();
            let medians = alternate(options.rounds(), &mut contenders)?;
            drop(contenders);
            progress!("{name}, {value_bytes} B: p50 {medians:?} µs");
            for (side, found) in sides.iter().zip(&found) {
                rows.push(row(name, value_bytes, side, &found.borrow()));
            }
            if value_bytes == VALUE_BYTES[0] && sides.len() > 1 {
                report.target(
                    format!("{name}, {value_bytes} B, one client: p50 / redis ≤ 1"),
                    medians[0] / medians[1],
                    Bound::AtMost(1.0),
                );
            }
        }
    }
    let title = format!("Latency by size, {COPIES} copies (Ousterhout15, Table IV)");
    report.table(&title, rows);
    Ok(report)
}

fn row(name: &str, value_bytes: usize, side: &Side, latencies: &Latencies) -> Row {
    Row::new()
        .with("request", name)
        .with("value bytes", value_bytes)
        .with("servers", side.name)
        .number("p50 µs", latencies.at_us(0.5), 3)
        .number("p90 µs", latencies.at_us(0.9), 3)
        .number("p99 µs", latencies.at_us(0.99), 3)
        .number("p99.9 µs", latencies.at_us(0.999), 3)
}

/// One connection with one request at a time.
fn load(side: &Side, command: Command, keys: u64, value_bytes: usize) -> Load {
    let mut load = Load::usual(side.address, command, 1);
    (load.keys, load.value_bytes, load.connections) = (keys, value_bytes, 1);
    load
}

/// # Errors
/// The server refuses a request, or lacks a key.
fn run(load: &Load, side: &Side) -> Result<Latencies> {
    let outcome = load.run()?;
    match outcome.errors + outcome.nulls {
        0 => Ok(outcome.latencies),
        _ => Err(Failure::new(
            format!("requests of {} bytes to {}", load.value_bytes, side.name),
            format!(
                "{} were refused, {} keys not found",
                outcome.errors, outcome.nulls
            ),
        )),
    }
}
