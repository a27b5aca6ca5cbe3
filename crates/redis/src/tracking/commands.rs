//! CLIENT TRACKING and its relatives: keys that a client has in its own cache.
//!
//! **Invariants**
//! - T1: a client is remembered under the keys of a request before the request reads
//!   ([`note_reads`], tracking::table::I1). Those of a script that was suspended are remembered
//!   again before it is committed ([`note_reads_again`]): keys that had to leave the registry
//!   meanwhile were invalidated before its reply.
//! - T2: [`begin`] and [`end`] alone change the tracking of a client, its gate and its entry in the
//!   registry (`tracking::table`) together.
//! - T3: a client that begins to read a key does not hear of an earlier change under the same guard
//!   or in the same script, because it reads the changed value (`Guard::begin_read`). Libraries
//!   answer an invalidation by a script that writes the key and reads it: without T3 they would do
//!   so for ever.
//! - T4: a script or EXEC that runs again on a new draft begins to read its keys again. Before its
//!   first read, the client is forgotten under the keys where only the previous run has remembered
//!   it ([`untrack`]). When its request has ended, the list of such keys is empty
//!   ([`end_caching`]).

use super::changes;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::flag;
use crate::command::row::*;
use crate::command::store_access::Access;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::tracking::client::{ClientTracking, Scope};
use crate::state::tracking::table::{Limits, PREFIX_BYTES};
use duramen_engine::Draft;
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("client|tracking", -3, NO_MULTI | NOSCRIPT | LOADING | STALE | CONNECTION,
        doc(Topic::Connection, "6.0.0", "O(1)", "Starts tracking keys for the client's cache."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Store(tracking))
            .differs("Refused in `MULTI`; `BCAST` tells only keys that the user may read; `REDIRECT` goes to clients of the same user.").names(Names::AllTablesIf(broadcasts)),
    row("client|trackinginfo", 2, NOSCRIPT | LOADING | STALE | CONNECTION | TELLS, doc(Topic::Connection, "6.2.0", "O(1)", "Describes tracking."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(trackinginfo)),
    row("client|getredir", 2, NOSCRIPT | LOADING | STALE | CONNECTION | TELLS,
        doc(Topic::Connection, "6.0.0", "O(1)", "Returns who gets the invalidations."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(getredir)),
    row("client|caching", 3, NOSCRIPT | LOADING | STALE | CONNECTION, doc(Topic::Connection, "6.0.0", "O(1)", "Tracks the keys of the next command."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(caching)),
];

/// Whether CLIENT TRACKING is for keys that the client has not read.
fn broadcasts(args: &Args<'_>) -> bool {
    let mut options = args.skip(3).into_iter();
    options.any(|option| option.eq_ignore_ascii_case(b"bcast"))
}

/// Maximum bytes of one client's prefixes, each counted with [`PREFIX_BYTES`] more.
const PREFIXES_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a prefix. Each write looks for prefixes of each length.
const PREFIX_LEN_MAX: usize = 256;

/// The options of CLIENT TRACKING.
#[derive(Default)]
struct Options<'a> {
    redirect: Option<u64>,
    broadcast: bool,
    opt_in: bool,
    opt_out: bool,
    no_loop: bool,
    prefixes: Vec<&'a [u8]>,
}

fn parse<'a>(ctx: &Context<'a>) -> Result<Options<'a>, Failure> {
    let mut options = Options::default();
    let mut rest = ctx.request.args.skip(3).into_iter();
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"redirect" if rest.len() > 0 => {
                if options.redirect.is_some() {
                    return Err(Failure::Text(
                        "ERR A client can only redirect to a single other client",
                    ));
                }
                let id = rest.next().and_then(parse_integer);
                options.redirect = Some(target(ctx, id.ok_or(NOT_AN_INTEGER)?)?);
            }
            b"bcast" => options.broadcast = true,
            b"optin" => options.opt_in = true,
            b"optout" => options.opt_out = true,
            b"noloop" => options.no_loop = true,
            b"prefix" if rest.len() > 0 => options.prefixes.extend(rest.next()),
            _ => return Err(SYNTAX),
        }
    }
    Ok(options)
}

