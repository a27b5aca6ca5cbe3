//! Connections of the native protocol, independent of RESP and of the messages' meaning:
//! handshakes, frames, queues, links that reconnect.
//!
//! A [`Hub`] belongs to one thread, which calls [`Hub::poll`] in a loop and processes the
//! [`Event`]s. A [`Handle`] lets other threads wake it and send it mail. Questions arrive on
//! incoming connections, and leave on outgoing ones ([`Hub::ask`]); no connection carries both.
//!
//! **Invariants**
//! - W1: no peer can cause a panic, or make memory grow beyond [`Limits`]. Memory for a frame grows
//!   with the bytes that arrive, not with the declared length. A peer that does not take its
//!   answers is not read from, and a peer that takes nothing for too long is closed.
//! - W2: every question sent gets exactly one of [`Event::Answer`] and [`Event::Unanswered`],
//!   unless [`Hub::forget`] gave it up. A hub sends no question twice: its caller handles lost
//!   ones.
//! - W3: frames of one link, and answers on one connection, arrive in the order in which they were
//!   queued.
//! - W4: no frame of a peer is passed on, and none is sent to it, before it has proved itself:
//!   protocol, token, cluster.
//! - W5: strangers, that is peers that have not proved themselves, have at most
//!   [`Limits::strangers`] connections, each for at most [`Limits::hello`] and with little memory,
//!   and take no connection from other peers.
//! - W6: with [`Options::identity`] every TCP connection is TLS 1.3, and both sides have a
//!   certificate of the same CA; the dialler checks that the certificate is for the host that it
//!   dialled. No byte of the native protocol is sent before that, and no failure leads to a
//!   connection without it. Only a Unix socket, which its file's mode guards, stays without.
//! - W7: TLS handshakes take a bounded part of each round ([`Hub::poll`]): pings, answers and
//!   replicas on established connections do not wait for strangers that connect all at once.
//!
//! **Concurrency**: one owner per hub; any thread may use a [`Handle`].

mod channel;
mod connection;
mod handle;
mod hub;
mod input;
mod link;
mod output;
mod quiet;
mod resolve;
mod socket;

pub use connection::ConnectionId;
pub use handle::Handle;
pub use hub::{Event, Hub, Incoming, Limits, Options};
pub use input::Message;
pub use link::Moving;
pub use output::Payload;

use duramen_wire::native::codec::{FrameError, HelloError};

/// Reason why a connection is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The peer's host refused the connection (`ECONNREFUSED`) at every address of its name, or at
    /// the address that answered last.
    #[error("cannot connect: connection refused")]
    NobodyListens,
    /// No connection could be made for another reason: unknown name, no route, no descriptors, no
    /// answer in time.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection ended before a valid hello of the other side: the program that accepts
    /// connections there need not be the peer.
    #[error("the connection ended before a hello")]
    NoHello,
    /// The other side ended the connection, after its hello.
    #[error("the other side closed the connection")]
    Ended,
    /// The other side reset the connection, after its hello.
    #[error("the other side reset the connection")]
    Reset,
    /// The connection broke for another reason, which may be between the two sides, or on this
    /// side.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The other side did not prove itself in time, or took nothing for too long.
    #[error("the other side did not {0} in time")]
    TimedOut(&'static str),
    /// More output is queued for it than allowed.
    #[error("the other side does not take what is sent to it")]
    Slow,
    #[error(transparent)]
    Hello(HelloError),
    #[error("{}", HelloError::Token)]
    Token,
    /// See [`Limits::connections`].
    #[error("too many connections")]
    Full,
    /// The other side's reason for its refusal.
    #[error("refused: {0}")]
    Refused(String),
    /// No TLS connection could be made, or it broke: a certificate that is expired, of another CA
    /// or for another host, or a side without TLS.
    #[error("TLS: {0}")]
    Tls(String),
    #[error("a malformed frame: {0}")]
    Frame(#[from] FrameError),
    /// A question arrived where answers are expected, or the reverse.
    #[error("a frame of the wrong direction")]
    Direction,
    /// [`Hub::close`], [`Hub::close_links`], or the hub was dropped.
    #[error("closed here")]
    Here,
}

impl From<HelloError> for Reason {
    fn from(error: HelloError) -> Reason {
        match error {
            HelloError::Token => Reason::Token,
            HelloError::Refused(why) => Reason::Refused(why),
            error => Reason::Hello(error),
        }
    }
}

impl Reason {
    /// Whether this is a sign that the peer's process has ended. Any other reason may be a fault of
    /// this process, of its host, or of the network between the two, and is no information about
    /// the peer.
    pub fn is_sign_of_death(&self) -> bool {
        matches!(self, Reason::NobodyListens | Reason::Ended | Reason::Reset)
    }

    /// Whether the other side was reached but refused this one, or is a different one than
    /// expected: another token, cluster or version, or a certificate that is not accepted.
    pub fn is_denial(&self) -> bool {
        use Reason::{Hello, Refused, Tls, Token};
        matches!(self, Hello(_) | Token | Refused(_) | Tls(_))
    }
}
