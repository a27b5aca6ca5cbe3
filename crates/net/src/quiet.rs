//! Limits warnings, so that a flood of bad peers does not cause a flood of log lines.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
const BURST: u32 = 5;

/// Allows a few warnings per second.
#[derive(Debug)]
pub(crate) struct Quiet {
    since: Instant,
    said: u32,
    swallowed: u64,
}

impl Quiet {
    pub fn new(now: Instant) -> Quiet {
        Quiet {
            since: now,
            said: 0,
            swallowed: 0,
        }
    }

    /// Returns `Some` if this warning is to be logged, with the number of warnings that were
    /// suppressed before it.
    pub fn says(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= EVERY {
            self.since = now;
            self.said = 0;
        }
        if self.said == BURST {
            self.swallowed += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.swallowed))
    }
}
