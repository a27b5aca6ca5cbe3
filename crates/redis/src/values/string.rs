//! Strings: GET, SET and their relatives.

use super::collection::{WRONG_TYPE, plain};
use super::float::Float;
use super::set_options::{self, EX, Expiry, PX, SetOptions, Unit, When};
use crate::command::access::KeyAccess;
use crate::command::context::{Context, Done, Failure, NOT_A_FLOAT, NOT_AN_INTEGER};
use crate::command::events::{DEL, EXPIRE, EventName, INCRBY, INCRBYFLOAT, PERSIST, SET};
use crate::command::growth::Planned;
use crate::command::key::Key;
use crate::command::room::Planner;
use crate::command::row::*;
use duramen_base::expiry::removes_at_once;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_config::EventClasses;
use duramen_engine::{Condition, Decision, Error, Guard};
use duramen_wire::resp::Args;
use duramen_wire::resp::number::{parse_integer, write_integer};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("get", 2, FAST, doc(Topic::String, "1.0.0", "O(1)", "Returns the value of a key."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(get)),
    row("set", -3, DENYOOM, doc(Topic::String, "1.0.0", "O(1)", "Sets the value of a key, under conditions and with an expiry if wanted."),
        Keys::one(VARIES).by_arguments(set_access).note("RW and ACCESS due to the optional `GET` argument"),
        Effect::Writes(Growth::Own(plan_set)), Secrets::None, Run::Data(set))
            .differs("`IFEQ` and `IFNE` need the right to read the key."),
    row("setnx", 3, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Sets the value of a key that does not exist."),
        Keys::one(CREATES), Effect::Writes(Growth::Sets(growth::given)), Secrets::None, Run::Data(setnx)),
    row("setex", 4, DENYOOM, doc(Topic::String, "2.0.0", "O(1)", "Sets a value and its time to live in seconds."),
        Keys::one(SETS), Effect::Writes(Growth::Sets(growth::given)), Secrets::None, Run::Data(setex)),
    row("psetex", 4, DENYOOM, doc(Topic::String, "2.6.0", "O(1)", "Sets a value and its time to live in milliseconds."),
        Keys::one(SETS), Effect::Writes(Growth::Sets(growth::given)), Secrets::None, Run::Data(psetex)),
    row("getset", 3, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Sets a value and returns the one before."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::given)), Secrets::None, Run::Data(getset)),
    row("delifeq", 3, FAST, doc(Topic::String, "9.0.0", "O(1)", "Deletes a key if its value is equal to the given one."),
        Keys::one(TAKES), Effect::Writes(Growth::MayRemove), Secrets::None, Run::Data(delifeq)),
    row("getdel", 2, FAST, doc(Topic::String, "6.2.0", "O(1)", "Returns the value of a key and deletes the key."),
        Keys::one(TAKES), Effect::Writes(Growth::MayRemove), Secrets::None, Run::Data(getdel)),
    row("getex", -2, FAST, doc(Topic::String, "6.2.0", "O(1)", "Returns the value of a key and changes its expiry."),
        Keys::one(CHANGES).note("RW and UPDATE because it changes the TTL"), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(getex))
            .differs("The current expiry again is no change for `WATCH`."),
    row("append", 3, DENYOOM | FAST, doc(Topic::String, "2.0.0", "O(1)", "Appends to the value of a key."),
        Keys::one(ADDS), Effect::Writes(Growth::To(|args, bytes| bytes + args.get(2).map_or(0, <[u8]>::len))), Secrets::None, Run::Data(append))
            .differs("Appending nothing is no change for `WATCH`."),
    row("strlen", 2, FAST, doc(Topic::String, "2.2.0", "O(1)", "Returns the length of a value."),
        Keys::one(LOOKS), Effect::Reads, Secrets::None, Run::Data(strlen)),
    row("getrange", 4, NO_FLAGS, doc(Topic::String, "2.4.0", "O(N)", "Returns a part of a value."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(getrange)),
    row("substr", 4, NO_FLAGS, doc(Topic::String, "1.0.0", "O(N)", "Returns a part of a value (old name of GETRANGE)."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(getrange)),
    row("setrange", 4, DENYOOM, doc(Topic::String, "2.2.0", "O(1)", "Overwrites a part of a value."),
        Keys::one(UPDATES), Effect::Writes(Growth::To(with_range)), Secrets::None, Run::Data(setrange)),
    row("incr", 2, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Adds one to an integer."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::integer)), Secrets::None, Run::Data(incr)),
    row("decr", 2, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Subtracts one from an integer."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::integer)), Secrets::None, Run::Data(decr)),
    row("incrby", 3, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Adds to an integer."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::integer)), Secrets::None, Run::Data(incrby)),
    row("decrby", 3, DENYOOM | FAST, doc(Topic::String, "1.0.0", "O(1)", "Subtracts from an integer."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::integer)), Secrets::None, Run::Data(decrby)),
    row("incrbyfloat", 3, DENYOOM | FAST, doc(Topic::String, "2.6.0", "O(1)", "Adds to a floating-point number."),
        Keys::one(CHANGES), Effect::Writes(Growth::Sets(growth::number)), Secrets::None, Run::Data(incrbyfloat))
            .differs("Adds decimal numbers exactly; beyond the range of a double it is an error."),
];

/// The access of SET: it reads the key if it returns the value or compares it.
fn set_access(args: &Args<'_>) -> KeyAccess {
    let mut options = args.skip(3).into_iter();
    let reads = |option: &[u8]| {
        let mut readers = [&b"get"[..], b"ifeq", b"ifne"].into_iter();
        readers.any(|reader| option.eq_ignore_ascii_case(reader))
    };
    match options.any(reads) {
        true => CHANGES,
        false => SETS,
    }
}

/// Plans a SET. Without options it has its effect for certain if it runs.
fn plan_set<'k>(planner: &mut Planner<'_, '_, 'k>, planned: &Planned<'_, 'k>) {
    let (table, key) = (planned.table, planned.arg(1));
    let bytes = growth::given(planned.args);
    match planned.args.len() == 3 && planner.is_certain {
        true => planner.put_certainly(table, key, bytes),
        false => planner.put(table, key, bytes),
    }
}

/// The length of a value after SETRANGE.
fn with_range(args: &Args<'_>, bytes: usize) -> usize {
    let end = growth::index(args, 2).saturating_add(args.get(3).map_or(0, <[u8]>::len));
    bytes.max(end)
}

const SETRANGE: EventName = (EventClasses::STRING, "setrange");
const APPEND: EventName = (EventClasses::STRING, "append");

pub(crate) fn get(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    note_read(ctx, found.is_some());
    match plain(found)? {
        Some(value) => ctx.reply.bulk(value),
        None => ctx.reply.null(),
    }
}

/// Counts a read of one key.
#[inline]
fn note_read(ctx: &mut Context<'_>, hit: bool) {
    let counters = ctx.thread.counters(ctx.shared);
    if hit {
        return counters.keyspace_hits.add(1);
    }
    counters.keyspace_misses.add(1);
    ctx.notify_miss(ctx.arg(1));
}

pub(crate) fn set(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (key, value) = (ctx.key(), ctx.arg(2));
    if ctx.request.args.len() == 3 {
        let outcome = guard.write(key.table, key.hash, key.bytes, value, None)?;
        ctx.notify_change(SET, key.bytes, outcome);
        return ctx.reply.ok();
    }
    let options = set_options::parse_set(&ctx.request.args)?;
    let expires_at_ms = options
        .expiry
        .at_ms(guard.now_ms(), ctx.request.spec.name)?;
    if options.get || options.expiry == Expiry::Keep || options.when.compares() {
        return set_with_old(ctx, guard, &options, expires_at_ms);
    }
    let condition = match options.when {
        When::Absent => Condition::Absent,
        When::Present => Condition::Present,
        _ => Condition::Always,
    };
    let Key { table, hash, bytes } = key;
    match guard.conditional_write(table, hash, bytes, value, expires_at_ms, condition) {
        Ok(outcome) => {
            match expires_at_ms {
                Some(_) => ctx.notify_set_for(key.bytes, outcome),
                None => ctx.notify_change(SET, key.bytes, outcome),
            }
            ctx.reply.ok()
        }
        Err(Error::ConditionFailed { .. }) => ctx.reply.null(),
        Err(error) => Err(error.into()),
    }
}

/// Runs a `SET` that needs the former value or its expiry.
fn set_with_old(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    options: &SetOptions<'_>,
    expires_at_ms: Option<u64>,
) -> Done {
    let (key, value, reply) = (ctx.key(), ctx.arg(2), &mut ctx.reply);
    let start = reply.len();
    let (mut wrote, mut is_wrong) = (false, false);
    let needs_string = options.get || options.when.compares();
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, _| {
        reply.truncate(start);
        is_wrong = needs_string && plain(found).is_err();
        if is_wrong {
            return Decision::Keep;
        }
        if options.get {
            let mut reply = reply.boundless();
            match found {
                Some(object) => reply.bulk(object.value),
                None => reply.null(),
            }
        }
        wrote = match options.when {
            When::Always => true,
            When::Absent => found.is_none(),
            When::Present => found.is_some(),
            When::Equals(expected) => found.is_some_and(|object| object.value == expected),
            When::Differs(other) => found.is_none_or(|object| object.value != other),
        };
        if !wrote {
            return Decision::Keep;
        }
        let kept = found.and_then(|object| object.expires_at_ms);
        let keep = options.expiry == Expiry::Keep;
        Decision::Put {
            value,
            expires_at_ms: if keep { kept } else { expires_at_ms },
        }
    })?;
    if is_wrong {
        return Err(WRONG_TYPE);
    }
    if options.get && outcome.before.is_none() {
        ctx.notify_miss(key.bytes);
    }
    match expires_at_ms {
        Some(_) if wrote => ctx.notify_set_for(key.bytes, outcome),
        _ => ctx.notify_change(SET, key.bytes, outcome),
    }
    match (options.get, wrote) {
        (true, _) => Ok(()),
        (false, true) => ctx.reply.ok(),
        (false, false) => ctx.reply.null(),
    }
}

pub(crate) fn setnx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (Key { table, hash, bytes }, value) = (ctx.key(), ctx.arg(2));
    match guard.conditional_write(table, hash, bytes, value, None, Condition::Absent) {
        Ok(outcome) => {
            ctx.notify_change(SET, bytes, outcome);
            ctx.reply.integer(1)
        }
        Err(Error::ConditionFailed { .. }) => ctx.reply.integer(0),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn setex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_for(ctx, guard, EX)
}

pub(crate) fn psetex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_for(ctx, guard, PX)
}

fn set_for(ctx: &mut Context<'_>, guard: &mut Guard<'_>, unit: Unit) -> Done {
    let expires_at_ms =
        set_options::expiry_ms(unit, ctx.arg(2), guard.now_ms(), ctx.request.spec.name)?;
    let (key, value) = (ctx.key(), ctx.arg(3));
    let outcome = guard.write(key.table, key.hash, key.bytes, value, Some(expires_at_ms))?;
    ctx.notify_set_for(key.bytes, outcome);
    ctx.reply.ok()
}

pub(crate) fn getset(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let value = ctx.arg(2);
    replace(
        ctx,
        guard,
        Decision::Put {
            value,
            expires_at_ms: None,
        },
    )
}

pub(crate) fn getdel(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    replace(ctx, guard, Decision::Remove)
}

/// DELIFEQ key value: lets only the owner of a lock release it, without a script.
pub(crate) fn delifeq(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (key, expected) = (ctx.key(), ctx.arg(2));
    let mut equal = Ok(false);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, _| {
        equal = plain(found).map(|value| value == Some(expected));
        match equal {
            Ok(true) => Decision::Remove,
            _ => Decision::Keep,
        }
    })?;
    let removed = equal?;
    if removed {
        ctx.notify_removal(key.bytes, outcome);
    }
    ctx.reply.integer(removed.into())
}

/// Replies with the value and applies `decision` to the key.
fn replace(ctx: &mut Context<'_>, guard: &mut Guard<'_>, decision: Decision<'_>) -> Done {
    let (key, reply) = (ctx.key(), &mut ctx.reply);
    let start = reply.len();
    let mut done = Ok(());
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, _| {
        reply.truncate(start);
        done = plain(found).map(|value| {
            let mut reply = reply.boundless();
            match value {
                Some(value) => reply.bulk(value),
                None => reply.null(),
            }
        });
        if done.is_ok() {
            decision
        } else {
            Decision::Keep
        }
    })?;
    done?;
    if outcome.before.is_none() {
        ctx.notify_miss(key.bytes);
    }
    match outcome.after {
        Some(_) => ctx.notify_change(SET, key.bytes, outcome),
        None => ctx.notify_removal(key.bytes, outcome),
    }
    Ok(())
}

