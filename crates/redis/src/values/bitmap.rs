//! Bits and bit fields of plain strings.

use super::collection::{Write, plain};
use super::computed::computed_at_once;
use crate::command::access::KeyAccess;
use crate::command::bitfield::{Action, Step, bytes_of, end_of, parse_offset, parse_steps};
use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER, SYNTAX};
use crate::command::events::{EventName, SET};
use crate::command::row::*;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_config::EventClasses;
use duramen_engine::{Decision, Guard};
use duramen_types::bits::{self, Operation};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("getbit", 3, FAST, doc(Topic::Bitmap, "2.2.0", "O(1)", "Returns a bit."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(getbit)),
    row("setbit", 4, DENYOOM, doc(Topic::Bitmap, "2.2.0", "O(N)", "Sets a bit."),
        Keys::one(CHANGES), Effect::Writes(Growth::To(|args, bytes| bytes.max(growth::index(args, 2) / 8 + 1))), Secrets::None, Run::Data(setbit))
            .differs("Offsets end at the longest value."),
    row("bitcount", -2, NO_FLAGS, doc(Topic::Bitmap, "2.6.0", "O(N)", "Counts the bits that are 1."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(bitcount)),
    row("bitpos", -3, NO_FLAGS, doc(Topic::Bitmap, "2.8.7", "O(N)", "Returns the position of the first bit that is 0 or 1."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(bitpos)),
    row("bitop", -4, DENYOOM, doc(Topic::Bitmap, "2.6.0", "O(N)", "Stores the result of an operation on the bits of strings."),
        Keys::target_and_sources(2, SETS, READS), Effect::Writes(Growth::Combines), Secrets::None, Run::Atomic(bitop)),
    row("bitfield", -2, DENYOOM, doc(Topic::Bitmap, "3.2.0", "O(N)", "Reads and changes integers of any number of bits."),
        Keys::one(VARIES).by_arguments(bitfield_access).note("This command allows both access and modification of the key"),
        Effect::Writes(Growth::To(|args, bytes| bytes.max(bytes_of(args)))), Secrets::None, Run::Data(bitfield)),
    row("bitfield_ro", -2, FAST, doc(Topic::Bitmap, "6.0.0", "O(1)", "Reads integers of any number of bits."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(bitfield_ro)),
];

/// The access of BITFIELD: it only reads unless it does more than GET.
fn bitfield_access(args: &Args<'_>) -> KeyAccess {
    match changes_bits(args) {
        true => CHANGES,
        false => READS,
    }
}

/// Whether a BITFIELD does more than GET.
fn changes_bits(args: &Args<'_>) -> bool {
    let mut rest = args.skip(2).into_iter();
    while let Some(operation) = rest.next() {
        let arguments = match operation.to_ascii_lowercase().as_slice() {
            b"get" => 2,
            b"overflow" => 1,
            _ => return true,
        };
        if rest.by_ref().take(arguments).count() < arguments {
            return true;
        }
    }
    false
}

const SETBIT: EventName = (EventClasses::STRING, "setbit");
/// Reads argument 1, a plain string.
fn string<'g>(ctx: &mut Context<'_>, guard: &'g Guard<'_>) -> Result<Option<&'g [u8]>, Failure> {
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    if found.is_none() {
        ctx.notify_miss(key.bytes);
    }
    plain(found)
}

pub(crate) fn getbit(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let at = parse_offset(ctx.arg(2), None)?;
    let bit = string(ctx, guard)?.is_some_and(|value| bits::bit(value, at));
    ctx.reply.integer(bit.into())
}

/// Changes a string, which is first made at least `bytes` long. Writing equal bytes is no change.
fn change<T>(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    bytes: usize,
    mut run: impl FnMut(&mut [u8]) -> T,
) -> Result<T, Failure> {
    let key = ctx.key();
    let mut result = Err(Failure::TooLong);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let old = match plain(found) {
            Ok(old) => old.unwrap_or_default(),
            Err(failure) => {
                result = Err(failure);
                return Decision::Keep;
            }
        };
        if bytes > VALUE_BYTES_MAX {
            result = Err(Failure::TooLong);
            return Decision::Keep;
        }
        scratch.extend_from_slice(old);
        scratch.resize(old.len().max(bytes), 0);
        result = Ok(run(scratch));
        match found {
            Some(_) if old == *scratch => Decision::Keep,
            found => Decision::PutScratch {
                expires_at_ms: found.and_then(|object| object.expires_at_ms),
            },
        }
    })?;
    ctx.notify_change(SETBIT, key.bytes, outcome);
    result
}

pub(crate) fn setbit(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let at = parse_offset(ctx.arg(2), None)?;
    let to = match ctx.arg(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Failure::Text("ERR bit is not an integer or out of range")),
    };
    let before = change(ctx, guard, at / 8 + 1, |value| bits::set_bit(value, at, to))?;
    ctx.reply.integer(before.into())
}

/// Parses argument `at`: whether BITCOUNT and BITPOS count in bits instead of bytes.
fn parse_unit(ctx: &Context<'_>, at: usize) -> Result<bool, Failure> {
    match ctx.request.args.get(at) {
        None => Ok(false),
        Some(unit) if unit.eq_ignore_ascii_case(b"bit") => Ok(true),
        Some(unit) if unit.eq_ignore_ascii_case(b"byte") => Ok(false),
        Some(_) => Err(SYNTAX),
    }
}

