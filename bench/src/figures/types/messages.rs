//! PUBLISH to many subscribers, and clients that wake each other.

use super::collections::read_replies;
use super::{Sizes, targets};
use crate::harness::{Contender, Doing, Report, Result, Row, alternate, machine, progress};
use crate::servers::{Costs, Server};
use duramen_wire::resp::RequestEncoder;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Messages sent before the subscribers read.
const AT_ONCE: usize = 10;
const CHANNEL: &str = "news";

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    RequestEncoder::new(&mut bytes).request(words);
    bytes
}

fn connect(server: &Server) -> Result<TcpStream> {
    let doing = || format!("connecting to {}", server.name);
    let socket = TcpStream::connect(server.address).doing(doing())?;
    socket.set_nodelay(true).doing(doing())?;
    let limit = Some(Duration::from_secs(30));
    socket.set_read_timeout(limit).doing(doing())?;
    Ok(socket)
}

/// Steps between subscribers that are read one after another; prime to their number. In the order
/// of subscription, or in its reverse, the reader would wait for each send of a server that sends
/// in that order: each send would wake it, and waking is the sender's processor time.
const READ_STEP: usize = 389;

/// Processor time of the server per delivered message.
pub(super) fn publish(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let run = |server: &Server| publish_to(server, sizes);
    let Costs { rates, cpu_us } = Costs::in_turns(servers, sizes.rounds, run)?;
    progress!("PUBLISH: CPU {cpu_us:.2?} us per message");
    let mut rows = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        rows.push(
            Row::new()
                .with("server", server.name.as_str())
                .number("deliveries/s", rates[n], 3)
                .number("CPU per delivery, µs", cpu_us[n], 3),
        );
    }
    report.table(
        &format!(
            "PUBLISH of 100 bytes to {} subscribers, {AT_ONCE} messages in flight; the readers take processor time too",
            sizes.subscribers
        ),
        rows,
    );
    let ratios: Vec<f64> = cpu_us.iter().map(|other| other / cpu_us[0]).collect();
    targets(report, "PUBLISH, CPU per delivery", servers, &ratios, 1.5);
    Ok(())
}

fn publish_to(server: &Server, sizes: &Sizes) -> Result<(f64, f64)> {
    let doing = || format!("publishing on {}", server.name);
    let mut subscribers = Vec::new();
    let subscribe = request(&["SUBSCRIBE", CHANNEL]);
    for _ in 0..sizes.subscribers {
        let mut socket = connect(server)?;
        socket.write_all(&subscribe).doing(doing())?;
        read_replies(&mut socket, 1).doing(doing())?;
        subscribers.push(socket);
    }
    let mut publisher = connect(server)?;
    let text = "x".repeat(100);
    let batch = request(&["PUBLISH", CHANNEL, &text]).repeat(AT_ONCE);
    let mut expected = vec![0; request(&["message", CHANNEL, &text]).len() * AT_ONCE];
    let (begun, before) = (Instant::now(), server.cpu_ns()?);
    for _ in 0..sizes.publications / AT_ONCE {
        publisher.write_all(&batch).doing(doing())?;
        read_replies(&mut publisher, AT_ONCE).doing(doing())?;
        for n in 0..subscribers.len() {
            let at = n * READ_STEP % subscribers.len();
            subscribers[at].read_exact(&mut expected).doing(doing())?;
        }
    }
    let (seconds, cpu_ns) = (begun.elapsed().as_secs_f64(), server.cpu_ns()? - before);
    let deliveries = (sizes.publications / AT_ONCE * AT_ONCE * sizes.subscribers) as f64;
    Ok((deliveries / seconds, cpu_ns as f64 / 1000.0 / deliveries))
}

/// Round trips per second of two clients that wait for each other's LPUSH. Where the kernel places
/// the server and the clients decides more than the servers do, so each placement is measured.
pub(super) fn ping_pong(servers: &[Server], sizes: &Sizes, report: &mut Report) -> Result<()> {
    let (own, cores) = (std::process::id(), machine::cores());
    let mut rows = Vec::new();
    for (place, core) in [("the clients' core", 0), ("another core", 1)] {
        if core >= cores {
            continue;
        }
        machine::tie(own, 0..1)?;
        let measured = at(core, servers, sizes);
        machine::tie(own, 0..cores)?;
        let rates = measured?;
        progress!("BLPOP, servers on {place}: {rates:.0?} wakes/s");
        let row = |(server, rate): (&Server, &f64)| {
            let row = Row::new().with("servers on", place);
            let row = row.with("server", server.name.as_str());
            row.number("wakes/s", *rate, 3)
        };
        rows.extend(servers.iter().zip(&rates).map(row));
        let ratios: Vec<f64> = rates.iter().map(|other| rates[0] / other).collect();
        let what = format!("BLPOP, wakes/s, servers on {place}");
        targets(report, &what, servers, &ratios, 1.0);
    }
    report.table(
        "BLPOP: two clients wake each other by LPUSH, one at a time",
        rows,
    );
    Ok(())
}

/// With all servers on this core.
fn at(core: usize, servers: &[Server], sizes: &Sizes) -> Result<Vec<f64>> {
    for server in servers {
        server.tie(core..core + 1)?;
    }
    let contenders = servers.iter().map(|server| {
        Contender::new(server.name.as_str(), move || {
            round_trips(server, sizes.round_trips)
        })
    });
    alternate(sizes.rounds, &mut contenders.collect::<Vec<_>>())
}

fn round_trips(server: &Server, count: usize) -> Result<f64> {
    let doing = || format!("BLPOP on {}", server.name);
    let mut clients = [connect(server)?, connect(server)?];
    let (wait, wake) = (
        request(&["BLPOP", "queue", "0"]),
        request(&["LPUSH", "queue", "x"]),
    );
    let begun = Instant::now();
    for _ in 0..count {
        clients[0].write_all(&wait).doing(doing())?;
        clients[1].write_all(&wake).doing(doing())?;
        read_replies(&mut clients[1], 1).doing(doing())?;
        read_replies(&mut clients[0], 1).doing(doing())?;
        clients.swap(0, 1);
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
