//! Requests that wait for the end of `CLIENT PAUSE`.
//!
//! **Invariants**
//! - P1: when `CLIENT PAUSE` is answered, no request that it delays takes effect until its end. A
//!   request looks at the pause when it is admitted, and again when it begins anew after a wait
//!   (`run::begin_again`). A request that enters the store by itself, as `EXEC` and scripts do,
//!   looks at the pause in each of its guards: it may have waited at the store's door. The reply to
//!   `CLIENT PAUSE` waits for the requests that have begun: those that were outside of the store
//!   meanwhile begin anew (`Store::quiesce`). The reply does not wait for the `EXEC` that the
//!   `CLIENT PAUSE` is in, nor for the rest of `DURAMEN.MWRITE` and `DURAMEN.MREMOVE`.
//! - P2: requests of native clients look at the pause when they are admitted, and each of their
//!   writes looks again when its guard was renewed (serve::X9). The reply tells their clients to
//!   send them again. Only pings do not wait.

use super::context::Context;
use super::flag;
use super::names::{Names, ScriptName};
use super::spec::{Commands, Request};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::shared::commands::global;
use crate::state::transaction::queue::Transaction;
use duramen_base::planted::{Bug, has_bug};
use duramen_config::clock;
use duramen_script::Flags;

/// The end of the `CLIENT PAUSE` that delays this request, if one does.
pub(crate) fn waits(
    commands: &Commands,
    request: &Request<'_>,
    shared: &Shared,
    client: &Client,
) -> Option<u64> {
    if shared.commands.gate() & global::PAUSED == 0 || client.key_wait.is_over(client.record()) {
        return None;
    }
    end_of(commands, request, shared, client)
}

/// Whether a pause that delays the request has begun since the request was admitted.
pub(crate) fn has_begun(ctx: &Context<'_>) -> bool {
    !ctx.thread.exec.runs() && has_begun_for(ctx.commands, &ctx.request, ctx.shared, ctx.client)
}

/// Whether a pause that delays this request, which is not in EXEC, has begun since it was admitted.
pub(crate) fn has_begun_for(
    commands: &Commands,
    request: &Request<'_>,
    shared: &Shared,
    client: &Client,
) -> bool {
    is_looked_at(shared) && end_of(commands, request, shared, client).is_some()
}

/// Whether a pause that delays an EXEC has begun since it was admitted. `queue`: the commands of
/// the EXEC, which its client does not have while they run.
pub(crate) fn has_begun_for_queue(
    commands: &Commands,
    queue: &Transaction,
    shared: &Shared,
) -> bool {
    is_looked_at(shared) && end(shared, || queue_may_write(commands, queue, shared)).is_some()
}

/// The milliseconds after which a native client is to send a request again that a pause delays
/// (P2). `may_write`: whether the request may write.
#[cold]
pub fn native_waits_ms(shared: &Shared, may_write: impl FnOnce() -> bool) -> Option<u32> {
    /// The pause may be ended before its time, and nobody tells native clients.
    const AGAIN_MS_MAX: u64 = 50;
    let until_ms = end(shared, may_write)?;
    let left_ms = until_ms.saturating_sub(clock::now_ms());
    Some(left_ms.clamp(1, AGAIN_MS_MAX) as u32)
}

fn is_looked_at(shared: &Shared) -> bool {
    shared.commands.gate() & global::PAUSED != 0 && !has_bug(Bug::PauseIsNotLookedAt)
}

/// The end of the pause that delays this request, if one does.
fn end_of(
    commands: &Commands,
    request: &Request<'_>,
    shared: &Shared,
    client: &Client,
) -> Option<u64> {
    if request.spec.has(flag::UNPAUSES) {
        return None;
    }
    end(shared, || match request.spec.has(flag::RUNS_QUEUE) {
        true => {
            let queue = client.transaction.open();
            queue.is_some_and(|queue| queue_may_write(commands, queue, shared))
        }
        false => !client.in_multi() && may_write(request, shared),
    })
}

/// The end of the pause that delays a request. `may_write`: whether the request may write.
fn end(shared: &Shared, may_write: impl FnOnce() -> bool) -> Option<u64> {
    let (until_ms, writes_only) = shared.commands.paused(clock::now_ms())?;
    (!writes_only || may_write()).then_some(until_ms)
}

/// Whether one of the requests of EXEC may write, as [`may_write`] says. A function may have other
/// flags by now than when its call was queued.
fn queue_may_write(commands: &Commands, queue: &Transaction, shared: &Shared) -> bool {
    let mut requests = queue.requests(commands);
    requests.any(|request| may_write(&request, shared))
}

/// Whether a request waits for the end of `CLIENT PAUSE … WRITE`.
pub(crate) fn may_write(request: &Request<'_>, shared: &Shared) -> bool {
    request.spec.has(flag::WRITE | flag::MAY_REPLICATE) && !declares_no_writes(request, shared)
}

/// Whether a request runs a script or a function that declares that it writes nothing.
fn declares_no_writes(request: &Request<'_>, shared: &Shared) -> bool {
    let named = request.arg(1);
    let flags = match request.spec.names {
        Names::Script(ScriptName::Text) => Some(Flags::of(named)),
        Names::Script(ScriptName::Digest) => {
            shared.scripts().cache.get(named).map(|script| script.flags)
        }
        Names::Script(ScriptName::Function) => {
            let libraries = shared.scripts().libraries.current();
            libraries.find(named).map(|(_, function)| function.flags)
        }
        _ => None,
    };
    flags.is_some_and(|flags| flags.no_writes)
}
