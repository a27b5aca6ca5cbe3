//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! EXEC resolves the queued requests again, finds all their keys (following `SELECT`), and locks
//! them together with the watched keys. If a request affects a whole table, EXEC enters the store
//! exclusively instead. Under the locks it compares the watched keys' stamps, then runs the queue
//! in one guard. No other client sees a part of it.
//!
//! In a cluster EXEC determines the owner of all keys under its guard, before it locks them
//! (routing::R1), independent of the checks when the requests were queued. The locks keep the
//! owner from changing.

use super::{acl, monitor, script_run};
use crate::audit::Outcome;
use crate::exec::request::KEYS_KEPT;
use crate::exec::request::audit;
use crate::exec::request::context::{Context, Done, Failure};
use crate::exec::request::databases;
use crate::exec::request::permit::{self, Permit, Refusal};
use crate::exec::request::room::Planner;
use crate::exec::request::routing::{self, RouteSearch};
use crate::exec::request::spec::{Access, Spec, flag};
use crate::exec::state::client::{Client, DROPPED, Db, Transaction, gate, shown};
use crate::exec::state::local::Local;
use crate::exec::state::watches::{WATCHED_BYTES_MAX, WATCHED_MAX, Watched, Watches};
use crate::shared::Shared;
use crate::shared::commands::global;
use duramen_base::ids::{Level, TabletsVersion};
use duramen_engine::{Draft, Error, Guard, KeyHash, Room, Session, TableId};
use duramen_node::View;
use duramen_wire::resp::Args;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn multi(ctx: &mut Context<'_>) -> Done {
    if ctx.client.in_multi() {
        return Err(Failure::Text("ERR MULTI calls can not be nested"));
    }
    ctx.client.gate |= gate::MULTI;
    ctx.client.transactions += 1;
    ctx.client.show(shown::MULTI, true);
    ctx.client.transaction = Some(Box::default());
    ctx.ok()
}

pub(crate) fn discard(ctx: &mut Context<'_>) -> Done {
    if !ctx.client.in_multi() {
        return Err(Failure::Text("ERR DISCARD without MULTI"));
    }
    ctx.client.end_transaction();
    ctx.client.discards += 1;
    ctx.ok()
}

pub(crate) fn watch(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    if ctx.client.in_multi() {
        return Err(Failure::Text("ERR WATCH inside MULTI is not allowed"));
    }
    let member = ctx.shared.membership();
    let view = member.map(|member| Arc::clone(ctx.local.view(member, guard)));
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        for (hash, key) in hashes.iter().zip(ctx.args.skip(1)) {
            let (db, table) = (ctx.client.db, ctx.table);
            if ctx.client.watched.has(table, key) {
                continue;
            }
            let watched = Watched {
                db,
                exchanges: exchanges(ctx.shared, db),
                stamp: guard.stamp(table, *hash, key)?,
                since: since(view.as_deref(), table, key, *hash),
            };
            if !ctx.client.watched.add(table, key, watched) {
                return Err(Failure::from(format!(
                    "ERR more than {WATCHED_MAX} watched keys, or more than {WATCHED_BYTES_MAX} bytes of them"
                )));
            }
        }
        Ok(())
    })?;
    ctx.ok()
}

pub(crate) fn unwatch(ctx: &mut Context<'_>) -> Done {
    ctx.client.watched = Watches::default();
    ctx.ok()
}

/// A queued request, ready to run.
struct Step<'a> {
    spec: &'static Spec,
    args: Args<'a>,
    /// Start of its hashes in the list of all; they end where the next step's start.
    hashes: usize,
    /// The table that is selected when it runs.
    table: TableId,
    /// The table that COPY or MOVE writes to, if it names one.
    target: Option<TableId>,
}

/// The commands of one EXEC that report the server's state, and those like them ([`time_for`]), may
/// take this much of the thread's time together. So one client does not keep its thread from the
/// others for long: each such command takes some 10 ms at most.
const REPORTS_IN_EXEC_MAX: Duration = Duration::from_millis(100);
/// The same for commands that empty databases: as long as the walks of one EXEC may take.
const FLUSHES_IN_EXEC_MAX: Duration = Duration::from_secs(1);

/// A script in EXEC has met keys that were not locked: nothing is done, and EXEC runs again with
/// these keys locked.
const AGAIN_TEXT: &str = "ERR the scripts of this transaction use other keys each time";
const AGAIN: Failure = Failure::Text(AGAIN_TEXT);

