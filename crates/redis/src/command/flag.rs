//! Bits of `Spec::flags`: the flags and the ACL categories that `COMMAND INFO` reports.

pub(crate) const WRITE: u64 = 1;
pub(crate) const READONLY: u64 = 1 << 1;
pub(crate) const DENYOOM: u64 = 1 << 2;
pub(crate) const ADMIN: u64 = 1 << 3;
pub(crate) const NOSCRIPT: u64 = 1 << 4;
pub(crate) const LOADING: u64 = 1 << 5;
pub(crate) const STALE: u64 = 1 << 6;
pub(crate) const FAST: u64 = 1 << 7;
pub(crate) const NO_AUTH: u64 = 1 << 8;
pub(crate) const ALLOW_BUSY: u64 = 1 << 9;
/// Refused between MULTI and EXEC.
pub(crate) const NO_MULTI: u64 = 1 << 10;
pub(crate) const SKIP_SLOWLOG: u64 = 1 << 11;
pub(crate) const NO_ASYNC_LOADING: u64 = 1 << 12;
pub(crate) const BLOCKING: u64 = 1 << 13;
pub(crate) const KEYSPACE: u64 = 1 << 16;
pub(crate) const STRING: u64 = 1 << 17;
pub(crate) const CONNECTION: u64 = 1 << 18;
pub(crate) const TRANSACTION: u64 = 1 << 19;
pub(crate) const DANGEROUS: u64 = 1 << 20;
pub(crate) const HASH: u64 = 1 << 21;
pub(crate) const LIST: u64 = 1 << 22;
pub(crate) const SET: u64 = 1 << 23;
pub(crate) const SORTED_SET: u64 = 1 << 25;
pub(crate) const BITMAP: u64 = 1 << 14;
pub(crate) const HYPERLOGLOG: u64 = 1 << 15;
pub(crate) const GEO: u64 = 1 << 30;
pub(crate) const PUBSUB: u64 = 1 << 32;
/// Waits for `CLIENT PAUSE … WRITE`, although it writes nothing here.
pub(crate) const MAY_REPLICATE: u64 = 1 << 33;
/// Runs in a RESP2 connection that has subscriptions.
pub(crate) const SUBSCRIBED: u64 = 1 << 34;
pub(crate) const STREAM: u64 = 1 << 40;
pub(crate) const SCRIPTING: u64 = 1 << 35;
/// Its reads do not count for eviction: it tells about keys.
pub(crate) const UNCOUNTED: u64 = 1 << 36;
/// Its reads count even after `CLIENT NO-TOUCH on`.
pub(crate) const COUNTED: u64 = 1 << 37;
/// Its arguments tell where its keys are.
pub(crate) const MOVABLE: u64 = 1 << 31;
/// Runs at once even between MULTI and EXEC.
pub(crate) const NEVER_QUEUED: u64 = 1 << 24;
/// May take long by its nature: timed by itself for the slow log.
pub(crate) const TIMED: u64 = 1 << 26;
/// Reads or writes a whole table: in a transaction it needs exclusive access to the store.
pub(crate) const WHOLE: u64 = 1 << 27;
/// Its first argument is the name of a subcommand.
pub(crate) const CONTAINER: u64 = 1 << 28;
/// Is a subcommand (set by the table itself).
pub(crate) const SUB: u64 = 1 << 29;

/// Reports on the server and has no other effect. It may take milliseconds.
pub(crate) const REPORTS: u64 = 1 << 38;
/// Has a short reply and no other effect, within EXEC at least.
pub(crate) const TELLS: u64 = 1 << 39;
/// Its effect comes with the data of a commit, or again when the step runs again, although it is no
/// change of data.
pub(crate) const WITH_DATA: u64 = 1 << 41;
/// Has no keys and may take milliseconds to change something.
pub(crate) const SWEEPS: u64 = 1 << 42;
/// Takes elements from the first of its keys that has some, or waits for some. It writes to that
/// key alone, and checks by itself whether the key is reserved.
pub(crate) const TAKES_FIRST: u64 = 1 << 43;
/// May change the rights of its own client.
pub(crate) const CHANGES_RIGHTS: u64 = 1 << 44;
/// May change the level of what is written.
pub(crate) const CHANGES_SETTINGS: u64 = 1 << 45;
/// Changes several tables.
pub(crate) const SEVERAL_TABLES: u64 = 1 << 46;
/// Runs the queue of a transaction.
pub(crate) const RUNS_QUEUE: u64 = 1 << 47;
/// Runs while clients are paused.
pub(crate) const UNPAUSES: u64 = 1 << 48;
/// Runs on the store, if there is one, but its reply does not depend on data.
pub(crate) const WITHOUT_DATA: u64 = 1 << 49;
/// Sends a message to subscribers, and replies with their number.
pub(crate) const PUBLISHES: u64 = 1 << 50;

/// Flags with their names in Redis.
pub(crate) const NAMES: &[(u64, &str)] = &[
    (WRITE, "write"),
    (READONLY, "readonly"),
    (DENYOOM, "denyoom"),
    (ADMIN, "admin"),
    (PUBSUB, "pubsub"),
    (NOSCRIPT, "noscript"),
    (BLOCKING, "blocking"),
    (LOADING, "loading"),
    (STALE, "stale"),
    (SKIP_SLOWLOG, "skip_slowlog"),
    (FAST, "fast"),
    (NO_AUTH, "no_auth"),
    (NO_ASYNC_LOADING, "no_async_loading"),
    (NO_MULTI, "no_multi"),
    (MOVABLE, "movablekeys"),
    (ALLOW_BUSY, "allow_busy"),
];
/// ACL categories with their names in Redis.
pub(crate) const CATEGORIES: &[(u64, &str)] = &[
    (KEYSPACE, "@keyspace"),
    (READONLY, "@read"),
    (WRITE, "@write"),
    (SET, "@set"),
    (SORTED_SET, "@sortedset"),
    (LIST, "@list"),
    (HASH, "@hash"),
    (STRING, "@string"),
    (BITMAP, "@bitmap"),
    (HYPERLOGLOG, "@hyperloglog"),
    (GEO, "@geo"),
    (PUBSUB, "@pubsub"),
    (STREAM, "@stream"),
    (ADMIN, "@admin"),
    (FAST, "@fast"),
    (BLOCKING, "@blocking"),
    (DANGEROUS, "@dangerous"),
    (CONNECTION, "@connection"),
    (TRANSACTION, "@transaction"),
    (SCRIPTING, "@scripting"),
];
