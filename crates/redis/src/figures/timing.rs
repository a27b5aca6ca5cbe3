//! The time of a thread's commands. It is divided among the commands of a group, and compared with
//! the limits from which on a command is recorded.

use super::counters::CommandCounters;
use super::meter::Meter;
use duramen_config::ServerConfig;
use std::time::{Duration, Instant};

/// See the head of this file.
pub(crate) struct Timing {
    /// Divides the group's time among commands, and the start of that time.
    meter: Meter,
    since: Instant,
    /// Time of the group's commands that the slow log timed one by one.
    timed_ns: u64,
    slow_us: i64,
    /// The time from which on `LATENCY` records a command, and the shorter of this time and the
    /// limit of the slow log.
    event_from: Duration,
    noted_from: Duration,
}

impl Timing {
    pub(crate) fn new() -> Timing {
        Timing {
            meter: Meter::new(),
            since: Instant::now(),
            timed_ns: 0,
            slow_us: i64::MAX,
            event_from: Duration::MAX,
            noted_from: Duration::MAX,
        }
    }

    /// A group begins.
    pub(crate) fn begin(&mut self, config: &ServerConfig, now: Instant) {
        self.slow_us = match config.slow.log_slower_than_us {
            off if off < 0 => i64::MAX,
            limit_us => limit_us,
        };
        self.event_from = match config.slow.event_ms {
            0 => Duration::MAX,
            ms => Duration::from_millis(ms),
        };
        self.noted_from = self
            .event_from
            .min(Duration::from_micros(self.slow_us.unsigned_abs()));
        self.since = now;
        self.meter.start();
    }

    /// The group ends: counts the time of its commands.
    pub(crate) fn end(&mut self, commands: &[CommandCounters], now: Instant) {
        let elapsed_ns = now.duration_since(self.since).as_nanos() as u64;
        self.meter.end(elapsed_ns, |number, requests, ns| {
            if let Some(command) = commands.get(number) {
                let times = command.times.get_or_init(Box::default);
                times.record_all(ns, requests);
            }
        });
    }

    /// For a command that reports or resets counters: counts the requests before it in its group.
    pub(crate) fn count_up_to_now(&mut self, commands: &[CommandCounters], command: usize) {
        let now = Instant::now();
        self.end(commands, now);
        self.since = now;
        self.meter.start();
        self.meter.begin(command);
    }

    /// Which command runs now.
    #[inline]
    pub(crate) fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// A command was timed by itself.
    pub(crate) fn note_timed(&mut self, took: Duration) {
        self.timed_ns += took.as_nanos() as u64;
    }

    /// Takes the time of the commands that were timed by themselves.
    pub(crate) fn take_timed_ns(&mut self) -> u64 {
        std::mem::take(&mut self.timed_ns)
    }

    /// Limit of the slow log in microseconds, `i64::MAX` = off.
    #[inline]
    pub(crate) fn slow_us(&self) -> i64 {
        self.slow_us
    }

    /// The time from which on `LATENCY` records a command; [`Duration::MAX`] = never.
    pub(crate) fn event_from(&self) -> Duration {
        self.event_from
    }

    /// The time from which on a command is recorded, by the slow log or by `LATENCY`.
    #[inline]
    pub(crate) fn noted_from(&self) -> Duration {
        self.noted_from
    }
}