/// How often EXEC looks up its tables again. Repeating is in vain if the client's own table is
/// gone.
const PREPARE_ATTEMPTS_MAX: u32 = 8;

pub(crate) fn exec(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let done = run_queue(ctx, access);
    // Monitors see it behind the queued commands. It is shown again if its queue is still there.
    if ctx.shared.commands.gate() & global::MONITORED != 0 && !ctx.client.in_multi() {
        monitor::feed(ctx.shared, ctx.client, ctx.spec, &ctx.args);
    }
    done
}

fn run_queue(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let watched = std::mem::take(&mut ctx.client.watched);
    let Some(transaction) = ctx.client.end_transaction() else {
        ctx.client.watched = watched;
        return Err(Failure::Text("ERR EXEC without MULTI"));
    };
    if transaction.broken {
        return Err(Failure::Text(
            "EXECABORT Transaction discarded because of previous errors.",
        ));
    }
    let Access::Session(session) = access else {
        return Err(Failure::Text("ERR EXEC inside EXEC"));
    };
    ctx.local.scripts_took = Duration::ZERO;
    let mut attempts = 0;
    let done = loop {
        let needs = prepare(ctx.shared, ctx.client, &transaction)?;
        let done = run_pinned(ctx, session, &transaction, &watched, needs);
        ctx.local.exec_dbs = None;
        attempts += 1;
        // A table may be dropped between its preparation and the guard: then nothing was done.
        let is_dropped = matches!(&done, Err(Failure::Engine(error)) if matches!(**error, Error::NoSuchTable(_)));
        if !is_dropped || attempts == PREPARE_ATTEMPTS_MAX {
            break done;
        }
    };
    if let Err(failure) = &done
        && (failure.is_moving() || failure.cold().is_some())
    {
        // Nothing was done: EXEC is presented again, and continues from here.
        ctx.client.resume_transaction(transaction, watched);
    }
    done.map_err(|failure| match failure {
        Failure::Engine(error) if is_want_of_room(&error) => {
            let why = Failure::Engine(error).text();
            format!("EXECABORT Transaction discarded because of: {why}").into()
        }
        failure => failure,
    })
}

/// Whether nothing of the transaction was done because there is no room for all of it.
fn is_want_of_room(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory { .. } | Error::GroupTooLarge { .. } | Error::DiskFull | Error::Crowded
    )
}

fn run_pinned(
    ctx: &mut Context<'_>,
    session: &mut Session,
    transaction: &Transaction,
    watched: &Watches,
    needs: QueueNeeds,
) -> Done {
    let (mut more, mut attempts) = (Vec::new(), 0);
    while !needs.whole && attempts < PREPARE_ATTEMPTS_MAX {
        attempts += 1;
        let mut guard = session.pin();
        guard.rewrites(needs.little);
        match run(ctx, &mut guard, transaction, watched, (true, &mut more)) {
            Err(Failure::Text(text)) if text == AGAIN_TEXT => continue,
            // No memory to lock the keys: with exclusive access no locks are needed.
            Err(Failure::Engine(error))
                if needs.little && matches!(*error, Error::OutOfMemory { .. }) =>
            {
                break;
            }
            done => return done,
        }
    }
    let mut guard = session.pin_exclusive();
    guard.rewrites(needs.little);
    run(ctx, &mut guard, transaction, watched, (false, &mut more))
}

/// The access to the store that a queue needs.
#[derive(Clone, Copy)]
struct QueueNeeds {
    /// Exclusive access.
    whole: bool,
    /// No more memory than it gives back: it works when the store is full.
    little: bool,
}

/// The queued requests with their commands.
fn steps(transaction: &Transaction) -> impl Iterator<Item = (&'static Spec, Args<'_>)> {
    let specs = transaction.specs.iter().enumerate();
    specs.map(|(n, spec)| (*spec, transaction.queue.args(n, &[])))
}

/// Creates the tables that the queue will select, while no guard is held.
fn prepare(
    shared: &Shared,
    client: &mut Client,
    transaction: &Transaction,
) -> Result<QueueNeeds, Failure> {
    let mut needs = QueueNeeds {
        whole: false,
        little: true,
    };
    for (spec, args) in steps(transaction) {
        needs.whole |= spec.has(flag::WHOLE);
        needs.little &= !spec.has(flag::DENYOOM);
        if shared.membership().is_some() {
            continue; // the coordinator creates tables
        }
        if spec.name == "swapdb" {
            databases::own_table(shared, client)?;
        }
        for db in dbs_of(spec, &args) {
            databases::table_for(shared, client, db)?;
        }
    }
    Ok(needs)
}

