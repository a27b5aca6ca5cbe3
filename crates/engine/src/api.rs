//! The engine's API types: options, objects, decisions, outcomes, errors.

use crate::device::{Cold, FlashOptions};
pub use duramen_base::ids::TableId;
use duramen_base::ids::{Level, SegmentId};
use duramen_format::entry::Completion;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Behaviour of a store whose live data reach the memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Writes get [`Error::OutOfMemory`]; no data are ever lost.
    #[default]
    Store,
    /// The cleaner evicts entries that were not read recently or often. Paper: [Rumble14 §8.6].
    Cache,
}

/// The source of the present time, in milliseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub enum Clock {
    System,
    /// For tests: the caller moves time by storing into the atomic.
    Manual(Arc<AtomicU64>),
    /// For tests: as `Manual`, with a steady clock beside the wall clock, which may step.
    Stepped {
        wall_ms: Arc<AtomicU64>,
        steady_ms: Arc<AtomicU64>,
    },
}

impl Clock {
    pub fn now_ms(&self) -> u64 {
        match self {
            Clock::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            Clock::Manual(now_ms)
            | Clock::Stepped {
                wall_ms: now_ms, ..
            } => now_ms.load(Ordering::Relaxed),
        }
    }
}

/// The options of a [`Store`](crate::Store).
#[derive(Clone, Debug)]
pub struct Options {
    /// Hard budget in bytes for segments, index and the engine's own tables.
    /// At least [`STORE_BYTES_MIN`](duramen_base::limits::STORE_BYTES_MIN).
    pub memory_bytes: u64,
    /// The highest budget that [`Store::set_memory`](crate::Store::set_memory) can set later: the
    /// store reserves address space and makes its tables for it. A value below `memory_bytes`
    /// counts as `memory_bytes`.
    pub memory_bytes_max: u64,
    pub mode: Mode,
    /// Data heads; one per core that writes. 0 = one per available core.
    pub heads: usize,
    /// Background cleaner threads. 0 = none: only writers clean, when they have to.
    pub cleaners: usize,
    /// Requests huge pages from the kernel.
    pub huge_pages: bool,
    /// Seed of the key hash. `None` = random, which protects against hash flooding by clients.
    pub hash_seed: Option<u64>,
    pub clock: Clock,
    /// Allows budgets and segments too small for the largest object: for simulations, whose objects
    /// are small.
    pub tiny: bool,
    /// Gives the store a log, for a writer that makes it durable. `None`: the store is in memory
    /// alone.
    pub log: Option<LogOptions>,
    /// Flash device for segments that memory has no room for. `None`: the store has no such device.
    pub flash: Option<FlashOptions>,
}

/// The past of a store with a log, and the limits of its disk.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Id of the server, and so of its log.
    pub server: u64,
    /// The first segment id to give; above every id ever given in this log.
    pub first_segment: u64,
    /// Lower limit of new versions; above every version ever given in this log.
    pub version_floor: u64,
    /// Objects that expire up to this time have expired in an earlier run, and stay absent whatever
    /// the clock shows now. Milliseconds since the Unix epoch.
    pub expired_until_ms: u64,
    /// The store calls [`remove_doubted`](crate::Store::remove_doubted) again and again: so a wall
    /// clock that jumps ahead can be doubted (core::doubt::DC1).
    pub doubts_clock: bool,
    /// Maximum number of segments of the log on disk.
    pub disk_segments_max: u64,
    /// Segments that the disk can hold. This is more than `disk_segments_max` on a disk that was
    /// made for a longer log: a log that is found too long needs room beyond the maximum to become
    /// shorter.
    pub disk_segments_room: u64,
    /// Number of segments that are going to be loaded.
    pub segments_found: u64,
    /// Level of tables that are made without one.
    pub level: Level,
    /// Bytes of a segment, a power of two; 0 = derived from the memory budget. A log is reopened
    /// with the size that it was made with.
    pub segment_bytes: u64,
    /// Maximum number of cleaning passes that wait for their Swap, at least 1.
    pub pending_passes_max: usize,
    /// Whether memory is also cleaned alone, by compaction. Off, for comparison, it is cleaned only
    /// together with the disk.
    pub two_levels: bool,
    /// Number of zones: segments whose ids are equal modulo this number have their replicas on the
    /// same backups. Each pass takes its victims from one zone, if one gains anything. 0 = there
    /// are no zones, and no recipes of survivors.
    pub zones: u64,
    /// Maximum bytes of a group, if that is more than a segment: everything that is collected at
    /// once must then become durable in one step.
    pub group_bytes_max: u64,
}

