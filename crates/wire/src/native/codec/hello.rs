//! The first bytes of each side of a connection.
//!
//! **Layout**
//!
//! ```text
//! 0            8      10     12     13          14           16       ...
//! +------------+------+------+------+-----------+------------+---------+-------+
//! | "DURAMENN" | min  | max  | role | bytes of  | bytes of   | cluster | token |
//! |            | u16  | u16  | u8   | name, u8  | token, u16 |  name   |       |
//! +------------+------+------+------+-----------+------------+---------+-------+
//! ```
//!
//! Both sides speak the highest version that both know. Who refuses sends its own hello first, so that the other side can say
//! why; then a frame with a [`Trouble`](super::Trouble), then nothing.

use super::{PROTOCOL_MAX, PROTOCOL_MIN};

const MAGIC: [u8; 8] = *b"DURAMENN";
const FIXED_BYTES: usize = 16;
/// Longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 1024;

/// Who opens a connection, or answers on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    Client = 1,
    Server = 2,
    Coordinator = 3,
    /// A server, on a connection for what waits for disks: replicas are written and read on it, and nothing else. So no ping waits
    /// behind them.
    Replica = 4,
}

impl Role {
    const ALL: [Role; 4] = [Role::Client, Role::Server, Role::Coordinator, Role::Replica];
}

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The protocol versions that this side speaks.
    pub min: u16,
    pub max: u16,
    pub role: Role,
    /// Empty: any cluster (clients and tools only).
    pub cluster: &'a str,
    /// Proof that this side may speak; empty if the cluster asks for none.
    pub token: &'a [u8],
}

/// Why the other side can't be talked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("the other side does not speak Duramen's native protocol")]
    Magic,
    #[error("unknown role {found}")]
    Role { found: u8 },
    #[error("the cluster's name is not text")]
    Name,
    #[error("a token of {bytes} bytes; at most 1024 are allowed")]
    Token { bytes: usize },
    #[error("the versions {min} to {max} are no range")]
    Versions { min: u16, max: u16 },
    #[error(
        "the other side speaks versions {min} to {max} of the protocol, this one {} to {}: update the older program",
        PROTOCOL_MIN,
        PROTOCOL_MAX
    )]
    NoCommonVersion { min: u16, max: u16 },
    #[error("the other side belongs to cluster `{theirs}`, this one to `{ours}`")]
    WrongCluster { ours: String, theirs: String },
}

/// What [`parse_hello`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloParsed<'a> {
    /// Not before the input has this length.
    Incomplete { needed: usize },
    /// A hello of so many bytes.
    Hello { hello: Hello<'a>, bytes: usize },
}

impl<'a> Hello<'a> {
    /// The hello of this program.
    pub fn new(role: Role, cluster: &'a str, token: &'a [u8]) -> Hello<'a> {
        Hello {
            min: PROTOCOL_MIN,
            max: PROTOCOL_MAX,
            role,
            cluster,
            token,
        }
    }

    /// Appends its bytes.
    ///
    /// # Panics
    /// If the name is longer than 255 bytes or the token longer than 1024: configuration is checked when it is read.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.token.len() <= TOKEN_BYTES_MAX, "token too long");
        let name = u8::try_from(self.cluster.len()).expect("a cluster's name of at most 255 bytes");
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.min.to_le_bytes());
        out.extend_from_slice(&self.max.to_le_bytes());
        out.push(self.role as u8);
        out.push(name);
        out.extend_from_slice(&(self.token.len() as u16).to_le_bytes());
        out.extend_from_slice(self.cluster.as_bytes());
        out.extend_from_slice(self.token);
    }

    /// The version to speak with the sender of this hello, for a side of cluster `ours` (empty: any).
    ///
    /// # Errors
    /// There is none, or it is another cluster.
    pub fn agree(&self, ours: &str) -> Result<u16, HelloError> {
        if self.min > PROTOCOL_MAX || self.max < PROTOCOL_MIN {
            return Err(HelloError::NoCommonVersion {
                min: self.min,
                max: self.max,
            });
        }
        let any = ours.is_empty() || (self.cluster.is_empty() && self.role == Role::Client);
        if !any && self.cluster != ours {
            return Err(HelloError::WrongCluster {
                ours: ours.to_owned(),
                theirs: self.cluster.to_owned(),
            });
        }
        Ok(self.max.min(PROTOCOL_MAX))
    }
}

/// Takes the hello at the beginning of untrusted `input`.
///
/// # Errors
/// The input is none, and no more input will make it one.
pub fn parse_hello(input: &[u8]) -> Result<HelloParsed<'_>, HelloError> {
    let common = input.len().min(MAGIC.len());
    if input[..common] != MAGIC[..common] {
        return Err(HelloError::Magic);
    }
    let Some((head, rest)) = input.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(HelloParsed::Incomplete {
            needed: FIXED_BYTES,
        });
    };
    let [
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        min0,
        min1,
        max0,
        max1,
        role,
        name,
        token0,
        token1,
    ] = *head;
    let (min, max) = (
        u16::from_le_bytes([min0, min1]),
        u16::from_le_bytes([max0, max1]),
    );
    if min == 0 || min > max {
        return Err(HelloError::Versions { min, max });
    }
    let Some(role) = Role::ALL.into_iter().find(|known| *known as u8 == role) else {
        return Err(HelloError::Role { found: role });
    };
    let (name, token) = (
        usize::from(name),
        usize::from(u16::from_le_bytes([token0, token1])),
    );
    if token > TOKEN_BYTES_MAX {
        return Err(HelloError::Token { bytes: token });
    }
    let Some((cluster, token)) = rest
        .get(..name + token)
        .and_then(|rest| rest.split_at_checked(name))
    else {
        return Ok(HelloParsed::Incomplete {
            needed: FIXED_BYTES + name + token,
        });
    };
    let cluster = std::str::from_utf8(cluster).map_err(|_| HelloError::Name)?;
    let hello = Hello {
        min,
        max,
        role,
        cluster,
        token,
    };
    Ok(HelloParsed::Hello {
        hello,
        bytes: FIXED_BYTES + cluster.len() + token.len(),
    })
}
