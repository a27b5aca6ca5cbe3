//! Connections of the native protocol, without RESP and without meaning: handshakes, frames,
//! queues, links that come back.
//!
//! A [`Hub`] belongs to one thread, which calls [`Hub::poll`] in a loop and looks at the
//! [`Event`]s; a [`Handle`] lets other threads wake it and tell it something. Incoming connections
//! ask, outgoing ones ([`Hub::ask`]) are asked on; nothing is both.
//!
//! **Invariants**
//! - W1: nothing that a peer sends panics, or makes memory grow beyond [`Limits`]: a frame's length
//!   is believed as its bytes arrive, who doesn't take its answers is not read from, and who takes
//!   nothing for too long is cut.
//! - W2: every question that was asked gets exactly one of [`Event::Answer`] and
//!   [`Event::Unanswered`], unless [`Hub::forget`] gave it up. Nothing is asked twice by a hub:
//!   what was lost is its asker's business.
//! - W3: frames of one link, and answers on one connection, arrive in the order in which they were
//!   queued.
//! - W4: no frame of a peer is shown, and none is sent to it, before it has proved itself:
//!   protocol, token, cluster.
//! - W5: strangers, who have not, hold at most [`Limits::strangers`] connections for at most
//!   [`Limits::hello`] and little memory each, and take no connection from those who have.
//!
//! **Concurrency** one owner per hub; [`Handle`]s are for everybody.

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
pub use output::Payload;

use duramen_wire::native::codec::{FrameError, HelloError};

/// Why a connection is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The peer's host refused the connection (`ECONNREFUSED`) at every address of its name, or at
    /// the one that answered last.
    #[error("cannot connect: connection refused")]
    NobodyListens,
    /// No connection could be made for another reason: the name is not found, no route, no
    /// descriptors, no answer in time.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection ended before the other side's hello was right: what accepts connections there
    /// need not be the peer.
    #[error("the connection ended before a hello")]
    NoHello,
    /// The other side ended it, after its hello.
    #[error("the other side closed the connection")]
    Ended,
    /// The other side reset it, after its hello.
    #[error("the other side reset the connection")]
    Reset,
    /// The connection broke for another reason, which may lie between the two sides, or here.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// It did not prove itself in time, or took nothing for too long.
    #[error("the other side did not {0} in time")]
    TimedOut(&'static str),
    /// More is queued for it than it is allowed to leave lying.
    #[error("the other side does not take what is sent to it")]
    Slow,
    #[error(transparent)]
    Hello(HelloError),
    #[error("{}", HelloError::Token)]
    Token,
    /// See [`Limits::connections`].
    #[error("too many connections")]
    Full,
    /// The other side says why it does not want to talk.
    #[error("refused: {0}")]
    Refused(String),
    #[error("a malformed frame: {0}")]
    Frame(#[from] FrameError),
    /// A question came where answers are expected, or the reverse.
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
    /// Whether it is a sign that the peer's process has ended. Everything else may be a fault of
    /// this process, of its host, or of the network between the two, and says nothing about the
    /// peer.
    pub fn is_sign_of_death(&self) -> bool {
        matches!(self, Reason::NobodyListens | Reason::Ended | Reason::Reset)
    }

    /// Whether the other side was reached and did not admit this one, or is not who was looked for:
    /// another token, another cluster, another version.
    pub fn is_denial(&self) -> bool {
        matches!(self, Reason::Hello(_) | Reason::Token | Reason::Refused(_))
    }
}
