//! Reclaim epochs: memory is reused only when no session that could still see it is inside the
//! store.
//!
//! **Invariants**
//! - E1: a session's slot holds its stamp while it is pinned and `IDLE` otherwise. The store of the
//!   stamp is ordered before the session's first index read (StoreLoad fence in `pin`).
//! - E2: memory that was unlinked before `retire_stamp` returned `s` may be reused once
//!   `quiet_before() > s`: every session pinned then took its stamp after the unlinking, and so
//!   cannot have found the memory.
//! - E3: `quiet_before` is at most the time at which its scan began. So memory that is retired
//!   during the scan, or after it, is not older than the result, whichever session pins meanwhile.
//!   A list may be locked after the bound was taken.
//!
//! **Concurrency**: only its session writes a slot; `quiet_before` reads all of them. Paper:
//! [Merritt17 §3.3]; differs: the fence that Nibble's code lacks (there, the first index read may
//! pass a pin).

use crate::Error;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, Padded, fence};
use duramen_base::ticks::Ticks;

const IDLE: u64 = u64::MAX;
/// Maximum number of sessions. Each has a slot in a cache line of its own.
pub const SESSIONS_MAX: usize = 1024;
/// Slots that no session gets: for threads that load, replay or walk, each for the time of one
/// step.
pub const VISITORS: usize = 16;

/// The table of slots of one store.
pub struct Epochs {
    ticks: Ticks,
    slots: Box<[Padded<AtomicU64>]>,
    /// Number of slots, from the first on, that were ever in use: bounds the scan of
    /// `quiet_before`.
    used: AtomicUsize,
    free: Mutex<Vec<usize>>,
}

/// A slot of the table; given back by [`Epochs::unregister`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub usize);

impl Epochs {
    pub fn new(slots: usize, ticks: Ticks) -> Epochs {
        Epochs {
            ticks,
            slots: (0..slots).map(|_| Padded(AtomicU64::new(IDLE))).collect(),
            used: AtomicUsize::new(0),
            free: Mutex::new((0..slots).rev().collect()),
        }
    }

    /// Takes a slot for a session. Leaves [`VISITORS`] slots to short visitors.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn register_session(&self) -> Result<SlotId, Error> {
        if self.free.lock().expect("slot list").len() <= VISITORS {
            let limit = SESSIONS_MAX;
            return Err(Error::TooManySessions { limit });
        }
        self.register()
    }

    /// # Errors
    /// [`Error::TooManySessions`] when all slots are taken.
    pub fn register(&self) -> Result<SlotId, Error> {
        let mut free = self.free.lock().expect("slot list");
        let id = free.pop().ok_or(Error::TooManySessions {
            limit: self.slots.len(),
        })?;
        // SeqCst: a later `quiet_before` must scan this slot if it could otherwise miss its pin
        // (pairs with the load there).
        self.used.fetch_max(id + 1, Ordering::SeqCst);
        Ok(SlotId(id))
    }

    pub fn unregister(&self, id: SlotId) {
        debug_assert!(!self.is_pinned(id));
        self.free.lock().expect("slot list").push(id.0);
    }

    /// Marks the slot's owner as inside (E1).
    #[inline(always)]
    pub fn pin(&self, id: SlotId) {
        let slot = &self.slots[id.0].0;
        let now = self.ticks.now();
        #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
        {
            // XCHG is a full barrier and cheaper than a store and MFENCE.
            slot.swap(now, Ordering::SeqCst);
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
        {
            // Release: a thread that sees this stamp, and not that the slot was idle before, may
            // assume that all reads under the last pin have ended (pairs with Acquire in
            // `quiet_before`).
            slot.store(now, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// A wrong pin, for the model checker to find: the reads that follow may pass it
    /// (docs/traps.md, trap 14).
    #[cfg(loom)]
    pub fn pin_without_fence(&self, id: SlotId) {
        self.slots[id.0]
            .0
            .store(self.ticks.now(), Ordering::Relaxed);
    }

    /// Marks the slot's owner as outside.
    #[inline(always)]
    pub fn unpin(&self, id: SlotId) {
        // Release: the owner's reads have ended before the slot reads as idle (pairs with Acquire
        // in `quiet_before`).
        self.slots[id.0].0.store(IDLE, Ordering::Release);
    }

    /// The stamp of a slot that the caller has pinned.
    #[inline(always)]
    pub fn stamp_of(&self, id: SlotId) -> u64 {
        self.slots[id.0].0.load(Ordering::Relaxed)
    }

    pub fn is_pinned(&self, id: SlotId) -> bool {
        self.slots[id.0].0.load(Ordering::Relaxed) != IDLE
    }

    /// A stamp for memory that was just unlinked by this thread (E2).
    pub fn retire_stamp(&self) -> u64 {
        // The unlinking stores come before the stamp in the one order of SeqCst fences.
        fence(Ordering::SeqCst);
        self.ticks.now_after()
    }

    /// The oldest stamp of a pinned session, and at most the present. Memory that was retired
    /// before it has no readers (E3).
    pub fn quiet_before(&self) -> u64 {
        let now = self.ticks.now_before();
        fence(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst);
        let slots = self.slots[..used].iter();
        let oldest = slots.map(|slot| slot.0.load(Ordering::Acquire)).min();
        let oldest = oldest.unwrap_or(IDLE);
        if has_bug(Bug::QuietWithoutBound) {
            return oldest;
        }
        oldest.min(now)
    }

    /// True if every slot but `except` is outside.
    pub fn others_idle(&self, except: SlotId) -> bool {
        fence(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst);
        self.slots[..used]
            .iter()
            .enumerate()
            .all(|(n, slot)| n == except.0 || slot.0.load(Ordering::Acquire) == IDLE)
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_pin_holds_back_what_is_retired_after_it() {
        for ticks in [Ticks::detect(), Ticks::counting()] {
            let epochs = Epochs::new(2, ticks);
            let (a, b) = (epochs.register().unwrap(), epochs.register().unwrap());
            assert_eq!(epochs.register(), Err(Error::TooManySessions { limit: 2 }));
            let before = epochs.retire_stamp();
            epochs.pin(a);
            let stamp = epochs.retire_stamp();
            assert!(epochs.quiet_before() > before);
            assert!(epochs.quiet_before() <= stamp, "a may still see it");
            epochs.pin(b);
            epochs.unpin(a);
            assert!(epochs.quiet_before() > stamp, "b came later");
            assert!(epochs.others_idle(b) && !epochs.others_idle(a));
            epochs.unpin(b);
            // A bound that was taken while no session was inside once released memory that was
            // retired after it, under a session that had pinned itself in between.
            let quiet = epochs.quiet_before();
            epochs.pin(a);
            let stamp = epochs.retire_stamp();
            assert!(stamp >= quiet, "retired after the bound was taken");
            epochs.unpin(a);
            epochs.unregister(a);
            assert!(epochs.register().is_ok());
        }
    }
}
