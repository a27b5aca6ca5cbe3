//! XINFO: what is known about a stream, its groups and their consumers.

use super::group::{consumers_by_name, no_group, position, wrong_arguments};
use super::{write_entries, write_entry, write_id};
use crate::command::context::{Context, Done, Failure, NO_SUCH_KEY, NOT_AN_INTEGER};
use crate::command::row::*;
use crate::values::collection::read;
use duramen_engine::Guard;
use duramen_types::Stream;
use duramen_types::stream::{Group, Id};
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    container("xinfo", doc(Topic::Stream, "5.0.0", "Depends on the subcommand", "A container for commands that tell about streams.")),
    row("xinfo|stream", -3, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(1)", "Tells about a stream."),
        Keys::at(2, READS), Effect::Reads, Secrets::None, Run::Data(stream_info))
            .differs("`radix-tree-keys` and `-nodes` are computed from `stream-node-max-entries`."),
    row("xinfo|groups", 3, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Tells about the groups of a stream."),
        Keys::at(2, READS), Effect::Reads, Secrets::None, Run::Data(groups)),
    row("xinfo|consumers", 4, NO_FLAGS, doc(Topic::Stream, "5.0.0", "O(N)", "Tells about the consumers of a group."),
        Keys::at(2, READS), Effect::Reads, Secrets::None, Run::Data(consumers))
            .differs("`idle` may be 10 s too much for a consumer that asks in vain.").tips(&["nondeterministic_output"]),
    row("xinfo|help", 2, LOADING | STALE | TELLS, doc(Topic::Stream, "5.0.0", "O(1)", "Lists the subcommands."),
        Keys::NONE, Effect::Acts, Secrets::None, Run::Plain(help)),
];

/// Entries and pending entries that XINFO STREAM FULL shows without COUNT.
const COUNT_DEFAULT: usize = 10;

/// The stream under the request's key.
fn stream<'g>(ctx: &mut Context<'_>, guard: &'g Guard<'_>) -> Result<Stream<'g>, Failure> {
    let value = read(ctx, guard)?.ok_or(NO_SUCH_KEY)?;
    Ok(Stream::of(Some(value))?)
}

fn write_number(reply: &mut Encoder<'_>, name: &str, number: i64) {
    reply.bulk(name.as_bytes());
    reply.integer(number);
}

fn write_named_id(reply: &mut Encoder<'_>, name: &str, id: Id) {
    reply.bulk(name.as_bytes());
    write_id(reply, id);
}

/// How far a group has read.
fn write_progress(reply: &mut Encoder<'_>, stream: &Stream<'_>, group: &Group<'_>) {
    write_named_id(reply, "last-delivered-id", group.last);
    let read = group.read.map(|read| read as i64);
    for (name, number) in [("entries-read", read), ("lag", stream.lag(group))] {
        reply.bulk(name.as_bytes());
        match number {
            Some(number) => reply.integer(number),
            None => reply.null(),
        }
    }
}

pub(crate) fn groups(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let stream = stream(ctx, guard)?;
    let groups = stream.groups()?;
    let mut reply = ctx.reply.encoder();
    reply.array(groups.len());
    for group in groups {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(&group.name.bytes());
        write_number(&mut reply, "consumers", group.consumers.len() as i64);
        write_number(&mut reply, "pending", group.pending.len() as i64);
        write_progress(&mut reply, &stream, &group);
    }
    Ok(())
}

pub(crate) fn consumers(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let now_ms = guard.now_ms();
    let groups = stream(ctx, guard)?.groups()?;
    let group = position(&groups, ctx.arg(3)).and_then(|at| groups.get(at));
    let group = group.ok_or_else(|| no_group(ctx))?;
    let mut reply = ctx.reply.encoder();
    reply.array(group.consumers.len());
    for (place, pending) in consumers_by_name(group) {
        let Some(consumer) = group.consumers.get(place) else {
            continue;
        };
        let since = |time_ms: u64| now_ms.saturating_sub(time_ms) as i64;
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(&consumer.name.bytes());
        write_number(&mut reply, "pending", pending as i64);
        write_number(&mut reply, "idle", since(consumer.seen_at_ms));
        let inactive = consumer.active_at_ms.map_or(-1, since);
        write_number(&mut reply, "inactive", inactive);
    }
    Ok(())
}

/// Parses FULL and its COUNT; `None` without FULL.
fn parse_full(ctx: &Context<'_>) -> Result<Option<usize>, Failure> {
    let (full, count) = (ctx.arg(3), ctx.arg(4));
    match ctx.request.args.len() {
        3 => return Ok(None),
        4 | 6 if full.eq_ignore_ascii_case(b"full") => {}
        _ => return Err(wrong_arguments(ctx)),
    }
    if ctx.request.args.len() == 4 {
        return Ok(Some(COUNT_DEFAULT));
    }
    if !count.eq_ignore_ascii_case(b"count") {
        return Err(wrong_arguments(ctx));
    }
    let count = parse_integer(ctx.arg(5)).ok_or(NOT_AN_INTEGER)?;
    Ok(Some(match usize::try_from(count) {
        Ok(0) => usize::MAX,
        Ok(count) => count,
        Err(_) => COUNT_DEFAULT,
    }))
}

