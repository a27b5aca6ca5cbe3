//! Commands on keys themselves: TYPE, RENAME, COPY, MOVE, OBJECT.
//!
//! **Invariant**
//! - K1: the table behind a database is looked up under the guard with which the
//!   command uses it. SWAPDB is exclusive in the store, so it runs during no guard. But a guard may
//!   have left the store meanwhile, to search for memory or to release its keys. It then gets
//!   `Error::TryAgain`, and the command looks the table up again ([`run::run`]).

use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NO_SUCH_KEY, NOT_AN_INTEGER, SYNTAX};
use crate::command::databases::{DROPPED_NOW, parse_db, table_for, table_in};
use crate::command::events::{EventName, NEW};
use crate::command::growth::Planned;
use crate::command::key::Key;
use crate::command::room::Planner;
use crate::command::routing;
use crate::command::row::*;
use crate::command::run;
use crate::command::store_access::Access;
use crate::state::shared::encodings::{Encodings, Limit};
use duramen_config::{EventClasses, Mode, Policy};
use duramen_engine::{Guard, Object, Room, TableId};
use duramen_types::table::{Hash, Set};
use duramen_types::{Sorted, Text, Type, count};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("type", 2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "1.0.0", "O(1)", "Returns the type of a value."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(type_of)),
    row("rename", 3, KEYSPACE, doc(Topic::Generic, "1.0.0", "O(1)", "Renames a key."),
        Keys::two(TAKES, SETS), Effect::Writes(Growth::Own(plan_rename)), Secrets::None, Run::Atomic(rename)),
    row("renamenx", 3, FAST | KEYSPACE, doc(Topic::Generic, "1.0.0", "O(1)", "Renames a key if the new name is not taken."),
        Keys::two(TAKES, CREATES), Effect::Writes(Growth::Own(plan_rename)), Secrets::None, Run::Atomic(renamenx)),
    row("copy", -3, DENYOOM | KEYSPACE, doc(Topic::Generic, "6.2.0", "O(N)", "Copies a value to another key or database."),
        Keys::two(READS, SETS), Effect::Writes(Growth::Own(plan_copy)), Secrets::None, Run::Alone(copy))
        .names(Names::Target { key: 2, database: Database::Option(3) }),
    row("move", 3, FAST | KEYSPACE, doc(Topic::Generic, "1.0.0", "O(1)", "Moves a key to another database."),
        Keys::one(CHANGES), Effect::Writes(Growth::Own(plan_move)), Secrets::None, Run::Alone(move_to))
        .names(Names::Target { key: 1, database: Database::Argument(2) }).family(Family::MultiWrite),
    container("object", doc(Topic::Generic, "2.2.3", "Depends on the subcommand", "A container for commands about values.")),
    row("object|encoding", 3, KEYSPACE | UNCOUNTED, doc(Topic::Generic, "2.2.3", "O(1)", "Returns how Redis would represent a value."),
        Keys::at(2, LOOKS), Effect::Reads, Secrets::None, Run::Data(object_encoding))
            .differs("The form that Redis would give a new collection of this content.").tips(&["nondeterministic_output"]),
    row("object|freq", 3, KEYSPACE | UNCOUNTED, doc(Topic::Generic, "4.0.0", "O(1)", "Returns the access frequency of a value."),
        Keys::at(2, LOOKS), Effect::Reads, Secrets::None, Run::Data(object_freq))
            .differs("0 to 7, halved when eviction spares the key.").tips(&["nondeterministic_output"]),
    row("object|idletime", 3, KEYSPACE | UNCOUNTED, doc(Topic::Generic, "2.2.3", "O(1)", "Returns the time since the last access."),
        Keys::at(2, LOOKS), Effect::Reads, Secrets::None, Run::Data(object_idletime)).tips(&["nondeterministic_output"]),
    row("object|refcount", 3, KEYSPACE | UNCOUNTED, doc(Topic::Generic, "2.2.3", "O(1)", "Returns the number of references to a value."),
        Keys::at(2, LOOKS), Effect::Reads, Secrets::None, Run::Data(object_refcount)).tips(&["nondeterministic_output"]),
    row("object|help", 2, LOADING | STALE | KEYSPACE | TELLS, doc(Topic::Generic, "6.2.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(object_help)),
];

fn plan_rename<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let bytes = planner.value_bytes(planned.table, planned.arg(1));
    planner.put(planned.table, planned.arg(2), bytes);
    planner.remove(planned.arg(1));
}

