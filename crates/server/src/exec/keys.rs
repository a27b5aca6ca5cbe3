//! Commands on keys themselves: TYPE, RENAME, COPY, MOVE, OBJECT, FLUSHDB, FLUSHALL, SWAPDB.
//!
//! **Invariant**
//! - K1: the table behind a database is looked up under the guard with which the
//!   command uses it. SWAPDB is exclusive in the store, so it runs during no guard. But a guard may
//!   have left the store meanwhile, to search for memory or to release its keys. It then gets
//!   `Error::TryAgain`, and the command looks the table up again ([`Context::run`]).

use super::admit;
use super::client::Db;
use super::context::{Context, Done, Failure, NO_SUCH_KEY, NOT_AN_INTEGER, SYNTAX};
use super::databases;
use super::group::Way;
use super::own_part;
use super::routing;
use super::state::DBS;
use crate::shared::Shared;
use duramen_engine::{Error, Guard, KeyHash, Room, TableId};
use duramen_wire::resp::number::parse_integer;

pub(super) const DB_OUT_OF_RANGE: Failure = Failure::Text("ERR DB index is out of range");
/// How often a database's table is created again if other clients drop it at once.
const TABLE_ATTEMPTS_MAX: u32 = 16;
const DROPPED_NOW: Failure = Failure::Text("ERR the database is being dropped; try again");
const SAME_OBJECTS: Failure = Failure::Text("ERR source and destination objects are the same");
/// Longest value that Redis keeps inside its object header.
const EMBSTR_BYTES_MAX: usize = 44;

pub(super) fn type_of(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let found = guard.read(ctx.table, hashes[0], ctx.arg(1))?;
    ctx.reply()
        .simple(if found.is_some() { "string" } else { "none" });
    Ok(())
}

pub(super) fn rename(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    rename_unless(ctx, guard, hashes, false)?;
    ctx.ok()
}

pub(super) fn renamenx(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let renamed = rename_unless(ctx, guard, hashes, true)?;
    ctx.integer(renamed.into())
}

/// Renames argument 1 to argument 2, with `nx` only if that does not exist; `false` = it exists.
fn rename_unless(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
    nx: bool,
) -> Result<bool, Failure> {
    let (from, to, table) = (ctx.arg(1), ctx.arg(2), ctx.table);
    let mut renamed = false;
    let keys: Vec<_> = hashes.iter().map(|hash| (table, *hash)).collect();
    ctx.locked_for_room(guard, &keys, |ctx, guard, room| {
        ctx.warm_own(guard, hashes)?;
        let Some(source) = guard.read(table, hashes[0], from)? else {
            return Err(NO_SUCH_KEY);
        };
        if from == to {
            renamed = !nx;
            return Ok(());
        }
        let (value, expires_at_ms) = (source.value.to_vec(), source.expires_at_ms);
        if nx && guard.read(table, hashes[1], to)?.is_some() {
            return Ok(());
        }
        *room = Room::default();
        room.put(to, value.len());
        room.remove(from);
        ctx.set_aside(guard, *room)?;
        guard.write(table, hashes[1], to, &value, expires_at_ms)?;
        guard.remove(table, hashes[0], from)?;
        renamed = true;
        Ok(())
    })?;
    Ok(renamed)
}

/// Index of a database, from 0 to 15.
pub(super) fn parse_db(text: &[u8], not_a_number: Failure) -> Result<u8, Failure> {
    let index = parse_integer(text)
        .and_then(|index| i32::try_from(index).ok())
        .ok_or(not_a_number)?;
    u8::try_from(index)
        .ok()
        .filter(|db| usize::from(*db) < DBS)
        .ok_or(DB_OUT_OF_RANGE)
}

/// The table of a database, created at its first use. Not to be called while a guard is held.
pub(super) fn table_for(shared: &Shared, db: u8) -> Result<TableId, Failure> {
    if let Some(table) = table_behind(shared, db) {
        return Ok(table);
    }
    if shared.membership().is_some() {
        return Ok(admit::DROPPED); // the coordinator creates tables; requests get an error
    }
    let name = format!("db{db}");
    for _ in 0..TABLE_ATTEMPTS_MAX {
        let table = match shared.create_table(&name, None) {
            Ok(table) => Some(table),
            // Another thread or DURAMEN.TABLE created it first; it may be dropped by now.
            Err(duramen::Error::TableExists(_)) => shared.store().table_id(&name),
            Err(error) => return Err(error.into()),
        };
        if let Some(table) = table {
            return put_behind(shared, db, table);
        }
    }
    Err(DROPPED_NOW)
}

/// The table behind the database, if it still exists.
fn table_behind(shared: &Shared, db: u8) -> Option<TableId> {
    // A table that was dropped while another client assigned it may still be assigned.
    let table = shared.commands.table(db)?;
    let exists = shared.membership().is_some() || shared.store().has_table(table);
    exists.then_some(table)
}

