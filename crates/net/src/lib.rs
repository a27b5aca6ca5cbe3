//! Connections of the native protocol, without RESP and without meaning: hellos, frames, queues, links that come back.
//!
//! A [`Hub`] belongs to one thread, which calls [`Hub::poll`] in a loop and looks at the [`Event`]s; a [`Handle`] lets other
//! threads wake it and tell it something. Incoming connections ask, outgoing ones ([`Hub::ask`]) are asked on; nothing is both.
//!
//! **Invariants**
//! - W1: nothing that a peer sends panics, or makes memory grow beyond [`Limits`]: a frame's length is believed as its bytes
//!   arrive, who doesn't take its answers is not read from, and who takes nothing for too long is cut.
//! - W2: every question that was asked gets exactly one of [`Event::Answer`] and [`Event::Unanswered`], unless
//!   [`Hub::forget`] gave it up. Nothing is asked twice by a hub: what was lost is its asker's business.
//! - W3: frames of one link, and answers on one connection, arrive in the order in which they were queued.
//! - W4: no frame of a peer is shown before its hello was right: protocol, cluster, token.
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
    /// Nobody can be reached there.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The other side ended it.
    #[error("the other side closed the connection")]
    Ended,
    /// The connection broke: `ECONNRESET` and the like.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// It said no hello in time, or took nothing for too long.
    #[error("the other side did not {0} in time")]
    TimedOut(&'static str),
    /// More is queued for it than it is allowed to leave lying.
    #[error("the other side does not take what is sent to it")]
    Slow,
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("not permitted: the token is wrong")]
    Token,
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
