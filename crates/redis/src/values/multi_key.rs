//! Commands over several keys at one instant: MGET, EXISTS, TOUCH, MSET, MSETNX, DEL.
//!
//! Writers lock their keys. Readers read twice instead: if no object version changed between the
//! two readings, all values were there together at the moment between them. If that fails
//! repeatedly, the reader locks the keys too.

use crate::command::cold;
use crate::command::context::{Context, Done};
use crate::command::events::SET;
use crate::command::key::Key;
use crate::command::room;
use crate::command::row::*;
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_config::EventClasses;
use duramen_engine::{Condition, Error, Guard, Object, Room, Seen, Stamp};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("mget", -2, FAST, doc(Topic::String, "1.0.0", "O(N)", "Returns the values of several keys, all at one instant."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Atomic(mget)).tips(&["request_policy:multi_shard"]),
    row("mset", -3, DENYOOM, doc(Topic::String, "1.0.1", "O(N)", "Sets the values of several keys, all at one instant."),
        Keys::pairs(SETS), Effect::Writes(Growth::SetsPairs), Secrets::None, Run::Atomic(mset))
            .differs("Writes of one request are limited by the log: see the page of compatibility.")
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"]),
    row("msetnx", -3, DENYOOM, doc(Topic::String, "1.0.1", "O(N)", "Sets the values of several keys if none of them exists."),
        Keys::pairs(CREATES), Effect::Writes(Growth::SetsPairs), Secrets::None, Run::Atomic(msetnx))
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"]),
    row("del", -2, KEYSPACE, doc(Topic::Generic, "1.0.0", "O(N)", "Deletes keys, all at one instant."),
        Keys::all(DELETES), Effect::Writes(Growth::Removes), Secrets::None, Run::Atomic(del))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("unlink", -2, FAST | KEYSPACE, doc(Topic::Generic, "4.0.0", "O(1)", "Deletes keys, all at one instant (the same as DEL here)."),
        Keys::all(DELETES), Effect::Writes(Growth::Removes), Secrets::None, Run::Atomic(del))
            .differs("The same as `DEL`.")
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("exists", -2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "1.0.0", "O(N)", "Counts how many of the keys exist."),
        Keys::all(LOOKS), Effect::Reads, Secrets::None, Run::Atomic(exists)).tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("touch", -2, FAST | KEYSPACE | COUNTED, doc(Topic::Generic, "3.2.1", "O(N)", "Counts how many of the keys exist."),
        Keys::all(LOOKS), Effect::Reads, Secrets::None, Run::Atomic(exists)).tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
];

/// Readings without a lock before a reader locks the keys.
const OPTIMISTIC_READINGS: usize = 3;

pub(crate) fn mget(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let (start, keys) = (ctx.reply.len(), ctx.request.hashes.len());
    read_at_once(ctx, guard, |ctx, n, found| {
        if n == 0 {
            ctx.reply.truncate(start);
            ctx.reply.encoder().array(keys);
        }
        match found {
            Some(object) if !object.is_typed => ctx.reply.encoder().bulk(object.value),
            _ => ctx.reply.encoder().null(),
        }
    })
}

/// EXISTS and TOUCH.
pub(crate) fn exists(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    let mut count = 0;
    read_at_once(ctx, guard, |_, n, found| {
        let before = if n == 0 { 0 } else { count };
        count = before + i64::from(found.is_some());
    })?;
    ctx.reply.integer(count)
}

/// Passes to `show` the value that every key had at one moment, each with the key's number. If a
/// value changed meanwhile, passes all of them again, from number 0.
fn read_at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    mut show: impl FnMut(&mut Context<'_>, usize, Option<Object<'_>>),
) -> Done {
    let hashes = ctx.request.hashes;
    let alone = ctx.locked || hashes.len() == 1 || ctx.shared.threads.len() == 1;
    let mut observed = Vec::with_capacity(if alone { 0 } else { hashes.len() });
    let notes_misses = ctx.shared.commands.events().has(EventClasses::MISS);
    let mut missed = Vec::new();
    let mut show = |ctx: &mut Context<'_>, n: usize, found: Option<Object<'_>>| {
        if notes_misses {
            missed.truncate(if n == 0 { 0 } else { missed.len() });
            missed.extend(found.is_none().then_some(n));
        }
        show(ctx, n, found);
    };
    let mut is_done = false;
    for _ in 0..OPTIMISTIC_READINGS {
        let seen = (!alone).then_some(&mut observed);
        read_all(ctx, guard, seen, &mut show)?;
        is_done = alone || still_holds(ctx, guard, &observed)?;
        if is_done {
            break;
        }
    }
    drop(observed);
    if !is_done {
        ctx.locked(guard, Room::default(), |ctx, guard| {
            read_all(ctx, guard, None, &mut show)
        })?;
    }
    for n in missed {
        ctx.notify_miss(ctx.arg(1 + n));
    }
    Ok(())
}

/// The state of a key in one reading.
enum KeyState<'g> {
    /// The place where it was found, and its version.
    Present(Seen<'g>, u64),
    Absent(Stamp),
    /// The key was absent but exists by now: the values are not of one moment.
    Torn,
}

