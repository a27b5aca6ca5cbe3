//! TLS of connections: handshakes, records in, records out, within the event loop. Crate `tls` has
//! the protocol; a connection without TLS passes through none of this.
//!
//! **Invariants**
//! - H1: plain bytes never wait inside a session (session::E1), so epoll's events of the socket are
//!   enough. A session that has ended in order has no further event: `settle` closes it when its
//!   requests have run.
//! - H2: encrypted bytes count as plain ones do: those that the socket has not taken are unsent
//!   replies (`Connection::unsent_bytes`), a part of a record is part of the query buffer.
//! - H3: a round does at most [`HANDSHAKES_MAX`] steps of handshakes, which take a thousand times
//!   as long as a request. Epoll reports the others again.
//! - H4: a handshake that is not over after [`HANDSHAKE_MS`] ends its connection, which counts
//!   against `maxclients` from its first moment.

use super::Traffic;
use super::connection::{Connection, Sent};
use super::input::{JOIN_BYTES_MAX, RECEIVE_BYTES, Received, Source};
use duramen_config::seldom;
use duramen_tls::{Plain, ROOM_BYTES_MIN, Session, TlsError};
use rustix::net::SendFlags;

/// See H3: so a storm of new connections delays other clients by a few milliseconds.
const HANDSHAKES_MAX: usize = 8;
/// See H4. A client behind a slow network needs three round trips.
pub(super) const HANDSHAKE_MS: u64 = 10_000;

/// The TLS of one connection.
pub(super) struct Tls {
    pub(super) session: Box<Session>,
    /// When the handshake began, in milliseconds of the server's clock.
    since_ms: u64,
    /// The handshake is over, and was counted.
    is_open: bool,
}

impl Tls {
    fn new(session: Box<Session>, now_ms: u64) -> Tls {
        Tls {
            is_open: !session.is_handshaking(),
            session,
            since_ms: now_ms,
        }
    }

    /// See H4.
    pub(super) fn is_late(&self, now_ms: u64) -> bool {
        !self.is_open && now_ms.saturating_sub(self.since_ms) >= HANDSHAKE_MS
    }
}

impl Connection {
    /// From now on it carries TLS.
    pub(super) fn begin_tls(&mut self, session: Box<Session>, now_ms: u64) {
        self.tls = Some(Tls::new(session, now_ms));
        self.client.note_tls();
    }

    /// Encrypted bytes that its socket has not taken.
    pub(super) fn encrypted_unsent(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.session.unsent())
    }

    /// Received bytes that have not run: plain ones, and those of a record in part.
    pub(super) fn query_bytes(&self) -> usize {
        let partial = self.tls.as_ref().map_or(0, |tls| tls.session.partial());
        self.input.len() + partial
    }

    /// Its client has said that it sends nothing more, and all that it sent is received.
    pub(super) fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.has_ended())
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_open)
    }

    /// As [`send`](Connection::send), of a connection with TLS: `plain` may be sent.
    pub(super) fn send_encrypted(&mut self, plain_bytes: usize, now_ms: u64) -> (Sent, usize) {
        let Some(tls) = &mut self.tls else {
            return (Sent::Failed, 0);
        };
        let plain = self.output.get(self.sent..self.sent + plain_bytes);
        let sent = match tls.session.send(&self.fd, plain.unwrap_or_default()) {
            Ok(sent) => sent,
            Err(_) => return (Sent::Failed, 0),
        };
        self.sent += sent.plain;
        if sent.wire > 0 {
            self.taken_at_ms = now_ms;
        }
        if self.unsent_bytes() == 0 {
            return (Sent::All, sent.wire);
        }
        if self.sent >= self.output.len() / 2 {
            self.drop_sent();
        }
        (Sent::Part, sent.wire)
    }
}

/// Plain words to a client that speaks Redis without TLS to a port with TLS.
const PLAIN_REDIS: &[u8] =
    b"-ERR this port speaks TLS: connect with TLS, for example redis-cli --tls\r\n";

impl Traffic {
    /// Called once per round (H3).
    pub(super) fn allow_handshakes(&mut self) {
        self.handshakes_left = HANDSHAKES_MAX;
    }

    /// Receives once from a connection with TLS: into the thread's buffer, or, behind a long
    /// request or if `own`, into its own.
    pub(super) fn receive_encrypted(
        &mut self,
        connection: &mut Connection,
        own: bool,
        left: Option<usize>,
    ) -> Received {
        if connection.is_handshaking() {
            if self.handshakes_left == 0 {
                return Received::Nothing;
            }
            self.handshakes_left -= 1;
        }
        let partial = connection.input.len();
        let joins = !own && partial <= JOIN_BYTES_MAX;
        // A client without a password has two records of room beyond its limit.
        let room = left.map_or(RECEIVE_BYTES, |left| {
            left.clamp(ROOM_BYTES_MIN, RECEIVE_BYTES)
        });
        let before = if joins { partial } else { 0 };
        let room = self.input.room(before, room);
        let Some(tls) = &mut connection.tls else {
            return Received::Failed;
        };
        let received = tls.session.receive(&connection.fd, room);
        match received {
            Ok(duramen_tls::Received::Plain(bytes)) => {
                let source = match joins {
                    true => {
                        let joined = self.input.join(connection.input.get(), bytes);
                        connection.input = Default::default();
                        Source::Shared(joined)
                    }
                    false => {
                        let plain = room.get(..bytes).unwrap_or_default();
                        connection
                            .input
                            .with_exact_room(bytes)
                            .extend_from_slice(plain);
                        Source::Own
                    }
                };
                self.handshake_moved(connection);
                Received::Bytes(source)
            }
            Ok(duramen_tls::Received::Progress) => {
                self.handshake_moved(connection);
                Received::Progress
            }
            Ok(duramen_tls::Received::Nothing) => Received::Nothing,
            Ok(duramen_tls::Received::End) => Received::End,
            Err(error) => {
                self.tls_failed(connection, &error);
                Received::Failed
            }
        }
    }

    /// Sends what the handshake has to say; counts one that is over.
    fn handshake_moved(&mut self, connection: &mut Connection) {
        let Connection {
            tls: Some(tls), fd, ..
        } = connection
        else {
            return;
        };
        if tls.session.unsent() > 0 {
            // The rest is sent as replies are.
            let _ = tls.session.send(&*fd, &[]);
        }
        if tls.is_open || tls.session.is_handshaking() {
            return;
        }
        tls.is_open = true;
        let counters = &self.me().counters;
        counters.tls_handshakes.add(1);
        counters.tls_resumed.add(tls.session.is_resumed().into());
        if let Some(peer) = tls.session.peer() {
            connection.record.note_certificate(peer);
        }
    }

    /// Tells the peer and the log why a session is over.
    fn tls_failed(&mut self, connection: &mut Connection, error: &TlsError) {
        let Connection {
            tls: Some(tls), fd, ..
        } = connection
        else {
            return;
        };
        if let TlsError::PlainClient(Plain::Redis) = error {
            let _ = rustix::net::send(&*fd, PLAIN_REDIS, SendFlags::NOSIGNAL);
        } else {
            let _ = tls.session.send(&*fd, &[]); // the alert
        }
        if !tls.is_open {
            self.me().counters.tls_failed.add(1);
        }
        if !matches!(error, TlsError::Socket(_) | TlsError::Early) {
            seldom!(
                info,
                client = connection.record.id,
                peer = %connection.record.peer,
                "TLS: {error}: closing the connection"
            );
        }
    }
}
