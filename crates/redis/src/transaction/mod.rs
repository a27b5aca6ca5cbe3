//! The run of EXEC.
//!
//! EXEC resolves the queued requests again, finds all their keys (following `SELECT`), and locks
//! them together with the watched keys. If a request affects a whole table, EXEC enters the store
//! exclusively instead. Under the locks it compares the watched keys' stamps, then runs the queue
//! in one guard. No other client sees a part of it. Three kinds of queues run on a draft instead
//! (`drafted`): a queue whose keys are not known before it has run (scripts, SORT by patterns)
//! locks nothing; a queue that takes long runs in slices (`slices`); a queue may make a value
//! longer than it may be, and if it does, nothing of it is done.
//!
//! In a cluster EXEC determines the owner of all keys under its guard, before it locks them
//! (routing::R1), independent of the checks when the requests were queued. The locks keep the
//! owner from changing.

pub(crate) mod commands;
mod queue;
mod slice;
mod slices;
mod sound;
mod steps;

use crate::command::context::{Context, Done, Failure, YIELDS};
use crate::command::drafted::{self, KeyPlace};
use crate::command::flag;
use crate::command::growth::Planned;
use crate::command::key::Key;
use crate::command::outcome::{Abandoned, aborted};
use crate::command::permit::Permit;
use crate::command::room::Planner;
use crate::command::routing::{self, RouteSearch};
use crate::command::row::*;
use crate::command::spec::{Commands, Request, Spec};
use crate::command::store_access::Access;
use crate::command::turn::Ending;
use crate::command::{KEYS_KEPT, cold, databases, pause};
use crate::monitor;
use crate::pubsub::commands as pubsub;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::db::{DROPPED, Db};
use crate::state::interpreters::RESERVED_ROUND;
use crate::state::shared::commands::global;
use crate::state::transaction::queue::{Step, Transaction};
use crate::state::transaction::watches::Watches;
use duramen_base::ids::{Level, TabletsVersion};
use duramen_engine::{Draft, Error, Guard, KeyHash, Room, Session, TableId};
use duramen_node::View;
use duramen_wire::resp::Args;
use slice::{SLICE, Slice, Stops};
use slices::Drafted;
use sound::{check_written, targets, warm_alone};
use std::time::{Duration, Instant};
use steps::{run_steps, table_of};

/// The queued requests, ready to run.
#[derive(Clone, Copy)]
struct Queue<'t> {
    commands: &'static Commands,
    transaction: &'t Transaction,
    steps: &'t [Step],
    /// The hashes of the keys of all steps, in order.
    hashes: &'t [KeyHash],
}

impl<'t> Queue<'t> {
    /// The command of a step.
    #[inline]
    fn spec(self, step: &Step) -> &'static Spec {
        self.commands.row(step.command)
    }

    /// The commands of all steps.
    fn specs(self) -> impl Iterator<Item = &'static Spec> {
        self.steps.iter().map(move |step| self.spec(step))
    }

    /// The arguments of step `n`.
    #[inline]
    fn args(self, n: usize) -> Args<'t> {
        self.transaction.queue.args(n, &[])
    }

    /// The request of step `n`.
    #[inline]
    fn request(self, n: usize, step: &Step) -> Request<'t> {
        Request {
            spec: self.spec(step),
            args: self.args(n),
            hashes: self.hashes_of(n),
        }
    }

    /// The steps with their arguments.
    fn iter(self) -> impl Iterator<Item = (&'t Step, Args<'t>)> {
        let steps = self.steps.iter().enumerate();
        steps.map(move |(n, step)| (step, self.args(n)))
    }

    /// The keys whose data step `n` uses: no others are locked, or may be read under the locks
    /// (transaction::T8).
    fn data_of(self, n: usize) -> impl Iterator<Item = Key<'t>> {
        let (step, args) = (self.steps.get(n), self.args(n));
        let keys = step.map(|step| self.spec(step).data_positions(&args).zip(self.hashes_of(n)));
        let table = step.map_or(DROPPED, |step| step.table);
        let keys = keys.into_iter().flatten();
        keys.map(move |(at, hash)| Key {
            table,
            hash: *hash,
            bytes: args.get(at).unwrap_or_default(),
        })
    }

    /// The hashes of the keys of step `n`.
    fn hashes_of(self, n: usize) -> &'t [KeyHash] {
        let start = self.steps.get(n).map_or(0, |step| step.hashes);
        let next = self.steps.get(n + 1);
        let end = next.map_or(self.hashes.len(), |next| next.hashes);
        self.hashes.get(start..end).unwrap_or_default()
    }
}