pub(crate) fn getex(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let expiry = set_options::parse_getex(&ctx.request.args)?;
    if expiry == Expiry::Unsaid {
        return get(ctx, guard);
    }
    let key = ctx.key();
    if plain(guard.read(key.table, key.hash, key.bytes)?)?.is_none() {
        ctx.notify_miss(key.bytes);
        return ctx.reply.null();
    }
    let now_ms = guard.now_ms();
    let expires_at_ms = expiry.at_ms(now_ms, ctx.request.spec.name)?;
    let reply = &mut ctx.reply;
    let start = reply.len();
    let (mut done, mut had_expiry) = (Ok(()), false);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        reply.truncate(start);
        done = plain(found).map(|_| ());
        had_expiry = found.is_some_and(|object| object.expires_at_ms.is_some());
        if done.is_err() {
            return Decision::Keep;
        }
        let mut reply = reply.boundless();
        let Some(object) = found else {
            reply.null();
            return Decision::Keep;
        };
        reply.bulk(object.value);
        if expires_at_ms.is_some_and(|at_ms| removes_at_once(at_ms, now_ms)) {
            return Decision::Remove;
        }
        if object.expires_at_ms == expires_at_ms {
            return Decision::Keep;
        }
        scratch.extend_from_slice(object.value);
        Decision::PutScratch { expires_at_ms }
    })?;
    done?;
    match (outcome.before, expiry) {
        (None, _) => ctx.notify_miss(key.bytes),
        (_, Expiry::At(..)) if outcome.after.is_none() => ctx.notify(DEL, key.bytes),
        (_, Expiry::At(..)) => ctx.notify(EXPIRE, key.bytes),
        _ if had_expiry => ctx.notify(PERSIST, key.bytes),
        _ => {}
    }
    Ok(())
}

