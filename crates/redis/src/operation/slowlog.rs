//! SLOWLOG: reads and resets the entries of the slow log.

use crate::command::context::{Context, Done, Failure};
use crate::command::row::*;
use crate::figures::slow_log::ENTRY_BYTES;
use duramen_config::heap;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("slowlog", doc(Topic::Server, "2.2.12", "Depends on the subcommand", "A container for commands about slow requests.")),
    row("slowlog|get", -2, ADMIN | LOADING | STALE | DANGEROUS | REPORTS, doc(Topic::Server, "2.2.12", "O(N)", "Returns the newest entries."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(get)).tips(&["request_policy:all_nodes", "nondeterministic_output"]),
    row("slowlog|len", 2, ADMIN | LOADING | STALE | DANGEROUS | TELLS, doc(Topic::Server, "2.2.12", "O(1)", "Returns the number of entries."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(len))
        .tips(&["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"]),
    row("slowlog|reset", 2, ADMIN | LOADING | STALE | DANGEROUS, doc(Topic::Server, "2.2.12", "O(N)", "Removes all entries."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(reset)).tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    row("slowlog|help", 2, LOADING | STALE | TELLS, doc(Topic::Server, "6.2.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
];

pub(crate) fn get(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() > 3 {
        return Err(Failure::Text(
            "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.",
        ));
    }
    let count = match ctx.request.args.get(2) {
        None => 10,
        Some(text) => {
            let count = parse_integer(text).filter(|count| *count >= -1);
            let wrong = Failure::Text("ERR count should be greater than or equal to -1");
            let count = count.ok_or(wrong)?;
            usize::try_from(count).unwrap_or(usize::MAX)
        }
    };
    let log = ctx.shared.commands.slow_log();
    ctx.reply.encoder().array(count.min(log.entries.len()));
    for entry in log.entries.iter().take(count) {
        ctx.reply.fits()?;
        let mut reply = ctx.reply.encoder();
        reply.array(6);
        reply.integer(entry.id);
        reply.integer(entry.unix_s as i64);
        reply.integer(entry.took_us as i64);
        reply.array(entry.args.len());
        for arg in &entry.args {
            reply.bulk(arg);
        }
        reply.bulk(entry.peer.as_bytes());
        reply.bulk(entry.name.as_bytes());
    }
    Ok(())
}

pub(crate) fn len(ctx: &mut Context<'_>) -> Done {
    let len = ctx.shared.commands.slow_log().entries.len();
    ctx.reply.integer(len as i64)
}

pub(crate) fn reset(ctx: &mut Context<'_>) -> Done {
    let entries = std::mem::take(&mut ctx.shared.commands.slow_log().entries);
    heap::freed(entries.len() * ENTRY_BYTES);
    ctx.reply.ok()
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "GET [<count>]",
            "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
            "    Entries are made of:",
            "    id, timestamp, time in microseconds, arguments array, client IP and port,",
            "    client name",
            "LEN",
            "    Return the length of the slowlog.",
            "RESET",
            "    Reset the slowlog.",
        ],
    )
}