/// The client that gets the invalidations. It must be a client of the same user, because it gets
/// messages that it has not asked for.
fn target(ctx: &Context<'_>, id: i64) -> Result<u64, Failure> {
    let user = ctx.client.record().text().user_id;
    let found = u64::try_from(id)
        .ok()
        .and_then(|id| ctx.shared.threads.client(id));
    let found = found.filter(|it| it.text().user_id == user);
    found.map(|record| record.id).ok_or(Failure::Text(
        "ERR The client ID you want redirect to does not exist",
    ))
}

/// Checks that the options agree with each other and with the client's present options.
fn check(options: &Options<'_>, before: Option<&ClientTracking>) -> Done {
    let was = |scope| before.is_some_and(|before| before.scope == scope);
    let problem = if !options.broadcast && !options.prefixes.is_empty() {
        "ERR PREFIX option requires BCAST mode to be enabled"
    } else if before.is_some() && was(Scope::Broadcast) != options.broadcast {
        "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then \
         re-enabling it with a different mode."
    } else if options.broadcast && (options.opt_in || options.opt_out) {
        "ERR OPTIN and OPTOUT are not compatible with BCAST"
    } else if options.opt_in && options.opt_out {
        "ERR You can't specify both OPTIN mode and OPTOUT mode"
    } else if options.opt_in && was(Scope::OptOut) || options.opt_out && was(Scope::OptIn) {
        "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then \
         re-enabling it with a different mode."
    } else {
        return Ok(());
    };
    Err(Failure::Text(problem))
}

/// The element of the set that is a prefix of `text`, or of which `text` is a prefix.
fn overlapping<'s>(set: &'s BTreeSet<Arc<[u8]>>, text: &[u8]) -> Option<&'s Arc<[u8]>> {
    let next = set.range::<[u8], _>((Bound::Included(text), Bound::Unbounded));
    let before = set.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(text)));
    let next = next.take(1).find(|next| next.starts_with(text));
    // No element of the set is a prefix of another: so none is between a prefix of `text` and
    // `text`.
    next.or_else(|| before.rev().take(1).find(|before| text.starts_with(before)))
}

/// Adds the given prefixes to the client's present ones.
fn join(prefixes: &[&[u8]], before: &BTreeSet<Arc<[u8]>>) -> Result<BTreeSet<Arc<[u8]>>, Failure> {
    let mut added = BTreeSet::new();
    for prefix in prefixes {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let overlap = |one: &[u8], which, other: &[u8]| {
            Failure::from(format!(
                "ERR Prefix '{}' overlaps with {which} prefix '{}'. Prefixes for a single client must \
                 not overlap.",
                shown(one),
                shown(other)
            ))
        };
        if prefix.len() > PREFIX_LEN_MAX {
            return Err(Failure::from(format!(
                "ERR a prefix can have {PREFIX_LEN_MAX} bytes, this one has {}",
                prefix.len()
            )));
        }
        if let Some(other) = overlapping(before, prefix) {
            return Err(overlap(prefix, "an existing", other));
        }
        if let Some(earlier) = overlapping(&added, prefix) {
            return Err(overlap(earlier, "another provided", prefix));
        }
        added.insert(Arc::from(*prefix));
    }
    if prefixes.is_empty() && before.is_empty() {
        added.insert(Arc::from(&b""[..]));
    }
    added.extend(before.iter().cloned());
    let bytes = added.iter().map(|prefix| PREFIX_BYTES + prefix.len());
    if bytes.sum::<usize>() > PREFIXES_BYTES_MAX {
        return Err(Failure::from(format!(
            "ERR too many prefixes: those of one client can take {PREFIXES_BYTES_MAX} bytes, with \
             {PREFIX_BYTES} more for each"
        )));
    }
    Ok(added)
}

/// Handles CLIENT TRACKING.
pub(crate) fn tracking(ctx: &mut Context<'_>) -> Done {
    let options = parse(ctx)?;
    match ctx.arg(2).to_ascii_lowercase().as_slice() {
        b"on" => begin(ctx, &options)?,
        b"off" => end(ctx.shared, ctx.client),
        _ => return Err(SYNTAX),
    }
    ctx.reply.ok()
}

