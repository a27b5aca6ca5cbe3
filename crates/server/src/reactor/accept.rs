//! New connections: accepted by the thread that the kernel wakes, owned by the thread that has the
//! fewest.

use super::backlog::Backlog;
use super::connection::{Connection, WaitsFor};
use super::native::Native;
use super::ring::Local;
use super::{Reactor, unix};
use duramen_config::seldom;
use duramen_redis::shared::{Incoming, NativeStart};
use duramen_redis::threads::{ClientRecord, Message};
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
pub(super) struct SpareFd(Option<OwnedFd>);

impl SpareFd {
    pub(super) fn new() -> SpareFd {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        SpareFd(rustix::event::eventfd(0, flags).ok())
    }
}

impl Reactor {
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_MAX {
            let Some(socket) = self.listeners.get(listener) else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let is_tls = socket.is_tls;
            match rustix::net::acceptfrom_with(&socket.fd, flags) {
                Ok((fd, peer)) => {
                    // Only a client at the Unix socket has no address.
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    self.welcome(fd, peer.unwrap_or(unix::PEER), is_tls);
                }
                Err(Errno::MFILE | Errno::NFILE) => return self.turn_away_one(listener),
                // The connection ended before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, fd: OwnedFd, peer: SocketAddr, is_tls: bool) {
        let maxclients = self.thread.here().config.maxclients;
        if !self.thread.shared().enter(maxclients) {
            return self.reject(&fd, is_tls, b"-ERR max number of clients reached\r\n");
        }
        let tls = is_tls.then(|| self.new_session());
        let Ok(tls) = tls.map_or(Ok(None), |made| made.ok_or(()).map(Some)) else {
            self.thread.shared().leave();
            return self.reject(&fd, is_tls, b"");
        };
        self.me().counters.connections_accepted.add(1);
        let incoming = Incoming {
            fd,
            peer,
            tls,
            native: None,
        };
        let owner = self.thread.shared().least_connections(self.thread.number());
        self.thread.shared().threads[owner].connections_changed(1);
        if owner == self.thread.number() {
            self.own(incoming);
        } else {
            self.thread.shared().threads[owner].hand_over(incoming);
            self.thread.shared().threads[owner]
                .mailbox
                .post(Message::Wake);
        }
    }

    fn reject(&mut self, fd: &OwnedFd, is_tls: bool, why: &[u8]) {
        self.me().counters.connections_rejected.add(1);
        if is_tls {
            return; // a text before the handshake would not be understood
        }
        // A new socket has room for a line; if not, the close informs the peer.
        let _ = rustix::net::send(fd, why, SendFlags::NOSIGNAL);
    }

    /// No file descriptors are left: uses the spare one to send an error to one client, instead of
    /// leaving all of them waiting.
    fn turn_away_one(&mut self, listener: usize) {
        drop(self.spare.0.take());
        if let Some(socket) = self.listeners.get(listener)
            && let is_tls = socket.is_tls
            && let Ok((fd, _)) = rustix::net::acceptfrom_with(&socket.fd, SocketFlags::CLOEXEC)
        {
            seldom!(
                warn,
                "out of file descriptors: a client was turned away (raise `ulimit -n`)"
            );
            self.reject(&fd, is_tls, b"-ERR server is out of file descriptors\r\n");
        }
        self.spare = SpareFd::new();
    }

    /// Takes over connections that other threads accepted for this one.
    pub(super) fn adopt(&mut self) {
        for incoming in self.me().incoming() {
            self.own(incoming);
        }
    }

    /// Makes a connection from an accepted socket that is already counted.
    fn own(&mut self, incoming: Incoming) {
        let Incoming {
            fd,
            peer,
            tls,
            native,
        } = incoming;
        let local: Result<SocketAddr, Errno> =
            rustix::net::getsockname(&fd).and_then(TryInto::try_into);
        let is_unix = local.is_err() && native.is_none();
        let (slot, token) = self.connections.reserve();
        let mut record = ClientRecord::new(
            self.thread.shared().next_client_id(),
            self.thread.number(),
            slot,
            fd.as_raw_fd(),
            peer,
            local.unwrap_or(peer),
            self.thread.now_ms(),
        );
        if is_unix {
            record.socket = Some(self.thread.here().config.access.unixsocket.clone());
        }
        let record = Arc::new(record);
        if self.watch.add(&fd, token).is_err() {
            self.connections.release(token);
            self.me().connections_changed(-1);
            self.thread.shared().leave();
            let is_tls = tls.is_some();
            let why = b"-ERR server is out of memory for connections\r\n";
            return self.reject(&fd, is_tls, why);
        }
        self.me().clients.insert(Arc::clone(&record));
        let mut connection = Connection::new(fd, record, self.thread.now_ms());
        if let Some(session) = tls {
            self.sweeps.note_handshake();
            connection.begin_tls(session, self.thread.now_ms());
        }
        match self.thread.shared().acl.is_open() {
            true => connection.log_in_by_default(self.thread.shared()),
            false => self.sweeps.note_stranger(true),
        }
        if let Some(NativeStart { received, rings }) = native {
            self.me().counters.connections_accepted.add(1);
            let mut local = rings.map(Local::new);
            let lib_name = match &local {
                Some(_) => "duramen-local",
                None => "duramen",
            };
            connection
                .record
                .change_text(|text| text.lib_name = lib_name.to_owned());
            if let Some(local) = &mut local {
                self.rings.wake(token, local);
            }
            connection.native = Some(Native {
                local,
                ..Native::default()
            });
            if !received.is_empty() {
                connection.waits_for = WaitsFor::Turn;
                self.connections.continue_soon(token);
            }
            connection.input = Backlog::from(received);
        }
        self.connections.put(token, Box::new(connection));
        if self.thread.stop_deadline().is_some() {
            self.close(token);
        }
    }
}
