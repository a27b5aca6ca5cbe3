//! An operation in flight, as its caller sees it ([`Pending`]) and as the driver does ([`Call`]).
//!
//! **Invariants**
//! - P1: a call ends exactly once. A driver that loses one, even by a panic, ends it by
//!   dropping it.
//! - P2: no lock is held while a waker runs, and a waker that panics harms no other call.
//! - P3: in a forked process no lock is taken: a thread of the parent may have held it.

use super::inbox::Inbox;
use super::work::OwnedWork;
use crate::core::{AsWork, Settled, Work};
use crate::error::Error;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The place through which the driver hands a result to the caller.
#[derive(Debug)]
pub(super) struct Slot(Mutex<Stage>);

#[derive(Debug)]
enum Stage {
    InFlight(Option<Waker>),
    Settled(Result<Settled, Error>),
    /// The client has ended before it had the result.
    Lost {
        may_be_done: bool,
    },
    Taken,
}

impl Slot {
    pub fn in_flight() -> Arc<Slot> {
        Arc::new(Slot(Mutex::new(Stage::InFlight(None))))
    }

    /// The slot of an operation that was never given to the driver.
    pub fn lost() -> Arc<Slot> {
        Arc::new(Slot(Mutex::new(Stage::Lost { may_be_done: false })))
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, stage: Stage) {
        let before = std::mem::replace(&mut *self.stage(), stage);
        if let Stage::InFlight(Some(waker)) = before {
            // P2: no other call is harmed. The panic has been reported by the hook of the program.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// An operation that the driver has.
#[derive(Debug)]
pub(super) struct Call {
    work: OwnedWork,
    /// The time when the caller called.
    pub begun_us: u64,
    /// Whether it was given to the core, which may have sent it.
    pub is_started: bool,
    slot: Option<Arc<Slot>>,
}

impl Call {
    pub fn new(work: OwnedWork, begun_us: u64, slot: Arc<Slot>) -> Call {
        Call {
            work,
            begun_us,
            is_started: false,
            slot: Some(slot),
        }
    }

    /// Bytes that count against the client's limit.
    pub fn bytes(&self) -> usize {
        self.work.bytes()
    }

    pub fn end(&mut self, result: Result<Settled, Error>) {
        if let Some(slot) = self.slot.take() {
            slot.end(Stage::Settled(result));
        }
    }
}

impl AsWork for Call {
    fn as_work(&self) -> Work<'_> {
        self.work.as_work()
    }
}

impl Drop for Call {
    /// Ends the call, if it has not ended before (P1).
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let may_be_done = self.is_started && self.as_work().mutates();
            slot.end(Stage::Lost { may_be_done });
        }
    }
}

/// The result of an operation in flight, a future. The operation goes on whether or not it is
/// polled; see the [module](super) for an operation whose future is dropped.
#[derive(Debug)]
#[must_use = "the result is here alone"]
pub struct Pending<T> {
    inbox: Arc<Inbox>,
    slot: Arc<Slot>,
    /// Its ticket in the waiting room, if it had to wait.
    ticket: Option<u64>,
    mutates: bool,
    finish: fn(Settled) -> Result<T, Error>,
}

impl<T> Pending<T> {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        (slot, ticket): (Arc<Slot>, Option<u64>),
        mutates: bool,
        finish: fn(Settled) -> Result<T, Error>,
    ) -> Pending<T> {
        Pending {
            inbox,
            slot,
            ticket,
            mutates,
            finish,
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    /// # Panics
    /// If it was polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.inbox.is_inherited() {
            return Poll::Ready(Err(self.inbox.lost(self.mutates))); // P3
        }
        let mut stage = self.slot.stage();
        if let Stage::InFlight(waker) = &mut *stage {
            match waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let ended = std::mem::replace(&mut *stage, Stage::Taken);
        drop(stage);
        Poll::Ready(match ended {
            Stage::Settled(result) => result.and_then(self.finish),
            Stage::Lost { may_be_done } => Err(self.inbox.lost(may_be_done)),
            Stage::InFlight(_) | Stage::Taken => panic!("polled after it was ready"),
        })
    }
}

impl<T> Drop for Pending<T> {
    /// An operation that still waits for room is never sent.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.filter(|_| !self.inbox.is_inherited()) {
            drop(self.inbox.leave(ticket));
        }
    }
}

/// The results of several operations, in their order: a future.
#[derive(Debug)]
#[must_use = "the results are here alone"]
pub struct PendingMany<T> {
    /// Operations whose results are not here yet, the next one last. All go on while the first is
    /// waited for.
    pending: Vec<Pending<T>>,
    results: Vec<Result<T, Error>>,
}

impl<T> PendingMany<T> {
    pub(super) fn new(pending: impl IntoIterator<Item = Pending<T>>) -> PendingMany<T> {
        let mut pending: Vec<Pending<T>> = pending.into_iter().collect();
        pending.reverse();
        PendingMany {
            results: Vec::with_capacity(pending.len()),
            pending,
        }
    }
}

/// No part of it is ever pinned.
impl<T> Unpin for PendingMany<T> {}

impl<T> Future for PendingMany<T> {
    type Output = Vec<Result<T, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while let Some(next) = this.pending.last_mut() {
            match Pin::new(next).poll(context) {
                Poll::Ready(result) => this.results.push(result),
                Poll::Pending => return Poll::Pending,
            }
            this.pending.pop();
        }
        Poll::Ready(std::mem::take(&mut this.results))
    }
}
