//! Threads that stand by for the threads that commit.
//!
//! A reactor thread that commits by itself waits for the disk, which may hang. Meanwhile its
//! reactor is aside. If the commit takes long, a thread that stands by takes the reactor and serves
//! its clients; the thread that committed stands by when its commit has ended.
//!
//! **Invariants**
//! - Y1: a reactor belongs to the thread that made it or took it; a thread that put it aside takes
//!   it back only if nobody has taken it since.
//! - Y2: a reactor is aside only for a commit of its thread, and at most [`STANDBY_THREADS`] are at any
//!   time. No more commits than that can overlap, and the next one does not begin, so as many
//!   threads that stand by are enough.
//! - Y3: a reactor that stays aside for two intervals of [`LOOK_EVERY`] is taken by a thread that
//!   stands by, unless each of them replaces a thread whose commit has not ended: then the commit of
//!   this reactor's thread cannot begin either.

use crate::clock;
use duramen_backup::FLIGHTS_MAX;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that stand by.
pub(crate) const STANDBY_THREADS: usize = FLIGHTS_MAX;
/// Interval at which a thread that stands by looks for a reactor.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A commit that takes longer shows a slow disk.
const QUICK_MS: u64 = 5;
/// After a slow commit, threads leave commits to the log writer's thread for so long.
const SLOW_FOR_MS: u64 = 1_000;

/// The places of the reactors that are aside; `R` is the reactor.
pub(crate) struct Standby<R> {
    place: Mutex<Place<R>>,
    changed: Condvar,
    slow_until_ms: AtomicU64,
}

struct Place<R> {
    /// The oldest first, each with its number.
    aside: Vec<(u64, R)>,
    /// Number of times that a reactor was put aside.
    count: u64,
    /// Threads that stand by and sleep until a reactor is put aside.
    asleep: usize,
    /// Reactors that have begun and not ended.
    running: usize,
}

/// Proof that a reactor was put aside; shows which time.
pub(super) struct Ticket(u64);

impl<R> Default for Standby<R> {
    fn default() -> Standby<R> {
        Standby {
            place: Mutex::new(Place {
                aside: Vec::new(),
                count: 0,
                asleep: 0,
                running: 0,
            }),
            changed: Condvar::new(),
            slow_until_ms: AtomicU64::new(0),
        }
    }
}

impl<R> Standby<R> {
    fn lock(&self) -> MutexGuard<'_, Place<R>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reactor is going to be run.
    pub(crate) fn begins(&self) {
        self.lock().running += 1;
    }

    /// A reactor has ended, or was never made.
    pub(crate) fn ended(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }

    /// # Errors
    /// The reactor itself: too many others are aside (Y2).
    pub(super) fn put_aside(&self, reactor: R) -> Result<Ticket, R> {
        let mut place = self.lock();
        if place.aside.len() >= STANDBY_THREADS {
            return Err(reactor);
        }
        place.count += 1;
        let number = place.count;
        place.aside.push((number, reactor));
        if place.asleep > 0 {
            self.changed.notify_all();
        }
        Ok(Ticket(number))
    }

    /// None: a thread that stood by has taken it (Y1).
    pub(super) fn take_back(&self, ticket: &Ticket) -> Option<R> {
        let mut place = self.lock();
        let mut aside = place.aside.iter();
        let mine = aside.position(|(number, _)| *number == ticket.0)?;
        Some(place.aside.remove(mine).1)
    }