pub(crate) fn strlen(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let found = guard.read(key.table, key.hash, key.bytes)?;
    note_read(ctx, found.is_some());
    let value = plain(found)?;
    ctx.reply
        .integer(value.map_or(0, |value| value.len() as i64))
}

pub(crate) fn getrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let start = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let end = parse_integer(ctx.arg(3)).ok_or(NOT_AN_INTEGER)?;
    let found = guard.read(key.table, key.hash, key.bytes)?;
    note_read(ctx, found.is_some());
    let value = plain(found)?.unwrap_or_default();
    ctx.reply.bulk(slice(value, start, end))
}

/// The bytes from `start` to `end`, both included and counted from the end if negative.
fn slice(value: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let len = value.len() as i64;
    let from_end = |at: i64| {
        if at < 0 {
            at.saturating_add(len).max(0)
        } else {
            at
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end {
        return &[];
    }
    value.get(start as usize..=end as usize).unwrap_or_default()
}

pub(crate) fn setrange(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let offset = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let offset =
        usize::try_from(offset).map_err(|_| Failure::Text("ERR offset is out of range"))?;
    let patch = ctx.arg(3);
    let mut result = Ok(0);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let old = match plain(found) {
            Ok(old) => old.unwrap_or_default(),
            Err(failure) => {
                result = Err(failure);
                return Decision::Keep;
            }
        };
        if patch.is_empty() {
            result = Ok(old.len());
            return Decision::Keep;
        }
        let end = offset.saturating_add(patch.len());
        if end > VALUE_BYTES_MAX {
            result = Err(Failure::TooLong);
            return Decision::Keep;
        }
        scratch.extend_from_slice(old);
        scratch.resize(old.len().max(end), 0);
        scratch[offset..end].copy_from_slice(patch);
        result = Ok(scratch.len());
        Decision::PutScratch {
            expires_at_ms: found.and_then(|object| object.expires_at_ms),
        }
    })?;
    let len = result?;
    ctx.notify_change(SETRANGE, key.bytes, outcome);
    ctx.reply.integer(len as i64)
}