fn plan_copy<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let bytes = planner.value_bytes(planned.table, planned.arg(1));
    planner.put(planned.target, planned.arg(2), bytes);
}

fn plan_move<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let bytes = planner.value_bytes(planned.table, planned.arg(1));
    planner.put(planned.target, planned.arg(1), bytes);
    planner.remove(planned.arg(1));
}

const RENAME_FROM: EventName = (EventClasses::GENERIC, "rename_from");
const RENAME_TO: EventName = (EventClasses::GENERIC, "rename_to");
const COPY_TO: EventName = (EventClasses::GENERIC, "copy_to");
const MOVE_FROM: EventName = (EventClasses::GENERIC, "move_from");
const MOVE_TO: EventName = (EventClasses::GENERIC, "move_to");

const SAME_OBJECTS: Failure = Failure::Text("ERR source and destination objects are the same");
/// Longest value that Redis keeps inside its object header.
const EMBSTR_BYTES_MAX: usize = 44;

pub(crate) fn type_of(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    if found.is_none() {
        ctx.notify_miss(key.bytes);
    }
    ctx.reply
        .encoder()
        .simple(found.map_or("none", |found| type_name(&found)));
    Ok(())
}

/// The name of an object's type.
pub(crate) fn type_name(object: &Object<'_>) -> &'static str {
    match Type::of(object.value) {
        Some(kind) if object.is_typed => kind.name(),
        _ => "string",
    }
}

pub(crate) fn rename(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    rename_unless(ctx, guard, false)?;
    ctx.reply.ok()
}

pub(crate) fn renamenx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let renamed = rename_unless(ctx, guard, true)?;
    ctx.reply.integer(renamed.into())
}

/// Renames argument 1 to argument 2; with `nx` only if that does not exist. Returns false if it
/// does.
fn rename_unless(ctx: &mut Context<'_>, guard: &mut Guard<'_>, nx: bool) -> Result<bool, Failure> {
    let mut keys = ctx.request.keys(ctx.table);
    let (Some(from), Some(to)) = (keys.next(), keys.next()) else {
        return Err(SYNTAX);
    };
    let mut renamed = false;
    ctx.locked_for_room(guard, &[from.place(), to.place()], |ctx, guard, room| {
        cold::warm_own(ctx, guard)?;
        let Some(source) = guard.read(from.table, from.hash, from.bytes)? else {
            return Err(NO_SUCH_KEY);
        };
        if from.bytes == to.bytes {
            renamed = !nx;
            return Ok(());
        }
        if nx && guard.read(to.table, to.hash, to.bytes)?.is_some() {
            return Ok(());
        }
        let (value, is_typed) = (source.value.to_vec(), source.is_typed);
        let expires_at_ms = source.expires_at_ms;
        *room = Room::default();
        room.put(to.bytes, value.len());
        room.remove(from.bytes);
        ctx.set_aside(guard, *room)?;
        let Key { table, hash, bytes } = to;
        guard.write_as(table, hash, bytes, (&value, is_typed), expires_at_ms)?;
        guard.remove(from.table, from.hash, from.bytes)?;
        // A key that was there before is replaced by a new one.
        ctx.notify(NEW, to.bytes);
        ctx.notify(RENAME_FROM, from.bytes);
        ctx.notify(RENAME_TO, to.bytes);
        renamed = true;
        Ok(())
    })?;
    Ok(renamed)
}

/// Destination of COPY and MOVE.
struct Target<'a> {
    /// The database of the copy; `None`: that of the source.
    db: Option<u8>,
    key: &'a [u8],
    replace: bool,
    /// Whether the source is removed (MOVE).
    moves: bool,
}

