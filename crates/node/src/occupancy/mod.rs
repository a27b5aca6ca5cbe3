//! Checks whether a range is occupied: whether any part of it is here, for a recovery or a
//! migration that is about to bring the range.
//!
//! **Invariants**
//! - E1: for one range, at most one of these exists at a time: a recovery's run, at any stage,
//!   until its end is known here and applied; a migration's target; the leftover of a target; a
//!   purge. The index has one place for each key. So a second one would find the entries of the
//!   first, take them for its own, and lose them when the first is taken back or purged.
//! - E2: an obstacle ends by itself: it never waits for a later one.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: [Ousterhout15 §7, §8]; differs: RAMCloud has one log, and relies on its coordinator never
//! to bring a range twice.

use crate::assignment::Assignment;
use crate::life::Life;
use crate::ranges::Ranges;
use duramen_base::planted::{Bug, has_bug};

/// E1. The list itself is not checked: a target's range is listed, a recovery's must not be.
pub(crate) fn is_occupied(assignment: &Assignment, life: &Life, ranges: &Ranges) -> bool {
    !has_bug(Bug::PurgeIsNotHere) && assignment.takes_away(ranges)
        || !has_bug(Bug::RunIsNotHere) && life.recoveries.has_any_of(ranges)
        || !has_bug(Bug::LeftoverIsNotHere) && life.migrations.leaves_any_of(ranges)
}

#[cfg(test)]
mod tests;
