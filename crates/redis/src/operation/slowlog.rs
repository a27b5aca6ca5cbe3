//! SLOWLOG.

use crate::command::context::{Context, Done, Failure};
use crate::figures::slow_log::ENTRY_BYTES;
use duramen_config::heap;
use duramen_wire::resp::number::parse_integer;

pub(crate) fn get(ctx: &mut Context<'_>) -> Done {
    if ctx.args.len() > 3 {
        return Err(Failure::Text(
            "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.",
        ));
    }
    let count = match ctx.args.get(2) {
        None => 10,
        Some(text) => {
            let count = parse_integer(text).filter(|count| *count >= -1);
            let wrong = Failure::Text("ERR count should be greater than or equal to -1");
            let count = count.ok_or(wrong)?;
            usize::try_from(count).unwrap_or(usize::MAX)
        }
    };
    let log = ctx.shared.commands.slow_log();
    ctx.reply().array(count.min(log.entries.len()));
    for entry in log.entries.iter().take(count) {
        ctx.fits()?;
        let mut reply = ctx.reply();
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
    ctx.integer(len as i64)
}

pub(crate) fn reset(ctx: &mut Context<'_>) -> Done {
    let entries = std::mem::take(&mut ctx.shared.commands.slow_log().entries);
    heap::freed(entries.len() * ENTRY_BYTES);
    ctx.ok()
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.help(&[
        "GET [<count>]",
        "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
        "    Entries are made of:",
        "    id, timestamp, time in microseconds, arguments array, client IP and port,",
        "    client name",
        "LEN",
        "    Return the length of the slowlog.",
        "RESET",
        "    Reset the slowlog.",
    ])
}