/// The error of a script in EXEC that needs a table: the steps before it cannot be taken back, to
/// run again when the table exists.
const NO_TABLE: Failure = Failure::Text(
    "ERR a script in a transaction selects a database that has no table yet, behind commands that change more than data",
);

/// The error of a script in EXEC with a change of a whole database: a draft has no form for that.
const WITH_SCRIPT: Failure = Failure::Text(
    "EXECABORT Transaction discarded because of: a script and a command that changes a whole database",
);

/// How a run of the queue ended.
enum Ran {
    Done,
    /// Nothing was done: the run on a draft met these keys, and some of them changed meanwhile.
    Again(Vec<KeyPlace>),
    /// Nothing was done: a script uses this database, which has no table yet.
    NeedsTable(u8),
    /// Nothing was done: the queue takes long, and is to run in slices.
    Long,
    /// A slice is over, and the queue goes on later.
    Later,
}

/// How often EXEC looks up its tables again. Repeating is in vain if the client's own table is
/// gone.
const PREPARE_ATTEMPTS_MAX: u32 = 8;

pub(crate) fn exec(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let done = run_queue(ctx, access);
    // Monitors see EXEC behind the queued commands. It is shown again as long as its queue is
    // there.
    if ctx.shared.commands.gate() & global::MONITORED != 0 && !ctx.client.in_multi() {
        monitor::feed(ctx.shared, ctx.client, ctx.request.spec, &ctx.request.args);
    }
    done
}

