//! Relocation of segments whose replica is damaged: they leave their place on disk, whatever
//! cleaning them would gain.
//!
//! Memory holds all needed data of such a segment, so the remedy is a cleaning pass: needed entries
//! go to survivors, a Swap replaces the segment, and its replica is freed (docs/protocols.md,
//! "Damage at rest").
//!
//! **Invariants**
//! - R1: a segment stays wanted until a pass has it as a victim, and every pass ends in a Swap. So
//!   a wanted segment that is no longer listed has been replaced, durably.
//! - R2: a pass for wanted segments takes one at a time: full segments of large entries may need
//!   more survivors than there are victims, and one survivor is always available.
//!
//! **Concurrency**: the set has a lock of its own, which is taken last.

use super::Log;
use crate::Store;
use duramen_base::ids::SegmentId;
use duramen_base::sync::coarse::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The segments to relocate.
#[derive(Default)]
pub struct Relocations {
    wanted: Mutex<BTreeSet<SegmentId>>,
    count: AtomicUsize,
    /// The running pass has such a victim, and must end even if memory is not short.
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

    fn want(&self, segment: SegmentId) {
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

    /// A pass has these victims (R1).
    pub fn taken(&self, victims: &[SegmentId]) {
        let mut wanted = self.wanted();
        let before = wanted.len();
        wanted.retain(|segment| !victims.contains(segment));
        self.count.store(wanted.len(), Ordering::Release);
        if wanted.len() < before {
            self.at_work.store(true, Ordering::Release);
        }
    }

    /// The running pass has ended.
    pub fn pass_ended(&self) {
        self.at_work.store(false, Ordering::Release);
    }
}

impl Store {
    /// The replica of this segment is damaged: the next cleaning pass takes it, whatever that
    /// gains. A repeated call has no effect. An open segment is taken when it is closed
    /// ([`close_heads`](Store::close_heads)).
    pub fn relocate(&self, segment: SegmentId) {
        let Some(log) = self.log() else {
            return;
        };
        if log.swaps().is_listed(segment) && !log.swaps().is_victim(segment) {
            log.swaps().relocations.want(segment);
            self.core().wakeup.ring();
        }
    }

    /// Progress of a segment's relocation.
    pub fn relocation(&self, segment: SegmentId) -> Relocation {
        let Some(log) = self.log() else {
            return Relocation::Done;
        };
        let swaps = log.swaps();
        // Looked up first, as a pass that begins meanwhile moves a segment from one of these places
        // to another.
        let has_source = swaps.is_at_work()
            || swaps.is_victim(segment)
            || swaps.is_emptied(segment)
            || self.has_window(log, segment);
        if !swaps.is_listed(segment) {
            Relocation::Done
        } else if has_source {
            Relocation::Waiting
        } else {
            Relocation::NoSource
        }
    }

    fn has_window(&self, log: &Log, segment: SegmentId) -> bool {
        let mut windows = self.core().space.segments.iter().enumerate();
        windows.any(|(window, known)| known.is_in_log() && log.segment_of(window) == segment)
    }

    /// A step of relocation, for a store without cleaner threads. False: there was nothing to do.
    pub fn relocation_step(&self, quota_bytes: u64) -> bool {
        let asks = self
            .log()
            .is_some_and(|log| log.swaps().relocations.is_asking());
        asks && self.core().cleaners() == 0 && self.clean_step(quota_bytes)
    }

    /// Closes the segment if it is a head's open one. Does nothing if another thread is using that
    /// head.
    pub fn close_head_of(&self, segment: SegmentId) {
        let Some(log) = self.log() else {
            return;
        };
        let core = self.core();
        for head in &core.heads {
            let Ok(mut tail) = head.tail.try_lock() else {
                continue;
            };
            let window = tail.window();
            if window.is_some_and(|window| log.segment_of(window as usize) == segment) {
                log.close_head(&core.space, head.number, &mut tail);
            }
        }
    }
}
