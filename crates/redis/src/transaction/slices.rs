//! EXEC in slices. A transaction whose commands take long runs on a draft (`drafted`), and lets
//! others run between two of its commands.
//!
//! **Invariants**
//! - S1: a queue that changes data alone, and whose keys would otherwise be locked, runs in slices
//!   in two cases: it is planned to take long by what it will read and write, or it takes long
//!   before its first write. A queue of short commands is planned and run without slices. A queue
//!   whose keys are not known before it has run, and that changes data alone, runs in slices from
//!   the start, if there is memory for what is suspended (interpreters::S4). If it also reads a
//!   whole database, it runs on a draft in one go: it is alone in the store, and sees one moment.
//! - S2: all slices of a run see the same tables behind the databases, and have the same rights:
//!   after SWAPDB or ACL SETUSER the queue runs again from its first command (as script::run::L4).

use super::slice::{SLICE, SLICE_MIN, Slice, Stops};
use super::steps::run_steps;
use super::{Queue, changes_database, hash_all};
use crate::command::context::{Context, Failure};
use crate::command::drafted;
use crate::command::flag;
use crate::command::outcome::Abandoned;
use crate::reply::effects::Effects;
use crate::script::run as script_run;
use crate::state::transaction::queue::Transaction;
use crate::state::transaction::run::ExecRun;
use crate::tracking::commands as tracking;
use duramen_base::ids::TabletsVersion;
use duramen_engine::{Draft, Error, Guard, Session};
use std::time::Duration;

/// A transaction is long if it will write so many bytes, and many more than it was given: each of
/// its commands writes a whole collection.
const WRITTEN_BYTES_MAX: usize = 2 << 20;
const WRITTEN_PARTS_MAX: usize = 4;
/// A transaction of more commands than this is long if the values that it will read are so long.
const FEW_STEPS: usize = 16;
pub(super) const READ_BYTES_MAX: usize = 1 << 20;

/// Whether a queue may run on a draft instead of under locks (S1). `alone`: it locks nothing,
/// because it is alone in the store or has no keys.
pub(super) fn may_be_drafted(queue: Queue<'_>, alone: bool) -> bool {
    let transaction = queue.transaction;
    let is_normal = match transaction.has(flag::WHOLE) {
        true => !changes_database(queue),
        false => !alone,
    };
    is_normal && !transaction.acts && !transaction.sliced
}

/// Whether the reads of a queue are to be planned too.
pub(super) fn plans_reads(queue: Queue<'_>) -> bool {
    queue.transaction.writes && queue.steps.len() > FEW_STEPS
}

/// Whether a queue is planned to take long (S1).
pub(super) fn is_long(queue: Queue<'_>, written_bytes: usize, read_bytes: usize) -> bool {
    let given = queue.transaction.queued_bytes;
    let most = WRITTEN_BYTES_MAX.max(WRITTEN_PARTS_MAX * given);
    read_bytes > READ_BYTES_MAX || written_bytes > most && queue.steps.len() > 1
}

/// Whether a queue that runs on a draft must not run now: because it stands in line for keys, or
/// for want of memory (interpreters::S4).
pub(super) fn waits(
    ctx: &mut Context<'_>,
    session: &mut Session,
    transaction: &mut Transaction,
) -> Result<bool, Failure> {
    if !transaction.sliced && !transaction.is_drafted() {
        return Ok(false);
    }
    let (client, bytes_max) = (ctx.client.id(), script_run::memory(ctx));
    if stands_in_line(ctx, session, transaction) {
        if transaction.run.take().is_some() {
            // The suspended run is dropped, as that of a script is (drafted).
            ctx.thread.scripts.keep_nothing(client);
            transaction
                .conflicts
                .lose(std::mem::take(&mut transaction.ran));
            drafted::check_time(ctx, &transaction.conflicts)?;
        }
        return Ok(true);
    }
    let is_reserving = ctx.shared.commands.is_reserving(client);
    let may_go_on = is_reserving || ctx.thread.scripts.may_go_on(client, bytes_max);
    let acts = transaction.acts || transaction.has(flag::WHOLE);
    if transaction.is_drafted() && !acts && transaction.run.is_none() {
        // Without memory to be suspended it runs in one go (S1): so no short queue waits.
        transaction.sliced = may_go_on;
        return Ok(false);
    }
    Ok(transaction.sliced && !may_go_on)
}

