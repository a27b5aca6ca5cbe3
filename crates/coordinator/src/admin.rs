//! Admin HTTP of a coordinator: `/status` `/metrics` `/livez` `/readyz`, over TLS if there are
//! certificates for it.
//!
//! **Invariants**
//! - A1: a peer has [`PATIENCE`] to send its request, TLS's handshake included, of which at most
//!   [`HEAD_BYTES_MAX`] are read, and as long to take the answer. One more than [`AT_ONCE`] closes
//!   the oldest, so that a probe is answered beside any number of peers that never finish their
//!   request.
//! - A2: `/status` and `/metrics` are for users of the cluster that may run `INFO`. As long as the
//!   cluster has no users, a peer on TLS must show a certificate of the authority for them.
//! - A3: a failed login is answered at once, so that it keeps no place; the address has to wait
//!   until it may try again (`duramen_acl::Logins`).

use crate::guard::{Guard, Refused};
use crate::news::{News, Report, ask_report};
use crate::{Error, Role};
use duramen_acl::basic;
use duramen_net::Handle;
use duramen_tls::Identity;
use duramen_tls::rustls::{ServerConnection, StreamOwned};
use std::collections::VecDeque;
use std::io::{Error as IoError, ErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
const HEAD_BYTES_MAX: usize = 8 << 10;
const AT_ONCE: usize = 16;
/// Threads of peers, those included that end because their peer was closed: beyond it, a newcomer
/// is closed.
const THREADS_MAX: usize = 4 * AT_ONCE;
/// Longest commit of a leader that counts as alive and ready; beyond it, the leader can do nothing
/// for its cluster.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// The sources of the pages.
pub(crate) struct Context {
    pub(crate) driver: Handle<News>,
    pub(crate) guard: Arc<Guard>,
    /// `None`: HTTP without TLS.
    pub(crate) identity: Option<Arc<Identity>>,
}

/// Status code, kind of content, and content.
type Page = (u16, &'static str, String);

const TEXT: &str = "text/plain; charset=utf-8";

/// Serves for the process's lifetime; returns the real address.
pub(crate) fn listen(address: SocketAddr, context: Context) -> Result<SocketAddr, Error> {
    let failed = |reason| Error::Listen { address, reason };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let real = listener.local_addr().map_err(failed)?;
    let context = Arc::new(context);
    let serve = move || {
        let (busy, mut open) = (Arc::new(()), Open::default());
        for stream in listener.incoming().flatten() {
            if Arc::strong_count(&busy) > THREADS_MAX {
                continue; // which closes it
            }
            let stream = Arc::new(stream);
            open.add(&stream);
            let (context, busy) = (Arc::clone(&context), Arc::clone(&busy));
            // If no thread can be started, the peer is turned away.
            let _ = std::thread::Builder::new()
                .name("admin".to_owned())
                .spawn(move || {
                    let _ = context.serve(stream);
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

/// The peers that are served, the oldest first (A1).
#[derive(Default)]
struct Open {
    peers: VecDeque<Weak<TcpStream>>,
}

impl Open {
    fn add(&mut self, stream: &Arc<TcpStream>) {
        self.peers.retain(|peer| peer.strong_count() > 0);
        if self.peers.len() >= AT_ONCE
            && let Some(oldest) = self.peers.pop_front()
            && let Some(oldest) = oldest.upgrade()
        {
            let _ = oldest.shutdown(Shutdown::Both); // its thread ends
        }
        self.peers.push_back(Arc::downgrade(stream));
    }
}

/// A socket whose reads and writes end at a time (A1).
struct Timed {
    stream: Arc<TcpStream>,
    until: Instant,
}

impl Timed {
    fn new(stream: Arc<TcpStream>) -> Timed {
        Timed {
            stream,
            until: Instant::now() + PATIENCE,
        }
    }

    fn left(&self) -> IoResult<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }

    /// The time for the answer begins.
    fn renew(&mut self) {
        self.until = Instant::now() + PATIENCE;
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> IoResult<usize> {
        loop {
            self.stream.set_read_timeout(self.left()?)?;
            match (&*self.stream).read(bytes) {
                // The process was stopped and continued.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&*self.stream).write(bytes)
    }

    fn flush(&mut self) -> IoResult<()> {
        (&*self.stream).flush()
    }
}

/// The peer of a connection.
#[derive(Clone, Copy)]
struct Peer {
    address: SocketAddr,
    /// Whether the peer has shown a certificate of the authority; `None`: it does not use TLS.
    certificate: Option<bool>,
}

impl Context {
    fn serve(&self, stream: Arc<TcpStream>) -> IoResult<()> {
        let address = stream.peer_addr()?;
        let mut socket = Timed::new(stream);
        let Some(identity) = &self.identity else {
            let head = read_head(&mut socket)?;
            let peer = Peer {
                address,
                certificate: None,
            };
            let answer = self.answer(&head, peer);
            socket.renew();
            return socket.write_all(&answer);
        };
        let config = identity.server_config().map_err(IoError::other)?;
        let connection = ServerConnection::new(config).map_err(IoError::other)?;
        let mut tls = StreamOwned::new(connection, socket);
        tls.conn.complete_io(&mut tls.sock)?;
        let certificates = tls.conn.peer_certificates();
        let peer = Peer {
            address,
            certificate: Some(certificates.is_some_and(|shown| !shown.is_empty())),
        };
        let head = read_head(&mut tls)?;
        let answer = self.answer(&head, peer);
        tls.sock.renew();
        tls.write_all(&answer)?;
        tls.conn.send_close_notify();
        tls.flush()
    }

    /// The answer to a request with this head.
    fn answer(&self, head: &str, peer: Peer) -> Vec<u8> {
        let mut words = head.split(' ');
        let (method, path) = (words.next(), words.next().unwrap_or_default());
        let path = path.split('?').next().unwrap_or_default();
        let (code, kind, body) = match method {
            Some("GET") => self.page(path, header(head, "authorization"), peer),
            _ => (405, TEXT, "only GET is answered\n".to_owned()),
        };
        let (reason, more) = match code {
            200 => ("OK", String::new()),
            401 => (
                "Unauthorized",
                format!("WWW-Authenticate: {}\r\n", basic::CHALLENGE),
            ),
            403 => ("Forbidden", String::new()),
            404 => ("Not Found", String::new()),
            405 => ("Method Not Allowed", String::new()),
            _ => ("Service Unavailable", String::new()),
        };
        let bytes = body.len();
        let answer = format!(
            "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\n\
             {more}Connection: close\r\n\r\n{body}"
        );
        answer.into_bytes()
    }

    fn page(&self, path: &str, login: Option<&str>, peer: Peer) -> Page {
        let known = ["/livez", "/readyz", "/metrics", "/status"];
        if !known.contains(&path) {
            return (404, TEXT, format!("here are {}\n", known.join(" ")));
        }
        match self.guarded(path, login, peer) {
            Ok(report) => shown(path, report),
            Err(page) => page,
        }
    }

    /// The report for a page, or why there is none for this peer.
    fn guarded(&self, path: &str, login: Option<&str>, peer: Peer) -> Result<Report, Page> {
        let is_probe = ["/livez", "/readyz"].contains(&path);
        let is_user = is_probe || self.admit(login, peer)?;
        let report = ask_report(&self.driver);
        let report = report.ok_or((503, TEXT, "the coordinator does not answer\n".to_owned()))?;
        if !is_user {
            // It may have begun to lead meanwhile, and so have heard of the users.
            self.admit(login, peer)?;
        }
        Ok(report)
    }

    /// Checks the user of a request (A2). `login`: the header `Authorization`. Returns false if the
    /// cluster has no users.
    fn admit(&self, login: Option<&str>, peer: Peer) -> Result<bool, Page> {
        let page = |refused| match refused {
            Refused::Reading => (503, TEXT, "the users are being read\n".to_owned()),
            Refused::LogIn => (401, TEXT, "log in\n".to_owned()),
            Refused::Denied(why) => (403, TEXT, format!("{why}\n")),
        };
        let Some(users) = self.guard.users().map_err(page)? else {
            return match peer.certificate {
                None | Some(true) => Ok(false),
                Some(false) => Err((403, TEXT, "show a certificate of the cluster\n".to_owned())),
            };
        };
        let Some(login) = login else {
            let default = users.default_user();
            let has_right = default.is_open() && self.guard.may_see(default).is_ok();
            return has_right.then_some(true).ok_or(page(Refused::LogIn));
        };
        let login = basic::parse(login.as_bytes()).ok_or(page(Refused::LogIn))?;
        let pair = (login.user.as_slice(), login.password.as_slice());
        let user =
            self.guard
                .log_in(&users, peer.address, pair)
                .map_err(|refused| match refused {
                    Refused::Denied(why) => (401, TEXT, format!("{why}\n")),
                    other => page(other),
                })?;
        self.guard.may_see(&user).map_err(page)?;
        Ok(true)
    }
}

/// The value of a header in the head of a request. `name`: in lower case.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let found = pairs.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim())
}

/// The request's head, cut off at [`HEAD_BYTES_MAX`].
fn read_head(stream: &mut impl Read) -> IoResult<String> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => break,
            bytes => head.extend_from_slice(&piece[..bytes]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn shown(path: &str, report: Report) -> Page {
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

    #[test]
    fn headers_are_found_in_any_case() {
        let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nAUTHORIZATION:  Basic QQ== \r\n\r\n";
        assert_eq!(header(head, "authorization"), Some("Basic QQ=="));
        assert_eq!(header(head, "accept"), None);
    }

    /// 16 peers that sent nothing kept `/livez` from everybody else: the newcomer was closed.
    #[test]
    fn one_peer_too_many_closes_the_oldest() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut open, mut peers, mut served) = (Open::default(), Vec::new(), Vec::new());
        for _ in 0..=AT_ONCE {
            peers.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let stream = Arc::new(listener.accept().unwrap().0);
            open.add(&stream);
            served.push(stream);
        }
        let mut is_closed = |n: usize| {
            peers[n].set_nonblocking(n > 0).unwrap();
            peers[n].read(&mut [0]).is_ok()
        };
        assert!(is_closed(0), "it has ended");
        assert!(!(1..=AT_ONCE).any(&mut is_closed));
        drop(served.pop()); // it was answered
        open.add(&served[0]);
        assert!(!is_closed(1), "there is a free place");
    }

    /// A peer that sent a byte each second kept its thread for two hours: 16 of them kept `/livez`
    /// from everybody else.
    #[test]
    fn a_request_that_trickles_in_has_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut stream = Timed::new(Arc::new(stream));
        let start = Instant::now();
        let sender = std::thread::spawn(move || {
            while start.elapsed() < 5 * PATIENCE && peer.write_all(b"x").is_ok() {
                std::thread::sleep(PATIENCE / 8);
            }
        });
        let error = read_head(&mut stream).expect_err("the time is over");
        // It needs the clock, because its patience is one of time. The sender goes on for longer.
        assert!(start.elapsed() < 4 * PATIENCE, "{error}");
        drop(stream);
        sender.join().unwrap();
    }
}
