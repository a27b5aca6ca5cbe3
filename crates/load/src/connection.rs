//! One non-blocking connection with at most one pipeline of requests in flight.

use super::native;
use crate::{Doing, Failure, Load, Login, Result, Tls};
use duramen_tls::{ROOM_BYTES_MIN, Received, Session};
use duramen_wire::resp::{ReplySkipper, RequestEncoder};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Longest reply to a login: an error has a line.
const LOGIN_REPLY_BYTES_MAX: usize = 16 << 10;

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    tls: Option<Box<Session>>,
    skipper: ReplySkipper,
    native: bool,
    output: Vec<u8>,
    /// Bytes of `output` that the kernel has accepted.
    sent: usize,
    /// Bytes received that do not yet make a whole header line.
    rest: Vec<u8>,
    /// Replies still to come.
    pub(super) waiting: u64,
    /// Requests of the pipeline in flight.
    pub(super) pipelined: u64,
    /// Those of them that write.
    pub(super) writes: u64,
    /// The time when it was sent, or due, in ticks.
    pub(super) since: u64,
    /// The kernel accepted only a part: wait until the socket is writable.
    pub(super) blocked: bool,
}

/// The replies received in one turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    pub(super) errors: u64,
    pub(super) nulls: u64,
    /// Whether the pipeline is answered.
    pub(super) complete: bool,
}

impl Connection {
    pub(super) fn open(load: &Load) -> Result<Connection> {
        let doing = || format!("connecting to {}", load.server);
        let mut stream = TcpStream::connect(load.server).doing(doing())?;
        stream.set_nodelay(true).doing(doing())?;
        if load.native.is_some() {
            native::greet(&mut stream)?;
        }
        let tls = load.tls.as_ref().map(|tls| shake(tls, &stream));
        let mut connection = Connection {
            stream,
            tls: tls.transpose()?,
            skipper: ReplySkipper::new(),
            native: load.native.is_some(),
            output: Vec::new(),
            sent: 0,
            rest: Vec::new(),
            waiting: 0,
            pipelined: 0,
            writes: 0,
            since: 0,
            blocked: false,
        };
        if let Some(login) = &load.login {
            connection.log_in(login)?;
        }
        connection.stream.set_nonblocking(true).doing(doing())?;
        Ok(connection)
    }

    /// Logs in, over a socket that still blocks.
    fn log_in(&mut self, login: &Login) -> Result<()> {
        self.send(0, 0, |out| {
            RequestEncoder::new(out).request(&login.words());
            1
        })?;
        let mut room = vec![0; ROOM_BYTES_MIN + LOGIN_REPLY_BYTES_MAX];
        while self.waiting > 0 {
            if self.receive(&mut room)?.errors > 0 {
                let cause = "the server refuses this user or password";
                return Err(Failure::new("logging in", cause));
            }
        }
        Ok(())
    }

    /// Sends a pipeline that `encode` appends; it returns the number of requests (0 = nothing to
    /// send). If `wait_replicas` is not 0, a `WAIT` for so many replicas is sent too: its reply
    /// completes the pipeline.
    pub(super) fn send(
        &mut self,
        since: u64,
        wait_replicas: u32,
        encode: impl FnOnce(&mut Vec<u8>) -> u64,
    ) -> Result<u64> {
        self.output.clear();
        self.sent = 0;
        self.pipelined = encode(&mut self.output);
        self.waiting = self.pipelined;
        if self.pipelined > 0 && wait_replicas > 0 {
            let replicas = wait_replicas.to_string();
            RequestEncoder::new(&mut self.output).request(&["WAIT", &replicas, "0"]);
            self.waiting += 1;
        }
        self.since = since;
        self.flush()?;
        Ok(self.pipelined)
    }

    /// Writes the rest of the output to the kernel.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.blocked = false;
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            if let Some(session) = &mut self.tls {
                let sent = session.send(&self.stream, rest);
                self.sent += sent.doing("sending requests")?.plain;
                self.blocked = session.unsent() > 0;
                if self.blocked { break } else { continue }
            }
            match self.stream.write(rest) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::new("sending requests", error)),
            }
        }
        Ok(())
    }

    /// Receives the available replies, by way of `buffer`.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<Arrived> {
        let mut arrived = Arrived::default();
        loop {
            let kept = self.rest.len();
            buffer[..kept].copy_from_slice(&self.rest);
            let received = match &mut self.tls {
                None => self.stream.read(&mut buffer[kept..]),
                Some(session) => match session.receive(&self.stream, &mut buffer[kept..]) {
                    Ok(Received::Plain(bytes)) => Ok(bytes),
                    Ok(Received::Progress) => continue,
                    Ok(Received::Nothing) => return Ok(arrived),
                    Ok(Received::End) => Ok(0),
                    Err(error) => return Err(Failure::new("waiting for replies", error)),
                },
            };
            let bytes = match received {
                Ok(0) => {
                    return Err(Failure::new(
                        "waiting for replies",
                        "the server closed the connection",
                    ));
                }
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(arrived),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::new("waiting for replies", error)),
            };
            let input = &buffer[..kept + bytes];
            let passed = if self.native {
                native::advance(input)?
            } else {
                let passed = self.skipper.advance(input).doing("reading replies")?;
                native::Passed {
                    bytes: passed.bytes,
                    replies: passed.replies,
                    errors: passed.errors,
                    nulls: passed.nulls,
                }
            };
            self.rest.clear();
            self.rest.extend_from_slice(&input[passed.bytes..]);
            let replies = passed.replies as u64;
            if replies > self.waiting {
                return Err(Failure::new(
                    "reading replies",
                    "more replies than requests",
                ));
            }
            arrived.errors += passed.errors as u64;
            arrived.nulls += passed.nulls as u64;
            self.waiting -= replies;
            arrived.complete |= replies > 0 && self.waiting == 0;
            // A short read has drained the socket: this saves the call that would return nothing.
            if arrived.complete || kept + bytes < buffer.len() {
                return Ok(arrived);
            }
        }
    }
}

/// The handshake, over a socket that still blocks.
fn shake(tls: &Tls, stream: &TcpStream) -> Result<Box<Session>> {
    let doing = || format!("the TLS handshake with {}", tls.host);
    let session = tls.identity.client_session(&tls.host).doing(doing())?;
    let mut session = Box::new(session);
    let mut room = vec![0; ROOM_BYTES_MIN];
    loop {
        session.send(stream, &[]).doing(doing())?;
        if !session.is_handshaking() {
            return Ok(session);
        }
        session.receive(stream, &mut room).doing(doing())?;
    }
}
