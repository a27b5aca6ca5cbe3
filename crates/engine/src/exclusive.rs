//! Exclusive entry: one session keeps all others out of the store for steps that must be atomic
//! over everything.
//!
//! **Invariants**
//! - A1: between `enter_alone` and `leave_alone` no other slot is pinned, except for the instant of
//!   a `try_enter` that fails.
//! - A2: a guard that stays inside while it waits never unpins in between, not even to pin again at
//!   once: `enter_alone` could return in that instant (the guard takes a fresh stamp by pinning
//!   over the old one).
//! - A3: sessions that wait at the door enter before another session is alone: sessions that are
//!   alone again and again keep nobody out.
//!
//! **Concurrency**: Dekker's handshake. A session that enters pins, then reads `wanted`. A session
//! that wants to be alone sets `wanted`, then reads the pins. There is a full barrier on both sides
//! (in `Epochs::pin` and `Epochs::others_idle`), so at least one sees the other.

use crate::epoch::{Epochs, SlotId};
use duramen_base::sync::{AtomicBool, AtomicU32, Ordering};
use duramen_base::waits::{LongWait, NOTHING, Resource};

/// The door of a store: sessions and cleaners pass it before they use what others may free.
pub struct Door {
    /// The table of those who are inside.
    epochs: Epochs,
    /// Whether a session is alone, or waits to be.
    wanted: AtomicBool,
    /// Number of sessions that wait at the door (A3).
    waiting: AtomicU32,
}

impl Door {
    pub fn new(epochs: Epochs) -> Door {
        Door {
            epochs,
            wanted: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Pins a slot unless another session is, or wants to be, alone. `regardless`: the caller is
    /// that session, or holds a resource that it waits for.
    #[inline(always)]
    pub fn try_enter(&self, slot: SlotId, regardless: bool) -> bool {
        self.epochs.pin(slot);
        // Acquire pairs with Release in `leave_alone`: everything done alone is seen.
        if self.wanted.load(Ordering::Acquire) && !regardless {
            self.epochs.unpin(slot);
            return false;
        }
        true
    }

    #[inline(always)]
    pub fn enter(&self, slot: SlotId) {
        if !self.try_enter(slot, false) {
            self.enter_slowly(slot);
        }
    }

    #[cold]
    fn enter_slowly(&self, slot: SlotId) {
        let mut waiting = LongWait::new(Resource::Door, NOTHING);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The flag is read before each attempt: every attempt is a pin, and many threads that try
        // could keep the other session from ever being alone.
        while self.is_wanted() || !self.try_enter(slot, false) {
            waiting.wait();
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Unpins a slot.
    #[inline(always)]
    pub fn leave(&self, slot: SlotId) {
        self.epochs.unpin(slot);
    }

    /// True if a session is, or waits to be, alone.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Waits for its turn to be alone, and until `slot` is the only one inside. Ended by
    /// `leave_alone`.
    pub fn enter_alone(&self, slot: SlotId) {
        let mut waiting = LongWait::new(Resource::Door, NOTHING);
        while self.waiting.load(Ordering::Relaxed) > 0
            || self
                .wanted
                .compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
        {
            waiting.wait();
        }
        let mut waiting = LongWait::new(Resource::Pin, &[Resource::Door]);
        while !self.epochs.others_idle(slot) {
            waiting.wait();
        }
        self.epochs.pin(slot);
    }

    /// Lets the others in again. The caller has unpinned, or stays inside as one of several
    /// sessions.
    pub fn leave_alone(&self) {
        self.wanted.store(false, Ordering::Release);
    }
}