fn run_queue(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    let queued = ctx.client.transaction.open();
    if queued.is_some_and(|queued| queued.has(flag::SUBSCRIBED)) {
        pubsub::effects_first(ctx)?;
    }
    let watched = ctx.client.transaction.take_watched();
    let Some(mut transaction) = ctx.client.end_transaction() else {
        ctx.client.transaction.watch(watched);
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
    let shown = Instant::now();
    let mut attempts = 0;
    let done = loop {
        if slices::waits(ctx, session, &mut transaction)? {
            break Err(YIELDS);
        }
        let began = Instant::now();
        let needs = prepare(ctx.commands, ctx.shared, ctx.client, &transaction)?;
        ctx.thread.exec.suspend(transaction.run.take());
        let ran = run_pinned(ctx, session, &transaction, &watched, needs);
        ctx.thread.exec.set_dbs(None);
        transaction.run = ctx.thread.exec.take_suspended();
        transaction.ran += began.elapsed();
        attempts += 1;
        let done = match ran {
            Ok(Ran::Long) => {
                transaction.sliced = true;
                continue;
            }
            Ok(Ran::Later) => Err(YIELDS),
            Ok(Ran::NeedsTable(_)) if transaction.acts => Err(NO_TABLE),
            Ok(Ran::NeedsTable(db)) => {
                databases::table_for(ctx.shared, ctx.client, db)?;
                continue;
            }
            Ok(Ran::Again(keys)) => {
                let ran = std::mem::take(&mut transaction.ran);
                let keys = keys.iter().map(|(_, hash)| *hash);
                match drafted::runs_at_once(ctx, &mut transaction.conflicts, ran, keys) {
                    Ok(true) if shown.elapsed() < RESERVED_ROUND => continue,
                    Ok(_) => Err(YIELDS),
                    Err(failure) => Err(failure),
                }
            }
            ran => ran.map(|_| ()),
        };
        // A table may be dropped between its preparation and the guard: then nothing was done.
        let is_dropped = matches!(&done, Err(Failure::Engine(error)) if matches!(**error, Error::NoSuchTable(_)));
        if !is_dropped || attempts >= PREPARE_ATTEMPTS_MAX {
            break done;
        }
    };
    if done
        .as_ref()
        .is_err_and(|failure| is_shown_again(ctx, failure))
    {
        // Nothing was done: EXEC is presented again, and continues from here.
        ctx.client.resume_transaction(transaction, watched);
    } else {
        ctx.thread.spare().end(transaction);
    }
    done.map_err(discarded)
}

/// Whether EXEC is presented again after this failure.
fn is_shown_again(ctx: &Context<'_>, failure: &Failure) -> bool {
    failure.is_moving()
        || ctx.shared.membership().is_some() && failure.is_disk_failed()
        || failure.cold().is_some()
        || failure.yields()
}

/// The reply to EXEC if it has failed.
fn discarded(failure: Failure) -> Failure {
    match failure {
        Failure::Engine(error) if is_want_of_room(&error) || matches!(*error, Error::Damaged) => {
            let why = Failure::Engine(error).text();
            aborted(&why).into()
        }
        failure => failure,
    }
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
) -> Result<Ran, Failure> {
    let mut alone = needs.whole;
    loop {
        let mut guard = match alone {
            true => session.pin_exclusive(),
            false => session.pin(),
        };
        if pause::has_begun_for_queue(ctx.commands, transaction, ctx.shared) {
            return Err(YIELDS); // pause::P1
        }
        guard.rewrites(needs.little);
        match run(ctx, &mut guard, transaction, watched, alone) {
            // There is no memory to lock the keys. Alone in the store the queue needs no locks.
            Err(Failure::Engine(error))
                if needs.little && !alone && matches!(*error, Error::OutOfMemory { .. }) =>
            {
                alone = true;
            }
            ran => return ran,
        }
    }
}

/// The access to the store that a queue needs.
#[derive(Clone, Copy)]
struct QueueNeeds {
    /// It needs exclusive access.
    whole: bool,
    /// It needs no more memory than it gives back: it works when the store is full.
    little: bool,
}

/// Creates the tables that the queue will select, while no guard is held.
fn prepare(
    commands: &Commands,
    shared: &Shared,
    client: &mut Client,
    transaction: &Transaction,
) -> Result<QueueNeeds, Failure> {
    let needs = QueueNeeds {
        // A run that is in vain could not be taken back.
        whole: transaction.has(flag::WHOLE) || transaction.is_drafted() && transaction.acts,
        little: !transaction.has(flag::DENYOOM) && !transaction.runs_scripts,
    };
    // In a cluster the coordinator creates tables.
    if !transaction.names_dbs || shared.membership().is_some() {
        return Ok(needs);
    }
    for request in transaction.requests(commands) {
        let names = request.spec.names;
        if matches!(names, Names::Exchanged) {
            databases::own_table(shared, client)?;
        }
        for db in databases::named(names, &request.args) {
            databases::table_for(shared, client, db)?;
        }
    }
    Ok(needs)
}

/// Locks the keys, compares the watched ones, runs the queue. `alone`: no other session is in the
/// store, and nothing needs to be locked.
fn run(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    transaction: &Transaction,
    watched: &Watches,
    alone: bool,
) -> Result<Ran, Failure> {
    let began = Instant::now();
    // The tables are noted under the guard: none of them is dropped before the guard ends.
    ctx.thread.exec.set_dbs(Some(ctx.shared.commands.tables()));
    ctx.table = table_of(ctx.client, ctx.thread);
    let view = ctx.view(guard);
    let has_tls = ctx.client.has_tls();
    let mut search = view.as_deref().map(|view| RouteSearch::new(view, has_tls));
    let mut steps = ctx.thread.spare().take_steps();
    let mut locks = std::mem::take(&mut ctx.thread.buffers.locks);
    let own;
    let hashes = match transaction.hashes() {
        Some(hashes) => hashes,
        None => {
            own = hash_all(ctx.commands, guard, transaction);
            &own
        }
    };
    locks.clear();
    let search_keys = search.as_mut();
    plan(
        ctx,
        guard,
        transaction,
        hashes,
        &mut steps,
        &mut locks,
        search_keys,
    );
    let queue = Queue {
        commands: ctx.commands,
        transaction,
        steps: &steps,
        hashes,
    };
    let routed = search.map_or(Ok(()), RouteSearch::outcome);
    let done = routed.map_err(Failure::from).and_then(|()| {
        // A watched key whose table was dropped has changed, and cannot be locked.
        let store = ctx.shared.store();
        let alive = watched
            .iter()
            .filter(|(table, ..)| store.tables().has(*table));
        let watched_keys = alive.map(|(table, key, _)| (table, guard.hash(key)));
        let view = view.as_deref();
        if is_drafted(queue) {
            let watched_keys: Vec<KeyPlace> = watched_keys.collect();
            let planning = began.elapsed();
            return run_drafted(ctx, guard, queue, planning, watched, view, &watched_keys);
        }
        if alone {
            locks.clear();
        } else {
            locks.extend(watched_keys);
            locks.sort_unstable();
            locks.dedup();
        }
        run_locked(ctx, guard, queue, watched, view, &locks)
    });
    locks.clear();
    locks.shrink_to(KEYS_KEPT);
    ctx.thread.buffers.locks = locks;
    ctx.thread.spare().keep_steps(steps);
    done
}

/// Runs the queue under the locks. `keys` are the keys to lock; it is empty if there are none, or
/// if the queue is alone in the store.
fn run_locked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    watched: &Watches,
    view: Option<&View>,
    keys: &[KeyPlace],
) -> Result<Ran, Failure> {
    let mut before = Level::Memory;
    let mut is_long = false;
    let may_stop = slices::may_be_drafted(queue, keys.is_empty());
    let mut attempt = |ctx: &mut Context<'_>, guard: &mut Guard<'_>, room: &mut Room| {
        warm(ctx, guard, queue, watched)?;
        if changed(ctx.shared, guard, view, watched)? {
            ctx.reply.encoder().null_array();
            return Ok(());
        }
        (*room, is_long) = room_of(ctx, guard, queue, may_stop);
        if is_long && may_stop {
            *room = Room::default();
            return Ok(());
        }
        check_written(guard, queue)?;
        // After these two calls nothing fails for lack of room or because of flash: the whole queue
        // is done.
        guard.set_aside(*room)?;
        warm_alone(guard, queue)?;
        if sets_config(queue) {
            before = levels(ctx, &[], queue); // the queue may lower the level
        }
        is_long = !run_in_one_go(ctx, guard, queue, keys.is_empty(), may_stop);
        Ok(())
    };
    let done = match keys {
        [] => attempt(ctx, guard, &mut Room::default()),
        keys => ctx.locked_for_room(guard, keys, attempt),
    };
    let level = levels(ctx, keys, queue).max(before);
    ctx.client.wait.settle(guard, level);
    done.map(|()| match is_long && may_stop {
        true => Ran::Long,
        false => Ran::Done,
    })
}