/// Victims and survivors of a pass take room on the disk until its Swap. So a cleaner that is far
/// ahead of the disk leaves less room there, and its next victims have more live data: with four
/// passes instead of one, cleaning at 90 % utilization on a slow disk wrote twice as much.
const PENDING_PASSES_MAX: usize = 1;

impl LogOptions {
    /// The log of a new server.
    pub fn new(server: u64) -> LogOptions {
        LogOptions {
            server,
            first_segment: 1,
            version_floor: 1,
            expired_until_ms: 0,
            doubts_clock: false,
            disk_segments_max: u64::MAX,
            disk_segments_room: u64::MAX,
            segments_found: 0,
            level: Level::Synced,
            segment_bytes: 0,
            pending_passes_max: PENDING_PASSES_MAX,
            two_levels: true,
            zones: 0,
            group_bytes_max: u64::MAX,
        }
    }
}

impl LogOptions {
    /// The number of zones, at least one.
    pub(crate) fn zone_count(&self) -> u64 {
        self.zones.max(1)
    }

    /// The zone of a segment: segments of a zone have their replicas on the same backups.
    pub(crate) fn zone_of(&self, segment: SegmentId) -> u64 {
        segment.0 % self.zone_count()
    }
}

impl Options {
    /// The defaults for a budget of `memory_bytes`.
    pub fn new(memory_bytes: u64) -> Options {
        Options {
            memory_bytes,
            memory_bytes_max: 0,
            mode: Mode::Store,
            heads: 0,
            cleaners: 1,
            huge_pages: true,
            hash_seed: None,
            clock: Clock::System,
            tiny: false,
            log: None,
            flash: None,
        }
    }

    /// The highest budget of the store.
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max.max(self.memory_bytes)
    }
}

/// Name, id and size of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub id: TableId,
    pub name: String,
    pub objects: u64,
}

/// A change of a table, for the record that survives a restart. See [`Log`](crate::Log).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// Entries of this id with a version below `floor` belong to a table that was dropped.
    Create {
        table: TableId,
        name: String,
        /// `None`: the store's default.
        level: Option<Level>,
        floor: u64,
    },
    Drop {
        table: TableId,
        floor: u64,
    },
    /// Every entry with a version below `floor` is dead.
    Clear {
        table: TableId,
        floor: u64,
    },
    SetLevel {
        table: TableId,
        level: Option<Level>,
    },
}

/// The hash of a key, computed once per operation by [`Guard::hash`](crate::Guard::hash).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// The hash as a number.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }

    /// True if a scan that continues at `cursor` has already passed this key.
    #[inline]
    pub fn is_before(self, cursor: u64) -> bool {
        self.0 < cursor
    }

    /// The key's route hash: its slot in front of its hash. `key` is the key that this is the hash
    /// of.
    #[inline]
    pub fn route(self, key: &[u8]) -> duramen_base::ids::RouteHash {
        duramen_base::ids::RouteHash::of(duramen_format::hash::slot(key), self.0)
    }
}

/// An object as the log holds it; borrowed from memory that the guard protects from reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// Object version: only grows for a key, across delete and re-create too. At least 1.
    pub version: u64,
    /// Time of expiry, in milliseconds since the Unix epoch; `None` = never. The object exists in
    /// that millisecond, and not after it.
    pub expires_at_ms: Option<u64>,
    /// The value is no plain string: its first byte is its type.
    pub is_typed: bool,
}

