//! Clients on this machine: the memory that the server shares with each of them.
//!
//! **Invariants**
//! - L1: at most `local-clients` clients have shared memory, and each counts from before its memory
//!   is made until the memory is given back and unmapped here. The memory is resident all the time,
//!   so its size is its cost.
//! - L2: the memory of a client that has closed its socket, or has taken all replies, goes back to
//!   the system, even if the client keeps its mapping or the descriptor. Otherwise the memory of
//!   clients that come and go would be charged to this server's group, without a limit.
//!
//! **Concurrency**: any thread; memory is made on a thread of its own, because that takes up to
//! 10 ms.

use super::{Doors, Incoming, NativeStart};
use duramen_config::seldom;
use duramen_redis::figures::LocalSeat;
use duramen_shm::{Rings, memory_bytes, send_with_fd};
use duramen_wire::native::codec::{Envelope, Kind, Trouble, encode_rings, encode_trouble};
use rustix::net::SendFlags;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

/// A refused client uses TCP. A client that cannot use TCP may ask again after this time.
const REFUSED_MS: u32 = 1_000;

/// The memory shared with one client. Unmapped before it is given back (L1).
pub(crate) struct LocalRings {
    pub(crate) rings: Rings,
    /// The client's place among the `local-clients` (L1).
    _seat: LocalSeat,
}

impl Doors {
    /// Takes over the connection of a native client on this machine, a Unix socket, after both
    /// hellos: gives the client the memory for all later frames. If there are too many clients, or
    /// there is no memory, the connection is closed.
    pub fn hand_over_local(&self, fd: OwnedFd, peer: SocketAddr) {
        if !self.shared.threads.enter(self.shared.config().maxclients) {
            return;
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
                self.shared.threads.leave();
                return;
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
    }

    fn share_rings(&self, socket: &OwnedFd) -> io::Result<LocalRings> {
        let config = self.shared.config();
        let ring_bytes = config.local_ring_bytes;
        let (clients_max, bytes) = (config.local_clients, memory_bytes(ring_bytes) as u64);
        let seat = self.shared.figures.local().take(clients_max, bytes);
        let seat = seat.ok_or_else(|| io::Error::other("all local-clients have shared memory"))?;
        let (rings, memory) = Rings::make(ring_bytes)?;
        let mut frame = Vec::new();
        encode_rings(&mut frame, ring_bytes as u32);
        send_with_fd(socket, &frame, memory.as_fd())?;
        Ok(LocalRings { rings, _seat: seat })
    }
}
