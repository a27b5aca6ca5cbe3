//! Acknowledged writes: levels beside each other and beside redis-server.

use super::disk::RawLog;
use super::{Level, Programs};
use crate::harness::{
    Bound, Contender, Latencies, Options, Report, Result, Row, alternate, progress,
};
use crate::servers::client::info_number;
use crate::servers::{Redis, Scratch, Server};
use duramen_base::units::MIB;
use duramen_load::{Command, Limit, Load, Summary};
use std::cell::RefCell;
use std::time::Duration;

/// Connections, and requests that each sends before it waits.
const SHAPES: [(usize, usize); 5] = [(1, 1), (16, 1), (50, 1), (256, 1), (50, 16)];
const KEYS: u64 = 200_000;

/// A server, and the words of its row.
struct Side {
    name: String,
    acknowledged: &'static str,
    server: Server,
    _data: Scratch,
}

fn start(programs: &Programs) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for (level, acknowledged) in [
        (Level::Synced, "fdatasync"),
        (Level::Buffered, "written to the system"),
        (Level::Memory, "in memory"),
    ] {
        let data = programs.scratch()?;
        let server = programs.duramen(level, 512 * MIB, data.path())?;
        let name = server.name.clone();
        sides.push(Side {
            name,
            acknowledged,
            server,
            _data: data,
        });
    }
    for (append, acknowledged) in [
        (Redis::Always, "fdatasync"),
        (Redis::EverySecond, "written to the system"),
        (Redis::No, "in memory"),
    ] {
        let data = programs.scratch()?;
        if let Some(server) = programs.redis(append, data.path())? {
            let name = server.name.clone();
            sides.push(Side {
                name,
                acknowledged,
                server,
                _data: data,
            });
        }
    }
    for side in &sides {
        let mut load = Load::usual(side.server.address, Command::Set, 64);
        load.keys = KEYS;
        load.preload(0)?;
    }
    Ok(sides)
}

/// One shape: rates and latencies of every side.
struct Shape {
    connections: usize,
    pipeline: usize,
    rates: Vec<(String, f64, f64)>,
    raw_p50_us: f64,
}

impl Shape {
    fn row(&self, server: &str, acknowledged: &str, rate: f64, latency: &Summary) -> Row {
        let shape = format!("{} x {}", self.connections, self.pipeline);
        Row::new()
            .with("connections x pipeline", shape)
            .with("server", server)
            .with("acknowledged when", acknowledged)
            .number("SET/s", rate, 3)
            .number("p50 µs", latency.p50_us, 3)
            .number("p99 µs", latency.p99_us, 3)
            .number("p99.9 µs", latency.p99_9_us, 3)
    }

    fn rate(&self, name: &str) -> f64 {
        let found = self.rates.iter().find(|(other, _, _)| other == name);
        found.map_or(f64::NAN, |(_, rate, _)| *rate)
    }

    fn p50_us(&self, name: &str) -> f64 {
        let found = self.rates.iter().find(|(other, _, _)| other == name);
        found.map_or(f64::NAN, |(_, _, p50)| *p50)
    }
}

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let sides = start(programs)?;
    let raw_dir = programs.scratch()?;
    let mut raw = RawLog::new(raw_dir.path())?;
    let mut rows = Vec::new();
    let mut shapes = Vec::new();
    for (connections, pipeline) in SHAPES {
        shapes.push(measure(
            options,
            &sides,
            &mut raw,
            (connections, pipeline),
            &mut rows,
        )?);
    }
    report.table("SET, 100-byte values, acknowledged", rows);
    amplification(&sides, report)?;
    targets(&shapes, report);
    Ok(())
}

