//! The cost of TLS: requests, handshakes and idle connections, beside Redis or Valkey with TLS.
//!
//! Each server has a port without TLS and one with it, so both ways are measured on one process.
//! All use the same certificate, TLS 1.3, and ask clients for none.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Report, Result, Row, machine, progress,
};
use crate::servers::{Costs, Duramen, ProgramArgs, Programs, Redis, Scratch, Server, find_program};
use duramen_load::{Command, Limit, Load, Tls};
use duramen_tls::{Identity, Protocols, Settings, Stream};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HOST: &str = "127.0.0.1";
const DURAMEN: &str = "duramen";

/// A request and its number in flight per connection.
const CASES: [(&str, Command, usize); 4] = [
    ("GET P=1", Command::Get, 1),
    ("GET P=16", Command::Get, 16),
    ("SET P=1", Command::Set, 1),
    ("SET P=16", Command::Set, 16),
];
/// The case that the targets speak of.
const TARGET_CASE: &str = "GET P=16";

/// The cost of TLS: requests, handshakes, idle connections, beside Redis or Valkey with TLS
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TlsFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// The program `valkey-server`, built with TLS; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub valkey: Option<PathBuf>,
    /// Idle connections [default: 10000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    pub idle: Option<usize>,
    /// Milliseconds of a measurement [default: 2000; 600 with --quick]
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u64>,
}

impl Figure for TlsFigure {
    const NAME: &'static str = "tls";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// Numbers of a run.
struct Sizes {
    keys: u64,
    window: Duration,
    rounds: usize,
    handshakes: usize,
    idle: usize,
}

fn report(args: &TlsFigure, options: &Options) -> Result<Report> {
    let about = "Servers in memory, and their clients over loopback on the same machine: 50 connections, 100-byte values, one thread of the generator, which encrypts \
        too. Server CPU: user and system time of the server's process per request. Handshakes: TLS 1.3 with a certificate of the server (ECDSA, P-256), without \
        resumption, one after the other; each ends with a PING. Idle connections: growth of the server's RSS by connections that have sent one PING.";
    let mut report = Report::new("tls", "TLS", about, options);
    let programs = args.programs.find(&mut report)?;
    machine::raise_file_limit()?;
    let sizes = Sizes {
        keys: options.size(1_000_000, 100_000),
        window: Duration::from_millis(args.window_ms.unwrap_or(options.size(2000, 600))),
        rounds: options.rounds(),
        handshakes: options.size(2000, 300),
        idle: args.idle.unwrap_or(options.size(10_000, 1000)),
    };
    let files = Scratch::new(&programs.dir).doing("making a directory for certificates")?;
    let certificates = Certificates::make(&programs.duramen, files.path())?;
    let servers = servers(args, &programs, &certificates, files.path(), &sizes)?;
    requests(&servers, &certificates, &sizes, &mut report)?;
    connections(&servers, &certificates, &sizes, &mut report)?;
    report.note(format!(
        "Duramen with {} reactor thread(s), the others with one.",
        programs.threads
    ));
    Ok(report)
}

/// The files of the servers' certificate and of its authority.
struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    authority: PathBuf,
}

impl Certificates {
    /// Makes them with `duramen cert init`.
    fn make(program: &Path, dir: &Path) -> Result<Certificates> {
        let doing = || format!("making certificates in {}", dir.display());
        let output = std::process::Command::new(program)
            .args(["cert", "init", "--san", HOST])
            .arg(dir)
            .output()
            .doing(doing())?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::new(doing(), text));
        }
        Ok(Certificates {
            certificate: dir.join("server.crt"),
            key: dir.join("server.key"),
            authority: dir.join("ca.crt"),
        })
    }

    /// A client that knows the authority, and no session of before.
    fn client(&self) -> Result<Identity> {
        let settings = Settings {
            ca_file: self.authority.clone(),
            protocols: Protocols::TLS13,
            ..Settings::default()
        };
        Identity::load(settings).doing("reading the authority's certificate")
    }

    /// The flags of a server, which Duramen and Redis call the same.
    fn flags(&self) -> Vec<String> {
        let named = [
            ("--tls-cert-file", self.certificate.display().to_string()),
            ("--tls-key-file", self.key.display().to_string()),
            ("--tls-ca-cert-file", self.authority.display().to_string()),
            ("--tls-auth-clients", "no".to_owned()),
            ("--tls-protocols", "TLSv1.3".to_owned()),
        ];
        named
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect()
    }
}

