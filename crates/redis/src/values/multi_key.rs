//! Commands over several keys at one instant: MGET, EXISTS, TOUCH, MSET, MSETNX, DEL.
//!
//! Writers lock their keys. Readers read twice instead: if no object version changed between the
//! two readings, all values existed together at the moment between. If that fails repeatedly, the
//! reader locks the keys too.

use crate::command::context::{Context, Done, Failure};
use crate::command::events::SET;
use crate::command::spec::flag;
use crate::command::{ENTRIES_AHEAD, GROUP_KEYS, KEYS_KEPT, room};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_config::EventClasses;
use duramen_engine::{
    Condition, Error, Guard, KeyHash, Object, ROOM_ATTEMPTS_MAX, Room, Seen, Stamp, TableId,
};

/// Keys whose buckets are hinted ahead: few enough that their lines stay in the first-level cache
/// until they are used.
const BUCKETS_AHEAD: usize = 128;
/// Readings without a lock before a reader locks the keys.
const OPTIMISTIC_READINGS: usize = 3;

impl Context<'_> {
    /// The hashes of all keys: computed by the group, or here if there are more keys than a group
    /// holds.
    pub(crate) fn with_hashes(
        &mut self,
        guard: &mut Guard<'_>,
        hashes: &[KeyHash],
        run: impl FnOnce(&mut Self, &mut Guard<'_>, &[KeyHash]) -> Done,
    ) -> Done {
        if !hashes.is_empty() {
            return run(self, guard, hashes);
        }
        let mut own = std::mem::take(&mut self.local.hashes);
        own.clear();
        for at in self.spec.key_positions(&self.args) {
            let hash = guard.hash(self.arg(at));
            if own.len() < BUCKETS_AHEAD {
                guard.prefetch_bucket(self.table, hash);
            }
            own.push(hash);
        }
        let done = run(self, guard, &own);
        own.clear();
        own.shrink_to(KEYS_KEPT);
        self.local.hashes = own;
        done
    }

    /// True if a request that must be tried again has met a SWAPDB. In a cluster its keys move
    /// instead; with locked keys it has looked at its table since.
    #[inline]
    pub(crate) fn may_be_outdated(&self) -> bool {
        self.shared.membership().is_none() && !self.locked
    }

    /// Runs one part of a command whose parts each have a result of their own. keys::K1: a part
    /// that did not happen, because SWAPDB came between, runs again on the table that is selected
    /// now.
    pub(crate) fn part<T>(
        &mut self,
        guard: &mut Guard<'_>,
        mut run: impl FnMut(TableId, &mut Guard<'_>) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        loop {
            let done = run(self.table, guard);
            if !matches!(done, Err(Error::TryAgain)) || !self.may_be_outdated() {
                return done.map_err(Failure::from);
            }
            guard.renew();
            self.take_table_again()?;
        }
    }

    /// Hints the entries of the first keys, unless the group has done so.
    fn hint_first(&self, guard: &Guard<'_>, hashes: &[KeyHash]) {
        if hashes.len() > GROUP_KEYS {
            for hash in hashes.iter().take(ENTRIES_AHEAD) {
                guard.prefetch_entry(self.table, *hash);
            }
        }
    }

    /// Hints the entry and the bucket of keys some positions after key `n`.
    #[inline]
    fn hint_next(&self, guard: &Guard<'_>, hashes: &[KeyHash], n: usize) {
        if let Some(hash) = hashes.get(n + ENTRIES_AHEAD) {
            guard.prefetch_entry(self.table, *hash);
        }
        if let Some(hash) = hashes.get(n + BUCKETS_AHEAD) {
            guard.prefetch_bucket(self.table, *hash);
        }
    }

    /// Locks keys of the selected table, and sets aside room for the writes to come, unless EXEC
    /// has done so.
    fn lock(
        &mut self,
        guard: &mut Guard<'_>,
        hashes: &[KeyHash],
        room: Room,
    ) -> Result<(), Failure> {
        if self.locked {
            return self.set_aside(guard, room);
        }
        let table = self.table;
        self.local.locks.clear();
        self.local
            .locks
            .extend(hashes.iter().map(|hash| (table, *hash)));
        let locked = guard.lock_keys_for(&self.local.locks, room);
        self.local.locks.clear();
        self.local.locks.shrink_to(KEYS_KEPT);
        // A DEL must succeed in a full store too.
        self.local.needs_alone =
            !self.spec.has(flag::DENYOOM) && matches!(locked, Err(Error::OutOfMemory { .. }));
        locked?;
        Ok(())
    }

    /// Sets aside room for the writes to come under the locks, so that they happen completely or
    /// not at all. EXEC does this for all its commands.
    pub(crate) fn set_aside(&self, guard: &mut Guard<'_>, room: Room) -> Done {
        if !self.local.in_exec {
            guard.set_aside(room)?;
        }
        Ok(())
    }

    /// Before the first write of a command on several keys: none of them is damaged, so all writes
    /// happen or none does (verified::V5). EXEC looks at the keys of all its commands.
    fn all_sound(&self, guard: &Guard<'_>, hashes: &[KeyHash]) -> Done {
        if self.local.in_exec && !guard.has_draft() {
            return Ok(());
        }
        let positions = self.spec.data_positions(&self.args);
        for (hash, at) in hashes.iter().zip(positions) {
            guard.check_sound(self.table, *hash, self.arg(at))?;
        }
        Ok(())
    }

    pub(crate) fn unlock(&self, guard: &mut Guard<'_>) {
        if !self.locked {
            guard.unlock_keys();
        }
    }

    /// As [`locked`](Self::locked), for keys that must be locked only because of flash
    /// (cold::C1).
    pub(crate) fn locked_for_flash(
        &mut self,
        guard: &mut Guard<'_>,
        hashes: &[KeyHash],
        run: impl FnOnce(&mut Self, &mut Guard<'_>) -> Done,
    ) -> Done {
        if !self.local.has_tier() {
            return run(self, guard);
        }
        self.locked(guard, hashes, Room::default(), |ctx, guard| {
            ctx.warm_own(guard, hashes)?;
            run(ctx, guard)
        })
    }

    /// Runs `run` with the keys locked, when the size of its writes is known only after the keys
    /// were read: `run` notes the size and sets room aside. If memory is missing, `run` is repeated
    /// after memory was searched without the locks, so that no other user of the keys waits.
    pub(crate) fn locked_for_room(
        &mut self,
        guard: &mut Guard<'_>,
        keys: &[(TableId, KeyHash)],
        mut run: impl FnMut(&mut Self, &mut Guard<'_>, &mut Room) -> Done,
    ) -> Done {
        let mut room = Room::default();
        if self.locked {
            return run(self, guard, &mut room);
        }
        let mut attempt = 0;
        loop {
            guard.lock_keys_expecting(keys, room)?;
            let done = run(self, guard, &mut room);
            attempt += 1;
            let again = guard.was_starved() && attempt < ROOM_ATTEMPTS_MAX;
            guard.unlock_keys();
            if !(again && done.as_ref().is_err_and(Failure::is_out_of_memory)) {
                return done;
            }
        }
    }

    /// Runs `run` with the keys locked, and with room for its writes.
    pub(crate) fn locked(
        &mut self,
        guard: &mut Guard<'_>,
        hashes: &[KeyHash],
        room: Room,
        run: impl FnOnce(&mut Self, &mut Guard<'_>) -> Done,
    ) -> Done {
        self.lock(guard, hashes, room)?;
        let done = run(self, guard);
        self.unlock(guard);
        done
    }
}

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
            KeyState::Present(seen, _) if guard.is_unchanged(seen) => continue,
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