fn stands_in_line(ctx: &mut Context<'_>, session: &mut Session, transaction: &Transaction) -> bool {
    if !drafted::may_stand_in_line(ctx, transaction.writes) {
        return false;
    }
    if let Some(stands) = drafted::still_stands_in_line(ctx) {
        return stands;
    }
    let own;
    let keys = match transaction.hashes() {
        Some(keys) => keys,
        None => {
            own = hash_all(ctx.commands, &session.pin(), transaction);
            &own
        }
    };
    drafted::stands_in_line(ctx, keys.iter().copied())
}

/// The suspended run of this EXEC, unless it must begin again (S2); else a new one.
fn run_of(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Box<ExecRun> {
    let tables = ctx.thread.exec.dbs().copied().unwrap_or_default();
    if let Some(run) = ctx.thread.exec.take_suspended() {
        let is_same_user = match (&run.user, ctx.client.login().user()) {
            (Some(before), Some(now)) => before.print() == now.print(),
            (before, now) => before.is_some() == now.is_some(),
        };
        if run.tables == tables && is_same_user {
            return run;
        }
    }
    Box::new(ExecRun {
        draft: Box::new(Draft::new(script_run::memory(ctx))),
        list: drafted::list_at_start(ctx, guard),
        step: 0,
        reply: Vec::new(),
        effects: Effects::default(),
        db: ctx.client.db(),
        tables,
        user: ctx.client.login().user().cloned(),
        scripts_took: Duration::ZERO,
    })
}

/// How a run of steps on a draft ended.
pub(super) enum Drafted {
    /// All steps have run. The draft comes with the tablet list of its start.
    All(Box<Draft>, Option<TabletsVersion>),
    /// Some steps are left, and the run is suspended.
    Part,
    /// Nothing of the EXEC is to be done.
    Abandoned(Abandoned),
}

/// Runs steps on a draft: all that are left, or those of one slice. A slice takes at least as long
/// as the plan of the steps, which each slice needs again.
pub(super) fn run(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    queue: Queue<'_>,
    planning: Duration,
) -> Result<Drafted, Failure> {
    let mut run = run_of(ctx, guard);
    let (from, db) = (run.step, ctx.client.db());
    let effects = ctx.client.effects.len();
    ctx.client.effects.append(std::mem::take(&mut run.effects));
    ctx.client.select(run.db);
    // The replies are kept apart, so that they are not moved in each slice.
    let before = ctx.reply.replace(std::mem::take(&mut run.reply));
    let stops = match queue.transaction.sliced && !queue.transaction.has(flag::WHOLE) {
        true => Stops::Anywhere,
        false => Stops::Never,
    };
    let time = ctx.thread.scripts.share(SLICE, SLICE_MIN);
    let slice = Slice::new(from, stops, time.max(planning), ctx, guard);
    guard.begin_draft(std::mem::replace(&mut run.draft, Box::new(Draft::new(0))));
    ctx.thread.exec.set_scripts_took(run.scripts_took);
    let ended = run_steps(ctx, guard, queue, false, slice);
    run.scripts_took = ctx.thread.exec.scripts_took();
    let draft = guard.end_draft();
    let start = before.len();
    let reply = ctx.reply.replace(before);
    run.draft = draft.ok_or(Error::TryAgain)?;
    if let Ok(next) = ended
        && next < queue.steps.len()
    {
        run.step = next;
        run.reply = reply;
        run.effects = ctx.client.effects.split_off(effects);
        run.db = ctx.client.select(db);
        let bytes = run.draft.bytes() + run.reply.capacity() + run.effects.bytes();
        ctx.thread.scripts.keep(ctx.client.id(), bytes);
        ctx.thread.exec.suspend(Some(run));
        return Ok(Drafted::Part);
    }
    if ctx.thread.scripts.keeps(ctx.client.id()) {
        ctx.thread.scripts.keep(ctx.client.id(), 0);
    }
    match start {
        0 => drop(ctx.reply.replace(reply)),
        _ => ctx.reply.append(&reply),
    }
    ctx.client.effects.move_replies(effects, start);
    if from > 0 {
        tracking::note_reads_again(ctx, &mut run.draft);
    }
    Ok(match ended {
        Ok(_) => Drafted::All(run.draft, run.list),
        Err(abandoned) => Drafted::Abandoned(abandoned),
    })
}
