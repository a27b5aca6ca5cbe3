//! Expiry: EXPIRE and its relatives, TTL and its relatives, PERSIST.

use crate::command::context::{Context, Done, Failure, NOT_AN_INTEGER};
use crate::command::events::{DEL, EXPIRE, PERSIST};
use crate::command::row::*;
use crate::values::set_options::{EX, EXAT, PX, PXAT, Unit, when_ms};
use duramen_base::expiry::removes_at_once;
use duramen_engine::{Decision, Guard};
use duramen_wire::resp::number::parse_integer;

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("expire", -3, FAST | KEYSPACE, doc(Topic::Generic, "1.0.0", "O(1)", "Sets the time to live of a key in seconds."),
        Keys::one(UPDATES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(expire)),
    row("pexpire", -3, FAST | KEYSPACE, doc(Topic::Generic, "2.6.0", "O(1)", "Sets the time to live of a key in milliseconds."),
        Keys::one(UPDATES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(pexpire)),
    row("expireat", -3, FAST | KEYSPACE, doc(Topic::Generic, "1.2.0", "O(1)", "Sets when a key expires, in seconds since 1970."),
        Keys::one(UPDATES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(expireat)),
    row("pexpireat", -3, FAST | KEYSPACE, doc(Topic::Generic, "2.6.0", "O(1)", "Sets when a key expires, in milliseconds since 1970."),
        Keys::one(UPDATES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(pexpireat)),
    row("ttl", 2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "1.0.0", "O(1)", "Returns the time to live of a key in seconds."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(ttl)).tips(&["nondeterministic_output"]),
    row("pttl", 2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "2.6.0", "O(1)", "Returns the time to live of a key in milliseconds."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(pttl)).tips(&["nondeterministic_output"]),
    row("expiretime", 2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "7.0.0", "O(1)", "Returns when a key expires, in seconds since 1970."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(expiretime)),
    row("pexpiretime", 2, FAST | KEYSPACE | UNCOUNTED,
        doc(Topic::Generic, "7.0.0", "O(1)", "Returns when a key expires, in milliseconds since 1970."),
        Keys::one(READS), Effect::Reads, Secrets::None, Run::Data(pexpiretime)),
    row("persist", 2, FAST | KEYSPACE, doc(Topic::Generic, "2.2.0", "O(1)", "Removes the expiry of a key."),
        Keys::one(UPDATES), Effect::Writes(Growth::Nothing), Secrets::None, Run::Data(persist)),
];

/// The conditions NX, XX, GT and LT.
#[derive(Clone, Copy, Default)]
struct ExpiryCondition {
    absent: bool,
    present: bool,
    greater: bool,
    less: bool,
}

pub(crate) fn expire(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_expiry(ctx, guard, EX)
}

pub(crate) fn pexpire(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_expiry(ctx, guard, PX)
}

pub(crate) fn expireat(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_expiry(ctx, guard, EXAT)
}

pub(crate) fn pexpireat(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    set_expiry(ctx, guard, PXAT)
}

fn set_expiry(ctx: &mut Context<'_>, guard: &mut Guard<'_>, unit: Unit) -> Done {
    let key = ctx.key();
    let only = parse_only(ctx)?;
    let given = parse_integer(ctx.arg(2)).ok_or(NOT_AN_INTEGER)?;
    let now_ms = guard.now_ms();
    let when_ms = when_ms(unit, given, now_ms, ctx.request.spec.name)?;
    let mut changed = false;
    let outcome = guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        changed = false;
        let Some(object) = found else {
            return Decision::Keep;
        };
        let current = object
            .expires_at_ms
            .map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let refused = only.absent && current.is_some()
            || only.present && current.is_none()
            || only.greater && current.is_none_or(|current| when_ms <= current)
            || only.less && current.is_some_and(|current| when_ms >= current);
        if refused {
            return Decision::Keep;
        }
        changed = true;
        let expires_at_ms = u64::try_from(when_ms).unwrap_or(0);
        if removes_at_once(expires_at_ms, now_ms) {
            return Decision::Remove;
        }
        scratch.extend_from_slice(object.value);
        object.put_scratch(Some(expires_at_ms))
    })?;
    if changed {
        let event = outcome.after.map_or(DEL, |_| EXPIRE);
        ctx.notify(event, key.bytes);
    }
    ctx.reply.integer(changed.into())
}

fn parse_only(ctx: &Context<'_>) -> Result<ExpiryCondition, Failure> {
    let mut only = ExpiryCondition::default();
    for option in ctx.request.args.skip(3) {
        let flag = match option.to_ascii_lowercase().as_slice() {
            b"nx" => &mut only.absent,
            b"xx" => &mut only.present,
            b"gt" => &mut only.greater,
            b"lt" => &mut only.less,
            _ => {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Unsupported option {option}").into());
            }
        };
        *flag = true;
    }
    if only.absent && (only.present || only.greater || only.less) {
        let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
        return Err(Failure::Text(text));
    }
    if only.greater && only.less {
        let text = "ERR GT and LT options at the same time are not compatible";
        return Err(Failure::Text(text));
    }
    Ok(only)
}

pub(crate) fn ttl(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let now_ms = guard.now_ms();
    tell(ctx, guard, |at_ms| {
        (at_ms.saturating_sub(now_ms).saturating_add(500)) / 1000
    })
}

pub(crate) fn pttl(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let now_ms = guard.now_ms();
    tell(ctx, guard, |at_ms| at_ms.saturating_sub(now_ms))
}

pub(crate) fn expiretime(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    tell(ctx, guard, |at_ms| at_ms.saturating_add(500) / 1000)
}

pub(crate) fn pexpiretime(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    tell(ctx, guard, |at_ms| at_ms)
}

/// Replies -2 if there is no such key, -1 if it never expires, else with `shape` of its expiry
/// time.
fn tell(ctx: &mut Context<'_>, guard: &Guard<'_>, shape: impl FnOnce(u64) -> u64) -> Done {
    let key = ctx.key();
    let answer = match guard.read(key.table, key.hash, key.bytes)? {
        None => {
            ctx.notify_miss(key.bytes);
            -2
        }
        Some(object) => object.expires_at_ms.map_or(-1, |at_ms| shape(at_ms) as i64),
    };
    ctx.reply.integer(answer)
}

pub(crate) fn persist(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let key = ctx.key();
    let mut changed = false;
    guard.update(key.table, key.hash, key.bytes, |found, scratch| {
        changed = false;
        match found {
            Some(object) if object.expires_at_ms.is_some() => {
                changed = true;
                scratch.extend_from_slice(object.value);
                object.put_scratch(None)
            }
            _ => Decision::Keep,
        }
    })?;
    if changed {
        ctx.notify(PERSIST, key.bytes);
    }
    ctx.reply.integer(changed.into())
}
