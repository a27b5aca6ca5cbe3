//! The hub's timers. No timer is cancelled: one that is not needed any more does nothing when it is
//! due.

use crate::connection::ConnectionId;
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Connection(ConnectionId),
    Link(usize),
    Lookup(usize),
    Accept,
    Sweep,
}

#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Instant, Timer)>>);

impl Timers {
    pub fn set(&mut self, at: Instant, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    /// The timeout of a wait: the time until the next timer is due, at most `wanted`.
    pub fn timeout(&self, wanted: Option<Duration>, now: Instant) -> Option<Timespec> {
        let next = self.0.peek().map(|Reverse((at, _))| {
            let left = at.saturating_duration_since(now);
            left + Duration::from_micros(50)
        });
        let least = wanted.into_iter().chain(next).min();
        least.and_then(|least| Timespec::try_from(least).ok())
    }

    /// Takes one that is due.
    pub fn take_due(&mut self, now: Instant) -> Option<(Instant, Timer)> {
        let Reverse((at, _)) = self.0.peek()?;
        if *at > now {
            return None;
        }
        self.0.pop().map(|Reverse(due)| due)
    }
}
