//! A command as its row of the command table describes it. The row stands in the file of the
//! command's function; all of them together are the command table (`crate::table`).
//!
//! A row has a function that takes a [`Context`], and a context has the row of its request: so both
//! types stand here. The context's functions are in `context`, `locks` and `events`.

use super::doc::{Doc, Topic, doc};
use super::flag;
use super::growth::Growth;
use super::key::Key;
use super::keys::Keys;
use super::names::Names;
use super::outcome::{Done, Failure, SYNTAX};
use super::refusal::Refusal;
use super::reply::Reply;
use super::secrets::Secrets;
use super::store_access::Access;
use super::turn::TurnState;
use crate::figures::counters::Family;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::thread::Thread;
use duramen_config::AUDIT_CLASSES;
use duramen_engine::{Guard, KeyHash, TableId};
use duramen_wire::resp::Args;

/// A request whose command is known.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) spec: &'static Spec,
    pub(crate) args: Args<'a>,
    /// The hashes of its keys, in order; none if it has no keys, or if it has more than a group
    /// holds. All hashes are there when its command runs within a guard.
    pub(crate) hashes: &'a [KeyHash],
}

impl<'a> Request<'a> {
    /// Argument `n` (0 is the name); empty if the request is shorter, which the arity excludes
    /// where it matters.
    #[inline]
    pub(crate) fn arg(&self, n: usize) -> &'a [u8] {
        self.args.get(n).unwrap_or_default()
    }

    /// Argument numbers of its keys, and of channels in a key's place.
    #[inline]
    pub(crate) fn key_positions(&self) -> impl Iterator<Item = usize> + use<> {
        self.spec.key_positions(&self.args)
    }

    /// Its keys in a table, in order: only those whose hashes are known.
    #[inline]
    pub(crate) fn keys(&self, table: TableId) -> impl Iterator<Item = Key<'a>> + use<'a> {
        let (args, positions) = (self.args, self.key_positions());
        let keys = self.hashes.iter().zip(positions);
        keys.map(move |(hash, at)| Key {
            table,
            hash: *hash,
            bytes: args.get(at).unwrap_or_default(),
        })
    }
}

/// One request, as the command that executes it sees it.
pub(crate) struct Context<'a> {
    pub(crate) request: Request<'a>,
    /// The command table.
    pub(crate) commands: &'static Commands,
    pub(crate) client: &'a mut Client,
    pub(crate) reply: Reply<'a>,
    pub(crate) turn: &'a mut TurnState,
    pub(crate) shared: &'a Shared,
    pub(crate) thread: &'a mut Thread,
    /// The client's selected table.
    pub(crate) table: TableId,
    /// Whether the keys are locked, or no other session is in the store: the request runs inside
    /// EXEC, or for the second time.
    pub(crate) locked: bool,
}

/// The access in which a command is run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Inside the batch's guard. Its keys are hashed.
    Data(fn(&mut Context<'_>, &mut Guard<'_>) -> Done),
    /// As `Data`, but with its own guard: it locks several keys, which must come before any other
    /// write of a guard.
    Atomic(fn(&mut Context<'_>, &mut Guard<'_>) -> Done),
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

/// The effect of a request on data. The flags `write` and `readonly` follow from it.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    Reads,
    /// It may change data; the bound says how many bytes it writes.
    Writes(Growth),
    /// It changes no data, but something else: the connection, settings, other clients.
    Acts,
}

