//! The hard memory budget, in bytes: memory is charged to it before it is backed.

use std::sync::atomic::{AtomicU64, Ordering};

pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub fn new(limit: u64) -> Budget {
        Budget {
            limit,
            used: AtomicU64::new(0),
        }
    }

    /// Takes `bytes` of the budget, or nothing and `false`.
    #[must_use]
    pub fn charge(&self, bytes: u64) -> bool {
        self.charge_leaving(bytes, 0)
    }

    /// As [`charge`](Self::charge), if `spare` bytes are left afterwards.
    #[must_use]
    pub fn charge_leaving(&self, bytes: u64, spare: u64) -> bool {
        // Relaxed: the budget orders nothing, it only counts.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                let sum = used.checked_add(bytes)?;
                (sum.checked_add(spare)? <= self.limit).then_some(sum)
            })
            .is_ok()
    }

    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "budget released twice"); // engine::space::S1
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn free(&self) -> u64 {
        self.limit - self.used()
    }
}
