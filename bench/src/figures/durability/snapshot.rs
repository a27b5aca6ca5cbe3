//! The cost of a snapshot: latency of synced writes and resident memory while it is taken, beside
//! redis-server's fork.

use super::{Level, Programs};
use crate::harness::{Bound, Latencies, Options, Report, Result, Row, progress};
use crate::servers::client::{ask, info_number};
use crate::servers::{Redis, Scratch, Server};
use duramen_base::units::MIB;
use duramen_load::{Command, Limit, Load};
use std::time::{Duration, Instant};

/// Writes offered per second: both servers can handle them while they save.
const WRITES_PER_SECOND: f64 = 5_000.0;
/// Length of one measurement; each begins with new connections, without a snapshot as with one.
const WINDOW: Duration = Duration::from_millis(500);
/// Longest time of a save.
const SAVE_LIMIT: Duration = Duration::from_secs(120);

struct Side {
    server: Server,
    _data: Scratch,
}

/// Starts both servers, with room for so many bytes of data.
fn start(programs: &Programs, bytes: u64) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    let data = programs.scratch()?;
    let memory = (bytes as f64 * 1.6) as u64 + 64 * MIB;
    sides.push(Side {
        server: programs.duramen(Level::Synced, memory, data.path())?,
        _data: data,
    });
    let data = programs.scratch()?;
    if let Some(server) = programs.redis(Redis::Always, data.path())? {
        sides.push(Side {
            server,
            _data: data,
        });
    }
    Ok(sides)
}

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let bytes = options.size(1024, 64) * MIB;
    let keys = bytes / 1016;
    let sides = start(programs, bytes)?;
    let mut rows = Vec::new();
    for side in &sides {
        let mut load = Load::usual(side.server.address, Command::Set, 64);
        (load.keys, load.value_bytes) = (keys, 1000);
        load.preload(0)?;
        // Once more: until the log has its full size in memory, it grows without a snapshot too.
        load.preload(0)?;
        let mut quiet = Latencies::default();
        for _ in 0..options.size(10, 3) {
            quiet.add(&writes(side, keys)?);
        }
        let before = side.server.rss_bytes()?;
        let (busy, seconds, peak) = during_save(side, keys)?;
        let (quiet, busy) = (quiet.summary(), busy.summary());
        let growth = peak as f64 / before as f64 - 1.0;
        progress!(
            "snapshot, {}: {seconds:.1} s, p99 {:.0} -> {:.0} µs",
            side.server.name,
            quiet.p99_us,
            busy.p99_us
        );
        if side.server.name.starts_with("duramen") {
            report.target(
                "p99 of writes during a snapshot / without ≤ 1.5",
                busy.p99_us / quiet.p99_us,
                Bound::AtMost(1.5),
            );
            report.target(
                "growth of RSS during a snapshot ≤ 0.05",
                growth,
                Bound::AtMost(0.05),
            );
        }
        rows.push(
            Row::new()
                .with("server", side.server.name.as_str())
                .number("seconds", seconds, 3)
                .number("p50 µs before", quiet.p50_us, 3)
                .number("p50 µs during", busy.p50_us, 3)
                .number("p99 µs before", quiet.p99_us, 3)
                .number("p99 µs during", busy.p99_us, 3)
                .number("longest µs during", busy.max_us, 3)
                .number("RSS MB before", before as f64 / 1e6, 3)
                .number("RSS growth %", growth * 100.0, 3),
        );
    }
    report.table(
        &format!(
            "BGSAVE of {} MiB, values of 1000 B, beside {WRITES_PER_SECOND} SET/s",
            bytes / MIB
        ),
        rows,
    );
    Ok(())
}

fn writes(side: &Side, keys: u64) -> Result<Latencies> {
    let mut load = Load::usual(side.server.address, Command::Set, 1);
    (load.keys, load.value_bytes, load.connections) = (keys, 1000, 8);
    load.rate = Some(WRITES_PER_SECOND);
    load.limit = Limit::Time(WINDOW);
    Ok(load.run()?.latencies)
}

/// Latencies during a save, its duration, and the largest resident memory (of the server and its
/// children).
fn during_save(side: &Side, keys: u64) -> Result<(Latencies, f64, u64)> {
    // Redis may be rewriting its append-only file, and then refuses.
    let waiting = Instant::now();
    while info_number(side.server.address, "aof_rewrite_in_progress")? == Some(1.0)
        && waiting.elapsed() < SAVE_LIMIT
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    ask(side.server.address, &["BGSAVE"])?;
    let begun = Instant::now();
    let mut all = Latencies::default();
    let mut peak = 0;
    loop {
        all.add(&writes(side, keys)?);
        peak = peak.max(side.server.rss_with_children_bytes()?);
        let saving = info_number(side.server.address, "rdb_bgsave_in_progress")?;
        if saving != Some(1.0) || begun.elapsed() > SAVE_LIMIT {
            return Ok((all, begun.elapsed().as_secs_f64(), peak));
        }
    }
}
