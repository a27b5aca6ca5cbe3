//! A thread that stands by for the threads that commit.
//!
//! A reactor thread that commits by itself waits for the disk, which may hang. Meanwhile its
//! reactor is aside. If the commit takes long, the thread that stands by takes the reactor and
//! serves its clients; the thread that committed stands by when its commit has ended.
//!
//! **Invariants**
//! - Y1: a reactor belongs to the thread that made it or took it; a thread that put it aside takes
//!   it back only if nobody has taken it since.
//! - Y2: one reactor is aside at any time, and only for a commit of its thread. Commits exclude
//!   each other, so one thread that stands by is enough.
//! - Y3: a reactor that stays aside for two intervals of [`LOOK_EVERY`] is taken by the thread that
//!   stands by, if there is one. There is none while it serves in place of a thread whose commit
//!   has not ended; until then the commit of this reactor's thread cannot begin either.

use duramen_config::clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval at which the thread that stands by looks for a reactor.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A commit that takes longer shows a slow disk.
const QUICK_MS: u64 = 5;
/// After a slow commit, threads leave commits to the log writer's thread for so long.
const SLOW_FOR_MS: u64 = 1_000;

/// The place of the reactor that is aside; `R` is the reactor.
pub(crate) struct Standby<R> {
    place: Mutex<Place<R>>,
    changed: Condvar,
    slow_until_ms: AtomicU64,
}

struct Place<R> {
    aside: Option<R>,
    /// Number of times that a reactor was put aside.
    count: u64,
    /// Whether the thread that stands by sleeps until a reactor is put aside.
    is_asleep: bool,
    /// Reactors that have begun and not ended.
    running: usize,
}

/// Proof that a reactor was put aside, with the number of that time.
pub(super) struct Ticket(u64);

impl<R> Default for Standby<R> {
    fn default() -> Standby<R> {
        Standby {
            place: Mutex::new(Place {
                aside: None,
                count: 0,
                is_asleep: false,
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
    /// The reactor itself: another one is aside (Y2).
    pub(super) fn put_aside(&self, reactor: R) -> Result<Ticket, R> {
        let mut place = self.lock();
        if place.aside.is_some() {
            return Err(reactor);
        }
        place.aside = Some(reactor);
        place.count += 1;
        let ticket = Ticket(place.count);
        if place.is_asleep {
            self.changed.notify_all();
        }
        Ok(ticket)
    }

    /// Takes the reactor back; `None` if the thread that stood by has taken it (Y1).
    pub(super) fn take_back(&self, ticket: &Ticket) -> Option<R> {
        let mut place = self.lock();
        let is_mine = place.count == ticket.0;
        place.aside.take_if(|_| is_mine)
    }

    /// Waits for a reactor whose thread commits for long (Y3); `None` if no reactor runs any more.
    pub(crate) fn stand_by(&self) -> Option<R> {
        let mut place = self.lock();
        let mut seen = 0;
        while place.running > 0 {
            let is_same = place.count == seen;
            if is_same && place.aside.is_some() {
                self.note_commit(clock::coarse_ms(), u64::MAX);
                return place.aside.take();
            }
            seen = place.count;
            place.is_asleep = is_same;
            place = match is_same {
                true => self
                    .changed
                    .wait(place)
                    .unwrap_or_else(PoisonError::into_inner),
                false => {
                    let waited = self.changed.wait_timeout(place, LOOK_EVERY);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            place.is_asleep = false;
        }
        None
    }

    /// Notes that a commit has taken `took_ms`.
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
        let first = standby.put_aside(1).expect("the place is free");
        assert_eq!(standby.put_aside(2).err(), Some(2));
        assert_eq!(standby.take_back(&first), Some(1));
        assert_eq!(standby.take_back(&first), None);
        let second = standby.put_aside(2).expect("the place is free again");
        assert_eq!(standby.take_back(&first), None, "that is another reactor");
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
        while standby.lock().aside.is_some() {
            thread::yield_now();
        }
        assert_eq!(standby.take_back(&ticket), None);
        standby.ended();
        let taken = stands_by.join().expect("it does not panic");
        assert_eq!(taken, (Some(7), None));
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
