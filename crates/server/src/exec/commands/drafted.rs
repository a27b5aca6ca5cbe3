//! Steps whose keys are not known before they have run: scripts, EXEC with scripts, and EXEC with
//! SORT that reads keys by patterns.
//!
//! **Mechanism.** The step changes a draft (engine::draft). When it has ended, the keys that it met
//! are locked, their stamps are compared, and the draft is applied as one group. If a key has
//! changed meanwhile, the draft is dropped and the step runs again. After some such runs the step
//! reserves the keys that it has met: the writes of others to them wait (shared::reserved). While
//! another step has reserved one of its keys it does not run, for that would be in vain.
//!
//! **Invariants**
//! - R1: a step locks no key while it runs: reading a key waits for the step that has it locked,
//!   which may wait for a key of this one (transaction::T8).
//! - R2: a step changes no data and tells nobody before its commit. So it may run again at any
//!   time.
//! - R3: a step that conflicts makes progress: while it has reserved keys, a run of it is in vain
//!   only if it meets a key that it has not met before, or a write that began before. It fails when
//!   its runs in vain have taken `busy-reply-threshold` together.
//! - R4: in a cluster a step is committed only if this member has served all its keys without a
//!   break since the step began. Keys that have left were perhaps changed elsewhere, and the stamp
//!   of an absent key still holds when the others have been purged.
//! - R5: a write that meets a damaged key, or a limit that Redis has not (of a value, of the draft),
//!   ends the step, and nothing of it is done: its earlier writes may have taken the only copy of
//!   the data from elsewhere.

use crate::exec::request::context::{Context, Done, Failure};
use duramen_base::ids::TabletsVersion;
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{Draft, Guard, KeyHash, TableId};
use duramen_node::View;
use std::time::{Duration, Instant};

/// A key to lock: its table, and its hash.
pub(crate) type KeyPlace = (TableId, KeyHash);

/// Runs in vain before a step reserves its keys.
const CONFLICTS_MAX: u32 = 10;
/// A step that has run in vain for longer reserves its keys after the second run. Meanwhile others
/// run before each of its runs.
const SHORT: Duration = Duration::from_millis(6);
/// A reservation lasts for so many times the last run, and at least for [`RESERVED_MIN`].
const RESERVED_RUNS: u32 = 4;
const RESERVED_MIN: Duration = Duration::from_millis(100);
/// Scripts of an EXEC that is alone in the store: the others wait at the store's door meanwhile.
pub(crate) const ALONE_MAX: Duration = Duration::from_millis(6);
/// Time of the runs of a step that cannot be suspended: its thread serves nobody else meanwhile.
pub(crate) const IN_ONE_GO_MAX: Duration = Duration::from_millis(100);

pub(crate) const IN_CONFLICT: Failure = Failure::Text(
    "ERR it ran again and again for busy-reply-threshold, because its keys changed each time before it ended: nothing was done",
);

/// The runs of a step that were in vain, because its keys changed.
#[derive(Default)]
pub(crate) struct Conflicts {
    runs: u32,
    /// The beginning of the first.
    since: Option<Instant>,
    /// The time of all of them.
    lost: Duration,
}

/// How a step runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    AtOnce,
    /// At once, with its keys reserved.
    Reserve,
    /// It takes long: others may run first.
    Later,
}

impl Conflicts {
    /// A run that began at `began` was in vain.
    fn add(&mut self, began: Instant, now: Instant) -> Next {
        self.runs += 1;
        self.lost += now.saturating_duration_since(began);
        let since = *self.since.get_or_insert(began);
        match now.saturating_duration_since(since) >= SHORT {
            _ if self.runs >= CONFLICTS_MAX => Next::Reserve,
            true if self.runs > 1 => Next::Reserve,
            true => Next::Later,
            false => Next::AtOnce,
        }
    }
}

/// Whether the step of a client on these keys does not run now, because another step has reserved
/// some of them; it stands in line for them then.
pub(crate) fn stands_in_line(
    ctx: &mut Context<'_>,
    keys: impl Iterator<Item = KeyHash> + Clone,
) -> bool {
    let client = ctx.client.id();
    let stops = ctx.shared.commands.stops(client, keys.clone());
    stops
        && !ctx
            .local
            .scripts
            .reserve(ctx.shared, client, keys, RESERVED_MIN)
}