pub(crate) fn append(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let tail = ctx.arg(2);
    let mut result = Ok(0);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let old = match plain(found) {
            Ok(old) => old.unwrap_or_default(),
            Err(failure) => {
                result = Err(failure);
                return Decision::Keep;
            }
        };
        if old.len() + tail.len() > VALUE_BYTES_MAX {
            result = Err(Failure::TooLong);
            return Decision::Keep;
        }
        result = Ok(old.len() + tail.len());
        if tail.is_empty() && found.is_some() {
            return Decision::Keep;
        }
        scratch.extend_from_slice(old);
        scratch.extend_from_slice(tail);
        Decision::PutScratch {
            expires_at_ms: found.and_then(|object| object.expires_at_ms),
        }
    })?;
    let len = result?;
    match outcome.before == outcome.after {
        true => ctx.notify(APPEND, key.bytes), // the tail is empty
        false => ctx.notify_change(APPEND, key.bytes, outcome),
    }
    ctx.reply.integer(len as i64)
}

pub(crate) fn incr(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    add(ctx, guard, 1)
}

pub(crate) fn decr(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    add(ctx, guard, -1)
}

pub(crate) fn incrby(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let by = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    add(ctx, guard, by)
}

pub(crate) fn decrby(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let by = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let by = by
        .checked_neg()
        .ok_or(Failure::Text("ERR decrement would overflow"))?;
    add(ctx, guard, by)
}

