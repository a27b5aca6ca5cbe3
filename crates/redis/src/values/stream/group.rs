//! Groups of consumers of a stream: making and removing them, acknowledging, pending entries.

use super::{
    CONSUMER_MADE, STREAM_BYTES, event, parse_any_id, parse_end, parse_id, parse_ids, parse_start,
    write_id,
};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::EventName;
use crate::command::row::*;
use crate::values::collection::{change, change_silently, read};
use duramen_engine::Guard;
use duramen_types::stream::{Group, Id, Pending, groups};
use duramen_types::{Part, Parts, Stream, Text};
use duramen_wire::resp::number::parse_integer;
use std::borrow::Cow;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("xack", -4, FAST, doc(Topic::Stream, "5.0.0", "O(N)", "Acknowledges entries for a group."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|_, _| STREAM_BYTES)), Secrets::None, Run::Data(xack)),
    row("xpending", -3, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Returns the entries that a group was given and has not acknowledged."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(xpending)).tips(&["nondeterministic_output"]),
    container("xgroup", doc(Topic::Stream, "5.0.0", "Depends on the subcommand", "A container for commands about groups of consumers.")),
    row("xgroup|create", -5, DENYOOM, doc(Topic::Stream, "5.0.0", "O(1)", "Makes a group."),
        Keys::at(2, ADDS), Effect::Writes(Growth::By(|args, _| growth::text(args, 3) + STREAM_BYTES)), Secrets::None, Run::Data(create)),
    row("xgroup|setid", -5, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(1)", "Sets the last id that a group was given."),
        Keys::at(2, UPDATES), Effect::Writes(Growth::By(|args, _| growth::text(args, 3) + STREAM_BYTES)), Secrets::None, Run::Data(setid)),
    row("xgroup|destroy", 4, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Removes a group."),
        Keys::at(2, REMOVES), Effect::Writes(Growth::By(|args, _| growth::text(args, 3) + STREAM_BYTES)), Secrets::None, Run::Data(destroy)),
    row("xgroup|createconsumer", 5, DENYOOM, doc(Topic::Stream, "6.2.0", "O(1)", "Makes a consumer of a group."),
        Keys::at(2, ADDS), Effect::Writes(Growth::By(|args, _| growth::text(args, 4) + STREAM_BYTES)), Secrets::None, Run::Data(createconsumer)),
    row("xgroup|delconsumer", 5, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Removes a consumer and its pending entries."),
        Keys::at(2, REMOVES), Effect::Writes(Growth::By(|args, _| growth::text(args, 4) + STREAM_BYTES)), Secrets::None, Run::Data(delconsumer)),
    row("xgroup|help", 2, LOADING | STALE | TELLS, doc(Topic::Stream, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(group_help)),
];

const NO_STREAM: Failure = Failure::Text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use \
     the MKSTREAM option to create an empty stream automatically.",
);

fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The error of commands whose arguments 1 and 2 are the key and the group.
pub(crate) fn no_key_or_group(ctx: &Context<'_>) -> Failure {
    let (key, group) = (shown(ctx.arg(1)), shown(ctx.arg(2)));
    format!("NOGROUP No such key '{key}' or consumer group '{group}'").into()
}

/// The error of subcommands whose arguments 2 and 3 are the key and the group.
pub(crate) fn no_group(ctx: &Context<'_>) -> Failure {
    let (key, group) = (shown(ctx.arg(2)), shown(ctx.arg(3)));
    format!("NOGROUP No such consumer group '{group}' for key name '{key}'").into()
}

pub(crate) fn wrong_arguments(ctx: &Context<'_>) -> Failure {
    let sub: Vec<u8> = ctx.arg(1).iter().copied().take(128).collect();
    let container = ctx.arg(0).to_ascii_uppercase();
    let (sub, container) = (shown(&sub), shown(&container));
    let text = format!(
        "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {container} HELP."
    );
    text.into()
}

/// The position of the group with a name.
pub(crate) fn position(groups: &[Group<'_>], name: &[u8]) -> Option<usize> {
    let name = Text::of(name);
    groups.iter().position(|group| group.name == name)
}

/// Parses the options of XGROUP CREATE and SETID: MKSTREAM, and the number of entries read.
fn parse_options(ctx: &Context<'_>, creates: bool) -> Result<(bool, Option<u64>), Failure> {
    let (mut makes, mut entries_read, mut rest) =
        (false, None, ctx.request.args.skip(5).into_iter());
    while let Some(option) = rest.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"mkstream" if creates => makes = true,
            b"entriesread" => {
                let number = rest.next().ok_or_else(|| wrong_arguments(ctx))?;
                entries_read = match parse_integer(number).ok_or(NOT_AN_INTEGER)? {
                    -1 => None,
                    number => Some(u64::try_from(number).map_err(|_| {
                        Failure::Text("ERR value for ENTRIESREAD must be positive or -1")
                    })?),
                };
            }
            _ => return Err(wrong_arguments(ctx)),
        }
    }
    Ok((makes, entries_read))
}

