//! Lines of the log that a client, a disk or a peer can cause at will. Each place in the program
//! writes at most `LINES_MAX` of them in `INTERVAL`. Its next line has the number of those that
//! were left out.
//!
//! **Concurrency**: any thread may log; the threads share a place's bound.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(10);
/// Most lines of one place per interval: enough to show all usual faults of one client.
const LINES_MAX: u32 = 4;

/// The bound of one place in the program.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// Start of the interval; `None` if nothing was logged yet.
    since: Option<Instant>,
    /// Lines in the interval.
    written: u32,
    left_out: u64,
}

/// A line that may be written now.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of lines that were left out before it; none instead of 0, which is not shown.
    pub left_out: Option<u64>,
}

impl Seldom {
    pub const fn new() -> Seldom {
        Seldom(Mutex::new(Lines {
            since: None,
            written: 0,
            left_out: 0,
        }))
    }

    /// The next line; none if it is left out.
    pub fn turn(&self) -> Option<Line> {
        self.turn_at(Instant::now())
    }

    fn turn_at(&self, now: Instant) -> Option<Line> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |since| now.saturating_duration_since(since) >= INTERVAL;
        if lines.since.is_none_or(is_over) {
            lines.since = Some(now);
            lines.written = 0;
        }
        if lines.written == LINES_MAX {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        let left_out = std::mem::take(&mut lines.left_out);
        Some(Line {
            left_out: (left_out > 0).then_some(left_out),
        })
    }
}

/// Logs a line at the given level, unless this place has logged too many: `seldom!(warn, client,
/// "…")`.
#[macro_export]
macro_rules! seldom {
    ($level:ident, $($line:tt)+) => {{
        static LINES: $crate::seldom::Seldom = $crate::seldom::Seldom::new();
        if let Some($crate::seldom::Line { left_out }) = LINES.turn() {
            tracing::$level!(left_out, $($line)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_those_left_out_are_counted() {
        let (seldom, start) = (Seldom::new(), Instant::now());
        let line = |left_out| Some(Line { left_out });
        for _ in 0..LINES_MAX {
            assert_eq!(seldom.turn_at(start), line(None));
        }
        for n in 0..1_000 {
            assert_eq!(seldom.turn_at(start + INTERVAL * n / 1_001), None);
        }
        assert_eq!(seldom.turn_at(start + INTERVAL), line(Some(1_000)));
        assert_eq!(seldom.turn_at(start + INTERVAL), line(None));
    }
}
