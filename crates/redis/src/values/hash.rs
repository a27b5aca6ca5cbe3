//! Hashes: fields with values.

use super::collection::{self, change, parse_random_count, read, write_random};
use super::float::Float;
use crate::command::context::{Context, Done, Failure, NOT_A_FLOAT, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::EventName;
use crate::command::row::*;
use duramen_config::EventClasses;
use duramen_engine::Guard;
use duramen_types::table::Hash;
use duramen_types::{Text, Type, count, find_at_most_once};
use duramen_wire::resp::Protocol;
use duramen_wire::resp::number::{parse_integer, write_integer};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("hset", -4, DENYOOM | FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Sets fields of a hash."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(hset)),
    row("hmset", -4, DENYOOM | FAST, doc(Topic::Hash, "2.0.0", "O(N)", "Sets fields of a hash (old name of HSET)."),
        Keys::one(UPDATES), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(hmset)),
    row("hsetnx", 4, DENYOOM | FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Sets a field that does not exist."),
        Keys::one(ADDS), Effect::Writes(Growth::By(|args, _| growth::texts(args, 2))), Secrets::None, Run::Data(hsetnx)),
    row("hget", 3, FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Returns the value of a field."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hget)),
    row("hmget", -3, FAST, doc(Topic::Hash, "2.0.0", "O(N)", "Returns the values of fields."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hmget)),
    row("hdel", -3, FAST, doc(Topic::Hash, "2.0.0", "O(N)", "Removes fields."),
        Keys::one(REMOVES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(hdel)),
    row("hlen", 2, FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Returns the number of fields."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(hlen)),
    row("hstrlen", 3, FAST, doc(Topic::Hash, "3.2.0", "O(1)", "Returns the length of a field's value."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(hstrlen)),
    row("hexists", 3, FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Tells whether a field exists."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(hexists)),
    row("hkeys", 2, NO_FLAGS, doc(Topic::Hash, "2.0.0", "O(N)", "Returns all fields."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hkeys)).tips(&["nondeterministic_output_order"]),
    row("hvals", 2, NO_FLAGS, doc(Topic::Hash, "2.0.0", "O(N)", "Returns all values."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hvals)).tips(&["nondeterministic_output_order"]),
    row("hgetall", 2, NO_FLAGS, doc(Topic::Hash, "2.0.0", "O(N)", "Returns all fields and values."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hgetall)).tips(&["nondeterministic_output_order"]),
    row("hincrby", 4, DENYOOM | FAST, doc(Topic::Hash, "2.0.0", "O(1)", "Adds to the integer in a field."),
        Keys::one(CHANGES),
        Effect::Writes(Growth::By(|args, _| growth::text(args, 2) + growth::text_bytes(growth::INTEGER_BYTES))), Secrets::None, Run::Data(hincrby)),
    row("hincrbyfloat", 4, DENYOOM | FAST, doc(Topic::Hash, "2.6.0", "O(1)", "Adds to the number in a field."),
        Keys::one(CHANGES),
        Effect::Writes(Growth::By(|args, _| growth::text(args, 2) + growth::text_bytes(growth::NUMBER_BYTES))), Secrets::None, Run::Data(hincrbyfloat)),
    row("hrandfield", -2, NO_FLAGS, doc(Topic::Hash, "6.2.0", "O(N)", "Returns random fields."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hrandfield))
            .differs("A negative count takes each MiB of the reply from the hash of that moment.").tips(&["nondeterministic_output"]),
    row("hscan", -3, NO_FLAGS, doc(Topic::Hash, "2.8.0", "O(N)", "Walks over fields and values."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(hscan))
            .differs("Everything in one step, with cursor 0.").tips(&["nondeterministic_output"]),
];

const fn event(name: &'static str) -> EventName {
    (EventClasses::HASH, name)
}

/// Sets the fields of the request; returns how many of them are new.
fn set_fields(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Result<i64, Failure> {
    let args = ctx.request.args;
    if !args.len().is_multiple_of(2) {
        let name = ctx.request.spec.name;
        return Err(format!("ERR wrong number of arguments for '{name}' command").into());
    }
    change(ctx, guard, event("hset"), |_, parts| {
        let mut hash = Hash::load(parts)?;
        hash.expect(args.len() / 2);
        let (mut rest, mut new) = (args.skip(2).into_iter(), 0);
        while let (Some(field), Some(value)) = (rest.next(), rest.next()) {
            new += i64::from(hash.insert(Text::of(field), Text::of(value)).is_none());
        }
        hash.store(parts)?;
        Ok(new)
    })
}

pub(crate) fn hset(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let new = set_fields(ctx, guard)?;
    ctx.reply.integer(new)
}

pub(crate) fn hmset(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_fields(ctx, guard)?;
    ctx.reply.ok()
}

pub(crate) fn hsetnx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (field, value) = (Text::of(ctx.arg(2)), Text::of(ctx.arg(3)));
    let new = change(ctx, guard, event("hset"), |_, parts| {
        let mut hash = Hash::load(parts)?;
        if hash.has(&field) {
            return Ok(0);
        }
        hash.insert(field, value);
        hash.store(parts)?;
        Ok(1)
    })?;
    ctx.reply.integer(new)
}

pub(crate) fn hget(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let Some(value) = read(ctx, guard)? else {
        return ctx.reply.null();
    };
    match find_at_most_once::<Text<'_>>(value, ctx.arg(2))? {
        Some(text) => ctx.reply.bulk(&text.bytes()),
        None => ctx.reply.null(),
    }
}

pub(crate) fn hmget(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut hash = Hash::of(read(ctx, guard)?)?;
    let fields = ctx.request.args.skip(2);
    hash.expect(fields.len());
    let mut reply = ctx.reply.encoder();
    reply.array(fields.len());
    for field in fields {
        match hash.get(&Text::of(field)) {
            Some(text) => reply.bulk(&text.bytes()),
            None => reply.null(),
        }
    }
    Ok(())
}

pub(crate) fn hdel(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let fields: Vec<_> = ctx.request.args.skip(2).into_iter().map(Text::of).collect();
    let removed = change(ctx, guard, event("hdel"), |_, parts| {
        let mut hash = Hash::load(parts)?;
        let removed = hash.remove(fields.iter().copied());
        if removed > 0 {
            hash.store(parts)?;
        }
        Ok(removed)
    })?;
    ctx.reply.integer(removed as i64)
}

pub(crate) fn hlen(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = read(ctx, guard)?;
    let count = value.map_or(Ok(0), |value| count(value, Type::Hash))?;
    ctx.reply.integer(count as i64)
}

/// The value of the field in argument 2.
fn field<'g>(ctx: &mut Context<'_>, guard: &'g Guard<'_>) -> Result<Option<Text<'g>>, Failure> {
    match read(ctx, guard)? {
        Some(value) => Ok(find_at_most_once(value, ctx.arg(2))?),
        None => Ok(None),
    }
}

pub(crate) fn hstrlen(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let length = field(ctx, guard)?.map_or(0, |text| text.len());
    ctx.reply.integer(length as i64)
}

pub(crate) fn hexists(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let found = field(ctx, guard)?.is_some();
    ctx.reply.integer(found.into())
}

pub(crate) fn hkeys(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let hash = Hash::of(read(ctx, guard)?)?;
    let mut reply = ctx.reply.encoder();
    reply.array(hash.len());
    for (field, _) in hash.elements() {
        reply.bulk(&field.bytes());
    }
    Ok(())
}

pub(crate) fn hvals(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let hash = Hash::of(read(ctx, guard)?)?;
    let mut reply = ctx.reply.encoder();
    reply.array(hash.len());
    for (_, value) in hash.elements() {
        reply.bulk(&value.bytes());
    }
    Ok(())
}

pub(crate) fn hgetall(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let hash = Hash::of(read(ctx, guard)?)?;
    let mut reply = ctx.reply.encoder();
    reply.map(hash.len());
    for (field, value) in hash.elements() {
        reply.bulk(&field.bytes());
        reply.bulk(&value.bytes());
    }
    Ok(())
}

pub(crate) fn hincrby(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let by = parse_integer(ctx.arg(3)).ok_or(NOT_AN_INTEGER)?;
    let field = Text::of(ctx.arg(2));
    let sum = change(ctx, guard, event("hincrby"), |_, parts| {
        let mut text = Vec::new();
        let mut hash = Hash::load(parts)?;
        let old = match hash.get(&field) {
            Some(text) => parse_integer(&text.bytes())
                .ok_or(Failure::Text("ERR hash value is not an integer"))?,
            None => 0,
        };
        let overflow = Failure::Text("ERR increment or decrement would overflow");
        let sum = old.checked_add(by).ok_or(overflow)?;
        write_integer(&mut text, sum);
        hash.insert(field, Text::of(&text));
        hash.store(parts)?;
        Ok(sum)
    })?;
    ctx.reply.integer(sum)
}

pub(crate) fn hincrbyfloat(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let by = Float::parse(ctx.arg(3)).ok_or(NOT_A_FLOAT)?;
    if !by.value().is_finite() {
        return Err(Failure::Text("ERR value is NaN or Infinity"));
    }
    let field = Text::of(ctx.arg(2));
    let text = change(ctx, guard, event("hincrbyfloat"), |_, parts| {
        let mut text = Vec::new();
        let mut hash = Hash::load(parts)?;
        let old = match hash.get(&field) {
            Some(text) => {
                Float::parse(&text.bytes()).ok_or(Failure::Text("ERR hash value is not a float"))?
            }
            None => Float::Fixed(0),
        };
        let infinite = Failure::Text("ERR increment would produce NaN or Infinity");
        let sum = old.add(by).ok_or(infinite)?;
        sum.write(&mut text);
        hash.insert(field, Text::of(&text));
        hash.store(parts)?;
        drop(hash);
        Ok(text)
    })?;
    ctx.reply.bulk(&text)
}

pub(crate) fn hrandfield(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = match ctx.request.args.len() {
        2 => None,
        _ => Some(parse_random_count(ctx.arg(2))?),
    };
    let with_values = match ctx.request.args.len() {
        2 | 3 => false,
        4 if ctx.arg(3).eq_ignore_ascii_case(b"withvalues") => true,
        _ => return Err(SYNTAX),
    };
    let hash = Hash::of(read(ctx, guard)?)?;
    let Some(wanted) = wanted else {
        return match ctx.thread.random().pick(hash.elements()) {
            Some((field, _)) => ctx.reply.bulk(&field.bytes()),
            None => ctx.reply.null(),
        };
    };
    let in_pairs = with_values && ctx.client.protocol() == Protocol::Resp3;
    let width = if with_values && !in_pairs { 2 } else { 1 };
    write_random(
        ctx,
        hash.elements(),
        wanted,
        width,
        |reply, (field, value)| {
            if in_pairs {
                reply.array(2);
            }
            reply.bulk(&field.bytes());
            if with_values {
                reply.bulk(&value.bytes());
            }
        },
    )
}

pub(crate) fn hscan(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    collection::parse_scan_cursor(ctx)?;
    let Some(value) = read(ctx, guard)? else {
        return collection::empty_scan(ctx);
    };
    let hash = Hash::of(Some(value))?;
    let options = collection::parse_scan(ctx, Type::Hash)?;
    let shown = hash.elements().iter();
    let shown: Vec<_> = shown.filter(|(field, _)| options.matches(field)).collect();
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(b"0");
    reply.array(shown.len() * if options.no_values { 1 } else { 2 });
    for (field, value) in shown {
        reply.bulk(&field.bytes());
        if !options.no_values {
            reply.bulk(&value.bytes());
        }
    }
    Ok(())
}
