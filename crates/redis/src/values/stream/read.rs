//! XREAD and XREADGROUP: the entries behind an id, of several streams at one instant.
//!
//! - R1: if there is nothing for a consumer, its request is written only if the consumer is new, or
//!   was seen long ago: the group is a part of the stream's value, which must not be written as
//!   often as consumers ask.

use super::{CONSUMER_MADE, parse_id, pending_bytes, write_entry, write_id};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::reply::Reply;
use crate::command::row::*;
use crate::values::blocking::{WaitFor, take_or_wait};
use crate::values::collection::{Root, Write, at_once, awaited, typed};
use duramen_config::clock;
use duramen_engine::{Guard, Object};
use duramen_types::stream::{Entry, Group, Id, Place};
use duramen_types::{Stream, Text, Type};
use duramen_wire::resp::Protocol;
use duramen_wire::resp::number::parse_integer;
use std::collections::HashMap;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("xread", -4, BLOCKING, doc(Topic::Stream, "5.0.0", "O(N)", "Returns the entries behind an id, of several streams."),
        Keys::streams(1, READS), Effect::Reads, Secrets::None, Run::Atomic(xread)),
    row("xreadgroup", -7, BLOCKING,
        doc(Topic::Stream, "5.0.0", "O(N)", "Gives new entries of several streams to a consumer of a group, or its pending ones again."),
        Keys::streams(4, READS), Effect::Writes(Growth::By(|args, bytes| pending_bytes(args, 1, bytes))), Secrets::None, Run::Atomic(xreadgroup))
            .differs("With `BLOCK`, a new consumer is made when it is given an entry; a removed stream or group is noticed at the next write."),
];

/// The time for which the noted time of a consumer's last request may be too old (R1).
pub(crate) const SEEN_STEP_MS: u64 = 10_000;
/// The shortest reply for an entry, in bytes. The item that is held for it takes twice as many.
const ITEM_BYTES: usize = 24;

/// The options of XREAD and XREADGROUP.
struct Options<'a> {
    count: usize,
    /// The time of BLOCK; `None` without BLOCK; 0: for ever.
    block_ms: Option<u64>,
    /// Names of the group and the consumer.
    group: Option<(&'a [u8], &'a [u8])>,
    without_pending: bool,
    /// The position of the first key, and the number of keys.
    keys: (usize, usize),
}

fn parse_block(text: &[u8], now_ms: u64) -> Result<u64, Failure> {
    let timeout = parse_integer(text).ok_or(Failure::Text(
        "ERR timeout is not an integer or out of range",
    ))?;
    let timeout = u64::try_from(timeout).map_err(|_| Failure::Text("ERR timeout is negative"))?;
    match timeout <= (i64::MAX as u64).saturating_sub(now_ms) {
        true => Ok(timeout),
        false => Err(Failure::Text("ERR timeout is out of range")),
    }
}

fn parse<'a>(ctx: &Context<'a>, in_group: bool, now_ms: u64) -> Result<Options<'a>, Failure> {
    let only_in_group = |option: &str| {
        let text = format!(
            "ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."
        );
        Err(Failure::from(text))
    };
    let mut options = Options {
        count: usize::MAX,
        block_ms: None,
        group: None,
        without_pending: false,
        keys: (0, 0),
    };
    let mut at = 1;
    while let Some(option) = ctx.request.args.get(at) {
        let more = ctx.request.args.len() - at - 1;
        at += 1;
        match option.to_ascii_lowercase().as_slice() {
            b"block" if more > 0 => options.block_ms = Some(parse_block(ctx.arg(at), now_ms)?),
            b"count" if more > 0 => {
                let count = parse_integer(ctx.arg(at)).ok_or(NOT_AN_INTEGER)?;
                let count = usize::try_from(count).unwrap_or(0);
                options.count = if count == 0 { usize::MAX } else { count };
            }
            b"streams" if more > 0 => {
                if more % 2 == 1 {
                    return Err(unbalanced(in_group));
                }
                options.keys = (at, more / 2);
                break;
            }
            b"group" if more >= 2 => {
                if !in_group {
                    return only_in_group("GROUP");
                }
                options.group = Some((ctx.arg(at), ctx.arg(at + 1)));
                at += 1;
            }
            b"noack" => {
                if !in_group {
                    return only_in_group("NOACK");
                }
                options.without_pending = true;
                continue;
            }
            _ => return Err(SYNTAX),
        }
        at += 1;
    }
    match options.keys.1 {
        0 => Err(SYNTAX),
        _ if in_group && options.group.is_none() => {
            Err(Failure::Text("ERR Missing GROUP option for XREADGROUP"))
        }
        _ => Ok(options),
    }
}

