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

use super::{acl, monitor, script_run, sort};
use crate::audit::Outcome;
use crate::exec::request::KEYS_KEPT;
use crate::exec::request::audit;
use crate::exec::request::context::{Context, Done, Failure};
use crate::exec::request::databases;
use crate::exec::request::permit::Permit;
use crate::exec::request::room::Planner;
use crate::exec::request::routing::{self, RouteSearch};
use crate::exec::request::spec::{Access, Spec, flag};
use crate::exec::state::client::{Client, DROPPED, Db, gate, shown};
use crate::exec::state::local::Local;
use crate::exec::state::transaction::{Step, Transaction};
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
    ctx.client.transaction = Some(ctx.local.spare.begin());
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

/// A key to lock: its table, and its hash.
type KeyPlace = (TableId, KeyHash);

/// The queued requests, ready to run.
#[derive(Clone, Copy)]
struct Queue<'t> {
    transaction: &'t Transaction,
    steps: &'t [Step],
    /// Of the keys of all steps, in order.
    hashes: &'t [KeyHash],
}

impl<'t> Queue<'t> {
    /// The arguments of step `n`.
    #[inline]
    fn args(self, n: usize) -> Args<'t> {
        self.transaction.queue.args(n, &[])
    }

    /// The steps with their arguments.
    fn iter(self) -> impl Iterator<Item = (&'t Step, Args<'t>)> {
        let steps = self.steps.iter().enumerate();
        steps.map(move |(n, step)| (step, self.args(n)))
    }

    /// The hashes of the keys of step `n`.
    fn hashes_of(self, n: usize) -> &'t [KeyHash] {
        let start = self.steps.get(n).map_or(0, |step| step.hashes);
        let next = self.steps.get(n + 1);
        let end = next.map_or(self.hashes.len(), |next| next.hashes);
        self.hashes.get(start..end).unwrap_or_default()
    }
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
    } else {
        ctx.local.spare.end(transaction);
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
fn requests(transaction: &Transaction) -> impl Iterator<Item = (&'static Spec, Args<'_>)> {
    let specs = transaction.specs.iter().enumerate();
    specs.map(|(n, spec)| (*spec, transaction.queue.args(n, &[])))
}

/// Creates the tables that the queue will select, while no guard is held.
fn prepare(
    shared: &Shared,
    client: &mut Client,
    transaction: &Transaction,
) -> Result<QueueNeeds, Failure> {
    let sorts = |(spec, args): (&Spec, Args<'_>)| sort::reads_more_keys(spec, &args);
    let reads_more = transaction.has(flag::SCRIPTING) || requests(transaction).any(sorts);
    let needs = QueueNeeds {
        // Reading a key that is not locked, with others locked, may wait for a step that waits for
        // these (transaction::T1).
        whole: transaction.has(flag::WHOLE) || reads_more,
        little: !transaction.has(flag::DENYOOM),
    };
    // In a cluster the coordinator creates tables.
    if !transaction.names_dbs || shared.membership().is_some() {
        return Ok(needs);
    }
    for (spec, args) in requests(transaction) {
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
    (lock, more): (bool, &mut Vec<KeyPlace>),
) -> Done {
    // Under the guard: none of these tables is dropped before the guard ends.
    ctx.local.exec_dbs = Some(ctx.shared.commands.tables());
    ctx.table = table_of(ctx.client, ctx.local);
    let member = ctx.shared.membership();
    let view = member.map(|member| Arc::clone(ctx.local.view(member, guard)));
    let mut search = view.as_deref().map(RouteSearch::new);
    let mut steps = ctx.local.spare.take_steps();
    let mut locks = std::mem::take(&mut ctx.local.locks);
    let own;
    let hashes = match transaction.hashes() {
        Some(hashes) => hashes,
        None => {
            own = hash_all(guard, transaction);
            &own
        }
    };
    locks.clear();
    locks.extend_from_slice(more);
    let tables = (&mut steps, &mut locks);
    plan(ctx, guard, (transaction, hashes), tables, search.as_mut());
    let queue = Queue {
        transaction,
        steps: &steps,
        hashes,
    };
    let routed = search.map_or(Ok(()), RouteSearch::outcome);
    let done = routed.map_err(Failure::from).and_then(|()| {
        if lock {
            // A watched key of a dropped table has changed; there is nothing to lock.
            let store = ctx.shared.store();
            let alive = watched.iter().filter(|(table, ..)| store.has_table(*table));
            locks.extend(alive.map(|(table, key, _)| (table, guard.hash(key))));
            locks.sort_unstable();
            locks.dedup();
        }
        let held = lock.then_some(&locks[..]);
        run_locked(ctx, guard, queue, (watched, view.as_deref()), (held, more))
    });
    locks.clear();
    locks.shrink_to(KEYS_KEPT);
    ctx.local.locks = locks;
    ctx.local.spare.keep_steps(steps);
    done
}

/// `held`: the keys to lock; `None`: no locks are needed. Adds keys that scripts have met beside
/// them to `more`.
fn run_locked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    (watched, view): (&Watches, Option<&View>),
    (held, more): (Option<&[KeyPlace]>, &mut Vec<KeyPlace>),
) -> Done {
    let mut before = Level::Memory;
    let mut undeclared = Vec::new();
    let mut attempt = |ctx: &mut Context<'_>, guard: &mut Guard<'_>, room: &mut Room| {
        warm(ctx, guard, queue, watched)?;
        if changed(ctx.shared, guard, view, watched)? {
            ctx.reply().null_array();
            return Ok(());
        }
        if is_drafted(queue) {
            undeclared = run_drafted(ctx, guard, queue, held, room)?;
            return Ok(());
        }
        // From here on nothing fails for lack of room: all of it is done.
        *room = room_of(ctx, guard, queue);
        guard.set_aside(*room)?;
        if sets_config(queue) {
            before = levels(ctx, &[], queue); // it may lower the level of what was written
        }
        run_steps(ctx, guard, queue, held.is_none());
        Ok(())
    };
    let mut done = match held {
        Some(held) if !held.is_empty() => ctx.locked_for_room(guard, held, attempt),
        _ => attempt(ctx, guard, &mut Room::default()),
    };
    if !undeclared.is_empty() {
        done = Err(AGAIN);
        more.append(&mut undeclared);
    }
    let level = levels(ctx, held.unwrap_or_default(), queue).max(before);
    ctx.client.settle(guard, level);
    done
}

/// Whether `CONFIG SET` is among the commands.
fn sets_config(queue: Queue<'_>) -> bool {
    let mut steps = queue.steps.iter();
    queue.transaction.has(flag::ADMIN) && steps.any(|step| step.spec.name == "config|set")
}

/// The level of the whole transaction: the strictest of the levels of its tables and of those that
/// its commands requested.
fn levels(ctx: &mut Context<'_>, locks: &[KeyPlace], queue: Queue<'_>) -> Level {
    let asked = ctx.client.asked_level.take().unwrap_or(Level::Memory);
    let mut level = asked.max(ctx.level());
    let mut last = ctx.table;
    let of_steps = queue
        .steps
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
    let mut steps = queue.steps.iter();
    let may_reach_all = queue.transaction.has(flag::WHOLE) || queue.transaction.names_dbs;
    if may_reach_all && steps.any(|step| matches!(step.spec.name, "flushall" | "swapdb")) {
        let tables: Vec<TableId> = databases::tables(ctx.shared).iter().map(|t| t.id).collect();
        level = level.max(ctx.strictest(&tables));
    }
    level
}

/// Hashes the keys of all requests.
#[cold]
fn hash_all(guard: &Guard<'_>, transaction: &Transaction) -> Vec<KeyHash> {
    let mut hashes = Vec::new();
    for (spec, args) in requests(transaction) {
        let keys = spec.key_positions(&args);
        hashes.extend(keys.map(|at| guard.hash(args.get(at).unwrap_or_default())));
    }
    hashes
}

/// Finds the table in which each request will run, and the keys to lock; in a cluster, determines
/// the owners of these keys.
fn plan(
    ctx: &Context<'_>,
    guard: &Guard<'_>,
    (transaction, hashes): (&Transaction, &[KeyHash]),
    (planned, locks): (&mut Vec<Step>, &mut Vec<KeyPlace>),
    mut search: Option<&mut RouteSearch<'_>>,
) {
    let mut table = ctx.table;
    let mut number = match ctx.client.db {
        Db::Number(db) => Some(db),
        Db::Table(_) => None,
    };
    // SWAPDB exchanges them for the steps after it. A member of a cluster has one.
    let selects = transaction.names_dbs && ctx.shared.membership().is_none();
    let mut dbs = ctx.local.exec_dbs.filter(|_| selects);
    let mut first = 0;
    for (spec, args) in requests(transaction) {
        let named = match dbs {
            Some(_) => dbs_of(spec, &args),
            None => Vec::new(),
        };
        let behind = |db: &u8| dbs?[usize::from(*db)];
        let other = named.last().and_then(behind);
        planned.push(Step {
            spec,
            hashes: first,
            table,
            target: other,
        });
        let keys = hashes.get(first..first + spec.key_count(&args));
        let keys = keys.unwrap_or_default();
        first += keys.len();
        for hash in keys {
            guard.prefetch_bucket(table, *hash);
        }
        if !spec.has(flag::PUBSUB) {
            locks.extend(keys.iter().map(|hash| (table, *hash)));
        }
        if let Some(search) = &mut search {
            let routed = routing::table_of(spec, table, ctx.shared);
            for (position, hash) in spec.key_positions(&args).zip(keys) {
                search.key(routed, args.get(position).unwrap_or_default(), *hash);
            }
        }
        let Some(dbs) = &mut dbs else {
            continue;
        };
        if Permit::check(spec, &args, ctx.client, table, ctx.shared).is_err() {
            continue; // it will be refused
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
}

/// Whether the steps change a draft first: the writes of a script are not known before it has run.
fn is_drafted(queue: Queue<'_>) -> bool {
    let is_script = |step: &Step| step.spec.has(flag::SCRIPTING) && step.spec.has_keys();
    queue.transaction.has(flag::SCRIPTING) && queue.steps.iter().any(is_script)
}

/// Runs the steps on a draft, and applies it. `held`: the keys that are locked; `None`: no locks
/// are needed. Returns keys that scripts have met and that are not locked: then nothing was done.
fn run_drafted(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    held: Option<&[KeyPlace]>,
    room: &mut Room,
) -> Result<Vec<KeyPlace>, Failure> {
    let is_whole = |step: &Step| step.spec.has(flag::WHOLE) && step.spec.has(flag::WRITE);
    if queue.steps.iter().any(is_whole) {
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
    run_steps(ctx, guard, queue, false);
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
fn room_of(ctx: &Context<'_>, guard: &Guard<'_>, queue: Queue<'_>) -> Room {
    let mut planner = Planner::new(guard);
    let keeps_rights = !changes_rights(queue);
    for (n, (step, args)) in queue.iter().enumerate() {
        if step.spec.has(flag::WRITE) {
            let may = || Permit::check(step.spec, &args, ctx.client, step.table, ctx.shared);
            planner.is_certain = keeps_rights && may().is_ok();
            let hashes = queue.hashes_of(n);
            planner.add(step.spec, (&args, hashes), step.table, step.target);
        }
    }
    planner.room
}

/// cold::C1: no command of the transaction runs before all entries that it needs are in memory.
fn warm(ctx: &mut Context<'_>, guard: &Guard<'_>, queue: Queue<'_>, watched: &Watches) -> Done {
    if !ctx.local.has_tier() {
        return Ok(());
    }
    let with_keys = queue
        .iter()
        .filter(|(step, _)| !step.spec.has(flag::PUBSUB));
    let declared = with_keys.flat_map(|(step, args)| {
        let positions = step.spec.key_positions(&args);
        let own = queue.hashes.get(step.hashes..).unwrap_or_default();
        positions
            .zip(own)
            .map(move |(at, hash)| (step.table, *hash, args.get(at).unwrap_or_default()))
    });
    let targets = queue.iter().filter_map(|(step, args)| {
        let at = match step.spec.name {
            "copy" => 2,
            "move" => 1,
            _ => return None,
        };
        let key = args.get(at).unwrap_or_default();
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
    if spec.has_keys() {
        return None;
    }
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

/// Commands that may change the rights of the client.
const CHANGES_RIGHTS: &[&str] = &["acl|setuser", "acl|deluser", "auth", "hello"];

/// Whether a step may change the rights of the client: those of the steps behind it are not known.
fn changes_rights(queue: Queue<'_>) -> bool {
    let mut steps = queue.steps.iter();
    queue.transaction.has(flag::ADMIN | flag::CONNECTION)
        && steps.any(|step| CHANGES_RIGHTS.contains(&step.spec.name))
}

/// Shows a step to monitors and to the audit log.
fn show(ctx: &Context<'_>, spec: &'static Spec, args: &Args<'_>) {
    if spec.is_audited(ctx.local.audited) {
        let (shared, client) = (ctx.shared, &*ctx.client);
        audit::record(shared, client, spec, args, Outcome::Allowed);
    }
    if ctx.shared.commands.gate() & global::MONITORED != 0 {
        monitor::feed(ctx.shared, ctx.client, spec, args);
    }
}

/// `alone`: no other session is in the store, and no keys are locked.
fn run_steps(ctx: &mut Context<'_>, guard: &mut Guard<'_>, queue: Queue<'_>, alone: bool) {
    let start = ctx.out.len();
    ctx.reply().array(queue.steps.len());
    ctx.local.in_exec = true;
    ctx.local.walked = 0;
    let mut taken = Duration::ZERO;
    let begun = ctx.local.meter.begin_inner();
    for (n, step) in queue.steps.iter().enumerate() {
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
        let args = queue.args(n);
        let Some(permit) = acl::permit_queued(ctx, (step.spec, &args), table) else {
            continue;
        };
        if table != step.table && step.spec.name != "select" {
            // Another table's keys are locked, and room was set aside for another one's values.
            ctx.reply()
                .error("ERR an earlier SELECT or SWAPDB of this transaction has failed");
            continue;
        }
        show(ctx, step.spec, &args);
        let mut inner = Context {
            args,
            permit,
            spec: step.spec,
            client: &mut *ctx.client,
            out: &mut *ctx.out,
            shared: ctx.shared,
            local: &mut *ctx.local,
            table,
            locked: true,
        };
        let hashes = queue.hashes_of(n);
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
        .add(queue.steps.len() as u64);
    debug_assert!(queue.steps.iter().all(|step| !step.spec.is_refused()));
}
