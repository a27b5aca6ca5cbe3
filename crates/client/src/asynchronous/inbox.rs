//! The way of operations from their callers to the driver, and the limit of operations in flight.
//!
//! An operation takes room when it is called and gives it back when it has ended. If there is no
//! room, it waits in the order of the calls. A waiting operation belongs to its future: it leaves
//! when that is dropped, so the waiting room never has more than its callers hold.
//!
//! **Invariants**
//! - I1: at most `in_flight_max` operations are in flight, with at most `in_flight_bytes_max`
//!   bytes; a single operation may have more bytes if it is alone.
//! - I2: a driver that sleeps is woken by the first operation, address or end that comes.
//! - I3: after [`Inbox::close`] nothing is taken any more, and nothing stays inside.

use super::pending::{Call, Slot};
use super::work::OwnedWork;
use crate::error::Error;
use crate::options::Options;
use duramen_base::origin::Origin;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses of a lane's host name.
pub(super) type Resolved = (usize, Result<Vec<SocketAddr>, String>);

/// The driver may sleep until the bell rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleep {
    /// When the first waiting operation was called.
    pub waiting_since_us: Option<u64>,
}

/// Operations and bytes, in flight or no longer so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub calls: usize,
    pub bytes: usize,
}

#[derive(Debug)]
pub(super) struct Inbox {
    origin: Origin,
    zero: Instant,
    deadline: Duration,
    max: Load,
    /// Rung when the driver sleeps and has something to do (I2).
    bell: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    resolved: Vec<Resolved>,
    /// Operations without room, by ticket.
    waiting: BTreeMap<u64, Call>,
    tickets: u64,
    /// Operations that have room.
    load: Load,
    is_asleep: bool,
    closed: Option<&'static str>,
}

impl State {
    fn has_room(&self, bytes: usize, max: Load) -> bool {
        let fits = self.load.bytes.saturating_add(bytes) <= max.bytes;
        self.load.calls == 0 || (fits && self.load.calls < max.calls)
    }

    /// Takes an operation, or gives it a ticket for the waiting room.
    fn admit(&mut self, call: Call, max: Load) -> Option<u64> {
        if self.waiting.is_empty() && self.has_room(call.bytes(), max) {
            self.take(call);
            return None;
        }
        self.tickets += 1;
        self.waiting.insert(self.tickets, call);
        Some(self.tickets)
    }

    fn take(&mut self, call: Call) {
        self.load.calls += 1;
        self.load.bytes += call.bytes();
        self.calls.push(call);
    }
}

/// The contents of an inbox.
#[derive(Debug, Default)]
pub(super) struct News {
    pub calls: Vec<Call>,
    pub resolved: Vec<Resolved>,
    pub is_closed: bool,
}

impl Inbox {
    pub fn new(options: &Options) -> std::io::Result<Inbox> {
        Ok(Inbox {
            origin: Origin::here(),
            zero: Instant::now(),
            deadline: options.deadline,
            max: Load {
                calls: options.in_flight_max,
                bytes: options.in_flight_bytes_max,
            },
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::default(),
        })
    }

