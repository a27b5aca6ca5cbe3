//! TLS of connections: handshakes, records in, records out, within the event loop. Crate `tls` has
//! the protocol; a connection without TLS passes through none of this.
//!
//! **Invariants**
//! - H1: plain bytes never wait inside a session (session::E1), so epoll's events of the socket are
//!   enough. A session that has ended in order has no further event: `settle` closes it when its
//!   requests have run.
//! - H2: encrypted bytes count as plain ones do: those that the socket has not taken are unsent
//!   replies (`Connection::unsent_bytes`), a part of a record is part of the query buffer.
//! - H3: a round does at most `receive::HANDSHAKES_MAX` steps of handshakes, which take a thousand
//!   times as long as a request. Epoll reports the others again.
//! - H4: a handshake that is not over after [`HANDSHAKE_MS`] ends its connection, which counts
//!   against `maxclients` from its first moment.

use super::connection::{Connection, Sent};
use duramen_tls::Session;

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

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The handshake is over.
    pub(super) fn note_open(&mut self) {
        self.is_open = true;
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
