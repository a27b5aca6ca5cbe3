//! The clock of a member; its read leases, and those that it grants, are counted on it.
//!
//! **Invariants**
//! - C1: the clock continues while the system is suspended (`CLOCK_BOOTTIME`). `CLOCK_MONOTONIC`
//!   stands still meanwhile. With that clock, a master that was suspended would continue to read
//!   under a lease that has ended for its holders, after another server became the owner.
//! - C2: the clock never goes back, whatever happens to the wall clock.
//!
//! A virtual machine can be halted from outside, with its clocks, and continue later. No clock of
//! the machine shows that; leases are wrong afterwards (docs/operations.md, Suspended machines).
//!
//! **Concurrency**: each thread has a copy; the system's clock is the same for all threads.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The system's clock that continues while the system is suspended (C1).
const CLOCK: ClockId = ClockId::Boottime;

/// A clock in microseconds since its own start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    pub fn start() -> Clock {
        Clock { origin: read() }
    }

    pub fn now_us(&self) -> u64 {
        read().saturating_sub(self.origin).as_micros() as u64
    }

    /// The time from now until `at_us`.
    pub fn until(&self, at_us: u64) -> Duration {
        Duration::from_micros(at_us.saturating_sub(self.now_us()))
    }
}

fn read() -> Duration {
    let time = clock_gettime(CLOCK);
    // The time since the system's start is never negative.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Tells a copy of this test that it was suspended.
    const SUSPENDED: &str = "DURAMEN_TEST_SUSPENDED";
    const SUSPENDED_S: u64 = 100_000;

    /// A virtual machine was suspended and continued: its master considered its read lease valid,
    /// although it had ended long before. Here the copy runs in a time namespace, whose clocks
    /// differ as they do after a suspension of this many seconds.
    #[test]
    fn it_counts_the_time_of_a_suspension() {
        let monotonic = clock_gettime(ClockId::Monotonic).tv_sec as u64;
        let ahead_s = read().as_secs().saturating_sub(monotonic);
        if std::env::var_os(SUSPENDED).is_some() {
            assert!(ahead_s >= SUSPENDED_S, "C1: it is {ahead_s} s ahead");
            return;
        }
        let name = "membership::clock::tests::it_counts_the_time_of_a_suspension";
        let mut copy = Command::new("unshare");
        copy.args(["--user", "--time", "--boottime", &SUSPENDED_S.to_string()])
            .args(["--fork", "--"])
            .arg(std::env::current_exe().expect("this test"))
            .args(["--exact", name])
            .env(SUSPENDED, "1");
        let ended = copy.output();
        let Ok(output) = &ended else {
            return println!("no `unshare` here: {ended:?}");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("unshare:") {
            return println!("no time namespaces here: {said}");
        }
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            told.contains("1 passed") || told.contains("C1"),
            "{told} {said}"
        );
        assert!(output.status.success(), "{told}");
    }

    #[test]
    fn it_goes_on_from_its_start() {
        let clock = Clock::start();
        let first_us = clock.now_us();
        assert!(clock.now_us() >= first_us);
        assert_eq!(clock.until(first_us), Duration::ZERO);
        assert!(clock.until(u64::MAX) > Duration::from_secs(1));
    }
}