fn measure(
    options: &Options,
    sides: &[Side],
    raw: &mut RawLog,
    (connections, pipeline): (usize, usize),
    rows: &mut Vec<Row>,
) -> Result<Shape> {
    let window = Duration::from_millis(options.size(1000, 300));
    let all: Vec<_> = sides.iter().map(|_| RefCell::default()).collect();
    let all: &[RefCell<Latencies>] = &all;
    let raw_all = RefCell::new(Latencies::default());
    let mut contenders: Vec<_> = sides
        .iter()
        .zip(all)
        .map(|(side, latencies)| {
            Contender::new(&side.name, move || {
                let mut load = Load::usual(side.server.address, Command::Set, pipeline);
                (load.keys, load.connections, load.spin) = (KEYS, connections, connections == 1);
                load.limit = Limit::Time(window);
                let outcome = load.run()?;
                latencies.borrow_mut().add(&outcome.latencies);
                Ok(outcome.requests_per_second())
            })
        })
        .collect();
    contenders.push(Contender::new("disk", || {
        let latencies = raw.run(window)?;
        raw_all.borrow_mut().add(&latencies);
        Ok(latencies.count() as f64 / window.as_secs_f64())
    }));
    let medians = alternate(options.rounds(), &mut contenders)?;
    drop(contenders);
    let raw_summary = raw_all.borrow().summary();
    let mut shape = Shape {
        connections,
        pipeline,
        rates: Vec::new(),
        raw_p50_us: raw_summary.p50_us,
    };
    for ((side, latencies), rate) in sides.iter().zip(all).zip(&medians) {
        let summary = latencies.borrow().summary();
        progress!(
            "{connections} x {pipeline}: {}: {rate:.0} SET/s, p50 {:.0} µs",
            side.name,
            summary.p50_us
        );
        shape.rates.push((side.name.clone(), *rate, summary.p50_us));
        let (name, acknowledged) = (side.name.as_str(), side.acknowledged);
        rows.push(shape.row(name, acknowledged, *rate, &summary));
    }
    let disk = medians.last().copied().unwrap_or(f64::NAN);
    rows.push(shape.row("the disk alone", "fdatasync", disk, &raw_summary));
    Ok(shape)
}

fn targets(shapes: &[Shape], report: &mut Report) {
    let shape = |connections, pipeline| {
        let is_it = |shape: &&Shape| (shape.connections, shape.pipeline) == (connections, pipeline);
        shapes.iter().find(is_it)
    };
    if let Some(one) = shape(1, 1) {
        report.target(
            "1 connection, synced: p50 / the disk's own overwrite + fdatasync ≤ 1.3",
            one.p50_us("duramen synced") / one.raw_p50_us,
            Bound::AtMost(1.3),
        );
    }
    let mut ratio = |what: &str, shape: Option<&Shape>, of: &str, to: &str, least: f64| {
        if let Some(shape) = shape {
            report.target(
                format!("{what} ≥ {least}"),
                shape.rate(of) / shape.rate(to),
                Bound::AtLeast(least),
            );
        }
    };
    let (p1, p16) = (shape(50, 1), shape(50, 16));
    let synced = "duramen synced";
    ratio(
        "50 x 1, synced / redis always",
        p1,
        synced,
        "redis always",
        2.0,
    );
    ratio(
        "50 x 16, synced / redis always",
        p16,
        synced,
        "redis always",
        2.5,
    );
    ratio(
        "50 x 16, synced / memory",
        p16,
        synced,
        "duramen memory",
        0.7,
    );
    ratio(
        "50 x 16, synced / redis everysec",
        p16,
        synced,
        "redis everysec",
        1.3,
    );
}

/// Bytes written to the disk for each byte of key and value.
fn amplification(sides: &[Side], report: &mut Report) -> Result<()> {
    let Some(side) = sides.iter().find(|side| side.name == "duramen synced") else {
        return Ok(());
    };
    let found = info_number(side.server.address, "duramen_write_amplification")?;
    if let Some(found) = found {
        report.note(format!(
            "Write amplification of `duramen synced` over the whole part (write-ahead log, frames, survivors; bytes written per byte \
             of entries): {found:.2}."
        ));
    }
    Ok(())
}