fn add(ctx: &mut Context<'_>, guard: &mut Guard<'_>, by: i64) -> Done {
    let (sum, _) = add_integer(ctx, guard, by)?;
    ctx.reply.integer(sum)
}

/// Adds to the integer under argument 1 (absent = 0), keeping its expiry; returns the sum and the
/// object version.
pub(crate) fn add_integer(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    by: i64,
) -> Result<(i64, u64), Failure> {
    let key = ctx.key();
    let mut result = Ok(0);
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        result = plain(found)
            .and_then(|value| value.map_or(Some(0), parse_integer).ok_or(NOT_AN_INTEGER))
            .and_then(|old| {
                old.checked_add(by)
                    .ok_or(Failure::Text("ERR increment or decrement would overflow"))
            });
        match &result {
            Ok(sum) => {
                write_integer(scratch, *sum);
                Decision::PutScratch {
                    expires_at_ms: found.and_then(|object| object.expires_at_ms),
                }
            }
            Err(_) => Decision::Keep,
        }
    })?;
    let sum = result?;
    ctx.notify_change(INCRBY, key.bytes, outcome);
    Ok((sum, outcome.after.unwrap_or(0)))
}

pub(crate) fn incrbyfloat(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (text, _) = add_float(ctx, guard)?;
    ctx.reply.bulk(&text)
}

/// Adds argument 2 to the number under argument 1 (absent = 0), keeping its expiry; returns the
/// sum's text and the object version.
pub(crate) fn add_float(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
) -> Result<(Vec<u8>, u64), Failure> {
    let key = ctx.key();
    let by = Float::parse(ctx.arg(2));
    let mut result = Ok(Vec::new());
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        let old = plain(found).and_then(|value| {
            let old = value.map_or(Some(Float::Fixed(0)), Float::parse);
            old.ok_or(NOT_A_FLOAT)
        });
        let sum = old.and_then(|old| {
            let by = by.ok_or(NOT_A_FLOAT)?;
            old.add(by)
                .ok_or(Failure::Text("ERR increment would produce NaN or Infinity"))
        });
        match sum {
            Ok(sum) => {
                sum.write(scratch);
                result = Ok(scratch.clone());
                Decision::PutScratch {
                    expires_at_ms: found.and_then(|object| object.expires_at_ms),
                }
            }
            Err(failure) => {
                result = Err(failure);
                Decision::Keep
            }
        }
    })?;
    let text = result?;
    ctx.notify_change(INCRBYFLOAT, key.bytes, outcome);
    Ok((text, outcome.after.unwrap_or(0)))
}
