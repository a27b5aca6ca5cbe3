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

use duramen_tls::Session;

/// See H4. A client behind a slow network needs three round trips.
pub(super) const HANDSHAKE_MS: u64 = 10_000;

/// The TLS of one connection.
pub(super) struct Tls {
    pub(super) session: Box<Session>,
    /// When the handshake began, in milliseconds of the server's clock.
    since_ms: u64,
    /// Whether the handshake is over, and was counted.
    is_open: bool,
}

impl Tls {
    pub(super) fn new(session: Box<Session>, now_ms: u64) -> Tls {
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
