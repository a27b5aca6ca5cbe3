//! The queued requests of EXEC, one after the other: rights, reply, limits of time and output.

use super::Queue;
use super::slice::Slice;
use crate::access::{commands as acl, record as audit};
use crate::command::context::Context;
use crate::command::kinds::{may_take_long, only_answers};
use crate::command::outcome::Abandoned;
use crate::command::permit::Permit;
use crate::command::run;
use crate::command::spec::Request;
use crate::monitor;
use crate::state::access::audit::Outcome;
use crate::state::client::Client;
use crate::state::db::{DROPPED, Db};
use crate::state::shared::commands::global;
use crate::state::thread::Thread;
use duramen_config::clock;
use duramen_engine::{Guard, TableId};
use std::time::Duration;

/// Maximum time on the thread of the commands of one EXEC that report the server's state or empty
/// databases, and of those like them ([`may_take_long`]), together. So one client does not keep its
/// thread from the others for long: only the last such command may take longer.
const REPORTS_IN_EXEC_MAX: Duration = Duration::from_millis(10);

/// The table behind a database while this EXEC runs.
fn in_exec(thread: &Thread, db: u8) -> Option<TableId> {
    *thread.exec.dbs()?.get(usize::from(db))?
}

/// As [`Client::table`], while this EXEC runs.
pub(super) fn table_of(client: &Client, thread: &Thread) -> TableId {
    match client.db() {
        Db::Number(db) => in_exec(thread, db).unwrap_or(DROPPED),
        Db::Table(table) => table,
    }
}

/// Shows a step to monitors and to the audit log.
fn show(ctx: &Context<'_>, request: &Request<'_>) {
    let (spec, args) = (request.spec, &request.args);
    if spec.is_audited(ctx.thread.audited()) {
        let (shared, client) = (ctx.shared, &*ctx.client);
        audit::record(shared, client, spec, args, Outcome::Allowed);
    }
    if ctx.shared.commands.gate() & global::MONITORED != 0 {
        monitor::feed(ctx.shared, ctx.client, spec, args);
    }
}

/// Runs a step. `taken`: the time of the earlier steps that may take long.
///
/// # Errors
/// Nothing of the EXEC is to be done.
fn run_step(
    step: &mut Context<'_>,
    permit: Permit,
    guard: &mut Guard<'_>,
    taken: &mut Duration,
) -> Result<(), Abandoned> {
    if !may_take_long(step.request.spec) {
        return run::run_queued(step, permit, guard);
    }
    if *taken > REPORTS_IN_EXEC_MAX {
        step.reply.encoder().error(
            "ERR commands that empty databases or report on the server take too long in one transaction",
        );
        return Ok(());
    }
    let since = clock::thread_time();
    let ended = run::run_queued(step, permit, guard);
    *taken += clock::thread_time().saturating_sub(since);
    ended
}

/// Runs steps from `slice.from` on; returns the number of the first one that has not run. `alone`:
/// no keys are locked.
///
/// # Errors
/// Nothing of the EXEC is to be done. Only a run on a draft ends so.
pub(super) fn run_steps(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    alone: bool,
    mut slice: Slice,
) -> Result<usize, Abandoned> {
    let start = ctx.reply.len();
    if slice.from == 0 {
        ctx.reply.encoder().array(queue.steps.len());
    }
    ctx.thread.exec.set_runs(true);
    ctx.thread.exec.begin_walks();
    let mut taken = Duration::ZERO;
    let begun = ctx.thread.timing.meter().begin_inner();
    let mut next = queue.steps.len();
    let mut ended = Ok(());
    for (n, step) in queue.steps.iter().enumerate().skip(slice.from) {
        let request = queue.request(n, step);
        let spec = request.spec;
        if slice.is_over(n, &request, ctx, guard) {
            next = n;
            break;
        }
        if ctx.reply.is_exceeded() && only_answers(spec) {
            continue; // no client will see its reply
        }
        if alone {
            ctx.thread.exec.set_dbs(Some(ctx.shared.commands.tables())); // SWAPDB may have run before
        }
        let table = table_of(ctx.client, ctx.thread);
        let Some(permit) = acl::permit_queued(ctx, &request, table) else {
            continue;
        };
        if table != step.table && !spec.names.select() {
            // Another table's keys are locked, and room was set aside for values of another table.
            ctx.reply
                .encoder()
                .error("ERR an earlier SELECT or SWAPDB of this transaction has failed");
            continue;
        }
        show(ctx, &request);
        let mut inner = Context {
            request,
            commands: ctx.commands,
            reply: ctx.reply.part(ctx.client.protocol()),
            client: &mut *ctx.client,
            turn: &mut *ctx.turn,
            shared: ctx.shared,
            thread: &mut *ctx.thread,
            table,
            locked: true,
        };
        ended = run_step(&mut inner, permit, guard, &mut taken);
        if ended.is_err() {
            break;
        }
        // The remaining steps run only for their effects (`run::overflowed`).
        ctx.reply.end_if_exceeded(start);
    }
    ctx.thread.exec.set_runs(false);
    ctx.thread
        .timing
        .meter()
        .end_inner(ctx.request.spec.number, begun);
    // Every step counted itself; the group counts EXEC itself.
    ctx.thread
        .counters(ctx.shared)
        .commands
        .add((next - slice.from) as u64);
    debug_assert!(queue.specs().all(|spec| !spec.is_refused()));
    ended.map(|()| next)
}
