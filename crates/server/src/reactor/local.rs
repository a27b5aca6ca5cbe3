//! Connections of native clients on this machine: their bytes are in memory that the server shares
//! with the client (crate `shm`), their socket carries bells.
//!
//! **Invariants**
//! - C1: a connection is *awake*, and then in `Rings::awake`, or its client has been asked for a
//!   bell. The thread looks at the rings of all awake connections in each round and while it spins.
//! - C2: the thread sleeps only after it has asked for a bell at every ring that it may receive
//!   from, and each was empty after that (control::M4). A connection that may not be received from
//!   stays awake: its release is work of a round, and the next round looks at its ring.
//! - C3: a reply that does not fit is continued by the client's bell: `send` returns only when all
//!   is written, or a bell for room was asked for.
//! - C4: whatever the client writes, the thread neither waits for it nor panics; an impossible
//!   counter ends the connection. `send` continues only while half of the ring is free, so a client
//!   that takes single bytes does not keep the thread (control::M5).

use super::connection::{Connection, WaitsFor};
use super::connections::{Connections, Token};
use super::ring::Local;
use super::{Reactor, ZERO};
use duramen_shm::bells;
use rustix::event::epoll::{Event, EventFlags};

/// One look in this many also covers the sockets while the thread spins for rings: a look at the
/// sockets is a system call, and takes as long as some ten looks at rings.
pub(super) const LOOKS_AT_SOCKETS: u32 = 64;
/// One round in this many also covers the sockets while the rings give work: their clients wait for
/// so many rounds at most.
pub(super) const ROUNDS_OF_RINGS: u32 = 8;

impl Connection {
    pub(super) fn local(&self) -> Option<&Local> {
        self.native.as_ref()?.local.as_ref()
    }

    pub(super) fn local_mut(&mut self) -> Option<&mut Local> {
        self.native.as_mut()?.local.as_mut()
    }

    /// The events to be watched at its socket: bells come as input, also those for room.
    pub(super) fn watched(&self, interest: EventFlags) -> EventFlags {
        match self.local() {
            Some(_) if !interest.is_empty() => EventFlags::IN,
            _ => interest,
        }
    }

    /// Whether its ring is read now.
    fn is_read(&self) -> bool {
        self.held.is_none()
            && matches!(
                self.waits_for,
                WaitsFor::Input | WaitsFor::Output { ended: false }
            )
            && self.interest.contains(EventFlags::IN)
    }
}

/// The connections of a thread with shared memory.
#[derive(Default)]
pub(super) struct Rings {
    /// The awake ones (C1).
    awake: Vec<Token>,
    /// The rounds and looks that could do without a system call.
    looks: u32,
}

impl Rings {
    /// Adds a connection to the awake ones (C1).
    pub(super) fn wake(&mut self, token: Token, local: &mut Local) {
        if !local.wake() {
            self.awake.push(token);
        }
    }

    /// Handles an event at the socket of a connection, which is out of its slot. Returns false if
    /// the client is gone.
    fn heard(&mut self, token: Token, connection: &mut Connection, flags: EventFlags) -> bool {
        let is_open = flags.contains(EventFlags::IN) && bells(&connection.fd);
        if let Some(local) = connection.local_mut() {
            local.rings(!is_open);
            self.wake(token, local);
        }
        is_open
    }

    #[inline]
    pub(super) fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    fn take_awake(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.awake)
    }

    /// Puts back the connections that are left of [`take_awake`](Self::take_awake); others may have
    /// been woken since.
    fn put_back(&mut self, mut awake: Vec<Token>) {
        awake.append(&mut self.awake);
        self.awake = awake;
    }

    /// Asks for bells before the thread sleeps. Returns false if there is input, so that the thread
    /// must not sleep (C2).
    pub(super) fn may_sleep(&mut self, connections: &mut Connections) -> bool {
        let mut all = true;
        self.awake.retain(|token| {
            let Some(connection) = connections.get_mut(*token) else {
                return connections.is_used(*token);
            };
            if !connection.is_read() {
                return true;
            }
            let Some(local) = connection.local_mut() else {
                return false;
            };
            let sleeps = local.may_sleep();
            all &= sleeps;
            !sleeps
        });
        all
    }

    /// Whether this look covers the sockets too. Every look does if no connection is awake,
    /// otherwise one in `looks`.
    #[inline]
    pub(super) fn looks_at_sockets(&mut self, looks: u32) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.awake.is_empty() || self.looks.is_multiple_of(looks)
    }
}

impl Reactor {
    /// An event at the socket of a connection with shared memory.
    pub(super) fn local_event(&mut self, token: Token, flags: EventFlags) {
        let Some(mut connection) = self.traffic.connections.take(token) else {
            return;
        };
        let is_open = self.rings.heard(token, &mut connection, flags);
        let has_output = connection.sendable_bytes() > 0;
        self.traffic.connections.put(token, connection);
        if !is_open {
            return self.end_local(token);
        }
        if has_output {
            self.traffic.writable(token);
        }
        self.traffic.receive(token);
    }

    /// The client is gone: its whole requests run, as those in a socket's buffer would.
    fn end_local(&mut self, token: Token) {
        while let Some(connection) = self.traffic.connections.get_mut(token) {
            let is_read = connection.is_read();
            let has_input = connection.local_mut().is_some_and(Local::has_input);
            if !is_read || !has_input {
                return self.traffic.close(token);
            }
            self.traffic.receive(token);
        }
        // The connection is in the group; its end is reported again.
    }

    /// Receives from all awake connections whose rings have input.
    pub(super) fn look_at_rings(&mut self) {
        if !self.rings.has_awake() {
            return;
        }
        let mut awake = self.rings.take_awake();
        awake.retain(|token| self.look_at_ring(*token));
        self.rings.put_back(awake);
    }

    /// Looks at the ring of one connection. Returns false if the connection is gone.
    fn look_at_ring(&mut self, token: Token) -> bool {
        let Some(connection) = self.traffic.connections.get_mut(token) else {
            return self.traffic.connections.is_used(token);
        };
        let is_read = connection.is_read();
        if is_read && connection.local_mut().is_some_and(Local::has_input) {
            self.rest.note_active(token);
            self.traffic.receive(token);
        }
        true
    }

    /// Whether the hot connection has shared memory: then no system call sees its input.
    pub(super) fn hot_is_local(&self) -> bool {
        let hot = self
            .rest
            .hot()
            .and_then(|hot| self.traffic.connections.get(hot));
        hot.is_some_and(|hot| hot.local().is_some())
    }

    /// Takes the events of the sockets without sleeping, in one of `looks` calls.
    pub(super) fn poll_sockets(&mut self, events: &mut Vec<Event>, looks: u32) {
        if self.rings.looks_at_sockets(looks) {
            self.poll_events(events, Some(ZERO));
        }
    }
}
