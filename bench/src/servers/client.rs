//! A blocking client for single requests: PING, INFO, DBSIZE.

use crate::harness::{Doing, Failure, Result};
use duramen_wire::resp::{Reply, ReplyLimits, ReplyParser, RequestEncoder};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends one request on a connection of its own.
pub fn ask(server: SocketAddr, request: &[&str]) -> Result<Reply> {
    let doing = || format!("asking {server}: {}", request.join(" "));
    let mut stream = TcpStream::connect(server).doing(doing())?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .doing(doing())?;
    let mut bytes = Vec::new();
    RequestEncoder::new(&mut bytes).request(request);
    stream.write_all(&bytes).doing(doing())?;
    let mut parser = ReplyParser::new(ReplyLimits::default());
    match parser.read_from(&mut stream).doing(doing())? {
        Reply::Error(text) => Err(Failure::new(doing(), text)),
        reply => Ok(reply),
    }
}

/// A numeric field of INFO; `None` if the server has no such field.
pub fn info_number(server: SocketAddr, field: &str) -> Result<Option<f64>> {
    let reply = ask(server, &["INFO"])?;
    let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.and_then(|number| number.trim().parse().ok()))
}
