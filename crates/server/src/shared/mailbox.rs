//! Messages to a reactor thread, from any thread.

use crate::error::ServerError;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What one thread can ask of another's reactor.
#[derive(Clone, Debug)]
pub enum Message {
    /// Look again at the settings, at `Shared::stopping`, and at paused clients.
    Wake,
    /// Close this client, without another byte (`CLIENT KILL`).
    Close { client: u64 },
    /// Append these bytes to this client's output (`MONITOR` lines, pushes). Dropped if the client is gone.
    Push { client: u64, bytes: Arc<[u8]> },
}

/// A queue of messages with an eventfd that wakes the thread out of its sleep.
pub struct Mailbox {
    queue: Mutex<Vec<Message>>,
    /// Set: there may be messages. Release in `post`, Acquire in `take`.
    pending: AtomicBool,
    wake: OwnedFd,
}

impl Mailbox {
    /// # Errors
    /// [`ServerError::System`] when the process is out of file descriptors.
    pub fn new() -> Result<Mailbox, ServerError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
            ServerError::System {
                doing: "make an eventfd",
                source: e.into(),
            }
        })?;
        Ok(Mailbox {
            queue: Mutex::new(Vec::new()),
            pending: AtomicBool::new(false),
            wake,
        })
    }

    /// Any thread. Never blocks for longer than another `post` or `take`.
    pub fn post(&self, message: Message) {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
        if !self.pending.swap(true, Ordering::AcqRel) {
            // Fails only if the counter is full, and then the thread is awake.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// The owning thread: takes all messages, in order.
    pub fn take(&self, into: &mut Vec<Message>) {
        // In this order. A post before the swap finds `pending` set and does not signal, but its message is taken below. A
        // post after the swap signals, and the signal stays, because it comes after the read.
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.pending.swap(false, Ordering::AcqRel);
        into.append(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Readable when there are messages; for epoll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four posters, one thread that takes when it is woken, as a reactor does. It was once possible that a signal was
    /// consumed while `pending` stayed set: then no later post woke the thread, and a stop waited for ever.
    #[test]
    fn messages_wake_the_thread_and_arrive_once_and_in_order() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        const EACH: u64 = 20_000;
        let mailbox = Arc::new(Mailbox::new().expect("mailbox"));
        let posters: Vec<_> = (0..4u64)
            .map(|poster| {
                let mailbox = Arc::clone(&mailbox);
                std::thread::spawn(move || {
                    for n in 0..EACH {
                        let client = poster * EACH + n;
                        mailbox.post(Message::Close { client });
                    }
                })
            })
            .collect();
        let mut got = Vec::new();
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        while (got.len() as u64) < 4 * EACH {
            let fd = mailbox.fd();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let woken = poll(&mut fds, Some(&patience)).expect("polls");
            assert_eq!(woken, 1, "not woken after {} messages", got.len());
            mailbox.take(&mut got);
        }
        for poster in posters {
            poster.join().expect("poster");
        }
        let mut next = [0u64; 4];
        for message in &got {
            let Message::Close { client } = message else {
                panic!("{message:?}");
            };
            let poster = (client / EACH) as usize;
            assert_eq!(client % EACH, next[poster]);
            next[poster] += 1;
        }
    }
}