pub(crate) fn copy(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let (mut db, mut replace) = (None, false);
    let mut rest = ctx.request.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"replace") {
            replace = true;
        } else if option.eq_ignore_ascii_case(b"db") {
            db = Some(parse_db(rest.next().ok_or(SYNTAX)?, NOT_AN_INTEGER)?);
            if db != Some(0) {
                ctx.not_in_cluster("Copying to another database is")?;
            }
        } else {
            return Err(SYNTAX);
        }
    }
    let key = ctx.arg(2);
    transfer(
        ctx,
        access,
        &Target {
            db,
            key,
            replace,
            moves: false,
        },
    )
}

pub(crate) fn move_to(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    ctx.not_in_cluster("MOVE is")?;
    let db = parse_db(
        ctx.arg(2),
        Failure::Text("ERR value is not an integer or out of range"),
    )?;
    let key = ctx.arg(1);
    transfer(
        ctx,
        access,
        &Target {
            db: Some(db),
            key,
            replace: false,
            moves: true,
        },
    )
}

fn transfer(ctx: &mut Context<'_>, access: Access<'_, '_>, target: &Target<'_>) -> Done {
    match access {
        Access::Guarded(guard) => {
            let table = target.db.map_or(Ok(ctx.table), |db| table_in(ctx, db))?;
            transfer_locked(ctx, guard, target, table, &mut Room::default())
        }
        Access::Session(session) => {
            if let Some(db) = target.db {
                table_for(ctx.shared, ctx.client, db)?;
            }
            let mut guard = session.pin();
            // K1: SWAPDB may have run since.
            run::begin_again(ctx)?;
            let table = match target.db {
                None => ctx.table,
                Some(db) => ctx.shared.commands.table(db).ok_or(DROPPED_NOW)?,
            };
            let (from, to) = (guard.hash(ctx.arg(1)), guard.hash(target.key));
            if let Some(member) = ctx.shared.membership() {
                let view = ctx.thread.view(member, &mut guard);
                let has_tls = ctx.client.has_tls();
                routing::find(view, has_tls, Some(&guard), ctx.table, &ctx.request)?;
            }
            guard.rewrites(target.moves);
            let keys = [(ctx.table, from), (table, to)];
            let done = ctx.locked_for_room(&mut guard, &keys, |ctx, guard, room| {
                transfer_locked(ctx, guard, target, table, room)
            });
            // Both tables count: the stricter of their levels.
            let other = ctx.thread.level_of_table(ctx.shared, table);
            let level = ctx.level().max(other);
            ctx.client.wait.settle(&mut guard, level);
            done
        }
        Access::NoStore => unreachable!("{} needs data", ctx.request.spec.name),
    }
}

fn transfer_locked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    target: &Target<'_>,
    table: TableId,
    room: &mut Room,
) -> Done {
    if table == ctx.table && (target.moves || target.key == ctx.arg(1)) {
        return Err(SAME_OBJECTS);
    }
    let from = Key::of(guard, ctx.table, ctx.arg(1));
    let to = Key::of(guard, table, target.key);
    cold::warm(ctx, guard, [from, to].into_iter())?;
    let Some(source) = guard.read(from.table, from.hash, from.bytes)? else {
        if !target.moves {
            ctx.notify_miss(from.bytes);
        }
        return ctx.reply.integer(0);
    };
    if !target.replace && guard.read(to.table, to.hash, to.bytes)?.is_some() {
        return ctx.reply.integer(0);
    }
    let (value, is_typed) = (source.value.to_vec(), source.is_typed);
    let expires_at_ms = source.expires_at_ms;
    *room = Room::default();
    room.put(to.bytes, value.len());
    if target.moves {
        room.remove(from.bytes);
    }
    ctx.set_aside(guard, *room)?;
    if table != ctx.table {
        ctx.shared.commands.spread_exchange(ctx.table, table);
    }
    let value = (&value[..], is_typed);
    guard.write_as(table, to.hash, to.bytes, value, expires_at_ms)?;
    if target.moves {
        guard.remove(from.table, from.hash, from.bytes)?;
    }
    ctx.notify_in(table, NEW, target.key);
    match target.moves {
        true => {
            ctx.notify(MOVE_FROM, from.bytes);
            ctx.notify_in(table, MOVE_TO, target.key);
        }
        false => ctx.notify_in(table, COPY_TO, target.key),
    }
    ctx.reply.integer(1)
}

