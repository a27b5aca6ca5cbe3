//! A handle, by which other threads reach the thread of a hub.

use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Inner<M> {
    mail: Mutex<VecDeque<M>>,
    /// Whether the thread is woken already. Cleared before the mail is taken.
    is_woken: AtomicBool,
    bell: OwnedFd,
}

/// Sends mail to the thread of a hub, or only wakes it. Any number of threads may use it.
pub struct Handle<M>(Arc<Inner<M>>);

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Handle<M> {
        Handle(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl<M> Handle<M> {
    pub(crate) fn new() -> std::io::Result<Handle<M>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Handle(Arc::new(Inner {
            mail: Mutex::default(),
            is_woken: AtomicBool::new(false),
            bell,
        })))
    }

    /// Queues mail, which [`Hub::poll`](crate::Hub::poll) returns in order as
    /// [`Event::Mail`](crate::Event::Mail).
    pub fn tell(&self, what: M) {
        self.mail().push_back(what);
        self.wake();
    }

    /// Makes the hub's thread return from [`Hub::poll`](crate::Hub::poll) soon. It only signals, so
    /// it may be called with locks held.
    pub fn wake(&self) {
        if !self.0.is_woken.swap(true, Ordering::AcqRel) {
            // This fails only if the counter is full, and then the thread is awake.
            let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
        }
    }

    /// Called by the owner: takes the mail. The bell and the mark are reset before the mail is
    /// taken, so later mail rings the bell again.
    pub(crate) fn take(&self) -> VecDeque<M> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.bell, &mut count);
        self.0.is_woken.swap(false, Ordering::AcqRel);
        std::mem::take(&mut *self.mail())
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    fn mail(&self) -> MutexGuard<'_, VecDeque<M>> {
        self.0.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
