//! When a leader that cannot judge leaves the leadership.
//!
//! **Invariants**
//! - E1: a leader that has judged since its last resignation may resign at once: it reached the
//!   servers meanwhile.
//! - E2: if nobody reaches the servers, the leadership changes more and more rarely: when most
//!   servers are really gone, another leader is no help.

use std::time::{Duration, Instant};

/// Shortest time between a resignation and the next; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// Time after which another leader counts as one that may judge: it would have resigned earlier.
const LED_WELL: Duration = Duration::from_secs(6);

/// The resignations of one coordinator since it, or another leader, last reached the servers.
#[derive(Default)]
pub(super) struct Resigning {
    /// The last one, and the time for which it is not repeated.
    last: Option<(Instant, Duration)>,
    /// Another leader, and since when it leads.
    other: Option<(String, Instant)>,
}

impl Resigning {
    pub(super) fn may(&self, now: Instant) -> bool {
        let is_over = |(at, pause): (Instant, Duration)| now >= at + pause;
        self.last.is_none_or(is_over)
    }

    pub(super) fn resigned(&mut self, now: Instant) {
        let doubled = |(_, pause): (Instant, Duration)| (pause * 2).min(PAUSE_MAX);
        self.last = Some((now, self.last.map_or(PAUSE_MIN, doubled)));
        self.other = None;
    }

    /// E1: this leader may judge.
    pub(super) fn judges(&mut self) {
        self.last = None;
    }

    /// Another coordinator leads, or none that is known.
    pub(super) fn follows(&mut self, leader: Option<&str>, now: Instant) {
        match (&self.other, leader) {
            (Some((name, since)), Some(leader)) if name == leader => {
                if now >= *since + LED_WELL {
                    self.last = None;
                }
            }
            (_, leader) => self.other = leader.map(|leader| (leader.to_owned(), now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The times, in seconds, at which a leader resigns that can never judge.
    fn resignations(seconds: u32) -> Vec<u32> {
        let begin = Instant::now();
        let mut resigning = Resigning::default();
        let resigns = |at: &u32| {
            let now = begin + *at * SECOND;
            let may = resigning.may(now);
            if may {
                resigning.resigned(now);
            }
            may
        };
        (0..seconds).filter(resigns).collect()
    }

    #[test]
    fn leaders_that_nobody_answers_change_more_and_more_rarely() {
        let often = resignations(3_000);
        assert_eq!(often, [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430]);
    }

    #[test]
    fn a_leader_that_has_judged_meanwhile_may_resign_at_once() {
        let now = Instant::now();
        let mut resigning = Resigning::default();
        for n in 0..5 {
            resigning.resigned(now + n * SECOND);
        }
        assert!(!resigning.may(now + 60 * SECOND));
        resigning.judges();
        assert!(resigning.may(now + 60 * SECOND));
        resigning.resigned(now + 60 * SECOND);
        assert!(!resigning.may(now + 69 * SECOND));
        assert!(resigning.may(now + 70 * SECOND), "it begins anew");
    }

    #[test]
    fn a_leadership_of_another_that_lasts_counts_and_a_short_one_does_not() {
        let now = Instant::now();
        let resigned = || {
            let mut resigning = Resigning::default();
            for n in 0..5 {
                resigning.resigned(now + n * SECOND);
            }
            resigning
        };
        let mut short = resigned();
        short.follows(Some("b"), now + 5 * SECOND);
        short.follows(Some("b"), now + 8 * SECOND);
        short.follows(None, now + 9 * SECOND);
        short.follows(Some("b"), now + 12 * SECOND);
        short.follows(Some("c"), now + 15 * SECOND);
        short.follows(Some("b"), now + 18 * SECOND);
        assert!(!short.may(now + 20 * SECOND), "it could not judge either");
        let mut long = resigned();
        long.follows(Some("b"), now + 5 * SECOND);
        long.follows(Some("b"), now + 11 * SECOND);
        assert!(long.may(now + 12 * SECOND));
    }
}
