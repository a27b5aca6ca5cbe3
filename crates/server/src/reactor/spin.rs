//! When spinning pays: pure policy, no clock of its own.
//!
//! Waking a sleeping thread costs tens of microseconds; looking again costs less than one. So a thread that has had its
//! next request soon after the last one, several times in a row, looks again for a bounded time before it sleeps. It does not:
//! * when many connections are active at once: then waiting makes larger batches, and nobody waits for the wake-up;
//! * when looking has been in vain: a failed spin takes back what two successes earned;
//! * for a while after the kernel took the CPU away while it spun: somebody else needs it more.
//!
//! An idle server therefore sleeps after at most `poll-spin-us`, and uses no CPU.

use std::time::{Duration, Instant};

/// Score from which spinning is tried.
const SCORE_SPIN: u32 = 2;
const SCORE_MAX: u32 = 16;
/// Connections per round (average) above which waiting is better than looking.
const CONNECTIONS_MAX: u32 = 3;
/// One look takes about a microsecond; one that took this long was interrupted by another thread's turn.
const PREEMPTED: Duration = Duration::from_micros(300);
const BACK_OFF_MIN: Duration = Duration::from_millis(5);
const BACK_OFF_MAX: Duration = Duration::from_millis(320);

pub(super) struct Spinner {
    cores: usize,
    score: u32,
    /// Moving average of connections per round, in sixteenths.
    connections: u32,
    back_off: Duration,
    not_before: Option<Instant>,
}

impl Spinner {
    pub(super) fn new(cores: usize) -> Spinner {
        Spinner {
            cores,
            score: 0,
            connections: 0,
            back_off: BACK_OFF_MIN,
            not_before: None,
        }
    }

    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// Whether to spin now, for at most `spin_us`.
    pub(super) fn pays(&self, spin_us: u64) -> bool {
        spin_us > 0
            && self.score >= SCORE_SPIN
            && self.connections <= CONNECTIONS_MAX * 16
            && self
                .not_before
                .is_none_or(|not_before| Instant::now() >= not_before)
    }

    /// A round served this many connections.
    pub(super) fn round_had(&mut self, connections: usize) {
        let sample = (connections as u32).min(1024) * 16;
        self.connections = (self.connections * 7 + sample) / 8;
    }

    /// Work came this long after the last round ended, spinning or sleeping.
    pub(super) fn work_came_after(&mut self, waited: Duration, spin_us: u64) {
        if waited.as_micros() as u64 <= spin_us {
            self.score = (self.score + 1).min(SCORE_MAX);
            if self.score == SCORE_MAX {
                self.back_off = BACK_OFF_MIN;
            }
        } else {
            self.score = self.score.saturating_sub(1);
        }
    }

    /// A whole spin found nothing.
    pub(super) fn gave_up(&mut self) {
        self.score = self.score.saturating_sub(2);
    }

    /// Whether one look that took `look` shows that another thread had the CPU meanwhile.
    pub(super) fn was_preempted(&mut self, look: Duration, now: Instant) -> bool {
        if look < PREEMPTED {
            return false;
        }
        self.not_before = Some(now + self.back_off);
        self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN_US: u64 = 100;
    const SOON: Duration = Duration::from_micros(20);
    const LATE: Duration = Duration::from_millis(20);

    #[test]
    fn spins_after_a_few_quick_requests_and_stops_when_it_is_in_vain() {
        let mut spinner = Spinner::new(2);
        assert!(!spinner.pays(SPIN_US));
        for _ in 0..100 {
            spinner.round_had(1);
            spinner.work_came_after(SOON, SPIN_US);
        }
        assert!(spinner.pays(SPIN_US));
        assert!(!spinner.pays(0));
        let mut failures = 0;
        while spinner.pays(SPIN_US) {
            spinner.gave_up();
            failures += 1;
        }
        assert!(failures <= 8, "{failures}");
        spinner.work_came_after(SOON, SPIN_US);
        spinner.work_came_after(SOON, SPIN_US);
        assert!(spinner.pays(SPIN_US));
    }

    #[test]
    fn rare_requests_never_make_it_spin() {
        let mut spinner = Spinner::new(2);
        for _ in 0..100 {
            spinner.round_had(1);
            spinner.work_came_after(LATE, SPIN_US);
            assert!(!spinner.pays(SPIN_US));
        }
    }

    #[test]
    fn many_active_connections_sleep() {
        let mut spinner = Spinner::new(2);
        for _ in 0..100 {
            spinner.round_had(20);
            spinner.work_came_after(SOON, SPIN_US);
        }
        assert!(!spinner.pays(SPIN_US));
        for _ in 0..100 {
            spinner.round_had(1);
        }
        assert!(spinner.pays(SPIN_US));
    }

    #[test]
    fn leaves_the_cpu_to_others_for_longer_each_time() {
        let mut spinner = Spinner::new(2);
        for _ in 0..SCORE_MAX {
            spinner.work_came_after(SOON, SPIN_US);
        }
        let now = Instant::now();
        assert!(!spinner.was_preempted(SOON, now));
        assert!(spinner.pays(SPIN_US));
        assert!(spinner.was_preempted(LATE, now));
        assert_eq!(spinner.not_before, Some(now + BACK_OFF_MIN));
        assert!(spinner.was_preempted(LATE, now));
        assert_eq!(spinner.not_before, Some(now + BACK_OFF_MIN * 2));
    }
}