fn begin(ctx: &mut Context<'_>, options: &Options<'_>) -> Done {
    let before = ctx.client.tracking();
    check(options, before)?;
    let scope = match options {
        Options {
            broadcast: true, ..
        } => Scope::Broadcast,
        Options { opt_in: true, .. } => Scope::OptIn,
        Options { opt_out: true, .. } => Scope::OptOut,
        _ => Scope::Read,
    };
    let known = BTreeSet::new();
    let known = before.map_or(&known, |before| &before.prefixes);
    let prefixes = match scope {
        Scope::Broadcast => join(&options.prefixes, known)?,
        _ => BTreeSet::new(),
    };
    let (client, thread) = (ctx.client.id(), ctx.client.record().thread);
    let is_new = before.is_none();
    if is_new {
        changes::track(ctx.shared, client, thread)?;
    }
    let registry = ctx.shared.tracking();
    let limits = tracking_limits(ctx);
    if !registry.add_prefixes((client, thread), prefixes.iter(), limits) {
        if is_new {
            registry.end(client, [].iter());
        }
        return Err(Failure::from(format!(
            "ERR too many prefixes: those of all clients can take {} bytes, with {PREFIX_BYTES} \
             more for each",
            limits.bytes
        )));
    }
    ctx.client.set_tracking(Some(ClientTracking {
        scope,
        no_loop: options.no_loop,
        redirect: options.redirect,
        prefixes,
        ..ClientTracking::default()
    }));
    Ok(())
}

/// Ends the tracking of a client.
pub(crate) fn end(shared: &Shared, client: &mut Client) {
    if let Some(tracking) = client.tracking() {
        let prefixes = tracking.prefixes.iter();
        shared.tracking().end(client.id(), prefixes);
        client.set_tracking(None);
    }
}