impl<'a> Object<'a> {
    /// The value, if it is a plain string.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    #[inline]
    pub fn string(&self) -> Result<&'a [u8], Error> {
        match self.is_typed {
            false => Ok(self.value),
            true => Err(Error::WrongType),
        }
    }

    /// The decision to store the content of the scratch buffer as a value of the same kind: typed,
    /// or a plain string.
    pub fn put_scratch(&self, expires_at_ms: Option<u64>) -> Decision<'static> {
        match self.is_typed {
            true => Decision::PutTyped { expires_at_ms },
            false => Decision::PutScratch { expires_at_ms },
        }
    }
}

/// Decision of an [`update`](crate::Guard::update) about the key it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'v> {
    /// Leave the object as it is.
    Keep,
    /// Remove the object, if there is one.
    Remove,
    /// Store this value. `expires_at_ms` as in [`Object`]; a time in the past removes the object.
    Put {
        value: &'v [u8],
        expires_at_ms: Option<u64>,
    },
    /// Store the content of the closure's scratch buffer.
    PutScratch { expires_at_ms: Option<u64> },
    /// As `PutScratch`, as a typed value ([`Object::is_typed`]): not empty.
    PutTyped { expires_at_ms: Option<u64> },
}

/// Versions of an object before and after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Object version before, `None` if the key was absent (or expired).
    pub before: Option<u64>,
    /// Object version after, `None` if the key is now absent.
    pub after: Option<u64>,
}

/// Condition of a [`conditional_write`](crate::Guard::conditional_write). RAMCloud's reject rules
/// [Ousterhout15 §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    Absent,
    Present,
    /// The object exists with exactly this version.
    Version(u64),
    /// The object is absent, or its version is lower than this one.
    NewerThan(u64),
}

/// The number after an [`increment`](crate::Guard::increment).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Incremented<T> {
    pub value: T,
    pub version: u64,
}

/// Identifies the state of a key at one moment, for optimistic transactions (`WATCH`); see
/// [`Stamp::still_holds`].
#[derive(Clone, Copy, Debug)]
pub enum Stamp {
    Present {
        version: u64,
    },
    Absent {
        /// Number of removals before, among all keys that are counted together with this one.
        removals: u64,
        /// Version of an expired object that is still there; 0: none is.
        expired: u64,
    },
}

impl Stamp {
    /// True if the key was neither written nor deleted between this stamp and `now`. For a key that
    /// is absent in both stamps, removals of other keys may make the result false: the caller tries
    /// again.
    pub fn still_holds(&self, now: &Stamp) -> bool {
        match (self, now) {
            (Stamp::Present { version: then }, Stamp::Present { version }) => then == version,
            (
                Stamp::Absent {
                    removals: then,
                    expired: before,
                },
                Stamp::Absent { removals, expired },
            ) => then == removals && (*expired == 0 || before == expired),
            _ => false,
        }
    }
}

