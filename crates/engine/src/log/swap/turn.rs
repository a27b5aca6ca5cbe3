//! The right to run a pass, and a note that passes are the only way to free memory.
//!
//! One pass runs at a time (docs/traps.md, trap 17).

use std::sync::atomic::{AtomicBool, Ordering};

/// The right to run a pass.
pub struct Turn {
    /// Maximum number of passes that wait for their Swap.
    pending_max: usize,
    taken: AtomicBool,
    /// Compaction found nothing to free.
    dry: AtomicBool,
}

impl Turn {
    pub fn new(pending_max: usize) -> Turn {
        Turn {
            pending_max: pending_max.max(1),
            taken: AtomicBool::new(false),
            dry: AtomicBool::new(false),
        }
    }

    /// Takes the right to run a pass while `pending` passes wait for their Swap. Returns false if
    /// another context has the right, or if too many passes wait for the disk.
    pub fn try_take(&self, pending: usize) -> bool {
        pending < self.pending_max
            && self
                .taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    pub fn end(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// True if a context runs a pass.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// True if compaction found nothing to free.
    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    pub fn set_dry(&self, dry: bool) {
        self.dry.store(dry, Ordering::Relaxed);
    }
}