fn unbalanced(in_group: bool) -> Failure {
    let (name, id) = if in_group {
        ("xreadgroup", '>')
    } else {
        ("xread", '$')
    };
    let text = format!(
        "ERR Unbalanced '{name}' list of streams: for each stream key an ID or '{id}' must be specified."
    );
    text.into()
}

/// Fails if the reply to so many entries is longer than it may be: the entries are gathered before
/// the first one is written.
fn check_fits(reply: &Reply<'_>, entries: usize) -> Done {
    match entries * ITEM_BYTES <= reply.bytes_max() {
        true => Ok(()),
        false => Err(reply.too_long()),
    }
}

fn write_nothing(ctx: &mut Context<'_>) {
    ctx.reply.encoder().null_array();
}

/// Runs `look`, which replies and returns whether there was anything to read; if there was nothing,
/// waits for as long as BLOCK says.
fn look_or_wait(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    block_ms: Option<u64>,
    mut look: impl FnMut(&mut Context<'_>, &mut Guard<'_>) -> Result<bool, Failure>,
) -> Done {
    let Some(block_ms) = block_ms else {
        if !look(ctx, guard)? {
            write_nothing(ctx);
        }
        return Ok(());
    };
    let wait = WaitFor {
        kind: Type::Stream,
        first_key_alone: false,
        only_reads: true,
        deadline_ms: match block_ms {
            0 => 0,
            _ => clock::now_ms().saturating_add(block_ms),
        },
        late: write_nothing,
    };
    take_or_wait(ctx, guard, &wait, |ctx, guard, _| look(ctx, guard))
}

/// An entry of the reply: its id, and its content unless it was deleted.
type Item<'s> = (Id, Option<Entry<'s>>);

/// Replies with the entries of each stream, which is named by its argument.
fn write_found(ctx: &mut Context<'_>, found: &[(usize, &Stream<'_>, Vec<Item<'_>>)]) -> Done {
    let in_map = ctx.client.protocol() == Protocol::Resp3;
    match in_map {
        true => ctx.reply.encoder().map(found.len()),
        false => ctx.reply.encoder().array(found.len()),
    }
    for (key, stream, items) in found {
        let key = ctx.arg(*key);
        let mut reply = ctx.reply.encoder();
        if !in_map {
            reply.array(2);
        }
        reply.bulk(key);
        reply.array(items.len());
        for (id, entry) in items {
            let mut reply = ctx.reply.encoder();
            match entry {
                Some(entry) => write_entry(&mut reply, stream, entry)?,
                None => {
                    reply.array(2);
                    write_id(&mut reply, *id);
                    reply.null_array();
                }
            }
            ctx.reply.fits()?;
        }
    }
    Ok(())
}

/// Parses an id: the reply begins behind it.
fn parse_last(text: &[u8], stream: Option<&Stream<'_>>) -> Result<Id, Failure> {
    match text {
        b"$" => Ok(stream.map_or(Id::MIN, Stream::last)),
        b"+" => {
            let last = stream.map_or(Id::MIN, Stream::tip);
            Ok(last.previous().unwrap_or(Id::MIN))
        }
        b">" => Err(Failure::Text(
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        )),
        _ => parse_id(text, 0),
    }
}

pub(crate) fn xread(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse(ctx, false, guard.now_ms())?;
    // `$` stands for the last id at the first look.
    let known = ctx.client.key_wait.get_mut();
    let mut last_ids = known.map_or_else(Vec::new, |wait| std::mem::take(&mut wait.last_ids));
    let done = look_or_wait(ctx, guard, options.block_ms, |ctx, guard| {
        read_behind(ctx, guard, &options, &mut last_ids)
    });
    if let Some(wait) = ctx.client.key_wait.get_mut() {
        wait.last_ids = last_ids;
    }
    done
}

/// The place in a stream from which a reader waits. Many readers wait from the same place, and only
/// the first of them searches it.
fn place_of(
    ctx: &mut Context<'_>,
    key: &[u8],
    version: u64,
    stream: &Stream<'_>,
    start: Id,
) -> Result<Place, Failure> {
    let table = ctx.table;
    if let Some(known) = ctx.thread.stream_place()
        && (known.table, known.version, known.start) == (table, version, start)
        && known.key == key
    {
        return Ok(known.place);
    }
    let place = stream.place_of(start)?;
    let known = ctx.thread.stream_place_mut();
    (known.table, known.version, known.start) = (table, version, start);
    known.key.clear();
    known.key.extend_from_slice(key);
    known.place = place;
    #[cfg(test)]
    {
        known.searches += 1;
    }
    Ok(place)
}

