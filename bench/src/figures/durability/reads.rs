//! The cost of durable writes for reads: GETs beside writers at full speed, at level `memory` and
//! at `synced`.

use super::{Level, Programs};
use crate::harness::{Bound, Latencies, Options, Report, Result, Row, median, progress};
use crate::servers::{Scratch, Server};
use duramen_base::units::MIB;
use duramen_load::{Command, Limit, Load, Outcome};
use std::time::Duration;

const KEYS: u64 = 200_000;
/// Offered by the writers: both levels can handle this rate, so the reads have the same load beside
/// them.
const WRITES_PER_SECOND: f64 = 60_000.0;

struct Side {
    server: Server,
    rates: Vec<f64>,
    p99_us: Vec<f64>,
    latencies: Latencies,
    writes: u64,
    _data: Scratch,
}

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let mut sides = Vec::new();
    for level in [Level::Memory, Level::Synced] {
        let data = programs.scratch()?;
        let server = programs.duramen(level, 512 * MIB, data.path())?;
        let mut load = Load::usual(server.address, Command::Set, 64);
        load.keys = KEYS;
        load.preload(0)?;
        sides.push(Side {
            server,
            rates: Vec::new(),
            p99_us: Vec::new(),
            latencies: Latencies::default(),
            writes: 0,
            _data: data,
        });
    }
    let window = Duration::from_millis(options.size(2000, 500));
    for _ in 0..options.rounds() {
        for side in &mut sides {
            let (reads, writes) = beside(side, window)?;
            side.rates.push(reads.requests_per_second());
            side.p99_us.push(reads.latencies.at_us(0.99));
            side.latencies.add(&reads.latencies);
            side.writes += writes.requests;
        }
    }
    let mut rows = Vec::new();
    for side in &sides {
        let summary = side.latencies.summary();
        progress!(
            "reads beside writers, {}: {:.0} GET/s",
            side.server.name,
            median(&side.rates)
        );
        rows.push(
            Row::new()
                .with("server", side.server.name.as_str())
                .number("GET/s", median(&side.rates), 3)
                .number("p50 µs", summary.p50_us, 3)
                .number("p99 µs", median(&side.p99_us), 3)
                .number("p99.9 µs", summary.p99_9_us, 3)
                .with("writes beside", side.writes),
        );
    }
    report.table(
        "GET, 50 connections, P = 1, beside 16 connections that SET",
        rows,
    );
    let [memory, synced] = &sides[..] else {
        return Ok(());
    };
    report.target(
        "GET/s beside synced writers / beside writers at level memory ≥ 0.9",
        median(&synced.rates) / median(&memory.rates),
        Bound::AtLeast(0.9),
    );
    report.target(
        "p99 of these GETs, memory / synced ≥ 0.9",
        median(&memory.p99_us) / median(&synced.p99_us),
        Bound::AtLeast(0.9),
    );
    Ok(())
}

/// Reads for `window`, with writers at work all the time.
fn beside(side: &Side, window: Duration) -> Result<(Outcome, Outcome)> {
    let mut reads = Load::usual(side.server.address, Command::Get, 1);
    reads.keys = KEYS;
    reads.limit = Limit::Time(window);
    let mut writes = Load::usual(side.server.address, Command::Set, 1);
    (writes.keys, writes.connections) = (KEYS, 16);
    writes.rate = Some(WRITES_PER_SECOND);
    writes.limit = Limit::Time(window);
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| writes.run());
        let outcome = reads.run();
        let wrote = writers.join().expect("a generator thread does not panic");
        Ok((outcome?, wrote?))
    })
}
