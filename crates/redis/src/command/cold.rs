//! Requests that meet entries on flash: these entries are noted, and the requests are presented
//! again once the entries are fetched.
//!
//! **Mechanism.** An operation of the engine that needs an entry on flash returns `Error::Cold` and
//! does nothing. Then all keys of the request are looked up, so that their entries are fetched in
//! parallel, and so are those of the requests behind it on its connection. The reactor fetches them
//! ([`Parked::take_wanted`]), lends them to the session, and presents the request again.
//!
//! **Invariants**
//! - C1: a request that parks has had no effect. A command that changes several keys requests the
//!   entries of all of them, under their locks, before it changes the first ([`warm`]).
//!   From then on a locked key meets no flash, except while room is sought: what leaves memory
//!   meanwhile is read by the engine before the first change (engine::room::R5). If that fails,
//!   the request has failed and has had no effect.
//! - C2: requests behind one that parks have not run.
//! - C3: the bytes that a request needs at once are bounded ([`Tier::fetch_bytes`]); needing more
//!   is an error, but a walk takes smaller steps.
//! - C4: a request that is presented again makes progress, unless others change the same keys
//!   meanwhile: it is lent all entries that it requested, now and before, and
//!   does not restart its walk.
//!
//! [`Parked::take_wanted`]: crate::state::parking::Parked::take_wanted
//! [`Tier::fetch_bytes`]: crate::flash::tier::Tier::fetch_bytes

use super::context::{Context, Done, Failure};
use super::key::Key;
use super::spec::Spec;
use super::store_access::Access;
use super::turn::Ending;
use crate::flash::unfetched::{Unfetched, bytes_of};
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::shared::commands::global;
use crate::state::thread::Thread;
use duramen_engine::flash::Cold;
use duramen_engine::{Error, Guard};

/// Requests behind the parked one may fetch the bytes allowed at once, divided by this.
const AHEAD_PART: usize = 8;
/// Error text for a request that needs too many bytes.
pub fn too_much(bytes: usize, most: usize) -> String {
    format!(
        "this request needs {bytes} bytes from flash at once, and {most} is the most: ask for fewer keys"
    )
}

/// Notes the entry of a key of a request behind the parked one; returns whether there is room for
/// more.
#[cold]
pub fn look_ahead(shared: &Shared, guard: &Guard<'_>, client: &mut Client, key: Key<'_>) -> bool {
    let Some(tier) = shared.tier().filter(|_| client.parking.is_some()) else {
        return false;
    };
    let room = tier.fetch_bytes() / AHEAD_PART;
    let Ok(Some(cold)) = guard.pin().cold(key.table, key.hash, key.bytes) else {
        return true;
    };
    client.parking.want_ahead(cold, room)
}

/// Notes that the client's request, which is presented again, was shown to monitors or written into
/// the audit log: neither is done a second time.
#[cold]
pub(crate) fn note_reported(spec: &Spec, shared: &Shared, thread: &Thread, client: &mut Client) {
    let is_monitored = shared.commands.gate() & global::MONITORED != 0;
    client
        .parking
        .note_reported(is_monitored, spec.is_audited(thread.audited()));
}