    /// Microseconds since the client was made.
    pub fn now_us(&self) -> u64 {
        self.zero.elapsed().as_micros() as u64
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub fn is_inherited(&self) -> bool {
        self.origin.is_inherited()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of an operation whose result is lost with the client.
    pub fn lost(&self, may_be_done: bool) -> Error {
        let why = if self.is_inherited() {
            "this process was forked from the client's"
        } else {
            self.state().closed.unwrap_or("its thread has ended")
        };
        if may_be_done {
            Error::OutcomeUnknown {
                deadline: self.deadline,
                last: format!("the client has ended: {why}"),
            }
        } else {
            Error::Closed(why)
        }
    }

    /// As [`call`](Self::call), with one operation.
    pub fn call_one(&self, work: OwnedWork) -> (Arc<Slot>, Option<u64>) {
        if self.is_inherited() {
            return (Slot::lost(), None);
        }
        let slot = Slot::in_flight();
        let call = Call::new(work, self.now_us(), slot.clone());
        let mut state = self.state();
        if state.closed.is_some() {
            drop(state); // the call is dropped after the lock, and so ends (pending::P1)
            return (slot, None);
        }
        let ticket = state.admit(call, self.max);
        let wakes = ticket.is_none() && std::mem::take(&mut state.is_asleep);
        drop(state);
        self.ring(wakes);
        (slot, ticket)
    }

    /// Puts operations in flight; returns their slots, and a ticket for each that has to wait.
    pub fn call(&self, works: impl Iterator<Item = OwnedWork>) -> Vec<(Arc<Slot>, Option<u64>)> {
        if self.is_inherited() {
            return works.map(|_| (Slot::lost(), None)).collect();
        }
        let begun_us = self.now_us();
        let calls = works.map(|work| {
            let slot = Slot::in_flight();
            (Call::new(work, begun_us, slot.clone()), slot)
        });
        let calls: Vec<(Call, Arc<Slot>)> = calls.collect();
        let mut taken = Vec::with_capacity(calls.len());
        let mut state = self.state();
        if state.closed.is_some() {
            drop(state);
            taken.extend(calls.into_iter().map(|(_, slot)| (slot, None)));
            return taken;
        }
        for (call, slot) in calls {
            taken.push((slot, state.admit(call, self.max)));
        }
        let wakes = !state.calls.is_empty() && std::mem::take(&mut state.is_asleep);
        drop(state);
        self.ring(wakes);
        taken
    }

    /// Takes an operation out of the waiting room, if it is there.
    pub fn leave(&self, ticket: u64) -> Option<Call> {
        self.state().waiting.remove(&ticket)
    }

    /// Ends the client, for the first reason given.
    pub fn close(&self, why: &'static str) {
        if self.is_inherited() {
            return;
        }
        let mut state = self.state();
        state.closed.get_or_insert(why);
        let calls = std::mem::take(&mut state.calls);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.ring(true);
        drop((calls, waiting)); // their wakers run without the lock
    }

    pub fn resolved(&self, resolved: Resolved) {
        let mut state = self.state();
        state.resolved.push(resolved);
        let wakes = std::mem::take(&mut state.is_asleep);
        drop(state);
        self.ring(wakes);
    }

    fn ring(&self, wakes: bool) {
        if wakes {
            // This fails only if the counter is full, and then the driver is woken anyway.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Takes everything that has come since the last time.
    pub fn take(&self) -> News {
        let mut state = self.state();
        state.is_asleep = false;
        News {
            calls: std::mem::take(&mut state.calls),
            resolved: std::mem::take(&mut state.resolved),
            is_closed: state.closed.is_some(),
        }
    }

    /// Gives back the room of operations that have ended, to waiting ones.
    pub fn release(&self, ended: Load) {
        let mut state = self.state();
        state.load.calls -= ended.calls;
        state.load.bytes -= ended.bytes;
        while let Some(bytes) = state.waiting.values().next().map(Call::bytes) {
            if !state.has_room(bytes, self.max) {
                break;
            }
            if let Some((_, call)) = state.waiting.pop_first() {
                state.take(call);
            }
        }
    }

    /// Takes a waiting operation that was called this long ago, if there is one.
    pub fn take_late(&self, begun_before_us: u64) -> Option<Call> {
        let mut state = self.state();
        let first = state.waiting.first_entry()?;
        (first.get().begun_us <= begun_before_us).then(|| first.remove())
    }

    /// Lets the driver sleep; none if it has something to do.
    pub fn may_sleep(&self) -> Option<Sleep> {
        let mut state = self.state();
        let is_quiet = state.calls.is_empty() && state.resolved.is_empty();
        state.is_asleep = is_quiet && state.closed.is_none();
        let first = state.waiting.values().next();
        state.is_asleep.then_some(Sleep {
            waiting_since_us: first.map(|call| call.begun_us),
        })
    }

    /// Operations in flight, and those that wait.
    #[cfg(test)]
    pub fn load(&self) -> (Load, usize) {
        let state = self.state();
        (state.load, state.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending::Pending;
    use super::*;
    use crate::core::{Settled, Work};
    use crate::outcome::Outcome;
    use duramen_base::ids::TableId;
    use duramen_wire::native::message::{Condition, Expiry, Operation};
    use std::future::Future as _;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    fn inbox(calls: usize, bytes: usize) -> Arc<Inbox> {
        let mut options = Options::new(["a:1"]);
        (options.in_flight_max, options.in_flight_bytes_max) = (calls, bytes);
        Arc::new(Inbox::new(&options).expect("a descriptor"))
    }

    fn write(inbox: &Arc<Inbox>, value: &[u8]) -> Pending<Outcome> {
        let operation = Operation::Write {
            value,
            condition: Condition::Always,
            expiry: Expiry::Never,
        };
        let work = OwnedWork::of(Work::on(TableId(1), b"", operation, None));
        let taken = inbox.call_one(work);
        Pending::new(inbox.clone(), taken, true, Settled::into_outcome)
    }

    fn poll(pending: &mut Pending<Outcome>, waker: &Waker) -> Poll<Result<Outcome, Error>> {
        Pin::new(pending).poll(&mut Context::from_waker(waker))
    }

    /// Counts its wakes, and panics.
    struct Bad(AtomicUsize);

    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a waker that is wrong");
        }
    }

    #[test]
    fn room_is_given_in_the_order_of_the_calls() {
        let inbox = inbox(3, 10);
        let all = [4, 7, 1, 20, 1].map(|bytes| write(&inbox, &vec![0; bytes]));
        let load = |calls, bytes| Load { calls, bytes };
        assert_eq!(inbox.load(), (load(1, 4), 4), "the small ones do not pass");
        let [first, second, third, long, last] = all;
        drop(third);
        assert_eq!(inbox.load(), (load(1, 4), 3), "it has left");
        drop(first);
        assert_eq!(inbox.load(), (load(1, 4), 3), "it goes on");
        inbox.release(load(1, 4));
        assert_eq!(inbox.load(), (load(1, 7), 2));
        inbox.release(load(1, 7));
        assert_eq!(inbox.load(), (load(1, 20), 1), "alone, whatever its length");
        inbox.release(load(1, 20));
        assert_eq!(inbox.load(), (load(1, 1), 0));
        assert_eq!(inbox.take().calls.len(), 4);
        drop((second, long, last));
    }

    #[test]
    fn a_driver_that_loses_operations_ends_them() {
        let inbox = inbox(10, 10);
        let (mut sent, mut unsent) = (write(&inbox, b"s"), write(&inbox, b"u"));
        let mut late = write(&inbox, &[0; 10]);
        let bad = Arc::new(Bad(AtomicUsize::new(0)));
        let waker = Waker::from(bad.clone());
        for pending in [&mut sent, &mut unsent, &mut late] {
            assert!(poll(pending, &waker).is_pending());
        }
        let mut news = inbox.take();
        news.calls[0].is_started = true;
        drop(news); // a panic of the driver drops them in the same way
        inbox.close("for a test");
        assert_eq!(bad.0.load(Ordering::SeqCst), 3, "each was woken once");
        let Poll::Ready(Err(Error::OutcomeUnknown { last, .. })) = poll(&mut sent, &waker) else {
            panic!("it may have been executed");
        };
        assert!(last.contains("for a test"), "{last}");
        for pending in [&mut unsent, &mut late, &mut write(&inbox, b"after")] {
            let ended = poll(pending, &waker);
            assert_eq!(ended, Poll::Ready(Err(Error::Closed("for a test"))));
        }
    }

    #[test]
    fn a_driver_that_sleeps_is_woken_once() {
        let inbox = inbox(10, 10);
        let heard = || rustix::io::read(inbox.bell(), &mut [0; 8]).is_ok();
        let first = write(&inbox, b"");
        assert!(!heard(), "it is awake");
        assert_eq!(inbox.may_sleep(), None, "it has something to do");
        assert_eq!(inbox.take().calls.len(), 1);
        let waiting_since_us = None;
        assert_eq!(inbox.may_sleep(), Some(Sleep { waiting_since_us }));
        let second = write(&inbox, b"");
        assert!(heard());
        let third = write(&inbox, b"");
        assert!(!heard(), "it is awake already");
        assert_eq!(inbox.take().calls.len(), 2);
        assert!(inbox.may_sleep().is_some());
        inbox.close("for a test");
        assert!(heard());
        drop((first, second, third));
    }
}
