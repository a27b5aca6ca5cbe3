//! COMMAND: what the command table tells about itself.

use super::commands::COMMANDS;
use super::context::{Context, Done, Failure, SYNTAX};
use super::glob;
use super::table::{self, Group, Resolved, Spec, flag};
use duramen_wire::resp::Encoder;

/// Commands, without subcommands and without those that are refused.
fn offered() -> impl Iterator<Item = &'static Spec> {
    COMMANDS
        .iter()
        .filter(|spec| !spec.is_refused() && spec.container().is_none())
}

fn subcommands(container: &Spec) -> impl Iterator<Item = &'static Spec> {
    let name = container.name;
    COMMANDS
        .iter()
        .filter(move |spec| spec.container() == Some(name))
}

/// The command called `name` (`container|sub` for a subcommand), if it is offered.
fn lookup(name: &[u8]) -> Option<&'static Spec> {
    table::find(name).filter(|spec| !spec.is_refused())
}

pub(super) fn command(ctx: &mut Context<'_>) -> Done {
    let mut reply = ctx.reply();
    reply.array(offered().count());
    for spec in offered() {
        write_info(&mut reply, spec);
    }
    Ok(())
}

pub(super) fn count(ctx: &mut Context<'_>) -> Done {
    ctx.integer(offered().count() as i64)
}

pub(super) fn info(ctx: &mut Context<'_>) -> Done {
    if ctx.args.len() == 2 {
        return command(ctx);
    }
    let names = ctx.args.skip(2);
    let mut reply = ctx.reply();
    reply.array(names.len());
    for name in names {
        match lookup(name) {
            Some(spec) => write_info(&mut reply, spec),
            None => reply.null_array(),
        }
    }
    Ok(())
}

fn write_info(reply: &mut Encoder<'_>, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(spec.arity.into());
    let flags: Vec<&str> = names(spec, flag::NAMES);
    reply.set(flags.len());
    for name in flags {
        reply.simple(name);
    }
    reply.integer(spec.keys.first.into());
    reply.integer(spec.keys.last.into());
    reply.integer(spec.keys.step.into());
    let mut categories: Vec<&str> = names(spec, flag::CATEGORIES);
    if !spec.has(flag::FAST) {
        categories.push("@slow");
    }
    reply.set(categories.len());
    for name in categories {
        reply.simple(name);
    }
    reply.set(0);
    write_key_specs(reply, spec);
    reply.array(subcommands(spec).count());
    for sub in subcommands(spec) {
        write_info(reply, sub);
    }
}

