//! Operations that are small: TIME, ROLE, SAVE and its relatives, WAIT, SHUTDOWN.

use super::client::Verdict;
use super::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::shared::Stop;
use duramen_wire::resp::number::{IntegerText, parse_integer};
use std::time::{SystemTime, UNIX_EPOCH};

const NO_PERSISTENCE: Failure = Failure::Text(
    "ERR nothing is saved: this server keeps data in memory only (level memory); persistence comes with the durable server",
);

/// A container is never run without a subcommand: its arity forbids it.
pub(super) fn container(_: &mut Context<'_>) -> Done {
    Err(SYNTAX)
}

pub(super) fn time(ctx: &mut Context<'_>) -> Done {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut reply = ctx.reply();
    reply.array(2);
    reply.bulk(IntegerText::unsigned(now.as_secs()).as_bytes());
    reply.bulk(IntegerText::unsigned(now.subsec_micros().into()).as_bytes());
    Ok(())
}

pub(super) fn role(ctx: &mut Context<'_>) -> Done {
    let mut reply = ctx.reply();
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
    Ok(())
}

/// Never.
pub(super) fn lastsave(ctx: &mut Context<'_>) -> Done {
    ctx.integer(0)
}

pub(super) fn save(_: &mut Context<'_>) -> Done {
    Err(NO_PERSISTENCE)
}

/// No replica has acknowledged anything, and none will: there is no point in waiting for the timeout.
pub(super) fn wait(ctx: &mut Context<'_>) -> Done {
    parse_integer(ctx.arg(1)).ok_or(NOT_AN_INTEGER)?;
    check_timeout(ctx.arg(2))?;
    ctx.integer(0)
}

/// As [`wait`]; nothing is on a local disk either.
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
    check_timeout(ctx.arg(3))?;
    if local > 0 {
        return Err(Failure::Text(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    let mut reply = ctx.reply();
    reply.array(2);
    reply.integer(0);
    reply.integer(0);
    Ok(())
}

fn check_timeout(text: &[u8]) -> Done {
    let timeout_ms = parse_integer(text).ok_or(Failure::Text(
        "ERR timeout is not an integer or out of range",
    ))?;
    if timeout_ms < 0 {
        return Err(Failure::Text("ERR timeout is negative"));
    }
    Ok(())
}

pub(super) fn shutdown(ctx: &mut Context<'_>) -> Done {
    let (mut save, mut nosave, mut now, mut abort, mut force) = (false, false, false, false, false);
    for option in ctx.args.skip(1) {
        let flag = match option.to_ascii_lowercase().as_slice() {
            b"save" => &mut save,
            b"nosave" => &mut nosave,
            b"now" => &mut now,
            b"abort" => &mut abort,
            b"force" => &mut force,
            _ => return Err(SYNTAX),
        };
        *flag = true;
    }
    if abort && (save || nosave || now || force) || save && nosave {
        return Err(SYNTAX);
    }
    if abort {
        return Err(Failure::Text("ERR No shutdown in progress."));
    }
    if save {
        return Err(NO_PERSISTENCE);
    }
    ctx.shared
        .stop(if now { Stop::AtOnce } else { Stop::Graceful });
    ctx.client.verdict = Verdict::CloseAfterReply;
    Ok(())
}

pub(super) fn lolwut(ctx: &mut Context<'_>) -> Done {
    ctx.reply().verbatim(
        "txt",
        concat!("Duramen ver. ", env!("CARGO_PKG_VERSION"), "\n"),
    );
    Ok(())
}
