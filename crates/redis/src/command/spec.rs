//! A command as its row of the command table describes it: name, number of arguments, flags, key
//! positions and function.

use super::context::{Context, Done, Failure};
use super::permit::Refusal;
use crate::figures::counters::Family;
use duramen_config::AUDIT_CLASSES;
use duramen_engine::{Guard, KeyHash, Notes, Session, TypedWrite, Work};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

/// A request's access to the store.
pub(crate) enum Access<'w, 'g> {
    Guarded(&'w mut Guard<'g>),
    Session(&'w mut Session),
    /// There is no store yet.
    NoStore,
}

impl<'g> Access<'_, 'g> {
    pub(crate) fn guard(&mut self) -> Option<&mut Guard<'g>> {
        match self {
            Access::Guarded(guard) => Some(guard),
            Access::Session(_) | Access::NoStore => None,
        }
    }

    /// The counts of the thread's session.
    #[inline]
    fn work(&self) -> Option<&Work> {
        match self {
            Access::Guarded(guard) => Some(guard.pin().work()),
            Access::Session(session) => Some(session.work()),
            Access::NoStore => None,
        }
    }

    /// Bytes that the thread's session has appended to the log.
    #[inline]
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.work().map_or(0, Work::appended_bytes)
    }

    /// The notes of the thread's session about its writes.
    #[inline]
    fn notes(&mut self) -> Option<&mut Notes> {
        match self {
            Access::Guarded(guard) => Some(guard.notes()),
            Access::Session(session) => Some(session.notes()),
            Access::NoStore => None,
        }
    }

    /// The typed writes that are visible by now and were not looked at; `None`: there are none.
    #[inline]
    pub(crate) fn typed_writes(&mut self) -> Option<&mut Vec<TypedWrite>> {
        let writes = self.notes().map(Notes::typed_writes);
        writes.filter(|writes| !writes.is_empty())
    }

    /// As [`Notes::set_origin`].
    pub(crate) fn set_origin(&mut self, client: u64) {
        if let Some(notes) = self.notes() {
            notes.set_origin(client);
        }
    }

    /// As [`Work::take_waited`].
    #[inline]
    pub(crate) fn take_waited(&self) -> bool {
        self.work().is_some_and(Work::take_waited)
    }

    /// The same access, for a shorter lifetime.
    #[inline]
    pub(crate) fn for_now(&mut self) -> Access<'_, 'g> {
        match self {
            Access::Guarded(guard) => Access::Guarded(guard),
            Access::Session(session) => Access::Session(session),
            Access::NoStore => Access::NoStore,
        }
    }
}

