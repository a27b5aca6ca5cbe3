//! Whether a window's bytes are in memory for a given session: the one protocol of the tier between
//! readers and the thread that frees memory (core::flash::F2). Model-checked in
//! `tests/it/schedules/demotion.rs`.

use crate::epoch::Epochs;
use duramen_base::sync::{AtomicU64, Ordering};

/// No session finds the bytes in memory, whenever it was pinned.
const GONE: u64 = 1;

/// 0: the bytes are in memory. Otherwise: sessions pinned after this stamp must not read them
/// there; with `GONE` no session may.
pub struct Warmth(AtomicU64);

impl Default for Warmth {
    fn default() -> Warmth {
        Warmth(AtomicU64::new(0))
    }
}

impl Warmth {
    /// True if a session that is pinned from now on may not find the bytes in memory.
    #[inline(always)]
    pub fn is_cold(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// True if a session that is pinned by `stamp` finds the bytes in memory, and will until it
    /// unpins.
    #[inline(always)]
    pub fn is_in_memory(&self, stamp: u64) -> bool {
        let since = self.0.load(Ordering::Acquire);
        since == 0 || (stamp <= since && since != GONE)
    }

    /// Notes that the bytes have a copy elsewhere. Returns the stamp that [`leave`](Self::leave)
    /// needs.
    pub fn turn_cold(&self, epochs: &Epochs) -> u64 {
        let since = epochs.retire_stamp().max(GONE + 1);
        self.0.store(since, Ordering::SeqCst);
        // The stamp is taken after the store: a session with a later stamp has seen the store.
        epochs.retire_stamp().max(since)
    }

    /// True if no session finds the bytes in memory any more, so that the memory may be freed. If
    /// not, the caller tries again later.
    pub fn leave(&self, epochs: &Epochs, stamp: u64) -> bool {
        if stamp >= epochs.quiet_before() {
            return false;
        }
        self.0.store(GONE, Ordering::SeqCst);
        // A session that took an old stamp and shows it only now is either seen here, or sees
        // `GONE`.
        stamp < epochs.quiet_before()
    }

    /// A wrong [`leave`](Self::leave), for the model checker to find.
    #[cfg(loom)]
    pub fn leave_at_once(&self, epochs: &Epochs, stamp: u64) -> bool {
        stamp < epochs.quiet_before()
    }

    /// Notes that the window belongs to no segment now.
    pub fn reset(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
