//! SET throughput through the server as live data fill its log.

use super::requests::random_sets;
use super::{ADAPTIVE, start_duramen};
use crate::harness::{
    Bound, Chart, Failure, Options, Report, Result, Row, Series, median, progress,
};
use crate::servers::client::info_number;
use crate::servers::{Programs, Server};
use duramen_base::units::MIB;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PERCENTS: [u32; 6] = [30, 50, 70, 80, 90, 95];

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let memory_bytes = options.size(1024, 192) * MIB;
    let server = start_duramen(programs, ADAPTIVE, memory_bytes, "adaptive")?;
    let mut keys = 0;
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    let mut at = Vec::new();
    for percent in PERCENTS {
        fill_to(&server, f64::from(percent) / 100.0, &mut keys)?;
        // Once over the whole log, so that the cleaner is in its steady state.
        random_sets(&server, keys, Duration::from_secs(options.size(5, 2))).run()?;
        let before_ns = server.cpu_ns()?;
        let mut rates = Vec::new();
        let (mut requests, mut errors, mut pause) = (0, 0, Duration::ZERO);
        for _ in 0..options.rounds() {
            let load = random_sets(
                &server,
                keys,
                Duration::from_millis(options.size(1000, 700)),
            );
            let (outcome, longest) = watched(&load)?;
            rates.push(outcome.requests_per_second());
            requests += outcome.requests;
            errors += outcome.errors;
            pause = pause.max(longest);
        }
        let cpu_us = (server.cpu_ns()? - before_ns) as f64 / 1e3 / requests as f64;
        let rate = median(&rates);
        progress!("through the server at {percent} %: {rate:.0} SET/s, longest pause {pause:?}");
        at.push((percent, rate, pause));
        points.push((f64::from(percent), rate));
        rows.push(
            Row::new()
                .with("utilization %", percent)
                .number(
                    "measured utilization",
                    info_number(server.address, "duramen_utilization")?.unwrap_or(f64::NAN),
                    3,
                )
                .with("keys", keys)
                .number("SET/s", rate, 3)
                .number("of that at 30 %", rate / at[0].1, 3)
                .number("CPU µs", cpu_us, 3)
                .with("longest pause ms", pause.as_millis() as u64)
                .with("errors", errors),
        );
    }
    targets(&at, report);
    report.table(
        "SET, P = 16, 50 connections, 100 B uniform, at fixed utilization",
        rows,
    );
    let series = vec![Series {
        name: "duramen".to_owned(),
        points,
    }];
    report.plot(
        "utilization",
        &Chart::lines(
            "SET through the server",
            "utilization, %",
            "SET per second",
            series,
        ),
    );
    Ok(())
}

/// `at`: utilizations in percent, with their rates and longest pauses.
fn targets(at: &[(u32, f64, Duration)], report: &mut Report) {
    for (percent, bound) in [(80, 0.80), (90, 0.55)] {
        let found = at
            .iter()
            .find(|(p, _, _)| *p == percent)
            .map_or(f64::NAN, |(_, rate, _)| rate / at[0].1);
        let target = format!("SET through the server at {percent} % of that at 30 % ≥ {bound}");
        report.target(target, found, Bound::AtLeast(bound));
    }
    let pause = at
        .last()
        .map_or(f64::NAN, |(_, _, pause)| pause.as_secs_f64());
    report.target(
        "through the server: no second without progress at 95 % (longest pause, s)",
        pause,
        Bound::AtMost(0.99),
    );
}

/// Runs the load and finds the longest time without an answered request, to 20 ms.
fn watched(load: &duramen_load::Load) -> Result<(duramen_load::Outcome, Duration)> {
    let (progress, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut last, mut since, mut longest) = (0, Instant::now(), Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                let now = progress.load(Ordering::Relaxed);
                if now != last {
                    longest = longest.max(since.elapsed());
                    (last, since) = (now, Instant::now());
                }
            }
            longest
        });
        let outcome = load.run_watched(&progress);
        over.store(true, Ordering::Relaxed);
        let longest = watcher.join().expect("the watcher does not panic");
        Ok((outcome?, longest))
    })
}

/// Adds keys until the server reports `utilization`.
fn fill_to(server: &Server, utilization: f64, keys: &mut u64) -> Result<()> {
    let number = |field: &str| {
        let doing = || {
            Failure::new(
                format!("reading `{field}` from INFO"),
                "the server does not tell it",
            )
        };
        info_number(server.address, field)?.ok_or_else(doing)
    };
    loop {
        let budget = number("duramen_segment_budget_bytes")?;
        let live = number("duramen_live_bytes")?;
        // While the server has no data: the most that an entry of 16 + 100 bytes can take.
        let entry = if *keys > 0 {
            live / *keys as f64
        } else {
            136.0
        };
        let missing = (utilization * budget - live) / entry;
        // NaN ends here too: a server without counters cannot be filled by them.
        if missing.is_nan() || missing < 64.0 {
            return Ok(());
        }
        let step = ((missing / 2.0) as u64).max(64);
        let mut load = random_sets(server, *keys + step, Duration::ZERO);
        load.keys = *keys + step;
        load.preload(*keys)?;
        *keys += step;
    }
}
