//! Clients on this machine: the memory that the server shares with each of them.
//!
//! **Invariants**
//! - L1: at most `local-clients` clients have shared memory, and it is counted from before it is
//!   made until it is given back and unmapped here. It is resident all the time, so its size is its
//!   cost.
//! - L2: the memory of a client that has closed its socket, or has taken all replies, is the
//!   system's again, also if the client keeps its mapping, or the descriptor. Otherwise the memory
//!   of clients that come and go would be charged to this server's group, without a limit.
//!
//! **Concurrency**: any thread; memory is made on a thread of its own, because that takes up to
//! 10 ms.

use super::{Incoming, NativeStart, Shared};
use crate::threads::mailbox::Message;
use duramen_config::seldom;
use duramen_shm::{Rings, memory_bytes, send_with_fd};
use duramen_wire::native::codec::{Envelope, Kind, Trouble, encode_rings, encode_trouble};
use rustix::net::SendFlags;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A refused client uses TCP. One that cannot may ask again after this time.
const REFUSED_MS: u32 = 1_000;

/// Shared memory in use (L1).
#[derive(Debug, Default)]
pub struct LocalUse {
    clients: AtomicUsize,
    bytes: AtomicU64,
}

impl LocalUse {
    /// Bytes of all clients' shared memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The right to shared memory of this size; given back when dropped.
struct Seat {
    of: Arc<LocalUse>,
    bytes: u64,
}

impl Seat {
    fn take(of: &Arc<LocalUse>, clients_max: usize, bytes: u64) -> Option<Seat> {
        if of.clients.fetch_add(1, Ordering::Relaxed) >= clients_max {
            of.clients.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        of.bytes.fetch_add(bytes, Ordering::Relaxed);
        let of = Arc::clone(of);
        Some(Seat { of, bytes })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The memory shared with one client. Unmapped before it is given back (L1).
pub struct LocalRings {
    pub rings: Rings,
    _seat: Seat,
}

impl Shared {
    /// Takes over the connection of a native client on this machine, a Unix socket, after both
    /// hellos: gives the client the memory for all later frames. False: there are too many clients,
    /// or no memory.
    pub fn hand_over_local(&self, fd: OwnedFd, peer: SocketAddr) -> bool {
        if !self.enter(self.config().maxclients) {
            return false;
        }
        let rings = match self.share_rings(&fd) {
            Ok(rings) => rings,
            Err(error) => {
                seldom!(warn, "a client on this machine has to use TCP: {error}");
                let mut frame = Vec::new();
                let trouble = Trouble::Busy {
                    after_ms: REFUSED_MS,
                };
                let envelope = Envelope::default();
                encode_trouble(&mut frame, &envelope, Kind::Ping as u16, &trouble);
                // A client that does not read it sees the end of the connection.
                let _ = rustix::net::send(&fd, &frame, SendFlags::NOSIGNAL);
                self.leave();
                return false;
            }
        };
        self.give(Incoming {
            fd,
            peer,
            tls: None,
            native: Some(NativeStart {
                // Bells may have come, but no frames.
                received: Vec::new(),
                rings: Some(rings),
            }),
        });
        true
    }

    fn share_rings(&self, socket: &OwnedFd) -> io::Result<LocalRings> {
        let config = self.config();
        let ring_bytes = config.local_ring_bytes;
        let seat = Seat::take(
            &self.local,
            config.local_clients,
            memory_bytes(ring_bytes) as u64,
        )
        .ok_or_else(|| io::Error::other("all local-clients have shared memory"))?;
        let (rings, memory) = Rings::make(ring_bytes)?;
        let mut frame = Vec::new();
        encode_rings(&mut frame, ring_bytes as u32);
        send_with_fd(socket, &frame, memory.as_fd())?;
        Ok(LocalRings { rings, _seat: seat })
    }

    /// Hands a counted connection to the thread that owns the fewest.
    pub(super) fn give(&self, incoming: Incoming) {
        let owner = &self.threads[self.least_connections(0)];
        owner.connections_changed(1);
        owner.hand_over(incoming);
        owner.mailbox.post(Message::Wake);
    }
}