/// A server, with the address of its port with TLS.
struct Side {
    server: Server,
    encrypted: std::net::SocketAddr,
}

fn servers(
    args: &TlsFigure,
    programs: &Programs,
    certificates: &Certificates,
    dir: &Path,
    sizes: &Sizes,
) -> Result<Vec<Side>> {
    let side = |start: &dyn Fn(Vec<String>) -> Result<Server>| {
        let encrypted = Server::free_address().doing("looking for a free port")?;
        let mut more = certificates.flags();
        more.extend(["--tls-port".to_owned(), encrypted.port().to_string()]);
        let server = start(more)?;
        let mut load = Load::usual(server.address, Command::Set, 64);
        load.keys = sizes.keys;
        load.preload(0)?;
        Ok::<_, Failure>(Side { server, encrypted })
    };
    let duramen = |more| {
        let how = Duramen {
            program: programs.duramen.clone(),
            memory: "1gb".to_owned(),
            threads: programs.threads,
            poll: "adaptive",
            dir: None,
            level: "memory",
            more,
        };
        Server::duramen(DURAMEN, &how)
    };
    let mut all = vec![side(&duramen)?];
    let valkey = args
        .valkey
        .clone()
        .or_else(|| find_program("valkey-server"));
    let peers = [("redis", &programs.redis), ("valkey", &valkey)];
    for (name, program) in peers {
        if let Some(program) = program {
            let start =
                |more: Vec<String>| Server::redis_with(name, program, Redis::No, dir, &more);
            all.push(side(&start)?);
        }
    }
    Ok(all)
}

/// Requests per second and processor time per request, with TLS and without.
fn requests(
    sides: &[Side],
    certificates: &Certificates,
    sizes: &Sizes,
    report: &mut Report,
) -> Result<()> {
    let tls = Tls {
        identity: Arc::new(certificates.client()?),
        host: HOST.to_owned(),
    };
    let (mut rows, mut bars) = (Vec::new(), Vec::<(String, Vec<f64>)>::new());
    for (case, command, pipeline) in CASES {
        let mut ways = Vec::new();
        for side in sides {
            for tls in [None, Some(&tls)] {
                ways.push((side, tls));
            }
        }
        let costs = Costs::in_turns(&ways, sizes.rounds, |(side, tls)| {
            rate(side, *tls, command, pipeline, sizes)
        })?;
        let Costs { rates, cpu_us: cpu } = costs;
        progress!("{case}: {rates:.0?} requests/s");
        for (n, (side, tls)) in ways.iter().enumerate() {
            let plain = n - n % 2;
            let way = if tls.is_some() { "TLS" } else { "plain" };
            let name = format!("{}, {way}", side.server.name);
            rows.push(
                Row::new()
                    .with("requests", case)
                    .with("server", name.as_str())
                    .number("requests/s", rates[n], 3)
                    .number("of plain", rates[n] / rates[plain], 3)
                    .number("CPU, µs", cpu[n], 3)
                    .number("plain's CPU / this", cpu[plain] / cpu[n], 3),
            );
            match bars.iter_mut().find(|(known, _)| *known == name) {
                Some((_, values)) => values.push(rates[n]),
                None => bars.push((name, vec![rates[n]])),
            }
        }
        if case == TARGET_CASE {
            targets(sides, &rates, &cpu, report);
        }
    }
    report.table("50 connections", rows);
    let groups = CASES.map(|(case, ..)| case.to_owned()).into();
    let chart = Chart::bars("With TLS and without", "requests per second", groups, bars);
    report.plot("", &chart);
    Ok(())
}

/// The targets of one case. `rates` and `cpu` have two numbers for each side: without and with TLS.
fn targets(sides: &[Side], rates: &[f64], cpu: &[f64], report: &mut Report) {
    let text = format!("{TARGET_CASE}: TLS / plain ≥ 0.6");
    report.target(text, rates[1] / rates[0], Bound::AtLeast(0.6));
    for (n, side) in sides.iter().enumerate().skip(1) {
        let name = &side.server.name;
        let (faster, less) = (rates[1] / rates[2 * n + 1], cpu[2 * n + 1] / cpu[1]);
        let text = format!("{TARGET_CASE} with TLS / {name} ≥ 2");
        report.target(text, faster, Bound::AtLeast(2.0));
        let text = format!("{TARGET_CASE} with TLS: {name}'s CPU / duramen's ≥ 2");
        report.target(text, less, Bound::AtLeast(2.0));
    }
}

