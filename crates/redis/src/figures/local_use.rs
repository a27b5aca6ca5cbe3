//! Memory that the server shares with clients on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of clients with shared memory, and the bytes of that memory.
#[derive(Debug, Default)]
pub struct LocalUse {
    clients: AtomicUsize,
    bytes: AtomicU64,
}

/// The right to shared memory of this size; given back when dropped.
pub struct LocalSeat {
    of: Arc<LocalUse>,
    bytes: u64,
}

impl LocalUse {
    /// Bytes of all clients' shared memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts a client with so many bytes. `None`: there are `clients_max` clients already.
    pub fn take(self: &Arc<LocalUse>, clients_max: usize, bytes: u64) -> Option<LocalSeat> {
        if self.clients.fetch_add(1, Ordering::Relaxed) >= clients_max {
            self.clients.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let of = Arc::clone(self);
        Some(LocalSeat { of, bytes })
    }
}

impl Drop for LocalSeat {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
