//! Commands that may compute for long with the values of several keys.
//!
//! **Invariants**
//! - C1: a command locks no key while it computes, because all others who want the key wait. It
//!   reads its keys twice, and computes if their values were there together at one moment. The
//!   result is written under the locks if none of the keys has changed since, else the command
//!   computes again.
//! - C2: a command that combines many values does so in parts: others run between two of them. It
//!   goes on if no value has changed since its first part, else it begins again. Each part reads
//!   all keys again, so it combines at least for as long as that has taken, and at least one
//!   element. Sets are divided within a source too, and the reply is a part of its own if the parts
//!   before it took long. Some steps are not divided: the first index of the members, the dropping
//!   of members that a source excludes, the reply, and one source that is a sorted set. A part that
//!   meets keys on flash has them fetched, and goes on behind the values that are combined. Each
//!   part may have to do so, but an entry that is fetched again stays in memory for a while
//!   (promoted).
//! - C3: after some runs in vain the command computes in one go, with its keys locked.
//! - C4: progress belongs to one request and to one table. It is dropped when the request has
//!   ended, even if the request has not run (other rights, keys that have left), and when SWAPDB
//!   has put another table behind the database: versions of objects do not tell the tables apart.

use super::collection::{Write, at_once, several_at_once, write_all};
use crate::command::cold;
use crate::command::context::{Context, Done, Failure, YIELDS};
use crate::command::key::Key;
use crate::state::progress::Progress;
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{Error, Guard, Object, Stamp};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The time of one part (C2): all suspended combinations of a thread share it.
const PART: Duration = Duration::from_millis(3);
/// Minimum time of a part: each part unpacks the result of the earlier ones, if that is a sorted
/// set.
const PART_MIN: Duration = Duration::from_micros(500);
/// Runs in vain after which the command locks its keys (C3).
const RUNS_MAX: u32 = 4;
/// Up to so many keys, a key that is named again is read again: that takes no longer than to find
/// the first reading.
const FEW_KEYS: usize = 16;

/// The clock of one part.
pub(crate) struct Part {
    pub(crate) ends: Option<Instant>,
}

impl Part {
    /// Begins a part: what is done already, and its clock.
    pub(crate) fn begin(ctx: &mut Context<'_>) -> (Progress, Part) {
        let known = ctx.thread.take_progress();
        let time = ctx.thread.scripts.share(PART, PART_MIN);
        let part = Part::of(known.as_ref(), time);
        (known.unwrap_or_default(), part)
    }

    /// A part for which `time` is left beside others (C2). Without progress the part has no end.
    pub(crate) fn of(progress: Option<&Progress>, time: Duration) -> Part {
        let now = Instant::now();
        let ends = progress.map(|progress| now + time.max(progress.reading));
        Part { ends }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }
}

/// Ends a part whose time is over: others run before the next part.
pub(crate) fn end_part(
    ctx: &mut Context<'_>,
    progress: Progress,
    done: usize,
    result: Vec<u8>,
) -> Failure {
    ctx.thread.keep_progress(Some(Progress {
        done,
        result,
        ..progress
    }));
    YIELDS
}

/// The objects under some keys, and the stamps of the keys.
type Together<'g> = (Vec<Option<Object<'g>>>, Vec<Stamp>);

/// The objects under keys, as they were there together at one moment, with the stamps of that
/// moment; `None` if some have changed meanwhile.
fn read_together<'g>(
    guard: &'g Guard<'_>,
    keys: &[Key<'_>],
) -> Result<Option<Together<'g>>, Error> {
    let (mut found, mut stamps): Together<'g> = (Vec::new(), Vec::new());
    let mut first_of_key = HashMap::new();
    for key in keys {
        let first = match keys.len() > FEW_KEYS {
            true => *first_of_key.entry(*key).or_insert(found.len()),
            false => found.len(),
        };
        if let (Some(object), Some(stamp)) = (found.get(first), stamps.get(first)) {
            // A request may name a key any number of times: this one is known.
            let (object, stamp) = (*object, *stamp);
            found.push(object);
            stamps.push(stamp);
            continue;
        }
        let object = guard.read(key.table, key.hash, key.bytes)?;
        stamps.push(match object {
            Some(Object { version, .. }) => Stamp::Present { version },
            None => guard.stamp(key.table, key.hash, key.bytes)?,
        });
        found.push(object);
    }
    drop(first_of_key);
    // A key that came between the two looks shows in its stamp alone.
    let is_torn = |(found, stamp): (&Option<Object<'_>>, &Stamp)| {
        found.is_none() && matches!(stamp, Stamp::Present { .. })
    };
    let is_whole = !found.iter().zip(&stamps).any(is_torn);
    let holds = is_whole && still_hold(guard, keys, &stamps)?;
    Ok(holds.then_some((found, stamps)))
}