pub(crate) fn stream_info(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let stream = stream(ctx, guard)?;
    let full = parse_full(ctx)?;
    let nodes = stream
        .len()
        .div_ceil(ctx.shared.settings.encodings().stream_node_entries()) as i64;
    let mut reply = ctx.reply.encoder();
    reply.map(if full.is_some() { 9 } else { 10 });
    write_number(&mut reply, "length", stream.len() as i64);
    write_number(&mut reply, "radix-tree-keys", nodes);
    write_number(&mut reply, "radix-tree-nodes", nodes + 1);
    write_named_id(&mut reply, "last-generated-id", stream.last());
    write_named_id(&mut reply, "max-deleted-entry-id", stream.deleted());
    write_number(&mut reply, "entries-added", stream.added() as i64);
    write_named_id(&mut reply, "recorded-first-entry-id", stream.first());
    match full {
        None => write_ends(&mut reply, &stream),
        Some(count) => write_full(ctx, &stream, count),
    }
}

fn write_ends(reply: &mut Encoder<'_>, stream: &Stream<'_>) -> Done {
    write_number(reply, "groups", stream.group_count() as i64);
    let first = stream.range(Id::MIN, Id::MAX, 1)?;
    let last = stream.range_back(Id::MIN, Id::MAX, 1)?;
    for (name, entries) in [("first-entry", first), ("last-entry", last)] {
        reply.bulk(name.as_bytes());
        match entries.first() {
            Some(entry) => write_entry(reply, stream, entry)?,
            None => reply.null(),
        }
    }
    Ok(())
}

fn write_full(ctx: &mut Context<'_>, stream: &Stream<'_>, count: usize) -> Done {
    ctx.reply.encoder().bulk(b"entries");
    let entries = stream.range(Id::MIN, Id::MAX, count)?;
    write_entries(ctx, stream, &entries)?;
    let groups = stream.groups()?;
    let mut reply = ctx.reply.encoder();
    reply.bulk(b"groups");
    reply.array(groups.len());
    for group in groups {
        let mut reply = ctx.reply.encoder();
        reply.map(7);
        reply.bulk(b"name");
        reply.bulk(&group.name.bytes());
        write_progress(&mut reply, stream, &group);
        write_number(&mut reply, "pel-count", group.pending.len() as i64);
        reply.bulk(b"pending");
        reply.array(group.pending.len().min(count));
        for pending in group.pending.iter().take(count) {
            let consumer = group.consumers.get(pending.consumer);
            reply.array(4);
            write_id(&mut reply, pending.id);
            reply.bulk(
                &consumer
                    .map_or(duramen_types::Text::Bytes(b""), |c| c.name)
                    .bytes(),
            );
            reply.integer(pending.delivered_at_ms as i64);
            reply.integer(pending.deliveries as i64);
        }
        write_consumers(&mut reply, &group, count);
        ctx.reply.fits()?;
    }
    Ok(())
}

/// The consumers of a group with their pending entries.
fn write_consumers(reply: &mut Encoder<'_>, group: &Group<'_>, count: usize) {
    let mut own = vec![Vec::new(); group.consumers.len()];
    for pending in &group.pending {
        if let Some(own) = own
            .get_mut(pending.consumer)
            .filter(|own| own.len() < count)
        {
            own.push(pending);
        }
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers.len());
    for (place, pending) in consumers_by_name(group) {
        let (Some(consumer), Some(own)) = (group.consumers.get(place), own.get(place)) else {
            continue;
        };
        reply.map(5);
        reply.bulk(b"name");
        reply.bulk(&consumer.name.bytes());
        write_number(reply, "seen-time", consumer.seen_at_ms as i64);
        let active = consumer.active_at_ms.map_or(-1, |time| time as i64);
        write_number(reply, "active-time", active);
        write_number(reply, "pel-count", pending as i64);
        reply.bulk(b"pending");
        reply.array(own.len());
        for pending in own {
            reply.array(3);
            write_id(reply, pending.id);
            reply.integer(pending.delivered_at_ms as i64);
            reply.integer(pending.deliveries as i64);
        }
    }
}

pub(crate) fn help(ctx: &mut Context<'_>) -> Done {
    ctx.reply.help(
        ctx.request.spec.container(),
        &[
            "CONSUMERS <key> <groupname>",
            "    Show consumers of <groupname>.",
            "GROUPS <key>",
            "    Show the stream consumer groups.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Show information about the stream.",
        ],
    )
}
