//! Settings about scripts.

use std::time::Duration;

/// See `table/scripts.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptConfig {
    pub memory_bytes: usize,
    /// Time after which a script is busy, in milliseconds; 0 = never.
    pub busy_ms: u64,
}

impl ScriptConfig {
    /// The time of `busy-reply-threshold`; `None` if it is never.
    pub fn busy_time(&self) -> Option<Duration> {
        (self.busy_ms > 0).then(|| Duration::from_millis(self.busy_ms))
    }

    /// As [`busy_time`](Self::busy_time), for uses that need a limit: 5 s instead of never.
    pub fn patience(&self) -> Duration {
        self.busy_time().unwrap_or(Duration::from_secs(5))
    }
}