/// The databases that a request names. The command itself reports invalid ones.
pub(crate) fn dbs_of(spec: &Spec, args: &Args<'_>) -> Vec<u8> {
    let arg = |n: usize| args.get(n).unwrap_or_default();
    let db = |text: &[u8]| databases::parse_db(text, Failure::Text("")).ok();
    match spec.name {
        "select" => db(arg(1)).into_iter().collect(),
        "move" => db(arg(2)).into_iter().collect(),
        "swapdb" => db(arg(1)).into_iter().chain(db(arg(2))).collect(),
        "copy" => (3..args.len())
            .filter(|n| arg(*n).eq_ignore_ascii_case(b"db"))
            .filter_map(|n| db(arg(n + 1)))
            .collect(),
        _ => Vec::new(),
    }
}

/// Locks (if `lock`), compares the watched keys, runs the queue.
fn run(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    transaction: &Transaction,
    watched: &Watches,
    (lock, more): (bool, &mut Vec<(TableId, KeyHash)>),
) -> Done {
    let mut locks = std::mem::take(&mut ctx.local.locks);
    locks.clear();
    locks.extend_from_slice(more);
    let mut hashes = Vec::new();
    // Under the guard: none of these tables is dropped before the guard ends.
    ctx.local.exec_dbs = Some(ctx.shared.commands.tables());
    ctx.table = table_of(ctx.client, ctx.local);
    let member = ctx.shared.membership();
    let view = member.map(|member| Arc::clone(ctx.local.view(member, guard)));
    let mut search = view.as_deref().map(RouteSearch::new);
    let steps = plan(
        ctx,
        guard,
        transaction,
        &mut hashes,
        &mut locks,
        search.as_mut(),
    );
    search.map_or(Ok(()), RouteSearch::outcome)?;
    if lock {
        // A watched key of a dropped table has changed; there is nothing to lock.
        let store = ctx.shared.store();
        let alive = watched.iter().filter(|(table, ..)| store.has_table(*table));
        locks.extend(alive.map(|(table, key, _)| (table, guard.hash(key))));
        locks.sort_unstable();
        locks.dedup();
    }
    let mut before = Level::Memory;
    let mut undeclared = Vec::new();
    let mut attempt = |ctx: &mut Context<'_>, guard: &mut Guard<'_>, room: &mut Room| {
        warm(ctx, guard, &steps, &hashes, watched)?;
        if changed(ctx.shared, guard, view.as_deref(), watched)? {
            ctx.reply().null_array();
            return Ok(());
        }
        if is_drafted(&steps) {
            let held = lock.then_some(&locks[..]);
            undeclared = run_drafted(ctx, guard, (&steps, &hashes), held, room)?;
            return Ok(());
        }
        // From here on nothing fails for lack of room: all of it is done.
        *room = room_of(guard, &steps);
        guard.set_aside(*room)?;
        if steps.iter().any(|step| step.spec.name == "config|set") {
            before = levels(ctx, &[], &steps); // it may lower the level of what was written
        }
        run_steps(ctx, guard, &steps, &hashes, !lock);
        Ok(())
    };
    let mut done = if lock && !locks.is_empty() {
        ctx.locked_for_room(guard, &locks, attempt)
    } else {
        attempt(ctx, guard, &mut Room::default())
    };
    if !undeclared.is_empty() {
        done = Err(AGAIN);
        more.append(&mut undeclared);
    }
    let level = levels(ctx, &locks, &steps).max(before);
    ctx.client.settle(guard, level);
    locks.clear();
    locks.shrink_to(KEYS_KEPT);
    ctx.local.locks = locks;
    done
}

/// The level of the whole transaction: the strictest of the levels of its tables and of those that
/// its commands requested.
fn levels(ctx: &mut Context<'_>, locks: &[(TableId, KeyHash)], steps: &[Step<'_>]) -> Level {
    let asked = ctx.client.asked_level.take().unwrap_or(Level::Memory);
    let mut level = asked.max(ctx.level());
    let mut last = ctx.table;
    let of_steps = steps
        .iter()
        .flat_map(|step| [Some(step.table), step.target]);
    let of_locks = locks.iter().map(|(table, _)| *table);
    for table in of_steps.flatten().chain(of_locks) {
        if table != last {
            last = table;
            level = level.max(ctx.local.level_of_table(ctx.shared, last));
        }
    }
    // Commands on several databases.
    if steps
        .iter()
        .any(|step| matches!(step.spec.name, "flushall" | "swapdb"))
    {
        let tables: Vec<TableId> = databases::tables(ctx.shared).iter().map(|t| t.id).collect();
        level = level.max(ctx.strictest(&tables));
    }
    level
}