/// Whether the keys still have these stamps, one for each key. A key that is named again has the
/// same stamp again.
fn still_hold(guard: &Guard<'_>, keys: &[Key<'_>], stamps: &[Stamp]) -> Result<bool, Error> {
    let mut looked_at = HashSet::new();
    for (key, stamp) in keys.iter().zip(stamps) {
        if keys.len() > FEW_KEYS && !looked_at.insert(*key) {
            continue;
        }
        if !stamp.still_holds(&guard.stamp(key.table, key.hash, key.bytes)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As [`at_once`], for a command that may compute for long.
pub(crate) fn computed_at_once(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    mut run: impl FnMut(&mut Context<'_>, &[Option<Object<'_>>]) -> Result<Vec<Write>, Failure>,
) -> Done {
    if ctx.locked || guard.draft().is_some() || ctx.request.key_positions().nth(1).is_none() {
        return at_once(ctx, guard, run);
    }
    let keys: Vec<_> = ctx.request.keys(ctx.table).collect();
    let (client, bytes_max) = (ctx.client.id(), bytes_max(ctx));
    if ctx.thread.scripts.keeps(client) && !ctx.thread.scripts.may_go_on(client, bytes_max) {
        return Err(YIELDS); // interpreters::S4
    }
    let mut progress = ctx
        .client
        .parking
        .take_values(ctx.table)
        .unwrap_or_default();
    while progress.runs < RUNS_MAX {
        if let Err(failure) = cold::warm_own(ctx, guard) {
            if failure.cold().is_some() && progress.goes_on() {
                keep(ctx, progress); // cold::C4
            }
            return Err(failure);
        }
        let runs = progress.runs;
        if compute(ctx, guard, &keys, progress, &mut run)? {
            return Ok(());
        }
        progress = Progress {
            runs: runs + 1,
            ..Progress::default()
        };
    }
    several_at_once(ctx, guard, |ctx, _, found| run(ctx, found))
}

/// Makes one run without locks, or a part of it. Returns false if the run was in vain.
fn compute(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    keys: &[Key<'_>],
    mut progress: Progress,
    run: &mut impl FnMut(&mut Context<'_>, &[Option<Object<'_>>]) -> Result<Vec<Write>, Failure>,
) -> Result<bool, Failure> {
    let (start, effects) = (ctx.reply.len(), ctx.client.effects.len());
    let began = Instant::now();
    let (writes, stamps) = {
        let Some((found, stamps)) = read_together(guard, keys)? else {
            return Ok(false);
        };
        let mut pairs = progress.stamps.iter().zip(&stamps);
        if progress.goes_on() && progress.stamps.len() != stamps.len()
            || !pairs.all(|(before, now)| before.still_holds(now))
        {
            return Ok(false);
        }
        progress.stamps.clone_from(&stamps);
        progress.table = Some(ctx.table);
        progress.reading = began.elapsed();
        ctx.thread.keep_progress(Some(progress));
        let ran = run(ctx, &found);
        let progress = ctx.thread.take_progress();
        if let (Err(failure), Some(progress)) = (&ran, progress)
            && failure.yields()
        {
            keep(ctx, progress);
        }
        let writes = ran?;
        for (n, key) in keys.iter().enumerate() {
            if found.get(n).is_some_and(Option::is_none) && ctx.request.spec.looks_up(n) {
                ctx.notify_miss(key.bytes);
            }
        }
        (writes, stamps)
    };
    let done = writes.is_empty() || write_unchanged(ctx, guard, keys, &stamps, &writes)?;
    if !done {
        ctx.reply.truncate(start);
        ctx.client.effects.truncate(effects);
    }
    Ok(done)
}

/// Maximum memory of all that is suspended in a thread.
fn bytes_max(ctx: &mut Context<'_>) -> usize {
    ctx.thread.config(ctx.shared).scripts.memory_bytes
}

/// Keeps the progress of a part, if there is memory for it (interpreters::S4). If not, the command
/// begins again when there is some.
fn keep(ctx: &mut Context<'_>, progress: Progress) {
    let (client, bytes_max) = (ctx.client.id(), bytes_max(ctx));
    let scripts = &mut ctx.thread.scripts;
    scripts.keep(client, progress.bytes());
    match scripts.may_go_on(client, bytes_max) {
        true => ctx.client.parking.keep_values(progress),
        false => scripts.keep(client, 0),
    }
}

/// Makes the writes and returns true if no key has changed since its stamp; else returns false.
fn write_unchanged(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    keys: &[Key<'_>],
    stamps: &[Stamp],
    writes: &[Write],
) -> Result<bool, Failure> {
    let places: Vec<_> = keys.iter().map(Key::place).collect();
    let mut holds = false;
    ctx.locked_for_room(guard, &places, |ctx, guard, room| {
        holds = has_bug(Bug::StaleResultIsStored) || still_hold(guard, keys, stamps)?;
        match holds {
            true => write_all(ctx, guard, keys, writes, room),
            false => Ok(()),
        }
    })?;
    Ok(holds)
}