/// Replies with the entries behind `last_ids`, which are parsed from the request if they are not
/// known yet. Returns whether there were any entries.
fn read_behind(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    options: &Options<'_>,
    last_ids: &mut Vec<Id>,
) -> Result<bool, Failure> {
    let (first, number) = options.keys;
    let mut is_found = false;
    at_once(ctx, guard, |ctx, found| {
        let mut streams = Vec::with_capacity(number);
        let mut ids = Vec::with_capacity(number);
        for (n, object) in found.iter().enumerate() {
            let stream = match awaited(ctx.client, *object, Type::Stream)? {
                Some(value) => Some(Stream::of(Some(value))?),
                None => None,
            };
            let last = match last_ids.get(n) {
                Some(last) => *last,
                None => parse_last(ctx.arg(first + number + n), stream.as_ref())?,
            };
            ids.push(last);
            streams.push((stream, last));
        }
        *last_ids = ids;
        let (mut shown, mut number_of_items) = (Vec::new(), 0);
        for (n, (stream, last)) in streams.iter().enumerate() {
            let (Some(stream), Some(start)) = (stream, last.next()) else {
                continue;
            };
            if stream.tip() < start {
                continue;
            }
            let key = ctx.arg(first + n);
            let object = found.get(n).copied().flatten();
            let entries = match object.filter(|_| options.block_ms.is_some() && !ctx.locked) {
                Some(object) => {
                    let place = place_of(ctx, key, object.version, stream, start)?;
                    stream.behind(place, options.count)?
                }
                None => stream.range(start, Id::MAX, options.count)?,
            };
            let items = entries.into_iter().map(|entry| (entry.id, Some(entry)));
            let items: Vec<Item<'_>> = items.collect();
            number_of_items += items.len();
            check_fits(&ctx.reply, number_of_items)?;
            shown.push((first + n, stream, items));
        }
        is_found = !shown.is_empty();
        if is_found {
            write_found(ctx, &shown)?;
        }
        Ok(Vec::new())
    })?;
    Ok(is_found)
}

/// A stream of XREADGROUP.
struct Source<'f> {
    groups: Vec<Group<'f>>,
    /// The position of the group among the groups of the stream.
    group: usize,
    /// Whether the value of the stream is written again.
    is_changed: bool,
    /// Whether the consumer was made by this request.
    is_new: bool,
}

/// The entries that a request of XREADGROUP wants: new ones, or the consumer's own pending ones
/// behind an id.
#[derive(Clone, Copy)]
enum Wanted {
    New,
    Pending(Id),
}

fn parse_wanted(text: &[u8]) -> Result<Wanted, Failure> {
    match text {
        b">" => Ok(Wanted::New),
        [sign @ (b'$' | b'+')] => {
            let sign = char::from(*sign);
            let text = format!(
                "ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the \
                 history of this consumer by specifying a proper ID, or use the > ID to get new \
                 messages. The {sign} ID would just return an empty result set."
            );
            Err(text.into())
        }
        _ => match parse_id(text, 0)? {
            Id::MAX => Ok(Wanted::New), // as in Redis, where this id stands for `>`
            id => Ok(Wanted::Pending(id)),
        },
    }
}

impl Source<'_> {
    /// Finds the group, and the consumer's place in it; notes that the consumer asks now.
    fn asked<'s, 'f>(
        source: &'s mut Source<'f>,
        consumer: &'f [u8],
        now_ms: u64,
    ) -> Option<(&'s mut Group<'f>, usize)> {
        let group = source.groups.get_mut(source.group)?;
        let name = Text::of(consumer);
        let known = group.consumer(&name).and_then(|at| group.consumers.get(at));
        let seen = known.map(|consumer| consumer.seen_at_ms);
        let is_recent = |seen: u64| seen.abs_diff(now_ms) < SEEN_STEP_MS;
        source.is_changed |= !seen.is_some_and(is_recent); // R1
        source.is_new |= seen.is_none();
        let place = group.seen(name, now_ms);
        Some((group, place))
    }
}

/// Gives a consumer the entries that it wants; `None`: there are none.
fn take<'s, 'f>(
    stream: &'s Stream<'f>,
    source: &mut Source<'f>,
    wanted: Wanted,
    consumer: &'f [u8],
    options: &Options<'_>,
    now_ms: u64,
) -> Result<Option<Vec<Item<'s>>>, Failure> {
    let Some((group, place)) = Source::asked(source, consumer, now_ms) else {
        return Ok(None);
    };
    let items = match wanted {
        Wanted::Pending(id) => pending_of(stream, group, place, id, options.count, now_ms)?,
        Wanted::New => {
            let Some(start) = group.last.next().filter(|start| *start <= stream.tip()) else {
                return Ok(None);
            };
            let entries = stream.range(start, Id::MAX, options.count)?;
            for entry in &entries {
                stream.note_read(group, entry.id);
            }
            if !options.without_pending {
                group.give(entries.iter().map(|entry| entry.id), place, now_ms);
                group.active(place, now_ms);
            }
            let items = entries.into_iter().map(|entry| (entry.id, Some(entry)));
            items.collect()
        }
    };
    source.is_changed |= !items.is_empty();
    Ok(Some(items))
}

