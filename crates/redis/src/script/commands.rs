//! EVAL and its relatives, and SCRIPT.

use super::run as script_run;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::row::*;
use crate::command::store_access::Access;
use crate::state::script::cache::Killed;
use duramen_script::{Program, Script};
use duramen_wire::resp::number::parse_integer;
use std::sync::Arc;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("eval", -3, NOSCRIPT | STALE | MAY_REPLICATE | TIMED,
        doc(Topic::Scripting, "2.6.0", "Depends on the script that is executed", "Runs a script."),
        Keys::counted(2, CHANGES), Effect::Acts, Secrets::None, Run::Alone(eval))
            .differs("Runs on its own copy of its keys beside other clients, and again if one has changed.").names(Names::Script(ScriptName::Text)),
    row("eval_ro", -3, NOSCRIPT | STALE | TIMED,
        doc(Topic::Scripting, "7.0.0", "Depends on the script that is executed", "Runs a script that does not write."),
        Keys::counted(2, READS), Effect::Reads, Secrets::None, Run::Alone(eval_ro)).family(Family::Other),
    row("evalsha", -3, NOSCRIPT | STALE | MAY_REPLICATE | TIMED,
        doc(Topic::Scripting, "2.6.0", "Depends on the script that is executed", "Runs a script by its name."),
        Keys::counted(2, CHANGES), Effect::Acts, Secrets::None, Run::Alone(evalsha))
            .differs("As `EVAL`; 64 MiB of texts are kept.").names(Names::Script(ScriptName::Digest)),
    row("evalsha_ro", -3, NOSCRIPT | STALE | TIMED,
        doc(Topic::Scripting, "7.0.0", "Depends on the script that is executed", "Runs a script by its name, which does not write."),
        Keys::counted(2, READS), Effect::Reads, Secrets::None, Run::Alone(evalsha_ro)).family(Family::Other),
    container("script", doc(Topic::Scripting, "2.6.0", "Depends on the subcommand", "A container for commands about scripts.")),
    row("script|debug", 3, NOSCRIPT, doc(Topic::Scripting, "3.2.0", "O(1)", "Would switch the debugger of scripts on or off."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(debug))
            .differs("`YES` is an error."),
    row("script|exists", -3, NOSCRIPT | TELLS, doc(Topic::Scripting, "2.6.0", "O(N)", "Tells which scripts the server knows."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(exists)),
    row("script|flush", -2, NOSCRIPT, doc(Topic::Scripting, "2.6.0", "O(N)", "Forgets all scripts."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(flush)),
    row("script|help", 2, LOADING | STALE | TELLS, doc(Topic::Scripting, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
    row("script|kill", 2, NOSCRIPT | ALLOW_BUSY, doc(Topic::Scripting, "2.6.0", "O(1)", "Ends the scripts that run for long."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(kill))
            .differs("Ends all scripts that have taken longer than a slice; none is `UNKILLABLE`."),
    row("script|load", 3, NOSCRIPT | STALE, doc(Topic::Scripting, "2.6.0", "O(N)", "Makes a script known to the server."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(load))
            .differs("64 MiB of texts are kept; those used longest ago are forgotten."),
];

const NO_SCRIPT: Failure = Failure::Text("NOSCRIPT No matching script. Please use EVAL.");

/// The number of keys, which argument 2 has.
pub(crate) fn keys(ctx: &Context<'_>, not_a_number: Failure) -> Result<usize, Failure> {
    let number = parse_integer(ctx.arg(2)).ok_or(not_a_number)?;
    if number > ctx.request.args.len() as i64 - 3 {
        return Err(Failure::Text(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    usize::try_from(number).map_err(|_| Failure::Text("ERR Number of keys can't be negative"))
}

fn evaluate(ctx: &mut Context<'_>, access: Access<'_, '_>, by_name: bool, read_only: bool) -> Done {
    let cache = &ctx.shared.scripts().cache;
    let known = match by_name {
        true => Some(cache.get(ctx.arg(1)).ok_or(NO_SCRIPT)?),
        false => None,
    };
    let keys = keys(ctx, NOT_AN_INTEGER)?;
    let script = match known {
        Some(script) => script,
        None => match cache.get_text(ctx.arg(1)) {
            Some(script) => script,
            None => {
                let script = Arc::new(Script::new(ctx.arg(1))?);
                cache.put(Arc::clone(&script));
                script
            }
        },
    };
    let flags = script.flags;
    let program = Program::Script(script);
    script_run::run(ctx, access, &program, flags, keys, read_only)
}

pub(crate) fn eval(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    evaluate(ctx, access, false, false)
}

pub(crate) fn eval_ro(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    evaluate(ctx, access, false, true)
}

pub(crate) fn evalsha(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    evaluate(ctx, access, true, false)
}

pub(crate) fn evalsha_ro(ctx: &mut Context<'_>, access: Access<'_, '_>) -> Done {
    evaluate(ctx, access, true, true)
}

pub(crate) fn load(ctx: &mut Context<'_>) -> Done {
    let script = Arc::new(Script::new(ctx.arg(2))?);
    if let Some(text) = script_run::compile_error(ctx, &script)? {
        return Err(text.into());
    }
    ctx.shared.scripts().cache.put(Arc::clone(&script));
    ctx.reply.bulk(script.sha1.as_bytes())
}

pub(crate) fn exists(ctx: &mut Context<'_>) -> Done {
    let cache = &ctx.shared.scripts().cache;
    let names = ctx.request.args.skip(2).into_iter();
    let known: Vec<bool> = names.map(|name| cache.get(name).is_some()).collect();
    let mut reply = ctx.reply.encoder();
    reply.array(known.len());
    known
        .iter()
        .for_each(|known| reply.integer((*known).into()));
    Ok(())
}

pub(crate) fn flush(ctx: &mut Context<'_>) -> Done {
    let is_mode =
        |arg: &[u8]| arg.eq_ignore_ascii_case(b"sync") || arg.eq_ignore_ascii_case(b"async");
    if ctx.request.args.len() > 3 || ctx.request.args.get(2).is_some_and(|arg| !is_mode(arg)) {
        return Err(Failure::Text(
            "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
        ));
    }
    ctx.shared.scripts().cache.clear();
    ctx.shared.scripts().renew();
    ctx.reply.ok()
}

pub(crate) fn kill(ctx: &mut Context<'_>) -> Done {
    end_long(ctx, false)
}

/// Ends all long scripts, or all long functions, for `SCRIPT KILL` and `FUNCTION KILL`.
pub(crate) fn end_long(ctx: &mut Context<'_>, functions: bool) -> Done {
    let others = match functions {
        true => {
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
        }
        false => {
            "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
        }
    };
    match ctx.shared.scripts().kill(functions) {
        Killed::Some => ctx.reply.ok(),
        Killed::Others => Err(Failure::Text(others)),
        Killed::None => Err(Failure::Text("NOTBUSY No scripts in execution right now.")),
    }
}

pub(crate) fn debug(ctx: &mut Context<'_>) -> Done {
    match ctx.arg(2) {
        mode if mode.eq_ignore_ascii_case(b"no") => ctx.reply.ok(),
        mode if mode.eq_ignore_ascii_case(b"yes") || mode.eq_ignore_ascii_case(b"sync") => {
            Err(Failure::Text("ERR the debugger of scripts is not offered"))
        }
        _ => Err(SYNTAX),
    }
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "DEBUG (YES|SYNC|NO)",
            "    Set the debug mode for subsequent scripts executed.",
            "EXISTS <sha1> [<sha1> ...]",
            "    Return information about the existence of the scripts in the script cache.",
            "FLUSH [ASYNC|SYNC]",
            "    Flush the Lua scripts cache. Very dangerous on replicas.",
            "    When called without the optional mode argument, the behavior is determined by the",
            "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
            "    * ASYNC: Asynchronously flush the scripts cache.",
            "    * SYNC: Synchronously flush the scripts cache.",
            "KILL",
            "    Kill the currently executing Lua script.",
            "LOAD <script>",
            "    Load a script into the scripts cache without executing it.",
        ],
    )
}