/// A row of the command table: all that the server knows of a command.
#[derive(Clone, Copy)]
#[repr(C, align(64))] // What each request reads comes first.
pub struct Spec {
    /// Lower case; `container|sub` for a subcommand.
    pub name: &'static str,
    /// Its function: reached by a [`Permit`](super::permit::Permit) alone (permit::U1).
    pub(super) run: Run,
    pub(crate) flags: u64,
    /// Its position in the command table, which is also its position in the per-thread counters.
    pub number: usize,
    /// Number of arguments with the name; negative: at least that many.
    pub(crate) arity: i8,
    /// The latency histogram in which it counts.
    pub family: Family,
    pub(crate) keys: Keys,
    pub(crate) effect: Effect,
    pub(crate) names: Names,
    pub(crate) secrets: Secrets,
    /// Hints for clients and proxies, in Redis's words.
    pub(crate) tips: &'static [&'static str],
    pub(crate) doc: Doc,
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

    /// Whether it changes several keys, each separately.
    pub(crate) fn changes_many(&self) -> bool {
        self.has(flag::WRITE) && self.keys.may_be_several()
    }

    /// Whether argument `n` may be a password, which neither MONITOR nor the slow log shows.
    pub(crate) fn is_secret(&self, n: usize) -> bool {
        self.secrets.has(n)
    }

    /// Whether it is one of Duramen's own.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.doc.topic, Topic::Duramen)
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
        self.keys.are_named()
    }

    /// Number of a request's keys.
    #[inline(always)]
    pub(crate) fn key_count(&self, args: &Args<'_>) -> usize {
        self.keys.count(args)
    }

    /// Argument numbers of a request's keys, and of channels in a key's place.
    #[inline]
    pub(crate) fn key_positions(&self, args: &Args<'_>) -> impl Iterator<Item = usize> + use<> {
        self.keys.positions(args)
    }

    /// Whether its keys have data. The channels of `SPUBLISH` and its like only have slots, as keys
    /// have: they are neither locked nor read.
    #[inline]
    pub(crate) fn uses_data(&self) -> bool {
        !self.has(flag::PUBSUB)
    }

    /// Argument numbers of the keys whose data a request uses.
    pub(crate) fn data_positions(&self, args: &Args<'_>) -> impl Iterator<Item = usize> + use<> {
        let uses_data = self.uses_data();
        self.key_positions(args).filter(move |_| uses_data)
    }

    /// Whether it looks its key number `n` up to read it, and so adds an event if the key is
    /// missing.
    pub(crate) fn looks_up(&self, n: usize) -> bool {
        let by_effect = !self.has(flag::BLOCKING) && (n > 0 || !self.has(flag::WRITE));
        self.keys.looks_up(n, by_effect)
    }

    /// Whether a request may write; SORT and its like do so if they name a key for their result.
    pub(crate) fn writes(&self, args: &Args<'_>) -> bool {
        match self.effect {
            Effect::Writes(Growth::Stores) => self.key_positions(args).nth(1).is_some(),
            Effect::Writes(_) => true,
            Effect::Reads | Effect::Acts => false,
        }
    }
}