    /// Waits for a reactor whose thread commits for long (Y3). None: no reactor runs any more.
    pub(crate) fn stand_by(&self) -> Option<R> {
        let mut place = self.lock();
        let mut seen = 0;
        while place.running > 0 {
            let mut aside = place.aside.iter();
            if let Some(late) = aside.position(|(number, _)| *number <= seen) {
                self.note_commit(clock::coarse_ms(), u64::MAX);
                return Some(place.aside.remove(late).1);
            }
            let is_quiet = place.count == seen;
            seen = place.count;
            place = match is_quiet {
                true => {
                    place.asleep += 1;
                    let mut woken = self
                        .changed
                        .wait(place)
                        .unwrap_or_else(PoisonError::into_inner);
                    woken.asleep -= 1;
                    woken
                }
                false => {
                    let waited = self.changed.wait_timeout(place, LOOK_EVERY);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        None
    }

    /// A commit has taken so long.
    pub(super) fn note_commit(&self, now_ms: u64, took_ms: u64) {
        if took_ms > QUICK_MS {
            let until_ms = now_ms + SLOW_FOR_MS;
            self.slow_until_ms.store(until_ms, Ordering::Relaxed);
        }
    }

    /// Whether threads may commit by themselves: the disk was quick lately.
    pub(super) fn may_commit(&self, now_ms: u64) -> bool {
        self.slow_until_ms.load(Ordering::Relaxed) <= now_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn a_reactor_is_taken_back_once_and_by_its_own_ticket() {
        let standby = Standby::default();
        let put = |reactor| standby.put_aside(reactor).expect("a place is free");
        let (first, second) = (put(1), put(2));
        assert_eq!(standby.put_aside(3).err(), Some(3));
        assert_eq!(standby.take_back(&first), Some(1));
        assert_eq!(standby.take_back(&first), None);
        let third = put(3);
        assert_eq!(standby.take_back(&first), None, "that is another reactor");
        assert_eq!(standby.take_back(&third), Some(3));
        assert_eq!(standby.take_back(&second), Some(2));
    }

    /// A disk hung, and with it the thread that committed and all its clients, new ones too.
    #[test]
    fn a_reactor_that_stays_aside_is_taken() {
        let standby = Arc::new(Standby::default());
        standby.begins();
        let other = Arc::clone(&standby);
        let stands_by = thread::spawn(move || (other.stand_by(), other.stand_by()));
        for n in 0..100 {
            let begun = Instant::now();
            let ticket = standby.put_aside(n).expect("the place is free");
            thread::yield_now();
            if standby.take_back(&ticket).is_none() {
                // This thread did not run for so long.
                assert!(begun.elapsed() >= LOOK_EVERY, "it came back at once");
                standby.ended();
                assert_eq!(stands_by.join().expect("no panic"), (Some(n), None));
                return;
            }
        }
        let ticket = standby.put_aside(7).expect("the place is free");
        while !standby.lock().aside.is_empty() {
            thread::yield_now();
        }
        assert_eq!(standby.take_back(&ticket), None);
        standby.ended();
        let taken = stands_by.join().expect("it does not panic");
        assert_eq!(taken, (Some(7), None));
    }

    /// As many commits as overlap hang, and each reactor is served by another thread.
    #[test]
    fn all_reactors_that_stay_aside_are_taken() {
        let standby = Arc::new(Standby::default());
        (0..STANDBY_THREADS).for_each(|_| standby.begins());
        let threads = [(); STANDBY_THREADS].map(|()| {
            let standby = Arc::clone(&standby);
            thread::spawn(move || standby.stand_by())
        });
        let tickets =
            [(); STANDBY_THREADS].map(|()| standby.put_aside(()).expect("a place is free"));
        let taken = threads.map(|thread| thread.join().expect("no panic"));
        assert!(taken.iter().all(Option::is_some));
        for ticket in &tickets {
            assert_eq!(standby.take_back(ticket), None);
        }
    }

    #[test]
    fn after_a_slow_commit_threads_do_not_commit_for_a_while() {
        let standby = Standby::<u32>::default();
        standby.note_commit(10_000, QUICK_MS);
        assert!(standby.may_commit(10_000));
        standby.note_commit(10_000, QUICK_MS + 1);
        assert!(!standby.may_commit(10_999) && standby.may_commit(11_000));
    }
}
