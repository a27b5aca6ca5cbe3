//! `DURAMEN.*`: the RAMCloud interface for every language that has a RESP driver.
//!
//! These commands know strings alone: reading a collection or a stream fails, a walk leaves them
//! out, and a write replaces them.
//!
//! Every result has the object version; the reply of a write has its level of durability. A reply
//! is sent when that level is reached (`wait`), so it is the requested level.

use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::databases;
use crate::command::events::SET;
use crate::command::key::Key;
use crate::command::keys::Unnamed;
use crate::command::row::*;
use crate::command::served_keys::ServedKeys;
use crate::command::store_access::Access;
use crate::command::walk::{compiled, parse_cursor};
use crate::keyspace::scan::{VALUES_PER_STEP, note_walked, walk};
use crate::state::db::Db;
use crate::values::collection::{WRONG_TYPE, plain};
use crate::values::string;
use duramen_base::glob::Pattern;
use duramen_base::ids::Level;
use duramen_engine::{Condition, Error, Guard, Outcome, TableId};
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::{IntegerText, parse_integer};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("duramen.read", 2, FAST, doc(Topic::Duramen, "0.1.0", "O(1)", "Returns the value and the object version of a key."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(read)),
    row("duramen.write", -3, DENYOOM | FAST,
        doc(Topic::Duramen, "0.1.0", "O(1)", "Writes a key under a condition; returns its object version and the level."),
        Keys::one(SETS), Effect::Writes(Growth::Sets(growth::given)), Secrets::None, Run::Data(write)),
    row("duramen.remove", -2, FAST, doc(Topic::Duramen, "0.1.0", "O(1)", "Removes a key under a condition; returns the object version it had."),
        Keys::one(DELETES), Effect::Writes(Growth::MayRemove), Secrets::None, Run::Data(remove)),
    row("duramen.incrby", 3, DENYOOM | FAST, doc(Topic::Duramen, "0.1.0", "O(1)", "Adds to an integer; returns it and its object version."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::integer)), Secrets::None, Run::Data(incrby)),
    row("duramen.incrbyfloat", 3, DENYOOM | FAST, doc(Topic::Duramen, "0.1.0", "O(1)", "Adds to a number; returns it and its object version."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::number)), Secrets::None, Run::Data(incrbyfloat)),
    row("duramen.mread", -2, FAST, doc(Topic::Duramen, "0.1.0", "O(N)", "Returns the values and object versions of several keys, each by itself."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Data(mread)),
    row("duramen.mwrite", -3, DENYOOM, doc(Topic::Duramen, "0.1.0", "O(N)", "Writes several keys, each by itself."),
        Keys::pairs(SETS), Effect::Writes(Growth::SetsPairs), Secrets::None, Run::Data(mwrite)),
    row("duramen.mremove", -2, NO_FLAGS, doc(Topic::Duramen, "0.1.0", "O(N)", "Removes several keys, each by itself."),
        Keys::all(DELETES), Effect::Writes(Growth::MayRemove), Secrets::None, Run::Data(mremove)),
    row("duramen.scan", -2, WHOLE | TIMED, doc(Topic::Duramen, "0.1.0", "O(N)", "Walks over keys, values and object versions."),
        Keys::NONE.unnamed(ANY_KEY), Effect::Reads, Secrets::None, Run::Data(scan)).family(Family::Scan),
    row("duramen.use", 2, FAST | NO_MULTI | CONNECTION, doc(Topic::Duramen, "0.1.0", "O(1)", "Chooses a table for this connection by name."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(use_table)).names(Names::Table(1)),
    container("duramen.table", doc(Topic::Duramen, "0.1.0", "O(1)", "A container for commands about tables.")),
    row("duramen.table|create", -3, NO_MULTI,
        doc(Topic::Duramen, "0.1.0", "O(1)", "Makes a table, with a level of its own if wanted; returns its id."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Store(table_create)).names(Names::Table(2)),
    row("duramen.table|id", 3, NO_FLAGS, doc(Topic::Duramen, "0.1.0", "O(1)", "Returns the id of a table."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Store(table_id)).names(Names::Table(2)),
    row("duramen.table|drop", 3, NO_MULTI | DANGEROUS, doc(Topic::Duramen, "0.1.0", "O(1)", "Drops a table and all its objects."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(table_drop)).names(Names::Table(2)),
    row("duramen.table|list", 2, REPORTS, doc(Topic::Duramen, "0.1.0", "O(1)", "Returns names, ids, sizes and levels of all tables."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Store(table_list)),
    row("duramen.table|help", 2, TELLS, doc(Topic::Duramen, "0.1.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(table_help)),
];

/// Unlike SCAN, a walk returns values: it reads any key.
const ANY_KEY: Unnamed = Unnamed {
    stand_at: |_| Some(0),
    are_read: |_, _| false,
};

pub(crate) fn read(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    read_one(ctx, guard, ctx.key(), false)
}

/// Replies with the object of a key. With `is_part`, a collection becomes an error within a larger
/// reply.
fn read_one(ctx: &mut Context<'_>, guard: &Guard<'_>, key: Key<'_>, is_part: bool) -> Done {
    let counters = ctx.thread.counters(ctx.shared);
    match guard.read(key.table, key.hash, key.bytes)? {
        Some(object) => {
            counters.keyspace_hits.add(1);
            match plain(Some(object)) {
                Ok(value) => {
                    let mut reply = ctx.reply.encoder();
                    reply.array(2);
                    reply.bulk(value.unwrap_or_default());
                    reply.integer(object.version as i64);
                }
                Err(_) if is_part => ctx.reply.encoder().error(WRONG_TYPE.text()),
                Err(failure) => return Err(failure),
            }
        }
        None => {
            counters.keyspace_misses.add(1);
            ctx.reply.encoder().null_array();
        }
    }
    Ok(())
}

pub(crate) fn mread(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let request = ctx.request;
    ctx.reply.encoder().array(request.hashes.len());
    for key in request.keys(ctx.table) {
        read_one(ctx, guard, key, true)?;
        ctx.reply.fits()?;
    }
    Ok(())
}

/// Options of a write: its condition and its level.
struct WriteOptions {
    condition: Condition,
    /// The level of the write; `None`: the table's level.
    level: Option<Level>,
}

/// Condition and level of a write, from argument `from` on.
fn parse_write_options(ctx: &Context<'_>, from: usize) -> Result<WriteOptions, Failure> {
    let (mut condition, mut level) = (None, None);
    let mut rest = ctx.request.args.skip(from).into_iter();
    while let Some(option) = rest.next() {
        let mut version = || {
            let text = rest.next().ok_or(SYNTAX)?;
            let version = parse_integer(text).ok_or(NOT_AN_INTEGER)?;
            u64::try_from(version).map_err(|_| NOT_AN_INTEGER)
        };
        let given = match option.to_ascii_lowercase().as_slice() {
            b"ifversion" => Condition::Version(version()?),
            b"ifnewer" => Condition::NewerThan(version()?),
            b"ifabsent" => Condition::Absent,
            b"ifpresent" => Condition::Present,
            b"level" if level.is_none() => {
                level = Some(parse_level(ctx, rest.next().ok_or(SYNTAX)?)?);
                continue;
            }
            _ => return Err(SYNTAX),
        };
        if condition.replace(given).is_some() {
            return Err(SYNTAX);
        }
    }
    Ok(WriteOptions {
        condition: condition.unwrap_or(Condition::Always),
        level,
    })
}

/// Parses a level that this server can reach.
fn parse_level(ctx: &Context<'_>, text: &[u8]) -> Result<Level, Failure> {
    let level = std::str::from_utf8(text)
        .ok()
        .and_then(Level::from_name)
        .ok_or(Failure::Text(
            "ERR LEVEL is one of memory, buffered, synced",
        ))?;
    if level > Level::Memory && ctx.shared.store().log().is_none() {
        return Err(Failure::Text(
            "ERR only LEVEL memory is possible: this server has no data directory, so no write can be buffered or synced;              start it with --dir",
        ));
    }
    Ok(level)
}

/// Runs a command at the requested level, which `run` gets for its reply.
fn at_level(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    own_level: Option<Level>,
    run: impl FnOnce(&mut Context<'_>, &mut Guard<'_>, Level) -> Done,
) -> Done {
    let Some(level) = own_level else {
        let level = ctx.level();
        return run(ctx, guard, level);
    };
    ctx.shared.commands.levels.note(level);
    if ctx.locked {
        // EXEC waits for the strictest level of its commands.
        ctx.client.transaction.ask_level(level);
        return run(ctx, guard, level);
    }
    // The requests before this one wait at their own level.
    ctx.settle(guard);
    let done = run(ctx, guard, level);
    ctx.client.wait.settle(guard, level);
    done
}

/// The error of a condition that failed, with the version that was found.
fn condition_failed(error: Error) -> Failure {
    match error {
        Error::ConditionFailed {
            current: Some(version),
        } => format!("WRONGVERSION condition failed: the object's version is {version}").into(),
        Error::ConditionFailed { current: None } => {
            Failure::Text("WRONGVERSION condition failed: the object does not exist")
        }
        error => error.into(),
    }
}

pub(crate) fn write(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse_write_options(ctx, 3)?;
    let (Key { table, hash, bytes }, value) = (ctx.key(), ctx.arg(2));
    at_level(ctx, guard, options.level, |ctx, guard, level| {
        let outcome = guard
            .conditional_write(table, hash, bytes, value, None, options.condition)
            .map_err(condition_failed)?;
        ctx.notify_change(SET, bytes, outcome);
        tell_write(&mut ctx.reply.encoder(), outcome.after, level);
        Ok(())
    })
}

fn tell_write(reply: &mut Encoder<'_>, version: Option<u64>, level: Level) {
    reply.array(2);
    reply.integer(version.unwrap_or(0) as i64);
    reply.bulk(level.name().as_bytes());
}

pub(crate) fn mwrite(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    if ctx.request.args.len().is_multiple_of(2) {
        return Err(Failure::Text(
            "ERR wrong number of arguments for 'duramen.mwrite' command",
        ));
    }
    let level = ctx.level();
    ctx.locked_for_flash(guard, |ctx, guard| {
        let hashes = ctx.request.hashes;
        ctx.reply.encoder().array(hashes.len());
        for (n, hash) in hashes.iter().enumerate() {
            let (key, value) = (ctx.arg(1 + 2 * n), ctx.arg(2 + 2 * n));
            let written = ctx.part(guard, |table, guard| {
                guard.write(table, *hash, key, value, None)
            });
            match written {
                Ok(outcome) => {
                    ctx.notify_change(SET, key, outcome);
                    tell_write(&mut ctx.reply.encoder(), outcome.after, level);
                }
                Err(failure) => ctx.reply.encoder().error(failure.text()),
            }
        }
        Ok(())
    })
}

pub(crate) fn remove(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse_write_options(ctx, 2)?;
    at_level(ctx, guard, options.level, |ctx, guard, level| {
        let outcome = remove_if(ctx, guard, options.condition)?;
        ctx.notify_removal(ctx.arg(1), outcome);
        tell_removed(&mut ctx.reply.encoder(), outcome.before, level);
        Ok(())
    })
}

fn remove_if(
    ctx: &Context<'_>,
    guard: &mut Guard<'_>,
    condition: Condition,
) -> Result<Outcome, Failure> {
    let key = ctx.key();
    let mut failed = None;
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, _| {
        let current = found.map(|object| object.version);
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Version(version) => current == Some(version),
            Condition::NewerThan(version) => current.is_none_or(|current| current < version),
        };
        failed = (!holds).then_some(current);
        if holds {
            duramen_engine::Decision::Remove
        } else {
            duramen_engine::Decision::Keep
        }
    })?;
    match failed {
        Some(current) => Err(condition_failed(Error::ConditionFailed { current })),
        None => Ok(outcome),
    }
}

/// The version the object had; null if there was none.
fn tell_removed(reply: &mut Encoder<'_>, version: Option<u64>, level: Level) {
    match version {
        Some(version) => tell_write(reply, Some(version), level),
        None => reply.null_array(),
    }
}

pub(crate) fn mremove(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let level = ctx.level();
    ctx.locked_for_flash(guard, |ctx, guard| {
        let hashes = ctx.request.hashes;
        ctx.reply.encoder().array(hashes.len());
        for (hash, key) in hashes.iter().zip(ctx.request.args.skip(1)) {
            let removed = ctx.part(guard, |table, guard| guard.remove(table, *hash, key))?;
            ctx.notify_removal(key, removed);
            tell_removed(&mut ctx.reply.encoder(), removed.before, level);
        }
        Ok(())
    })
}

pub(crate) fn incrby(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let by = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let (sum, version) = string::add_integer(ctx, guard, by)?;
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.integer(sum);
    reply.integer(version as i64);
    Ok(())
}

pub(crate) fn incrbyfloat(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (text, version) = string::add_float(ctx, guard)?;
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(&text);
    reply.integer(version as i64);
    Ok(())
}

/// `DURAMEN.SCAN cursor [MATCH pattern] [COUNT n]` → [cursor, [key, value, version, …]].
pub(crate) fn scan(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let cursor = parse_cursor(ctx.arg(1))?;
    let (mut pattern, mut count) = (None, 10usize);
    let mut rest = ctx.request.args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(value);
        } else if option.eq_ignore_ascii_case(b"count") {
            let given = parse_integer(value).ok_or(NOT_AN_INTEGER)?;
            count = usize::try_from(given)
                .ok()
                .filter(|count| *count > 0)
                .ok_or(SYNTAX)?;
        } else {
            return Err(SYNTAX);
        }
    }
    let pattern = compiled(pattern)?;
    let own = ServedKeys::of(ctx, guard);
    let (mut found, mut objects) = (Vec::new(), 0);
    let mut reply = Encoder::new(&mut found, ctx.client.protocol());
    let in_parts = ctx.client.parking.take_in_parts();
    let mut matching = 0;
    note_walked(ctx, 0, 0)?;
    let next = walk(
        guard,
        ctx.table,
        cursor,
        count,
        VALUES_PER_STEP,
        in_parts,
        |object| {
            let pattern = pattern.as_ref();
            let steps = pattern.map_or(0, |pattern| pattern.steps(object.key.len()));
            matching += steps;
            let wanted = pattern.is_none_or(|pattern: &Pattern| pattern.matches(object.key));
            if let Ok(value) = object.string()
                && wanted
                && own.has(guard, object.key)
            {
                objects += 1;
                reply.bulk(object.key);
                reply.bulk(value);
                reply.integer(object.version as i64);
                return object.key.len() + object.value.len();
            }
            steps
        },
    );
    let (next, looked) = cold::note_colds(ctx, guard, in_parts, next)?;
    note_walked(ctx, looked, matching)?;
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(IntegerText::unsigned(next).as_bytes());
    reply.array(objects * 3);
    ctx.reply.append(&found);
    Ok(())
}

fn name_of(ctx: &Context<'_>, n: usize) -> Result<String, Failure> {
    String::from_utf8(ctx.arg(n).to_vec()).map_err(|_| {
        Failure::Text("ERR a table's name is 1 to 128 printable characters without blanks")
    })
}

fn find(ctx: &Context<'_>, n: usize) -> Result<TableId, Failure> {
    let name = name_of(ctx, n)?;
    let found = ctx.shared.store().tables().find(&name);
    found.filter(|_| !databases::is_own(&name)).ok_or_else(|| {
        format!("ERR no table is called `{name}`: make it with DURAMEN.TABLE CREATE").into()
    })
}

pub(crate) fn use_table(ctx: &mut Context<'_>) -> Done {
    let table = find(ctx, 1)?;
    ctx.client.select(match ctx.shared.commands.db_of(table) {
        Some(db) => Db::Number(db),
        None => Db::Table(table),
    });
    ctx.table = table;
    ctx.reply.ok()
}

/// Refuses the command in a cluster: there the coordinator makes and drops the tables.
fn not_a_members_affair(ctx: &Context<'_>, what: &str) -> Done {
    match ctx.shared.membership() {
        None => Ok(()),
        Some(_) => Err(format!(
            "ERR this server is a member of a cluster, whose tables are the coordinator's: use `duramen table {what}`"
        )
        .into()),
    }
}

/// `DURAMEN.TABLE CREATE name [LEVEL l]`.
pub(crate) fn table_create(ctx: &mut Context<'_>) -> Done {
    not_a_members_affair(ctx, "create")?;
    let name = name_of(ctx, 2)?;
    if databases::is_own(&name) {
        return Err(format!("ERR the name `{name}` is kept for the server itself").into());
    }
    if name == databases::NOT_FIRST {
        return Err(Failure::Text(
            "ERR the name `db0` is kept: the table of database 0 is called `default`",
        ));
    }
    let level = match (ctx.request.args.get(3), ctx.request.args.get(4)) {
        (None, _) => None,
        (Some(word), Some(level))
            if ctx.request.args.len() == 5 && word.eq_ignore_ascii_case(b"level") =>
        {
            Some(parse_level(ctx, level)?)
        }
        _ => return Err(SYNTAX),
    };
    let table = databases::create(ctx.shared, ctx.client, &name, level)?;
    ctx.reply.integer(table.0.into())
}

pub(crate) fn table_id(ctx: &mut Context<'_>) -> Done {
    let table = find(ctx, 2)?;
    ctx.reply.integer(table.0.into())
}

pub(crate) fn table_drop(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    not_a_members_affair(ctx, "drop")?;
    let table = find(ctx, 2)?;
    if table == TableId::DEFAULT {
        return Err(Failure::Text(
            "ERR the default table cannot be dropped; FLUSHDB empties it",
        ));
    }
    {
        let commands = &ctx.shared.commands;
        // While this lock is held, no exchange comes between the check and the change.
        let _places = commands.lock_places();
        if commands.table(0) == Some(table) {
            return Err(Failure::Text(
                "ERR this is the table of database 0 since a SWAPDB, and cannot be dropped; FLUSHDB empties it",
            ));
        }
        // Clients that have selected it get errors; SELECT makes a new table.
        commands.forget_table(table);
    }
    if let Access::Session(session) = access {
        databases::note_places(ctx, session)?;
    }
    match ctx.shared.durability() {
        Some(durability) => durability.store().begin_drop(table)?,
        None => ctx.shared.store().tables().drop(table)?,
    }
    ctx.thread.wake_table(ctx.shared, table); // waiting clients get an error
    ctx.shared.tracking().all_changed(&ctx.shared.threads, None);
    databases::tables_changed(ctx.shared, ctx.client);
    ctx.reply.ok()
}

pub(crate) fn table_list(ctx: &mut Context<'_>) -> Done {
    let tables = databases::tables(ctx.shared);
    let levels: Vec<Level> = tables
        .iter()
        .map(|table| ctx.thread.level_of_table(ctx.shared, table.id))
        .collect();
    ctx.settle_all();
    let mut reply = ctx.reply.encoder();
    reply.array(tables.len());
    for (table, level) in tables.iter().zip(levels) {
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(table.name.as_bytes());
        reply.bulk(b"id");
        reply.integer(table.id.0.into());
        reply.bulk(b"objects");
        reply.integer(table.objects as i64);
        reply.bulk(b"level");
        reply.bulk(level.name().as_bytes());
    }
    Ok(())
}

pub(crate) fn table_help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "CREATE <name> [LEVEL memory|buffered|synced]",
            "    Make a table, with a level of its own or the server's; return its id.",
            "ID <name>",
            "    Return the id of a table.",
            "DROP <name>",
            "    Drop a table and all its objects.",
            "LIST",
            "    Return names, ids, sizes and levels of all tables.",
        ],
    )
}
