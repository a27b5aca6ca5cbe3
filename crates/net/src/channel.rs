//! TLS under a connection: records on the socket, the bytes of the native protocol inside.
//!
//! **Invariants**
//! - C1: a channel keeps at most one received record that is not whole, and at most the records of
//!   one batch that the socket has not taken (tls::session::E2): plain bytes wait in the output of
//!   the connection, where the hub's limits count them.
//! - C2: received records are decrypted in the round in which they came (tls::session::E1): none
//!   of their bytes waits in the channel for an event.

use crate::output::{Flushed, Output};
use duramen_tls::{Description, Identity, Received, Session, TlsError};
use duramen_wire::native::codec::Binding;
use rustix::io::Errno;
use std::os::fd::AsFd;

/// The TLS of one connection.
#[derive(Debug)]
pub(crate) struct Channel {
    session: Box<Session>,
    /// Whether the end of the handshake was reported.
    is_open: bool,
}

impl Channel {
    /// A channel for a connection that the other side opened.
    pub fn accept(identity: &Identity) -> Result<Channel, String> {
        let session = identity.server_session();
        Ok(Channel::new(session.map_err(|error| error.to_string())?))
    }

    /// A channel for a connection to `host:port`.
    pub fn dial(identity: &Identity, address: &str) -> Result<Channel, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let session = identity.client_session(host);
        Ok(Channel::new(session.map_err(|error| error.to_string())?))
    }

    fn new(session: Session) -> Channel {
        Channel {
            session: Box::new(session),
            is_open: false,
        }
    }

    /// The channel of a connection that another hub handed over.
    pub fn adopted(session: Box<Session>) -> Channel {
        Channel {
            session,
            is_open: true,
        }
    }

    pub fn into_session(self) -> Box<Session> {
        self.session
    }

    /// Receives once, and puts the decrypted bytes into the front of `room`, which has at least
    /// [`ROOM_BYTES_MIN`](duramen_tls::ROOM_BYTES_MIN).
    pub fn receive(&mut self, socket: impl AsFd, room: &mut [u8]) -> Result<Received, TlsError> {
        self.session.receive(socket, room)
    }

    /// Whether the handshake has ended since the last call.
    pub fn has_opened(&mut self) -> bool {
        let is_open = !self.session.is_handshaking();
        is_open && !std::mem::replace(&mut self.is_open, true)
    }

    /// The binding of the channel; `None` before the handshake is over.
    pub fn binding(&self) -> Option<Binding> {
        self.session.channel_binding()
    }

    /// The certificate of the other side; `None` before the handshake is over.
    pub fn peer(&self) -> Option<Description> {
        self.session.peer()
    }

    /// Encrypted bytes that the socket has not taken.
    pub fn unsent_bytes(&self) -> usize {
        self.session.unsent()
    }

    /// Sends as much of the output as the socket takes, and the records of TLS itself, such as
    /// alerts.
    pub fn flush(&mut self, socket: impl AsFd, output: &mut Output) -> Flushed {
        let mut some = false;
        output.consume(0); // drops an empty piece at the front
        loop {
            let sent = match self.session.send(&socket, output.first()) {
                Ok(sent) => sent,
                Err(TlsError::Socket(errno)) => return Flushed::Failed(errno),
                Err(_) => return Flushed::Failed(Errno::IO),
            };
            some |= sent.wire > 0;
            output.consume(sent.plain);
            let has_room = self.session.unsent() == 0;
            match (has_room, output.is_empty()) {
                (true, true) => return Flushed::All,
                (true, false) if sent.plain > 0 => {}
                _ => return Flushed::Part { some },
            }
        }
    }

    /// Tells the other side that this one sends nothing more.
    pub fn say_goodbye(&mut self, socket: impl AsFd) {
        self.session.say_goodbye(socket);
    }
}
