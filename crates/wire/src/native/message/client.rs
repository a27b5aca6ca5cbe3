//! What clients ask masters. Keys and values are borrowed from the frame: nothing is copied on the
//! way in.
//!
//! Each mutating request can carry an [`Rpc`]; then it takes effect exactly once, however often it
//! is sent and through whatever crashes: the master, or whoever owns the key by then, answers a
//! repetition with the first answer.

use crate::native::codec::{Objects, Outcomes, Parts};
use duramen_base::ids::{ClientId, KeyRange, Level, RouteHash, RpcId, TableId};

/// Names a request so that it takes effect once. Paper: RIFL Lee15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rpc {
    pub client: ClientId,
    pub id: RpcId,
    /// The client has the answers of all requests up to here: masters may forget them.
    pub acknowledged: RpcId,
}

/// What must be true for a mutation to happen.
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
    /// As the object that is there; never if there is none.
    Keep,
    /// Milliseconds since the Unix epoch.
    At(u64),
}

/// What is added.
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
    /// Whether it can change something.
    pub fn mutates(&self) -> bool {
        !matches!(self, Operation::Read)
    }
}

/// An operation, its key, and what it promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single<'a> {
    pub table: TableId,
    pub key: &'a [u8],
    pub operation: Operation<'a>,
    /// What the answer waits for. `None`: the table's level.
    pub level: Option<Level>,
    /// `None`: at most once per time it is sent.
    pub rpc: Option<Rpc>,
}

/// What a client asks a master. Several operations at once ([`Request::Multi`]) are independent of
/// each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// → `Pong`
    Ping,
    /// → `Single`
    Single(Single<'a>),
    /// Several operations, in any order, not atomic; each mutating one has an RPC id of its own. →
    /// `Multi`, in the same order
    Multi(Parts<'a>),
    /// Objects of a table, of the part of the range that is owned here, from `range.first` on; in
    /// the order of their 50-bit hashes (a route hash without the slot), as an index has them, from
    /// `cursor` on. All keys of equal hash come in one answer. → `Objects`
    Enumerate {
        table: TableId,
        range: KeyRange,
        /// 0: from the beginning.
        cursor: u64,
        /// The answer ends after this many bytes; it holds at least the keys of one hash.
        bytes_max: u32,
    },
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<'a> {
    Value {
        version: u64,
        /// Milliseconds since the Unix epoch.
        expires_at_ms: Option<u64>,
        value: &'a [u8],
    },
    /// There is no such object; a removal had nothing to do.
    Absent,
    Written {
        version: u64,
    },
    Removed {
        /// The version that is gone.
        version: u64,
    },
    Number {
        value: Amount,
        version: u64,
    },
    ConditionFailed {
        /// The version that is there; `None`: absent.
        current: Option<u64>,
    },
    Problem(Problem<'a>),
}

/// Why an operation did not happen, by what the client should do. Except for `Stale` and `Failed`,
/// nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// The key's tablet is not here: get the map again.
    UnknownTablet,
    /// The table does not exist: get the map again once, then tell the user.
    UnknownTable,
    /// Being recovered or moved, or nothing is known of the client's lease yet. This sending had no
    /// effect: send the same again after this time.
    Retry { after_ms: u32 },
    /// The client has acknowledged this RPC id: its answer is forgotten. A client that follows the
    /// rules never sees it.
    Stale,
    /// The client's lease has run out: get a new one. Whether earlier sendings of this RPC took
    /// effect is not known.
    LeaseExpired,
    /// The value is not a number, or the result would not be one.
    NotANumber,
    /// Beyond the range of integers.
    Overflow,
    /// Key or value is longer than allowed.
    TooLarge,
    /// Memory or disk of the master is full of live data. Nothing was changed; later it may work.
    Full { what: &'a str },
    /// For people; sending it again does not help.
    Failed { reason: &'a str },
    /// An earlier sending, or an earlier copy of this one, is being executed, and what comes of it
    /// is not durable yet: send the same again after this time. This says nothing of whether the
    /// request has taken effect: the sending counts as not answered.
    InProgress { after_ms: u32 },
}

/// What a master answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    Pong,
    Single(Outcome<'a>),
    Multi(Outcomes<'a>),
    Objects {
        /// The end of the part that this is about. What the range has after it goes on with the
        /// cursor of the request.
        last: RouteHash,
        /// Go on from here in this part; `None`: that was all of it.
        cursor: Option<u64>,
        objects: Objects<'a>,
    },
    /// To a request that is no single operation.
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
