//! The pace of a thread: how long the turn of one client takes, and how old a guard becomes.
//!
//! **Invariants**
//! - P1: a turn ends after the request in which its time is over, whatever the request is. The
//!   turns of other clients go on.
//! - P2: a guard of a group ends after the request in which it has become `GUARD_TIME` old: an
//!   older one keeps memory from all writers, and the store's door from a session that wants to be
//!   alone.
//! - P3: the clock is read when the session has met `LOOK_EVERY_BYTES` since the last reading. A
//!   request that works long and meets little adds its work (`Thread::work`).
//! - P4: the time of a turn is processor time. The clock says when that has to be read.

use duramen_base::planted::{Bug, has_bug};
use duramen_config::clock;
use std::time::{Duration, Instant};

/// The time of all turns of a round. A turn ends after the request in which its part of the time is
/// over (P1), and its other requests are presented again in the next round.
pub const TURN_TIME: Duration = Duration::from_millis(4);
/// Some 20 µs of work; a reading of the clock is nothing beside it.
const LOOK_EVERY_BYTES: u64 = 4 << 10;
/// The least time of a turn: a group of small requests takes less.
const SLICE_MIN: Duration = Duration::from_micros(200);
/// The age at which a guard ends (P2).
const GUARD_TIME: Duration = Duration::from_millis(2);

/// A reading of the clock and of the thread's processor time.
pub trait Clock {
    fn now(&mut self) -> Instant;
    /// A system call.
    fn used(&mut self) -> Duration;
}

pub struct System;

impl Clock for System {
    fn now(&mut self) -> Instant {
        Instant::now()
    }

    fn used(&mut self) -> Duration {
        clock::thread_time()
    }
}

/// The result of a look at the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub turn_is_over: bool,
    pub guard_is_old: bool,
}

pub struct Pace<C = System> {
    clock: C,
    /// [`TURN_TIME`], except in tests that expect a whole turn to run.
    turn_time: Duration,
    /// The number of turns of this round, as far as it is known before the round.
    crowd: usize,
    /// The time of each turn of this round, and the number of the present turn.
    slice: Duration,
    turn: Option<u32>,
    /// The last reading, and the work that the session had done by then.
    now: Instant,
    work: u64,
    /// The processor time when it was last read in this turn, and the time of that reading.
    used: Option<(Duration, Instant)>,
    /// The start of the time of the present turn, and the start of the guard.
    since: Instant,
    pinned: Instant,
}

impl<C: Clock> Pace<C> {
    pub fn new(turn_time: Duration, mut clock: C) -> Pace<C> {
        let now = clock.now();
        Pace {
            clock,
            turn_time,
            crowd: 0,
            slice: turn_time,
            turn: None,
            now,
            work: 0,
            used: None,
            since: now,
            pinned: now,
        }
    }

    /// A round of the thread begins, with about so many turns.
    pub fn begin_round(&mut self, turns: usize) {
        self.crowd = turns;
    }

    /// A part of a round begins, with so many turns: all turns of the round share its time,
    /// whatever the number of its parts.
    pub fn begin_part(&mut self, turns: usize) {
        let turns = turns.max(self.crowd).max(1);
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        self.slice = (self.turn_time / turns).max(SLICE_MIN.min(self.turn_time));
        self.turn = None;
    }

    /// A guard begins now; `work`: what the session has done so far.
    pub fn begin_guard(&mut self, now: Instant, work: u64) {
        (self.now, self.work, self.pinned) = (now, work, now);
    }

    /// The time of the last reading.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The requests that follow are of this turn, which may have begun in an earlier group.
    pub fn begin_turn(&mut self, turn: u32, work: u64) {
        if self.turn.replace(turn) == Some(turn) {
            return;
        }
        // If less work was done, the last reading is a few microseconds old.
        if work - self.work >= LOOK_EVERY_BYTES / 8 {
            self.read(work);
        }
        (self.since, self.used) = (self.now, None);
    }

    /// Whether the clock is to be read (P3).
    #[inline(always)]
    pub fn is_due(&self, work: u64) -> bool {
        work - self.work >= LOOK_EVERY_BYTES
    }

