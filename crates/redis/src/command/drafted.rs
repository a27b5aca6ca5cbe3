//! Steps whose keys are not known before they have run: scripts, EXEC with scripts, and EXEC with
//! SORT that reads keys by patterns.
//!
//! **Mechanism.** The step changes a draft (engine::draft). When it has ended, the keys that it met
//! are locked, their stamps are compared, and the draft is applied as one group. If a key has
//! changed meanwhile, the draft is dropped and the step runs again. After some such runs the step
//! reserves the keys that it has met: the writes of others to them wait (shared::reserved). A step
//! does not run while another step has reserved one of its keys: the run would be in vain. A step
//! that has once asked for a reservation runs only while it has one. A suspended run of such a step
//! is dropped, so that waiting steps take no memory.
//!
//! **Invariants**
//! - R1: a step locks no key while it runs: reading a key waits for the step that has it locked,
//!   which may wait for a key of this one (transaction::T8).
//! - R2: a step changes no data and tells nobody before its commit. So it may run again at any
//!   time.
//! - R3: a step that conflicts makes progress. While it has reserved keys, a run of it is in vain
//!   only if the run meets a key that the step has not met before, or a write that began before the
//!   reservation. The step has the reservation until it ends, for `busy-reply-threshold` at most.
//!   The step fails when its runs in vain have taken that long together, without the time of others
//!   between their slices.
//! - R4: in a cluster a step is committed only if this member has served all its keys without a
//!   break since the step began. Keys that have left may have been changed elsewhere. The stamp of
//!   an absent key is no proof: it still holds after the keys that left have been purged.
//! - R5: two kinds of writes end the step, and nothing of the step is done: a write that meets a
//!   damaged key, and one that meets a limit that Redis does not have (of a value, of the draft).
//!   The step's earlier writes may have taken the only copy of the data from elsewhere.
//! - R6: a step that changes nothing locks no key when it ends, so the step is in vain if it has
//!   met absent keys and others remove any keys meanwhile (draft::P2). No reservation prevents such
//!   removals. So a step that has asked for one locks its keys, even if it changes none.

use super::context::{Context, Done, Failure};
use crate::state::conflicts::{Conflicts, Next};
use duramen_base::ids::TabletsVersion;
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::{Draft, Guard, KeyHash, TableId};
use duramen_node::View;
use std::time::Duration;

/// A key to lock: its table, and its hash.
pub(crate) type KeyPlace = (TableId, KeyHash);

/// Maximum time of the scripts of an EXEC that is alone in the store: all other sessions wait at
/// the store's door meanwhile.
pub(crate) const ALONE_MAX: Duration = Duration::from_millis(6);
/// Maximum time of the runs of a step that cannot be suspended: its thread serves no other client
/// meanwhile.
pub(crate) const IN_ONE_GO_MAX: Duration = Duration::from_millis(100);

pub(crate) const IN_CONFLICT: Failure = Failure::Text(
    "ERR it ran again and again for busy-reply-threshold, because its keys changed each time before it ended: nothing was done",
);

/// Checks that a step may run again.
///
/// # Errors
/// R3: it has run in vain for too long.
pub(crate) fn check_time(ctx: &mut Context<'_>, conflicts: &Conflicts) -> Done {
    let limit = ctx.thread.config(ctx.shared).scripts.busy_time();
    match limit.is_some_and(|limit| conflicts.exceed(limit)) {
        true => Err(IN_CONFLICT),
        false => Ok(()),
    }
}

/// Whether [`stands_in_line`] must be called for the step of a client. `writes`: the step may
/// write.
pub(crate) fn may_stand_in_line(ctx: &Context<'_>, writes: bool) -> bool {
    let has_asked = ctx.thread.scripts.has_asked(ctx.client.id());
    has_asked || writes && ctx.shared.commands.has_reserved()
}

/// As [`stands_in_line`], for a step that has asked for a reservation: the line has its keys.
/// Returns `None` if the step is not in line.
pub(crate) fn still_stands_in_line(ctx: &Context<'_>) -> Option<bool> {
    let client = ctx.client.id();
    if !ctx.thread.scripts.has_asked(client) {
        return None;
    }
    let is_first = ctx.shared.commands.show_in_line(client)?;
    Some(!is_first)
}

/// Whether the step of a client on these keys must not run now, but stands in line: another step
/// has reserved some of the keys, or this one has asked for a reservation and is not the first in
/// line.
pub(crate) fn stands_in_line(
    ctx: &mut Context<'_>,
    keys: impl Iterator<Item = KeyHash> + Clone,
) -> bool {
    let client = ctx.client.id();
    let has_asked = ctx.thread.scripts.has_asked(client);
    (has_asked || ctx.shared.commands.stops(client, keys.clone())) && !reserve(ctx, keys)
}

