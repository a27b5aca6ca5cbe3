//! Errors of the store, named by the remedy.

use crate::{Table, Version};
use duramen_base::ids::Level;

/// The reason why a call failed; the text names the fault, its place and the remedy.
///
/// Errors of one operation have changed nothing. After [`DiskFull`](Error::DiskFull) and
/// [`DiskFailed`](Error::DiskFailed) the write may have been made in memory, and it is not known
/// whether it survives: read the key again.
///
/// ```
/// use duramen::{Condition, Error, Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// match session.set_if(Table::DEFAULT, "owner", "me", Condition::Absent) {
///     Ok(_) => println!("mine"),
///     Err(Error::ConditionFailed { .. }) => println!("somebody else was first"),
///     Err(Error::OutOfMemory { .. }) => println!("remove something, or raise the budget"),
///     Err(other) => return Err(other),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The [`Condition`](crate::Condition) does not hold: look at the key again.
    #[error("the condition does not hold: {}", tell(*current))]
    ConditionFailed {
        /// The version that was found; `None` = the key is absent.
        current: Option<Version>,
    },
    /// At most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX) bytes.
    #[error("key of {bytes} bytes is longer than the limit of {limit}")]
    KeyTooLarge { bytes: usize, limit: usize },
    /// At most [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX) bytes.
    #[error("value of {bytes} bytes is longer than the limit of {limit}")]
    ValueTooLarge { bytes: usize, limit: usize },
    /// The table was never created, or was dropped. Also returned for an attempt to drop the
    /// default table.
    #[error("no table with id {0}")]
    NoSuchTable(Table),
    #[error("a table called `{0}` exists already")]
    TableExists(String),
    #[error("table name `{0}` is not 1 to 128 printable characters without blanks")]
    BadTableName(String),
    /// At most [`TABLES_MAX`](crate::TABLES_MAX) at once.
    #[error("more than {limit} tables")]
    TooManyTables { limit: usize },
    /// Redis's commands made the value: only they can read it. It can be replaced and removed.
    #[error("the key holds a collection or a stream: only Redis's commands on it can read it")]
    WrongType,
    /// The value to be incremented is not a decimal integer of 64 bits.
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    #[error("value is not a valid float")]
    NotAFloat,
    #[error("increment or decrement would overflow")]
    Overflow,
    #[error("increment would produce NaN or Infinity")]
    NotFinite,
    /// Split the transaction.
    #[error("a transaction that writes {bytes} bytes is larger than the limit of {limit}")]
    TransactionTooLarge { bytes: usize, limit: usize },
    /// A transaction used a key that it was not given.
    #[error("the transaction was not given this key: name all of its keys when it begins")]
    NotInTransaction,
    /// Returned by a closure to give its transaction up; the store itself never returns it.
    #[error("the transaction was given up")]
    Aborted,
    /// The call comes from a closure that the same store runs with keys locked or memory held, so
    /// it would wait for itself. Make it before or after; inside of a transaction use the
    /// transaction's own methods.
    #[error("an operation inside of a closure of the same store would wait for itself")]
    Nested,
    /// Remove objects, raise the budget, or use [`Options::cache`](crate::Options::cache).
    #[error("out of memory: {live_bytes} of {limit_bytes} bytes are live data")]
    OutOfMemory { live_bytes: u64, limit_bytes: u64 },
    /// Free some space; writes resume by themselves.
    #[error("the disk is full: {0}; reads go on, writes resume when there is space")]
    DiskFull(String),
    /// The device failed: unacknowledged writes may be lost. Replace it, then restart.
    #[error("the disk failed: {0}; reads go on, writes are refused until a restart")]
    DiskFailed(String),
    /// Open the directory again. Also in a process that was forked after the store was opened.
    #[error("the store is closed, or was opened before this process was forked")]
    Closed,
    /// Drop unused sessions: each thread needs one.
    #[error("more than {limit} sessions at once")]
    TooManySessions { limit: usize },
    /// The directory cannot be opened: it is in use, not ours, or of a newer version. Nothing was
    /// touched; the text names the remedy.
    #[error(transparent)]
    Disk(duramen_backup::Error),
    /// Part of the data is missing or damaged, and there is no other copy here. Nothing was
    /// touched.
    #[error(
        "`{place}`: {reason}. Nothing was changed; restore from a snapshot, or run `duramen fsck` to see what is left, or `duramen accept-loss` to start without the rest"
    )]
    Damaged { place: String, reason: String },
    /// Memory or disk as configured cannot hold the contents of the directory. Nothing was touched.
    #[error("`{place}`: {reason}")]
    Misfit { place: String, reason: String },
    /// The store has no directory, so a level above `memory` is not possible.
    #[error("this store keeps its data in memory only: level `{0}` needs a directory")]
    NoDirectory(Level),
    /// The log of a cluster's member is on other servers.
    #[doc(hidden)]
    #[error("a member of a cluster keeps its log on others: back the cluster up instead")]
    NotHere,
    #[error("a snapshot is being taken already")]
    SnapshotRunning,
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Any other refusal of the engine: a memory budget out of range, no address space, a flash
    /// device that failed.
    #[error(transparent)]
    Engine(duramen_engine::Error),
}

