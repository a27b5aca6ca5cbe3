//! Walks over a table: SCAN, KEYS, RANDOMKEY, DBSIZE.
//!
//! **Invariant**
//! - W1: no request walks longer than a slice. Then `SCAN` and `DURAMEN.SCAN` reply
//!   with the cursor; `KEYS` and `RANDOMKEY` note their progress and continue in the next round,
//!   after all other connections had a turn and without a pin in between. Inside EXEC, which is one
//!   step, they walk to the end; there all walks of one EXEC share a limit ([`LOOKS_IN_EXEC_MAX`]).
//! - W2: a walk is charged for each entry that it looks at, whether it has expired or not, and for
//!   empty buckets.

use super::keys::type_name;
use crate::command::cold;
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX, YIELDS};
use crate::command::row::*;
use crate::command::served_keys::ServedKeys;
use crate::command::walk::{LONG_PATTERN, compiled, parse_cursor};
use duramen_base::glob::Pattern;
use duramen_engine::{Error, Guard, Object, TableId};
use duramen_wire::resp::Encoder;
use duramen_wire::resp::number::{IntegerText, parse_integer};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("randomkey", 1, KEYSPACE | WHOLE, doc(Topic::Generic, "1.0.0", "O(1)", "Returns some key."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Data(randomkey)).family(Family::Scan)
        .tips(&["request_policy:all_shards", "nondeterministic_output"]),
    row("dbsize", 1, FAST | KEYSPACE | WHOLE, doc(Topic::Server, "1.0.0", "O(1)", "Returns the number of keys."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Data(dbsize)).family(Family::Scan)
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"]),
    row("scan", -2, KEYSPACE | WHOLE | TIMED, doc(Topic::Generic, "2.8.0", "O(1)", "Walks over the keys step by step."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Data(scan))
            .differs("Order of key hashes; 8,192 keys or about 1 MiB per call.").family(Family::Scan).tips(&["nondeterministic_output", "request_policy:special"]),
    row("keys", 2, KEYSPACE | DANGEROUS | WHOLE | TIMED, doc(Topic::Generic, "1.0.0", "O(N)", "Returns all keys that match a pattern."),
        Keys::NONE, Effect::Reads, Secrets::None, Run::Data(keys))
            .differs("Other clients are served meanwhile.").family(Family::Scan)
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"]),
];

/// Objects that KEYS visits in one step of its walk, with a short pattern.
const KEYS_STEP: usize = 1024;
/// Entries that a walk looks at in one slice (W1): one or two milliseconds.
pub(crate) const LOOKS_PER_SLICE: usize = 8 * KEYS_STEP;
/// Matching steps in one slice of KEYS (W1): about the same time.
const MATCHING_PER_SLICE: usize = 1 << 20;
/// Objects that SCAN visits in one step: after each step it checks the bytes found, and a key may
/// have 64 KiB.
pub(crate) const KEYS_PER_STEP: usize = 16;
/// As [`KEYS_PER_STEP`], when values are returned too: a value may have 1 MiB.
pub(crate) const VALUES_PER_STEP: usize = 1;
/// One SCAN ends after the step with which the bytes found, or its matching steps, exceed this.
const SCAN_BYTES_MAX: usize = 1 << 20;
/// Entries that all walks of one EXEC may look at: about 8 ms, for which all clients wait.
const LOOKS_IN_EXEC_MAX: usize = 1 << 15;
/// Matching steps that count as one entry in this limit.
const MATCHING_PER_LOOK: usize = 64;

struct Options {
    cursor: u64,
    pattern: Option<Pattern>,
    count: usize,
    /// Only objects whose type has this name, in lower case.
    kind: Option<Vec<u8>>,
}

/// W1, inside EXEC: counts the entries that a walk has looked at.
///
/// # Errors
/// All walks of this EXEC together have looked at too many.
pub(crate) fn note_walked(ctx: &mut Context<'_>, looked: usize, matching: usize) -> Done {
    if !ctx.locked {
        return Ok(());
    }
    let walked = ctx.thread.exec.walk(looked + matching / MATCHING_PER_LOOK);
    match walked > LOOKS_IN_EXEC_MAX {
        true => Err(Failure::Text(
            "ERR KEYS, SCAN and RANDOMKEY look at 32768 keys at most in one transaction",
        )),
        false => Ok(()),
    }
}

pub(crate) fn scan(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let options = parse(ctx)?;
    let own = ServedKeys::of(ctx, guard);
    let mut found = std::mem::take(&mut ctx.thread.buffers.scratch);
    found.clear();
    let mut keys = 0;
    let mut reply = Encoder::new(&mut found, ctx.client.protocol());
    let (from, count) = (options.cursor, options.count);
    let in_parts = ctx.client.parking.take_in_parts();
    let mut matching = 0;
    note_walked(ctx, 0, 0)?;
    let next = walk(
        guard,
        ctx.table,
        from,
        count,
        KEYS_PER_STEP,
        in_parts,
        |object| {
            let pattern = options.pattern.as_ref();
            let wanted = pattern.is_none_or(|pattern| pattern.matches(object.key));
            let kind = options.kind.as_ref();
            let is_of_kind = kind.is_none_or(|kind| type_name(&object).as_bytes() == kind);
            if wanted && is_of_kind && own.has(guard, object.key) {
                keys += 1;
                reply.bulk(object.key);
            } else if pattern.is_none() {
                return 0;
            }
            let steps = pattern.map_or(object.key.len(), |pattern| pattern.steps(object.key.len()));
            matching += steps;
            steps
        },
    );
    let (next, looked) = cold::note_colds(ctx, guard, in_parts, next)?;
    note_walked(ctx, looked, matching)?;
    let mut reply = ctx.reply.encoder();
    reply.array(2);
    reply.bulk(IntegerText::unsigned(next).as_bytes());
    reply.array(keys);
    ctx.reply.append(&found);
    give_back(ctx, found);
    Ok(())
}

/// Shows about `count` objects from `cursor` on, or fewer (W1); returns the next cursor, 0 =
/// finished, and the number of entries that it looked at. Each step shows `per_step` objects and
/// the rest of the bucket where they end, or with `in_parts` only the objects before the first one
/// on flash. `show` returns the cost of an object, in bytes kept or in matching steps.
pub(crate) fn walk(
    guard: &Guard<'_>,
    table: TableId,
    mut cursor: u64,
    count: usize,
    per_step: usize,
    in_parts: bool,
    mut show: impl FnMut(Object<'_>) -> usize,
) -> Result<(u64, usize), Error> {
    let (mut left, mut found_bytes, mut looked) = (count.max(1), 0, 0);
    for step in 0.. {
        let wanted = left.min(per_step);
        let shows = |object: Object<'_>| {
            left = left.saturating_sub(1);
            found_bytes += show(object);
        };
        let shown = guard
            .walk()
            .scan_as(table, cursor, wanted, in_parts || step > 0, shows);
        let (next, looks) = match shown {
            // The next SCAN waits for the entries on flash that this step has met, and shows the
            // objects of this step again.
            Err(Error::Cold(_)) if step > 0 => {
                guard.pin().take_colds();
                break;
            }
            shown => shown?,
        };
        cursor = next;
        looked += looks;
        let is_long = found_bytes > SCAN_BYTES_MAX || looked >= LOOKS_PER_SLICE;
        if cursor == 0 || left == 0 || is_long {
            break;
        }
    }
    Ok((cursor, looked))
}

/// Keeps a buffer for the next command, unless it is too large.
fn give_back(ctx: &mut Context<'_>, mut buffer: Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(64 * 1024);
    ctx.thread.buffers.scratch = buffer;
}

fn parse(ctx: &Context<'_>) -> Result<Options, Failure> {
    let cursor = parse_cursor(ctx.arg(1))?;
    let mut options = Options {
        cursor,
        pattern: None,
        count: 10,
        kind: None,
    };
    let mut pattern = None;
    let mut rest = ctx.request.args.skip(2).into_iter();
    while let Some(option) = rest.next() {
        let value = rest.next().ok_or(SYNTAX)?;
        if option.eq_ignore_ascii_case(b"count") {
            let count = parse_integer(value).ok_or(NOT_AN_INTEGER)?;
            if count < 1 {
                return Err(SYNTAX);
            }
            options.count = usize::try_from(count).unwrap_or(usize::MAX);
        } else if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(value).filter(|pattern| *pattern != b"*");
        } else if option.eq_ignore_ascii_case(b"type") {
            options.kind = Some(value.to_ascii_lowercase());
        } else {
            return Err(SYNTAX);
        }
    }
    options.pattern = compiled(pattern)?;
    Ok(options)
}

pub(crate) fn keys(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let pattern = Pattern::new(ctx.arg(1), false).ok_or(LONG_PATTERN)?;
    let step_objects = (KEYS_STEP / pattern.steps(1)).max(KEYS_PER_STEP);
    let own = ServedKeys::of(ctx, guard);
    let mut walk = ctx.client.parking.take_walk(ctx.table);
    let goes_on = walk.cursor != 0;
    let in_parts = ctx.client.parking.take_in_parts();
    if !goes_on && walk.found.capacity() == 0 {
        walk.found = std::mem::take(&mut ctx.thread.buffers.scratch);
        walk.found.clear();
    }
    let (mut looked, mut matching) = (0, 0);
    note_walked(ctx, 0, 0)?;
    loop {
        let cursor = walk.cursor;
        let before = (walk.keys, walk.found.len(), matching);
        let mut room = ctx.reply.room_left();
        let mut reply = Encoder::within(&mut walk.found, ctx.client.protocol(), &mut room);
        let shows = |object: Object<'_>| {
            // A bucket that grew meanwhile may be met twice, but a key is reported once.
            let again = goes_on && guard.hash(object.key).is_before(cursor);
            matching += pattern.steps(object.key.len());
            let wanted = !again && pattern.matches(object.key);
            if wanted && own.has(guard, object.key) {
                walk.keys += 1;
                reply.bulk(object.key);
            }
        };
        let step = guard
            .walk()
            .scan_as(ctx.table, cursor, step_objects, in_parts, shows);
        if room.is_exceeded_by(&walk.found) {
            return Err(ctx.reply.too_long());
        }
        match cold::note_colds(ctx, guard, in_parts, step) {
            Ok((next, looks)) => {
                looked += looks;
                note_walked(ctx, looks, matching - before.2)?;
                if next == 0 {
                    break;
                }
                (walk.cursor, walk.moved) = (next, true);
            }
            Err(error) => {
                // The walk may have shown some objects already, and will show them again.
                walk.keys = before.0;
                walk.found.truncate(before.1);
                ctx.client.parking.keep_walk(walk);
                return Err(error.into());
            }
        }
        if (looked >= LOOKS_PER_SLICE || matching >= MATCHING_PER_SLICE) && !ctx.locked {
            ctx.client.parking.keep_walk(walk);
            return Err(YIELDS);
        }
    }
    if goes_on {
        ctx.settle_all(); // no reply covers the objects seen in earlier rounds yet
    }
    ctx.reply.encoder().array(walk.keys);
    ctx.reply.append(&walk.found);
    give_back(ctx, walk.found);
    Ok(())
}

