//! Failures of a command after which a run on a draft is in vain.

use super::context::Failure;
use crate::state::interpreters::Abandoned;

impl Abandoned {
    /// `Some`: after this failure of a command, the whole step must run again: an entry is on
    /// flash, or the keys are moving.
    pub(crate) fn of(failure: &Failure) -> Option<Abandoned> {
        match failure.cold() {
            Some(cold) => Some(Abandoned::Cold(cold)),
            None => failure.is_moving().then_some(Abandoned::Moving),
        }
    }

    /// As [`of`](Self::of), for a command of an EXEC. A value that would be too long ends all of
    /// it, as does a write to a damaged key: the other commands may have taken the only copy of the
    /// data from elsewhere.
    pub(crate) fn of_step(failure: &Failure, writes: bool) -> Option<Abandoned> {
        let is_lost = failure.is_damaged() && writes;
        match failure.is_too_long() || is_lost {
            true => Some(Abandoned::Failed(aborted(&failure.text()).into())),
            false => Abandoned::of(failure),
        }
    }
}

/// The error of an EXEC of which nothing was done.
pub(crate) fn aborted(why: &str) -> String {
    format!("EXECABORT Transaction discarded because of: {why}")
}
