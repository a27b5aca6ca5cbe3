//! One server under load: the latency of reads and of writes as the load grows, and its throughput
//! by the number of clients. Ousterhout15 §5.4, Figures 12 and 13.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Distribution, Failure, Latencies, Options, Report, Result, Row, Scale, Series,
    median, progress,
};
use crate::servers::{Duramen, ProgramArgs, Programs, Redis, Server};
use duramen_load::{Access, Command, Limit, Load};
use std::time::Duration;

/// YCSB's exponent.
const ZIPF: f64 = 0.99;
/// Objects of Figure 12.
const LARGE_BYTES: usize = 1000;
/// Objects of Figure 13.
const SMALL_BYTES: usize = 100;
const MULTI: usize = 70;
/// Clients of Figure 12, one connection each.
const CONNECTIONS: usize = 20;
/// Bytes of memory for an object beside its value: header, key, index.
const BESIDE_BYTES: u64 = 64;
/// The server whose results are compared with the paper's.
const DURAMEN: &str = "duramen";

/// A request of Figure 13, and its number of keys.
const REQUESTS: [(&str, Command, usize); 2] = [
    ("GET", Command::Get, 1),
    ("MGET 70", Command::Mget(MULTI), MULTI),
];

/// A server under load: latency by offered load, throughput by clients
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LoadedFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Offered loads, rising, in percent of the most that the server did
    #[arg(long, value_delimiter = ',', default_value = "2,10,25,50,70,80,90")]
    pub percent: Vec<u32>,
    /// Numbers of clients, one connection each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub clients: Vec<usize>,
    /// Number of keys [default: 1000000; 100000 with --quick]
    #[arg(long, value_name = "N")]
    pub keys: Option<u64>,
    /// Milliseconds of a measurement [default: 2000; 600 with --quick]
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u64>,
}

impl Figure for LoadedFigure {
    const NAME: &'static str = "loaded";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// The sizes of a run.
struct Sizes {
    keys: u64,
    window: Duration,
    rounds: usize,
}

fn report(args: &LoadedFigure, options: &Options) -> Result<Report> {
    let about = "One server in memory, and its clients over loopback on the same machine. Latency: YCSB A (half GET, half SET, 1,000 B, Zipfian) is offered at \
        a fixed rate over 20 connections; a latency counts from the time when its request was due. `% of the most`: of the rate at which the same \
        connections load the server if each sends its next request at once. Throughput: each client has one connection and one request in flight, a \
        GET or an MGET of 70, of 100 B, uniform. `server cores`: user and system time of the server over the time of the run.";
    let mut report = Report::new("loaded", "A server under load", about, options);
    let programs = args.programs.find(&mut report)?;
    let sizes = Sizes {
        keys: args.keys.unwrap_or(options.size(1_000_000, 100_000)),
        window: Duration::from_millis(args.window_ms.unwrap_or(options.size(2000, 600))),
        rounds: options.rounds(),
    };
    latencies(args, &programs, &sizes, &mut report)?;
    clients(args, &programs, &sizes, &mut report)?;
    report.note(format!(
        "Duramen with {} reactor thread(s); the load generator has one thread, which polls its sockets while the rate is fixed. It shares the processors with \
         the server: where it is late, its lateness counts.",
        programs.threads
    ));
    Ok(report)
}

/// Duramen, and redis-server if it is installed, with all keys.
fn servers(programs: &Programs, sizes: &Sizes, value_bytes: usize) -> Result<Vec<Server>> {
    // Half full: cleaning is part of the load.
    let memory_bytes = (sizes.keys * (value_bytes as u64 + BESIDE_BYTES) * 2).max(96 << 20);
    let how = Duramen {
        program: programs.duramen.clone(),
        memory: format!("{}mb", memory_bytes >> 20),
        threads: programs.threads,
        poll: "adaptive",
        dir: None,
        level: "memory",
        more: Vec::new(),
    };
    let mut all = vec![Server::duramen(DURAMEN, &how)?];
    if let Some(redis) = &programs.redis {
        all.push(Server::redis(redis, Redis::No, &programs.dir)?);
    }
    for server in &all {
        let mut load = Load::usual(server.address, Command::Set, 64);
        (load.keys, load.value_bytes) = (sizes.keys, value_bytes);
        load.preload(0)?;
    }
    Ok(all)
}

/// Runs a load to its end.
///
/// # Errors
/// The server refused a request, or lacks a key.
fn run(load: &Load, server: &Server) -> Result<duramen_load::Outcome> {
    let outcome = load.run()?;
    match (outcome.errors, outcome.nulls) {
        (0, 0) => Ok(outcome),
        (errors, nulls) => Err(Failure::new(
            format!("loading {}", server.name),
            format!("{errors} requests were refused, {nulls} keys not found"),
        )),
    }
}

/// YCSB A by 20 connections, at a rate or as fast as they can.
fn ycsb_a(server: &Server, sizes: &Sizes, rate: Option<f64>) -> Load {
    let mixed = Command::Mixed { reads_percent: 50 };
    let mut load = Load::usual(server.address, mixed, 1);
    load.access = Access::Random(Distribution::Zipfian(ZIPF));
    (load.keys, load.value_bytes) = (sizes.keys, LARGE_BYTES);
    (load.connections, load.limit) = (CONNECTIONS, Limit::Time(sizes.window));
    load.rate = rate;
    load
}

/// The latencies of all rounds at one load, and the rate that was reached in each.
#[derive(Default)]
struct At {
    reads: Latencies,
    writes: Latencies,
    rates: Vec<f64>,
}

impl At {
    fn add(&mut self, outcome: &duramen_load::Outcome) {
        self.reads.add(&outcome.read_latencies);
        self.writes.add(&outcome.write_latencies);
        self.rates.push(outcome.requests_per_second());
    }

