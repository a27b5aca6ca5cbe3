//! The clock for everything with a time limit: deadlines, pauses, stalls, ages of connections.
//!
//! It counts milliseconds from a moment before the server's start. Changes of the system's time do
//! not move it: a step of the wall clock makes no client wait longer or give up early. The expiry
//! of objects is in wall-clock time, which the engine handles.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// Milliseconds; never 0, which stands for "no deadline".
#[inline]
pub fn now_ms() -> u64 {
    millis(clock_gettime(ClockId::Monotonic))
}

/// As [`now_ms`], but up to one scheduler tick (4 ms) behind: cheap enough for every round.
#[inline]
pub fn coarse_ms() -> u64 {
    millis(clock_gettime(ClockId::MonotonicCoarse))
}

/// The time that this thread has used its core: it does not grow while the thread waits for one.
#[inline]
pub fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn millis(time: Timespec) -> u64 {
    (time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deadlines were once in wall-clock time: after a step of 30 s, requests waited for 6.5 s
    /// instead of 1 s.
    #[test]
    fn both_readings_are_of_the_monotonic_clock() {
        let before = millis(clock_gettime(ClockId::MonotonicCoarse));
        let (coarse, fine) = (coarse_ms(), now_ms());
        let after = millis(clock_gettime(ClockId::Monotonic));
        assert!(before <= coarse && coarse <= fine && fine <= after);
    }
}
