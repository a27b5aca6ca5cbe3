//! COMMAND: describes the commands of the command table.

use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::key_access::KeyAccess;
use crate::command::lookup::Resolved;
use crate::command::spec::{Commands, Group, Spec, flag};
use crate::command::walk::LONG_PATTERN;
use duramen_base::glob::Pattern;
use duramen_wire::resp::Encoder;

/// Maximum number of names in one request, and of the commands and subcommands that they stand for.
pub(crate) const NAMES_MAX: usize = 1_024;
const TOO_MANY_NAMES: Failure =
    Failure::Text("ERR more than 1024 names of commands, subcommands included");
/// Maximum number of keys that one request may ask for.
const KEYS_MAX: usize = 1_024;

/// Commands without subcommands, refused ones excluded.
fn offered(commands: &Commands) -> impl Iterator<Item = &'static Spec> + use<> {
    commands
        .rows()
        .iter()
        .filter(|spec| !spec.is_refused() && spec.container().is_none())
}

fn subcommands(
    commands: &Commands,
    container: &Spec,
) -> impl Iterator<Item = &'static Spec> + use<> {
    let name = container.name;
    let searched = if container.has(flag::CONTAINER) {
        commands.rows()
    } else {
        &[]
    };
    searched
        .iter()
        .filter(move |spec| spec.container() == Some(name))
}

/// The command called `name` (`container|sub` for a subcommand), if it is offered.
fn lookup(commands: &Commands, name: &[u8]) -> Option<&'static Spec> {
    commands.find(name).filter(|spec| !spec.is_refused())
}

pub(crate) fn command(ctx: &mut Context<'_>) -> Done {
    let commands = ctx.commands;
    let mut reply = ctx.reply();
    reply.array(offered(commands).count());
    for spec in offered(commands) {
        write_info(&mut reply, commands, spec);
    }
    Ok(())
}

pub(crate) fn count(ctx: &mut Context<'_>) -> Done {
    ctx.integer(offered(ctx.commands).count() as i64)
}

pub(crate) fn info(ctx: &mut Context<'_>) -> Done {
    if ctx.args.len() == 2 {
        return command(ctx);
    }
    let (found, commands) = (named(ctx)?, ctx.commands);
    let mut reply = ctx.reply();
    reply.array(found.len());
    for spec in found {
        match spec {
            Some(spec) => write_info(&mut reply, commands, spec),
            None => reply.null(),
        }
    }
    Ok(())
}

