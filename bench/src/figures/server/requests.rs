//! Processor time of the server per request, and throughput: 50 connections, by this program's
//! generator and by redis-benchmark.

use super::{ADAPTIVE, FLOOR, OFF, REDIS, start_all};
use crate::harness::{
    Bound, Chart, Contender, Doing, Failure, Options, Report, Result, Row, alternate, median,
    progress,
};
use crate::servers::{Programs, Server, find_program};
use duramen_base::units::MIB;
use duramen_load::{Access, Command, Limit, Load};
use std::cell::RefCell;
use std::time::Duration;

/// The command, and the requests in flight per connection.
struct Case {
    name: &'static str,
    command: Command,
    pipeline: usize,
}

const CASES: [Case; 8] = [
    Case {
        name: "GET P=1",
        command: Command::Get,
        pipeline: 1,
    },
    Case {
        name: "SET P=1",
        command: Command::Set,
        pipeline: 1,
    },
    Case {
        name: "GET P=16",
        command: Command::Get,
        pipeline: 16,
    },
    Case {
        name: "SET P=16",
        command: Command::Set,
        pipeline: 16,
    },
    Case {
        name: "GET P=64",
        command: Command::Get,
        pipeline: 64,
    },
    Case {
        name: "SET P=64",
        command: Command::Set,
        pipeline: 64,
    },
    Case {
        name: "MGET 70",
        command: Command::Mget(70),
        pipeline: 1,
    },
    Case {
        name: "MSET 75",
        command: Command::Mset(75),
        pipeline: 1,
    },
];

impl Case {
    fn keys_per_request(&self) -> f64 {
        match self.command {
            Command::Mget(keys) | Command::Mset(keys) => keys as f64,
            _ => 1.0,
        }
    }
}

/// One run of one case against one server; everything per key.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    per_second: f64,
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn measure(server: &Server, case: &Case, keys: u64, duration: Duration) -> Result<Sample> {
    let mut load = Load::usual(server.address, case.command, case.pipeline);
    (load.keys, load.limit) = (keys, Limit::Time(duration));
    let before_ns = server.cpu_ns()?;
    let outcome = load.run()?;
    let cpu_ns = server.cpu_ns()?.saturating_sub(before_ns);
    if outcome.errors > 0 {
        let refused = format!(
            "{} of {} requests got an error",
            outcome.errors, outcome.requests
        );
        return Err(Failure::new(
            format!("{} against {}", case.name, server.name),
            refused,
        ));
    }
    let done = outcome.requests as f64 * case.keys_per_request();
    Ok(Sample {
        per_second: done / outcome.seconds,
        cpu_us: cpu_ns as f64 / 1e3 / done,
        p50_us: outcome.latencies.at_us(0.50),
        p99_us: outcome.latencies.at_us(0.99),
    })
}

/// Medians of one case, by contender.
struct Measured {
    case: &'static str,
    of: Vec<(String, Sample)>,
}

impl Measured {
    fn get(&self, name: &str) -> Option<&Sample> {
        self.of
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, sample)| sample)
    }
}

/// Own generator, all cases.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let keys = options.size(1_000_000, 100_000);
    let mut servers = start_all(programs, options.size(1024, 256) * MIB)?;
    for server in &servers {
        let mut load = Load::usual(server.address, Command::Set, 64);
        load.keys = keys;
        load.preload(0)?;
    }
    servers.push(Server::echo()?);
    let duration = Duration::from_millis(options.size(600, 300));
    let mut all = Vec::new();
    for case in &CASES {
        let measured = run_case(&servers, case, keys, duration, options.rounds())?;
        progress!("{}: {:?}", case.name, measured.of);
        all.push(measured);
    }
    report.table("50 connections: per second, server CPU in µs per request (per key), latency of a pipeline in µs", rows(&all));
    add_targets(report, &all);
    let groups = all
        .iter()
        .map(|measured| measured.case.to_owned())
        .collect();
    let series = |name: &str| {
        let cpu = |measured: &Measured| measured.get(name).map_or(f64::NAN, |sample| sample.cpu_us);
        (name.to_owned(), all.iter().map(cpu).collect::<Vec<f64>>())
    };
    let bars = servers.iter().map(|server| series(&server.name)).collect();
    report.plot(
        "cpu",
        &Chart::bars(
            "Server CPU per request (per key), 50 connections",
            "microseconds",
            groups,
            bars,
        ),
    );
    Ok(())
}

fn run_case(
    servers: &[Server],
    case: &Case,
    keys: u64,
    duration: Duration,
    rounds: usize,
) -> Result<Measured> {
    let samples: Vec<RefCell<Vec<Sample>>> = servers.iter().map(|_| RefCell::default()).collect();
    let mut contenders: Vec<_> = servers
        .iter()
        .zip(&samples)
        .map(|(server, samples)| {
            Contender::new(&server.name, move || {
                let sample = measure(server, case, keys, duration)?;
                samples.borrow_mut().push(sample);
                Ok(sample.cpu_us)
            })
        })
        .collect();
    alternate(rounds, &mut contenders)?;
    drop(contenders);
    let middle = |samples: &[Sample]| {
        let of = |field: fn(&Sample) -> f64| median(&samples.iter().map(field).collect::<Vec<_>>());
        Sample {
            per_second: of(|s| s.per_second),
            cpu_us: of(|s| s.cpu_us),
            p50_us: of(|s| s.p50_us),
            p99_us: of(|s| s.p99_us),
        }
    };
    let of = servers
        .iter()
        .zip(&samples)
        .map(|(server, samples)| (server.name.clone(), middle(&samples.borrow())));
    Ok(Measured {
        case: case.name,
        of: of.collect(),
    })
}

