//! Whether a window's bytes are in memory, for whom: the one protocol of the tier between readers
//! and who takes memory away (F2). Model-checked in `tests/schedules/demotion.rs`.

use crate::epoch::Epochs;
use duramen_base::sync::{AtomicU64, Ordering};

/// Nobody finds the bytes in memory, whenever they were pinned.
const GONE: u64 = 1;

/// 0: the bytes are in memory. Otherwise sessions pinned after this stamp must not look there, nor
/// any if it is `GONE`.
pub struct Warmth(AtomicU64);

impl Default for Warmth {
    fn default() -> Warmth {
        Warmth(AtomicU64::new(0))
    }
}

impl Warmth {
    /// True if they may not be in memory for who is pinned from now on.
    #[inline(always)]
    pub fn is_cold(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// True if who is pinned by `stamp` finds them in memory, and will until it unpins.
    #[inline(always)]
    pub fn is_in_memory(&self, stamp: u64) -> bool {
        let since = self.0.load(Ordering::Acquire);
        since == 0 || (stamp <= since && since != GONE)
    }

    /// They have a copy elsewhere. Returns the stamp that [`leave`](Self::leave) asks for.
    pub fn turn_cold(&self, epochs: &Epochs) -> u64 {
        let since = epochs.retire_stamp().max(GONE + 1);
        self.0.store(since, Ordering::SeqCst);
        // After the store: whoever takes a later stamp than this has seen it.
        epochs.retire_stamp().max(since)
    }

    /// True if nobody finds them in memory any more, so that it may go. False: ask again later.
    pub fn leave(&self, epochs: &Epochs, stamp: u64) -> bool {
        if stamp >= epochs.quiet_before() {
            return false;
        }
        self.0.store(GONE, Ordering::SeqCst);
        // Who took an old stamp and shows it only now either is seen here, or sees that they are
        // gone.
        stamp < epochs.quiet_before()
    }

    /// As [`leave`](Self::leave) must not be, for the model checker to find.
    #[cfg(loom)]
    pub fn leave_at_once(&self, epochs: &Epochs, stamp: u64) -> bool {
        stamp < epochs.quiet_before()
    }

    /// The window is nobody's now.
    pub fn reset(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}