/// The commands that COMMAND INFO and COMMAND DOCS are given by name; `None` for a name that none
/// has. A command's description has kilobytes.
fn named(ctx: &Context<'_>) -> Result<Vec<Option<&'static Spec>>, Failure> {
    let names = ctx.args.skip(2);
    if names.len() > NAMES_MAX {
        return Err(TOO_MANY_NAMES);
    }
    let rows = names.into_iter().map(|name| lookup(ctx.commands, name));
    let found: Vec<_> = rows.collect();
    let mut described = found.len();
    for spec in found.iter().flatten() {
        described += subcommands(ctx.commands, spec).count();
        if described > NAMES_MAX {
            return Err(TOO_MANY_NAMES);
        }
    }
    Ok(found)
}

/// Categories that come after `@fast` and `@slow`.
const LATE_CATEGORIES: [&str; 4] = ["@blocking", "@dangerous", "@connection", "@transaction"];

fn write_info(reply: &mut Encoder<'_>, commands: &Commands, spec: &Spec) {
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
    let mut categories: Vec<&str> = spec.categories().collect();
    if !spec.has(flag::FAST) {
        // The position of `@fast`.
        let after = |name: &&str| !LATE_CATEGORIES.contains(name);
        let place = categories.iter().take_while(|name| after(name)).count();
        categories.insert(place, "@slow");
    }
    reply.set(categories.len());
    for name in categories {
        reply.simple(name);
    }
    let tips = tips(spec);
    reply.set(tips.len());
    for tip in tips {
        reply.bulk(tip.as_bytes());
    }
    write_key_specs(reply, spec);
    reply.array(subcommands(commands, spec).count());
    for sub in subcommands(commands, spec) {
        write_info(reply, commands, sub);
    }
}

fn names(spec: &Spec, table: &[(u64, &'static str)]) -> Vec<&'static str> {
    table
        .iter()
        .filter(|(bit, _)| spec.has(*bit))
        .map(|(_, name)| *name)
        .collect()
}

/// Hints for clients and proxies, in Redis's words.
fn tips(spec: &Spec) -> &'static [&'static str] {
    match spec.name {
        "ping" | "flushdb" | "flushall" | "memory|purge" => {
            &["request_policy:all_shards", "response_policy:all_succeeded"]
        }
        "mget" => &["request_policy:multi_shard"],
        "mset" => &[
            "request_policy:multi_shard",
            "response_policy:all_succeeded",
        ],
        "msetnx" => &["request_policy:multi_shard", "response_policy:agg_min"],
        "del" | "unlink" | "exists" | "touch" => {
            &["request_policy:multi_shard", "response_policy:agg_sum"]
        }
        "ttl" | "pttl" | "object|encoding" | "object|freq" | "object|idletime"
        | "object|refcount" | "time" | "lastsave" | "client|info" | "client|list" | "dump"
        | "hrandfield" | "hscan" | "spop" | "srandmember" | "sscan" | "zrandmember" | "zscan"
        | "xadd" | "xtrim" | "xpending" | "xclaim" | "xautoclaim" | "xinfo|consumers" => {
            &["nondeterministic_output"]
        }
        "randomkey" => &["request_policy:all_shards", "nondeterministic_output"],
        "dbsize" => &["request_policy:all_shards", "response_policy:agg_sum"],
        "scan" => &["nondeterministic_output", "request_policy:special"],
        "keys" => &["request_policy:all_shards", "nondeterministic_output_order"],
        "info" | "memory|stats" | "memory|doctor" | "memory|malloc-stats" => &[
            "nondeterministic_output",
            "request_policy:all_shards",
            "response_policy:special",
        ],
        "config|set" | "slowlog|reset" | "latency|reset" => {
            &["request_policy:all_nodes", "response_policy:all_succeeded"]
        }
        "wait" => &["request_policy:all_shards", "response_policy:agg_min"],
        "slowlog|get" => &["request_policy:all_nodes", "nondeterministic_output"],
        "slowlog|len" => &[
            "request_policy:all_nodes",
            "response_policy:agg_sum",
            "nondeterministic_output",
        ],
        "latency|doctor" | "latency|graph" | "latency|history" | "latency|latest"
        | "latency|histogram" => &[
            "nondeterministic_output",
            "request_policy:all_nodes",
            "response_policy:special",
        ],
        "command" | "command|info" | "command|docs" | "command|list" | "module|list"
        | "hgetall" | "hkeys" | "hvals" | "sdiff" | "sinter" | "smembers" | "sunion" => {
            &["nondeterministic_output_order"]
        }
        "cluster|info"
        | "cluster|nodes"
        | "cluster|shards"
        | "cluster|slots"
        | "cluster|links"
        | "cluster|getkeysinslot"
        | "cluster|count-failure-reports"
        | "cluster|replicas"
        | "cluster|slaves"
        | "cluster|bumpepoch" => &["nondeterministic_output"],
        _ => &[],
    }
}

fn write_access(reply: &mut Encoder<'_>, access: KeyAccess) {
    let names: Vec<&str> = access.names().collect();
    reply.set(names.len());
    for name in names {
        reply.simple(name);
    }
}

/// The place of keys in the arguments, as `COMMAND INFO` describes it.
enum KeyPlace {
    /// From an argument on, to the last one (counted from the first key, or from the end).
    Range { first: i64, last: i64, step: i64 },
    /// An argument has their number.
    Counted { at: i64 },
    /// Behind this word, which may stand from an argument on: one, or the first of as many parts of
    /// the arguments as `limit`.
    Keyword {
        word: &'static str,
        from: i64,
        last: i64,
        limit: i64,
    },
    /// Anywhere.
    Unknown,
}

/// Redis's notes on the keys of a command; of SORT on those without a fixed place.
fn note_on_keys(spec: &Spec, place: &KeyPlace, access: KeyAccess) -> Option<&'static str> {
    let is_unknown = matches!(place, KeyPlace::Unknown);
    Some(match spec.name {
        "bitfield" => "This command allows both access and modification of the key",
        "getex" => "RW and UPDATE because it changes the TTL",
        "xadd" => "UPDATE instead of INSERT because of the optional trimming feature",
        "pfcount" => {
            "RW because it may change the internal representation of the key, and propagate to replicas"
        }
        "set" => "RW and ACCESS due to the optional `GET` argument",
        "sort" | "sort_ro" if is_unknown && access == KeyAccess::declared(spec).0 => SORT_PATTERNS,
        "sort" if is_unknown => SORT_STORE,
        _ => return None,
    })
}

const SORT_PATTERNS: &str = "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key we sort";
const SORT_STORE: &str = "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument array";

fn key_places(spec: &Spec) -> Vec<(KeyAccess, KeyPlace)> {
    let keys = spec.keys;
    let (first, last, step) = (keys.first.into(), keys.last.into(), keys.step.into());
    let (one, other) = KeyAccess::declared(spec);
    let more = other.unwrap_or(one);
    let range = |first: i64, last: i64| KeyPlace::Range {
        first,
        last: if last < 0 { last } else { last - first },
        step,
    };
    let mut places = Vec::new();
    match other {
        _ if first == 0 => {}
        Some(_) if last != first => {
            places.push((one, range(first, first)));
            places.push((more, range(first + 1, last)));
        }
        _ => places.push((one, range(first, last))),
    }
    if keys.count_at != 0 {
        let at = keys.count_at.into();
        places.push((more, KeyPlace::Counted { at }));
    }
    match spec.name {
        "sort" => {
            places.push((one, KeyPlace::Unknown));
            places.push((more, KeyPlace::Unknown));
        }
        "sort_ro" => places.push((one, KeyPlace::Unknown)),
        _ if keys.store_from != 0 => {
            let from = keys.store_from.into();
            for word in ["STORE", "STOREDIST"] {
                let (last, limit) = (0, 0);
                let place = KeyPlace::Keyword {
                    word,
                    from,
                    last,
                    limit,
                };
                places.push((more, place));
            }
        }
        _ if keys.streams_from != 0 => places.push((
            one,
            KeyPlace::Keyword {
                word: "STREAMS",
                from: keys.streams_from.into(),
                last: -1,
                limit: 2,
            },
        )),
        _ => {}
    }
    places
}

fn write_key_specs(reply: &mut Encoder<'_>, spec: &Spec) {
    let places = key_places(spec);
    reply.set(places.len());
    for (access, place) in places {
        write_key_spec(reply, spec, access, &place);
    }
}

fn write_key_spec(reply: &mut Encoder<'_>, spec: &Spec, access: KeyAccess, place: &KeyPlace) {
    let (search, begin, find, keys): (_, &[_], _, &[_]) = match place {
        KeyPlace::Range { first, last, step } => (
            "index",
            &[("index", *first)],
            "range",
            &[("lastkey", *last), ("keystep", *step), ("limit", 0)],
        ),
        KeyPlace::Counted { at } => (
            "index",
            &[("index", *at)],
            "keynum",
            &[("keynumidx", 0), ("firstkey", 1), ("keystep", 1)],
        ),
        KeyPlace::Keyword {
            from, last, limit, ..
        } => (
            "keyword",
            &[("startfrom", *from)],
            "range",
            &[("lastkey", *last), ("keystep", 1), ("limit", *limit)],
        ),
        KeyPlace::Unknown => ("unknown", &[], "unknown", &[]),
    };
    let note = note_on_keys(spec, place, access);
    reply.map(3 + usize::from(note.is_some()));
    if let Some(note) = note {
        reply.bulk(b"notes");
        reply.bulk(note.as_bytes());
    }
    reply.bulk(b"flags");
    write_access(reply, access);
    let word = match place {
        KeyPlace::Keyword { word, .. } => Some(*word),
        _ => None,
    };
    write_search(reply, "begin_search", search, word, begin);
    write_search(reply, "find_keys", find, None, keys);
}

/// One half of a key specification: its type and its numbers, behind the keyword if there is one.
fn write_search(
    reply: &mut Encoder<'_>,
    half: &str,
    kind: &str,
    keyword: Option<&str>,
    numbers: &[(&str, i64)],
) {
    reply.bulk(half.as_bytes());
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind.as_bytes());
    reply.bulk(b"spec");
    reply.map(numbers.len() + usize::from(keyword.is_some()));
    if let Some(keyword) = keyword {
        reply.bulk(b"keyword");
        reply.bulk(keyword.as_bytes());
    }
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(*number);
    }
}

