//! Commands over several keys at one instant: MGET, EXISTS, TOUCH, MSET, MSETNX, DEL.
//!
//! Writers lock their keys. Readers read twice instead: if no object version changed between the
//! two readings, all values existed together at the moment between. If that fails repeatedly, the
//! reader locks the keys too.

use crate::command::context::{Context, Done};
use crate::command::events::SET;
use crate::command::room;
use crate::command::row::*;
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_config::EventClasses;
use duramen_engine::{Condition, Error, Guard, KeyHash, Object, Room, Seen, Stamp};

#[rustfmt::skip] // They are rows of a table.
pub(crate) const COMMANDS: &[Spec] = &[
    row("mget", -2, FAST, doc(Topic::String, "1.0.0", "O(N)", "Returns the values of several keys, all at one instant."),
        Keys::all(READS), Effect::Reads, Secrets::None, Run::Atomic(mget)).tips(&["request_policy:multi_shard"]),
    row("mset", -3, DENYOOM, doc(Topic::String, "1.0.1", "O(N)", "Sets the values of several keys, all at one instant."),
        Keys::pairs(SETS), Effect::Writes(Growth::SetsPairs), Secrets::None, Run::Atomic(mset))
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"]),
    row("msetnx", -3, DENYOOM, doc(Topic::String, "1.0.1", "O(N)", "Sets the values of several keys if none of them exists."),
        Keys::pairs(CREATES), Effect::Writes(Growth::SetsPairs), Secrets::None, Run::Atomic(msetnx))
        .tips(&["request_policy:multi_shard", "response_policy:agg_min"]),
    row("del", -2, KEYSPACE, doc(Topic::Generic, "1.0.0", "O(N)", "Deletes keys, all at one instant."),
        Keys::all(DELETES), Effect::Writes(Growth::Removes), Secrets::None, Run::Atomic(del))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("unlink", -2, FAST | KEYSPACE, doc(Topic::Generic, "4.0.0", "O(1)", "Deletes keys, all at one instant (the same as DEL here)."),
        Keys::all(DELETES), Effect::Writes(Growth::Removes), Secrets::None, Run::Atomic(del))
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("exists", -2, FAST | KEYSPACE | UNCOUNTED, doc(Topic::Generic, "1.0.0", "O(N)", "Counts how many of the keys exist."),
        Keys::all(LOOKS), Effect::Reads, Secrets::None, Run::Atomic(exists)).tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
    row("touch", -2, FAST | KEYSPACE | COUNTED, doc(Topic::Generic, "3.2.1", "O(N)", "Counts how many of the keys exist."),
        Keys::all(LOOKS), Effect::Reads, Secrets::None, Run::Atomic(exists)).tips(&["request_policy:multi_shard", "response_policy:agg_sum"]),
];

/// Readings without a lock before a reader locks the keys.
const OPTIMISTIC_READINGS: usize = 3;

pub(crate) fn mget(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        let start = ctx.out.len();
        read_at_once(ctx, guard, hashes, |ctx, n, found| {
            if n == 0 {
                ctx.out.truncate(start);
                ctx.reply().array(hashes.len());
            }
            match found {
                Some(object) if !object.is_typed => ctx.reply().bulk(object.value),
                _ => ctx.reply().null(),
            }
        })
    })
}

/// EXISTS and TOUCH.
pub(crate) fn exists(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    let mut count = 0;
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        read_at_once(ctx, guard, hashes, |_, n, found| {
            let before = if n == 0 { 0 } else { count };
            count = before + i64::from(found.is_some());
        })
    })?;
    ctx.integer(count)
}