/// Runs all steps. Returns false if that takes long, and the run has stopped before the first
/// write: nothing was done. `alone`: no keys are locked.
fn run_in_one_go(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    alone: bool,
    may_stop: bool,
) -> bool {
    let (start, effects, db) = (ctx.reply.len(), ctx.client.effects.len(), ctx.client.db());
    let stops = match may_stop && !queue.transaction.has(flag::WHOLE) {
        true => Stops::BeforeWrites,
        false => Stops::Never,
    };
    let slice = Slice::new(0, stops, SLICE, ctx, guard);
    match run_steps(ctx, guard, queue, alone, slice) {
        Ok(next) if next >= queue.steps.len() => return true,
        Ok(_) => {}
        Err(_) => unreachable!("only a run on a draft is abandoned"),
    }
    ctx.reply.take_back(start);
    ctx.client.effects.truncate(effects);
    ctx.client.select(db);
    false
}

/// Whether `CONFIG SET` is among the commands.
fn sets_config(queue: Queue<'_>) -> bool {
    queue.transaction.has(flag::CHANGES_SETTINGS)
}

/// The level of the whole transaction: the strictest of the levels of its tables and of those that
/// its commands requested.
fn levels(ctx: &mut Context<'_>, locks: &[KeyPlace], queue: Queue<'_>) -> Level {
    let asked = ctx.client.transaction.asked_level();
    ctx.client.transaction.set_asked_level(None);
    let mut level = asked.unwrap_or(Level::Memory).max(ctx.level());
    let mut last = ctx.table;
    let of_steps = queue
        .steps
        .iter()
        .flat_map(|step| [Some(step.table), step.target]);
    let of_locks = locks.iter().map(|(table, _)| *table);
    for table in of_steps.flatten().chain(of_locks) {
        if table != last {
            last = table;
            level = level.max(ctx.thread.level_of_table(ctx.shared, last));
        }
    }
    if queue.transaction.has(flag::SEVERAL_TABLES) {
        let tables: Vec<TableId> = databases::tables(ctx.shared).iter().map(|t| t.id).collect();
        level = level.max(ctx.strictest(&tables));
    }
    level
}

/// Hashes the keys of all requests.
#[cold]
fn hash_all(commands: &Commands, guard: &Guard<'_>, transaction: &Transaction) -> Vec<KeyHash> {
    let mut hashes = Vec::new();
    for request in transaction.requests(commands) {
        let keys = request.key_positions();
        hashes.extend(keys.map(|at| guard.hash(request.arg(at))));
    }
    hashes
}

