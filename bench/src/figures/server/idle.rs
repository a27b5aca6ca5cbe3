//! The cost of a server at rest, and its start time.

use super::{ADAPTIVE, OFF, REDIS, start_all, start_duramen};
use crate::harness::{Bound, Doing, Options, Report, Result, Row, machine, median, progress};
use crate::servers::{Programs, Server};
use duramen_base::units::{GIB, MIB};
use duramen_load::{Command, Limit, Load};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const IDLE_CONNECTIONS: usize = 10_000;
/// Time after the last request within which a server must be asleep.
const SETTLE: Duration = Duration::from_secs(2);

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for server in start_all(programs, 256 * MIB)? {
        let percent = idle_percent(&server, Duration::from_secs(options.size(5, 3)))?;
        let bytes = bytes_per_connection(&server)?;
        progress!(
            "{}: {percent:.3} % of a core idle, {bytes:.0} bytes per idle connection",
            server.name
        );
        if server.name != REDIS {
            let target = format!(
                "{}: CPU {} s after the last request, % of a core = 0 (≤ 0.1)",
                server.name,
                SETTLE.as_secs()
            );
            report.target(target, percent, Bound::AtMost(0.1));
        }
        if server.name == ADAPTIVE {
            let target = format!("{IDLE_CONNECTIONS} idle connections cost ≤ 4 KB each (bytes)");
            report.target(target, bytes, Bound::AtMost(4096.0));
        }
        rows.push(
            Row::new()
                .with("server", server.name.as_str())
                .number("CPU when idle, % of a core", percent, 2)
                .number("RSS per idle connection, bytes", bytes, 3),
        );
    }
    let mut start_ms = Vec::new();
    for _ in 0..options.rounds() {
        let server = start_duramen(programs, OFF, GIB, "off")?;
        start_ms.push(server.start_time.as_secs_f64() * 1e3);
    }
    report.target(
        "start with 1 GB, until PING is answered ≤ 100 ms",
        median(&start_ms),
        Bound::AtMost(100.0),
    );
    report.table("Idle cost", rows);
    report.note(format!(
        "Start of duramen with 1 GB: {:.1} ms (median), from creating the process to its PONG.",
        median(&start_ms)
    ));
    Ok(())
}

/// Processor time without requests, after a short load has ended and [`SETTLE`] has passed.
fn idle_percent(server: &Server, window: Duration) -> Result<f64> {
    let mut load = Load::usual(server.address, Command::Get, 1);
    load.limit = Limit::Time(Duration::from_millis(200));
    load.run()?;
    std::thread::sleep(SETTLE);
    let (before_ns, begun) = (server.cpu_ns()?, Instant::now());
    std::thread::sleep(window);
    Ok((server.cpu_ns()? - before_ns) as f64 / begun.elapsed().as_nanos() as f64 * 100.0)
}

/// Growth of RSS by connections that sent one PING and then nothing.
fn bytes_per_connection(server: &Server) -> Result<f64> {
    machine::raise_file_limit()?;
    let before = server.rss_bytes()?;
    // One fewer, because a server may still count the connection of the load before as open.
    let wanted = IDLE_CONNECTIONS - 1;
    let mut connections = Vec::with_capacity(wanted);
    for n in 0..wanted {
        let mut stream =
            TcpStream::connect(server.address).doing(format!("opening connection {n}"))?;
        std::io::Write::write_all(&mut stream, b"PING\r\n").doing("sending PING")?;
        let mut reply = [0; 7];
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .doing("waiting for PONG")?;
        std::io::Read::read_exact(&mut stream, &mut reply)
            .doing(format!("waiting for PONG {n}"))?;
        connections.push(stream);
    }
    let after = server.rss_bytes()?;
    Ok(after.saturating_sub(before) as f64 / wanted as f64)
}