/// The range in bits of `start` to `end`, both included, with an end that is not included.
fn bit_range(start: i64, end: i64, in_bits: bool, bytes: usize) -> Option<(usize, usize)> {
    let total = (bytes as i64) * if in_bits { 8 } else { 1 };
    let from_end = |at: i64| {
        if at < 0 {
            at.saturating_add(total).max(0)
        } else {
            at
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(total - 1));
    if start > end {
        return None;
    }
    let (start, end) = (start as usize, end as usize + 1);
    Some(if in_bits {
        (start, end)
    } else {
        (start * 8, end * 8)
    })
}

pub(crate) fn bitcount(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (start, end) = match ctx.request.args.len() {
        2 => (0, -1),
        4 | 5 => (
            parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?,
            parse_integer(ctx.arg(3)).ok_or(NOT_AN_INTEGER)?,
        ),
        _ => return Err(SYNTAX),
    };
    let in_bits = parse_unit(ctx, 4)?;
    let value = string(ctx, guard)?.unwrap_or_default();
    let is_empty = start < 0 && end < 0 && start > end;
    let range = bit_range(start, end, in_bits, value.len()).filter(|_| !is_empty);
    let count = range.map_or(0, |(start, end)| bits::count(value, start, end));
    ctx.reply.integer(count as i64)
}

pub(crate) fn bitpos(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let wanted = match parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)? {
        0 => false,
        1 => true,
        _ => return Err(Failure::Text("ERR The bit argument must be 1 or 0.")),
    };
    if ctx.request.args.len() > 6 {
        return Err(SYNTAX);
    }
    let number = |at: usize, otherwise| match ctx.request.args.get(at) {
        Some(text) => parse_integer(text).ok_or(NOT_AN_INTEGER),
        None => Ok(otherwise),
    };
    let (start, end) = (number(3, 0)?, number(4, -1)?);
    let in_bits = parse_unit(ctx, 5)?;
    let has_end = ctx.request.args.len() > 4;
    let Some(value) = string(ctx, guard)? else {
        return ctx.reply.integer(if wanted { -1 } else { 0 });
    };
    let Some((first, last)) = bit_range(start, end, in_bits, value.len()) else {
        return ctx.reply.integer(-1);
    };
    match bits::position(value, wanted, first, last) {
        Some(at) => ctx.reply.integer(at as i64),
        // Behind the end there are zeros, unless the range ends.
        None if !wanted && !has_end => ctx.reply.integer(value.len() as i64 * 8),
        None => ctx.reply.integer(-1),
    }
}

/// The sources without those that do not change the result. A request may name a key any number of
/// times: all but the first change nothing. With `XOR` each two of them cancel out, but count for
/// the length of the result.
fn without_repeats(operation: Operation, mut sources: Vec<&[u8]>) -> Vec<&[u8]> {
    let place = |source: &&[u8]| (source.as_ptr(), source.len());
    sources.sort_unstable_by_key(place);
    let repeats = sources.chunk_by(|one, other| place(one) == place(other));
    let kept = repeats.flat_map(|same| {
        let cancels = operation == Operation::Xor && same.len().is_multiple_of(2);
        same.iter().take(if cancels { 2 } else { 1 })
    });
    kept.copied().collect()
}

pub(crate) fn bitop(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let operation = match ctx.arg(1).to_ascii_lowercase().as_slice() {
        b"and" => Operation::And,
        b"or" => Operation::Or,
        b"xor" => Operation::Xor,
        b"not" => Operation::Not,
        _ => return Err(SYNTAX),
    };
    if operation == Operation::Not && ctx.request.args.len() != 4 {
        return Err(Failure::Text(
            "ERR BITOP NOT must be called with a single source key.",
        ));
    }
    computed_at_once(ctx, guard, |ctx, found| {
        let mut sources = Vec::with_capacity(found.len());
        for found in found.iter().skip(1) {
            sources.push(plain(*found)?.unwrap_or_default());
        }
        let sources = without_repeats(operation, sources);
        let value = bits::combine(operation, sources.into_iter());
        ctx.reply.integer(value.len() as i64)?;
        let value = (!value.is_empty()).then_some(value);
        Ok(vec![Write::result(0, value, false, SET)])
    })
}

/// Runs one step on a string that is long enough; returns the step's reply.
fn run_step(value: &mut [u8], step: &Step) -> Option<i128> {
    let old = bits::field(value, step.form, step.at);
    let (new, shows_old) = match step.action {
        Action::Get => return Some(old),
        Action::Set(to) if step.form.is_signed => (i128::from(to), true),
        Action::Set(to) => (i128::from(to as u64), true),
        Action::Add(by) => (old + i128::from(by), false),
    };
    let new = bits::fit(new, step.form, step.overflow)?;
    bits::set_field(value, step.form, step.at, new);
    Some(if shows_old { old } else { new })
}

fn run_steps(ctx: &mut Context<'_>, guard: &mut Guard<'_>, only_get: bool) -> Done {
    let steps = parse_steps(&ctx.request.args, only_get)?;
    let results: Vec<Option<i128>> = match end_of(&steps) {
        Some(end) => change(ctx, guard, end.div_ceil(8), |value| {
            steps.iter().map(|step| run_step(value, step)).collect()
        })?,
        None => {
            let value = string(ctx, guard)?.unwrap_or_default();
            let field = |step: &Step| Some(bits::field(value, step.form, step.at));
            steps.iter().map(field).collect()
        }
    };
    let mut reply = ctx.reply.encoder();
    reply.array(results.len());
    for result in results {
        match result {
            Some(number) => reply.integer(number as i64),
            None => reply.null(),
        }
    }
    Ok(())
}

pub(crate) fn bitfield(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    run_steps(ctx, guard, false)
}

pub(crate) fn bitfield_ro(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    run_steps(ctx, guard, true)
}
