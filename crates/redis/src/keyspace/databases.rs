//! Commands on whole databases: SELECT, SWAPDB, FLUSHDB, FLUSHALL.
//!
//! **Invariants** (a member of a cluster executes FLUSHALL on the keys that it serves, as the
//! masters of a Redis Cluster do)
//! - P2: FLUSHALL deletes key by key, with tombstones. A floor for the whole table, as a single
//!   server writes it, would also delete objects with older versions that arrive later from other
//!   members; a purge would be undone by a recovery.
//! - P3: a round of the reactor spends at most about a millisecond on a flush. The flush continues
//!   after all other connections had a turn, and is answered when all of its deletions are durable.
//!   It also continues from its position after it has waited for flash.

use crate::command::cold;
use crate::command::context::{Context, Done, Failure, SYNTAX, YIELDS};
use crate::command::databases::{self, in_range, parse_db, parse_index, table_for, table_in};
use crate::command::growth::Planned;
use crate::command::key::Key;
use crate::command::room::Planner;
use crate::command::routing::{self, NotServed, UNSERVED};
use crate::command::row::*;
use crate::command::run;
use crate::command::store_access::Access;
use crate::membership::Membership;
use crate::state::client::Flushing;
use crate::state::db::Db;
use duramen_engine::{Error, Guard, KeyHash, Object, Session, TableId};
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("select", 2, LOADING | STALE | FAST | CONNECTION | WITH_DATA,
        doc(Topic::Connection, "1.0.0", "O(1)", "Chooses the database of this connection."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(select))
            .differs("Each database is a table: `SELECT 1` selects table `db1`.").names(Names::Selected),
    row("swapdb", 3, FAST | KEYSPACE | DANGEROUS | WHOLE | SEVERAL_TABLES, doc(Topic::Server, "4.0.0", "O(N)", "Exchanges two databases."),
        Keys::NONE, Effect::Writes(Growth::Own(plan_exchange)), Secrets::None, Run::Alone(swapdb))
            .differs("Changes all watched keys of both databases.").names(Names::Exchanged),
    row("flushdb", -1, KEYSPACE | DANGEROUS | WHOLE | TIMED | SWEEPS, doc(Topic::Server, "1.0.0", "O(N)", "Deletes all keys of the database."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(flushdb))
            .differs("`ASYNC` makes no difference.")
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
    row("flushall", -1, KEYSPACE | DANGEROUS | WHOLE | TIMED | SWEEPS | SEVERAL_TABLES,
        doc(Topic::Server, "1.0.0", "O(N)", "Deletes all keys of all databases and tables."),
        Keys::NONE, Effect::Writes(Growth::Nothing), Secrets::None, Run::Alone(flushall))
            .differs("`ASYNC` makes no difference.").names(Names::AllTables)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
];

/// Plans the write of the mapping from databases to tables, as SWAPDB stores it.
fn plan_exchange(planner: &mut Planner<'_, '_, '_>, _: &Planned<'_, '_>) {
    let (key, bytes) = databases::PLACES;
    planner.room.put(key, bytes);
}

/// Keys that a flush deletes under one guard: less than a millisecond, so that no thread waits long
/// for this guard.
const FLUSH_STEP: usize = 256;
/// Number of such steps in one round (P3).
const STEPS_PER_ROUND: usize = 4;

pub(crate) fn select(ctx: &mut Context<'_>) -> Done {
    let db = parse_db(
        ctx.arg(1),
        Failure::Text("ERR value is not an integer or out of range"),
    )?;
    if db != 0 {
        ctx.not_in_cluster("SELECT is")?;
    }
    let table = table_in(ctx, db)?;
    ctx.client.select(Db::Number(db));
    ctx.table = table;
    ctx.reply.ok()
}

pub(crate) fn flushdb(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    check_flush(ctx)?;
    flush(ctx, access, |ctx| vec![ctx.table])?;
    ctx.reply.ok()
}

pub(crate) fn flushall(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    check_flush(ctx)?;
    flush(ctx, access, |ctx| {
        let tables = databases::tables(ctx.shared);
        tables.iter().map(|table| table.id).collect()
    })?;
    ctx.reply.ok()
}

/// Empties `tables` at one instant. An EXEC with a FLUSH is exclusive in the store already.
fn flush(
    ctx: &mut Context<'_>,
    access: Access<'_, '_>,
    tables: fn(&Context<'_>) -> Vec<TableId>,
) -> Done {
    if let Some(member) = ctx.shared.membership() {
        let tables = tables(ctx);
        return flush_served(ctx, member, access, &tables);
    }
    let clear = |ctx: &Context<'_>, guard: &Guard<'_>| {
        for table in tables(ctx) {
            match guard.clear(table) {
                Ok(()) | Err(Error::NoSuchTable(_)) => {}
                Err(error) => return Err(Failure::from(error)),
            }
        }
        ctx.shared.tracking().all_changed(&ctx.shared.threads, None);
        Ok(())
    };
    match access {
        Access::Session(session) => {
            let mut guard = session.pin_exclusive();
            // SWAPDB may have run while the command waited for exclusive access (keys::K1).
            run::begin_again(ctx)?;
            let done = clear(ctx, &guard);
            let level = ctx.strictest(&tables(ctx));
            ctx.client.wait.settle(&mut guard, level);
            done?;
        }
        Access::Guarded(guard) => clear(ctx, guard)?,
        Access::NoStore => unreachable!("{} needs data", ctx.request.spec.name),
    }
    for table in tables(ctx) {
        ctx.thread.wake_table(ctx.shared, table); // readers of groups that are gone get an error
    }
    Ok(())
}

fn check_flush(ctx: &Context<'_>) -> Done {
    match ctx.request.args.get(1) {
        None => Ok(()),
        Some(how) if ctx.request.args.len() == 2 => {
            let known = how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async");
            if known { Ok(()) } else { Err(SYNTAX) }
        }
        Some(_) => Err(SYNTAX),
    }
}

pub(crate) fn swapdb(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    ctx.not_in_cluster("SWAPDB is")?;
    // As in Redis, both must be numbers before either is checked for being too large.
    let first = parse_index(ctx.arg(1), Failure::Text("ERR invalid first DB index"))?;
    let second = parse_index(ctx.arg(2), Failure::Text("ERR invalid second DB index"))?;
    let (first, second) = (in_range(first)?, in_range(second)?);
    if first == second {
        return ctx.reply.ok(); // nothing to exchange
    }
    match access {
        Access::Session(session) => {
            databases::own_table(ctx.shared, ctx.client)?;
            for db in [first, second] {
                table_for(ctx.shared, ctx.client, db)?;
            }
            let mut guard = session.pin_exclusive();
            run::begin_again(ctx)?;
            databases::exchange(ctx, &mut guard, first, second)?;
            let swapped = [first, second].map(|db| ctx.shared.commands.table(db));
            let level = ctx.strictest(&swapped.map(|table| table.unwrap_or(ctx.table)));
            ctx.client.wait.settle(&mut guard, level);
        }
        // EXEC is exclusive in the store.
        Access::Guarded(guard) => databases::exchange(ctx, guard, first, second)?,
        Access::NoStore => unreachable!("{} needs data", ctx.request.spec.name),
    }
    ctx.reply.ok()
}

const MOVED_MEANWHILE: &str = "TRYAGAIN tablets came to this server or left it meanwhile: their keys may not be deleted. Repeat the command on all servers";

/// FLUSHALL and FLUSHDB on a member. They do not happen at one instant: keys written meanwhile may
/// stay. But if the reply is OK, all keys are gone that were served here when the command began.
fn flush_served(
    ctx: &mut Context<'_>,
    member: &Membership,
    access: Access<'_, '_>,
    tables: &[TableId],
) -> Done {
    let Access::Session(session) = access else {
        return Err(Failure::Text(
            "ERR a member of a cluster deletes its part of a table step by step, and so not inside MULTI",
        ));
    };
    let now = Arc::clone(ctx.thread.view_to_tell(member));
    let begun = ctx.client.take_flushing();
    let goes_on = begun.is_some();
    let (start, at) = match begun {
        Some(begun) => (begun.start, Some((begun.table, begun.cursor))),
        None => (now, None),
    };
    let first = at.and_then(|(at, _)| tables.iter().position(|table| *table == at));
    let mut cursor = match first {
        Some(_) => at.map_or(0, |(_, cursor)| cursor),
        None => 0,
    };
    let mut steps = STEPS_PER_ROUND;
    for table in &tables[first.unwrap_or(0)..] {
        match flush_table(ctx, member, session, *table, cursor, &mut steps) {
            (Err(Failure::Engine(error)), _) if matches!(*error, Error::NoSuchTable(_)) => {}
            (Err(failure), at) => {
                // The flush continues from there only if it waits for flash.
                let table = *table;
                ctx.client.keep_flushing(failure.cold().map(|_| Flushing {
                    table,
                    cursor: at,
                    start,
                }));
                if at != cursor {
                    ctx.client.parking.comes_further();
                }
                return Err(failure);
            }
            (Ok(()), 0) => {}
            (Ok(()), cursor) => {
                let table = *table;
                ctx.client.keep_flushing(Some(Flushing {
                    table,
                    cursor,
                    start,
                }));
                return Err(YIELDS); // P3
            }
        }
        cursor = 0;
    }
    // A view changes before the tablet list that changes it counts as done: both are compared.
    let now = ctx.thread.view_to_tell(member);
    if now.tablets_version() != start.tablets_version() || !now.still_serves_all_of(&start) {
        return Err(Failure::Text(MOVED_MEANWHILE));
    }
    if goes_on {
        // No reply covers the deletions of earlier rounds yet.
        let level = ctx.strictest(tables);
        let log = ctx.shared.store().log();
        if let Some(appended) = log.map(|log| log.appended()) {
            ctx.client.wait.join(&appended, level);
        }
    }
    Ok(())
}

/// Continues at `cursor` for at most `steps`. Returns the result, and the position where the flush
/// stopped; 0 = finished.
fn flush_table(
    ctx: &mut Context<'_>,
    member: &Membership,
    session: &mut Session,
    table: TableId,
    mut cursor: u64,
    steps: &mut usize,
) -> (Done, u64) {
    let level = ctx.thread.level_of_table(ctx.shared, table);
    let in_parts = ctx.client.parking.take_in_parts();
    let mut keys: Vec<(KeyHash, Box<[u8]>)> = Vec::new();
    loop {
        let mut guard = session.pin();
        keys.clear();
        let shows = |object: Object<'_>| keys.push((guard.hash(object.key), object.key.into()));
        let step = guard
            .walk()
            .scan_as(table, cursor, FLUSH_STEP, in_parts, shows);
        let next = match cold::note_colds(ctx, &guard, in_parts, step) {
            Ok((next, _)) => next,
            Err(error) => return (Err(error.into()), cursor),
        };
        let done = keys.iter().try_for_each(|(hash, key)| {
            let key = Key {
                table,
                hash: *hash,
                bytes: key,
            };
            remove(ctx, member, &mut guard, key)
        });
        ctx.client.wait.settle(&mut guard, level);
        if let Err(error) = done {
            return (Err(error), cursor);
        }
        cursor = next;
        *steps = steps.saturating_sub(1);
        if cursor == 0 || *steps == 0 {
            return (Ok(()), cursor);
        }
    }
}

/// Removes a key if it is served here. Fails if it is not decided now whether it is.
fn remove(ctx: &mut Context<'_>, member: &Membership, guard: &mut Guard<'_>, key: Key<'_>) -> Done {
    loop {
        // It does not matter which other member has the key.
        match routing::one(ctx.thread.view(member, guard), key, false) {
            Err(NotServed::NotNow(UNSERVED)) => return Err(Failure::Text(MOVED_MEANWHILE)),
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
        match guard.remove(key.table, key.hash, key.bytes) {
            // The guard has left the store, and the view has changed or is about to.
            Err(Error::TryAgain) => guard.pin_mut().renew(),
            done => return Ok(done.map(|_| ())?),
        }
    }
}
