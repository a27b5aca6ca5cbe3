//! The commands that scripts may call, and the errors for others.

use crate::command::context::Context;
use crate::command::flag;
use crate::command::lookup::Resolved;
use crate::command::permit::Permit;
use crate::command::spec::{Commands, Kind, Spec};
use duramen_script::Arguments;
use duramen_wire::resp::{Args, Requests};

pub(crate) fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

/// The command of a call, or the text of an error.
pub(crate) fn resolve(commands: &Commands, args: &Args<'_>) -> Result<&'static Spec, &'static str> {
    match commands.resolve(args) {
        Resolved::Command(spec) => Ok(spec),
        Resolved::Arity(_) => Err("ERR Wrong number of args calling Redis command from script"),
        Resolved::UnknownCommand | Resolved::UnknownSubcommand(_) => {
            Err("ERR Unknown Redis command called from script")
        }
    }
}

/// Whether a script may call a command at all. Commands that change a whole table or walk over a
/// slot have no form in a draft. The versions that Duramen's own commands return are known only at
/// the commit.
pub(crate) fn may_call(spec: &Spec) -> bool {
    let is_whole = spec.has(flag::WHOLE) && !spec.has(flag::READONLY);
    !spec.has(flag::NOSCRIPT) && !is_whole && !spec.is_own()
}

pub(crate) fn refusal(spec: &Spec) -> Option<String> {
    match spec.kind() {
        Kind::Refused(reason) => Some(spec.refusal(reason)),
        _ => None,
    }
}

/// `redis.acl_check_cmd`: replies whether the user may run a command.
pub(crate) fn allowed(ctx: &Context<'_>, texts: &Arguments) -> Vec<u8> {
    let mut requests = Requests::new();
    if !requests.push_slices(texts.iter()) {
        return error("ERR the arguments are too long");
    }
    let args = requests.args(0, &[]);
    let spec = match ctx.commands.resolve(&args) {
        Resolved::Command(spec) | Resolved::Arity(spec) => spec,
        _ => return error("ERR Invalid command passed to redis.acl_check_cmd()"),
    };
    let may = Permit::check(spec, &args, ctx.client, ctx.table, ctx.shared).is_ok();
    format!(":{}\r\n", u8::from(may)).into_bytes()
}