fn rows(all: &[Measured]) -> Vec<Row> {
    let mut rows = Vec::new();
    for measured in all {
        for (name, sample) in &measured.of {
            let over = |other: &str| {
                measured
                    .get(other)
                    .map_or(f64::NAN, |other| sample.cpu_us / other.cpu_us)
            };
            rows.push(
                Row::new()
                    .with("case", measured.case)
                    .with("server", name.as_str())
                    .number("per second", sample.per_second, 3)
                    .number("CPU µs", sample.cpu_us, 3)
                    .number("CPU / redis", over(REDIS), 3)
                    .number("CPU / floor", over(FLOOR), 3)
                    .number("p50", sample.p50_us, 3)
                    .number("p99", sample.p99_us, 3),
            );
        }
    }
    rows
}

fn add_targets(report: &mut Report, all: &[Measured]) {
    let ratio = |case: &str, ours: &str, of: fn(&Sample) -> f64| {
        let measured = all.iter().find(|measured| measured.case == case);
        let pair = measured.and_then(|m| Some((m.get(ours)?, m.get(REDIS)?)));
        pair.map_or(f64::NAN, |(ours, redis)| of(ours) / of(redis))
    };
    for (case, bound, text) in [
        ("GET P=16", 1.0 / 3.0, "1/3"),
        ("GET P=64", 1.0 / 5.0, "1/5"),
        ("MGET 70", 1.0 / 4.0, "1/4"),
        ("SET P=16", 1.0 / 2.5, "1/2.5"),
    ] {
        let measured = ratio(case, ADAPTIVE, |sample| sample.cpu_us);
        report.target(
            format!("server CPU per request, {case}: ≤ {text} of redis-server's"),
            measured,
            Bound::AtMost(bound),
        );
    }
    for case in ["GET P=1", "SET P=1"] {
        let measured = ratio(case, ADAPTIVE, |sample| sample.per_second);
        report.target(
            format!("throughput, {case}, 50 connections ≥ 1.3x redis-server's"),
            measured,
            Bound::AtLeast(1.3),
        );
        let measured = ratio(case, OFF, |sample| sample.per_second);
        report.target(
            format!("the same with --poll off, {case}"),
            measured,
            Bound::AtLeast(1.3),
        );
    }
}

/// The same comparison by a foreign generator.
pub(super) fn redis_benchmark(
    options: &Options,
    programs: &Programs,
    report: &mut Report,
) -> Result<()> {
    let Some(program) = find_program("redis-benchmark") else {
        report.note("redis-benchmark: SKIPPED, it is not installed.");
        return Ok(());
    };
    let servers = start_all(programs, options.size(1024, 256) * MIB)?;
    let mut rows = Vec::new();
    for pipeline in [1usize, 16, 64] {
        let requests = options.size(400_000, 200_000) / if pipeline == 1 { 4 } else { 1 };
        for command in ["set", "get"] {
            let mut figures = vec![Vec::new(); servers.len()];
            for _ in 0..options.rounds() {
                for (server, figures) in servers.iter().zip(&mut figures) {
                    figures.push(benchmark_once(
                        &program, server, command, pipeline, requests,
                    )?);
                }
            }
            for (server, figures) in servers.iter().zip(&figures) {
                let of = |n: usize| {
                    median(
                        &figures
                            .iter()
                            .map(|pair: &[f64; 2]| pair[n])
                            .collect::<Vec<_>>(),
                    )
                };
                progress!(
                    "redis-benchmark {command} P={pipeline} {}: {:.0}/s {:.2} µs",
                    server.name,
                    of(0),
                    of(1)
                );
                rows.push(
                    Row::new()
                        .with("case", format!("{} P={pipeline}", command.to_uppercase()))
                        .with("server", server.name.as_str())
                        .number("per second", of(0), 3)
                        .number("CPU µs", of(1), 3),
                );
            }
        }
    }
    report.table("The same by redis-benchmark -c 50 -d 100 -r 1000000", rows);
    Ok(())
}

/// Requests per second as reported by redis-benchmark, and server CPU per request in microseconds.
fn benchmark_once(
    program: &std::path::Path,
    server: &Server,
    command: &str,
    pipeline: usize,
    requests: u64,
) -> Result<[f64; 2]> {
    let (port, pipeline, count) = (
        server.address.port().to_string(),
        pipeline.to_string(),
        requests.to_string(),
    );
    let before_ns = server.cpu_ns()?;
    let output = std::process::Command::new(program)
        .args([
            "-p", &port, "-c", "50", "-d", "100", "-r", "1000000", "-n", &count, "-P", &pipeline,
            "-t", command, "--csv",
        ])
        .output()
        .doing("running redis-benchmark")?;
    let cpu_ns = server.cpu_ns()?.saturating_sub(before_ns);
    let text = String::from_utf8_lossy(&output.stdout);
    // "test","rps",… then one line per test.
    let line = text.lines().find(|line| {
        line.to_uppercase()
            .starts_with(&format!("\"{}\"", command.to_uppercase()))
    });
    let rate = line.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    let rate: f64 = rate.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Failure::new(
            format!("redis-benchmark against {}", server.name),
            format!("no result: {text}{errors}"),
        )
    })?;
    Ok([rate, cpu_ns as f64 / 1e3 / requests as f64])
}

/// Writes in random order, for the utilization part.
pub(super) fn random_sets(server: &Server, keys: u64, duration: Duration) -> Load {
    let mut load = Load::usual(server.address, Command::Set, 16);
    load.keys = keys;
    load.access = Access::Random(crate::harness::Distribution::Uniform);
    load.limit = Limit::Time(duration);
    load
}