fn tell(current: Option<Version>) -> String {
    match current {
        Some(version) => format!("the object's version is {version}"),
        None => "the key is absent".to_owned(),
    }
}

impl From<duramen_engine::Error> for Error {
    fn from(error: duramen_engine::Error) -> Error {
        use duramen_engine::Error as Refusal;
        match error {
            Refusal::ConditionFailed { current } => Error::ConditionFailed {
                current: current.map(Version),
            },
            Refusal::KeyTooLarge { bytes, limit } => Error::KeyTooLarge { bytes, limit },
            Refusal::ValueTooLarge { bytes, limit } => Error::ValueTooLarge { bytes, limit },
            Refusal::NoSuchTable(table) => Error::NoSuchTable(table),
            Refusal::TableExists(name) => Error::TableExists(name),
            Refusal::BadTableName(name) => Error::BadTableName(name),
            Refusal::TooManyTables { limit } => Error::TooManyTables { limit },
            Refusal::WrongType => Error::WrongType,
            Refusal::NotAnInteger => Error::NotAnInteger,
            Refusal::NotAFloat => Error::NotAFloat,
            Refusal::Overflow => Error::Overflow,
            Refusal::NotFinite => Error::NotFinite,
            Refusal::GroupTooLarge { bytes, limit } => Error::TransactionTooLarge { bytes, limit },
            Refusal::OutOfMemory {
                live_bytes,
                limit_bytes,
            } => Error::OutOfMemory {
                live_bytes,
                limit_bytes,
            },
            Refusal::DiskFull => Error::DiskFull("no space for the log".to_owned()),
            Refusal::DiskFailed => Error::DiskFailed("an earlier write failed".to_owned()),
            Refusal::Closed => Error::Closed,
            Refusal::TooManySessions { limit } => Error::TooManySessions { limit },
            Refusal::TryAgain
            | Refusal::Cold(_)
            | Refusal::Damaged
            | Refusal::FlashFailed
            | Refusal::FlashStuck
            | Refusal::Crowded
            | Refusal::BudgetTooSmall { .. }
            | Refusal::BudgetTooLarge { .. }
            | Refusal::BudgetBelowData { .. }
            | Refusal::BudgetBusy
            | Refusal::Reserve { .. } => Error::Engine(error),
        }
    }
}

/// Errors of a running store. (For errors of opening, see [`Error::Disk`].)
impl From<duramen_backup::Error> for Error {
    fn from(error: duramen_backup::Error) -> Error {
        match error {
            // A large commit goes to frames; if there is none, it must wait for one.
            duramen_backup::Error::Full { .. } | duramen_backup::Error::CommitTooLarge { .. } => {
                Error::DiskFull(error.to_string())
            }
            other => Error::DiskFailed(other.to_string()),
        }
    }
}
