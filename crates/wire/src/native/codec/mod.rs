//! Frames, and messages in them.
//!
//! **Layout** (little endian). A connection begins with a [`Handshake`]; then frames follow one
//! another without gaps:
//!
//! ```text
//! 0       4      6       8         16        24        32      36      40
//! +-------+------+-------+---------+---------+---------+-------+-------+------+---------+
//! | bytes | kind | flags | request | target  | sender  | body  | CRC32C| body | payload |
//! |  u32  | u16  |  u16  |   u64   |   u64   |   u64   | bytes |       |      |         |
//! +-------+------+-------+---------+---------+---------+-------+-------+------+---------+
//! ```
//!
//! `bytes` counts the body and the payload, not the header. `target` and `sender` are server ids; a
//! client's `sender` is the version of the map by which it found the server. An answer has its
//! question's kind and request number, and flag REPLY (1). With flag ERROR (2) its body is a
//! [`Trouble`].
//!
//! | kind | body |
//! |---|---|
//! | 1 | `ToCoordinator` / `CoordinatorAnswer`, by postcard |
//! | 2 | `FromCoordinator` / `ServerAnswer`, by postcard |
//! | 3 | `Peer` / `PeerAnswer`, by postcard |
//! | 4 | `WriteReplica`, fixed / `PeerAnswer`, by postcard |
//! | 5 | a proof, within a [`Handshake`] only |
//! | 6 | the size of the rings, on a Unix socket only |
//! | 16 | ping: empty |
//! | 17 | one operation / its outcome |
//! | 18 | several operations / their outcomes |
//! | 19 | enumeration / objects |
//! | 20 | login / empty |
//!
//! **Invariants**
//! - N1: nothing is allocated for a length before the bytes have arrived, unless the length is
//!   below a limit of the caller.
//! - N2: no input panics; an invalid message is an error with a reason.
//! - N3: the CRC32C covers header (with the CRC itself as zero) and body. Payloads have their own
//!   checksums: certificates, or those of entries.
//! - N4: fixed bodies have one encoding: unused bits are zero, and other bodies are refused.

mod bodies;
mod cursor;
mod frame;
mod handshake;
mod hello;
mod login;
mod many;
mod operations;
mod publications;
mod rings;

pub use bodies::{Question, Reply, Trouble, decode_question, decode_reply, decode_request};
pub use bodies::{
    encode_coordinator_answer, encode_from_coordinator, encode_peer, encode_peer_answer,
    encode_server_answer, encode_to_coordinator, encode_trouble,
};
pub use frame::{
    Envelope, Frame, FrameError, HEADER_BYTES, Header, Parsed, parse_frame, payload_at,
};
pub use handshake::{
    BINDING_BYTES, Binding, Credentials, HANDSHAKE_BYTES_MAX, Handshake, Progress, fresh_nonce,
};
pub use hello::{
    HelloError, NONCE_BYTES, Nonce, OPENING_BYTES, Opening, Role, is_plain_opening, parse_opening,
};
pub use login::{LOGIN_BYTES_MAX, decode_login, encode_logged_in, encode_login};
pub use many::{
    MultiAnswer, MultiRequest, Objects, ObjectsAnswer, Outcomes, Parts, encode_enumerate_problem,
};
pub use operations::{
    append_outcome, encode_enumerate, encode_outcome, encode_ping, encode_pong, encode_single,
    outcome_bytes, read_whole_outcome, single_bytes,
};
pub use publications::{PUBLICATION_HEADER_BYTES, Publications, append_publication};
pub use rings::{RINGS_FRAME_BYTES, decode_rings, encode_rings};

/// The protocol versions that this program supports. In version 1 each side sent its token to any
/// listener. Version 2 has no cluster ids in its handshake, and is otherwise as version 3.
pub const PROTOCOL_MIN: u16 = 2;
pub const PROTOCOL_MAX: u16 = 3;
/// Longest frame between servers and coordinators, header excluded: a replica's bytes are sent in
/// pieces below this.
pub const PEER_FRAME_BYTES_MAX: usize = 64 << 20;
/// Longest frame from and to clients, header excluded.
pub const CLIENT_FRAME_BYTES_MAX: usize = 16 << 20;
/// Maximum operations in one request.
pub const PARTS_MAX: usize = 65_536;

/// The kind of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    ToCoordinator = 1,
    FromCoordinator = 2,
    Peer = 3,
    WriteReplica = 4,
    Ping = 16,
    Single = 17,
    Multi = 18,
    Enumerate = 19,
    Login = 20,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::ToCoordinator,
        Kind::FromCoordinator,
        Kind::Peer,
        Kind::WriteReplica,
        Kind::Ping,
        Kind::Single,
        Kind::Multi,
        Kind::Enumerate,
        Kind::Login,
    ];

    /// The kind with this number.
    #[inline]
    pub fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Reason why a body is no message. The frame around it is valid: the connection can continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("unknown kind of frame {found}")]
    Kind { found: u16 },
    #[error("a body of kind {kind:?} ends within `{field}`")]
    Truncated { kind: Kind, field: &'static str },
    #[error("field `{field}` of a body of kind {kind:?} is out of range")]
    Field { kind: Kind, field: &'static str },
    #[error("{bytes} bytes follow the end of a body of kind {kind:?}")]
    Trailing { kind: Kind, bytes: usize },
    #[error("a body of kind {kind:?} is none: {reason}")]
    Postcard { kind: Kind, reason: String },
    #[error("a question was expected, an answer came (or the reverse)")]
    Direction,
}