/// A run that began at `began` was in vain; `keys`: those that it has met. True: the next run
/// begins at once; false: others run before.
///
/// # Errors
/// R3: it has run in vain for too long.
pub(crate) fn runs_at_once(
    ctx: &mut Context<'_>,
    conflicts: &mut Conflicts,
    began: Instant,
    keys: impl Iterator<Item = KeyHash> + Clone,
) -> Result<bool, Failure> {
    let now = Instant::now();
    let mut next = conflicts.add(began, now);
    let limit = ctx.local.config(ctx.shared).scripts.busy_time();
    if limit.is_some_and(|limit| conflicts.lost > limit) {
        return Err(IN_CONFLICT);
    }
    if ctx.shared.commands.stops(ctx.client.id(), keys.clone()) {
        next = Next::Reserve; // another run would be in vain too
    }
    let time = (now.saturating_duration_since(began) * RESERVED_RUNS).max(RESERVED_MIN);
    let client = ctx.client.id();
    Ok(match next {
        Next::AtOnce => true,
        Next::Later => false,
        Next::Reserve => ctx.local.scripts.reserve(ctx.shared, client, keys, time),
    })
}

/// The tablet list with which a step begins (R4); `None`: the server is in no cluster.
pub(crate) fn list_at_start(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
) -> Option<TabletsVersion> {
    Some(ctx.view(guard)?.tablets_version())
}

/// R4; `list`: that of [`list_at_start`].
fn is_served(view: &View, draft: &Draft, list: Option<TabletsVersion>) -> bool {
    if has_bug(Bug::DraftsAreNotRouted) {
        return true;
    }
    draft.all_met(|table, hash, key| {
        let since = view.serves_since(table, hash.route(key));
        since.is_some_and(|since| Some(since) <= list)
    })
}

/// Applies a draft if all its keys are as its step has met them, if they were served here since
/// `list` (R4), if nobody has reserved those that it changes, and if `check` agrees, for which the
/// keys `more` are locked too. False: nothing was done. A step that is alone in the store locks its
/// keys too, unless it removes some and writes none: the locks come with places in the index
/// (transaction::T2), and a store that is full may have none.
pub(crate) fn commit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    (draft, list): (&Draft, Option<TabletsVersion>),
    more: &[KeyPlace],
    mut check: impl FnMut(&mut Context<'_>, &Guard<'_>, Option<&View>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    // If a range is taken away after this, the keys cannot be locked (routing).
    let view = ctx.view(guard);
    let view = view.as_deref();
    if view.is_some_and(|view| !is_served(view, draft, list)) {
        return Ok(false);
    }
    let client = ctx.client.id();
    if ctx.shared.commands.stops(client, draft.changed_keys()) {
        return Ok(false);
    }
    if draft.is_empty() {
        // All keys were unchanged at the moment at which the comparison begins.
        let holds = check(ctx, guard, view)? && guard.still_holds(draft)?;
        if holds {
            guard.apply(draft); // it has told versions
        }
        return Ok(holds);
    }
    let mut keys = draft.keys();
    keys.extend_from_slice(more);
    guard.rewrites(draft.rewrites());
    let mut holds = false;
    let locked = std::mem::replace(&mut ctx.locked, guard.is_alone() && draft.only_removes());
    let done = ctx.locked_for_room(guard, &keys, |ctx, guard, room| {
        holds = check(ctx, guard, view)? && guard.holds_when_locked(draft)?;
        if holds {
            *room = draft.room();
            guard.set_aside(*room)?;
            guard.apply(draft);
        }
        Ok(())
    });
    ctx.locked = locked;
    done.map(|()| holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_steps_run_again_at_once_and_long_ones_let_others_run() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut short = Conflicts::default();
        let nexts: Vec<Next> = (1..12).map(|n| short.add(at(n / 4), at(n / 4))).collect();
        assert_eq!(nexts[..9], [Next::AtOnce; 9]);
        assert_eq!(nexts[9..], [Next::Reserve; 2]);
        let mut long = Conflicts::default();
        assert_eq!(long.add(start, at(20)), Next::Later);
        assert!((2..9).all(|n| long.add(at(20 * n - 20), at(20 * n)) == Next::Reserve));
        assert_eq!(long.lost, Duration::from_millis(160));
    }
}
