//! Coordinators that leave everything unanswered on a connection that stays open.
//!
//! Something between may keep a connection to a process that is gone, and then no error ever ends
//! it. Such a coordinator is asked through a new connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A coordinator is silent after this time, counted from the last bytes that its system took.
const SILENT: Duration = Duration::from_secs(5);
/// And after this time although its system takes bytes: the process may be gone.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// A coordinator that has left a request unanswered.
struct Unanswered {
    /// The time of the first request since the last answer.
    since: Instant,
    /// When bytes were last sent to it.
    sent: Instant,
}

/// The coordinators that have not answered yet, by address.
#[derive(Default)]
pub(super) struct Silence(HashMap<String, Unanswered>);

impl Silence {
    /// A request is about to be sent. True: the connection there must be closed first.
    pub fn asks(&mut self, address: &str, now: Instant) -> bool {
        let known = self.0.get(address);
        let is_silent =
            known.is_some_and(|known| now > known.sent + SILENT || now > known.since + SILENT_MAX);
        if known.is_none() || is_silent {
            let (since, sent) = (now, now);
            self.0
                .insert(address.to_owned(), Unanswered { since, sent });
        }
        is_silent
    }

    /// Its system has taken bytes of a request: a long one takes its time on a slow link.
    pub fn sent(&mut self, address: &str, now: Instant) {
        if let Some(known) = self.0.get_mut(address) {
            known.sent = now;
        }
    }

    /// An answer, or a part of one, or the connection's end.
    pub fn heard(&mut self, address: &str) {
        self.0.remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that needed more than 5 s for its way was cut off by the next one, for ever.
    #[test]
    fn a_coordinator_that_takes_bytes_is_not_silent_for_a_while() {
        let mut silence = Silence::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert!(!silence.asks("a", at(0)));
        for second in 1..=30 {
            silence.sent("a", at(second));
            assert!(!silence.asks("a", at(second)), "{second}");
        }
        assert!(silence.asks("a", at(31)));
        assert!(!silence.asks("a", at(36)), "a new connection");
        assert!(silence.asks("a", at(37)), "it takes nothing");
        silence.heard("a");
        assert!(!silence.asks("a", at(50)));
    }
}
