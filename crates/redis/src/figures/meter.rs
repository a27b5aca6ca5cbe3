//! The meter: divides a thread's time among the commands.
//!
//! The clock times a group of requests as a whole: two readings. Inside of the group the time is
//! divided by the processor's time stamp counter. The counter is read where the *command* changes,
//! not for each request: a pipeline of `GET`s costs no reading. Work for all requests before the
//! first one runs (name lookup, key hashes, hints) is divided evenly.
//!
//! **Invariants**
//! - T1: the parts of a group add up to the group's time by the clock. The time of `EXEC` includes
//!   the time of its commands, as in Redis, and the commands have that time too.
//! - T2: on a processor without such a counter the system's clock is read instead.

use duramen_base::ticks::Ticks;
use std::time::Instant;

/// The index of requests that are answered before their command runs.
const NO_COMMAND: usize = usize::MAX;

/// The clock that is read where the command changes (T2).
enum Clock {
    Counter(Ticks),
    System(Instant),
    #[cfg(test)]
    Manual(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    fn detect() -> Clock {
        let ticks = Ticks::detect();
        match ticks.is_tsc() {
            true => Clock::Counter(ticks),
            false => Clock::System(Instant::now()),
        }
    }

    /// A count of ticks of unknown length.
    #[inline]
    fn now(&self) -> u64 {
        match self {
            Clock::Counter(ticks) => ticks.now(),
            Clock::System(origin) => origin.elapsed().as_nanos() as u64,
            #[cfg(test)]
            Clock::Manual(now) => now.load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

pub(crate) struct Meter {
    clock: Clock,
    /// Start of the current measurement.
    since: u64,
    /// Index of the current part in `parts`; None: no request runs yet.
    current: Option<usize>,
    /// Ticks before the first request.
    before: u64,
    /// One per command, in the order in which they first ran.
    parts: Vec<CommandShare>,
}

/// One command's share of the group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CommandShare {
    command: usize,
    requests: u64,
    ticks: u64,
    /// Ticks of other parts that are reported with this one too (T1).
    inner_ticks: u64,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter {
            clock: Clock::detect(),
            since: 0,
            current: None,
            before: 0,
            parts: Vec::new(),
        }
    }

    /// Starts a group.
    pub(crate) fn start(&mut self) {
        self.parts.clear();
        self.current = None;
        self.before = 0;
        self.since = self.clock.now();
    }

    /// Starts to time a request of this command.
    #[inline]
    pub(crate) fn begin(&mut self, command: usize) {
        let current = self.current.and_then(|at| self.parts.get(at));
        if current.is_none_or(|part| part.command != command) {
            self.change(command);
        }
    }

    /// Starts to time a request that may be answered before its command runs.
    #[cold]
    pub(crate) fn begin_none(&mut self) {
        self.begin(NO_COMMAND);
    }

    fn change(&mut self, command: usize) {
        self.lap();
        let at = self.parts.iter().position(|part| part.command == command);
        self.current = Some(at.unwrap_or_else(|| {
            self.parts.push(CommandShare {
                command,
                requests: 0,
                ticks: 0,
                inner_ticks: 0,
            });
            self.parts.len() - 1
        }));
    }

    /// Adds the time since the last call to the current command.
    fn lap(&mut self) {
        let now = self.clock.now();
        let ticks = now.saturating_sub(self.since);
        self.since = now;
        match self.current.and_then(|at| self.parts.get_mut(at)) {
            Some(part) => part.ticks += ticks,
            None => self.before += ticks,
        }
    }

    /// Counts a request that has run.
    #[inline]
    pub(crate) fn ran(&mut self) {
        if let Some(part) = self.current.and_then(|at| self.parts.get_mut(at)) {
            part.requests += 1;
        }
    }

    /// Called before the commands of a transaction; the result is for
    /// [`end_inner`](Self::end_inner) after them.
    pub(crate) fn begin_inner(&mut self) -> u64 {
        self.lap();
        self.since
    }

    /// Adds the time of the commands that ran since `begun` to this command (T1).
    pub(crate) fn end_inner(&mut self, command: usize, begun: u64) {
        self.begin(command);
        let ticks = self.since.saturating_sub(begun);
        if let Some(part) = self.current.and_then(|at| self.parts.get_mut(at)) {
            part.inner_ticks += ticks;
        }
    }

    /// Ends the group, which took `elapsed_ns`. Passes each command's number, the number of its
    /// requests that ran, and their time to `charge`.
    pub(crate) fn end(&mut self, elapsed_ns: u64, mut charge: impl FnMut(usize, u64, u64)) {
        self.lap();
        let ticks = self.before + self.parts.iter().map(|part| part.ticks).sum::<u64>();
        let ns_per_tick = elapsed_ns as f64 / ticks.max(1) as f64;
        let requests: u64 = self.parts.iter().map(|part| part.requests).sum();
        let before = self.before as f64 / requests.max(1) as f64;
        for part in &self.parts {
            let own = (part.ticks + part.inner_ticks) as f64 + before * part.requests as f64;
            if part.command != NO_COMMAND {
                charge(part.command, part.requests, (own * ns_per_tick) as u64);
            }
        }
        self.parts.clear();
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A meter whose clock the test controls.
    fn meter() -> (Meter, Arc<AtomicU64>) {
        let now = Arc::new(AtomicU64::new(1_000));
        let meter = Meter {
            clock: Clock::Manual(Arc::clone(&now)),
            ..Meter::new()
        };
        (meter, now)
    }

    fn run(meter: &mut Meter, now: &AtomicU64, command: usize, ticks: u64) {
        meter.begin(command);
        now.fetch_add(ticks, Ordering::Relaxed);
        meter.ran();
    }

    fn told(meter: &mut Meter, elapsed_ns: u64) -> Vec<(usize, u64, u64)> {
        let mut told = Vec::new();
        let charge = |command, requests, ns| told.push((command, requests, ns));
        meter.end(elapsed_ns, charge);
        told
    }

    /// `usec` was once 0 for all commands that are not slow by nature: they were not timed.
    #[test]
    fn time_goes_to_the_command_that_took_it() {
        let (mut meter, now) = meter();
        meter.start();
        now.fetch_add(40, Ordering::Relaxed); // for all four
        for (command, ticks) in [(7, 10), (7, 20), (9, 1_000), (7, 30)] {
            run(&mut meter, &now, command, ticks);
        }
        // 1,100 ticks of 2 ns.
        assert_eq!(told(&mut meter, 2_200), [(7, 3, 180), (9, 1, 2_020)]);
        assert_eq!(told(&mut meter, 2_200), []);
    }

    #[test]
    fn a_transaction_has_the_time_of_its_commands() {
        let (mut meter, now) = meter();
        meter.start();
        meter.begin(5);
        now.fetch_add(10, Ordering::Relaxed);
        let begun = meter.begin_inner();
        for (command, ticks) in [(1, 100), (2, 20), (1, 30)] {
            run(&mut meter, &now, command, ticks);
        }
        meter.end_inner(5, begun);
        now.fetch_add(40, Ordering::Relaxed);
        meter.ran();
        assert_eq!(
            told(&mut meter, 200),
            [(5, 1, 200), (1, 2, 130), (2, 1, 20)]
        );
    }

    /// Covers a request that is refused, and one that waits for flash and is presented again.
    #[test]
    fn what_does_not_run_counts_for_no_command() {
        let (mut meter, now) = meter();
        meter.start();
        run(&mut meter, &now, 1, 10);
        meter.begin_none();
        now.fetch_add(50, Ordering::Relaxed);
        run(&mut meter, &now, 1, 10);
        meter.begin(3);
        now.fetch_add(30, Ordering::Relaxed); // parked
        assert_eq!(told(&mut meter, 100), [(1, 2, 20), (3, 0, 30)]);
    }

    #[test]
    fn the_clock_of_this_machine_moves() {
        for clock in [Clock::detect(), Clock::System(Instant::now())] {
            let before = clock.now();
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert!(clock.now() > before);
        }
    }
}
