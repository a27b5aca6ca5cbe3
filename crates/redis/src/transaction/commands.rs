//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use super::{exchanges, exec, since};
use crate::command::context::{Context, Done, Failure};
use crate::command::key::Key;
use crate::command::routing::{NotServed, UNSERVED};
use crate::command::row::*;
use crate::state::transaction::watches::{WATCHED_BYTES_MAX, WATCHED_MAX, Watched};
use duramen_engine::Guard;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("multi", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | NEVER_QUEUED, doc(Topic::Transactions, "1.2.0", "O(1)", "Starts a transaction."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(multi)),
    row("exec", 1, NOSCRIPT | LOADING | STALE | SKIP_SLOWLOG | NEVER_QUEUED | TIMED | RUNS_QUEUE,
        doc(Topic::Transactions, "1.2.0", "O(1)", "Runs the transaction."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Alone(exec))
            .differs("Reserves its room first: `EXECABORT` with the reason, and nothing was done. A long one runs in slices."),
    row("discard", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | NEVER_QUEUED,
        doc(Topic::Transactions, "2.0.0", "O(N)", "Forgets the transaction."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(discard)),
    row("watch", -2, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | NEVER_QUEUED,
        doc(Topic::Transactions, "2.2.0", "O(1) for every key", "Makes the transaction depend on keys that must not change."),
        Keys::all(LOOKS), Effect::Acts, Secrets::None, Run::Data(watch))
            .differs("In a small table, deleting many other keys may count as a change of an absent one."),
    row("unwatch", 1, NOSCRIPT | LOADING | STALE | FAST | ALLOW_BUSY | TELLS, doc(Topic::Transactions, "2.2.0", "O(1)", "Forgets the watched keys."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(unwatch)),
];

fn multi(ctx: &mut Context<'_>) -> Done {
    if ctx.client.in_multi() {
        return Err(Failure::Text("ERR MULTI calls can not be nested"));
    }
    ctx.client.begin_transaction(ctx.thread.spare().begin());
    ctx.reply.ok()
}

fn discard(ctx: &mut Context<'_>) -> Done {
    if !ctx.client.in_multi() {
        return Err(Failure::Text("ERR DISCARD without MULTI"));
    }
    ctx.client.end_transaction();
    ctx.client.transaction.note_discard();
    ctx.reply.ok()
}

pub(crate) fn watch(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    if ctx.client.in_multi() {
        return Err(Failure::Text("ERR WATCH inside MULTI is not allowed"));
    }
    let view = ctx.view(guard);
    for key in ctx.request.keys(ctx.table) {
        let (db, Key { table, hash, bytes }) = (ctx.client.db(), key);
        if ctx.client.transaction.watched().has(table, bytes) {
            continue;
        }
        let since = since(view.as_deref(), key);
        if view.is_some() && since.is_none() {
            // The key has left since it was routed: EXEC could not know of changes elsewhere.
            return Err(NotServed::NotNow(UNSERVED).into());
        }
        let watched = Watched {
            db,
            exchanges: exchanges(ctx.shared, db),
            stamp: guard.stamp(table, hash, bytes)?,
            since,
        };
        if !ctx
            .client
            .transaction
            .watched_mut()
            .add(table, bytes, watched)
        {
            return Err(Failure::from(format!(
                "ERR more than {WATCHED_MAX} watched keys, or more than {WATCHED_BYTES_MAX} bytes of them"
            )));
        }
    }
    ctx.reply.ok()
}

fn unwatch(ctx: &mut Context<'_>) -> Done {
    ctx.client.transaction.take_watched();
    ctx.reply.ok()
}
