//! The run of one command: it is counted, and its failure becomes its reply.

use super::context::{Context, Done, Failure, YIELDS};
use super::flag;
use super::outcome::{Abandoned, Outcome, Unfinished};
use super::permit::Permit;
use super::routing::NO_DATABASE;
use super::spec::{Kind, Run};
use super::store_access::Access;
use super::turn::Ending;
use super::{cold, pause, slow_timer};
use crate::state::client::gate;
use crate::state::db::DROPPED;
use duramen_base::planted::{Bug, has_bug};
use duramen_config::seldom;
use duramen_engine::{Error, Guard};
use std::time::Instant;

const TOO_MANY_EFFECTS: Failure = Failure::Text(
    "ERR the messages and events of the script need more memory than script-memory: nothing was done",
);

/// The lengths of the output and of the effects before a command, and the clock of one that is
/// timed by itself.
struct Begun {
    out: usize,
    effects: usize,
    timer: Option<Instant>,
}

/// Runs the command of a client's request, counts it, and turns a failure into its reply.
#[inline]
pub(crate) fn run(ctx: &mut Context<'_>, permit: Permit, mut access: Access<'_, '_>) -> Outcome {
    let mut begun = begin(ctx);
    let mut done = dispatch(ctx, permit, access.for_now(), &mut begun.effects);
    while is_outdated(ctx, &done) {
        take_back(ctx, &begun);
        if let Access::Guarded(guard) = &mut access {
            guard.pin_mut().renew();
        }
        done = begin_again(ctx);
        if done.is_ok() {
            done = dispatch(ctx, permit, access.for_now(), &mut begun.effects);
        }
    }
    let outcome = match done {
        _ if ctx.reply.is_exceeded() => overflowed(ctx, &begun),
        Ok(()) => Outcome::Replied,
        Err(failure) => end_without_reply(ctx, failure, &begun, &access),
    };
    if outcome.has_ended() {
        count(ctx, &begun);
    }
    outcome
}

/// As [`run`], for a command of an EXEC. The command does not wait for anything.
///
/// # Errors
/// Nothing of the EXEC is to be done.
pub(crate) fn run_queued(
    ctx: &mut Context<'_>,
    permit: Permit,
    guard: &mut Guard<'_>,
) -> Result<(), Abandoned> {
    let mut begun = begin(ctx);
    let mut ended = Ok(());
    match dispatch(ctx, permit, Access::Guarded(guard), &mut begun.effects) {
        Err(Failure::Unfinished(Unfinished::Abandons(abandoned))) => ended = Err(*abandoned),
        // If a reply does not fit, EXEC itself fails for lack of this reply (`overflowed`).
        Err(failure) if !ctx.reply.is_exceeded() => {
            if guard.draft().is_some()
                && let Some(abandoned) =
                    Abandoned::of_step(&failure, ctx.request.spec.has(flag::WRITE))
            {
                take_back(ctx, &begun);
                return Err(abandoned);
            }
            if let Some(failure) = cold::park(ctx, failure, &Access::Guarded(guard)) {
                refuse(ctx, &begun, &failure);
            }
        }
        _ => {}
    }
    count(ctx, &begun);
    ended
}

#[inline]
fn begin(ctx: &mut Context<'_>) -> Begun {
    let begun = Begun {
        out: ctx.reply.len(),
        effects: ctx.client.effects.len(),
        timer: slow_timer::timer(ctx.request.spec, ctx.client, ctx.thread),
    };
    let number = ctx.request.spec.number;
    ctx.client.note_command(number as u16);
    ctx.reply.begin();
    ctx.thread.timing.meter().begin(number);
    begun
}

/// Counts a command that has run.
#[inline]
fn count(ctx: &mut Context<'_>, begun: &Begun) {
    ctx.thread.timing.meter().ran();
    if let Some(timer) = begun.timer {
        slow_timer::command_took(ctx, timer);
    }
}

/// The end of a request whose command has not replied.
#[cold]
fn end_without_reply(
    ctx: &mut Context<'_>,
    failure: Failure,
    begun: &Begun,
    access: &Access<'_, '_>,
) -> Outcome {
    let outcome = match &failure {
        Failure::Unfinished(Unfinished::Waits) => {
            ctx.turn.ending = Ending::Blocked;
            Outcome::Blocked
        }
        Failure::Unfinished(Unfinished::Yields) => {
            cold::note_reported(ctx.request.spec, ctx.shared, ctx.thread, ctx.client);
            Outcome::Yield
        }
        Failure::Unfinished(Unfinished::NeedsAlone) => Outcome::Retry { alone: true },
        failure if is_to_be_shown_again(ctx, failure) => Outcome::Retry { alone: false },
        _ => match cold::park(ctx, failure, access) {
            Some(failure) => {
                refuse(ctx, begun, &failure);
                return Outcome::Failed;
            }
            None => Outcome::Cold,
        },
    };
    // The command has not run: it is counted when it does.
    take_back(ctx, begun);
    outcome
}

