//! RESP, the protocol of Redis clients, versions 2 and 3: both directions, both sides.
//!
//! | side | reads | writes |
//! |---|---|---|
//! | server | [`parse_requests`] into [`Requests`] | [`Encoder`] |
//! | client | [`ReplyParser`] (whole replies), [`ReplySkipper`] (counts) | [`RequestEncoder`] |
//!
//! **Invariants**
//! - I1: no byte sequence panics, and none makes a parser allocate more than a small multiple of
//!   the bytes received: a *declared* length is compared with a limit and then waited for, never
//!   reserved.
//! - I2: the boundaries between reads change neither the parsed requests nor the error.
//! - I3: a parser that returned an error has lost the frame boundary: its connection is closed
//!   after the error was sent.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

mod encode;
mod error;
mod inline;
pub mod number;
mod reply;
mod request;
mod request_encode;
mod requests;
mod skip;

pub use encode::{Encoder, Room};
pub use error::{ProtocolError, ReplyError};
pub use reply::{Reply, ReplyLimits, ReplyParser};
pub use request::{Consumed, Limits, ParseState, parse_requests};
pub use request_encode::RequestEncoder;
pub use requests::{Args, ArgsIter, Requests};
pub use skip::{ReplySkipper, Skipped};

/// The protocol version that a connection negotiated with `HELLO`; connections start in
/// [`Protocol::Resp2`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol of every client before `HELLO 3`: maps and sets are arrays, doubles are bulk
    /// strings.
    #[default]
    Resp2,
    /// Has types for maps, sets, doubles, booleans and pushes, and a single null.
    Resp3,
}
