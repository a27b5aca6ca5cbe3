//! Connections of native clients on this machine: their bytes are in memory that the server shares
//! with the client (crate `shm`), their socket carries bells.
//!
//! **Invariants**
//! - C1: a connection is *awake*, and then in `Reactor::awake`, or its client has been asked for a
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
use super::connections::Token;
use super::{Reactor, ZERO};
use duramen_redis::shared::LocalRings;
use duramen_shm::{bells, ring_bell};
use rustix::event::epoll::{Event, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// One look in this many also covers the sockets while the thread spins for rings: a look at the
/// sockets is a system call, and takes as long as some ten looks at rings.
pub(super) const LOOKS_AT_SOCKETS: u32 = 64;
/// One round in this many also covers the sockets while the rings give work: their clients wait for
/// so many rounds at most.
pub(super) const ROUNDS_OF_RINGS: u32 = 8;

/// A client's shared memory.
pub(super) struct Local {
    memory: LocalRings,
    /// C1
    is_awake: bool,
    /// The client is gone; its last requests may be in the ring.
    has_ended: bool,
    /// The client wrote an impossible counter (C4).
    pub(super) is_corrupt: bool,
}

impl Local {
    pub(super) fn new(memory: LocalRings) -> Local {
        Local {
            memory,
            is_awake: false,
            has_ended: false,
            is_corrupt: false,
        }
    }

    /// The connection ends: see shared::local::L2. A client that is still there may take its last
    /// replies.
    pub(super) fn give_back(&self, socket: &OwnedFd) {
        if self.memory.rings.is_all_taken() || is_hung_up(socket) {
            self.memory.rings.give_back();
        }
    }

    fn checked<T>(&mut self, result: Result<T, duramen_shm::Corrupt>) -> Result<T, Errno> {
        result.map_err(|_| {
            self.is_corrupt = true;
            Errno::PROTO
        })
    }

    /// As `recv` of a socket.
    pub(super) fn receive(&mut self, socket: &OwnedFd, room: &mut [u8]) -> Result<usize, Errno> {
        let moved = self.memory.rings.read(room);
        let moved = self.checked(moved)?;
        if moved.wakes {
            ring_bell(socket);
        }
        match moved.bytes {
            0 if !self.has_ended => Err(Errno::AGAIN),
            bytes => Ok(bytes),
        }
    }

    /// As `send` of a socket, but it does not stop before the ring is half full (C3).
    pub(super) fn send(&mut self, socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let moved = self.memory.rings.write(rest);
            let moved = self.checked(moved)?;
            if moved.wakes {
                ring_bell(socket);
            }
            sent += moved.bytes;
            if sent < bytes.len() {
                let may_sleep = self.memory.rings.may_sleep_for_room();
                if self.checked(may_sleep)? {
                    break; // C4
                }
            }
        }
        match sent {
            0 => Err(Errno::AGAIN),
            sent => Ok(sent),
        }
    }

    /// Bytes that can be received now. 1 for an impossible counter, which receiving finds.
    pub(super) fn readable(&mut self) -> usize {
        self.memory.rings.readable().unwrap_or(1)
    }

    fn has_input(&mut self) -> bool {
        self.readable() > 0
    }
}

/// Whether the peer has closed its socket, not only its sending side.
fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::empty())];
    let polled = rustix::event::poll(&mut events, Some(&ZERO));
    polled.is_ok()
        && events
            .iter()
            .any(|event| event.revents().contains(PollFlags::HUP))
}

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

impl Reactor {
    /// Adds a connection with shared memory to the awake ones (C1).
    pub(super) fn wake_local(&mut self, token: Token, local: &mut Local) {
        if !std::mem::replace(&mut local.is_awake, true) {
            self.awake.push(token);
        }
    }

    /// An event at the socket of a connection with shared memory.
    pub(super) fn local_event(&mut self, token: Token, flags: EventFlags) {
        let Some(mut connection) = self.connections.take(token) else {
            return;
        };
        let is_open = flags.contains(EventFlags::IN) && bells(&connection.fd);
        if let Some(local) = connection.local_mut() {
            local.memory.rings.reads();
            local.memory.rings.writes();
            local.has_ended |= !is_open;
            self.wake_local(token, local);
        }
        let has_output = connection.sendable_bytes() > 0;
        self.connections.put(token, connection);
        if !is_open {
            return self.end_local(token);
        }
        if has_output {
            self.writable(token);
        }
        self.receive(token);
    }

    /// The client is gone: its whole requests run, as those in a socket's buffer would.
    fn end_local(&mut self, token: Token) {
        while let Some(connection) = self.connections.get_mut(token) {
            let is_read = connection.is_read();
            let has_input = connection.local_mut().is_some_and(Local::has_input);
            if !is_read || !has_input {
                return self.close(token);
            }
            self.receive(token);
        }
        // It is in the group; the end is reported again.
    }

    /// Receives from all awake connections whose rings have input.
    pub(super) fn look_at_rings(&mut self) {
        if self.awake.is_empty() {
            return;
        }
        let mut awake = std::mem::take(&mut self.awake);
        awake.retain(|token| self.look_at_ring(*token));
        awake.append(&mut self.awake);
        self.awake = awake;
    }

    /// False: the connection is gone.
    fn look_at_ring(&mut self, token: Token) -> bool {
        let Some(connection) = self.connections.get_mut(token) else {
            return self.connections.is_used(token);
        };
        let is_read = connection.is_read();
        if is_read && connection.local_mut().is_some_and(Local::has_input) {
            self.hot = Some(token);
            self.receive(token);
        }
        true
    }

    /// Before the thread sleeps: asks for bells. False: there is input, and it must not sleep (C2).
    pub(super) fn rings_may_sleep(&mut self) -> bool {
        let mut all = true;
        let mut awake = std::mem::take(&mut self.awake);
        awake.retain(|token| {
            let Some(connection) = self.connections.get_mut(*token) else {
                return self.connections.is_used(*token);
            };
            if !connection.is_read() {
                return true;
            }
            let Some(local) = connection.local_mut() else {
                return false;
            };
            // An impossible counter is found by receiving.
            let sleeps = local.memory.rings.may_sleep_for_bytes() == Ok(true);
            local.is_awake = !sleeps;
            all &= sleeps;
            !sleeps
        });
        self.awake = awake;
        all
    }

    /// Whether the hot connection has shared memory: then no system call sees its input.
    pub(super) fn hot_is_local(&self) -> bool {
        let hot = self.hot.and_then(|hot| self.connections.get(hot));
        hot.is_some_and(|hot| hot.local().is_some())
    }

    /// Takes the events of the sockets without sleeping: each time, or, if there are awake
    /// connections with shared memory, once in `looks` times.
    pub(super) fn poll_sockets(&mut self, events: &mut Vec<Event>, looks: u32) {
        self.looks = self.looks.wrapping_add(1);
        if self.awake.is_empty() || self.looks.is_multiple_of(looks) {
            self.poll_events(events, Some(ZERO));
        }
    }
}
