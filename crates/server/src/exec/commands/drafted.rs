//! Steps whose keys are not known before they have run: scripts, EXEC with scripts, and SORT that
//! reads keys by patterns.
//!
//! **Mechanism.** The step changes a draft (engine::draft). When it has ended, the keys that it met
//! are locked, their stamps are compared, and the draft is applied as one group. If a key has
//! changed meanwhile, the draft is dropped and the step runs again; after [`CONFLICTS_MAX`] such
//! runs, alone in the store.
//!
//! **Invariants**
//! - R1: a step locks no key while it runs: reading a key waits for the step that has it locked,
//!   which may wait for a key of this one (transaction::T8).
//! - R2: a step has no effect before its commit: no write, no event, no message. So it may run
//!   again at any time.
//! - R3: a step runs alone only if its last run took less than [`ALONE_MAX`].

use crate::exec::request::context::{Context, Done, Failure};
use duramen_engine::{Draft, Error, Guard, KeyHash, TableId};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// A key to lock: its table, and its hash.
pub(crate) type KeyPlace = (TableId, KeyHash);

/// Runs in vain before a step runs alone in the store.
const CONFLICTS_MAX: u32 = 3;
/// R3: the others wait at the store's door meanwhile.
const ALONE_MAX: Duration = Duration::from_millis(10);
/// Time of the runs of a step that cannot be suspended: its thread serves nobody else meanwhile.
pub(crate) const IN_ONE_GO_MAX: Duration = Duration::from_millis(100);

const IN_CONFLICT: Failure = Failure::Text(
    "ERR it was run again and again for 100 ms, because its keys changed each time before it ended: nothing was done",
);

/// The runs of a step that were in vain, because its keys changed.
#[derive(Default)]
pub(crate) struct Conflicts {
    runs: u32,
    /// Ends of the first and of the last of them, in [`used_time`].
    first: Duration,
    last: Duration,
}

impl Conflicts {
    /// A run was in vain, and the next one begins. Whether it is alone in the store.
    pub(crate) fn add(&mut self) -> bool {
        let now = used_time();
        if self.runs == 0 {
            (self.first, self.last) = (now, now);
        }
        let took = now.saturating_sub(std::mem::replace(&mut self.last, now));
        self.runs += 1;
        self.runs >= CONFLICTS_MAX && took < ALONE_MAX
    }

    /// As [`add`](Self::add), for a step that cannot be suspended.
    ///
    /// # Errors
    /// Its runs have taken too long.
    pub(crate) fn add_in_one_go(&mut self) -> Result<bool, Failure> {
        match self.add() {
            false if self.last.saturating_sub(self.first) >= IN_ONE_GO_MAX => Err(IN_CONFLICT),
            is_alone => Ok(is_alone),
        }
    }
}

/// The time that this thread has used its core: it does not grow while the thread waits for one.
pub(crate) fn used_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Applies a draft if all its keys are as its step has met them, and if `check` agrees, for which
/// the keys `more` are locked too. False: nothing was done. With `ctx.locked`, the step is alone in
/// the store.
pub(crate) fn commit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    draft: &Draft,
    more: &[KeyPlace],
    mut check: impl FnMut(&mut Context<'_>, &Guard<'_>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    if draft.is_empty() {
        // All keys were unchanged at the moment at which the comparison begins.
        return Ok(check(ctx, guard)? && guard.still_holds(draft)?);
    }
    let mut keys = draft.keys();
    keys.extend_from_slice(more);
    let mut holds = false;
    ctx.locked_for_room(guard, &keys, |ctx, guard, room| {
        holds = check(ctx, guard)? && guard.still_holds(draft)?;
        if holds {
            *room = draft.room();
            guard.set_aside(*room)?;
            guard.apply(draft);
        }
        Ok(())
    })?;
    Ok(holds)
}

/// Runs a command that may read keys which its arguments do not name, and writes. `bytes_max`:
/// maximum memory of its keys and writes.
pub(crate) fn run(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    bytes_max: usize,
    mut command: impl FnMut(&mut Context<'_>, &mut Guard<'_>) -> Done,
) -> Done {
    if ctx.locked {
        return command(ctx, guard); // it is alone, or there is a draft already
    }
    let (start, effects) = (ctx.out.len(), ctx.client.effects.len());
    let mut conflicts = Conflicts::default();
    loop {
        guard.begin_draft(Box::new(Draft::new(bytes_max)));
        (ctx.locked, ctx.local.in_exec) = (true, true);
        let done = command(ctx, guard);
        (ctx.locked, ctx.local.in_exec) = (false, false);
        let draft = guard.end_draft().ok_or(Error::TryAgain)?;
        done?;
        if commit(ctx, guard, &draft, &[], |_, _| Ok(true))? {
            return Ok(());
        }
        ctx.out.truncate(start);
        ctx.client.effects.truncate(effects);
        if conflicts.add_in_one_go()? {
            ctx.local.needs_alone = true;
            return Err(Failure::Text("ERR it runs again, alone"));
        }
    }
}