    fn row(&self, server: &Server, percent: u32) -> Row {
        let row = Row::new()
            .with("server", server.name.as_str())
            .with("% of the most", percent)
            .number("k operations/s", median(&self.rates) / 1e3, 3);
        [("GET", &self.reads), ("SET", &self.writes)]
            .iter()
            .fold(row, |row, (kind, latencies)| {
                let summary = latencies.summary();
                row.number(&format!("{kind} p50 µs"), summary.p50_us, 3)
                    .number(&format!("{kind} p90"), latencies.at_us(0.9), 3)
                    .number(&format!("{kind} p99"), summary.p99_us, 3)
                    .number(&format!("{kind} p99.9"), summary.p99_9_us, 3)
            })
    }
}

/// Figure 12.
fn latencies(
    args: &LoadedFigure,
    programs: &Programs,
    sizes: &Sizes,
    report: &mut Report,
) -> Result<()> {
    let all = servers(programs, sizes, LARGE_BYTES)?;
    let mut rates = vec![Vec::new(); all.len()];
    for _ in 0..sizes.rounds {
        for (server, rates) in all.iter().zip(&mut rates) {
            rates.push(run(&ycsb_a(server, sizes, None), server)?.requests_per_second());
        }
    }
    let most: Vec<f64> = rates.iter().map(|rates| median(rates)).collect();
    let (mut rows, mut p50_us) = (Vec::new(), Vec::new());
    let empty = || vec![Vec::new(); 2 * all.len()];
    let mut lines = [empty(), empty()];
    for &percent in &args.percent {
        let mut measured: Vec<At> = all.iter().map(|_| At::default()).collect();
        for _ in 0..sizes.rounds {
            for ((server, most), at) in all.iter().zip(&most).zip(&mut measured) {
                let rate = most * f64::from(percent) / 100.0;
                at.add(&run(&ycsb_a(server, sizes, Some(rate)), server)?);
            }
        }
        for (n, (server, at)) in all.iter().zip(&measured).enumerate() {
            rows.push(at.row(server, percent));
            let thousands = median(&at.rates) / 1e3;
            for (lines, latencies) in lines.iter_mut().zip([&at.reads, &at.writes]) {
                lines[2 * n].push((thousands, latencies.at_us(0.5)));
                lines[2 * n + 1].push((thousands, latencies.at_us(0.99)));
            }
            let (get_us, set_us) = (at.reads.at_us(0.5), at.writes.at_us(0.5));
            progress!(
                "{} at {percent} %: {get_us:.0} and {set_us:.0} µs",
                server.name
            );
            if server.name == DURAMEN {
                p50_us.push((percent, get_us));
            }
        }
    }
    let half = p50_us.iter().find(|(percent, _)| *percent == 50);
    report.target(
        "GET p50 at half of the most load / at the least load (paper: about 1) ≤ 1.5",
        half.map_or(f64::NAN, |(_, us)| us / p50_us[0].1),
        Bound::AtMost(1.5),
    );
    for (kind, lines) in ["GET", "SET"].iter().zip(lines) {
        plot_latencies(kind, &all, lines, report);
    }
    report.table("Latency by load, 1,000 B, YCSB A (Figure 12)", rows);
    Ok(())
}

/// Two lines of each server, p50 and p99.
fn plot_latencies(
    kind: &str,
    servers: &[Server],
    lines: Vec<Vec<(f64, f64)>>,
    report: &mut Report,
) {
    let names = servers
        .iter()
        .flat_map(|server| ["p50", "p99"].map(|tail| format!("{}, {tail}", server.name)));
    let lines = names
        .zip(lines)
        .map(|(name, points)| Series { name, points });
    let (title, x) = (format!("{kind} in YCSB A"), "k operations/s");
    let chart = Chart::lines(&title, x, "microseconds", lines.collect());
    let name = format!("latency-{}", kind.to_lowercase());
    report.plot(&name, &chart.scales(Scale::Linear, Scale::Log));
}

/// Figure 13.
fn clients(
    args: &LoadedFigure,
    programs: &Programs,
    sizes: &Sizes,
    report: &mut Report,
) -> Result<()> {
    let all = servers(programs, sizes, SMALL_BYTES)?;
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut most = [0.0f64; REQUESTS.len()];
    for ((name, command, keys), most) in REQUESTS.into_iter().zip(&mut most) {
        let mut points = vec![Vec::new(); all.len()];
        for &clients in &args.clients {
            let mut measured = vec![(Vec::new(), Vec::new()); all.len()];
            for _ in 0..sizes.rounds {
                for (server, (rates, cores)) in all.iter().zip(&mut measured) {
                    let mut load = Load::usual(server.address, command, 1);
                    (load.keys, load.connections) = (sizes.keys, clients);
                    load.limit = Limit::Time(sizes.window / 2);
                    let before_ns = server.cpu_ns()?;
                    let outcome = run(&load, server)?;
                    let cpu_ns = server.cpu_ns()?.saturating_sub(before_ns);
                    rates.push(outcome.requests_per_second() * keys as f64);
                    cores.push(cpu_ns as f64 / 1e9 / outcome.seconds);
                }
            }
            for (n, (server, (rates, cores))) in all.iter().zip(&measured).enumerate() {
                let rate = median(rates);
                progress!(
                    "{name}, {clients} clients: {}: {rate:.0} keys/s",
                    server.name
                );
                points[n].push((clients as f64, rate));
                if server.name == DURAMEN {
                    *most = most.max(rate);
                }
                let row = Row::new()
                    .with("requests", name)
                    .with("server", server.name.as_str())
                    .with("clients", clients)
                    .number("keys/s", rate, 3);
                rows.push(
                    row.number(
                        "least",
                        rates.iter().copied().fold(f64::INFINITY, f64::min),
                        3,
                    )
                    .number("most", rates.iter().copied().fold(0.0, f64::max), 3)
                    .number("server cores", median(cores), 2),
                );
            }
        }
        lines.extend(all.iter().zip(points).map(|(server, points)| Series {
            name: format!("{}, {name}", server.name),
            points,
        }));
    }
    report.target(
        "most keys/s by MGET of 70 / by GET (paper: 6.7) ≥ 6.7",
        most[1] / most[0],
        Bound::AtLeast(6.7),
    );
    let chart = Chart::lines("Reads by clients", "clients", "keys per second", lines);
    report.plot("clients", &chart.scales(Scale::Log, Scale::Log));
    report.table("Throughput by clients, 100 B (Figure 13)", rows);
    Ok(())
}
