//! New connections: accepted by the thread that the kernel wakes, owned by the thread that has the
//! fewest.

use super::backlog::Backlog;
use super::connection::{Connection, Native, WaitsFor};
use super::connections::{Connections, Token};
use super::here::Here;
use super::listener::Listeners;
use super::local::Rings;
use super::ring::Local;
use super::sweeps::Sweeps;
use super::unix;
use super::watch::Watch;
use crate::doors::{Incoming, NativeStart};
use duramen_config::seldom;
use duramen_redis::state::Shared;
use duramen_redis::threads::{ClientRecord, Message};
use duramen_tls::Session;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Maximum connections accepted per listener and round: so a connection storm does not starve
/// existing clients.
const ACCEPTS_MAX: usize = 64;

/// A reserved file descriptor: with it a connection can be refused properly when no other
/// descriptor is left.
struct SpareFd(Option<OwnedFd>);

impl SpareFd {
    fn new() -> SpareFd {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        SpareFd(rustix::event::eventfd(0, flags).ok())
    }
}

/// The listeners of a thread.
pub(super) struct Acceptor {
    listeners: Listeners,
    spare: SpareFd,
}

/// The owners of a new connection.
pub(super) struct Places<'a> {
    pub(super) connections: &'a mut Connections,
    pub(super) watch: &'a Watch,
    pub(super) rings: &'a mut Rings,
    pub(super) sweeps: &'a mut Sweeps,
}

impl Acceptor {
    pub(super) fn new(listeners: Listeners) -> Acceptor {
        Acceptor {
            listeners,
            spare: SpareFd::new(),
        }
    }

    /// Accepts nothing from now on.
    pub(super) fn close(&mut self) {
        self.listeners.clear();
    }

