//! Commands of collections, scripts and transactions: processor time of the server per request.

use super::{Sizes, targets};
use crate::harness::{Bound, Doing, Failure, Report, Result, Row, progress};
use crate::servers::{Costs, Server};
use duramen_load::{Access, Command, Limit, Load, key};
use duramen_wire::resp::{ReplySkipper, RequestEncoder};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A name, and the words of a command ([`Command::Words`]).
type Case = (&'static str, &'static [&'static str]);

const COMMANDS: [Case; 11] = [
    ("HSET", &["HSET", "h:{key}", "field", "value"]),
    ("HGET", &["HGET", "h:{key}", "field"]),
    ("LPUSH", &["LPUSH", "l:{key}", "value"]),
    ("RPOP", &["RPOP", "l:{key}"]),
    ("SADD", &["SADD", "s:{key}", "member"]),
    ("SISMEMBER", &["SISMEMBER", "s:{key}", "member"]),
    ("ZADD", &["ZADD", "z:{key}", "1", "member"]),
    ("ZRANGE", &["ZRANGE", "z:{key}", "0", "-1"]),
    (
        "XADD MAXLEN 10",
        &["XADD", "x:{key}", "MAXLEN", "10", "*", "field", "value"],
    ),
    ("SET", &["SET", "k:{key}", "{value}"]),
    ("GET", &["GET", "k:{key}"]),
];

/// A fixed window of a minute: at most 100 requests of a key.
const LIMITER: Case = (
    "EVAL of a rate limiter",
    &[
        "EVAL",
        "local c = redis.call('INCR', KEYS[1]) if c == 1 then redis.call('EXPIRE', KEYS[1], 60) end \
         if c > 100 then return 0 end return 1",
        "1",
        "r:{key}",
    ],
);

const HASH: &[&str] = &[
    "HSET",
    "{key}",
    "name",
    "alice",
    "age",
    "42",
    "city",
    "vienna",
    "mail",
    "alice@example.org",
    "n",
    "1",
];

fn measure(servers: &[Server], command: Command, sizes: &Sizes) -> Result<Costs> {
    Costs::in_turns(servers, sizes.rounds, |server| {
        let mut load = Load::usual(server.address, command, 16);
        (load.keys, load.limit) = (sizes.keys, Limit::Time(sizes.window));
        let (outcome, cpu_us) = server.cost_of(&load)?;
        Ok((outcome.requests_per_second(), cpu_us))
    })
}

fn rows(name: &str, servers: &[Server], costs: &Costs) -> Vec<Row> {
    let all = servers.iter().enumerate();
    all.map(|(n, server)| {
        Row::new()
            .with("request", name)
            .with("server", server.name.as_str())
            .number("requests/s", costs.rates[n], 3)
            .number("CPU, µs", costs.cpu_us[n], 3)
            .number("CPU / duramen's", costs.cpu_us[n] / costs.cpu_us[0], 3)
    })
    .collect()
}

/// The processor times beside Duramen's.
fn ratios(costs: &Costs) -> Vec<f64> {
    let own = costs.cpu_us[0];
    costs.cpu_us.iter().map(|other| other / own).collect()
}

pub(super) fn commands(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    for (name, words) in COMMANDS {
        let costs = measure(servers, Command::Words(words), sizes)?;
        progress!("{name}: CPU {:.2?} us", costs.cpu_us);
        all.extend(rows(name, servers, &costs));
        let what = format!("{name}, CPU per request");
        targets(report, &what, servers, &ratios(&costs), 2.0);
    }
    let keys = sizes.keys;
    report.table(
        &format!("50 connections, 16 requests in flight on each, {keys} keys"),
        all,
    );
    Ok(())
}

pub(super) fn scripts(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (name, words) = LIMITER;
    let costs = measure(servers, Command::Words(words), sizes)?;
    progress!("{name}: {:.0?} requests/s", costs.rates);
    report.table(
        "A rate limiter's script (INCR, EXPIRE at the first, a comparison): Duramen with two threads",
        rows(name, servers, &costs),
    );
    let others = costs.rates.iter();
    let ratios: Vec<f64> = others.map(|other| costs.rates[0] / other).collect();
    let what = format!("{name}, requests/s with two threads");
    targets(report, &what, servers, &ratios, 2.0);
    Ok(())
}

/// Batches of transactions on few connections: each batch is sent as a whole, and its replies are
/// read.
pub(super) fn transactions(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let name = "EXEC of 5 commands";
    let run = |server: &Server| transactions_of(server, sizes);
    let costs = Costs::in_turns(servers, sizes.rounds, run)?;
    progress!("{name}: CPU {:.2?} us", costs.cpu_us);
    report.table(
        "MULTI, SET, GET, HSET, HGET, INCR of random keys, EXEC: 16 connections, 16 transactions in flight on each; per transaction",
        rows(name, servers, &costs),
    );
    let what = format!("{name}, CPU per transaction");
    targets(report, &what, servers, &ratios(&costs), 2.0);
    Ok(())
}

const BATCH: usize = 16;

fn transactions_of(server: &Server, sizes: &Sizes) -> Result<(f64, f64)> {
    let doing = || format!("transactions against {}", server.name);
    let mut sockets = Vec::new();
    for _ in 0..16 {
        let socket = TcpStream::connect(server.address).doing(doing())?;
        socket.set_nodelay(true).doing(doing())?;
        sockets.push(socket);
    }
    let mut random = duramen_load::Random::new(duramen_load::fresh_seed());
    let mut one = |out: &mut Vec<u8>| {
        let mut name = |kind: char| format!("{kind}:{}", key(random.below(sizes.keys)));
        let (string, hash, number) = (name('k'), name('h'), name('n'));
        let requests: [&[&str]; 7] = [
            &["MULTI"],
            &["SET", &string, "value"],
            &["GET", &string],
            &["HSET", &hash, "field", "value"],
            &["HGET", &hash, "field"],
            &["INCR", &number],
            &["EXEC"],
        ];
        for request in requests {
            RequestEncoder::new(out).request(request);
        }
    };
    let batches: Vec<Vec<u8>> = (0..512)
        .map(|_| {
            let mut bytes = Vec::new();
            (0..BATCH).for_each(|_| one(&mut bytes));
            bytes
        })
        .collect();
    let (mut done, begun, before) = (0, Instant::now(), server.cpu_ns()?);
    let mut batches = batches.iter().cycle();
    while begun.elapsed() < sizes.window {
        for socket in &mut sockets {
            let batch = batches.next().map(Vec::as_slice).unwrap_or_default();
            socket.write_all(batch).doing(doing())?;
        }
        for socket in &mut sockets {
            read_replies(socket, 7 * BATCH).doing(doing())?;
            done += BATCH;
        }
    }
    let (seconds, cpu_ns) = (begun.elapsed().as_secs_f64(), server.cpu_ns()? - before);
    Ok((done as f64 / seconds, cpu_ns as f64 / 1000.0 / done as f64))
}

/// Reads this many replies, none of which may be an error.
pub(super) fn read_replies(socket: &mut TcpStream, count: usize) -> std::io::Result<()> {
    let (mut skipper, mut rest) = (ReplySkipper::default(), Vec::new());
    let mut buffer = [0; 64 * 1024];
    let mut seen = 0;
    while seen < count {
        let bytes = socket.read(&mut buffer)?;
        if bytes == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        rest.extend_from_slice(&buffer[..bytes]);
        let passed = skipper.advance(&rest).map_err(std::io::Error::other)?;
        if passed.errors > 0 {
            let text = String::from_utf8_lossy(&rest)
                .chars()
                .take(200)
                .collect::<String>();
            return Err(std::io::Error::other(text));
        }
        seen += passed.replies;
        rest.drain(..passed.bytes);
    }
    Ok(())
}

pub(super) fn memory(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for server in servers {
        let mut load = Load::usual(server.address, Command::Words(HASH), 16);
        load.keys = sizes.hashes;
        load.access = Access::Sequential { from: 0 };
        load.limit = Limit::Requests(sizes.hashes);
        let before = server.rss_bytes()?;
        let outcome = load.run()?;
        if outcome.errors > 0 {
            let what = format!("writing hashes to {}", server.name);
            return Err(Failure::new(what, format!("{} refused", outcome.errors)));
        }
        // Threads behind the requests end their work.
        std::thread::sleep(Duration::from_millis(500));
        let bytes = server.rss_bytes()?.saturating_sub(before) as f64 / sizes.hashes as f64;
        rows.push(Row::new().with("server", server.name.as_str()).number(
            "bytes per hash",
            bytes,
            3,
        ));
        all.push(bytes);
    }
    let what = format!(
        "Growth of RSS by {} hashes of five fields, 41 bytes",
        sizes.hashes
    );
    report.table(&what, rows);
    for (server, bytes) in servers.iter().zip(&all).skip(1) {
        let what = format!("memory per small hash / {}'s ≤ 0.8", server.name);
        report.target(what, all[0] / bytes, Bound::AtMost(0.8));
    }
    Ok(())
}