pub(crate) fn object_encoding(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let Some(object) = guard.read(key.table, key.hash, key.bytes)? else {
        return ctx.reply.null();
    };
    let encoding = if object.is_typed {
        encoding_of(object.value, ctx.shared.settings.encodings())?
    } else if parse_integer(object.value).is_some() {
        "int"
    } else if object.value.len() <= EMBSTR_BYTES_MAX {
        "embstr"
    } else {
        "raw"
    };
    ctx.reply.bulk(encoding.as_bytes())
}

/// The name that Redis 7.4 has for the form in which it would keep a new collection with these
/// elements.
fn encoding_of(value: &[u8], limits: &Encodings) -> Result<&'static str, Failure> {
    let small = |(entries, len): (Limit, usize), short: bool, large: &'static str| {
        if limits.allow(entries, len) && short {
            "listpack"
        } else {
            large
        }
    };
    Ok(match Type::of(value) {
        Some(Type::List) => match limits.allow_list(count(value, Type::List)?, value.len()) {
            true => "listpack",
            false => "quicklist",
        },
        Some(Type::Hash) => {
            let is_short = |text: &Text<'_>| limits.allow(Limit::HashValue, text.len());
            let hash = Hash::of(Some(value))?;
            let short = hash
                .elements()
                .iter()
                .all(|(a, b)| is_short(a) && is_short(b));
            small((Limit::HashEntries, hash.len()), short, "hashtable")
        }
        Some(Type::Set) => {
            let set = Set::of(Some(value))?;
            let mut members = set.elements().iter();
            let integers = members
                .clone()
                .all(|(name, ())| parse_integer(&name.bytes()).is_some());
            match integers && limits.allow(Limit::SetIntsetEntries, set.len()) {
                true => "intset",
                false => small(
                    (Limit::SetEntries, set.len()),
                    members.all(|(name, ())| limits.allow(Limit::SetValue, name.len())),
                    "hashtable",
                ),
            }
        }
        Some(Type::Stream) => "stream",
        Some(Type::SortedSet) | None => {
            let mut set = Sorted::of(Some(value))?;
            let short = set
                .elements()
                .iter()
                .all(|(name, _)| limits.allow(Limit::ZsetValue, name.len()));
            small((Limit::ZsetEntries, set.len()), short, "skiplist")
        }
    })
}

pub(crate) fn object_refcount(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    match guard.read(key.table, key.hash, key.bytes)? {
        Some(_) => ctx.reply.integer(1),
        None => ctx.reply.null(),
    }
}

const NOT_LFU: Failure = Failure::Text(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
     between policies at runtime LRU and LFU data will take some time to adjust.",
);
const IS_LFU: Failure = Failure::Text(
    "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
     policies at runtime LRU and LFU data will take some time to adjust.",
);
const NO_IDLETIME: Failure = Failure::Text(
    "ERR OBJECT IDLETIME is not supported: a read writes nothing, so there is no time of the last access",
);

/// Whether `OBJECT FREQ` may report reads: the policy of eviction counts them, and its name says
/// so.
fn is_lfu(ctx: &mut Context<'_>) -> bool {
    let config = ctx.thread.config(ctx.shared);
    (config.mode, config.policy) == (Mode::Cache, Policy::Lfu)
}

/// The number of recent reads, 0 to 7.
pub(crate) fn object_freq(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    match guard.recent_reads(key.table, key.hash, key.bytes)? {
        Some(reads) if is_lfu(ctx) => ctx.reply.integer(reads as i64),
        Some(_) => Err(NOT_LFU),
        None => ctx.reply.null(),
    }
}

pub(crate) fn object_idletime(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    match guard.read(key.table, key.hash, key.bytes)? {
        Some(_) if is_lfu(ctx) => Err(IS_LFU),
        Some(_) => Err(NO_IDLETIME),
        None => ctx.reply.null(),
    }
}

pub(crate) fn object_help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. The returned integer is",
            "    proportional to the logarithm of the recent access frequency of the key.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>, that is the approximated number of",
            "    seconds elapsed since the last access to the key.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    )
}
