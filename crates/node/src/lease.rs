//! Whether this server may answer reads now: one number that reactors read, computed from the
//! leases that holders grant.
//!
//! **Invariants**
//! - H1: while [`ReadUntil`] allows reads, each server that a recovery could ask for the newest
//!   control segment grants this master a read lease (cluster::lease::E1 to
//!   cluster::lease::E4). Holders are looked up after all granted leases had been requested: a
//!   later holder grants from its first control bytes on, and those are younger than each of these
//!   leases.
//! - H2: a life that has ended never reads again, even after late grants.
//!
//! **Concurrency**: one writer, the node; any thread reads.
//!
//! Paper: [Ousterhout15 §7.10]; differs: reads are never wrong (docs/traps.md, trap 26).

use duramen_cluster::lease::MasterLease;
use duramen_cluster::replication::BackupId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time until which reads may be answered. Check it after the read was executed, and before its
/// reply leaves: a [`View`](crate::View) alone is no permission.
#[derive(Debug, Default)]
pub struct ReadUntil(AtomicU64);

impl ReadUntil {
    /// `now_us`: the clock that drives the node.
    pub fn may_read(&self, now_us: u64) -> bool {
        now_us < self.0.load(Ordering::Acquire)
    }

    /// The end of the newest lease, on the same clock; 0: there was none.
    pub fn end_us(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The driver's node sets it; call it directly only without a node.
    pub fn set(&self, until_us: u64) {
        self.0.store(until_us, Ordering::Release);
    }
}

/// The master's side of its leases.
pub(crate) struct Leases {
    master: MasterLease,
    until: Arc<ReadUntil>,
    /// The time of the last request to each holder.
    asked: BTreeMap<BackupId, u64>,
    again_us: u64,
    ended: bool,
}

impl Leases {
    pub fn new(read_lease_ms: u32, until: Arc<ReadUntil>) -> Leases {
        let lease_us = u64::from(read_lease_ms) * 1000;
        Leases {
            master: MasterLease::new(lease_us),
            until,
            asked: BTreeMap::new(),
            again_us: lease_us / 8,
            ended: false,
        }
    }

    pub fn granted(&mut self, holder: BackupId, sent_us: u64) {
        self.master.granted(holder, sent_us);
    }

    /// `holders`: looked up now (H1). Returns the holders to ask.
    pub fn step(&mut self, now_us: u64, holders: &BTreeSet<BackupId>) -> Vec<BackupId> {
        if self.ended {
            return Vec::new(); // H2
        }
        let until_us = self.master.until(holders.iter().copied());
        self.until.set(until_us);
        let all: Vec<BackupId> = holders.iter().copied().collect();
        self.master.keep(&all);
        self.asked.retain(|holder, _| holders.contains(holder));
        let mut due = self.master.due(now_us, all);
        due.retain(|holder| {
            let asked = self.asked.get(holder);
            asked.is_none_or(|at_us| at_us + self.again_us <= now_us)
        });
        self.asked
            .extend(due.iter().map(|holder| (*holder, now_us)));
        due
    }

    pub fn end(&mut self) {
        self.ended = true;
        self.until.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BackupId = BackupId(1);
    const B: BackupId = BackupId(2);

    fn leases() -> (Leases, Arc<ReadUntil>) {
        let until = Arc::new(ReadUntil::default());
        (Leases::new(110, until.clone()), until)
    }

    #[test]
    fn all_present_holders_count_and_each_is_asked_in_time() {
        let (mut leases, until) = leases();
        let both = BTreeSet::from([A, B]);
        assert_eq!(leases.step(0, &both), [A, B]);
        assert_eq!(leases.step(5_000, &both), [], "they were just asked");
        leases.granted(A, 0);
        leases.step(6_000, &both);
        assert!(!until.may_read(6_000), "B has granted nothing");
        leases.granted(B, 2_000);
        assert_eq!(leases.step(6_000, &both), []);
        assert!(until.may_read(99_999) && !until.may_read(100_000));
        assert_eq!(leases.step(51_000, &both), [A]);
        // A third holder: nothing is read before it grants.
        leases.step(52_000, &BTreeSet::from([A, B, BackupId(3)]));
        assert!(!until.may_read(52_000));
        leases.step(53_000, &BTreeSet::from([B]));
        assert!(until.may_read(101_999) && !until.may_read(102_000));
    }

    #[test]
    fn what_is_granted_after_the_end_counts_nothing() {
        let (mut leases, until) = leases();
        let holders = BTreeSet::from([A]);
        leases.granted(A, 0);
        leases.step(1, &holders);
        assert!(until.may_read(1));
        leases.end();
        leases.granted(A, 2);
        assert_eq!(leases.step(3, &holders), []);
        assert!(!until.may_read(3));
    }
}
