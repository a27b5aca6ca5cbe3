//! The effects of commands without keys, besides their replies. EXEC decides by them whether its
//! queue can be taken back, and what may be left out when no client sees its reply.

use super::spec::{Spec, flag};

/// Whether a command has no effect but its reply.
pub(crate) fn only_answers(spec: &Spec) -> bool {
    spec.has(flag::READONLY) || reports(spec) || tells(spec)
}

/// Whether a command changes more than data: that cannot be taken back. Messages, and the
/// name of the client's connection, count as data: they come with the commit, or again.
pub(crate) fn acts(spec: &Spec) -> bool {
    let is_with_data = matches!(
        spec.name,
        "select" | "publish" | "client|setname" | "client|setinfo"
    );
    // A draft has no form for a walk over a slot.
    let walks_slot = spec.has(flag::WHOLE) && !spec.has(flag::READONLY);
    !spec.has_keys() && !is_with_data && (walks_slot || !only_answers(spec))
}

/// Whether a command reports the state of the server and has no other effect. It may take
/// milliseconds.
pub(crate) fn reports(spec: &Spec) -> bool {
    let (name, subcommand) = spec.name.split_once('|').unwrap_or((spec.name, ""));
    match name {
        "info" | "command" | "cluster" => true,
        "client" => matches!(subcommand, "list" | "info"),
        "slowlog" => subcommand == "get",
        "latency" => matches!(
            subcommand,
            "histogram" | "history" | "latest" | "doctor" | "graph"
        ),
        "memory" => matches!(subcommand, "stats" | "doctor" | "malloc-stats"),
        "config" => subcommand == "get",
        "duramen.table" => subcommand == "list",
        "acl" => matches!(subcommand, "getuser" | "list" | "users"),
        "function" => matches!(subcommand, "dump" | "list"),
        "pubsub" => matches!(subcommand, "channels" | "shardchannels"),
        _ => false,
    }
}

/// Whether a command tells something short and has no other effect, within EXEC at least.
fn tells(spec: &Spec) -> bool {
    let (name, subcommand) = spec.name.split_once('|').unwrap_or((spec.name, ""));
    match name {
        _ if subcommand == "help" => true,
        // Within EXEC, WAIT does not wait, and no key is watched any more.
        "wait" | "waitaof" | "unwatch" => true,
        "ping" | "echo" | "time" | "role" | "lastsave" | "lolwut" | "pubsub" | "duramen.stuck" => {
            true
        }
        "asking" | "readonly" | "readwrite" => true,
        "client" => matches!(subcommand, "id" | "getname" | "getredir" | "trackinginfo"),
        "script" => subcommand == "exists",
        "function" => subcommand == "stats",
        "slowlog" => subcommand == "len",
        "module" => subcommand == "list",
        "acl" => matches!(subcommand, "cat" | "dryrun" | "genpass" | "whoami"),
        _ => false,
    }
}
