//! Keys that leave the store without a request: expired and evicted ones, for a listener.
//!
//! **Concurrency**: the listener is called by any thread, which is in the store and may hold a head
//! and the buckets of a transaction. So it must not enter the store, and waits for nothing that a
//! thread in the store may hold.

use crate::{Departure, TableId};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

type Listener = Box<dyn Fn(Departure, TableId, &[u8]) + Send + Sync>;

/// The listener, and the departures of which it wants to hear.
#[derive(Default)]
pub struct Departures {
    listener: OnceLock<Listener>,
    /// Whether each kind of [`Departure`] is wanted. Relaxed: a departure at the time of a change
    /// may be reported or not.
    wanted: [AtomicBool; 2],
    /// The listener wants to hear of all departures, with the writes.
    all_wanted: AtomicBool,
}

impl Departures {
    /// Sets the listener; only the first one counts.
    pub fn listen(&self, listener: Listener) {
        self.listener.get_or_init(|| listener);
    }

    pub fn want(&self, departure: Departure, wanted: bool) {
        self.wanted[departure as usize].store(wanted, Ordering::Relaxed);
    }

    pub fn want_all(&self, wanted: bool) {
        self.all_wanted.store(wanted, Ordering::Relaxed);
    }

    #[inline]
    pub fn wants(&self, departure: Departure) -> bool {
        self.wanted[departure as usize].load(Ordering::Relaxed)
            || self.all_wanted.load(Ordering::Relaxed)
    }

    /// Tells that a key has left, unless it is that of a part (writes::N3).
    #[inline]
    pub fn tell(&self, departure: Departure, table: TableId, key: &[u8]) {
        if self.wants(departure)
            && !table.is_parts()
            && let Some(listener) = self.listener.get()
        {
            listener(departure, table, key);
        }
    }
}
