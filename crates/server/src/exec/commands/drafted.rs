//! Steps whose keys are not known before they have run: scripts, EXEC with scripts, and EXEC with
//! SORT that reads keys by patterns.
//!
//! **Mechanism.** The step changes a draft (engine::draft). When it has ended, the keys that it met
//! are locked, their stamps are compared, and the draft is applied as one group. If a key has
//! changed meanwhile, the draft is dropped and the step runs again; after [`CONFLICTS_MAX`] such
//! runs, alone in the store. A script lets others run before, if its runs take long.
//!
//! **Invariants**
//! - R1: a step locks no key while it runs: reading a key waits for the step that has it locked,
//!   which may wait for a key of this one (transaction::T8).
//! - R2: a step changes no data and tells nobody before its commit. So it may run again at any
//!   time.
//! - R3: scripts run alone for [`ALONE_MAX`] at most, beside the commit's wait for the disk, and
//!   conflicts make a step alone only if all its runs together took less.

use crate::exec::request::context::{Context, Failure};
use duramen_engine::{Draft, Guard, KeyHash, TableId};
use std::time::Duration;

/// A key to lock: its table, and its hash.
pub(crate) type KeyPlace = (TableId, KeyHash);

/// Runs in vain before a step runs alone in the store. That is seldom: the commit of one that is
/// alone waits for the disk, and everybody at the door waits too.
const CONFLICTS_MAX: u32 = 10;
/// R3: the others wait at the store's door meanwhile. A script stops at the end of its slice.
pub(crate) const ALONE_MAX: Duration = Duration::from_millis(6);
/// Time of the runs of a step that cannot be suspended: its thread serves nobody else meanwhile.
pub(crate) const IN_ONE_GO_MAX: Duration = Duration::from_millis(100);

pub(crate) const IN_CONFLICT: Failure = Failure::Text(
    "ERR it takes too long to run again and again because its keys change each time before it ends: nothing was done",
);

/// The runs of a step that were in vain, because its keys changed.
#[derive(Default)]
pub(crate) struct Conflicts {
    runs: u32,
    last: Duration,
}

/// How a step runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    AtOnce,
    Alone,
    /// It takes long: others may run first.
    Later,
}

impl Conflicts {
    /// A run was in vain. `now`: the time since the first one began.
    pub(crate) fn add(&mut self, now: Duration) -> Next {
        self.last = now;
        self.runs += 1;
        match self.runs >= CONFLICTS_MAX {
            _ if now >= ALONE_MAX => Next::Later,
            true => Next::Alone,
            false => Next::AtOnce,
        }
    }

    /// As [`add`](Self::add), for a step that cannot be suspended. Whether it runs alone.
    ///
    /// # Errors
    /// Another run would take too long.
    pub(crate) fn add_in_one_go(&mut self, now: Duration) -> Result<bool, Failure> {
        let took = now.saturating_sub(self.last);
        match self.add(now) {
            Next::Later if now + took > IN_ONE_GO_MAX => Err(IN_CONFLICT),
            next => Ok(next == Next::Alone),
        }
    }
}

/// Applies a draft if all its keys are as its step has met them, and if `check` agrees, for which
/// the keys `more` are locked too. False: nothing was done. A step that is alone in the store locks
/// its keys too, unless it removes some and writes none: the locks come with places in the index
/// (transaction::T2), and a store that is full may have none.
pub(crate) fn commit(
    ctx: &mut Context<'_>,
    guard: &mut Guard<'_>,
    draft: &Draft,
    more: &[KeyPlace],
    mut check: impl FnMut(&mut Context<'_>, &Guard<'_>) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    if draft.is_empty() {
        // All keys were unchanged at the moment at which the comparison begins.
        let holds = check(ctx, guard)? && guard.still_holds(draft)?;
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
        holds = check(ctx, guard)? && guard.still_holds(draft)?;
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
    fn short_steps_run_alone_and_long_ones_let_others_run() {
        let ms = Duration::from_millis;
        let mut short = Conflicts::default();
        let nexts: Vec<Next> = (1..12).map(|n| short.add(ms(n) / 2)).collect();
        assert_eq!(nexts[..9], [Next::AtOnce; 9]);
        assert_eq!(nexts[9..], [Next::Alone; 2]);
        let mut long = Conflicts::default();
        assert!((1..9).all(|n| long.add(ms(20 * n)) == Next::Later));
        let mut in_one_go = Conflicts::default();
        assert!(!in_one_go.add_in_one_go(ms(40)).expect("time for another"));
        assert!(in_one_go.add_in_one_go(ms(80)).is_err());
    }
}
