//! Keys that were written, for a listener.
//!
//! **Invariants**
//! - N1: the listener hears of a write after it is visible, and before its guard has ended.
//! - N2: the listener hears of all writes of guards that begin after it was set to hear of writes,
//!   and of no write that was not done. Pinning is a full barrier between the two.
//! - N3: parts are no keys of users: the listeners to writes and to departures hear of no part.
//!
//! **Concurrency**: as for `departures`.

use crate::TableId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A key that was written or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The number that the guard's user had set as the origin of its writes.
    pub origin: u64,
    /// Clients that began to read the key after this write, under the same guard: the write is no
    /// news for them (`Guard::begin_read`).
    pub readers: Vec<u64>,
    pub table: TableId,
    pub key: Box<[u8]>,
}

type Listener = Box<dyn Fn(&[Written]) + Send + Sync>;

/// The listener to writes.
#[derive(Default)]
pub struct Writes {
    listener: OnceLock<Listener>,
    wanted: AtomicBool,
}

impl Writes {
    /// Sets the listener; only the first one counts.
    pub fn listen(&self, listener: Listener) {
        self.listener.get_or_init(|| listener);
    }

    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    #[inline(always)]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    pub fn tell(&self, writes: &[Written]) {
        if let Some(listener) = self.listener.get() {
            listener(writes);
        }
    }
}