/// Runs a command of a script, whose reply is in `out`, and counts it. An error becomes its
/// reply.
///
/// # Errors
/// The whole script must run again: an entry is on flash, or the keys are moving. Or it has
/// failed, and nothing of it is done: its messages and events need too much memory, or the
/// command is one after which nothing of an EXEC is done ([`Abandoned::of_step`]).
pub(crate) fn run_in_script(ctx: &mut Context<'_>, permit: Permit, guard: &mut Guard<'_>) -> Done {
    let start = ctx.client.effects.len();
    ctx.thread.timing.meter().begin(ctx.request.spec.number);
    // The mark of the EXEC around the script is kept, and put back below.
    let exceeded = ctx.reply.set_exceeded(false);
    let mut done = dispatch(ctx, permit, Access::Guarded(guard), &mut { start });
    if ctx.reply.set_exceeded(exceeded) {
        done = Err(ctx.reply.too_long());
    }
    ctx.client.effects.forget_replies(start);
    if ctx.client.effects.len() > start {
        let bytes_max = ctx.thread.config(ctx.shared).scripts.memory_bytes;
        if ctx.client.effects.bytes() > bytes_max {
            return Err(TOO_MANY_EFFECTS);
        }
    }
    if let Err(failure) = done {
        let ends = match has_bug(Bug::ScriptsStopHalfway) {
            true => Abandoned::of(&failure),
            false => Abandoned::of_step(&failure, ctx.request.spec.has(flag::WRITE)), // drafted::R5
        };
        if ends.is_some() {
            return Err(failure);
        }
        fail(ctx, 0, &failure);
    }
    ctx.thread.timing.meter().ran();
    Ok(())
}

/// Whether nothing was done because SWAPDB came between the lookup of the table and its use
/// (keys::K1).
#[inline]
fn is_outdated(ctx: &Context<'_>, done: &Done) -> bool {
    let is_told = |failure: &Failure| failure.is_moving();
    done.as_ref().is_err_and(is_told) && ctx.may_be_outdated()
}

/// Begins the request anew after a wait, in which CLIENT PAUSE and SWAPDB may have run. The request
/// has done nothing yet.
pub(crate) fn begin_again(ctx: &mut Context<'_>) -> Done {
    if pause::has_begun(ctx) {
        return Err(YIELDS); // the request is shown again, and then waits for the end of the pause
    }
    take_table_again(ctx)
}

/// After a wait in which SWAPDB may have run, takes the table that the client has selected by now
/// (keys::K1). The client may have no right to that table, or to another one that the request
/// names.
pub(crate) fn take_table_again(ctx: &mut Context<'_>) -> Done {
    ctx.table = ctx.client.table(ctx.shared);
    let checked = Permit::check(
        ctx.request.spec,
        &ctx.request.args,
        ctx.client,
        ctx.table,
        ctx.shared,
    );
    match checked {
        Ok(_) => {} // the same request was permitted before: it runs by the permit that it has
        Err(_) if has_bug(Bug::RightsAreNotCheckedAgain) => {}
        Err(refusal) => return Err((ctx.commands.hooks.refused_late)(ctx, refusal)),
    }
    Ok(())
}

/// Runs the function of the command. `effects`: the number of effects that stay if the command
/// fails.
#[inline]
fn dispatch(
    ctx: &mut Context<'_>,
    permit: Permit,
    mut access: Access<'_, '_>,
    effects: &mut usize,
) -> Done {
    if ctx.client.gate() & gate::TRACKS != 0 {
        (ctx.commands.hooks.note_reads)(ctx, &mut access)?;
    }
    match (permit.run(), access) {
        (Run::Data(run) | Run::Atomic(run), Access::Guarded(guard)) => {
            guard.rewrites(ctx.request.spec.rewrites());
            if ctx.request.spec.has(flag::WRITE | flag::DENYOOM)
                && let Some(draft) = guard.draft_mut()
            {
                draft.note_command(ctx.request.spec.rewrites());
            }
            if ctx.request.spec.is_own()
                && let Some(draft) = guard.draft_mut()
            {
                draft.note_versions();
            }
            guard.pin_mut().set_counts_reads(counts_reads(ctx));
            guard
                .pin_mut()
                .set_decides(ctx.request.spec.has(flag::WRITE));
            let done = run(ctx, guard);
            if guard.notes().has_replaced() {
                *effects = ctx.notify_replaced(guard.notes().take_replaced(), *effects);
            }
            done
        }
        (Run::Plain(run) | Run::Store(run), _) => run(ctx),
        (Run::Alone(run), access) => run(ctx, access),
        (Run::Refused(reason), _) => Err(ctx.request.spec.refusal(reason).into()),
        (Run::Data(_) | Run::Atomic(_), Access::Session(_) | Access::NoStore) => {
            unreachable!("{} runs under a guard", ctx.request.spec.name)
        }
    }
}