    pub(super) fn accept(&mut self, here: Here<'_>, listener: usize, places: &mut Places<'_>) {
        for _ in 0..ACCEPTS_MAX {
            let Some(socket) = self.listeners.get(listener) else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&socket.fd, flags) {
                Ok((fd, peer)) => {
                    // Only a client at the Unix socket has no address.
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    welcome(here, fd, peer.unwrap_or(unix::PEER), socket.is_tls, places);
                }
                Err(Errno::MFILE | Errno::NFILE) => return self.turn_away_one(here, listener),
                // The connection ended before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    /// No file descriptors are left: uses the spare one to send an error to one client, instead of
    /// leaving all of them waiting.
    fn turn_away_one(&mut self, here: Here<'_>, listener: usize) {
        drop(self.spare.0.take());
        if let Some(socket) = self.listeners.get(listener)
            && let is_tls = socket.is_tls
            && let Ok((fd, _)) = rustix::net::acceptfrom_with(&socket.fd, SocketFlags::CLOEXEC)
        {
            seldom!(
                warn,
                "out of file descriptors: a client was turned away (raise `ulimit -n`)"
            );
            reject(
                here,
                &fd,
                is_tls,
                b"-ERR server is out of file descriptors\r\n",
            );
        }
        self.spare = SpareFd::new();
    }
}

fn welcome(here: Here<'_>, fd: OwnedFd, peer: SocketAddr, is_tls: bool, places: &mut Places<'_>) {
    if !here.shared.threads.enter(here.config.maxclients) {
        let why = b"-ERR max number of clients reached\r\n";
        return reject(here, &fd, is_tls, why);
    }
    let tls = is_tls.then(|| new_session(here.shared));
    let Ok(tls) = tls.map_or(Ok(None), |made| made.ok_or(()).map(Some)) else {
        here.shared.threads.leave();
        return reject(here, &fd, is_tls, b"");
    };
    here.thread.counters.connections_accepted.add(1);
    let incoming = Incoming {
        fd,
        peer,
        tls,
        native: None,
    };
    let owner = here.doors.least_connections(here.number);
    let door = here.doors.door(owner);
    door.connections_changed(1);
    if owner == here.number {
        own(here, incoming, places);
    } else {
        door.hand_over(incoming);
        here.shared.threads[owner].mailbox.post(Message::Wake);
    }
}

/// The session of a connection that was accepted at a TLS port; `None` if there is no certificate.
fn new_session(shared: &Shared) -> Option<Box<Session>> {
    match shared.settings.certificates().session() {
        Ok(session) => Some(Box::new(session)),
        Err(error) => {
            seldom!(error, "no TLS for a new client: {error}");
            None
        }
    }
}

fn reject(here: Here<'_>, fd: &OwnedFd, is_tls: bool, why: &[u8]) {
    here.thread.counters.connections_rejected.add(1);
    if is_tls {
        return; // a text before the handshake would not be understood
    }
    // A new socket usually has room for a line; if it has none, the close alone informs the peer.
    let _ = rustix::net::send(fd, why, SendFlags::NOSIGNAL);
}

/// Makes a connection from an accepted socket that is already counted; returns `None` if there was
/// no room.
pub(super) fn own(here: Here<'_>, incoming: Incoming, places: &mut Places<'_>) -> Option<Token> {
    let Incoming {
        fd,
        peer,
        tls,
        native,
    } = incoming;
    let (token, record) = reserve(here, &fd, peer, native.is_some(), places.connections);
    if places.watch.add(&fd, token).is_err() {
        places.connections.release(token);
        here.doors.door(here.number).connections_changed(-1);
        here.shared.threads.leave();
        let why = b"-ERR server is out of memory for connections\r\n";
        reject(here, &fd, tls.is_some(), why);
        return None;
    }
    here.thread.clients.insert(Arc::clone(&record));
    let mut connection = Connection::new(fd, record, here.now_ms);
    if let Some(session) = tls {
        places.sweeps.note_handshake();
        connection.begin_tls(session, here.now_ms);
    }
    match here.shared.acl().is_open() {
        true => connection.log_in_by_default(here.shared),
        false => places.sweeps.note_stranger(true),
    }
    if let Some(start) = native {
        here.thread.counters.connections_accepted.add(1);
        begin_native(token, &mut connection, start, places);
    }
    places.connections.put(token, Box::new(connection));
    Some(token)
}

/// A slot, and the record of a client in it.
fn reserve(
    here: Here<'_>,
    fd: &OwnedFd,
    peer: SocketAddr,
    is_native: bool,
    connections: &mut Connections,
) -> (Token, Arc<ClientRecord>) {
    let local: Result<SocketAddr, Errno> = rustix::net::getsockname(fd).and_then(TryInto::try_into);
    let is_unix = local.is_err() && !is_native;
    let (slot, token) = connections.reserve();
    let mut record = ClientRecord::new(
        here.shared.threads.next_client_id(),
        here.number,
        slot,
        fd.as_raw_fd(),
        peer,
        local.unwrap_or(peer),
        here.now_ms,
    );
    if is_unix {
        record.socket = Some(here.config.access.unixsocket.clone());
    }
    (token, Arc::new(record))
}

/// The connection is a native client's, whose hellos were exchanged elsewhere.
fn begin_native(
    token: Token,
    connection: &mut Connection,
    start: NativeStart,
    places: &mut Places<'_>,
) {
    let NativeStart { received, rings } = start;
    let mut local = rings.map(Local::new);
    let lib_name = match &local {
        Some(_) => "duramen-local",
        None => "duramen",
    };
    connection
        .record
        .change_text(|text| text.lib_name = lib_name.to_owned());
    if let Some(local) = &mut local {
        places.rings.wake(token, local);
    }
    connection.native = Some(Native {
        local,
        ..Native::default()
    });
    if !received.is_empty() {
        connection.waits_for = WaitsFor::Turn;
        places.connections.continue_soon(token);
    }
    connection.input = Backlog::from(received);
}
