//! A request to the coordinator that has no answer yet (member::N11).
//!
//! **Concurrency** none: one owner, [`Member`](super::Member).

use super::Asking;

/// A request is repeated after this time, counted from the last movement of its connection.
const PATIENCE_US: u64 = 500_000;
/// A request is repeated after this time even if its connection moves: that may be for other
/// requests.
const PATIENCE_MAX_US: u64 = 30_000_000;

pub(super) struct Asked {
    pub what: Asking,
    since_us: u64,
    /// When it is repeated.
    pub deadline_us: u64,
}

impl Asked {
    pub fn new(what: Asking, now_us: u64) -> Asked {
        Asked {
            what,
            since_us: now_us,
            deadline_us: now_us + PATIENCE_US,
        }
    }

    /// Its connection has moved something.
    pub fn moves(&mut self, now_us: u64) {
        let deadline_us = (now_us + PATIENCE_US).min(self.since_us + PATIENCE_MAX_US);
        self.deadline_us = self.deadline_us.max(deadline_us);
    }
}