/// Shows the value that every key had at one moment, each with its number; shows all of them again,
/// from number 0, if a value changed meanwhile.
fn read_at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    hashes: &[KeyHash],
    mut show: impl FnMut(&mut Context<'_>, usize, Option<Object<'_>>),
) -> Done {
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
        read_all(ctx, guard, hashes, seen, &mut show)?;
        is_done = alone || still_holds(ctx, guard, hashes, &observed)?;
        if is_done {
            break;
        }
    }
    drop(observed);
    if !is_done {
        ctx.locked(guard, hashes, Room::default(), |ctx, guard| {
            read_all(ctx, guard, hashes, None, &mut show)
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

/// Shows all values; notes the state of each key in `observed`.
fn read_all<'g>(
    ctx: &mut Context<'_>,
    guard: &'g Guard<'_>,
    hashes: &[KeyHash],
    mut observed: Option<&mut Vec<KeyState<'g>>>,
    show: &mut impl FnMut(&mut Context<'_>, usize, Option<Object<'_>>),
) -> Done {
    if let Some(observed) = &mut observed {
        observed.clear();
    }
    let keys = ctx.args.skip(1);
    let mut hits = 0;
    ctx.hint_first(guard, hashes);
    for (n, (hash, key)) in hashes.iter().zip(keys).enumerate() {
        ctx.hint_next(guard, hashes, n);
        let (found, seen) = guard.read_seen(ctx.table, *hash, key)?;
        hits += u64::from(found.is_some());
        show(ctx, n, found);
        ctx.fits()?;
        if let Some(observed) = &mut observed {
            observed.push(match found {
                Some(object) => KeyState::Present(seen, object.version),
                None => match guard.stamp(ctx.table, *hash, key)? {
                    Stamp::Present { .. } => KeyState::Torn,
                    absent @ Stamp::Absent { .. } => KeyState::Absent(absent),
                },
            });
        }
    }
    let counters = ctx.local.counters(ctx.shared);
    counters.keyspace_hits.add(hits);
    counters.keyspace_misses.add(hashes.len() as u64 - hits);
    Ok(())
}

/// Whether nothing changed since the values were read.
fn still_holds(
    ctx: &Context<'_>,
    guard: &Guard<'_>,
    hashes: &[KeyHash],
    observed: &[KeyState<'_>],
) -> Result<bool, Error> {
    for ((hash, key), observed) in hashes.iter().zip(ctx.args.skip(1)).zip(observed) {
        let then = match observed {
            KeyState::Present(seen, _) if seen.is_unchanged() => continue,
            // A cleaner may have moved it: then its version is the same.
            KeyState::Present(_, version) => Stamp::Present { version: *version },
            KeyState::Absent(stamp) => *stamp,
            KeyState::Torn => return Ok(false),
        };
        if !then.still_holds(&guard.stamp(ctx.table, *hash, key)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn mset(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    check_pairs(ctx)?;
    if let [hash] = hashes {
        // Within the guard of other requests, which locks no keys.
        let outcome = guard.write(ctx.table, *hash, ctx.arg(1), ctx.arg(2), None)?;
        ctx.notify_change(SET, ctx.arg(1), outcome);
        return ctx.ok();
    }
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        let room = room::of_pairs(&ctx.args);
        ctx.locked(guard, hashes, room, |ctx, guard| {
            ctx.warm_own(guard, hashes)?;
            ctx.all_sound(guard, hashes)?;
            write_all(ctx, guard, hashes)
        })
    })?;
    ctx.ok()
}

pub(crate) fn msetnx(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    check_pairs(ctx)?;
    if let [hash] = hashes {
        let (key, value) = (ctx.arg(1), ctx.arg(2));
        let absent = Condition::Absent;
        return match guard.conditional_write(ctx.table, *hash, key, value, None, absent) {
            Ok(outcome) => {
                ctx.notify_change(SET, key, outcome);
                ctx.integer(1)
            }
            Err(Error::ConditionFailed { .. }) => ctx.integer(0),
            Err(error) => Err(error.into()),
        };
    }
    let mut wrote = false;
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        let room = room::of_pairs(&ctx.args);
        ctx.locked(guard, hashes, room, |ctx, guard| {
            ctx.warm_own(guard, hashes)?;
            for (n, hash) in hashes.iter().enumerate() {
                if guard.read(ctx.table, *hash, ctx.arg(1 + 2 * n))?.is_some() {
                    return Ok(());
                }
            }
            wrote = true;
            write_all(ctx, guard, hashes)
        })
    })?;
    ctx.integer(wrote.into())
}

/// Checks everything for which the request itself could fail, before the first write.
fn check_pairs(ctx: &Context<'_>) -> Done {
    if ctx.args.len().is_multiple_of(2) {
        let text = format!(
            "ERR wrong number of arguments for '{}' command",
            ctx.spec.name
        );
        return Err(text.into());
    }
    for n in (1..ctx.args.len()).step_by(2) {
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

fn write_all(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    ctx.hint_first(guard, hashes);
    for (n, hash) in hashes.iter().enumerate() {
        ctx.hint_next(guard, hashes, n);
        let (key, value) = (ctx.arg(1 + 2 * n), ctx.arg(2 + 2 * n));
        let outcome = guard.write(ctx.table, *hash, key, value, None)?;
        ctx.notify_change(SET, key, outcome);
    }
    Ok(())
}

pub(crate) fn del(ctx: &mut Context<'_>, guard: &mut Guard<'_>, hashes: &[KeyHash]) -> Done {
    if let [hash] = hashes {
        let outcome = guard.remove(ctx.table, *hash, ctx.arg(1))?;
        ctx.notify_removal(ctx.arg(1), outcome);
        return ctx.integer(outcome.before.is_some().into());
    }
    let mut removed = 0;
    ctx.with_hashes(guard, hashes, |ctx, guard, hashes| {
        let room = room::of_removals(&ctx.args);
        ctx.locked(guard, hashes, room, |ctx, guard| {
            ctx.warm_own(guard, hashes)?;
            ctx.all_sound(guard, hashes)?;
            for (hash, key) in hashes.iter().zip(ctx.args.skip(1)) {
                let outcome = guard.remove(ctx.table, *hash, key)?;
                ctx.notify_removal(key, outcome);
                removed += i64::from(outcome.before.is_some());
            }
            Ok(())
        })
    })?;
    ctx.integer(removed)
}