fn names(spec: &Spec, table: &[(u32, &'static str)]) -> Vec<&'static str> {
    table
        .iter()
        .filter(|(bit, _)| spec.has(*bit))
        .map(|(_, name)| *name)
        .collect()
}

fn write_key_specs(reply: &mut Encoder<'_>, spec: &Spec) {
    if spec.keys.first == 0 {
        reply.set(0);
        return;
    }
    reply.set(1);
    reply.map(3);
    reply.bulk(b"flags");
    let flags = access(spec);
    reply.set(flags.len());
    for name in flags {
        reply.simple(name);
    }
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(spec.keys.first.into());
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    reply.bulk(b"lastkey");
    // Counted from the first key on, or from the end.
    let last = i64::from(spec.keys.last);
    reply.integer(if last < 0 {
        last
    } else {
        last - i64::from(spec.keys.first)
    });
    reply.bulk(b"keystep");
    reply.integer(spec.keys.step.into());
    reply.bulk(b"limit");
    reply.integer(0);
}

/// What a command does to its keys, in Redis's words.
fn access(spec: &Spec) -> &'static [&'static str] {
    match spec.name {
        "del" | "unlink" | "duramen.remove" | "duramen.mremove" => &["RM", "delete"],
        "set" | "getset" | "append" | "incr" | "decr" | "incrby" | "decrby" | "incrbyfloat"
        | "getex" | "setrange" => &["RW", "access", "update"],
        "getdel" => &["RW", "access", "delete"],
        "exists" | "touch" | "type" | "strlen" | "ttl" | "pttl" | "expiretime" | "pexpiretime"
        | "watch" => &["RO"],
        _ if spec.has(flag::READONLY) => &["RO", "access"],
        _ => &["OW", "update"],
    }
}

pub(super) fn docs(ctx: &mut Context<'_>) -> Done {
    let names = ctx.args.skip(2);
    let wanted: Vec<&Spec> = if names.is_empty() {
        offered().collect()
    } else {
        names.iter().filter_map(lookup).collect()
    };
    let mut reply = ctx.reply();
    reply.map(wanted.len());
    for spec in wanted {
        reply.bulk(spec.name.as_bytes());
        write_docs(&mut reply, spec);
    }
    Ok(())
}

fn write_docs(reply: &mut Encoder<'_>, spec: &Spec) {
    let subs = subcommands(spec).count();
    reply.map(4 + usize::from(subs > 0));
    for (field, text) in [
        ("summary", spec.summary),
        ("since", spec.since),
        ("group", spec.group.name()),
        ("complexity", spec.complexity),
    ] {
        reply.bulk(field.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if subs > 0 {
        reply.bulk(b"subcommands");
        reply.map(subs);
        for sub in subcommands(spec) {
            reply.bulk(sub.name.as_bytes());
            write_docs(reply, sub);
        }
    }
}

/// The command that the arguments from 2 on would run, if it has keys.
fn inner<'a>(ctx: &Context<'a>) -> Result<(&'static Spec, Vec<&'a [u8]>), Failure> {
    let args = ctx.args.skip(2);
    let spec = match table::resolve(&args) {
        Resolved::Command(spec) if !spec.is_refused() => spec,
        Resolved::Arity(_) => {
            return Err(Failure::Text(
                "ERR Invalid number of arguments specified for command",
            ));
        }
        _ => return Err(Failure::Text("ERR Invalid command specified")),
    };
    if spec.keys.first == 0 {
        return Err(Failure::Text("ERR The command has no key arguments"));
    }
    let keys = spec
        .key_positions(args.len())
        .filter_map(|at| args.get(at))
        .collect();
    Ok((spec, keys))
}

pub(super) fn getkeys(ctx: &mut Context<'_>) -> Done {
    let (_, keys) = inner(ctx)?;
    let mut reply = ctx.reply();
    reply.array(keys.len());
    for key in keys {
        reply.bulk(key);
    }
    Ok(())
}

pub(super) fn getkeysandflags(ctx: &mut Context<'_>) -> Done {
    let (spec, keys) = inner(ctx)?;
    let mut reply = ctx.reply();
    reply.array(keys.len());
    for key in keys {
        reply.array(2);
        reply.bulk(key);
        let flags = access(spec);
        reply.set(flags.len());
        for name in flags {
            reply.simple(name);
        }
    }
    Ok(())
}

pub(super) fn list(ctx: &mut Context<'_>) -> Done {
    let all = COMMANDS.iter().filter(|spec| !spec.is_refused());
    let wanted: Vec<&Spec> = match ctx.args.len() {
        2 => all.filter(|spec| spec.container().is_none()).collect(),
        5 if ctx.arg(2).eq_ignore_ascii_case(b"filterby") => {
            let (kind, what) = (ctx.arg(3), ctx.arg(4));
            if kind.eq_ignore_ascii_case(b"module") {
                Vec::new()
            } else if kind.eq_ignore_ascii_case(b"aclcat") {
                all.filter(|spec| in_category(spec, what)).collect()
            } else if kind.eq_ignore_ascii_case(b"pattern") {
                all.filter(|spec| glob::matches(what, spec.name.as_bytes(), true))
                    .collect()
            } else {
                return Err(SYNTAX);
            }
        }
        _ => return Err(SYNTAX),
    };
    let mut reply = ctx.reply();
    reply.array(wanted.len());
    for spec in wanted {
        reply.bulk(spec.name.as_bytes());
    }
    Ok(())
}

fn in_category(spec: &Spec, category: &[u8]) -> bool {
    let slow = category.eq_ignore_ascii_case(b"slow") && !spec.has(flag::FAST);
    slow || names(spec, flag::CATEGORIES).iter().any(|name| {
        name.strip_prefix('@')
            .is_some_and(|name| category.eq_ignore_ascii_case(name.as_bytes()))
    })
}

pub(super) fn help(ctx: &mut Context<'_>) -> Done {
    debug_assert!(
        COMMANDS
            .iter()
            .all(|spec| spec.is_refused() == (spec.group == Group::Foreign))
    );
    ctx.help(&[
        "(no subcommand)",
        "    Return details about all Redis commands.",
        "COUNT",
        "    Return the total number of commands in this Redis server.",
        "LIST",
        "    Return a list of all commands in this Redis server.",
        "INFO [<command-name> ...]",
        "    Return details about multiple Redis commands.",
        "    If no command names are given, documentation details for all",
        "    commands are returned.",
        "DOCS [<command-name> ...]",
        "    Return documentation details about multiple Redis commands.",
        "    If no command names are given, documentation details for all",
        "    commands are returned.",
        "GETKEYS <full-command>",
        "    Return the keys from a full Redis command.",
        "GETKEYSANDFLAGS <full-command>",
        "    Return the keys and the access flags from a full Redis command.",
    ])
}