/// Walks from a random bucket to the first one with an object, and picks one of its objects. A walk
/// that reaches the end goes through the whole table once more.
pub(crate) fn randomkey(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let own = ServedKeys::of(ctx, guard);
    let mut walk = ctx.client.parking.take_walk(ctx.table);
    let in_parts = ctx.client.parking.take_in_parts();
    let goes_on = walk.passes > 0;
    if !goes_on {
        walk.cursor = guard
            .walk()
            .random_place(ctx.table, ctx.thread.random().next_u64())?;
        walk.passes = 1;
    }
    let (mut looked, mut met) = (0, 0);
    note_walked(ctx, 0, 0)?;
    loop {
        let shows = |object: Object<'_>| {
            if own.has(guard, object.key) {
                met += 1;
                if ctx.thread.random().below(met) == 0 {
                    walk.found.clear();
                    walk.found.extend_from_slice(object.key);
                }
            }
        };
        let step = guard
            .walk()
            .scan_as(ctx.table, walk.cursor, 1, in_parts, shows);
        let (next, looks) = match cold::note_colds(ctx, guard, in_parts, step) {
            Ok(step) => step,
            Err(error) => {
                ctx.client.parking.keep_walk(walk);
                return Err(error.into());
            }
        };
        if met > 0 || (next == 0 && walk.passes == 2) {
            break;
        }
        looked += looks;
        note_walked(ctx, looks, 0)?;
        (walk.cursor, walk.moved) = (next, true);
        walk.passes += u8::from(next == 0);
        if looked >= LOOKS_PER_SLICE && !ctx.locked {
            ctx.client.parking.keep_walk(walk);
            return Err(YIELDS);
        }
    }
    if goes_on {
        ctx.settle_all(); // as KEYS
    }
    match met {
        0 => ctx.reply.null(),
        _ => ctx.reply.bulk(&walk.found),
    }
}

pub(crate) fn dbsize(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let objects = ctx.shared.store().tables().objects(ctx.table);
    ctx.settle_all();
    ctx.reply
        .integer(objects as i64 + guard.draft().map_or(0, |draft| draft.objects(ctx.table)))
}
