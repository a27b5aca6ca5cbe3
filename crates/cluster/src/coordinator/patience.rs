//! The time that this leader waits for the answer to a ping: it follows from what it measures.
//!
//! On a busy machine each process waits for a processor, the coordinator too, and a burst of
//! recoveries makes all members slow at once. So the recent answers of all servers, and its own
//! delay, tell how long an answer may take now.
//!
//! **Invariants**
//! - H1: the patience is at least the configured one, and at most [`FACTOR_MAX`] times that.
//! - H2: within that it is [`SLACK`] times the slowest recent answer of any server, or of the own
//!   delays.
//! - H3: an answer that comes after the end of its request is measured as well, and is a sign of
//!   life: a server that answers each ping too late lives.
//! - H4: a silence counts only if it lasted as long as the patience at its end.

use super::CallId;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use std::collections::{BTreeMap, VecDeque};

/// H2: answers get slower before they are measured.
const SLACK: u64 = 4;
/// H1: a server that has really stopped is noticed, however busy the others are.
const FACTOR_MAX: u64 = 10;
/// Measures count for this long.
const RECENT_US: u64 = 5_000_000;
/// Most measures that are kept. One roll call makes at most half as many.
const MEASURES_MAX: usize = 512;
/// In a large cluster some answer is always late, because a packet was lost: of so many measures
/// the slowest one does not count.
const OUTLIER_OF: usize = 32;
/// Most requests whose answers may still come.
const LATE_MAX: usize = 1024;

/// The recent measures, and the pings whose answers may still come; see the module.
#[derive(Default)]
pub(super) struct Patience {
    /// Measures: when each was made, and how long its answer took.
    measures: VecDeque<(u64, u64)>,
    /// Pings that ended without an answer: to whom, and when.
    late: BTreeMap<CallId, (ServerId, u64)>,
    /// When the next look at the time is due.
    due_us: Option<u64>,
}

impl Patience {
    /// The patience for one ping (H1, H2).
    pub(super) fn of(&self, now_us: u64, configured_us: u64) -> u64 {
        if has_bug(Bug::PatienceIsFixed) {
            return configured_us;
        }
        let recent = self.measures.iter();
        let recent = recent.filter(|(at_us, _)| now_us < at_us.saturating_add(RECENT_US));
        let mut recent: Vec<u64> = recent.map(|(_, took_us)| *took_us).collect();
        recent.sort_unstable();
        let counts = recent.len() - recent.len() / OUTLIER_OF;
        let slowest_us = recent[..counts].last().copied().unwrap_or(0);
        let most_us = configured_us.saturating_mul(FACTOR_MAX);
        slowest_us
            .saturating_mul(SLACK)
            .clamp(configured_us, most_us)
    }

    /// Notes how long an answer took, or how late a look at the time was.
    pub(super) fn took(&mut self, now_us: u64, us: u64) {
        if self.measures.len() >= MEASURES_MAX {
            self.measures.pop_front();
        }
        self.measures.push_back((now_us, us));
    }

    /// Notes a look at the time, and when the next one is due: its delay is a measure of this
    /// process.
    pub(super) fn looks(&mut self, now_us: u64, next_us: u64) {
        if let Some(due_us) = self.due_us.replace(next_us) {
            self.took(now_us, now_us.saturating_sub(due_us));
        }
    }

    /// Notes that a ping of this time has ended without an answer.
    pub(super) fn gives_up(&mut self, call: CallId, to: ServerId, asked_us: u64) {
        if self.late.len() >= LATE_MAX {
            self.late.pop_first();
        }
        self.late.insert(call, (to, asked_us));
    }

    /// H3: the server that answers so late, and the time of the ping that it answers.
    pub(super) fn late(&mut self, call: CallId) -> Option<(ServerId, u64)> {
        self.late
            .remove(&call)
            .filter(|_| !has_bug(Bug::PatienceIsFixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    #[test]
    fn the_patience_follows_the_slowest_recent_answer_within_limits() {
        let mut patience = Patience::default();
        let of = |patience: &Patience, now_us| patience.of(now_us, 125 * MS);
        assert_eq!(of(&patience, 0), 125 * MS);
        patience.took(0, 20 * MS);
        assert_eq!(of(&patience, 0), 125 * MS);
        patience.took(MS, 60 * MS);
        patience.took(2 * MS, MS);
        assert_eq!(of(&patience, 2 * MS), 240 * MS);
        patience.took(3 * MS, 9_000 * MS);
        assert_eq!(of(&patience, 3 * MS), 1_250 * MS);
        assert_eq!(of(&patience, RECENT_US + 2 * MS), 1_250 * MS);
        assert_eq!(of(&patience, RECENT_US + 3 * MS), 125 * MS);
    }

    #[test]
    fn one_late_answer_of_many_says_nothing() {
        let mut patience = Patience::default();
        patience.took(0, 900 * MS);
        (0..30).for_each(|_| patience.took(0, MS));
        assert_eq!(patience.of(0, 125 * MS), 1_250 * MS);
        patience.took(0, MS);
        assert_eq!(patience.of(0, 125 * MS), 125 * MS);
        (0..4 * MEASURES_MAX).for_each(|_| patience.took(0, MS));
        assert_eq!(patience.measures.len(), MEASURES_MAX);
    }

    #[test]
    fn a_late_look_at_the_time_is_a_delay() {
        let mut patience = Patience::default();
        patience.looks(0, 100 * MS);
        patience.looks(100 * MS, 200 * MS);
        assert_eq!(patience.of(100 * MS, 125 * MS), 125 * MS);
        patience.looks(290 * MS, 390 * MS);
        assert_eq!(patience.of(290 * MS, 125 * MS), 360 * MS);
    }

    #[test]
    fn requests_without_an_answer_are_kept_in_bounds() {
        let mut patience = Patience::default();
        let server = ServerId::new(1, 1);
        let calls = 2 * LATE_MAX as u64;
        (0..calls).for_each(|call| patience.gives_up(CallId(call), server, call));
        assert_eq!(patience.late.len(), LATE_MAX);
        assert_eq!(patience.late(CallId(0)), None);
        assert_eq!(patience.late(CallId(calls - 1)), Some((server, calls - 1)));
        assert_eq!(patience.late(CallId(calls - 1)), None);
    }
}