/// Passes all values to `show`; notes the state of each key in `observed`.
fn read_all<'g>(
    ctx: &mut Context<'_>,
    guard: &'g Guard<'_>,
    mut observed: Option<&mut Vec<KeyState<'g>>>,
    show: &mut impl FnMut(&mut Context<'_>, usize, Option<Object<'_>>),
) -> Done {
    if let Some(observed) = &mut observed {
        observed.clear();
    }
    let mut hits = 0;
    ctx.hint_first(guard);
    for (n, key) in ctx.request.keys(ctx.table).enumerate() {
        ctx.hint_next(guard, n);
        let (found, seen) = guard.read_seen(key.table, key.hash, key.bytes)?;
        hits += u64::from(found.is_some());
        show(ctx, n, found);
        ctx.reply.fits()?;
        if let Some(observed) = &mut observed {
            observed.push(match found {
                Some(object) => KeyState::Present(seen, object.version),
                None => match guard.stamp(key.table, key.hash, key.bytes)? {
                    Stamp::Present { .. } => KeyState::Torn,
                    absent @ Stamp::Absent { .. } => KeyState::Absent(absent),
                },
            });
        }
    }
    let counters = ctx.thread.counters(ctx.shared);
    counters.keyspace_hits.add(hits);
    counters
        .keyspace_misses
        .add(ctx.request.hashes.len() as u64 - hits);
    Ok(())
}

/// Whether nothing changed since the values were read.
fn still_holds(
    ctx: &Context<'_>,
    guard: &Guard<'_>,
    observed: &[KeyState<'_>],
) -> Result<bool, Error> {
    for (key, observed) in ctx.request.keys(ctx.table).zip(observed) {
        let then = match observed {
            KeyState::Present(seen, _) if seen.is_unchanged() => continue,
            // A cleaner may have moved the object: its version is then the same.
            KeyState::Present(_, version) => Stamp::Present { version: *version },
            KeyState::Absent(stamp) => *stamp,
            KeyState::Torn => return Ok(false),
        };
        if !then.still_holds(&guard.stamp(key.table, key.hash, key.bytes)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn mset(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    check_pairs(ctx)?;
    if ctx.request.hashes.len() == 1 {
        // The command runs within the guard of other requests, which locks no keys.
        let key = ctx.key();
        let outcome = guard.write(key.table, key.hash, key.bytes, ctx.arg(2), None)?;
        ctx.notify_change(SET, key.bytes, outcome);
        return ctx.reply.ok();
    }
    ctx.locked(guard, room::of_pairs(&ctx.request.args), |ctx, guard| {
        cold::warm_own(ctx, guard)?;
        ctx.all_sound(guard)?;
        write_all(ctx, guard)
    })?;
    ctx.reply.ok()
}

pub(crate) fn msetnx(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    check_pairs(ctx)?;
    if ctx.request.hashes.len() == 1 {
        let (Key { table, hash, bytes }, value) = (ctx.key(), ctx.arg(2));
        return match guard.conditional_write(table, hash, bytes, value, None, Condition::Absent) {
            Ok(outcome) => {
                ctx.notify_change(SET, bytes, outcome);
                ctx.reply.integer(1)
            }
            Err(Error::ConditionFailed { .. }) => ctx.reply.integer(0),
            Err(error) => Err(error.into()),
        };
    }
    let mut wrote = false;
    ctx.locked(guard, room::of_pairs(&ctx.request.args), |ctx, guard| {
        cold::warm_own(ctx, guard)?;
        for key in ctx.request.keys(ctx.table) {
            if guard.read(key.table, key.hash, key.bytes)?.is_some() {
                return Ok(());
            }
        }
        wrote = true;
        write_all(ctx, guard)
    })?;
    ctx.reply.integer(wrote.into())
}

/// Checks everything for which the request itself could fail, before the first write.
fn check_pairs(ctx: &Context<'_>) -> Done {
    if ctx.request.args.len().is_multiple_of(2) {
        let text = format!(
            "ERR wrong number of arguments for '{}' command",
            ctx.request.spec.name
        );
        return Err(text.into());
    }
    for n in (1..ctx.request.args.len()).step_by(2) {
        let (key, value) = (ctx.arg(n).len(), ctx.arg(n + 1).len());
        if key > KEY_BYTES_MAX {
            return Err(Error::KeyTooLarge {
                bytes: key,
                limit: KEY_BYTES_MAX,
            }
            .into());
        }
        if value > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge {
                bytes: value,
                limit: VALUE_BYTES_MAX,
            }
            .into());
        }
    }
    Ok(())
}

fn write_all(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    ctx.hint_first(guard);
    for (n, key) in ctx.request.keys(ctx.table).enumerate() {
        ctx.hint_next(guard, n);
        let value = ctx.arg(2 + 2 * n);
        let outcome = guard.write(key.table, key.hash, key.bytes, value, None)?;
        ctx.notify_change(SET, key.bytes, outcome);
    }
    Ok(())
}

pub(crate) fn del(ctx: &mut Context<'_>, guard: &mut Guard<'_>) -> Done {
    if ctx.request.hashes.len() == 1 {
        let key = ctx.key();
        let outcome = guard.remove(key.table, key.hash, key.bytes)?;
        ctx.notify_removal(key.bytes, outcome);
        return ctx.reply.integer(outcome.before.is_some().into());
    }
    let mut removed = 0;
    ctx.locked(guard, room::of_removals(&ctx.request.args), |ctx, guard| {
        cold::warm_own(ctx, guard)?;
        ctx.all_sound(guard)?;
        for key in ctx.request.keys(ctx.table) {
            let outcome = guard.remove(key.table, key.hash, key.bytes)?;
            ctx.notify_removal(key.bytes, outcome);
            removed += i64::from(outcome.before.is_some());
        }
        Ok(())
    })?;
    ctx.reply.integer(removed)
}