/// Hashes the keys of all requests, in the tables in which they will be looked up; in a cluster,
/// determines their owners.
fn plan<'t>(
    ctx: &Context<'_>,
    guard: &Guard<'_>,
    transaction: &'t Transaction,
    hashes: &mut Vec<KeyHash>,
    locks: &mut Vec<(TableId, KeyHash)>,
    mut search: Option<&mut RouteSearch<'_>>,
) -> Vec<Step<'t>> {
    let mut table = ctx.table;
    let mut number = match ctx.client.db {
        Db::Number(db) => Some(db),
        Db::Table(_) => None,
    };
    // SWAPDB exchanges them for the steps after it.
    let mut dbs = ctx.local.exec_dbs.unwrap_or_default();
    let mut planned = Vec::with_capacity(transaction.queue.len());
    for (spec, args) in steps(transaction) {
        let named = dbs_of(spec, &args);
        let other = named.last().and_then(|db| dbs[usize::from(*db)]);
        planned.push(Step {
            spec,
            args,
            hashes: hashes.len(),
            table,
            target: other,
        });
        for position in spec.key_positions(&args) {
            let key = args.get(position).unwrap_or_default();
            let hash = guard.hash(key);
            guard.prefetch_bucket(table, hash);
            if let Some(search) = &mut search {
                search.key(routing::table_of(spec, table, ctx.shared), key, hash);
            }
            hashes.push(hash);
            if !spec.has(flag::PUBSUB) {
                locks.push((table, hash));
            }
        }
        match (spec.name, other) {
            ("select", Some(selected)) => {
                table = selected;
                number = named.last().copied();
            }
            ("swapdb", _) => {
                if let [first, second] = named[..] {
                    dbs.swap(first.into(), second.into());
                }
                if let Some(db) = number {
                    table = dbs[usize::from(db)].unwrap_or(DROPPED);
                }
            }
            // The copy gets another key, or goes to another table.
            ("copy", Some(target)) => {
                locks.push((target, guard.hash(args.get(2).unwrap_or_default())));
            }
            ("move", Some(target)) => {
                locks.push((target, guard.hash(args.get(1).unwrap_or_default())));
            }
            _ => {}
        }
    }
    planned
}