pub(crate) fn docs(ctx: &mut Context<'_>) -> Done {
    let wanted: Vec<&Spec> = if ctx.args.len() == 2 {
        offered(ctx.commands).collect()
    } else {
        named(ctx)?.into_iter().flatten().collect()
    };
    let commands = ctx.commands;
    let mut reply = ctx.reply();
    reply.map(wanted.len());
    for spec in wanted {
        reply.bulk(spec.name.as_bytes());
        write_docs(&mut reply, commands, spec);
    }
    Ok(())
}

fn write_docs(reply: &mut Encoder<'_>, commands: &Commands, spec: &Spec) {
    let subs = subcommands(commands, spec).count();
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
        for sub in subcommands(commands, spec) {
            reply.bulk(sub.name.as_bytes());
            write_docs(reply, commands, sub);
        }
    }
}

/// The command that the arguments from 2 on form, if it has keys.
fn inner<'a>(ctx: &Context<'a>) -> Result<(&'static Spec, Vec<&'a [u8]>), Failure> {
    let args = ctx.args.skip(2);
    let spec = match ctx.commands.resolve(&args) {
        Resolved::Command(spec) if !spec.is_refused() => spec,
        Resolved::Arity(_) => {
            return Err(Failure::Text(
                "ERR Invalid number of arguments specified for command",
            ));
        }
        _ => return Err(Failure::Text("ERR Invalid command specified")),
    };
    if !spec.has_keys() || !KeyAccess::declared(spec).0.is_of_key() {
        return Err(Failure::Text("ERR The command has no key arguments"));
    }
    let positions = spec.key_positions(&args);
    if positions.size_hint().0 > KEYS_MAX {
        return Err(Failure::Text("ERR the command has more than 1024 keys"));
    }
    let keys = positions.filter_map(|at| args.get(at)).collect();
    Ok((spec, keys))
}

