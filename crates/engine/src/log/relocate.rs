//! Relocation of segments whose replica is damaged: they leave their place on disk, whatever
//! cleaning them would gain.
//!
//! Memory holds all needed data of such a segment, so the remedy is a cleaning pass: needed entries
//! go to survivors, a Swap replaces the segment, and its replica is freed (docs/protocols.md,
//! "Damage at rest").
//!
//! **Invariants**
//! - R1: a segment stays wanted until a pass has it as a victim, or until no pass may take it any
//!   more. A pass ends in a Swap, or it is given up and its victims stay listed (swap::given_up).
//!   So a wanted segment that is no longer listed has been replaced, durably.
//! - R2: a pass for wanted segments takes one at a time: full segments of large entries may need
//!   more survivors than there are victims, and one survivor is always available.
//!
//! **Concurrency**: the set has a lock of its own, which is taken last.

use duramen_base::ids::SegmentId;
use duramen_base::sync::coarse::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The segments to relocate.
#[derive(Default)]
pub struct Relocations {
    wanted: Mutex<BTreeSet<SegmentId>>,
    count: AtomicUsize,
    /// The running pass has a segment of the set as its victim, and must end even if memory is not
    /// short.
    at_work: AtomicBool,
}

/// Progress of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// The log does not contain the segment any more: its replica is not needed.
    Done,
    /// The segment waits for its turn, for room, or for a Swap.
    Waiting,
    /// The segment is part of the log and memory holds nothing of it: only its replica has its
    /// content.
    NoSource,
}

impl Relocations {
    fn wanted(&self) -> MutexGuard<'_, BTreeSet<SegmentId>> {
        self.wanted.lock().expect("segments to be relocated")
    }

    pub fn want(&self, segment: SegmentId) {
        let mut wanted = self.wanted();
        wanted.insert(segment);
        self.count.store(wanted.len(), Ordering::Release);
    }

    /// True if a pass has to begin or end for the sake of these segments.
    pub fn is_asking(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0 || self.at_work.load(Ordering::Acquire)
    }

    pub fn is_wanted(&self, segment: SegmentId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.wanted().contains(&segment)
    }

    /// Notes that a pass has these victims (R1).
    pub fn taken(&self, victims: &[SegmentId]) {
        let mut wanted = self.wanted();
        let before = wanted.len();
        wanted.retain(|segment| !victims.contains(segment));
        self.count.store(wanted.len(), Ordering::Release);
        if wanted.len() < before {
            self.at_work.store(true, Ordering::Release);
        }
    }

    /// Notes that no pass may take these segments any more (R1).
    pub fn forget(&self, segments: &[SegmentId]) {
        let mut wanted = self.wanted();
        wanted.retain(|segment| !segments.contains(segment));
        self.count.store(wanted.len(), Ordering::Release);
    }

    /// Notes that the running pass has ended.
    pub fn pass_ended(&self) {
        self.at_work.store(false, Ordering::Release);
    }
}