/// Assigns a table to a database that has none, and returns the database's table.
pub(super) fn put_behind(shared: &Shared, db: u8, table: TableId) -> Result<TableId, Failure> {
    let commands = &shared.commands;
    let _places = commands.lock_places();
    // SWAPDB may have assigned another table since.
    if let Some(other) = table_behind(shared, db) {
        return Ok(other);
    }
    if commands.tables().contains(&Some(table)) && commands.table(db) != Some(table) {
        return Err(Failure::Owned(
            format!(
                "ERR database {db} has no table: SWAPDB put `db{db}` behind another database; \
                 exchange them again"
            )
            .into(),
        ));
    }
    commands.set_table(db, Some(table));
    Ok(table)
}

/// The table of a database for a command. Within EXEC it is the table that EXEC found, because none
/// can be created under its guard.
fn table_in(ctx: &Context<'_>, db: u8) -> Result<TableId, Failure> {
    match &ctx.local.exec_dbs {
        None => table_for(ctx.shared, db),
        Some(tables) => tables
            .get(usize::from(db))
            .copied()
            .flatten()
            .ok_or(DROPPED_NOW),
    }
}

pub(super) fn select(ctx: &mut Context<'_>) -> Done {
    let db = parse_db(
        ctx.arg(1),
        Failure::Text("ERR value is not an integer or out of range"),
    )?;
    if db != 0 {
        ctx.not_in_cluster("SELECT is")?;
    }
    let table = table_in(ctx, db)?;
    ctx.client.db = Db::Number(db);
    ctx.table = table;
    ctx.ok()
}

/// Destination of COPY and MOVE.
struct Target<'a> {
    /// None: the database of the source.
    db: Option<u8>,
    key: &'a [u8],
    replace: bool,
    /// Remove the source (MOVE).
    moves: bool,
}

pub(super) fn copy(ctx: &mut Context<'_>, way: Way<'_, '_>) -> Done {
    let (mut db, mut replace) = (None, false);
    let mut rest = ctx.args.skip(3).into_iter();
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
        way,
        &Target {
            db,
            key,
            replace,
            moves: false,
        },
    )
}

pub(super) fn move_to(ctx: &mut Context<'_>, way: Way<'_, '_>) -> Done {
    ctx.not_in_cluster("MOVE is")?;
    let db = parse_db(
        ctx.arg(2),
        Failure::Text("ERR value is not an integer or out of range"),
    )?;
    let key = ctx.arg(1);
    transfer(
        ctx,
        way,
        &Target {
            db: Some(db),
            key,
            replace: false,
            moves: true,
        },
    )
}

fn transfer(ctx: &mut Context<'_>, way: Way<'_, '_>, target: &Target<'_>) -> Done {
    match way {
        Way::Guarded(guard) => {
            let table = target.db.map_or(Ok(ctx.table), |db| table_in(ctx, db))?;
            transfer_locked(ctx, guard, target, table, &mut Room::default())
        }
        Way::Session(session) => {
            if let Some(db) = target.db {
                table_for(ctx.shared, db)?;
            }
            let mut guard = session.pin();
            // K1: SWAPDB may have run since.
            ctx.table = admit::table_of(ctx.client, ctx.shared);
            let table = match target.db {
                None => ctx.table,
                Some(db) => ctx.shared.commands.table(db).ok_or(DROPPED_NOW)?,
            };
            let (from, to) = (guard.hash(ctx.arg(1)), guard.hash(target.key));
            if let Some(member) = ctx.shared.membership() {
                let view = ctx.local.view(member, &mut guard);
                routing::find(view, None, ctx.table, ctx.spec, &ctx.args, &[from, to])?;
            }
            guard.rewrites(target.moves);
            let keys = [(ctx.table, from), (table, to)];
            let done = ctx.locked_for_room(&mut guard, &keys, |ctx, guard, room| {
                transfer_locked(ctx, guard, target, table, room)
            });
            // The stricter level of the two tables.
            let other = ctx.local.level_of_table(ctx.shared, table);
            let level = ctx.level().max(other);
            ctx.client.settle(&mut guard, level);
            done
        }
        Way::Nothing => unreachable!("{} needs data", ctx.spec.name),
    }
}

fn transfer_locked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    target: &Target<'_>,
    table: TableId,
    room: &mut Room,
) -> Done {
    let source_key = ctx.arg(1);
    if table == ctx.table && (target.moves || target.key == source_key) {
        return Err(SAME_OBJECTS);
    }
    let (from, to) = (guard.hash(source_key), guard.hash(target.key));
    let keys = [(ctx.table, from, source_key), (table, to, target.key)];
    ctx.warm(guard, keys.into_iter())?;
    let Some(source) = guard.read(ctx.table, from, source_key)? else {
        return ctx.integer(0);
    };
    let (value, expires_at_ms) = (source.value.to_vec(), source.expires_at_ms);
    if !target.replace && guard.read(table, to, target.key)?.is_some() {
        return ctx.integer(0);
    }
    *room = Room::default();
    room.put(target.key, value.len());
    if target.moves {
        room.remove(source_key);
    }
    ctx.set_aside(guard, *room)?;
    guard.write(table, to, target.key, &value, expires_at_ms)?;
    if target.moves {
        guard.remove(ctx.table, from, source_key)?;
    }
    ctx.integer(1)
}

