//! Commands about what survives: SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, WAIT, WAITAOF, DURAMEN.SNAPSHOT,
//! DURAMEN.SCRUB.
//!
//! The log is the durable copy, and writing to it is part of every write: there is nothing to flush. So SAVE and BGSAVE
//! make what else they are used for, a consistent copy in a directory of its own, while everybody goes on.

use super::admit;
use super::client::Verdict;
use super::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use super::wait::Until;
use crate::durability::{Durability, Target};
use crate::shared::Shared;
use duramen_base::ids::Level;
use duramen_engine::{Log, Position};
use duramen_wire::resp::number::parse_integer;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const NO_PERSISTENCE: Failure = Failure::Text(
    "ERR nothing is saved: this server keeps data in memory only (level memory); start it with --dir to keep it",
);

fn durability(shared: &Shared) -> Result<&Arc<Durability>, Failure> {
    shared.durability().ok_or(NO_PERSISTENCE)
}

/// When the last snapshot was done.
pub(super) fn lastsave(ctx: &mut Context<'_>) -> Done {
    let saved_s = ctx
        .shared
        .durability()
        .map_or(0, |durability| durability.saved_s());
    ctx.integer(saved_s as i64)
}

/// The reply waits for the snapshot; everybody else goes on.
pub(super) fn save(ctx: &mut Context<'_>) -> Done {
    let job = durability(ctx.shared)?.snapshot(ctx.shared, Target::Dump)?;
    const OK: &[u8] = b"+OK\r\n";
    ctx.out.extend_from_slice(OK);
    ctx.client.wait.then(Until::Job(job), OK);
    ctx.client.verdict = Verdict::Held;
    Ok(())
}

pub(super) fn bgsave(ctx: &mut Context<'_>) -> Done {
    let schedule = match ctx.args.get(1) {
        None => false,
        Some(word) if ctx.args.len() == 2 && word.eq_ignore_ascii_case(b"schedule") => true,
        Some(_) => return Err(SYNTAX),
    };
    let durability = durability(ctx.shared)?;
    if schedule && durability.snapshot_running() {
        durability.snapshot_after(Target::Dump);
        ctx.reply().simple("Background saving scheduled");
        return Ok(());
    }
    durability.snapshot(ctx.shared, Target::Dump)?;
    ctx.reply().simple("Background saving started");
    Ok(())
}

/// The log rewrites itself all the time: that is what cleaning is.
pub(super) fn bgrewriteaof(ctx: &mut Context<'_>) -> Done {
    durability(ctx.shared)?;
    ctx.reply()
        .simple("Background append only file rewriting started");
    Ok(())
}

/// `DURAMEN.SNAPSHOT directory`: a copy there, in the background; `INFO persistence` tells how far it is.
pub(super) fn snapshot(ctx: &mut Context<'_>) -> Done {
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
    durability(ctx.shared)?.snapshot(ctx.shared, Target::Directory(dir))?;
    ctx.ok()
}

/// `DURAMEN.SCRUB`: all frames are read again and verified, in the background; `INFO persistence` tells how far it is.
pub(super) fn scrub(ctx: &mut Context<'_>) -> Done {
    let frames = durability(ctx.shared)?.scrub();
    ctx.integer(frames as i64)
}

/// No replica has acknowledged anything, and none will: there is no point in waiting for the timeout.
pub(super) fn wait(ctx: &mut Context<'_>) -> Done {
    parse_integer(ctx.arg(1)).ok_or(NOT_AN_INTEGER)?;
    check_timeout(ctx.arg(2))?;
    ctx.integer(0)
}

/// How many have everything that this connection wrote on stable storage: this server, then replicas (there are none).
pub(super) fn waitaof(ctx: &mut Context<'_>) -> Done {
    let local = parse_integer(ctx.arg(1)).ok_or(NOT_AN_INTEGER)?;
    if !(0..=1).contains(&local) {
        return Err(Failure::Text(
            "ERR value is out of range, must be between 0 and 1",
        ));
    }
    let replicas = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    if replicas < 0 {
        return Err(Failure::Text("ERR value is out of range, must be positive"));
    }
    let timeout_ms = check_timeout(ctx.arg(3))?;
    let Some(durability) = ctx.shared.durability() else {
        if local > 0 {
            return Err(Failure::Text(
                "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            ));
        }
        ctx.out.extend_from_slice(NONE);
        return Ok(());
    };
    const NONE: &[u8] = b"*2\r\n:0\r\n:0\r\n";
    const LOCAL: &[u8] = b"*2\r\n:1\r\n:0\r\n";
    let position = ctx
        .shared
        .store()
        .log()
        .map_or_else(Position::default, Log::appended);
    if position.is_none() || durability.reached(&position) == Level::Synced {
        ctx.out.extend_from_slice(LOCAL);
        return Ok(());
    }
    // In a transaction nothing waits, as in Redis.
    if local == 0 || ctx.locked {
        ctx.out.extend_from_slice(NONE);
        return Ok(());
    }
    let deadline_ms = if timeout_ms == 0 {
        0
    } else {
        admit::now_ms().saturating_add(timeout_ms)
    };
    ctx.out.extend_from_slice(LOCAL);
    ctx.client.wait.then(
        Until::Synced {
            position,
            deadline_ms,
        },
        LOCAL,
    );
    ctx.client.verdict = Verdict::Held;
    Ok(())
}

fn check_timeout(text: &[u8]) -> Result<u64, Failure> {
    let timeout_ms = parse_integer(text).ok_or(Failure::Text(
        "ERR timeout is not an integer or out of range",
    ))?;
    u64::try_from(timeout_ms).map_err(|_| Failure::Text("ERR timeout is negative"))
}
