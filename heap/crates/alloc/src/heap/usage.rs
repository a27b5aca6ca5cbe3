//! The amounts that are allocated: bytes of programs, and the flash that they need.

use crate::budget::add_up_to;
use crate::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocated amounts.
pub(super) struct Usage {
    /// Flash, as counted for allocations (heap::A3), and the most of it.
    flash_bytes: AtomicU64,
    flash_max: u64,
    allocated_bytes: AtomicU64,
    allocations: AtomicU64,
}

impl Usage {
    pub fn new(flash_max: u64) -> Usage {
        Usage {
            flash_bytes: AtomicU64::new(0),
            flash_max,
            allocated_bytes: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
        }
    }

    /// Whether this amount of flash is left now.
    pub fn could_reserve(&self, bytes: u64) -> Result<(), Error> {
        let taken = self.flash_bytes();
        if bytes > self.flash_max.saturating_sub(taken) {
            return Err(self.full(taken, bytes));
        }
        Ok(())
    }

    /// Counts flash for an allocation (heap::A3).
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        add_up_to(&self.flash_bytes, bytes, self.flash_max).map_err(|taken| self.full(taken, bytes))
    }

    fn full(&self, taken: u64, wanted: u64) -> Error {
        Error::NoSpace {
            allocated_bytes: taken,
            wanted_bytes: wanted,
            capacity_bytes: self.flash_max,
        }
    }

    /// Uncounts flash.
    pub fn release(&self, bytes: u64) {
        self.flash_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub fn flash_bytes(&self) -> u64 {
        self.flash_bytes.load(Ordering::Acquire)
    }

    /// Counts allocated bytes.
    pub fn count(&self, bytes: u64) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Uncounts freed bytes.
    pub fn uncount(&self, bytes: u64) {
        self.allocated_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }
}
