//! Decides when a thread that waits should spin before it sleeps. This file has the policy, whose
//! caller supplies the times, and the right to spin: a process lets fewer threads spin than it has
//! cores.
//!
//! Waking a thread on an idle core costs tens of microseconds; another look costs less than one. So
//! a thread may spin for a bounded time before it sleeps, if its next request came soon after the
//! last one several times in a row. It does not spin:
//! * when many connections are active at once: then waiting makes larger batches, and no client
//!   notices the wake-up;
//! * when spinning was in vain: a failed spin cancels two successes;
//! * when it does not help: both ways are tried in turn, and the mean times until the next request
//!   are compared. If the cores are busy with other work, sleeping costs little: no core is idle,
//!   so none has to wake, and the kernel lets client and server take turns on one core. A spinning
//!   thread uses up its time slice there and may even keep its own client from running. The
//!   comparison detects that.
//!
//! So an idle server sleeps after at most `poll-spin-us`, and uses no CPU.
//!
//! Paper: [Ousterhout15 §5.1] polling; differs: RAMCloud's threads never sleep.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Least score at which spinning is tried.
const SCORE_SPIN: u32 = 2;
const SCORE_MAX: u32 = 16;
/// Connections per round (average) above which sleeping is better than spinning.
const CONNECTIONS_MAX: u32 = 3;
/// Number of distinct connections remembered as active; and the minimum share of rounds, in 256ths,
/// that must be theirs.
const REMEMBERED: usize = 4;
const FAMILIAR_MIN: u32 = 160;
/// Rounds of a trial of the way that is not preferred. The first of them let the scheduler settle
/// and do not count.
const TRIAL_ROUNDS: u32 = 64;
const SETTLE_ROUNDS: u32 = 16;
/// Rounds between trials: few after a change of the preferred way, twice as many each time a trial
/// confirms it.
const PERIOD_ROUNDS_MIN: u32 = 512;
const PERIOD_ROUNDS_MAX: u32 = 16_384;
/// Weight of a new sample in the moving averages: 1/32, half of the samples that count in a trial.
const WEIGHT: u64 = 32;
/// Upper bound of a counted gap: longer ones are pauses of the client.
const GAP_NS_MAX: u64 = 1_000_000;

/// A look takes about a microsecond; if it took this long, another thread ran on the core
/// meanwhile.
const INTERRUPTED: Duration = Duration::from_micros(500);

/// Threads of this process that spin now.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// The right to spin; given back when dropped.
#[derive(Debug)]
pub struct Spinning(());