    #[cold]
    pub fn look(&mut self, work: u64) -> Look {
        self.read(work);
        Look {
            turn_is_over: self.is_over() && !has_bug(Bug::TurnsHaveNoEnd),
            guard_is_old: self.now - self.pinned >= GUARD_TIME,
        }
    }

    fn read(&mut self, work: u64) {
        self.now = self.clock.now();
        self.work = work;
    }

    /// Whether the time of the present turn is over (P4). The processor time is read for the first
    /// time when the turn has taken a part of its time by the clock: short turns do without.
    fn is_over(&mut self) -> bool {
        let passed = self.now - self.since;
        if passed < self.slice / 4 {
            return false;
        }
        let Some((before, at)) = self.used else {
            self.used = Some((self.clock.used(), self.now));
            return passed >= self.slice;
        };
        if passed < self.slice {
            return false;
        }
        let used = self.clock.used();
        self.used = Some((used, self.now));
        let spent = (at - self.since) + used.saturating_sub(before);
        if spent >= self.slice {
            return true;
        }
        // The thread waited for a processor meanwhile.
        self.since = self.now.checked_sub(spent).unwrap_or(self.now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[derive(Clone)]
    struct Manual {
        start: Instant,
        passed: Rc<Cell<Duration>>,
        used: Rc<Cell<Duration>>,
    }

    impl Manual {
        /// The thread works for this time, and waits for a processor for that time.
        fn pass(&self, works: Duration, waits: Duration) {
            self.passed.set(self.passed.get() + works + waits);
            self.used.set(self.used.get() + works);
        }
    }

    impl Clock for Manual {
        fn now(&mut self) -> Instant {
            self.start + self.passed.get()
        }

        fn used(&mut self) -> Duration {
            self.used.get()
        }
    }

    const TURN: Duration = Duration::from_millis(4);
    const NONE: Duration = Duration::ZERO;

    fn pace() -> (Pace<Manual>, Manual) {
        let clock = Manual {
            start: Instant::now(),
            passed: Rc::default(),
            used: Rc::default(),
        };
        let mut pace = Pace::new(TURN, clock.clone());
        pace.begin_part(1);
        pace.begin_guard(clock.clone().now(), 0);
        pace.begin_turn(0, 0);
        (pace, clock)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_turn_ends_when_it_has_used_its_time() {
        let (mut pace, clock) = pace();
        assert!(!pace.is_due(LOOK_EVERY_BYTES - 1) && pace.is_due(LOOK_EVERY_BYTES));
        clock.pass(ms(1), NONE);
        assert_eq!(pace.look(1), Look::default());
        clock.pass(ms(1), NONE);
        let old = Look {
            guard_is_old: true,
            ..Look::default()
        };
        assert_eq!(pace.look(2), old);
        pace.begin_guard(clock.clone().now(), 3);
        // The thread waited for a processor for 9 ms: the turn has 2 ms left, and its guard is old.
        clock.pass(ms(1), ms(9));
        assert_eq!(pace.look(4), old);
        pace.begin_guard(clock.clone().now(), 5);
        clock.pass(ms(1), NONE);
        assert!(pace.look(6).turn_is_over);
        // The next turn has its own time.
        pace.begin_turn(1, 10_000);
        pace.begin_guard(clock.clone().now(), 10_000);
        clock.pass(ms(1), NONE);
        assert_eq!(pace.look(10_001), Look::default());
    }

    #[test]
    fn turns_share_the_time_of_a_round() {
        let (mut pace, clock) = pace();
        pace.begin_part(4);
        pace.begin_turn(0, 0);
        clock.pass(Duration::from_micros(900), NONE);
        assert!(!pace.look(1).turn_is_over);
        clock.pass(Duration::from_micros(100), NONE);
        assert!(pace.look(2).turn_is_over);
        pace.begin_round(8);
        for _ in 0..2 {
            pace.begin_part(4); // another four are in the next part
            assert_eq!(pace.slice, TURN / 8);
        }
        pace.begin_part(1_000);
        assert_eq!(pace.slice, SLICE_MIN);
    }
}
