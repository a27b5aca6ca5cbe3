//! The epoll instance of a thread: it watches the mailbox, the listeners, and all connections.

use super::connection::Connection;
use super::connections::Token;
use super::listener::Listeners;
use crate::doors::Door;
use duramen_config::ServerError;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::{AsFd, OwnedFd};

pub(super) struct Watch {
    epoll: OwnedFd,
    /// Number of connections with unsent replies.
    with_output: usize,
}

impl Watch {
    /// # Errors
    /// [`ServerError::System`]: the kernel has no room.
    pub(super) fn new(door: &Door, listeners: &Listeners) -> Result<Watch, ServerError> {
        let system = |doing| {
            move |e: Errno| ServerError::System {
                doing,
                source: e.into(),
            }
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let watch = Watch {
            epoll: epoll.map_err(system("make an epoll instance"))?,
            with_output: 0,
        };
        watch
            .add(door.bell.fd(), Token::MAILBOX)
            .map_err(system("watch the mailbox"))?;
        for (n, listener) in listeners.iter().enumerate() {
            watch
                .add(&listener.fd, Token::listener(n))
                .map_err(system("watch a listener"))?;
        }
        Ok(watch)
    }

    /// Watches a descriptor: from now on its input is reported with `token`.
    ///
    /// # Errors
    /// The kernel has no room.
    pub(super) fn add(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, token.data(), EventFlags::IN)
    }

    /// Takes events; waits for the first one, at most for this time. After an error, EINTR
    /// included, there are no events.
    pub(super) fn wait(&self, events: &mut Vec<Event>, timeout: Option<&Timespec>) {
        events.clear();
        let room = rustix::buffer::spare_capacity(events);
        let _ = epoll::wait(&self.epoll, room, timeout);
    }

    /// Watches for exactly these events of a connection.
    #[inline]
    pub(super) fn set(&mut self, token: Token, connection: &mut Connection, wanted: EventFlags) {
        if wanted == connection.interest {
            return;
        }
        let has_output = wanted.contains(EventFlags::OUT);
        let had_output = connection.interest.contains(EventFlags::OUT);
        self.with_output = self.with_output + usize::from(has_output) - usize::from(had_output);
        connection.interest = wanted;
        // This fails only for lack of kernel memory; then the sweep finds the connection stalled.
        let watched = connection.watched(wanted);
        let _ = epoll::modify(&self.epoll, &connection.fd, token.data(), watched);
    }

    /// A connection is being closed.
    pub(super) fn ends(&mut self, connection: &Connection) {
        if connection.interest.contains(EventFlags::OUT) {
            self.with_output -= 1;
        }
    }

    /// Number of connections with unsent replies.
    pub(super) fn with_output(&self) -> usize {
        self.with_output
    }
}