pub(crate) fn create(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (makes, entries_read) = parse_options(ctx, true)?;
    let args = ctx.request.args;
    let name = Text::of(args.get(3).unwrap_or_default());
    change(ctx, guard, event("xgroup-create"), |ctx, parts| {
        if parts.get(Part::Root).is_none() && !makes {
            return Err(NO_STREAM);
        }
        let mut stream = Stream::load(parts)?;
        if ctx.request.args.len() > 8 {
            return Err(wrong_arguments(ctx));
        }
        let last = match ctx.arg(4) {
            b"$" => stream.last(),
            id => parse_id(id, 0)?,
        };
        let mut all = stream.groups()?;
        if !groups::insert(&mut all, Group::new(name, last, entries_read)) {
            return Err(Failure::Text(
                "BUSYGROUP Consumer Group name already exists",
            ));
        }
        stream.set_groups(&all);
        Ok(stream.store(parts)?)
    })?;
    ctx.reply.ok()
}

/// Changes the group in argument 3 of the stream under the request's key, by a function of the
/// stream and its groups, which gets the position of the group.
fn change_group<T>(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    event: EventName,
    mut run: impl FnMut(&Stream<'_>, &mut Group<'_>) -> Result<(T, bool), Failure>,
) -> Result<T, Failure> {
    change(ctx, guard, event, |ctx, parts| {
        parts.get(Part::Root).ok_or(NO_STREAM)?;
        let mut stream = Stream::load(parts)?;
        let mut all = stream.groups()?;
        let at = position(&all, ctx.arg(3)).ok_or_else(|| no_group(ctx))?;
        let group = all.get_mut(at).ok_or_else(|| no_group(ctx))?;
        let (done, is_changed) = run(&stream, group)?;
        if is_changed {
            stream.set_groups(&all);
            stream.store(parts)?;
        }
        Ok(done)
    })
}

pub(crate) fn setid(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (_, entries_read) = parse_options(ctx, false)?;
    let (id, wrong) = (ctx.arg(4), ctx.request.args.len() > 7);
    let wrong = wrong.then(|| wrong_arguments(ctx).text());
    change_group(ctx, guard, event("xgroup-setid"), |stream, group| {
        if let Some(wrong) = &wrong {
            return Err(wrong.clone().into());
        }
        group.last = match id {
            b"$" => stream.last(),
            id => parse_any_id(id, 0)?,
        };
        group.read = entries_read;
        Ok(((), true))
    })?;
    ctx.reply.ok()
}

pub(crate) fn destroy(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let removed = change(ctx, guard, event("xgroup-destroy"), |ctx, parts| {
        parts.get(Part::Root).ok_or(NO_STREAM)?;
        let mut stream = Stream::load(parts)?;
        let mut all = stream.groups()?;
        let Some(at) = position(&all, ctx.arg(3)) else {
            return Ok(0);
        };
        all.remove(at);
        stream.set_groups(&all);
        stream.store(parts)?;
        Ok(1)
    })?;
    ctx.reply.integer(removed)
}

pub(crate) fn createconsumer(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let now_ms = guard.now_ms();
    let args = ctx.request.args;
    let name = Text::of(args.get(4).unwrap_or_default());
    let made = change(ctx, guard, CONSUMER_MADE, |ctx, parts| {
        parts.get(Part::Root).ok_or(NO_STREAM)?;
        let mut stream = Stream::load(parts)?;
        let mut all = stream.groups()?;
        let at = position(&all, ctx.arg(3)).ok_or_else(|| no_group(ctx))?;
        let group = all.get_mut(at).ok_or_else(|| no_group(ctx))?;
        if group.consumer(&name).is_some() {
            return Ok(0);
        }
        group.seen(name, now_ms);
        stream.set_groups(&all);
        stream.store(parts)?;
        Ok(1)
    })?;
    ctx.reply.integer(made)
}

pub(crate) fn delconsumer(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let name = Text::of(ctx.arg(4));
    let removed = change_group(ctx, guard, event("xgroup-delconsumer"), |_, group| {
        let place = group.consumer(&name);
        let removed = place.map(|place| group.remove_consumer(place));
        Ok((removed.unwrap_or(0), removed.is_some()))
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn group_help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a new consumer group. Options are:",
            "    * MKSTREAM",
            "      Create the empty stream if it does not exist.",
            "    * ENTRIESREAD entries_read",
            "      Set the group's entries_read counter (internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a new consumer in the specified group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Remove the specified consumer.",
            "DESTROY <key> <groupname>",
            "    Remove the specified group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the current group ID and entries_read counter.",
        ],
    )
}

