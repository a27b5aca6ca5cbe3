//! Errors in the bytes of a peer. The texts of [`ProtocolError`] are those of Redis 7: clients and
//! tests match on them.

/// A request that cannot be parsed. The server sends `-ERR ` and this text, then closes the
/// connection: the frame boundary is lost. (The word "ERR" is not part of the text.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*n` where `n` is not a canonical decimal, or is above
    /// [`Limits::args_max`](super::Limits::args_max).
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    /// `$n` where `n` is not a canonical decimal, is negative, or is above
    /// [`Limits::bulk_bytes_max`](super::Limits::bulk_bytes_max).
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// `*` without an end of line where the longest number would have ended.
    #[error("Protocol error: too big mbulk count string")]
    TooBigMultibulkCount,
    /// `$` without an end of line where the longest number would have ended.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// An argument of an array that does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.got))]
    ExpectedBulk {
        /// The byte found in place of `$`.
        got: u8,
    },
    /// An argument whose declared bytes are not followed by CR LF. Redis skips the two bytes
    /// without a check; here they are checked, because the next bytes would be read as a command.
    #[error("Protocol error: expected CRLF after bulk string")]
    ExpectedLineEnd,
    /// An inline command longer than [`Limits::inline_bytes_max`](super::Limits::inline_bytes_max).
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// An inline command with an open quote, or with text right after a closing one.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// More arguments than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    /// A longer argument than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    /// A request whose total length exceeds
    /// [`Limits::request_bytes_max`](super::Limits::request_bytes_max).
    #[error("Protocol error: too big request")]
    TooBigRequest,
}

/// A reply that cannot be parsed. The client closes the connection: the frame boundary is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A reply that begins with a byte unknown in RESP (the peer may not be a RESP server).
    #[error(
        "the server sent a reply of unknown type (first byte 0x{got:02x}): is this a RESP port?"
    )]
    UnknownType {
        /// The first byte of the reply.
        got: u8,
    },
    /// A length, number, boolean or line that breaks RESP's rules.
    #[error("the server sent a malformed reply ({what})")]
    Malformed {
        /// The part that is wrong.
        what: &'static str,
    },
    /// A reply that exceeds one of the [`ReplyLimits`](super::ReplyLimits).
    #[error("the server's reply is over the client's limit ({what})")]
    TooBig {
        /// The limit that was exceeded.
        what: &'static str,
    },
}