/// Reserves keys for the step of a client (R3). Returns false if the step stands in line.
fn reserve(ctx: &mut Context<'_>, keys: impl Iterator<Item = KeyHash>) -> bool {
    let most = ctx.thread.config(ctx.shared).scripts.patience();
    let scripts = &mut ctx.thread.scripts;
    scripts.reserve(ctx.shared, ctx.client.id(), keys, most)
}

/// Notes that a run that has taken `time` was in vain; `keys` are those that it has met. Returns
/// true if the next run begins at once, and false if others run before.
///
/// # Errors
/// R3: it has run in vain for too long.
pub(crate) fn runs_at_once(
    ctx: &mut Context<'_>,
    conflicts: &mut Conflicts,
    time: Duration,
    keys: impl Iterator<Item = KeyHash> + Clone,
) -> Result<bool, Failure> {
    let mut next = conflicts.add(time);
    check_time(ctx, conflicts)?;
    if ctx.shared.commands.stops(ctx.client.id(), keys.clone()) {
        next = Next::Reserve; // another run would be in vain too
    }
    Ok(match next {
        Next::AtOnce => true,
        Next::Later => false,
        Next::Reserve => reserve(ctx, keys),
    })
}

/// The tablet list with which a step begins (R4); `None` if the server is in no cluster.
pub(crate) fn list_at_start(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
) -> Option<TabletsVersion> {
    Some(ctx.view(guard)?.tablets_version())
}

/// Whether this member has served all keys of the draft since `list`, the result of
/// [`list_at_start`] (R4).
fn is_served(view: &View, draft: &Draft, list: Option<TabletsVersion>) -> bool {
    if has_bug(Bug::DraftsAreNotRouted) {
        return true;
    }
    draft.all_met(|table, hash, key| {
        let since = view.serves_since(table, hash.route(key));
        since.is_some_and(|since| Some(since) <= list)
    })
}

/// Applies a draft and returns true, or does nothing and returns false. The draft is applied if all
/// its keys are as its step has met them, if they were served here since `list` (R4), if nobody has
/// reserved those that it changes, and if `check` agrees. The keys `more` are locked for `check`
/// too.
///
/// A step that is alone in the store locks its keys too, unless it removes some and writes none: a
/// lock may need a place in the index (transaction::T2), and a store that is full may have none.
/// Such a step heeds no reservation: it may have done what cannot be taken back.
pub(crate) fn commit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    draft: &Draft,
    list: Option<TabletsVersion>,
    more: &[KeyPlace],
    mut check: impl FnMut(&mut Context<'_>, &Guard<'_>, Option<&View>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    // If a range is taken away after this line, the keys cannot be locked (routing).
    let view = ctx.view(guard);
    let view = view.as_deref();
    if view.is_some_and(|view| !is_served(view, draft, list)) {
        return Ok(false);
    }
    let client = ctx.client.id();
    if !guard.pin().is_alone() && ctx.shared.commands.stops(client, draft.changed_keys()) {
        return Ok(false);
    }
    // A step that has asked for a reservation locks what it has only read, too (R6).
    let locks_reads = ctx.thread.scripts.has_asked(client) && !draft.all_met(|_, _, _| false);
    if draft.is_empty() && !locks_reads {
        return commit_unlocked(ctx, guard, draft, view, check);
    }
    let mut keys = draft.keys();
    keys.extend_from_slice(more);
    guard.rewrites(draft.rewrites());
    let mut holds = false;
    let locked = std::mem::replace(
        &mut ctx.locked,
        guard.pin().is_alone() && draft.only_removes(),
    );
    let done = ctx.locked_for_room(guard, &keys, |ctx, guard, room| {
        holds = check(ctx, guard, view)? && draft.holds_when_locked(guard)?;
        if holds {
            *room = draft.room();
            guard.set_aside(*room)?;
            guard.pin().warm_alone(keys.iter().copied())?;
            draft.apply(guard);
        }
        Ok(())
    });
    ctx.locked = locked;
    match done {
        // There is no memory for the locks, or a table has gone.
        Err(Failure::Engine(_)) if draft.is_empty() => {
            guard.unlock_keys();
            commit_unlocked(ctx, guard, draft, view, check)
        }
        done => done.map(|()| holds),
    }
}

/// Commits a draft that changes nothing: all its keys were unchanged at the moment at which the
/// comparison begins.
fn commit_unlocked(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    draft: &Draft,
    view: Option<&View>,
    mut check: impl FnMut(&mut Context<'_>, &Guard<'_>, Option<&View>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let holds = check(ctx, guard, view)? && draft.still_holds(guard)?;
    if holds {
        draft.apply(guard); // versions that the step has seen never come again (index::X3)
    }
    Ok(holds)
}