/// Finds the table in which each request will run, and the keys to lock; in a cluster, determines
/// the owners of these keys.
fn plan(
    ctx: &Context<'_>,
    guard: &Guard<'_>,
    transaction: &Transaction,
    hashes: &[KeyHash],
    planned: &mut Vec<Step>,
    locks: &mut Vec<KeyPlace>,
    mut search: Option<&mut RouteSearch<'_>>,
) {
    let mut table = ctx.table;
    let mut number = match ctx.client.db() {
        Db::Number(db) => Some(db),
        Db::Table(_) => None,
    };
    // SWAPDB exchanges databases for the steps after it. A member of a cluster has one database.
    let selects = transaction.names_dbs && ctx.shared.membership().is_none();
    let mut dbs = ctx.thread.exec.dbs().copied().filter(|_| selects);
    let mut first = 0;
    for Request { spec, args, .. } in transaction.requests(ctx.commands) {
        let named = dbs.map_or_else(Vec::new, |_| databases::named(spec.names, &args));
        let behind = |db: &u8| dbs?[usize::from(*db)];
        let other = named.last().and_then(behind);
        planned.push(Step {
            command: spec.number as u16,
            hashes: first,
            table,
            target: other,
        });
        let keys = hashes.get(first..first + spec.key_count(&args));
        let keys = keys.unwrap_or_default();
        first += keys.len();
        for hash in keys {
            guard.pin().prefetch_bucket(table, *hash);
        }
        if spec.uses_data() {
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
        let may = || Permit::check(spec, &args, ctx.client, table, ctx.shared);
        if !ctx.client.is_unrestricted() && may().is_err() {
            continue; // the step will be refused
        }
        match (spec.names, other) {
            (Names::Selected, Some(selected)) => {
                table = selected;
                number = named.last().copied();
            }
            (Names::Exchanged, _) => {
                if let [first, second] = named[..] {
                    dbs.swap(first.into(), second.into());
                }
                if let Some(db) = number {
                    table = dbs[usize::from(db)].unwrap_or(DROPPED);
                }
            }
            // The copy gets another key, or goes to another table.
            (Names::Target { key, .. }, Some(target)) => {
                let key = args.get(key.into()).unwrap_or_default();
                locks.push((target, guard.hash(key)));
            }
            _ => {}
        }
    }
}

/// Whether the keys of the steps are not known before they have run.
fn is_drafted(queue: Queue<'_>) -> bool {
    let transaction = queue.transaction;
    transaction.sliced
        || transaction.runs_scripts
        || transaction.sorts_by_keys && !changes_database(queue)
}

/// Whether a step changes a whole database: a draft has no form for that.
fn changes_database(queue: Queue<'_>) -> bool {
    let mut specs = queue.specs();
    specs.any(|spec| spec.has(flag::WHOLE) && spec.has(flag::WRITE))
}

/// Runs the steps on a draft, and commits it. `planning`: the time that their plan has taken.
/// `watched_keys`: all keys of `watched` whose tables exist.
fn run_drafted(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    planning: Duration,
    watched: &Watches,
    view: Option<&View>,
    watched_keys: &[KeyPlace],
) -> Result<Ran, Failure> {
    if changes_database(queue) {
        return Err(WITH_SCRIPT);
    }
    warm(ctx, guard, queue, watched)?;
    let (start, effects) = (ctx.reply.len(), ctx.client.effects.len());
    let (db, protocol, mode) = (ctx.client.db(), ctx.client.protocol(), ctx.client.mode());
    let mut before = Level::Memory;
    let mut is_watched_changed = changed(ctx.shared, guard, view, watched)?;
    let mut draft = Box::new(Draft::new(0));
    let mut ran = Ok(Ran::Again(Vec::new()));
    if !is_watched_changed {
        if sets_config(queue) {
            before = levels(ctx, &[], queue); // the queue may lower the level of what is written
        }
        match slices::run(ctx, guard, queue, planning)? {
            Drafted::Part => {
                let asked = ctx.client.transaction.asked_level();
                let level = levels(ctx, &[], queue);
                ctx.client.transaction.set_asked_level(asked); // for the last slice
                ctx.client.wait.settle(guard, level);
                return Ok(Ran::Later);
            }
            Drafted::Abandoned(abandoned) => ran = in_vain(abandoned),
            Drafted::All(ended, list) => {
                draft = ended;
                let check = |ctx: &mut Context<'_>, guard: &Guard<'_>, view: Option<&View>| {
                    is_watched_changed = changed(ctx.shared, guard, view, watched)?;
                    Ok(!is_watched_changed)
                };
                let committed = drafted::commit(ctx, guard, &draft, list, watched_keys, check);
                ran = committed.map(|committed| match committed {
                    true => Ran::Done,
                    false => Ran::Again(draft.keys()),
                });
            }
        }
    }
    if let Ok(Ran::Done) = ran {
        if guard.notes().has_replaced() {
            ctx.notify_replaced(guard.notes().take_replaced(), effects);
        }
    } else {
        ctx.reply.take_back(start);
        ctx.client.effects.truncate(effects);
        ctx.client.select(db);
        ctx.client.set_protocol(protocol);
        let is_over = ran.as_ref().is_err_and(|why| Abandoned::of(why).is_none());
        if is_over && ctx.client.mode().misleads(mode) {
            ctx.turn.ending = Ending::CloseAfterReply; // as hold::I4
        }
    }
    if is_watched_changed {
        ctx.reply.encoder().null_array();
        ran = Ok(Ran::Done);
    }
    if let Ok(Ran::Done) = ran {
        let level = levels(ctx, &draft.keys(), queue).max(before);
        ctx.client.wait.settle(guard, level);
    }
    ran
}

/// The result of a run on a draft that is not committed.
fn in_vain(abandoned: Abandoned) -> Result<Ran, Failure> {
    match abandoned {
        Abandoned::Cold(cold) => Err(Error::Cold(cold).into()),
        Abandoned::Moving => Err(Error::TryAgain.into()),
        Abandoned::NeedsTable(db) => Ok(Ran::NeedsTable(db)),
        Abandoned::Failed(text) => Err(Failure::Owned(text)),
    }
}

/// Maximum room for the writes of the transaction, and whether it has to run on a draft, because it
/// is planned to take long, or because a value may become too long. With `may_stop` the plan ends
/// as soon as it is known that the transaction has to.
fn room_of(ctx: &Context<'_>, guard: &Guard<'_>, queue: Queue<'_>, may_stop: bool) -> (Room, bool) {
    let mut planner = Planner::new(guard);
    // After a step that changes rights, the rights of the further steps are not known.
    let keeps_rights = !queue.transaction.has(flag::CHANGES_RIGHTS);
    let plans_reads = slices::plans_reads(queue);
    let mut read_bytes = 0;
    for (n, (step, args)) in queue.iter().enumerate() {
        let spec = queue.spec(step);
        if let Effect::Writes(growth) = &spec.effect
            && spec.writes(&args)
        {
            let may = || Permit::check(spec, &args, ctx.client, step.table, ctx.shared);
            planner.is_certain = keeps_rights && (ctx.client.is_unrestricted() || may().is_ok());
            let planned = Planned {
                args: &args,
                keys: &spec.keys,
                hashes: queue.hashes_of(n),
                table: step.table,
                target: step.target.unwrap_or(step.table),
            };
            growth.plan(&mut planner, &planned);
        } else if plans_reads && read_bytes <= slices::READ_BYTES_MAX {
            for key in queue.data_of(n) {
                let found = guard.read(key.table, key.hash, key.bytes).ok().flatten();
                read_bytes += found.map_or(0, |object| object.value.len());
            }
        }
        let is_long = slices::is_long(queue, planner.written_bytes, read_bytes);
        if may_stop && (is_long || planner.may_exceed) {
            return (planner.room, true);
        }
    }
    let is_long = slices::is_long(queue, planner.written_bytes, read_bytes);
    (planner.room, is_long || planner.may_exceed)
}

/// Checks that all entries that the transaction needs are in memory: no command runs before
/// (cold::C1). Entries that leave memory later, while room is sought, are read again
/// (engine::room::R5).
fn warm(ctx: &mut Context<'_>, guard: &Guard<'_>, queue: Queue<'_>, watched: &Watches) -> Done {
    if !ctx.thread.has_tier() {
        return Ok(());
    }
    let declared = (0..queue.steps.len()).flat_map(|n| queue.data_of(n));
    let targets = targets(guard, queue);
    let watched = watched
        .iter()
        .map(|(table, key, _)| Key::of(guard, table, key));
    cold::warm(ctx, guard, declared.chain(targets).chain(watched))
}

/// The version of the tablet list since which this member serves a key; `None` if it does not serve
/// the key, or if the server is in no cluster.
fn since(view: Option<&View>, key: Key<'_>) -> Option<TabletsVersion> {
    view?.serves_since(key.table, key.hash.route(key.bytes))
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
            // SWAPDB has put another table behind the database.
            return Ok(true);
        }
        let key = Key::of(guard, table, key);
        if since(view, key) != one.since {
            return Ok(true);
        }
        match guard.stamp(table, key.hash, key.bytes) {
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