/// Why an operation did not happen. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("key of {bytes} bytes is longer than the limit of {limit}")]
    KeyTooLarge { bytes: usize, limit: usize },
    #[error("value of {bytes} bytes is longer than the limit of {limit}")]
    ValueTooLarge { bytes: usize, limit: usize },
    /// Delete something, raise the budget, or use cache mode.
    #[error("out of memory: {live_bytes} of {limit_bytes} bytes are live data")]
    OutOfMemory { live_bytes: u64, limit_bytes: u64 },
    #[error("no table with id {0}")]
    NoSuchTable(TableId),
    #[error("a table called `{0}` exists already")]
    TableExists(String),
    #[error("table name `{0}` is not 1 to 128 printable characters without blanks")]
    BadTableName(String),
    #[error("more than {limit} tables")]
    TooManyTables { limit: usize },
    /// The disk has no space for the log. Reads work; writes work again when there is space.
    #[error("the disk is full: delete some data, or free space on the disk")]
    DiskFull,
    /// The disk failed. Reads work; restart the server when the disk is repaired or replaced.
    #[error("the disk failed: see the log, replace it, and restart")]
    DiskFailed,
    /// The store has ended: open its directory again.
    #[error("the store is closed")]
    Closed,
    /// The right to write the key changed while this write waited for memory: find the key's owner,
    /// and try again.
    #[error("the key may have moved: try again")]
    TryAgain,
    /// The key's entry is on the flash device alone: read it, pass it to
    /// [`Pin::fetched`](crate::Pin::fetched), and repeat the operation. Only in sessions with
    /// [`set_parks`](crate::Session::set_parks).
    #[error("the entry is on the flash device: it must be fetched first")]
    Cold(Cold),
    /// The flash device did not return the data that were written to it. Other keys can be read;
    /// replace the device, and restart.
    #[error("the flash device failed: an entry cannot be read")]
    FlashFailed,
    /// Memory has changed more than one bit of an entry that may be the key's. Other keys can be
    /// read and written. A restart loads the entry from disk, or recovers it from a replica.
    #[error(
        "the entry of this key is damaged: memory has changed more than one bit of it. Restart the \
         server, which loads it from disk, and test the memory of this machine"
    )]
    Damaged,
    /// Segments have to go to the flash device, and it fails or does not end a write.
    #[error("the flash device takes no more data: a write failed, or does not end")]
    FlashStuck,
    /// More keys share one bucket of the index than chance explains: a client may know the hash
    /// seed. Other keys can be written.
    #[error(
        "too many keys whose hashes are alike: the keys were chosen so, or the hash seed is known"
    )]
    Crowded,
    /// Split the transaction.
    #[error("a transaction that writes {bytes} bytes is longer than the limit of {limit}")]
    GroupTooLarge { bytes: usize, limit: usize },
    /// A condition did not hold; `current` is the version found, `None` = absent.
    #[error("condition failed: the object's version is {current:?}")]
    ConditionFailed { current: Option<u64> },
    /// The value is no plain string.
    #[error("the key holds a collection or a stream: only Redis's commands on it can read it")]
    WrongType,
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    #[error("value is not a valid float")]
    NotAFloat,
    #[error("increment or decrement would overflow")]
    Overflow,
    #[error("increment would produce NaN or Infinity")]
    NotFinite,
    #[error("memory budget of {bytes} bytes is below the minimum of {minimum}")]
    BudgetTooSmall { bytes: u64, minimum: u64 },
    #[error("memory budget of {bytes} bytes is above the maximum of {maximum}")]
    BudgetTooLarge { bytes: u64, maximum: u64 },
    /// A lowered budget would not hold the data; a budget of `minimum` would.
    #[error(
        "a memory budget of {bytes} bytes does not hold {live_bytes} bytes of live data and their \
         index: delete some, or choose at least {minimum}"
    )]
    BudgetBelowData {
        bytes: u64,
        live_bytes: u64,
        minimum: u64,
    },
    /// Try again when it has ended.
    #[error(
        "the memory budget cannot be lowered while data is loaded, recovered or moved here, or \
         while the data of a cleared table is counted"
    )]
    BudgetBusy,
    #[error("more than {limit} sessions at once")]
    TooManySessions { limit: usize },
    #[error("the system refused {bytes} bytes of address space: {reason}")]
    Reserve { bytes: u64, reason: String },
}

/// The tracker of executed requests. Called with the store pinned: it must not enter the store, nor
/// wait for a thread that is in it.
pub trait Completions: Send + Sync {
    /// A record was found in a log that is loaded or replayed (completion::Q3).
    fn met(&self, record: &Completion<'_>);

    /// True if the record must stay: its client has not acknowledged it, and its tablet is served
    /// here (completion::Q2).
    fn keep(&self, record: &Completion<'_>) -> bool;
}

/// Why a key left the store without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its time to live is over.
    Expired,
    /// A cache had no room for it.
    Evicted,
}
