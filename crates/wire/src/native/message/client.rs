//! Requests of clients to masters. Keys and values are borrowed from the frame: they are not copied
//! when they are decoded.
//!
//! Each mutating request can carry an [`Rpc`]. Then it takes effect exactly once, even if it is
//! sent repeatedly and servers crash: the key's owner at that time, the same master or a later one,
//! answers a repetition with the first answer.

use crate::native::codec::{Objects, Outcomes, Parts};
use duramen_base::ids::{ClientId, KeyRange, Level, RouteHash, RpcId, TableId};

/// Identifies a request, so that it takes effect once. Paper: RIFL Lee15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rpc {
    pub client: ClientId,
    pub id: RpcId,
    /// The client has the answers to all requests up to this one: masters may forget them.
    pub acknowledged: RpcId,
}

/// Names the user of a client. From the answer on, all later requests on this connection have that
/// user's rights. → `LoggedIn`, or [`Trouble::NotPermitted`](crate::native::codec::Trouble)
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    pub user: &'a [u8],
    pub password: &'a [u8],
}

/// Shows the login without the password.
impl std::fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = String::from_utf8_lossy(self.user);
        f.debug_struct("Login").field("user", &user).finish()
    }
}

/// The condition of a mutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Always,
    Absent,
    Present,
    /// The object exists with exactly this version.
    Version(u64),
    /// The object is absent, or its version is lower than this one.
    NewerThan(u64),
}

/// When an object expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    #[default]
    Never,
    /// The expiry of the existing object stays; never, if there is none.
    Keep,
    /// Milliseconds since the Unix epoch.
    At(u64),
}

/// The amount of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Integer(i64),
    Float(f64),
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation<'a> {
    /// → `Value` or `Absent`
    Read,
    /// → `Written` or `ConditionFailed`
    Write {
        value: &'a [u8],
        condition: Condition,
        expiry: Expiry,
    },
    /// → `Removed`, `Absent` or `ConditionFailed`
    Remove { condition: Condition },
    /// An absent object counts as 0; expiry is kept. → `Number`
    Increment { by: Amount },
}

impl Operation<'_> {
    /// Whether it can change an object.
    pub fn mutates(&self) -> bool {
        !matches!(self, Operation::Read)
    }
}

/// An operation with its key, its level and its RPC id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single<'a> {
    pub table: TableId,
    pub key: &'a [u8],
    pub operation: Operation<'a>,
    /// The level that the answer waits for. `None`: the table's level.
    pub level: Option<Level>,
    /// `None`: each copy that is sent takes effect at most once.
    pub rpc: Option<Rpc>,
}

/// A client's request to a master. Several operations at once ([`Request::Multi`]) are independent
/// of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// → `Pong`
    Ping,
    /// → `Single`
    Single(Single<'a>),
    /// Several operations, in any order, not atomic; each mutating one has its own RPC id. →
    /// `Multi`, in the same order
    Multi(Parts<'a>),
    /// Objects of a table, in the part of the range that is owned here, from `range.first` on. They
    /// are in the order of their 50-bit hashes (a route hash without the slot), the order of an
    /// index, from `cursor` on. All keys with equal hashes come in one answer. → `Objects`
    Enumerate {
        table: TableId,
        range: KeyRange,
        /// The position from which to continue; 0: from the beginning.
        cursor: u64,
        /// The answer ends after this many bytes; it has at least the keys of one hash.
        bytes_max: u32,
    },
}

/// Result of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<'a> {
    Value {
        version: u64,
        /// Milliseconds since the Unix epoch.
        expires_at_ms: Option<u64>,
        value: &'a [u8],
    },
    /// There is no such object; a removal had no effect.
    Absent,
    Written {
        version: u64,
    },
    Removed {
        /// The removed version.
        version: u64,
    },
    Number {
        value: Amount,
        version: u64,
    },
    ConditionFailed {
        /// The existing version; `None`: absent.
        current: Option<u64>,
    },
    Problem(Problem<'a>),
}

/// Reason why an operation failed, by the client's next step. Except for `Stale` and `Failed`,
/// nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// The key's tablet is not here: get the map again.
    UnknownTablet,
    /// The table does not exist: get the map again once, then report an error to the user.
    UnknownTable,
    /// The range is being recovered or moved, or the state of the client's lease is not known yet.
    /// This copy had no effect: send the same request again after this time.
    Retry { after_ms: u32 },
    /// The client has acknowledged this RPC id: its answer is forgotten. A client that follows the
    /// rules never gets this.
    Stale,
    /// The client's lease has expired: get a new one. Whether earlier copies of this request took
    /// effect is not known.
    LeaseExpired,
    /// The value is not a number, or the result would not be one.
    NotANumber,
    /// The sum is beyond the range of integers.
    Overflow,
    /// Key or value is longer than allowed.
    TooLarge,
    /// Memory or disk of the master is full of live data. Nothing was changed; a later attempt may
    /// succeed.
    Full { what: &'a str },
    /// Another failure, with the reason for people: sending the request again does not help.
    Failed { reason: &'a str },
    /// An earlier request, or an earlier copy of this one, is being executed, and its result is not
    /// durable yet: send the same request again after this time. Whether the request has taken
    /// effect is not known: this copy counts as not answered.
    InProgress { after_ms: u32 },
    /// The key holds a collection or a stream, which native clients cannot read. They can
    /// replace and remove it.
    WrongType,
}

/// A master's answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    Pong,
    Single(Outcome<'a>),
    Multi(Outcomes<'a>),
    Objects {
        /// The end of the part that this answer covers. The rest of the range continues with the
        /// cursor of the request.
        last: RouteHash,
        /// Continue from here in this part; `None`: the part is complete.
        cursor: Option<u64>,
        objects: Objects<'a>,
    },
    /// The answer to a request that is not a single operation.
    Problem(Problem<'a>),
}

/// An object of an enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    pub version: u64,
    /// Milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    pub key: &'a [u8],
    pub value: &'a [u8],
}
