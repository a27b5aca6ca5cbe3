//! The memory that the server shares with one client on its machine. The rules are in `local`.

use super::ZERO;
use crate::doors::LocalRings;
use duramen_shm::ring_bell;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// A client's shared memory.
pub(super) struct Local {
    memory: LocalRings,
    /// See local::C1.
    is_awake: bool,
    /// Whether the client is gone; its last requests may still be in the ring.
    has_ended: bool,
    /// Whether the client wrote an impossible counter (local::C4).
    is_corrupt: bool,
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

    /// Gives the memory back when the connection ends (doors::rings::L2), unless the client is
    /// still there and has not taken its last replies.
    pub(super) fn give_back(&self, socket: &OwnedFd) {
        if self.memory.rings.is_all_taken() || is_hung_up(socket) {
            self.memory.rings.give_back();
        }
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }

    /// The thread looks at the ring from now on. Returns whether it did so before.
    pub(super) fn wake(&mut self) -> bool {
        std::mem::replace(&mut self.is_awake, true)
    }

    /// A bell has come, or the end of the client's socket.
    pub(super) fn rings(&mut self, has_ended: bool) {
        self.memory.rings.reads();
        self.memory.rings.writes();
        self.has_ended |= has_ended;
    }

    /// Asks for a bell. Returns false if there is input, or an impossible counter, which receiving
    /// finds.
    pub(super) fn may_sleep(&mut self) -> bool {
        let sleeps = self.memory.rings.may_sleep_for_bytes() == Ok(true);
        self.is_awake = !sleeps;
        sleeps
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

    /// As `send` of a socket, but it does not stop before the ring is half full (local::C3).
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
                    break; // local::C4
                }
            }
        }
        match sent {
            0 => Err(Errno::AGAIN),
            sent => Ok(sent),
        }
    }

    /// The number of bytes that can be received now; 1 for an impossible counter, which receiving
    /// finds.
    pub(super) fn readable(&mut self) -> usize {
        self.memory.rings.readable().unwrap_or(1)
    }

    pub(super) fn has_input(&mut self) -> bool {
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