/// The access in which a command is run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Inside the batch's guard; gets the hashes of its keys in order.
    Data(fn(&mut Context<'_>, &mut Guard<'_>, &[KeyHash]) -> Done),
    /// As `Data`, but with its own guard: it locks several keys, which must come before any other
    /// write of a guard.
    Atomic(fn(&mut Context<'_>, &mut Guard<'_>, &[KeyHash]) -> Done),
    /// Uses nothing but the connection.
    Plain(fn(&mut Context<'_>) -> Done),
    /// Uses the store as a whole (tables, counters): runs between guards.
    Store(fn(&mut Context<'_>) -> Done),
    /// Needs the session itself, to enter the store exclusively or to change its tables; inside
    /// EXEC it gets the guard.
    Alone(fn(&mut Context<'_>, Access<'_, '_>) -> Done),
    /// Known, but refused for this reason (a complete error text if it begins with `ERR`).
    Refused(&'static str),
}

/// Positions of a command's keys: `first`, `last` (negative: counted from the end), `step`. `first`
/// 0 = none of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) first: u8,
    pub(crate) last: i8,
    pub(crate) step: u8,
    /// The argument with the number of keys that follow it; 0 = none.
    pub(crate) count_at: u8,
    /// The first option, if one of them can be `STORE key` or `STOREDIST key`; 0 = none can.
    pub(crate) store_from: u8,
    /// The first option, if keys, and an id for each, are behind `STREAMS`; 0 = there are none.
    pub(crate) streams_from: u8,
}

pub(crate) const NO_KEYS: Keys = keys(0, 0, 0);
pub(crate) const ONE_KEY: Keys = keys(1, 1, 1);
pub(crate) const ALL_KEYS: Keys = keys(1, -1, 1);

pub(crate) const fn keys(first: u8, last: i8, step: u8) -> Keys {
    Keys {
        first,
        last,
        step,
        count_at: 0,
        store_from: 0,
        streams_from: 0,
    }
}

/// `first`: a key before the number of keys in argument `count_at`; 0 = none.
pub(crate) const fn counted_keys(first: u8, count_at: u8) -> Keys {
    let step = if first == 0 { 0 } else { 1 };
    Keys {
        count_at,
        ..keys(first, first as i8, step)
    }
}

/// One key, and perhaps `STORE key` from argument `from` on.
pub(crate) const fn key_and_store(from: u8) -> Keys {
    Keys {
        store_from: from,
        ..ONE_KEY
    }
}

/// The keys behind `STREAMS`, which is an option from argument `from` on.
pub(crate) const fn stream_keys(from: u8) -> Keys {
    Keys {
        streams_from: from,
        ..NO_KEYS
    }
}

/// Bits of [`Spec::flags`]: the flags and the ACL categories that `COMMAND INFO` reports.
pub(crate) mod flag {
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
}

/// The group in which a command is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Connection,
    String,
    Hash,
    List,
    Set,
    SortedSet,
    Bitmap,
    HyperLogLog,
    Geo,
    Stream,
    Generic,
    PubSub,
    Transactions,
    Scripting,
    Server,
    Cluster,
    Duramen,
    /// A command of a kind that does not exist here.
    Foreign,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Connection => "connection",
            Group::String => "string",
            Group::Hash => "hash",
            Group::List => "list",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Bitmap => "bitmap",
            Group::HyperLogLog => "hyperloglog",
            Group::Geo => "geo",
            Group::Stream => "stream",
            Group::Generic => "generic",
            Group::PubSub => "pubsub",
            Group::Transactions => "transactions",
            Group::Scripting => "scripting",
            Group::Server => "server",
            Group::Cluster => "cluster",
            Group::Duramen => "duramen",
            Group::Foreign => "foreign",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Spec {
    /// Its position in the command table, which is also its position in the per-thread counters.
    pub number: usize,
    /// Lower case; `container|sub` for a subcommand.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub(crate) arity: i8,
    pub(crate) flags: u64,
    pub(crate) keys: Keys,
    pub(crate) group: Group,
    /// The latency histogram in which it counts.
    pub family: Family,
    pub(crate) since: &'static str,
    pub(crate) complexity: &'static str,
    pub(crate) summary: &'static str,
    /// Its function: reached by a [`Permit`](super::permit::Permit) alone (permit::U1).
    pub(super) run: Run,
}

/// Where a command runs, without its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Atomic,
    Plain,
    Store,
    Alone,
    Refused(&'static str),
}

impl Spec {
    pub(crate) fn has(&self, flags: u64) -> bool {
        self.flags & flags != 0
    }

    /// The names of its ACL categories, without `@slow`. As in Redis, a command that runs scripts
    /// is not in `@read`.
    pub(crate) fn categories(&self) -> impl Iterator<Item = &'static str> + use<> {
        let mut flags = self.flags;
        if self.has(flag::SCRIPTING) {
            flags &= !flag::READONLY;
        }
        let named = flag::CATEGORIES.iter();
        named
            .filter(move |(flag, _)| flags & flag != 0)
            .map(|(_, name)| *name)
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.run {
            Run::Data(_) => Kind::Data,
            Run::Atomic(_) => Kind::Atomic,
            Run::Plain(_) => Kind::Plain,
            Run::Store(_) => Kind::Store,
            Run::Alone(_) => Kind::Alone,
            Run::Refused(reason) => Kind::Refused(reason),
        }
    }

    /// The position of its class in [`AUDIT_CLASSES`]. Logins are recorded where they happen.
    pub fn class(&self) -> Option<usize> {
        const NAMED: [(u64, &str); 5] = [
            (flag::NO_AUTH, ""),
            (flag::ADMIN, "admin"),
            (flag::WRITE, "write"),
            (flag::READONLY, "read"),
            (flag::CONNECTION, "connection"),
        ];
        let (_, name) = NAMED.iter().find(|(flag, _)| self.has(*flag))?;
        AUDIT_CLASSES.iter().position(|known| known == name)
    }

    /// Whether it is of one of these classes.
    #[inline]
    pub fn is_audited(&self, classes: u32) -> bool {
        classes != 0 && self.class().is_some_and(|class| classes & 1 << class != 0)
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.run, Run::Refused(_))
    }

    /// Whether it writes and is allowed when memory is full: it deletes, or its write replaces
    /// about as many bytes.
    #[inline]
    pub(crate) fn rewrites(&self) -> bool {
        self.flags & (flag::WRITE | flag::DENYOOM) == flag::WRITE
    }

    /// Whether it takes elements from the first of its keys that has some, or waits for some. It
    /// writes to that key alone, and asks itself whether that is reserved.
    pub(crate) fn takes_or_waits(&self) -> bool {
        matches!(
            self.name,
            "blpop" | "brpop" | "blmpop" | "bzpopmin" | "bzpopmax" | "bzmpop"
        )
    }

    /// Whether it changes several keys, each separately.
    pub(crate) fn changes_many(&self) -> bool {
        self.has(flag::WRITE) && self.keys != ONE_KEY && self.keys != NO_KEYS
    }

    /// Whether its arguments name databases.
    #[inline]
    pub(crate) fn names_dbs(&self) -> bool {
        matches!(self.name, "select" | "move" | "swapdb" | "copy")
    }

    /// Whether argument `n` may be a password, which neither MONITOR nor the slow log shows.
    pub(crate) fn is_secret(&self, n: usize) -> bool {
        match self.name {
            "auth" => n >= 1,
            // Their first argument after the name selects the action.
            "hello" => n >= 2,
            "config|set" => n >= 3,
            "acl|setuser" => n >= 3,
            // The command whose rights are tested may be one of these.
            "acl|dryrun" => n >= 4,
            _ => false,
        }
    }

    /// The error text of a command that is refused for this reason.
    pub(crate) fn refusal(&self, reason: &str) -> String {
        if reason.starts_with("ERR") {
            return reason.to_string();
        }
        format!(
            "ERR {} is not supported: {reason}",
            self.name.to_ascii_uppercase()
        )
    }

    /// The container's name, if this is a subcommand.
    pub(crate) fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    pub(crate) fn accepts(&self, args: usize) -> bool {
        let arity = i64::from(self.arity);
        let args = args as i64;
        if arity >= 0 {
            args == arity
        } else {
            args >= -arity
        }
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys.first != 0 || self.keys.count_at != 0 || self.keys.streams_from != 0
    }

    /// Number of a request's keys.
    #[inline(always)]
    pub(crate) fn key_count(&self, args: &Args<'_>) -> usize {
        match self.keys {
            ONE_KEY => usize::from(args.len() > 1),
            NO_KEYS => 0,
            _ => self.key_positions(args).count(),
        }
    }

    /// Whether its keys are of data. The channels of `SPUBLISH` and its like only have slots, as
    /// keys have: they are neither locked nor read.
    #[inline]
    pub(crate) fn uses_data(&self) -> bool {
        !self.has(flag::PUBSUB)
    }

    /// Argument numbers of the keys whose data a request uses.
    pub(crate) fn data_positions(&self, args: &Args<'_>) -> impl Iterator<Item = usize> + use<> {
        let uses_data = self.uses_data();
        self.key_positions(args).filter(move |_| uses_data)
    }

    /// Argument numbers of a request's keys, and of channels in a key's place.
    #[inline]
    pub(crate) fn key_positions(&self, args: &Args<'_>) -> impl Iterator<Item = usize> + use<> {
        let (len, first) = (args.len(), usize::from(self.keys.first));
        let last = if self.keys.last < 0 {
            len.saturating_sub(usize::from(self.keys.last.unsigned_abs()))
        } else {
            usize::from(self.keys.last.unsigned_abs())
        };
        let end = if first == 0 { 0 } else { (last + 1).min(len) };
        let fixed = (first..end.max(first)).step_by(usize::from(self.keys.step).max(1));
        let (counted, stored) = match self.keys {
            Keys {
                count_at: 0,
                store_from: 0,
                streams_from: 0,
                ..
            } => (0..0, None),
            Keys {
                streams_from: 1.., ..
            } => (streams(args), None),
            keys => (counted(args, keys.count_at), stored(args, keys.store_from)),
        };
        fixed.chain(counted).chain(stored)
    }
}

/// Keys after their number. A number that is none, or too large, has no keys: the command fails.
fn counted(args: &Args<'_>, count_at: u8) -> std::ops::Range<usize> {
    let start = usize::from(count_at) + 1;
    let count = match count_at {
        0 => 0,
        at => key_number(args.get(at.into()).unwrap_or_default()),
    };
    match args.len().checked_sub(start) {
        Some(most) if count <= most => start..start + count,
        _ => start..start,
    }
}

/// A number of keys. As in Redis, a text that begins with one counts too (`01`, `+1`, `1x`):
/// commands refuse it, but behind the check of rights and of the place of the keys.
fn key_number(text: &[u8]) -> usize {
    if let Some(number) = parse_integer(text) {
        return usize::try_from(number).unwrap_or(0);
    }
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let digits = text
        .iter()
        .take(20)
        .take_while(|byte| byte.is_ascii_digit());
    let number = digits.map(|byte| char::from(*byte)).collect::<String>();
    number.parse().unwrap_or(0)
}

/// The keys of XREAD and XREADGROUP: the first half of the arguments behind `STREAMS`.
fn streams(args: &Args<'_>) -> std::ops::Range<usize> {
    let mut at = 1;
    while let Some(option) = args.get(at) {
        at += match option.to_ascii_lowercase().as_slice() {
            b"block" | b"count" => 2,
            b"group" => 3,
            b"noack" => 1,
            b"streams" => {
                let (start, behind) = (at + 1, args.len() - at - 1);
                let number = if behind % 2 == 0 { behind / 2 } else { 0 };
                return start..start + number;
            }
            _ => break,
        };
    }
    0..0
}

/// Shows the options of SORT and GEORADIUS from argument `from` on, each in lower case, with the
/// position of its first argument.
fn each_option(args: &Args<'_>, from: usize, mut look: impl FnMut(&[u8], usize)) {
    let mut at = from;
    while let Some(option) = args.get(at) {
        let option = option.to_ascii_lowercase();
        look(&option, at + 1);
        at += match option.as_slice() {
            b"limit" => 3,
            b"store" | b"storedist" | b"by" | b"get" | b"count" => 2,
            _ => 1,
        };
    }
}

/// The key of the last option `STORE` or `STOREDIST`.
fn stored(args: &Args<'_>, from: u8) -> Option<usize> {
    let mut found = None;
    if from != 0 {
        each_option(args, from.into(), |option, at| {
            if matches!(option, b"store" | b"storedist") && at < args.len() {
                found = Some(at);
            }
        });
    }
    found
}

/// The position of a pattern by which SORT reads keys that the request does not name.
pub(super) fn pattern_of_keys(args: &Args<'_>) -> Option<usize> {
    let mut found = None;
    each_option(args, 2, |option, at| {
        let pattern = args.get(at).unwrap_or_default();
        let reads = match option {
            b"by" => pattern.contains(&b'*'),
            b"get" => pattern != b"#",
            _ => false,
        };
        found = found.or(reads.then_some(at));
    });
    found
}

/// Maximum number of commands.
pub(super) const COMMANDS_MAX: usize = 511;
/// Slots of the index of names: over four times the number of commands, so that a probe nearly
/// always ends at once.
pub(super) const SLOTS: usize = 2048;

/// The command table: all rows, by their numbers, and an index of their names (`lookup`).
pub struct Commands {
    pub(super) rows: &'static [Spec],
    pub(super) index: [u16; SLOTS],
    pub(super) hooks: Hooks,
}

/// Functions of features that any request may reach. They stand above this folder, because they
/// need the context of a request.
pub(crate) struct Hooks {
    /// The client tracks keys, and its command is about to run.
    pub(crate) note_reads: fn(&mut Context<'_>, &mut Access<'_, '_>) -> Done,
    /// Notes that a request is refused whose rights were checked again after a wait; returns why.
    pub(crate) refused_late: fn(&Context<'_>, Refusal) -> Failure,
}

/// A row of the command table, without its number.
#[allow(clippy::too_many_arguments)] // A row has as many columns as a table of commands needs.
pub(crate) const fn row(
    name: &'static str,
    arity: i8,
    flags: u64,
    keys: Keys,
    group: Group,
    family: Family,
    since: &'static str,
    complexity: &'static str,
    summary: &'static str,
    run: Run,
) -> Spec {
    let sub = if is_sub(name.as_bytes()) {
        flag::SUB
    } else {
        0
    };
    Spec {
        number: 0, // the table sets it
        name,
        arity,
        flags: flags | sub,
        keys,
        group,
        family,
        since,
        complexity,
        summary,
        run,
    }
}

const fn is_sub(name: &[u8]) -> bool {
    let mut n = 0;
    while n < name.len() {
        if name[n] == b'|' {
            return true;
        }
        n += 1;
    }
    false
}

/// Shown instead of a secret.
pub(crate) const REDACTED: &[u8] = b"(redacted)";
