//! The flags that a script declares: they are checked as Redis checks them.

use crate::command::context::{Context, Done, Failure};
use duramen_engine::Guard;
use duramen_script::Flags;

/// Makes the checks of Redis before the run of a script that declares its flags.
pub(super) fn check_flags(ctx: &Context<'_>, guard: &Guard<'_>, flags: Flags, by_ro: bool) -> Done {
    if !flags.declared {
        return Ok(());
    }
    if flags.no_cluster && ctx.shared.membership().is_some() {
        return Err(Failure::Text(
            "ERR Can not run script on cluster, 'no-cluster' flag is set.",
        ));
    }
    if !flags.no_writes && by_ro {
        return Err(Failure::Text(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    if !flags.no_writes && !flags.allow_oom && guard.pin().is_full() {
        return Err(Failure::Text(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    Ok(())
}
