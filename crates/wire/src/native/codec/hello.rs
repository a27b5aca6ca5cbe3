//! The first bytes of each side of a connection: the protocol's name and versions, and a nonce.
//! They contain nothing secret; [`handshake`](super::handshake) describes the next steps.
//!
//! **Layout**
//!
//! ```text
//! 0            8      10     12     13      16      48
//! +------------+------+------+------+-------+-------+
//! | "DURAMENN" | min  | max  | role |   0   | nonce |
//! |            | u16  | u16  | u8   |       |       |
//! +------------+------+------+------+-------+-------+
//! ```
//!
//! Bytes 13 to 15 were lengths in version 1. As zeros they let a program of version 1 read the
//! versions and report that none is common.

use super::{FrameError, PROTOCOL_MAX, PROTOCOL_MIN};
use duramen_base::ids::ClusterId;

const MAGIC: [u8; 8] = *b"DURAMENN";
/// The first bytes of a TLS connection: a handshake record of version 3.x.
const TLS_RECORD: [u8; 2] = [22, 3];
/// Bytes of an opening.
pub const OPENING_BYTES: usize = 48;
/// Bytes of a nonce: enough that no two nonces are equal, and that none can be guessed.
pub const NONCE_BYTES: usize = 32;

/// A random number that each side draws anew for every connection.
pub type Nonce = [u8; NONCE_BYTES];

/// The role of a side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    Client = 1,
    Server = 2,
    Coordinator = 3,
    /// A server, on a connection that may wait for disks: only replicas are written and read on it.
    /// So no ping waits behind them.
    Replica = 4,
}

impl Role {
    const ALL: [Role; 4] = [Role::Client, Role::Server, Role::Coordinator, Role::Replica];
}

/// The first bytes that a side of a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The protocol versions that this side supports.
    pub min: u16,
    pub max: u16,
    pub role: Role,
    pub nonce: Nonce,
}

/// Reason why a connection with the other side is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("the other side does not speak Duramen's native protocol")]
    Magic,
    /// The first bytes of the other side are a TLS record.
    #[error(
        "the other side speaks TLS, and this one is set up without TLS: give both sides certificates, or none"
    )]
    Encrypted,
    #[error("unknown role {found}")]
    Role { found: u8 },
    #[error("bytes 13 to 15 of an opening must be zero")]
    Reserved,
    #[error("the versions {min} to {max} are no range")]
    Versions { min: u16, max: u16 },
    #[error(
        "the other side speaks versions {min} to {max} of the protocol, this one {} to {}: update the older program",
        PROTOCOL_MIN,
        PROTOCOL_MAX
    )]
    NoCommonVersion { min: u16, max: u16 },
    #[error("a malformed proof: {0}")]
    Frame(#[from] FrameError),
    #[error("a proof was expected, something else came")]
    Proof,
    #[error("the cluster's name is not text of at most 255 bytes")]
    Name,
    #[error("not permitted: the token is wrong, or only one side has one")]
    Token,
    #[error("the other side belongs to cluster `{theirs}`, this one to `{ours}`")]
    WrongCluster { ours: String, theirs: String },
    /// Both clusters may have the same name.
    #[error(
        "the other side belongs to the cluster with id {theirs}, this one to the cluster with id {ours}"
    )]
    OtherCluster { ours: ClusterId, theirs: ClusterId },
    /// The other side's reason for its refusal.
    #[error("refused: {0}")]
    Refused(String),
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl Opening {
    /// The opening of this program.
    pub fn new(role: Role, nonce: Nonce) -> Opening {
        Opening {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            role,
            nonce,
        }
    }

    /// Appends the bytes of the opening.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.min.to_le_bytes());
        out.extend_from_slice(&self.max.to_le_bytes());
        out.extend_from_slice(&[self.role as u8, 0, 0, 0]);
        out.extend_from_slice(&self.nonce);
    }
}

/// Whether a side begins with the bytes of an opening: without TLS. For a port that expects TLS.
pub fn is_plain_opening(input: &[u8]) -> bool {
    let common = input.len().min(MAGIC.len());
    common > 0 && input.get(..common) == MAGIC.get(..common)
}

/// Parses the opening at the beginning of untrusted `input`. `None`: more bytes must come, up to
/// [`OPENING_BYTES`].
///
/// # Errors
/// The input is no opening of a supported form, and more input will not make it one.
pub fn parse_opening(input: &[u8]) -> Result<Option<Opening>, HelloError> {
    let common = input.len().min(MAGIC.len());
    if input.get(..common) != MAGIC.get(..common) {
        return Err(if input.starts_with(&TLS_RECORD) {
            HelloError::Encrypted
        } else {
            HelloError::Magic
        });
    }
    // The bytes after the versions depend on the version: an old opening may be shorter.
    let Some([min0, min1, max0, max1]) = input.get(8..).and_then(|rest| rest.first_chunk::<4>())
    else {
        return Ok(None);
    };
    let min = u16::from_le_bytes([*min0, *min1]);
    let max = u16::from_le_bytes([*max0, *max1]);
    if min == 0 || min > max {
        return Err(HelloError::Versions { min, max });
    }
    if min > PROTOCOL_MAX || max < PROTOCOL_MIN {
        return Err(HelloError::NoCommonVersion { min, max });
    }
    let fixed = input
        .get(12..)
        .and_then(|rest| rest.split_first_chunk::<4>());
    let Some(([role, reserved @ ..], rest)) = fixed else {
        return Ok(None);
    };
    let Some(role) = Role::ALL.into_iter().find(|known| *known as u8 == *role) else {
        return Err(HelloError::Role { found: *role });
    };
    if *reserved != [0; 3] {
        return Err(HelloError::Reserved);
    }
    Ok(rest.first_chunk::<NONCE_BYTES>().map(|nonce| Opening {
        min,
        max,
        role,
        nonce: *nonce,
    }))
}