/// The pending entries of a consumer behind an id, which are delivered again.
fn pending_of<'s>(
    stream: &'s Stream<'_>,
    group: &mut Group<'_>,
    place: usize,
    id: Id,
    most: usize,
    now_ms: u64,
) -> Result<Vec<Item<'s>>, Failure> {
    let from = group.pending.partition_point(|pending| pending.id <= id);
    let own = group.pending.iter_mut().skip(from);
    let own = own.filter(|pending| pending.consumer == place).take(most);
    let mut own: Vec<_> = own.collect();
    let entries = stream.find(own.iter().map(|pending| pending.id))?;
    let mut items = Vec::with_capacity(own.len());
    for (pending, entry) in own.iter_mut().zip(entries) {
        if entry.is_some() {
            pending.delivered_at_ms = now_ms;
            pending.deliveries = pending.deliveries.saturating_add(1);
        }
        items.push((pending.id, entry));
    }
    Ok(items)
}

fn no_group(key: &[u8], group: &[u8]) -> Failure {
    let (key, group) = (String::from_utf8_lossy(key), String::from_utf8_lossy(group));
    let text = format!(
        "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
    );
    text.into()
}

/// The streams of XREADGROUP, each once, with its group, and for each key the position of its
/// stream.
type Sources<'f> = (Vec<(usize, Stream<'f>, Source<'f>)>, Vec<usize>);

fn sources<'f>(
    ctx: &Context<'_>,
    found: &[Option<Object<'f>>],
    first: usize,
    group: &[u8],
    wanted: &mut Vec<Wanted>,
) -> Result<Sources<'f>, Failure> {
    let (mut sources, mut places): Sources<'f> = (Vec::new(), Vec::new());
    let mut places_of = HashMap::new();
    let name = Text::of(group);
    for (n, object) in found.iter().enumerate() {
        let key = ctx.arg(first + n);
        let value = typed(*object)?.ok_or_else(|| no_group(key, group))?;
        let place = *places_of.entry(key).or_insert(sources.len());
        if place == sources.len() {
            let stream = Stream::of(Some(value))?;
            let groups = stream.groups()?;
            let position = groups.iter().position(|group| group.name == name);
            let source = Source {
                group: position.ok_or_else(|| no_group(key, group))?,
                groups,
                is_changed: false,
                is_new: false,
            };
            sources.push((n, stream, source));
        }
        places.push(place);
        wanted.push(parse_wanted(ctx.arg(first + found.len() + n))?);
    }
    Ok((sources, places))
}

pub(crate) fn xreadgroup(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let now_ms = guard.now_ms();
    let options = parse(ctx, true, now_ms)?;
    look_or_wait(ctx, guard, options.block_ms, |ctx, guard| {
        give(ctx, guard, &options, now_ms)
    })
}

/// Gives entries to the consumer, and replies. Returns whether there were any entries.
fn give(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    options: &Options<'_>,
    now_ms: u64,
) -> Result<bool, Failure> {
    let (group, consumer) = options.group.unwrap_or_default();
    let (first, _) = options.keys;
    let mut is_found = false;
    at_once(ctx, guard, |ctx, found| {
        let mut wanted = Vec::with_capacity(found.len());
        let (sources, places) = sources(ctx, found, first, group, &mut wanted)?;
        let (mut streams, mut states) = (Vec::new(), Vec::new());
        for (key, stream, source) in sources {
            streams.push(stream);
            states.push((key, source));
        }
        let (mut shown, mut number_of_items) = (Vec::new(), 0);
        for ((n, at), wanted) in places.iter().enumerate().zip(wanted) {
            let (Some(stream), Some((_, source))) = (streams.get(*at), states.get_mut(*at)) else {
                continue;
            };
            if let Some(items) = take(stream, source, wanted, consumer, options, now_ms)? {
                number_of_items += items.len();
                check_fits(&ctx.reply, number_of_items)?;
                shown.push((first + n, stream, items));
            }
        }
        is_found = !shown.is_empty();
        if is_found {
            write_found(ctx, &shown)?;
        } else if options.block_ms.is_some() {
            return Ok(Vec::new()); // a request that waits has done nothing
        }
        drop(shown);
        let mut writes = Vec::new();
        for ((key, source), mut stream) in states.into_iter().zip(streams) {
            if source.is_changed {
                stream.set_groups(&source.groups);
                let object = found.get(key).copied().flatten();
                let events = [source.is_new.then_some(CONSUMER_MADE), None];
                let store = |parts: &mut Root<'_, '_>| Ok(stream.store(parts)?);
                let (write, ()) = Write::change(key, object, events, store)?;
                writes.push(write);
            }
        }
        Ok(writes)
    })?;
    Ok(is_found)
}