/// C1: fails if an entry of one of the keys is on flash, and notes all such entries. Does
/// nothing without a second tier.
#[inline]
pub(crate) fn warm<'k>(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    keys: impl Iterator<Item = Key<'k>>,
) -> Done {
    // EXEC requested the entries of all keys before it ran the first command, and they are in
    // memory or lent (C1). The keys of an EXEC on a draft are not known before.
    if !ctx.thread.has_tier() || ctx.thread.exec.runs() && guard.draft().is_none() {
        return Ok(());
    }
    ctx.client.parking.want_none();
    let mut first = None;
    for key in keys {
        match guard.pin().cold(key.table, key.hash, key.bytes) {
            Ok(Some(cold)) => {
                first.get_or_insert(cold);
                ctx.client.parking.want(cold);
            }
            // The command that uses the key reports the missing table.
            Ok(None) | Err(Error::NoSuchTable(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match first {
        None => Ok(()),
        Some(cold) => Err(Error::Cold(cold).into()),
    }
}

/// As [`warm`], for the request's keys.
#[inline]
pub(crate) fn warm_own(ctx: &mut Context<'_>, guard: &Guard<'_>) -> Done {
    match ctx.thread.has_tier() {
        true => {
            let keys = ctx.request.keys(ctx.table);
            warm(ctx, guard, keys)
        }
        false => Ok(()),
    }
}

/// Notes the entries on flash that a step of a walk met. Notes only the first of them if all
/// are too large at once (C3), or were for the previous steps (`in_parts`,
/// `Parked::take_in_parts`).
pub(crate) fn note_colds<T>(
    ctx: &mut Context<'_>,
    guard: &Guard<'_>,
    in_parts: bool,
    step: Result<T, Error>,
) -> Result<T, Error> {
    if let (Err(Error::Cold(_)), Some(tier)) = (&step, ctx.shared.tier()) {
        let (colds, most) = (guard.pin().take_colds(), tier.fetch_bytes());
        ctx.client.parking.want_for_walk(colds, most, in_parts);
    }
    step
}

/// Parks the request if it failed because of entries on flash. Returns the reason if the request
/// has finally failed.
#[cold]
pub(crate) fn park(
    ctx: &mut Context<'_>,
    failure: Failure,
    access: &Access<'_, '_>,
) -> Option<Failure> {
    let Some(first) = failure.cold() else {
        return Some(failure);
    };
    let mut wanted = ctx.client.parking.take_own_wanted();
    if let Access::Guarded(guard) = access {
        if wanted.is_empty() {
            look_for_own(ctx, guard, &mut wanted);
        }
        wanted.append(&mut guard.pin().take_colds());
    }
    if wanted.is_empty() || !ctx.client.parking.takes_part() {
        wanted.push(first);
        wanted.sort_unstable_by_key(Cold::key);
        wanted.dedup_by_key(|cold| cold.key());
    }
    match refusal(ctx, &wanted) {
        Some(text) => {
            ctx.client.end_transaction(); // EXEC has finally failed
            Some(text.into())
        }
        None => {
            ctx.client.parking.want_all(wanted);
            note_reported(ctx.request.spec, ctx.shared, ctx.thread, ctx.client);
            ctx.turn.ending = Ending::Cold;
            None
        }
    }
}

fn look_for_own(ctx: &Context<'_>, guard: &Guard<'_>, wanted: &mut Vec<Cold>) {
    for (n, at) in ctx.request.key_positions().enumerate() {
        let key = ctx.arg(at);
        let hash = ctx
            .request
            .hashes
            .get(n)
            .copied()
            .unwrap_or_else(|| guard.hash(key));
        if let Ok(Some(cold)) = guard.pin().cold(ctx.table, hash, key) {
            wanted.push(cold);
        }
    }
}

/// The reason why the request may not wait for these entries.
fn refusal(ctx: &Context<'_>, wanted: &[Cold]) -> Option<String> {
    let Some(tier) = ctx.shared.tier() else {
        return Some("ERR the server has no flash, and something lies there".to_owned());
    };
    if let Some(Unfetched::Unreadable(why) | Unfetched::TooMuch(why)) =
        ctx.client.parking.failure_of(wanted)
    {
        return Some(format!("ERR {why}"));
    }
    if ctx.thread.exec.runs() {
        return Some(format!(
            "ERR {} meets keys on flash, and cannot wait for them inside MULTI: send it by itself",
            ctx.request.spec.name.to_ascii_uppercase()
        ));
    }
    let (bytes, most) = (bytes_of(wanted), tier.fetch_bytes());
    (bytes > most).then(|| format!("ERR {}", too_much(bytes, most)))
}