pub(crate) fn getkeys(ctx: &mut Context<'_>) -> Done {
    let (_, keys) = inner(ctx)?;
    let mut reply = ctx.reply();
    reply.array(keys.len());
    for key in keys {
        reply.bulk(key);
    }
    Ok(())
}

pub(crate) fn getkeysandflags(ctx: &mut Context<'_>) -> Done {
    let (spec, keys) = inner(ctx)?;
    let args = ctx.args.skip(2);
    let mut reply = ctx.reply();
    reply.array(keys.len());
    for (n, key) in keys.into_iter().enumerate() {
        reply.array(2);
        reply.bulk(key);
        write_access(&mut reply, KeyAccess::of(spec, &args, n));
    }
    Ok(())
}

pub(crate) fn list(ctx: &mut Context<'_>) -> Done {
    let rows = ctx.commands.rows().iter();
    let all = rows.filter(|spec| !spec.is_refused());
    let wanted: Vec<&Spec> = match ctx.args.len() {
        2 => all.collect(),
        5 if ctx.arg(2).eq_ignore_ascii_case(b"filterby") => {
            let (kind, what) = (ctx.arg(3), ctx.arg(4));
            if kind.eq_ignore_ascii_case(b"module") {
                Vec::new()
            } else if kind.eq_ignore_ascii_case(b"aclcat") {
                all.filter(|spec| in_category(spec, what)).collect()
            } else if kind.eq_ignore_ascii_case(b"pattern") {
                let pattern = Pattern::new(what, true).ok_or(LONG_PATTERN)?;
                all.filter(|spec| pattern.matches(spec.name.as_bytes()))
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
    slow || spec.categories().any(|name| {
        name.strip_prefix('@')
            .is_some_and(|name| category.eq_ignore_ascii_case(name.as_bytes()))
    })
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    debug_assert!(
        ctx.commands
            .rows()
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