/// Columns that few rows have.
impl Spec {
    pub(crate) const fn tips(self, tips: &'static [&'static str]) -> Spec {
        Spec { tips, ..self }
    }

    pub(crate) const fn names(self, names: Names) -> Spec {
        Spec { names, ..self }
    }

    /// Sets the family, where it does not follow from effect and keys.
    pub(crate) const fn family(self, family: Family) -> Spec {
        Spec { family, ..self }
    }

    /// How it differs from Redis's command, in a sentence for its users.
    pub(crate) const fn differs(self, differs: &'static str) -> Spec {
        Spec {
            doc: Doc {
                differs,
                ..self.doc
            },
            ..self
        }
    }

    /// Removes flags that follow from other columns.
    pub(crate) const fn without(self, flags: u64) -> Spec {
        Spec {
            flags: self.flags & !flags,
            ..self
        }
    }
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
    /// Called for a client that tracks keys when its command is about to run.
    pub(crate) note_reads: fn(&mut Context<'_>, &mut Access<'_, '_>) -> Done,
    /// Notes that a request is refused whose rights were checked again after a wait; returns the
    /// reason.
    pub(crate) refused_late: fn(&Context<'_>, Refusal) -> Failure,
}

/// No flags beside those that follow from other columns.
pub(crate) const NO_FLAGS: u64 = 0;

/// The one way to make a row of a command that is offered: without one of these columns it does not
/// compile.
#[allow(clippy::too_many_arguments)] // A row has as many columns as a table of commands needs.
pub(crate) const fn row(
    name: &'static str,
    arity: i8,
    flags: u64,
    doc: Doc,
    keys: Keys,
    effect: Effect,
    secrets: Secrets,
    run: Run,
) -> Spec {
    let by_effect = match effect {
        Effect::Reads => flag::READONLY,
        Effect::Writes(_) => flag::WRITE,
        Effect::Acts => 0,
    };
    let by_topic = match flags & flag::CONTAINER {
        0 => category(doc.topic),
        _ => 0,
    };
    let by_keys = match keys.are_movable() {
        true => flag::MOVABLE,
        false => 0,
    };
    let by_name = match bar_in(name.as_bytes()) {
        Some(_) => flag::SUB,
        None => 0,
    };
    let spec = Spec {
        name,
        run,
        flags: flags | by_effect | by_topic | by_keys | by_name,
        number: 0, // the table sets it
        arity,
        family: family(doc.topic, effect, &keys),
        keys,
        effect,
        names: Names::Nothing,
        secrets,
        tips: &[],
        doc,
    };
    if !matches!(run, Run::Refused(_)) {
        check(&spec);
    }
    spec
}

/// Fails the build at a row whose columns do not fit together.
const fn check(row: &Spec) {
    let (name, doc) = (row.name.as_bytes(), &row.doc);
    let mut n = 0;
    while n < name.len() {
        assert!(!name[n].is_ascii_uppercase(), "names are in lower case");
        n += 1;
    }
    assert!(!doc.since.is_empty(), "the version is missing");
    assert!(!doc.complexity.is_empty(), "the complexity is missing");
    assert!(!doc.summary.is_empty(), "the summary is missing");
    assert!(
        row.keys.fit(row.arity),
        "requests may be too short for the keys"
    );
    if let Effect::Writes(growth) = row.effect {
        let is_planned = matches!(growth, Growth::Nothing | Growth::Own(_));
        assert!(row.keys.are_named() || is_planned, "no key grows");
    }
}

/// A command of which each use is a subcommand, with a row of its own.
pub(crate) const fn container(name: &'static str, doc: Doc) -> Spec {
    let (keys, effect, run) = (Keys::NONE, Effect::Acts, Run::Plain(no_subcommand));
    row(
        name,
        -2,
        flag::CONTAINER,
        doc,
        keys,
        effect,
        Secrets::None,
        run,
    )
}

/// A container is never run without a subcommand: its arity forbids that.
fn no_subcommand(_: &mut Context<'_>) -> Done {
    Err(SYNTAX)
}

/// A command of Redis that clients may know but that does not exist here. Its row accepts any
/// arguments, so that clients always get the reason.
pub(crate) const fn absent(name: &'static str, flags: u64, why: &'static str) -> Spec {
    row(
        name,
        -1,
        flags,
        doc(Topic::Foreign, "", "", ""),
        Keys::NONE,
        Effect::Acts,
        Secrets::None,
        Run::Refused(why),
    )
}

/// The category of all commands of a topic, except of containers.
const fn category(topic: Topic) -> u64 {
    match topic {
        Topic::String => flag::STRING,
        Topic::Hash => flag::HASH,
        Topic::List => flag::LIST,
        Topic::Set => flag::SET,
        Topic::SortedSet => flag::SORTED_SET,
        Topic::Bitmap => flag::BITMAP,
        Topic::HyperLogLog => flag::HYPERLOGLOG,
        Topic::Geo => flag::GEO,
        Topic::Stream => flag::STREAM,
        Topic::PubSub => flag::PUBSUB,
        Topic::Transactions => flag::TRANSACTION,
        Topic::Scripting => flag::SCRIPTING,
        Topic::Connection
        | Topic::Generic
        | Topic::Server
        | Topic::Cluster
        | Topic::Duramen
        | Topic::Foreign => 0,
    }
}

const fn family(topic: Topic, effect: Effect, keys: &Keys) -> Family {
    match effect {
        _ if matches!(topic, Topic::Transactions) => Family::Transaction,
        _ if !keys.are_named() => Family::Other,
        Effect::Reads if keys.is_single() => Family::Read,
        Effect::Reads => Family::MultiRead,
        Effect::Writes(_) if keys.is_single() => Family::Write,
        Effect::Writes(_) => Family::MultiWrite,
        Effect::Acts => Family::Other,
    }
}

/// The place of the bar in the name of a subcommand.
pub(super) const fn bar_in(name: &[u8]) -> Option<usize> {
    let mut n = 0;
    while n < name.len() {
        if name[n] == b'|' {
            return Some(n);
        }
        n += 1;
    }
    None
}
