//! A connection that never blocks: it connects, shakes hands, and then carries many requests at
//! once, whose answers may come in any order.
//!
//! **Invariants**
//! - L1: each request that was added leaves once: with an answer, or when the link breaks.
//! - L2: a request has an answer within the attempt's time, or the link breaks: a late
//!   answer is never taken for another one.

use crate::certificates::{Certificates, host};
use crate::core::{CoordinatorRequest, Send};
use crate::login::Login;
use crate::net::{LOGIN_PATIENCE, Unopened, logged_in, login_unanswered, unopened};
use duramen_base::ids::ClusterId;
use duramen_tls::{Received, Session};
use duramen_wire::native::codec::{
    CLIENT_FRAME_BYTES_MAX, Credentials, Handshake, Parsed, Progress, Role, decode_reply,
    fresh_nonce, parse_frame,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Minimum bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// A buffer that grew larger than this for one message is not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// The request number of the login, which no other request has.
const LOGIN_REQUEST: u64 = u64::MAX;
/// Token of the inbox's bell; the others are numbers of lanes.
pub(super) const BELL: u64 = u64::MAX;

/// The driver's epoll instance.
#[derive(Debug)]
pub(super) struct Poller(OwnedFd);

impl Poller {
    pub fn new(bell: BorrowedFd<'_>) -> std::io::Result<Poller> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poller, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Poller(poller))
    }

    /// Waits for events, at most for the timeout; with `None`, without end.
    pub fn wait(&self, timeout_us: Option<u64>, events: &mut Vec<epoll::Event>) {
        events.clear();
        let timeout = timeout_us.map(|us| rustix::event::Timespec {
            tv_sec: (us / 1_000_000) as i64,
            tv_nsec: (us % 1_000_000 * 1_000) as _,
        });
        // The wait fails if a signal comes; the driver then looks at everything again.
        let room = rustix::buffer::spare_capacity(events);
        let _ = epoll::wait(&self.0, room, timeout.as_ref());
    }
}

/// A request whose answer is awaited.
#[derive(Debug)]
pub(super) enum Flight {
    Request { batch: u64, send: Send },
    Question(CoordinatorRequest),
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    /// The host's addresses are being looked up.
    Resolving,
    /// TCP is being connected; `rest` are the addresses to be tried after this one.
    Connecting {
        fd: OwnedFd,
        rest: Vec<SocketAddr>,
    },
    /// The handshake of TLS.
    Securing(OwnedFd),
    Shaking {
        fd: OwnedFd,
        handshake: Box<Handshake>,
    },
    /// Waits for the answer to the login.
    LoggingIn(OwnedFd),
    Open(OwnedFd),
}

#[derive(Debug, Default)]
pub(super) struct Link {
    state: State,
    /// TLS, from the moment when TCP is connected.
    session: Option<Box<Session>>,
    /// Requests without an answer, and the times at which they have waited for too long.
    flights: BTreeMap<u64, (u64, Flight)>,
    /// Requests that are not encoded yet, because the link is not open.
    unsent: Vec<u64>,
    requests: u64,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that the kernel has taken.
    sent: usize,
    watches_room: bool,
}

impl Link {
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    pub fn add(&mut self, flight: Flight, expires_us: u64) {
        self.requests += 1;
        self.flights.insert(self.requests, (expires_us, flight));
        self.unsent.push(self.requests);
    }

    /// The time at which the first request has waited for too long.
    pub fn expires_us(&self) -> Option<u64> {
        let (expires_us, _) = self.flights.values().next()?;
        let patience_us = match self.state {
            State::LoggingIn(_) => LOGIN_PATIENCE.as_micros() as u64,
            _ => 0,
        };
        Some(expires_us + patience_us)
    }

    /// The error of requests that have waited for too long.
    pub fn too_late(&self) -> Unopened {
        match self.state {
            State::LoggingIn(_) => login_unanswered(),
            _ => "no answer in time".to_owned().into(),
        }
    }

    /// Encodes the requests that are not encoded yet. `encode` returns false if the request must
    /// not be sent any more; such requests are returned.
    pub fn encode(
        &mut self,
        mut encode: impl FnMut(u64, &Flight, &mut Vec<u8>) -> bool,
    ) -> Vec<Flight> {
        let mut dropped = Vec::new();
        for request in std::mem::take(&mut self.unsent) {
            let Some((_, flight)) = self.flights.get(&request) else {
                continue;
            };
            if !encode(request, flight, &mut self.output) {
                dropped.extend(self.answered(request));
            }
        }
        dropped
    }

    /// Removes a request that is answered.
    pub fn answered(&mut self, request: u64) -> Option<Flight> {
        let (_, flight) = self.flights.remove(&request)?;
        Some(flight)
    }

    /// Closes the connection; returns the requests that have no answer.
    pub fn close(&mut self) -> Vec<Flight> {
        let flights = std::mem::take(&mut self.flights);
        *self = Link {
            requests: self.requests,
            ..Link::default()
        };
        flights.into_values().map(|(_, flight)| flight).collect()
    }

    /// Notes that the addresses are being looked up.
    pub fn resolving(&mut self) {
        self.state = State::Resolving;
    }

    pub fn is_resolving(&self) -> bool {
        matches!(self.state, State::Resolving)
    }

    /// Begins to connect to the last of these addresses; the others follow if it refuses.
    pub fn connect(
        &mut self,
        mut addresses: Vec<SocketAddr>,
        poller: &Poller,
        token: usize,
    ) -> Result<(), Unopened> {
        let mut last = "the name has no address".to_owned();
        while let Some(address) = addresses.pop() {
            match connect(address) {
                Ok(fd) => {
                    let data = EventData::new_u64(token as u64);
                    let watched =
                        epoll::add(&poller.0, &fd, data, EventFlags::IN | EventFlags::OUT);
                    watched.map_err(|error| error.to_string())?;
                    self.watches_room = true;
                    let rest = addresses;
                    self.state = State::Connecting { fd, rest };
                    return Ok(());
                }
                Err(error) => last = std::io::Error::from(error).to_string(),
            }
        }
        Err(last.into())
    }

    /// Handles the news that the socket has room: the connection is established, or refused. TLS
    /// comes first, if there are certificates; the server's must be for the host in `address`.
    pub fn connected(
        &mut self,
        poller: &Poller,
        token: usize,
        certificates: Option<&Certificates>,
        address: &str,
    ) -> Result<(), Unopened> {
        let State::Connecting { fd, rest } = &mut self.state else {
            return Ok(());
        };
        let rest = std::mem::take(rest);
        match sockopt::socket_error(&*fd).and_then(|result| result) {
            Ok(()) => {}
            Err(error) if rest.is_empty() => {
                return Err(std::io::Error::from(error).to_string().into());
            }
            Err(_) => return self.connect(rest, poller, token),
        }
        let nodelay = sockopt::set_tcp_nodelay(&*fd, true);
        nodelay.map_err(|error| error.to_string())?;
        if let State::Connecting { fd, .. } = std::mem::take(&mut self.state) {
            self.state = State::Securing(fd);
        }
        if let Some(certificates) = certificates {
            let session = certificates.newest().client_session(host(address));
            self.session = Some(Box::new(session.map_err(|error| error.to_string())?));
        }
        self.begin_handshake()
    }

    /// Begins the handshake of the native protocol, once that of TLS is over.
    fn begin_handshake(&mut self) -> Result<(), Unopened> {
        let is_secured = self.session.as_ref().is_none_or(|it| !it.is_handshaking());
        if !matches!(self.state, State::Securing(_)) || !is_secured {
            return Ok(());
        }
        let nonce = fresh_nonce().map_err(|error| error.to_string())?;
        let mut handshake = Box::new(Handshake::dial(Role::Client, nonce, &mut self.output));
        if let Some(session) = &self.session {
            let binding = session.channel_binding();
            let none = || "the TLS channel has no exporter".to_owned();
            handshake.bind(&binding.ok_or_else(none)?);
        }
        if let State::Securing(fd) = std::mem::take(&mut self.state) {
            self.state = State::Shaking { fd, handshake };
        }
        Ok(())
    }

    /// Receives the bytes that have arrived, or a large part of them. An end is an error.
    pub fn receive(&mut self) -> Result<(), Unopened> {
        let old = self.input.len();
        // A long answer is read in larger and larger pieces as its bytes arrive.
        self.input.resize(old + old.max(READ_BYTES), 0);
        let room = &mut self.input[old..];
        let received = match (&self.state, &mut self.session) {
            (
                State::Securing(fd)
                | State::Shaking { fd, .. }
                | State::LoggingIn(fd)
                | State::Open(fd),
                session,
            ) => receive(fd, session.as_deref_mut(), room),
            _ => Ok(0),
        };
        self.input
            .truncate(old + received.as_ref().copied().unwrap_or(0));
        received?;
        self.begin_handshake()
    }

    /// Continues the handshake and the login, if they are not over.
    pub fn shake(&mut self, ours: Credentials<'_>, login: Option<&Login>) -> Result<(), Unopened> {
        let State::Shaking { handshake, .. } = &mut self.state else {
            return self.hear_login();
        };
        let progress = handshake.advance(ours, &self.input, &mut self.output);
        match progress.map_err(unopened)? {
            Progress::Waiting { used } => drop(self.input.drain(..used)),
            Progress::Done { used, .. } => {
                self.input.drain(..used);
                if let State::Shaking { fd, .. } = std::mem::take(&mut self.state) {
                    self.state = match login {
                        None => State::Open(fd),
                        Some(login) => {
                            login.encode(LOGIN_REQUEST, &mut self.output);
                            State::LoggingIn(fd)
                        }
                    };
                }
            }
        }
        Ok(())
    }

    /// Takes the answer to the login, if it has come.
    fn hear_login(&mut self) -> Result<(), Unopened> {
        if !matches!(self.state, State::LoggingIn(_)) {
            return Ok(());
        }
        let parsed = parse_frame(&self.input, CLIENT_FRAME_BYTES_MAX);
        let Parsed::Frame { frame, bytes } = parsed.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        logged_in(&decode_reply(&frame).map_err(|error| error.to_string())?)?;
        self.input.drain(..bytes);
        if let State::LoggingIn(fd) = std::mem::take(&mut self.state) {
            self.state = State::Open(fd);
        }
        Ok(())
    }

    /// The received bytes, to be given back by [`keep`](Self::keep).
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Gives back received bytes, of which the first `used` were used.
    pub fn keep(&mut self, mut input: Vec<u8>, used: usize) {
        input.drain(..used);
        input.shrink_to(KEPT_BYTES_MAX);
        self.input = input;
    }

    /// Sends what there is, as far as the kernel takes it.
    pub fn flush(&mut self, poller: &Poller, token: usize) -> Result<(), Unopened> {
        let (State::Securing(fd)
        | State::Shaking { fd, .. }
        | State::LoggingIn(fd)
        | State::Open(fd)) = &self.state
        else {
            return Ok(());
        };
        let is_full = match &mut self.session {
            Some(session) => {
                let sent = session.send(fd, &self.output[self.sent..]);
                self.sent += sent.map_err(|error| format!("sending: {error}"))?.plain;
                session.unsent() > 0
            }
            None => {
                self.sent += send(fd, &self.output[self.sent..])?;
                false
            }
        };
        let is_sent = self.sent == self.output.len();
        let needs_room = is_full || !is_sent;
        if is_sent {
            self.output.clear();
            self.output.shrink_to(KEPT_BYTES_MAX);
            self.sent = 0;
        }
        if needs_room != self.watches_room {
            let flags = if needs_room {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            let watched = epoll::modify(&poller.0, fd, EventData::new_u64(token as u64), flags);
            watched.map_err(|error| error.to_string())?;
            self.watches_room = needs_room;
        }
        Ok(())
    }
}

/// Receives once; returns the number of bytes, decrypted if there is TLS. An end is an error.
fn receive(
    fd: &OwnedFd,
    session: Option<&mut Session>,
    room: &mut [u8],
) -> Result<usize, Unopened> {
    let ended = || Err("the connection was closed".to_owned().into());
    if let Some(session) = session {
        return match session.receive(fd, room) {
            Ok(Received::Plain(bytes)) => Ok(bytes),
            Ok(Received::Progress | Received::Nothing) => Ok(0),
            Ok(Received::End) => ended(),
            Err(error) => Err(format!("TLS: {error}").into()),
        };
    }
    match rustix::net::recv(fd, room, RecvFlags::empty()) {
        Ok((0, _)) => ended(),
        Ok((bytes, _)) => Ok(bytes),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(error) => Err(format!("receiving: {}", std::io::Error::from(error)).into()),
    }
}

/// Sends as much as the kernel takes; returns the number of bytes.
fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Unopened> {
    let mut sent = 0;
    while sent < bytes.len() {
        match rustix::net::send(fd, &bytes[sent..], SendFlags::NOSIGNAL) {
            Ok(bytes) => sent += bytes,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(format!("sending: {}", std::io::Error::from(error)).into()),
        }
    }
    Ok(sent)
}

/// The credentials of a client, for whichever cluster has this name.
pub(super) fn credentials<'a>(cluster: &'a str, token: &'a [u8]) -> Credentials<'a> {
    let id = ClusterId::NONE;
    Credentials { cluster, token, id }
}

/// Starts to connect; the result is known when the socket has room.
fn connect(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(error) => Err(error),
    }
}