pub(super) fn flushdb(ctx: &mut Context<'_>, way: Way<'_, '_>) -> Done {
    check_flush(ctx)?;
    flush(ctx, way, |ctx| vec![ctx.table])?;
    ctx.ok()
}

pub(super) fn flushall(ctx: &mut Context<'_>, way: Way<'_, '_>) -> Done {
    check_flush(ctx)?;
    flush(ctx, way, |ctx| {
        let tables = databases::tables(ctx.shared);
        tables.iter().map(|table| table.id).collect()
    })?;
    ctx.ok()
}

/// Empties `tables` at one instant. An EXEC with a FLUSH is exclusive in the store already.
fn flush(
    ctx: &mut Context<'_>,
    way: Way<'_, '_>,
    tables: fn(&Context<'_>) -> Vec<TableId>,
) -> Done {
    if let Some(member) = ctx.shared.membership() {
        let tables = tables(ctx);
        return own_part::flush(ctx, member, way, &tables);
    }
    let clear = |ctx: &Context<'_>, guard: &Guard<'_>| {
        for table in tables(ctx) {
            match guard.clear(table) {
                Ok(()) | Err(Error::NoSuchTable(_)) => {}
                Err(error) => return Err(Failure::from(error)),
            }
        }
        Ok(())
    };
    match way {
        Way::Session(session) => {
            let mut guard = session.pin_exclusive();
            // K1: SWAPDB may have run while this waited for exclusive access.
            ctx.table = admit::table_of(ctx.client, ctx.shared);
            let done = clear(ctx, &guard);
            let level = ctx.strictest(&tables(ctx));
            ctx.client.settle(&mut guard, level);
            done
        }
        Way::Guarded(guard) => clear(ctx, guard),
        Way::Nothing => unreachable!("{} needs data", ctx.spec.name),
    }
}

fn check_flush(ctx: &Context<'_>) -> Done {
    match ctx.args.get(1) {
        None => Ok(()),
        Some(how) if ctx.args.len() == 2 => {
            let known = how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
            if known { Ok(()) } else { Err(SYNTAX) }
        }
        Some(_) => Err(SYNTAX),
    }
}

pub(super) fn swapdb(ctx: &mut Context<'_>, way: Way<'_, '_>) -> Done {
    ctx.not_in_cluster("SWAPDB is")?;
    let first = parse_db(ctx.arg(1), Failure::Text("ERR invalid first DB index"))?;
    let second = parse_db(ctx.arg(2), Failure::Text("ERR invalid second DB index"))?;
    match way {
        Way::Session(session) => {
            databases::own_table(ctx.shared)?;
            for db in [first, second] {
                table_for(ctx.shared, db)?;
            }
            let mut guard = session.pin_exclusive();
            databases::exchange(ctx, &mut guard, first, second)?;
            let swapped = [first, second].map(|db| ctx.shared.commands.table(db));
            let level = ctx.strictest(&swapped.map(|table| table.unwrap_or(ctx.table)));
            ctx.client.settle(&mut guard, level);
        }
        // EXEC is exclusive in the store.
        Way::Guarded(guard) => databases::exchange(ctx, guard, first, second)?,
        Way::Nothing => unreachable!("{} needs data", ctx.spec.name),
    }
    ctx.ok()
}

pub(super) fn object_encoding(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    let Some(object) = guard.read(ctx.table, hashes[0], ctx.arg(2))? else {
        return ctx.null();
    };
    let encoding = if parse_integer(object.value).is_some() {
        "int"
    } else if object.value.len() <= EMBSTR_BYTES_MAX {
        "embstr"
    } else {
        "raw"
    };
    ctx.bulk(encoding.as_bytes())
}

pub(super) fn object_refcount(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    match guard.read(ctx.table, hashes[0], ctx.arg(2))? {
        Some(_) => ctx.integer(1),
        None => ctx.null(),
    }
}

pub(super) fn object_freq(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    match guard.read(ctx.table, hashes[0], ctx.arg(2))? {
        Some(_) => Err(Failure::Text(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        )),
        None => ctx.null(),
    }
}

pub(super) fn object_idletime(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
) -> Done {
    match guard.read(ctx.table, hashes[0], ctx.arg(2))? {
        Some(_) => Err(Failure::Text(
            "ERR OBJECT IDLETIME is not supported: a log-structured store keeps no time of the last access",
        )),
        None => ctx.null(),
    }
}

pub(super) fn object_help(ctx: &mut Context<'_>) -> Done {
    ctx.help(&[
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
    ])
}
