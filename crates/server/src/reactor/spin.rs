//! When spinning pays: pure policy, told about time by its caller.
//!
//! Waking a thread on an idle core costs tens of microseconds; looking again costs less than one. So a thread whose next
//! request has come soon after the last one, several times in a row, may look again for a bounded time before it sleeps.
//! It does not:
//! * when many connections are active at once: then waiting makes larger batches, and nobody waits for the wake-up;
//! * when looking has been in vain: a failed spin takes back what two successes earned;
//! * when it does not help: both ways are tried in turn and the time until the next request is compared. On a machine
//!   whose cores are busy with other work, sleeping costs nothing (no core is idle, nothing has to wake) while a spinning
//!   thread uses up its time slice; the comparison finds that out.
//!
//! An idle server therefore sleeps after at most `poll-spin-us`, and uses no CPU.

use std::time::Duration;

/// Score from which spinning is tried.
const SCORE_SPIN: u32 = 2;
const SCORE_MAX: u32 = 16;
/// Connections per round (average) above which waiting is better than looking.
const CONNECTIONS_MAX: u32 = 3;
/// Of this many rounds the last [`TRIAL_ROUNDS`] go the way that seems worse, to see whether it still is.
const PERIOD_ROUNDS: u32 = 512;
const TRIAL_ROUNDS: u32 = 16;
/// Weight of a new sample in the moving averages: 1/16, a trial long.
const WEIGHT: u64 = 16;
/// Longer gaps are pauses of the client, not costs of waiting.
const GAP_NS_MAX: u64 = 10_000_000;

/// A way of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Spin,
    Sleep,
}

#[derive(Default)]
pub(super) struct Spinner {
    score: u32,
    /// Moving average of connections per round, in sixteenths.
    connections: u32,
    rounds: u32,
    /// Moving averages of the time until the next request, in nanoseconds; 0 = not known yet.
    spin_gap_ns: u64,
    sleep_gap_ns: u64,
}

impl Spinner {
    /// Whether to spin now, for at most `spin_us`.
    pub(super) fn pays(&mut self, spin_us: u64) -> bool {
        if spin_us == 0 || self.score < SCORE_SPIN || self.connections > CONNECTIONS_MAX * 16 {
            return false;
        }
        self.rounds = (self.rounds + 1) % PERIOD_ROUNDS;
        // A quarter better at least: it costs CPU.
        let better = self.spin_gap_ns <= self.sleep_gap_ns / 4 * 3;
        let trial = self.rounds >= PERIOD_ROUNDS - TRIAL_ROUNDS;
        better != trial
    }

    /// A round served this many connections.
    pub(super) fn round_had(&mut self, connections: usize) {
        let sample = (connections as u32).min(1024) * 16;
        self.connections = (self.connections * 7 + sample) / 8;
    }

    /// Work came this long after the last round ended.
    pub(super) fn work_came_after(&mut self, waited: Duration, way: Way, spin_us: u64) {
        let gap_ns = waited.as_nanos() as u64;
        if gap_ns > GAP_NS_MAX {
            self.score = self.score.saturating_sub(1);
            return;
        }
        let average = match way {
            Way::Spin => &mut self.spin_gap_ns,
            Way::Sleep => &mut self.sleep_gap_ns,
        };
        *average = if *average == 0 {
            gap_ns
        } else {
            (*average * (WEIGHT - 1) + gap_ns) / WEIGHT
        };
        if gap_ns / 1_000 <= spin_us {
            self.score = (self.score + 1).min(SCORE_MAX);
        } else {
            self.score = self.score.saturating_sub(1);
        }
    }

    /// A whole spin found nothing.
    pub(super) fn gave_up(&mut self) {
        self.score = self.score.saturating_sub(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN_US: u64 = 100;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Runs `rounds` of one client and returns how many of them spun.
    fn serve(spinner: &mut Spinner, rounds: u32, spinning: Duration, sleeping: Duration) -> u32 {
        let mut spun = 0;
        for _ in 0..rounds {
            spinner.round_had(1);
            if spinner.pays(SPIN_US) {
                spun += 1;
                spinner.work_came_after(spinning, Way::Spin, SPIN_US);
            } else {
                spinner.work_came_after(sleeping, Way::Sleep, SPIN_US);
            }
        }
        spun
    }

    #[test]
    fn spins_on_an_idle_machine() {
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(7), us(60));
        assert!(spun > 9_500, "{spun}");
    }

    #[test]
    fn sleeps_on_a_busy_machine() {
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(300), us(12));
        assert!(spun < 500, "{spun}");
        // No gain is no reason either: spinning costs CPU.
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(10), us(12));
        assert!(spun < 700, "{spun}");
    }

    #[test]
    fn follows_when_the_machine_becomes_idle_and_busy_again() {
        let mut spinner = Spinner::default();
        serve(&mut spinner, 5_000, us(300), us(12));
        serve(&mut spinner, 5_000, us(7), us(60));
        assert!(serve(&mut spinner, 5_000, us(7), us(60)) > 4_700);
        serve(&mut spinner, 5_000, us(300), us(12));
        assert!(serve(&mut spinner, 5_000, us(300), us(12)) < 300);
    }

    #[test]
    fn stops_when_it_is_in_vain() {
        let mut spinner = Spinner::default();
        serve(&mut spinner, 1_000, us(7), us(60));
        let mut failures = 0;
        for _ in 0..1_000 {
            if spinner.pays(SPIN_US) {
                spinner.gave_up();
                failures += 1;
            }
        }
        assert!(failures <= 8, "{failures}");
        assert!(serve(&mut spinner, 100, us(7), us(60)) > 50);
    }

    #[test]
    fn rare_requests_never_make_it_spin() {
        let mut spinner = Spinner::default();
        assert_eq!(serve(&mut spinner, 1_000, us(20_000), us(20_000)), 0);
        assert!(!spinner.pays(0));
    }

    #[test]
    fn many_active_connections_sleep() {
        let mut spinner = Spinner::default();
        serve(&mut spinner, 1_000, us(7), us(60));
        for _ in 0..100 {
            spinner.round_had(20);
        }
        assert!((0..PERIOD_ROUNDS).all(|_| !spinner.pays(SPIN_US)));
        assert!(serve(&mut spinner, 1_000, us(7), us(60)) > 900);
    }
}