/// Whether the steps change a draft first: the writes of a script are not known before it has run.
fn is_drafted(steps: &[Step<'_>]) -> bool {
    let mut scripts = steps.iter().filter(|step| step.spec.has(flag::SCRIPTING));
    scripts.any(|step| step.spec.has_keys())
}

/// Runs the steps on a draft, and applies it. `held`: the keys that are locked; `None`: no locks
/// are needed. Returns keys that scripts have met and that are not locked: then nothing was done.
fn run_drafted(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    (steps, hashes): (&[Step<'_>], &[KeyHash]),
    held: Option<&[(TableId, KeyHash)]>,
    room: &mut Room,
) -> Result<Vec<(TableId, KeyHash)>, Failure> {
    let is_whole = |step: &Step<'_>| step.spec.has(flag::WHOLE) && step.spec.has(flag::WRITE);
    if steps.iter().any(is_whole) {
        return Err(Failure::Text(
            "EXECABORT Transaction discarded because of: a script and a command that changes a whole database",
        ));
    }
    let (start, effects) = (ctx.out.len(), ctx.client.effects.len());
    let undo = |ctx: &mut Context<'_>| {
        ctx.out.truncate(start);
        ctx.client.effects.truncate(effects);
    };
    guard.begin_draft(Box::new(Draft::new(script_run::memory(ctx))));
    run_steps(ctx, guard, steps, hashes, false);
    let Some(draft) = guard.end_draft() else {
        return Ok(Vec::new());
    };
    if let Some(abandoned) = ctx.local.abandoned.take() {
        undo(ctx);
        return Err(script_run::failure_of(abandoned));
    }
    if let Some(held) = held {
        let mut undeclared = draft.keys();
        undeclared.retain(|key| held.binary_search(key).is_err());
        if !undeclared.is_empty() {
            undo(ctx);
            return Ok(undeclared);
        }
    }
    *room = draft.room();
    let ready = guard.still_holds(&draft).and_then(|holds| match holds {
        true => guard.set_aside(*room),
        false => Err(Error::TryAgain),
    });
    if let Err(error) = ready {
        undo(ctx);
        return Err(error.into());
    }
    guard.apply(&draft);
    if guard.has_replaced() {
        ctx.notify_replaced(guard.take_replaced(), effects);
    }
    Ok(Vec::new())
}

/// Maximum room for the writes of the transaction.
fn room_of(guard: &Guard<'_>, steps: &[Step<'_>]) -> Room {
    let mut planner = Planner::new(guard);
    for step in steps {
        planner.add(step.spec, &step.args, step.table, step.target);
    }
    planner.room
}

/// cold::C1: no command of the transaction runs before all entries that it needs are in memory.
fn warm(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    steps: &[Step<'_>],
    hashes: &[KeyHash],
    watched: &Watches,
) -> Done {
    if !ctx.local.has_tier() {
        return Ok(());
    }
    let with_keys = steps.iter().filter(|step| !step.spec.has(flag::PUBSUB));
    let declared = with_keys.flat_map(|step| {
        let positions = step.spec.key_positions(&step.args);
        let own = hashes.get(step.hashes..).unwrap_or_default();
        let arg = |at: usize| step.args.get(at).unwrap_or_default();
        positions
            .zip(own)
            .map(move |(at, hash)| (step.table, *hash, arg(at)))
    });
    let targets = steps.iter().filter_map(|step| {
        let at = match step.spec.name {
            "copy" => 2,
            "move" => 1,
            _ => return None,
        };
        let key = step.args.get(at).unwrap_or_default();
        Some((step.target.unwrap_or(step.table), guard.hash(key), key))
    });
    let watched = watched
        .iter()
        .map(|(table, key, _)| (table, guard.hash(key), key));
    ctx.warm(guard, declared.chain(targets).chain(watched))
}

/// The version since which this member serves a key; None: it does not, or it is in no cluster.
fn since(view: Option<&View>, table: TableId, key: &[u8], hash: KeyHash) -> Option<TabletsVersion> {
    view?.serves_since(table, hash.route(key))
}

/// Whether a watched key changed since it was watched. A key that another member served meanwhile
/// may have changed.
fn changed(
    shared: &Shared,
    guard: &Guard<'_>,
    view: Option<&View>,
    watched: &Watches,
) -> Result<bool, Error> {
    for (table, key, one) in watched.iter() {
        if let Db::Number(db) = one.db
            && (shared.commands.table(db) != Some(table)
                || exchanges(shared, one.db) != one.exchanges)
        {
            // SWAPDB put another table there.
            return Ok(true);
        }
        let hash = guard.hash(key);
        if since(view, table, key, hash) != one.since {
            return Ok(true);
        }
        match guard.stamp(table, hash, key) {
            Ok(stamp) if one.stamp.still_holds(&stamp) => {}
            Ok(_) | Err(Error::NoSuchTable(_)) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn exchanges(shared: &Shared, db: Db) -> u64 {
    match db {
        Db::Number(db) => shared.commands.exchanges(db),
        Db::Table(_) => 0,
    }
}

/// The table behind a database while this EXEC runs.
fn in_exec(local: &Local, db: u8) -> Option<TableId> {
    *local.exec_dbs.as_ref()?.get(usize::from(db))?
}

/// As [`Client::table`], while this EXEC runs.
fn table_of(client: &Client, local: &Local) -> TableId {
    match client.db {
        Db::Number(db) => in_exec(local, db).unwrap_or(DROPPED),
        Db::Table(table) => table,
    }
}

/// Whether a command has no effect but its reply.
fn only_answers(spec: &Spec) -> bool {
    spec.has(flag::READONLY) || reports(spec)
}

/// Whether a command reports the state of the server and has no other effect.
fn reports(spec: &Spec) -> bool {
    let (name, subcommand) = spec.name.split_once('|').unwrap_or((spec.name, ""));
    match name {
        "info" | "command" | "cluster" => true,
        "client" => matches!(subcommand, "list" | "info"),
        "slowlog" => subcommand == "get",
        "latency" => matches!(
            subcommand,
            "histogram" | "history" | "latest" | "doctor" | "graph"
        ),
        "memory" => matches!(subcommand, "stats" | "doctor" | "malloc-stats"),
        "config" => subcommand == "get",
        "duramen.table" => subcommand == "list",
        _ => false,
    }
}

/// `Some`: the command has no keys, may take milliseconds, and is no walk over a table. It may
/// begin if such commands of this EXEC have taken less than this.
fn time_for(spec: &Spec) -> Option<Duration> {
    match spec.name {
        "flushall" | "flushdb" => Some(FLUSHES_IN_EXEC_MAX),
        "client|kill" | "config|resetstat" => Some(REPORTS_IN_EXEC_MAX),
        _ => reports(spec).then_some(REPORTS_IN_EXEC_MAX),
    }
}

/// The time that this thread has used its core: it does not grow while the thread waits for one.
fn used_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Checks a queued request again: a step before it, or another client, may have changed the rights
/// of its user. `None`: it is refused, and answered.
fn permit_of(ctx: &mut Context<'_>, step: &Step<'_>, table: TableId) -> Option<Permit> {
    ctx.client.renew(ctx.shared);
    let refusal = match Permit::check(step.spec, &step.args, ctx.client, table, ctx.shared) {
        Ok(permit) => return Some(permit),
        Err(refusal) => refusal,
    };
    let text = match refusal {
        Refusal::LogIn => permit::NO_AUTH.to_owned(),
        Refusal::Denied(denied) => {
            acl::note_denied(
                ctx.shared, ctx.client, step.spec, &step.args, denied, "multi",
            );
            audit::record(
                ctx.shared,
                ctx.client,
                step.spec,
                &step.args,
                Outcome::Denied,
            );
            permit::late_denial_text(denied)
        }
    };
    ctx.local.note_error(ctx.shared, &text);
    let command = ctx.local.command(ctx.shared, step.spec.number);
    command.rejected.add(1);
    ctx.reply().error(text);
    None
}

/// Shows a step to monitors and to the audit log.
fn show(ctx: &Context<'_>, step: &Step<'_>) {
    if step.spec.is_audited(ctx.local.audited) {
        let (shared, client) = (ctx.shared, &*ctx.client);
        audit::record(shared, client, step.spec, &step.args, Outcome::Allowed);
    }
    if ctx.shared.commands.gate() & global::MONITORED != 0 {
        monitor::feed(ctx.shared, ctx.client, step.spec, &step.args);
    }
}

/// `alone`: no other session is in the store, and no keys are locked.
fn run_steps(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    steps: &[Step<'_>],
    hashes: &[KeyHash],
    alone: bool,
) {
    let start = ctx.out.len();
    ctx.reply().array(steps.len());
    ctx.local.in_exec = true;
    ctx.local.walked = 0;
    let mut taken = Duration::ZERO;
    let begun = ctx.local.meter.begin_inner();
    for (n, step) in steps.iter().enumerate() {
        let end = steps.get(n + 1).map_or(hashes.len(), |next| next.hashes);
        if ctx.local.abandoned.is_some() {
            break; // nothing of it will be done
        }
        if ctx.local.room.exceeded && only_answers(step.spec) {
            continue; // no client will see its reply
        }
        if alone {
            ctx.local.exec_dbs = Some(ctx.shared.commands.tables()); // SWAPDB may have run before
        }
        let table = table_of(ctx.client, ctx.local);
        let Some(permit) = permit_of(ctx, step, table) else {
            continue;
        };
        show(ctx, step);
        let mut inner = Context {
            args: step.args,
            permit,
            spec: step.spec,
            client: &mut *ctx.client,
            out: &mut *ctx.out,
            shared: ctx.shared,
            local: &mut *ctx.local,
            table,
            locked: true,
        };
        let hashes = &hashes[step.hashes..end];
        match time_for(step.spec) {
            Some(most) if taken > most => inner.reply().error(
                "ERR commands that empty databases or report on the server take too long in one transaction",
            ),
            Some(_) => {
                let since = used_time();
                inner.run(Access::Guarded(&mut *guard), hashes);
                taken += used_time().saturating_sub(since);
            }
            None => inner.run(Access::Guarded(&mut *guard), hashes),
        }
        if ctx.local.room.is_exceeded_by(ctx.out) {
            // The rest runs only for its effect (`Context::overflowed`).
            ctx.out.truncate(start);
        }
    }
    ctx.local.in_exec = false;
    ctx.local.meter.end_inner(ctx.spec.number, begun);
    // Every step counted itself; the group counts EXEC itself.
    ctx.local
        .counters(ctx.shared)
        .commands
        .add(steps.len() as u64);
    debug_assert!(steps.iter().all(|step| !step.spec.is_refused()));
}