pub(crate) fn xack(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (removed, _) = change_silently(ctx, guard, |ctx, parts| {
        if parts.get(Part::Root).is_none() {
            return Ok(0);
        }
        let mut stream = Stream::load(parts)?;
        let mut all = stream.groups()?;
        let at = position(&all, ctx.arg(2));
        let Some(group) = at.and_then(|at| all.get_mut(at)) else {
            return Ok(0);
        };
        let removed = group.acknowledge(&parse_ids(ctx, 3)?);
        if removed > 0 {
            stream.set_groups(&all);
            stream.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

/// The part of pending entries that XPENDING shows.
struct Range<'a> {
    ids: (Id, Id),
    most: usize,
    least_idle_ms: i64,
    consumer: Option<&'a [u8]>,
}

/// Parses the range of XPENDING; `None`: the summary is wanted.
fn parse_range<'a>(ctx: &Context<'a>) -> Result<Option<Range<'a>>, Failure> {
    let number = |at: usize| parse_integer(ctx.arg(at)).ok_or(NOT_AN_INTEGER);
    let (mut at, mut least_idle_ms) = (3, 0);
    match ctx.request.args.len() {
        3 => return Ok(None),
        6..=9 => {}
        _ => return Err(SYNTAX),
    }
    if ctx.arg(3).eq_ignore_ascii_case(b"idle") {
        least_idle_ms = number(4)?;
        if ctx.request.args.len() < 8 {
            return Err(SYNTAX);
        }
        at = 5;
    }
    let most = usize::try_from(number(at + 2)?).unwrap_or(0);
    Ok(Some(Range {
        ids: (parse_start(ctx.arg(at))?, parse_end(ctx.arg(at + 1))?),
        most,
        least_idle_ms,
        consumer: ctx.request.args.get(at + 3),
    }))
}

/// How long ago an entry was delivered; negative if the clock went back.
pub(crate) fn idle_ms(pending: &Pending, now_ms: u64) -> i64 {
    now_ms.wrapping_sub(pending.delivered_at_ms) as i64
}

pub(crate) fn xpending(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let range = parse_range(ctx)?;
    let now_ms = guard.now_ms();
    let value = read(ctx, guard)?;
    let groups = match value {
        Some(value) => Stream::of(Some(value))?.groups()?,
        None => Vec::new(),
    };
    let group = position(&groups, ctx.arg(2)).and_then(|at| groups.get(at));
    let group = group.ok_or_else(|| no_key_or_group(ctx))?;
    let Some(range) = range else {
        write_summary(ctx, group);
        return Ok(());
    };
    let place = range.consumer.map(|name| group.consumer(&Text::of(name)));
    let pending = group.pending.iter().filter(|pending| {
        let is_inside = (range.ids.0..=range.ids.1).contains(&pending.id);
        let is_owned = place.is_none_or(|place| place == Some(pending.consumer));
        let is_idle = range.least_idle_ms == 0 || idle_ms(pending, now_ms) >= range.least_idle_ms;
        is_inside && is_owned && is_idle
    });
    let pending: Vec<&Pending> = pending.take(range.most).collect();
    ctx.reply.encoder().array(pending.len());
    for pending in pending {
        let name = group.consumers.get(pending.consumer);
        let name = name.map_or(Text::Bytes(b""), |consumer| consumer.name);
        let mut reply = ctx.reply.encoder();
        reply.array(4);
        write_id(&mut reply, pending.id);
        reply.bulk(&name.bytes());
        reply.integer(idle_ms(pending, now_ms).max(0));
        reply.integer(pending.deliveries as i64);
    }
    Ok(())
}

/// Places of a group's consumers in the order of names, each with its number of pending entries.
pub(crate) fn consumers_by_name(group: &Group<'_>) -> Vec<(usize, usize)> {
    let mut counts: Vec<(usize, usize)> = (0..group.consumers.len()).map(|at| (at, 0)).collect();
    for pending in &group.pending {
        if let Some((_, count)) = counts.get_mut(pending.consumer) {
            *count += 1;
        }
    }
    let name = |at: usize| group.consumers.get(at).map(|consumer| consumer.name);
    counts.sort_by(|(a, _), (b, _)| match (name(*a), name(*b)) {
        (Some(a), Some(b)) => a.compare(&b),
        _ => std::cmp::Ordering::Equal,
    });
    counts
}

fn write_summary(ctx: &mut Context<'_>, group: &Group<'_>) {
    let mut reply = ctx.reply.encoder();
    reply.array(4);
    reply.integer(group.pending.len() as i64);
    let (Some(first), Some(last)) = (group.pending.first(), group.pending.last()) else {
        reply.null();
        reply.null();
        return reply.null_array();
    };
    write_id(&mut reply, first.id);
    write_id(&mut reply, last.id);
    let mut consumers = consumers_by_name(group);
    consumers.retain(|(_, count)| *count > 0);
    reply.array(consumers.len());
    for (place, count) in consumers {
        if let Some(consumer) = group.consumers.get(place) {
            reply.array(2);
            reply.bulk(&consumer.name.bytes());
            reply.bulk(count.to_string().as_bytes());
        }
    }
}