impl Spinning {
    /// `None`: as many threads of this process spin as it has cores, less one. One core stays free
    /// for other work.
    pub fn begin() -> Option<Spinning> {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores =
            *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        // Relaxed: the number only counts, and orders nothing.
        let right = (SPINNING.fetch_add(1, Ordering::Relaxed) + 1, Spinning(()));
        (right.0 < cores).then_some(right.1)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The ways to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleMode {
    /// Includes a spin in vain that was followed by sleep: the time until the request arrived
    /// counts.
    Spin,
    Sleep,
}

/// Decides between the ways, for one thread that waits.
#[derive(Debug)]
pub struct Spinner {
    score: u32,
    /// Moving average of connections per round, in sixteenths.
    connections: u32,
    /// Connections of the last rounds, and the moving average of the share of their rounds, in
    /// 256ths.
    remembered: [u64; REMEMBERED],
    next: usize,
    familiar: u32,
    preferred: IdleMode,
    /// Rounds since the last trial began.
    rounds: u32,
    period_rounds: u32,
    /// Moving averages of the time until the next request, in nanoseconds; 0 = not known yet.
    spin_gap_ns: u64,
    sleep_gap_ns: u64,
    /// `spin_gap_ns` when the last trial ended.
    judged_gap_ns: u64,
}

impl Default for Spinner {
    fn default() -> Spinner {
        Spinner {
            score: 0,
            connections: 0,
            remembered: [u64::MAX; REMEMBERED],
            next: 0,
            familiar: 0,
            preferred: IdleMode::Sleep,
            // The first trial comes soon.
            rounds: PERIOD_ROUNDS_MIN - TRIAL_ROUNDS,
            period_rounds: PERIOD_ROUNDS_MIN,
            spin_gap_ns: 0,
            sleep_gap_ns: 0,
            judged_gap_ns: 0,
        }
    }
}

impl Spinner {
    /// Whether so few connections are active that spinning can pay.
    pub fn is_candidate(&self) -> bool {
        self.connections <= CONNECTIONS_MAX * 16 && self.familiar >= FAMILIAR_MIN
    }

    /// Whether to spin now, for at most `spin_us`.
    pub fn pays(&mut self, spin_us: u64) -> bool {
        if spin_us == 0 || self.score < SCORE_SPIN || !self.is_candidate() {
            return false;
        }
        self.rounds += 1;
        if self.rounds == TRIAL_ROUNDS {
            self.judge();
        } else if self.rounds >= self.period_rounds || self.has_become_slower() {
            self.rounds = 0;
        }
        (self.preferred == IdleMode::Spin) != (self.rounds < TRIAL_ROUNDS)
    }

    /// Whether spinning is preferred but has become slower: then the next trial comes early.
    fn has_become_slower(&self) -> bool {
        self.preferred == IdleMode::Spin
            && self.rounds >= PERIOD_ROUNDS_MIN
            && self.spin_gap_ns > 2 * self.judged_gap_ns
    }

    /// Ends a trial: chooses the better way.
    fn judge(&mut self) {
        if self.spin_gap_ns == 0 || self.sleep_gap_ns == 0 {
            return; // one of the ways was not tried: other threads had all rights to spin
        }
        // Spinning must be clearly better, because it costs CPU. Waking an idle core at least
        // doubles the gap.
        let better = if self.spin_gap_ns <= self.sleep_gap_ns / 8 * 5 {
            IdleMode::Spin
        } else {
            IdleMode::Sleep
        };
        self.period_rounds = if better == self.preferred {
            (self.period_rounds * 2).min(PERIOD_ROUNDS_MAX)
        } else {
            PERIOD_ROUNDS_MIN
        };
        self.preferred = better;
        self.judged_gap_ns = self.spin_gap_ns;
    }

    /// A round served this many connections; `one` is the number of one of them.
    pub fn round_had(&mut self, connections: usize, one: u64) {
        let sample = (connections as u32).min(1024) * 16;
        self.connections = (self.connections * 7 + sample) / 8;
        let known = self.remembered.contains(&one);
        if !known {
            self.remembered[self.next] = one;
            self.next = (self.next + 1) % REMEMBERED;
        }
        self.familiar = (self.familiar * 15 + if known { 256 } else { 0 }).div_ceil(16);
    }

    /// Work arrived this long after the end of the last round.
    pub fn work_came_after(&mut self, waited: Duration, way: IdleMode, spin_us: u64) {
        let gap_ns = (waited.as_nanos() as u64).min(GAP_NS_MAX);
        if gap_ns / 1_000 <= spin_us {
            self.score = (self.score + 1).min(SCORE_MAX);
        } else {
            self.score = self.score.saturating_sub(1);
        }
        if self.rounds < SETTLE_ROUNDS {
            return;
        }
        let average = match way {
            IdleMode::Spin => &mut self.spin_gap_ns,
            IdleMode::Sleep => &mut self.sleep_gap_ns,
        };
        *average = if *average == 0 {
            gap_ns
        } else {
            (*average * (WEIGHT - 1) + gap_ns) / WEIGHT
        };
    }

    /// One look took this long: if other threads ran on the CPU meanwhile, a trial of spinning ends
    /// here.
    pub fn look_took(&mut self, look: Duration) {
        if look >= INTERRUPTED && self.preferred == IdleMode::Sleep && self.rounds < TRIAL_ROUNDS {
            self.rounds = TRIAL_ROUNDS;
            self.period_rounds = (self.period_rounds * 2).min(PERIOD_ROUNDS_MAX);
        }
    }

    /// Looks again and again until there is something, at most for the stated time.
    pub fn spin<T>(&mut self, longest: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let since = Instant::now();
        let mut before = Duration::ZERO;
        loop {
            let found = look();
            let waited = since.elapsed();
            self.look_took(waited - before);
            before = waited;
            if found.is_some() {
                return found;
            }
            if waited >= longest {
                self.gave_up();
                return None;
            }
        }
    }

    /// A whole spin found no work.
    pub fn gave_up(&mut self) {
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

    /// Runs `rounds` of one client and returns the number of those that spun.
    fn serve(spinner: &mut Spinner, rounds: u32, spinning: Duration, sleeping: Duration) -> u32 {
        let mut spun = 0;
        for _ in 0..rounds {
            spinner.round_had(1, 7);
            if spinner.pays(SPIN_US) {
                spun += 1;
                spinner.work_came_after(spinning, IdleMode::Spin, SPIN_US);
            } else {
                spinner.work_came_after(sleeping, IdleMode::Sleep, SPIN_US);
            }
        }
        spun
    }

    #[test]
    fn spins_on_an_idle_machine() {
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(20), us(50));
        assert!(spun > 9_200, "{spun}");
    }

    #[test]
    fn sleeps_on_a_busy_machine() {
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(300), us(12));
        assert!(spun < 700, "{spun}");
        // Without a gain there is no reason to spin either: spinning costs CPU.
        let mut spinner = Spinner::default();
        let spun = serve(&mut spinner, 10_000, us(10), us(12));
        assert!(spun < 700, "{spun}");
    }

    #[test]
    fn follows_when_the_machine_becomes_idle_and_busy_again() {
        let mut spinner = Spinner::default();
        serve(&mut spinner, 5_000, us(300), us(12));
        serve(&mut spinner, 3 * PERIOD_ROUNDS_MAX, us(7), us(60));
        assert!(serve(&mut spinner, 5_000, us(7), us(60)) > 4_500);
        serve(&mut spinner, 3 * PERIOD_ROUNDS_MIN, us(300), us(12));
        assert!(serve(&mut spinner, 5_000, us(300), us(12)) < 500);
    }

    /// Other threads have all rights to spin, so a trial compares nothing.
    #[test]
    fn a_way_that_was_not_tried_is_not_preferred() {
        let mut spinner = Spinner::default();
        for _ in 0..10_000 {
            spinner.round_had(1, 7);
            spinner.pays(SPIN_US);
            spinner.work_came_after(us(50), IdleMode::Sleep, SPIN_US);
        }
        assert_eq!(spinner.preferred, IdleMode::Sleep);
    }

    #[test]
    fn an_interruption_ends_a_trial() {
        let mut spinner = Spinner::default();
        let mut spun = 0;
        for _ in 0..10_000 {
            spinner.round_had(1, 7);
            if spinner.pays(SPIN_US) {
                spun += 1;
                spinner.look_took(us(4_000));
                spinner.work_came_after(us(4_010), IdleMode::Spin, SPIN_US);
            } else {
                spinner.work_came_after(us(12), IdleMode::Sleep, SPIN_US);
            }
        }
        assert!((1..10).contains(&spun), "{spun}");
    }

    #[test]
    fn stops_when_it_is_in_vain() {
        let mut spinner = Spinner::default();
        serve(&mut spinner, 5_000, us(7), us(60));
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
        serve(&mut spinner, 5_000, us(7), us(60));
        for _ in 0..100 {
            spinner.round_had(20, 7);
        }
        assert!((0..PERIOD_ROUNDS_MAX).all(|_| !spinner.pays(SPIN_US)));
        // One connection per round, but a different one each time.
        for one in 0..1_000 {
            spinner.round_had(1, one % 10);
        }
        assert!((0..PERIOD_ROUNDS_MAX).all(|_| !spinner.pays(SPIN_US)));
        assert!(serve(&mut spinner, 1_000, us(7), us(60)) > 900);
    }
}
