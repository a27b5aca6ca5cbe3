//! Small operations: TIME, ROLE, SHUTDOWN.

use super::persistence::NO_PERSISTENCE;
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::row::*;
use crate::command::turn::Ending;
use crate::operation::written;
use crate::reply::wait::Until;
use crate::threads::watch::Stop;
use duramen_wire::resp::number::IntegerText;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("time", 1, LOADING | STALE | FAST | TELLS, doc(Topic::Server, "2.6.0", "O(1)", "Returns the server's time."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(time)).tips(&["nondeterministic_output"]),
    row("role", 1, NOSCRIPT | LOADING | STALE | FAST | DANGEROUS | TELLS, doc(Topic::Server, "2.8.12", "O(1)", "Returns the role of this server."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(role)),
    row("shutdown", -1, ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY | DANGEROUS,
        doc(Topic::Server, "1.0.0", "O(N)", "Stops the server."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(shutdown))
            .differs("`NOSAVE` loses only writes that cannot reach the disk; without it such a stop is refused."),
    row("lolwut", -1, FAST | TELLS, doc(Topic::Server, "5.0.0", "O(1)", "Tells the version."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Plain(lolwut)),
    row("duramen.stuck", 1, NOSCRIPT | LOADING | STALE | TELLS,
        doc(Topic::Duramen, "0.1.0", "O(N) where N is the number of threads", "Tells which threads have not come back to their loops, and for how long."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(stuck)),
    row("replicaof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING | DANGEROUS,
        doc(Topic::Server, "5.0.0", "O(1)", "Accepts `NO ONE` alone: there are no replicas of single servers."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(replicaof)),
    row("slaveof", 3, ADMIN | NOSCRIPT | STALE | NO_ASYNC_LOADING | DANGEROUS, doc(Topic::Server, "1.0.0", "O(1)", "As REPLICAOF."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(replicaof)),
    container("module", doc(Topic::Server, "4.0.0", "Depends on the subcommand", "A container for commands about modules, of which there are none.")),
    row("module|list", 2, ADMIN | NOSCRIPT | TELLS, doc(Topic::Server, "4.0.0", "O(1)", "Returns an empty list."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(no_modules)).tips(&["nondeterministic_output_order"]),
    row("module|load", -3, ADMIN | NOSCRIPT | DANGEROUS, doc(Topic::Server, "4.0.0", "O(1)", "Refused: there are no modules."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(refuse_module)),
    row("module|loadex", -3, ADMIN | NOSCRIPT | DANGEROUS, doc(Topic::Server, "7.0.0", "O(1)", "Refused: there are no modules."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(refuse_module)),
    row("module|unload", 3, ADMIN | NOSCRIPT | DANGEROUS, doc(Topic::Server, "4.0.0", "O(1)", "Refused: there are no modules."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(refuse_module)),
    row("module|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(module_help)),
];

/// The reason for refusing replication.
pub(crate) const WHY_REPLICATION: &str =
    "a single server has no replicas; members of a cluster keep copies of each other's data";

/// Wall-clock time since the Unix epoch, for display.
pub(crate) fn unix_time() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

pub(crate) fn time(ctx: &mut Context<'_>) -> Done {
    let now = unix_time();
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(IntegerText::unsigned(now.as_secs()).as_bytes());
    reply.bulk(IntegerText::unsigned(now.subsec_micros().into()).as_bytes());
    Ok(())
}

/// `DURAMEN.STUCK`: the waiting threads, and how long they have waited. A stuck thread answers no
/// client, but the other threads do, and so does `/livez`.
pub(crate) fn stuck(ctx: &mut Context<'_>) -> Done {
    let table = ctx.shared.table_of_waits();
    ctx.reply.encoder().verbatim("txt", &table);
    Ok(())
}

pub(crate) fn role(ctx: &mut Context<'_>) -> Done {
    let mut reply = ctx.reply.encoder();
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
    Ok(())
}

/// Handles REPLICAOF. A server that is no replica has nothing to end. A member of a cluster answers
/// as Redis does.
pub(crate) fn replicaof(ctx: &mut Context<'_>) -> Done {
    ctx.not_in_cluster("REPLICAOF")?;
    let is_end = ctx.arg(1).eq_ignore_ascii_case(b"no") && ctx.arg(2).eq_ignore_ascii_case(b"one");
    match is_end {
        true => ctx.reply.ok(),
        false => Err(ctx.request.spec.refusal(WHY_REPLICATION).into()),
    }
}

pub(crate) fn shutdown(ctx: &mut Context<'_>) -> Done {
    let (mut save, mut nosave, mut now, mut abort, mut force) = (false, false, false, false, false);
    for option in ctx.request.args.skip(1) {
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
    if save && ctx.shared.durability().is_none() {
        return Err(NO_PERSISTENCE);
    }
    let how = if now { Stop::AtOnce } else { Stop::Graceful };
    match written::stop(ctx.shared, how, nosave || force) {
        None => ctx.turn.ending = Ending::CloseAfterReply,
        Some(stopping) => {
            // The text of the error is Redis's. It is sent unless the server stops.
            const REFUSED: &[u8] = b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n";
            ctx.reply.append(REFUSED);
            ctx.client.wait.then(Until::Stop(stopping), REFUSED);
            ctx.turn.ending = Ending::Held;
        }
    }
    Ok(())
}

/// MODULE LIST: tools request it to detect further abilities of a server.
pub(crate) fn no_modules(ctx: &mut Context<'_>) -> Done {
    ctx.reply.encoder().array(0);
    Ok(())
}

pub(crate) fn refuse_module(_: &mut Context<'_>) -> Done {
    Err(Failure::Text(
        "ERR MODULE is not supported: there are no modules",
    ))
}

pub(crate) fn module_help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &["LIST", "    Return a list of loaded modules: an empty one."],
    )
}

pub(crate) fn lolwut(ctx: &mut Context<'_>) -> Done {
    ctx.reply.encoder().verbatim(
        "txt",
        concat!("Duramen ver. ", env!("CARGO_PKG_VERSION"), "\n"),
    );
    Ok(())
}
