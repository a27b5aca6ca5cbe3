//! COMMAND: describes the commands of the command table.

use crate::command::access::KeyAccess;
use crate::command::context::{Context, Done, Failure, SYNTAX};
use crate::command::flag;
use crate::command::lookup::Resolved;
use crate::command::row::*;
use crate::command::spec::Commands;
use crate::command::walk::LONG_PATTERN;
use duramen_base::glob::Pattern;
use duramen_wire::resp::Encoder;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("command", -1, LOADING | STALE | CONNECTION | CONTAINER | TIMED | REPORTS, doc(Topic::Server, "2.8.13", "O(N)", "Describes all commands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(command)).tips(&["nondeterministic_output_order"]),
    row("command|count", 2, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "2.8.13", "O(1)", "Returns the number of commands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(count)),
    row("command|info", -2, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "2.8.13", "O(N)", "Describes commands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(info)).tips(&["nondeterministic_output_order"]),
    row("command|docs", -2, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "7.0.0", "O(N)", "Documents commands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(docs)).tips(&["nondeterministic_output_order"]),
    row("command|getkeys", -3, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "2.8.13", "O(N)", "Returns the keys of a request."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(getkeys)),
    row("command|getkeysandflags", -3, LOADING | STALE | CONNECTION | REPORTS,
        doc(Topic::Server, "7.0.0", "O(N)", "Returns the keys of a request and what it does to them."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(getkeysandflags)),
    row("command|list", -2, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "7.0.0", "O(N)", "Returns the names of all commands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(list)).tips(&["nondeterministic_output_order"]),
    row("command|help", 2, LOADING | STALE | CONNECTION | REPORTS, doc(Topic::Server, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
];

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
    let mut reply = ctx.reply.encoder();
    reply.array(offered(commands).count());
    for spec in offered(commands) {
        write_info(&mut reply, commands, spec);
    }
    Ok(())
}

pub(crate) fn count(ctx: &mut Context<'_>) -> Done {
    ctx.reply.integer(offered(ctx.commands).count() as i64)
}

pub(crate) fn info(ctx: &mut Context<'_>) -> Done {
    if ctx.request.args.len() == 2 {
        return command(ctx);
    }
    let (found, commands) = (named(ctx)?, ctx.commands);
    let mut reply = ctx.reply.encoder();
    reply.array(found.len());
    for spec in found {
        match spec {
            Some(spec) => write_info(&mut reply, commands, spec),
            None => reply.null(),
        }
    }
    Ok(())
}

/// The commands that COMMAND INFO and COMMAND DOCS are given by name; `None` for a name that no
/// command has. The description of one command takes kilobytes.
fn named(ctx: &Context<'_>) -> Result<Vec<Option<&'static Spec>>, Failure> {
    let names = ctx.request.args.skip(2);
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
    let place = spec.keys.place();
    reply.integer(place.first.into());
    reply.integer(place.last.into());
    reply.integer(place.step.into());
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
    reply.set(spec.tips.len());
    for tip in spec.tips {
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

fn write_access(reply: &mut Encoder<'_>, access: KeyAccess) {
    let names: Vec<&str> = access.names().collect();
    reply.set(names.len());
    for name in names {
        reply.simple(name);
    }
}

/// The place of keys in the arguments, as `COMMAND INFO` describes it.
enum KeyPlace {
    /// The keys from an argument on, up to the last one (counted from the first key, or from the
    /// end).
    Range { first: i64, last: i64, step: i64 },
    /// The keys behind the argument that has their number.
    Counted { at: i64 },
    /// The keys behind this word, which may stand from an argument on: one key, or the first of
    /// `limit` equal parts of the arguments.
    Keyword {
        word: &'static str,
        from: i64,
        last: i64,
        limit: i64,
    },
    /// The keys may be anywhere.
    Unknown,
}

impl KeyPlace {
    /// The place of one key behind the option `word`.
    fn option(word: &'static str, from: i64) -> KeyPlace {
        KeyPlace::Keyword {
            word,
            from,
            last: 0,
            limit: 0,
        }
    }

    /// The place of the keys of XREAD: the first half of the arguments behind `STREAMS`.
    fn streams(from: i64) -> KeyPlace {
        KeyPlace::Keyword {
            word: "STREAMS",
            from,
            last: -1,
            limit: 2,
        }
    }
}

/// The keys of a command as Redis specifies them: their access, their place, and a note.
fn key_places(spec: &Spec) -> Vec<(KeyAccess, KeyPlace, &'static str)> {
    let (keys, place) = (&spec.keys, spec.keys.place());
    let (first, last) = (i64::from(place.first), i64::from(place.last));
    let (one, other) = keys.declared();
    let more = other.unwrap_or(one);
    let range = |first: i64, last: i64| KeyPlace::Range {
        first,
        last: if last < 0 { last } else { last - first },
        step: place.step.into(),
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
    if place.count_at != 0 {
        let at = place.count_at.into();
        places.push((more, KeyPlace::Counted { at }));
    }
    let from = i64::from(place.store_from);
    if keys.anywhere.is_empty() && from != 0 {
        places.extend(["STORE", "STOREDIST"].map(|word| (more, KeyPlace::option(word, from))));
    }
    if place.streams_from != 0 {
        places.push((one, KeyPlace::streams(place.streams_from.into())));
    }
    let fixed = places.into_iter();
    let fixed = fixed.map(|(access, place)| (access, place, keys.note));
    let anywhere = keys.anywhere.iter();
    let anywhere = anywhere.map(|(access, note)| (*access, KeyPlace::Unknown, *note));
    fixed.chain(anywhere).collect()
}

fn write_key_specs(reply: &mut Encoder<'_>, spec: &Spec) {
    let places = key_places(spec);
    reply.set(places.len());
    for (access, place, note) in places {
        write_key_spec(reply, access, &place, note);
    }
}

fn write_key_spec(reply: &mut Encoder<'_>, access: KeyAccess, place: &KeyPlace, note: &str) {
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
    reply.map(3 + usize::from(!note.is_empty()));
    if !note.is_empty() {
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
    let wanted: Vec<&Spec> = if ctx.request.args.len() == 2 {
        offered(ctx.commands).collect()
    } else {
        named(ctx)?.into_iter().flatten().collect()
    };
    let commands = ctx.commands;
    let mut reply = ctx.reply.encoder();
    reply.map(wanted.len());
    for spec in wanted {
        reply.bulk(spec.name.as_bytes());
        write_docs(&mut reply, commands, spec);
    }
    Ok(())
}

fn write_docs(reply: &mut Encoder<'_>, commands: &Commands, spec: &Spec) {
    let subs = subcommands(commands, spec).count();
    let differs = spec.doc.differs;
    reply.map(4 + usize::from(!differs.is_empty()) + usize::from(subs > 0));
    let texts = [
        ("summary", spec.doc.summary),
        ("since", spec.doc.since),
        ("group", spec.doc.topic.name()),
        ("complexity", spec.doc.complexity),
        ("differences", differs),
    ];
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
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
    let args = ctx.request.args.skip(2);
    let spec = match ctx.commands.resolve(&args) {
        Resolved::Command(spec) if !spec.is_refused() => spec,
        Resolved::Arity(_) => {
            return Err(Failure::Text(
                "ERR Invalid number of arguments specified for command",
            ));
        }
        _ => return Err(Failure::Text("ERR Invalid command specified")),
    };
    if !spec.has_keys() || !spec.keys.declared().0.is_of_key() {
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
    let mut reply = ctx.reply.encoder();
    reply.array(keys.len());
    for key in keys {
        reply.bulk(key);
    }
    Ok(())
}

pub(crate) fn getkeysandflags(ctx: &mut Context<'_>) -> Done {
    let (spec, keys) = inner(ctx)?;
    let args = ctx.request.args.skip(2);
    let mut reply = ctx.reply.encoder();
    reply.array(keys.len());
    for (n, key) in keys.into_iter().enumerate() {
        reply.array(2);
        reply.bulk(key);
        write_access(&mut reply, spec.keys.access(&args, n));
    }
    Ok(())
}

pub(crate) fn list(ctx: &mut Context<'_>) -> Done {
    let rows = ctx.commands.rows().iter();
    let all = rows.filter(|spec| !spec.is_refused());
    let wanted: Vec<&Spec> = match ctx.request.args.len() {
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
    let mut reply = ctx.reply.encoder();
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
            .all(|spec| spec.is_refused() == (spec.doc.topic == Topic::Foreign))
    );
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
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
        ],
    )
}