/// Requests per second, and microseconds of the server's processor time per request.
fn rate(
    side: &Side,
    tls: Option<&Tls>,
    command: Command,
    pipeline: usize,
    sizes: &Sizes,
) -> Result<(f64, f64)> {
    let mut load = Load::usual(side.server.address, command, pipeline);
    (load.keys, load.limit) = (sizes.keys, Limit::Time(sizes.window));
    if tls.is_some() {
        load.server = side.encrypted;
        load.tls = tls.cloned();
    }
    let (outcome, cpu_us) = side.server.cost_of(&load)?;
    match outcome.nulls {
        0 => Ok((outcome.requests_per_second(), cpu_us)),
        nulls => Err(Failure::new(
            format!("loading {}", side.server.name),
            format!("{nulls} keys were not found"),
        )),
    }
}

/// Handshakes, and the memory of idle connections.
fn connections(
    sides: &[Side],
    certificates: &Certificates,
    sizes: &Sizes,
    report: &mut Report,
) -> Result<()> {
    let costs = Costs::in_turns(sides, sizes.rounds, |side| {
        handshakes(side, certificates, sizes.handshakes)
    })?;
    let Costs { rates, cpu_us: cpu } = costs;
    let mut rows = Vec::new();
    for (n, side) in sides.iter().enumerate() {
        let name = &side.server.name;
        let bytes = idle_bytes(side, certificates, sizes.idle)?;
        progress!(
            "{name}: {:.0} us per handshake, {bytes:.0} B per idle connection",
            cpu[n]
        );
        rows.push(
            Row::new()
                .with("server", name.as_str())
                .number("handshakes/s", rates[n], 3)
                .number("CPU per handshake, µs", cpu[n], 3)
                .number("RSS per idle connection, bytes", bytes, 3),
        );
        if n == 0 {
            let text = format!("{} idle connections cost ≤ 40 KB each (bytes)", sizes.idle);
            report.target(text, bytes, Bound::AtMost(40_000.0));
        } else {
            let text = format!("handshakes: {name}'s CPU / duramen's ≥ 2");
            report.target(text, cpu[n] / cpu[0], Bound::AtLeast(2.0));
        }
    }
    report.table("Handshakes and idle connections", rows);
    Ok(())
}

/// A connection after its handshake and its first PING.
fn connect(side: &Side, identity: &Identity) -> Result<Stream> {
    let doing = || format!("connecting to {} by TLS", side.server.name);
    let socket = TcpStream::connect(side.encrypted).doing(doing())?;
    let limit = Some(Duration::from_secs(30));
    socket.set_read_timeout(limit).doing(doing())?;
    socket.set_nodelay(true).doing(doing())?;
    let mut stream = Stream::connect(identity, HOST, socket).doing(doing())?;
    stream.write_all(b"PING\r\n").doing(doing())?;
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).doing(doing())?;
    if pong != *b"+PONG\r\n" {
        return Err(Failure::new(doing(), "it does not answer PING"));
    }
    Ok(stream)
}

/// Handshakes per second, and microseconds of the server's processor time for each.
fn handshakes(side: &Side, certificates: &Certificates, count: usize) -> Result<(f64, f64)> {
    // A new identity has no ticket of the session before.
    let identities: Vec<Identity> = (0..count)
        .map(|_| certificates.client())
        .collect::<Result<_>>()?;
    let before = side.server.cpu_ns()?;
    let begun = Instant::now();
    for identity in &identities {
        connect(side, identity)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_ns = side.server.cpu_ns()? - before;
    Ok((
        count as f64 / seconds,
        cpu_ns as f64 / 1000.0 / count as f64,
    ))
}

/// Growth of the server's RSS by connections that have sent one PING.
fn idle_bytes(side: &Side, certificates: &Certificates, count: usize) -> Result<f64> {
    let identity = certificates.client()?;
    let before = side.server.rss_bytes()?;
    let open: Vec<Stream> = (0..count)
        .map(|_| connect(side, &identity))
        .collect::<Result<_>>()?;
    let after = side.server.rss_bytes()?;
    Ok(after.saturating_sub(before) as f64 / open.len() as f64)
}