pub(crate) fn caching(ctx: &mut Context<'_>) -> Done {
    let Some(tracking) = ctx.client.tracking_mut() else {
        return Err(Failure::Text(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
             OPTOUT mode enabled",
        ));
    };
    match (ctx.request.args.get(2), tracking.scope) {
        (Some(how), Scope::OptIn) if how.eq_ignore_ascii_case(b"yes") => tracking.caching = true,
        (Some(how), Scope::OptOut) if how.eq_ignore_ascii_case(b"no") => tracking.caching = true,
        (Some(how), _) if how.eq_ignore_ascii_case(b"yes") => {
            return Err(Failure::Text(
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        (Some(how), _) if how.eq_ignore_ascii_case(b"no") => {
            return Err(Failure::Text(
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        _ => return Err(SYNTAX),
    }
    ctx.reply.ok()
}

pub(crate) fn getredir(ctx: &mut Context<'_>) -> Done {
    let tracking = ctx.client.tracking();
    ctx.reply.integer(shown_redirect(tracking))
}

/// The redirection as replies show it: -1 = the client does not track, 0 = it gets its
/// invalidations itself.
fn shown_redirect(tracking: Option<&ClientTracking>) -> i64 {
    tracking.map_or(-1, ClientTracking::shown_redirect)
}

pub(crate) fn trackinginfo(ctx: &mut Context<'_>) -> Done {
    let tracking = ctx.client.tracking();
    let mut flags = vec![if tracking.is_some() { "on" } else { "off" }];
    if let Some(tracking) = tracking {
        match (tracking.scope, tracking.caching) {
            (Scope::Read, _) => {}
            (Scope::Broadcast, _) => flags.push("bcast"),
            (Scope::OptIn, false) => flags.push("optin"),
            (Scope::OptIn, true) => flags.extend(["optin", "caching-yes"]),
            (Scope::OptOut, false) => flags.push("optout"),
            (Scope::OptOut, true) => flags.extend(["optout", "caching-no"]),
        }
        flags.extend(tracking.no_loop.then_some("noloop"));
        flags.extend(tracking.is_broken.then_some("broken_redirect"));
    }
    let redirect = shown_redirect(tracking);
    let prefixes = tracking.into_iter().flat_map(|it| &it.prefixes);
    let mut reply = ctx.reply.encoder();
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"redirect");
    reply.integer(redirect);
    reply.bulk(b"prefixes");
    reply.array(prefixes.clone().count());
    prefixes.for_each(|prefix| reply.bulk(prefix));
    Ok(())
}

fn tracking_limits(ctx: &mut Context<'_>) -> Limits {
    let config = ctx.thread.config(ctx.shared);
    Limits::new(config.tracked_keys_max, config.memory_bytes)
}

/// Whether the client is remembered under the keys that it reads now.
fn remembers(ctx: &Context<'_>) -> bool {
    let tracking = ctx.client.tracking();
    tracking.is_some_and(|it| it.remembers())
}

/// Forgets the client under the keys where only the previous run has remembered it (T4).
fn untrack(ctx: &mut Context<'_>) {
    let client = ctx.client.id();
    if let Some(own) = ctx.client.tracking_mut() {
        for key in std::mem::take(&mut own.new_keys) {
            ctx.shared.tracking().take_back(client, &key);
        }
    }
}

/// Remembers the client, which tracks, under the keys of a command that is about to run (T1).
#[cold]
pub(crate) fn note_reads(ctx: &mut Context<'_>, access: &mut Access<'_, '_>) -> Done {
    // A script reads keys by its commands.
    let reads = ctx.request.spec.has(flag::READONLY) && !ctx.request.spec.has(flag::SCRIPTING);
    if !remembers(ctx) || !reads {
        return Ok(());
    }
    if ctx.shared.commands.db_of(ctx.table).is_none() {
        return Ok(()); // its writes are not told of (`changes::keys_written`)
    }
    let draft_reads = match access {
        Access::Guarded(guard) => guard.draft().map(|draft| draft.reads()),
        _ => None,
    };
    if draft_reads == Some(0) {
        untrack(ctx);
    }
    let limits = tracking_limits(ctx);
    let client = (ctx.client.id(), ctx.client.record().thread);
    let (tracking, threads) = (ctx.shared.tracking(), &ctx.shared.threads);
    let mut own = ctx.client.tracking_mut();
    for (n, position) in ctx.request.key_positions().enumerate() {
        let key = ctx.request.args.get(position).unwrap_or_default();
        if !ctx
            .request
            .spec
            .keys
            .access(&ctx.request.args, n)
            .is_of_key()
        {
            continue;
        }
        let remember = || {
            let is_new = tracking.remember(threads, client, key, limits);
            if let (true, Some(_), Some(own)) = (is_new, draft_reads, own.as_deref_mut()) {
                own.new_keys.push(key.into());
            }
            is_new
        };
        match access {
            Access::Guarded(guard) => guard.begin_read(client.0, key, remember)?, // T3
            _ => {
                tracking.remember(threads, client, key, limits);
            }
        }
    }
    Ok(())
}

/// Remembers the client again, whose script was suspended, before the script is committed (T1).
#[cold]
pub(crate) fn note_reads_again(ctx: &mut Context<'_>, draft: &mut Draft) {
    if !remembers(ctx) {
        return;
    }
    let limits = tracking_limits(ctx);
    let client = (ctx.client.id(), ctx.client.record().thread);
    let (tracking, threads) = (ctx.shared.tracking(), &ctx.shared.threads);
    let mut own = ctx.client.tracking_mut();
    draft.remember_again(&mut |key| {
        let is_new = tracking.remember(threads, client, key, limits);
        if let (true, Some(own)) = (is_new, own.as_deref_mut()) {
            own.new_keys.push(key.into());
        }
        is_new
    });
}

/// Called when its request has run or was refused: `CLIENT CACHING` was for that one request. A
/// request of CLIENT keeps the mark, and a transaction is one request.
#[cold]
pub(crate) fn end_caching(client: &mut Client, spec: Option<&Spec>) {
    let is_of_client = spec.is_some_and(|spec| spec.container() == Some("client"));
    let in_multi = client.in_multi();
    if let Some(tracking) = client.tracking_mut() {
        tracking.new_keys = Vec::new(); // T4
        tracking.caching &= is_of_client || in_multi;
    }
}

/// The number of a client that does not want to hear of its own changes; `None` for other clients.
pub(crate) fn origin(client: &Client) -> Option<u64> {
    client.tracking()?.no_loop.then(|| client.id())
}
