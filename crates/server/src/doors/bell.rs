//! The bell of a reactor thread: an eventfd, which its epoll instance watches.

use duramen_config::ServerError;
use duramen_redis::threads::Bell;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) struct EventBell(OwnedFd);

impl EventBell {
    /// # Errors
    /// [`ServerError::System`] when the process is out of file descriptors.
    pub(super) fn new() -> Result<EventBell, ServerError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(EventBell).map_err(|error| ServerError::System {
            doing: "make an eventfd",
            source: error.into(),
        })
    }

    /// Readable while it rings; for epoll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // This fails only if the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn quiet(&self) {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}
