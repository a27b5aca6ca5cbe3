//! Commands about durability: SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, WAIT, WAITAOF,
//! DURAMEN.SNAPSHOT, DURAMEN.SCRUB.
//!
//! The log is the durable copy, and every write includes writing to the log: there is nothing to
//! flush. So SAVE and BGSAVE do the other thing that they are used for: they make a consistent copy
//! in its own directory, while all clients continue.

use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use crate::command::turn::Ending;
use crate::durability::{Durability, Target};
use crate::operation::written;
use crate::reply::wait::Until;
use crate::state::Shared;
use duramen_base::ids::Level;
use duramen_config::clock;
use duramen_engine::{Log, Position};
use duramen_wire::resp::number::parse_integer;
use std::path::PathBuf;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("lastsave", 1, LOADING | STALE | FAST | DANGEROUS | TELLS, doc(Topic::Server, "1.0.0", "O(1)", "Returns when the data was last saved."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(lastsave)).tips(&["nondeterministic_output"]),
    row("save", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | NO_MULTI | DANGEROUS, doc(Topic::Server, "1.0.0", "O(N)", "Saves the data."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(save))
            .differs("Makes a data directory, `snapshots/dump`; only its own client waits."),
    row("bgsave", -1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | DANGEROUS, doc(Topic::Server, "1.0.0", "O(1)", "Saves the data in the background."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(bgsave))
            .differs("Makes a data directory, `snapshots/dump`, without a fork."),
    row("bgrewriteaof", 1, ADMIN | NOSCRIPT | NO_ASYNC_LOADING | DANGEROUS, doc(Topic::Server, "1.0.0", "O(1)", "Rewrites the append-only file."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(bgrewriteaof))
            .differs("Accepted without effect: cleaning goes on all the time."),
    row("wait", 3, NOSCRIPT | CONNECTION | TELLS, doc(Topic::Generic, "3.0.0", "O(1)", "Waits for replicas."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(wait))
            .differs("Replies 0 at once if the server belongs to no cluster.").tips(&["request_policy:all_shards", "response_policy:agg_min"]),
    row("waitaof", 4, NOSCRIPT | BLOCKING | CONNECTION | TELLS, doc(Topic::Generic, "7.2.0", "O(1)", "Waits for the append-only file."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(waitaof))
            .differs("Waits for everything written so far, not for this connection's writes alone."),
    row("duramen.scrub", 1, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS,
        doc(Topic::Duramen, "0.2.0", "O(N)", "Verifies all data on disk, in the background."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(scrub)),
    row("duramen.snapshot", -2, ADMIN | NOSCRIPT | NO_MULTI | DANGEROUS,
        doc(Topic::Duramen, "0.2.0", "O(N)", "Copies all data into a new directory, in the background."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(snapshot)),
];

pub(crate) const NO_PERSISTENCE: Failure = Failure::Text(
    "ERR nothing is saved: this server keeps data in memory only (level memory); start it with --dir to keep it",
);

/// Maximum number of snapshots to keep: each of them is looked at.
const KEPT_MAX: usize = 10_000;

const WITH_OTHERS: Failure = Failure::Text(
    "ERR this server is a member of a cluster: other members keep its log, and it has nothing of its own to copy or to verify",
);

fn durability(shared: &Shared) -> Result<&Arc<Durability>, Failure> {
    shared.durability().ok_or(NO_PERSISTENCE)
}

/// The durable layer, for commands that read this server's own copy of its log.
fn own_copy(shared: &Shared) -> Result<&Arc<Durability>, Failure> {
    match shared.membership() {
        None => durability(shared),
        Some(_) => Err(WITH_OTHERS),
    }
}

/// Time of the last snapshot.
pub(crate) fn lastsave(ctx: &mut Context<'_>) -> Done {
    let saved_s = ctx
        .shared
        .durability()
        .map_or(0, |durability| durability.saved_s());
    ctx.reply.integer(saved_s as i64)
}

/// The reply waits for the snapshot; other clients continue.
pub(crate) fn save(ctx: &mut Context<'_>) -> Done {
    let job = written::snapshot(ctx.shared, own_copy(ctx.shared)?, Target::Dump)?;
    const OK: &[u8] = b"+OK\r\n";
    ctx.reply.append(OK);
    ctx.client.wait.then(Until::Job(job), OK);
    ctx.turn.ending = Ending::Held;
    Ok(())
}

pub(crate) fn bgsave(ctx: &mut Context<'_>) -> Done {
    let schedule = match ctx.request.args.get(1) {
        None => false,
        Some(word) if ctx.request.args.len() == 2 && word.eq_ignore_ascii_case(b"schedule") => true,
        Some(_) => return Err(SYNTAX),
    };
    let durability = own_copy(ctx.shared)?;
    if schedule && durability.snapshot_running() {
        durability.snapshot_after(Target::Dump);
        ctx.reply.encoder().simple("Background saving scheduled");
        return Ok(());
    }
    written::snapshot(ctx.shared, durability, Target::Dump)?;
    ctx.reply.encoder().simple("Background saving started");
    Ok(())
}

/// Handles BGREWRITEAOF, which has nothing to do: cleaning rewrites the log continuously.
pub(crate) fn bgrewriteaof(ctx: &mut Context<'_>) -> Done {
    durability(ctx.shared)?;
    ctx.reply
        .encoder()
        .simple("Background append only file rewriting started");
    Ok(())
}

/// `DURAMEN.SNAPSHOT directory [REPLACE | KEEP number]`: makes a copy in the directory, in the
/// background; `INFO persistence` shows its progress. With REPLACE, the complete copy replaces the
/// snapshot that is there. With KEEP, the copy gets a new name in that folder, and only the newest
/// snapshots stay.
pub(crate) fn snapshot(ctx: &mut Context<'_>) -> Done {
    let text = String::from_utf8(ctx.arg(1).to_vec())
        .map_err(|_| Failure::Text("ERR the directory's name is not UTF-8"))?;
    let dir = PathBuf::from(text);
    if !dir.is_absolute() {
        return Err(format!(
            "ERR `{}` is relative, and the server's working directory is not yours: give an absolute path",
            dir.display()
        )
        .into());
    }
    let option = ctx
        .request
        .args
        .get(2)
        .map(|word| word.to_ascii_uppercase());
    let target = match (option.as_deref(), ctx.request.args.get(3)) {
        (None, _) => Target::Directory(dir),
        (Some(b"REPLACE"), None) => Target::Replacing(dir),
        (Some(b"KEEP"), Some(number)) if ctx.request.args.len() == 4 => Target::Numbered {
            folder: dir,
            keep: parse_integer(number)
                .and_then(|number| usize::try_from(number).ok())
                .filter(|number| (1..=KEPT_MAX).contains(number))
                .ok_or(Failure::Text("ERR KEEP takes a number from 1 to 10000"))?,
        },
        _ => return Err(SYNTAX),
    };
    written::snapshot(ctx.shared, own_copy(ctx.shared)?, target)?;
    ctx.reply.ok()
}

/// `DURAMEN.SCRUB`: reads and verifies all frames, in the background; `INFO persistence` shows its
/// progress.
pub(crate) fn scrub(ctx: &mut Context<'_>) -> Done {
    let frames = own_copy(ctx.shared)?.store().scrub().unwrap_or(0);
    ctx.reply.integer(frames as i64)
}

/// Handles WAIT: replies with the number of other servers that have everything written so far. A
/// single server has none and never will, so waiting is pointless.
pub(crate) fn wait(ctx: &mut Context<'_>) -> Done {
    let wanted = parse_integer(ctx.arg(1)).ok_or(NOT_AN_INTEGER)?;
    let timeout_ms = check_timeout(ctx.arg(2))?;
    let replicas = replicas(ctx.shared);
    let reply_if_reached = format!(":{replicas}\r\n");
    let request = WaitRequest {
        level: Level::Buffered,
        worth: wanted > 0 && replicas > 0,
        timeout_ms,
        reply_if_reached: reply_if_reached.as_bytes(),
        late: b":0\r\n",
    };
    wait_for(ctx, &request);
    Ok(())
}

/// Handles WAITAOF: replies with the numbers of servers that have everything written so far on
/// stable storage, first of this server, then of others. A member of a cluster stores nothing of
/// its own log itself.
pub(crate) fn waitaof(ctx: &mut Context<'_>) -> Done {
    let local = parse_integer(ctx.arg(1)).ok_or(NOT_AN_INTEGER)?;
    if !(0..=1).contains(&local) {
        return Err(Failure::Text(
            "ERR value is out of range, must be between 0 and 1",
        ));
    }
    let wanted = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    if wanted < 0 {
        return Err(Failure::Text("ERR value is out of range, must be positive"));
    }
    let timeout_ms = check_timeout(ctx.arg(3))?;
    if local > 0 && ctx.shared.durability().is_none() {
        return Err(Failure::Text(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    let replicas = replicas(ctx.shared);
    let here = u8::from(replicas == 0);
    let reply_if_reached = format!("*2\r\n:{here}\r\n:{replicas}\r\n");
    let request = WaitRequest {
        level: Level::Synced,
        worth: local > 0 || wanted > 0 && replicas > 0,
        timeout_ms,
        reply_if_reached: reply_if_reached.as_bytes(),
        late: b"*2\r\n:0\r\n:0\r\n",
    };
    wait_for(ctx, &request);
    Ok(())
}

/// Number of other servers that have a write when it has reached its level.
fn replicas(shared: &Shared) -> usize {
    let durability = shared.durability();
    durability.map_or(0, |durability| durability.replicas())
}

/// Parameters of a WAIT or WAITAOF.
struct WaitRequest<'a> {
    level: Level,
    /// Whether at least a part of the request can be fulfilled.
    worth: bool,
    /// 0 = for ever.
    timeout_ms: u64,
    /// The reply when everything has the level.
    reply_if_reached: &'a [u8],
    /// The reply if that takes too long.
    late: &'static [u8],
}

fn wait_for(ctx: &mut Context<'_>, request: &WaitRequest<'_>) {
    let Some(durability) = ctx.shared.durability() else {
        return ctx.reply.append(request.late);
    };
    let log = ctx.shared.store().log();
    let position = log.map_or_else(Position::default, Log::appended);
    if position.is_none() || durability.log().reached(&position) >= request.level {
        return ctx.reply.append(request.reply_if_reached);
    }
    // Commands in a transaction do not wait, as in Redis.
    if !request.worth || ctx.locked {
        return ctx.reply.append(request.late);
    }
    let deadline_ms = match request.timeout_ms {
        0 => 0,
        timeout_ms => clock::now_ms().saturating_add(timeout_ms),
    };
    ctx.reply.append(request.reply_if_reached);
    let until = Until::Reached {
        position,
        level: request.level,
        deadline_ms,
        late: request.late,
    };
    ctx.client.wait.then(until, request.reply_if_reached);
    ctx.turn.ending = Ending::Held;
}

fn check_timeout(text: &[u8]) -> Result<u64, Failure> {
    let timeout_ms = parse_integer(text).ok_or(Failure::Text(
        "ERR timeout is not an integer or out of range",
    ))?;
    u64::try_from(timeout_ms).map_err(|_| Failure::Text("ERR timeout is negative"))
}
