//! The hard memory budget, in bytes: memory is charged to it before it is backed.
//!
//! The limit can change while the store is used. A raised limit holds at once. A lowered one is
//! below the memory in use at first, so the *ceiling*, up to which memory may be charged, follows
//! the memory that is given back down to the limit. The ceiling leaves what survivors, tombstones
//! and a few heads need, so writers go on meanwhile.
//!
//! **Invariants**
//! - BU1: the ceiling is at least the limit, and above it only after the limit was lowered.
//! - BU2: a charge is granted only below the ceiling. A charge that reads the ceiling just before
//!   it falls may exceed it once; then nothing more is granted until memory was given back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Budget {
    /// The limit with which the store was made. Its structures were sized by this limit.
    start: u64,
    /// The highest limit that the store has address space for.
    max: u64,
    limit: AtomicU64,
    ceiling: AtomicU64,
    used: AtomicU64,
    /// Held while the limit or the ceiling changes.
    changes: Mutex<()>,
}

impl Budget {
    /// `max`: the highest limit that can be set later; at least `limit`.
    pub fn new(limit: u64, max: u64) -> Budget {
        Budget {
            start: limit,
            max: max.max(limit),
            limit: AtomicU64::new(limit),
            ceiling: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            changes: Mutex::new(()),
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
                (sum.checked_add(spare)? <= self.ceiling()).then_some(sum)
            })
            .is_ok()
    }

    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "budget released twice"); // engine::space::S1
    }

    /// Sets the limit if `check`, which gets the former limit, allows it. Changes are made one
    /// after the other.
    ///
    /// # Errors
    /// Those of `check`; nothing is changed.
    pub fn set_limit<E>(
        &self,
        bytes: u64,
        check: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let _changes = self.changes.lock().expect("changes of the budget");
        check(self.limit())?;
        self.limit.store(bytes, Ordering::Relaxed);
        self.ceiling.fetch_max(bytes, Ordering::Relaxed); // BU1: never below the limit
        Ok(())
    }

    /// Lowers the ceiling to the limit, if that leaves `kept` bytes free. If not, lowers it towards
    /// the limit so far that `kept` and `spare` bytes are free.
    pub fn follow(&self, kept: u64, spare: u64) {
        if !self.is_above_limit() {
            return;
        }
        let _changes = self.changes.lock().expect("changes of the budget");
        let (limit, needed) = (self.limit(), self.used() + kept);
        let ceiling = match needed <= limit {
            true => limit,
            false => self.ceiling().min(needed + spare).max(limit),
        };
        self.ceiling.store(ceiling, Ordering::Relaxed);
    }

    /// True while memory has to be given back because the limit was lowered.
    pub fn is_above_limit(&self) -> bool {
        self.ceiling() > self.limit()
    }

    /// The limit that the store should keep, as it was last set.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// The number of bytes up to which memory may be charged now.
    fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Relaxed)
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// Memory in use beyond the limit, in bytes.
    pub fn excess_bytes(&self) -> u64 {
        self.used().saturating_sub(self.limit())
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn free(&self) -> u64 {
        self.ceiling().saturating_sub(self.used()) // BU2: up to the ceiling
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_follows_the_memory_in_use_down_to_the_limit() {
        let budget = Budget::new(1000, 1500);
        let set = |bytes| budget.set_limit(bytes, |_| Ok::<(), ()>(()));
        assert!(budget.charge(900));
        set(400).unwrap();
        assert_eq!((budget.limit(), budget.free()), (400, 100));
        budget.follow(20, 10);
        assert_eq!(budget.free(), 30, "what survivors and a few heads need");
        assert!(budget.charge(30) && !budget.charge(1));
        budget.follow(20, 10);
        assert_eq!(budget.free(), 0, "the ceiling never rises by itself");
        budget.release(530);
        budget.follow(20, 10);
        assert_eq!((budget.used(), budget.free()), (400, 30));
        budget.release(19);
        budget.follow(20, 10);
        assert!(budget.is_above_limit());
        budget.release(1);
        budget.follow(20, 10);
        assert!(!budget.is_above_limit());
        assert_eq!((budget.used(), budget.free()), (380, 20));
    }

    #[test]
    fn a_raised_limit_holds_at_once() {
        let budget = Budget::new(1000, 1500);
        let set = |bytes| budget.set_limit(bytes, |_| Ok::<(), ()>(()));
        assert!(budget.charge(900) && !budget.charge(200));
        set(1500).unwrap();
        assert!(!budget.is_above_limit() && budget.charge(600));
        // Raised on the way down, below and above the ceiling.
        set(500).unwrap();
        set(800).unwrap();
        assert!(budget.is_above_limit() && budget.free() == 0);
        set(1500).unwrap();
        assert!(!budget.is_above_limit());
    }

    #[test]
    fn a_refused_change_changes_nothing() {
        let budget = Budget::new(1000, 1000);
        assert_eq!(budget.set_limit(500, Err), Err(1000));
        assert_eq!((budget.limit(), budget.free()), (1000, 1000));
    }
}
