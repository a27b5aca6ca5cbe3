//! Walks over a table: SCAN, KEYS, RANDOMKEY, DBSIZE.

use super::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use super::glob;
use super::own_part::OwnPart;
use duramen_engine::{Guard, KeyHash};
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::{IntegerText, parse_integer};

/// Objects that KEYS looks at in one step of its walk.
const KEYS_STEP: usize = 1024;
/// Draws before RANDOMKEY gives up on meeting an object that has not expired.
const RANDOM_DRAWS: usize = 64;

/// Options of `SCAN`.
struct Options<'a> {
    cursor: u64,
    pattern: Option<&'a [u8]>,
    count: usize,
    /// Only objects of this type: all of them are strings.
    of_other_type: bool,
}

pub(super) fn scan(ctx: &mut Context<'_>, guard: &mut Guard<'_>, _: &[KeyHash]) -> Done {
    let options = parse(ctx)?;
    let own = OwnPart::of(ctx, guard);
    let mut found = std::mem::take(&mut ctx.local.scratch);
    found.clear();
    let mut keys = 0;
    let mut reply = Encoder::new(&mut found, ctx.client.protocol);
    let next = guard.scan(ctx.table, options.cursor, options.count, |object| {
        let wanted = options
            .pattern
            .is_none_or(|pattern| glob::matches(pattern, object.key, false));
        if wanted && !options.of_other_type && own.has(guard, object.key) {
            keys += 1;
            reply.bulk(object.key);
        }
    })?;
    let mut reply = ctx.reply();
    reply.array(2);
    reply.bulk(IntegerText::unsigned(next).as_bytes());
    reply.array(keys);
    ctx.out.extend_from_slice(&found);
    give_back(ctx, found);
    Ok(())
}

/// Keeps a buffer for the next command, unless it grew large.
fn give_back(ctx: &mut Context<'_>, mut buffer: Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(64 * 1024);
    ctx.local.scratch = buffer;
}

fn parse<'a>(ctx: &Context<'a>) -> Result<Options<'a>, Failure> {
    let cursor = parse_cursor(ctx.arg(1))?;
    let mut options = Options {
        cursor,
        pattern: None,
        count: 10,
        of_other_type: false,
    };
    let mut rest = ctx.args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        if option.eq_ignore_ascii_case(b"count") {
            let count = parse_integer(value).ok_or(NOT_AN_INTEGER)?;
            if count < 1 {
                return Err(SYNTAX);
            }
            options.count = usize::try_from(count).unwrap_or(usize::MAX);
        } else if option.eq_ignore_ascii_case(b"match") {
            options.pattern = (value != b"*").then_some(value);
        } else if option.eq_ignore_ascii_case(b"type") {
            options.of_other_type = !value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(options)
}

/// A cursor: an unsigned decimal number.
pub(super) fn parse_cursor(text: &[u8]) -> Result<u64, Failure> {
    std::str::from_utf8(text)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or(Failure::Text("ERR invalid cursor"))
}

pub(super) fn keys(ctx: &mut Context<'_>, guard: &mut Guard<'_>, _: &[KeyHash]) -> Done {
    let pattern = ctx.arg(1);
    let own = OwnPart::of(ctx, guard);
    let mut walk = ctx.client.take_walk();
    if walk.cursor == 0 && walk.found.capacity() == 0 {
        walk.found = std::mem::take(&mut ctx.local.scratch);
        walk.found.clear();
    }
    loop {
        let before = (walk.keys, walk.found.len());
        let mut reply = Encoder::new(&mut walk.found, ctx.client.protocol);
        let step = guard.scan(ctx.table, walk.cursor, KEYS_STEP, |object| {
            if glob::matches(pattern, object.key, false) && own.has(guard, object.key) {
                walk.keys += 1;
                reply.bulk(object.key);
            }
        });
        match step {
            Ok(0) => break,
            Ok(cursor) => (walk.cursor, walk.moved) = (cursor, true),
            Err(error) => {
                // It may have shown some already, and will again.
                walk.keys = before.0;
                walk.found.truncate(before.1);
                ctx.client.keep_walk(walk);
                return Err(error.into());
            }
        }
    }
    ctx.reply().array(walk.keys);
    ctx.out.extend_from_slice(&walk.found);
    give_back(ctx, walk.found);
    Ok(())
}

pub(super) fn randomkey(ctx: &mut Context<'_>, guard: &mut Guard<'_>, _: &[KeyHash]) -> Done {
    let own = OwnPart::of(ctx, guard);
    for _ in 0..RANDOM_DRAWS {
        let draw = ctx.client.take_draw();
        let draw = draw.unwrap_or_else(|| ctx.local.random());
        let object = match guard.random(ctx.table, draw) {
            Ok(Some(object)) => object,
            Ok(None) => return ctx.null(),
            Err(error) => {
                ctx.client.keep_draw(draw);
                return Err(error.into());
            }
        };
        if object
            .expires_at_ms
            .is_none_or(|at_ms| at_ms > guard.now_ms())
            && own.has(guard, object.key)
        {
            return ctx.bulk(object.key);
        }
    }
    ctx.null()
}

pub(super) fn dbsize(ctx: &mut Context<'_>) -> Done {
    let objects = ctx.shared.store().objects(ctx.table);
    ctx.settle_all();
    ctx.integer(objects as i64)
}
