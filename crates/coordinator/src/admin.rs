//! Admin HTTP of a coordinator: `/status` `/metrics` `/livez` `/readyz`.
//!
//! **Invariants**
//! - A1: a peer has [`PATIENCE`] to send its request, of which at most [`HEAD_BYTES_MAX`] are read;
//!   one write waits as long at most; more than [`AT_ONCE`] peers at a time are turned away.

use crate::news::{News, Report, ask_report};
use crate::{Error, Role};
use duramen_net::Handle;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
const HEAD_BYTES_MAX: usize = 8 << 10;
const AT_ONCE: usize = 16;
/// Longest commit of a leader that counts as alive and ready; beyond it, the leader can do nothing
/// for its cluster.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// Serves for the process's lifetime; returns the real address.
pub(crate) fn listen(address: SocketAddr, driver: Handle<News>) -> Result<SocketAddr, Error> {
    let failed = |reason| Error::Listen { address, reason };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let real = listener.local_addr().map_err(failed)?;
    let serve = move || {
        let busy = Arc::new(());
        for stream in listener.incoming().flatten() {
            if Arc::strong_count(&busy) > AT_ONCE {
                continue; // which closes it
            }
            let (driver, busy) = (driver.clone(), Arc::clone(&busy));
            // If no thread can be started, the peer is turned away.
            let _ = std::thread::Builder::new()
                .name("admin".to_owned())
                .spawn(move || {
                    let _ = answer(stream, &driver);
                    drop(busy);
                });
        }
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(serve)
        .map_err(|reason| Error::System {
            doing: "start a thread",
            reason,
        })?;
    Ok(real)
}

fn answer(mut stream: TcpStream, driver: &Handle<News>) -> std::io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let mut words = head.split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let (code, kind, body) = match method {
        Some("GET") => page(path, driver),
        _ => (405, "text/plain", "only GET is answered\n".to_owned()),
    };
    let reason = match code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The request's head, cut off at [`HEAD_BYTES_MAX`]. Longer than [`PATIENCE`]: an error.
fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => head.extend_from_slice(&piece[..bytes]),
            // The process was stopped and continued.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn page(path: &str, driver: &Handle<News>) -> (u16, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let known = ["/livez", "/readyz", "/metrics", "/status"];
    if !known.contains(&path) {
        return (404, TEXT, format!("here are {}\n", known.join(" ")));
    }
    let Some(report) = ask_report(driver) else {
        return (503, TEXT, "the coordinator does not answer\n".to_owned());
    };
    shown(path, report)
}

fn shown(path: &str, report: Report) -> (u16, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    const JSON: &str = "application/json";
    match (path, report.role, report.status) {
        ("/livez" | "/readyz", ..) if report.store_waits > STORE_PATIENCE => {
            let seconds = report.store_waits.as_secs();
            let text = format!("its store has not taken a change for {seconds} s\n");
            (503, TEXT, text)
        }
        ("/livez", ..) => (200, TEXT, "ok\n".to_owned()),
        ("/metrics", ..) => (200, "text/plain; version=0.0.4", report.metrics),
        ("/readyz" | "/status", ..) if report.mistaken.is_some() => {
            let why = report.mistaken.unwrap_or_default();
            (503, TEXT, format!("not ready: {why}\n"))
        }
        ("/readyz", Role::Leader, _) => (200, TEXT, "leading\n".to_owned()),
        ("/readyz", Role::Standby(Some(leader)), _) => {
            (200, TEXT, format!("standing by; {leader} leads\n"))
        }
        ("/readyz", ..) => (503, TEXT, "no leader is known\n".to_owned()),
        (_, _, Some(status)) => (200, JSON, format!("{status}\n")),
        (_, Role::Standby(leader), None) => {
            let leader = leader.unwrap_or_else(|| "somebody else".to_owned());
            (503, TEXT, format!("not leading; {leader} leads\n"))
        }
        (_, Role::Leader, None) => (503, TEXT, "nothing is known yet\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leader whose disk hung was shown as alive and ready, while recoveries and `duramen status`
    /// waited for it.
    #[test]
    fn a_store_that_hangs_shows() {
        let page = |path, seconds| {
            let report = Report {
                role: Role::Leader,
                status: None,
                mistaken: None,
                store_waits: Duration::from_secs(seconds),
                metrics: String::new(),
            };
            shown(path, report).0
        };
        assert_eq!((page("/livez", 5), page("/livez", 6)), (200, 503));
        assert_eq!((page("/readyz", 5), page("/readyz", 6)), (200, 503));
        assert_eq!(page("/metrics", 6), 200);
    }

    /// A peer that sent a byte each second kept its thread for two hours: 16 of them kept `/livez`
    /// from everybody else.
    #[test]
    fn a_request_that_trickles_in_has_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let start = Instant::now();
        let sender = std::thread::spawn(move || {
            while start.elapsed() < 5 * PATIENCE && peer.write_all(b"x").is_ok() {
                std::thread::sleep(PATIENCE / 8);
            }
        });
        let error = read_head(&mut stream).expect_err("the time is over");
        assert!(start.elapsed() < 2 * PATIENCE, "{error}");
        drop(stream);
        sender.join().unwrap();
    }
}