/// Whether the reads of the request count for eviction.
#[inline]
fn counts_reads(ctx: &Context<'_>) -> bool {
    let untouched = ctx.client.gate() & gate::NO_TOUCH != 0 && !ctx.request.spec.has(flag::COUNTED);
    !untouched && !ctx.request.spec.has(flag::UNCOUNTED)
}

/// Takes back the reply and the effects of a request that has not run (effects::E2).
fn take_back(ctx: &mut Context<'_>, begun: &Begun) {
    ctx.reply.truncate(begun.out);
    ctx.client.effects.truncate(begun.effects);
}

/// Ends a request whose reply did not fit into the connection's output. A command that only reads
/// gets an error. The effect of a write, or of a change of subscriptions, stays and cannot be
/// reported, so the connection is closed, as Redis does at its output buffer limit.
#[cold]
fn overflowed(ctx: &mut Context<'_>, begun: &Begun) -> Outcome {
    ctx.reply.set_exceeded(false);
    let changes = ctx.request.spec.has(flag::WRITE | flag::TRANSACTION) || ctx.reply.confirms();
    if ctx.request.spec.has(flag::READONLY) || !changes {
        ctx.client.effects.truncate(begun.effects);
        let failure = ctx.reply.too_long();
        fail(ctx, begun.out, &failure);
        return Outcome::Failed;
    }
    ctx.reply.truncate(begun.out);
    ctx.turn.ending = Ending::CloseNow;
    ctx.thread.counters(ctx.shared).output_closed.add(1);
    seldom!(
        warn,
        client = ctx.client.id(),
        peer = %ctx.client.record().peer,
        command = ctx.request.spec.name,
        limit_bytes = ctx.reply.bytes_max(),
        "closing a client whose reply does not fit (output-limit)"
    );
    Outcome::Failed
}

/// Whether the command failed without effect because this member no longer serves the keys, and
/// the client still has patience.
#[cold]
fn is_to_be_shown_again(ctx: &mut Context<'_>, failure: &Failure) -> bool {
    if !is_leaving(ctx, failure) || ctx.locked {
        return false;
    }
    if !may_be_half_done(ctx)
        && let Some(until_ms) = ctx.client.patience.waits_for_owner()
    {
        ctx.turn.ending = Ending::Paused { until_ms };
        return true;
    }
    if ctx.client.in_multi() {
        ctx.client.end_transaction(); // EXEC has finally failed
    }
    false
}

/// Whether the keys begin to move to another server, or the cluster considers this server
/// crashed (its life ends in a moment).
fn is_leaving(ctx: &Context<'_>, failure: &Failure) -> bool {
    ctx.shared.membership().is_some() && (failure.is_moving() || failure.is_disk_failed())
}

/// Whether this is a command on several keys, each handled separately: such a command must not
/// reply `TRYAGAIN`, which clients take for "nothing was done".
fn may_be_half_done(ctx: &Context<'_>) -> bool {
    !ctx.request.spec.keys.is_one() && ctx.request.spec.kind() == Kind::Data
}

fn failure_text(ctx: &Context<'_>, failure: &Failure) -> String {
    let is_missing = |error: &Error| matches!(error, Error::NoSuchTable(DROPPED));
    match failure {
        // The coordinator has not made the table, or this member has not heard of it yet.
        Failure::Engine(error) if is_missing(error) && ctx.shared.membership().is_some() => {
            NO_DATABASE.to_owned()
        }
        failure if !is_leaving(ctx, failure) => failure.text(),
        _ if may_be_half_done(ctx) => {
            "ERR the keys left this server while this ran: some of it may be done".to_string()
        }
        failure if failure.is_moving() => failure.text(),
        _ => "CLUSTERDOWN The cluster is down: it takes this server for crashed".to_string(),
    }
}

/// Ends a failed request: the failure becomes its reply.
fn refuse(ctx: &mut Context<'_>, begun: &Begun, failure: &Failure) {
    // A command on several keys may have changed some of them before it failed: those events stay.
    ctx.client.effects.silence(begun.out);
    fail(ctx, begun.out, failure);
}

#[cold]
fn fail(ctx: &mut Context<'_>, start: usize, failure: &Failure) {
    ctx.reply.truncate(start);
    ctx.client.end_key_wait(ctx.shared, true);
    let text = failure_text(ctx, failure);
    ctx.thread.note_error(ctx.shared, &text);
    ctx.reply.encoder().error(text);
    ctx.thread
        .command(ctx.shared, ctx.request.spec.number)
        .failed
        .add(1);
}
