//! Two byte rings in memory that a server shares with a client on its machine: a stream in each
//! direction, as a socket has, without a system call while both sides are awake.
//!
//! The server makes the memory ([`Rings::make`]) and passes its descriptor over a Unix socket
//! ([`send_with_fd`]); the client maps it ([`Rings::adopt`]). The socket stays open: its end is the
//! other side's death, and a byte on it is a *bell*, which wakes the other side ([`ring_bell`]).
//!
//! **Layout** of the memory, all numbers in the order of the machine's bytes:
//!
//! ```text
//! 0      written u64 ┐ control of the client's ring      512 ┐ control of
//! 128    read u64    │ (from the client to the server)   ... │ the server's
//! 256    reader sleeps u32                               ... │ ring
//! 384    writer sleeps u32 ┘                             896 ┘
//! 4096            bytes of the client's ring
//! 4096 + size     bytes of the server's ring
//! ```
//!
//! `written` and `read` count bytes since the beginning and never fall. Byte `n` is at `n mod size`
//! of its ring.
//!
//! **Invariants**
//! - M1: a side uses its own copies of the counters that it writes. It loads a counter of the other
//!   side once per use, and refuses it ([`Corrupt`]) unless `read <= written <= read + size`.
//! - M2: bytes are copied out of the memory before they are used, and only the copy is used.
//!
//! The memory keeps its size, so that no access to it fails (memory::M3), and no wake-up is lost
//! (control::M4).
//!
//! **Concurrency**: one process and, in it, one thread at a time for each side.
//!
//! Paper: [Ousterhout15 §4], transports behind one interface; the paper has none for one machine.

pub mod control;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod rings;
#[cfg(not(loom))]
mod socket;

#[cfg(not(loom))]
pub use memory::memory_bytes;
#[cfg(not(loom))]
pub use rings::{Moved, Rings};
#[cfg(not(loom))]
pub use socket::{bells, connect, receive_with_fd, ring_bell, send_with_fd};

/// Smallest and largest ring, in bytes; a ring's size is a power of two between them. Making the
/// largest takes milliseconds of a thread that has other work, and makes no message faster.
pub const RING_BYTES_MIN: usize = 4 << 10;
pub const RING_BYTES_MAX: usize = 4 << 20;

/// The other side wrote a counter that cannot be: end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side wrote an impossible position into the shared memory")]
pub struct Corrupt;
