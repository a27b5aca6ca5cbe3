//! The segments of the log, and the passes whose victims are still among them.
//!
//! **Invariants** swap::D1, swap::D3 and swap::D4: which segments are listed, which of them may be
//! victims, and which entries are needed for them.
//!
//! **Concurrency**: one lock, read once per group of entries by cleaners and by a load. It is the
//! last one of its order (`log`, Lock order): under it no lock of the store is taken.

use super::Pass;
use duramen_base::ids::SegmentId;
use duramen_base::sync::coarse::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a listed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Opened by a head, or its Swap is durable: the rules of swap allow it as a victim.
    Settled,
    /// A survivor whose Swap is not durable yet (swap::D3).
    Unswapped,
    /// Its compaction was given up: no pass may take it (given_up::GU4).
    Kept,
    /// Survivor of a pass that was given up: no pass may take it (given_up::GU2).
    InVain,
}

#[derive(Default)]
pub struct List {
    segments: HashMap<u64, Life>,
    /// Passes announced and not yet swapped. Includes passes that a crash cut off before the last
    /// restart (swap::D4).
    passes: Vec<Pass>,
}

impl List {
    pub fn insert(&mut self, segment: SegmentId, life: Life) {
        let before = self.segments.insert(segment.0, life);
        assert!(before.is_none(), "segment {segment} opened twice"); // no id is given twice
    }

    /// Number of segments.
    pub fn count(&self) -> u64 {
        self.segments.len() as u64
    }

    /// `None`: the segment is not listed.
    pub fn life(&mut self, segment: SegmentId) -> Option<&mut Life> {
        self.segments.get_mut(&segment.0)
    }

    /// Takes these segments off the list; passes do not have them as victims any more.
    pub fn remove(&mut self, gone: &[SegmentId]) {
        for segment in gone {
            self.segments.remove(&segment.0);
        }
        for pass in &mut self.passes {
            pass.victims.retain(|victim| !gone.contains(victim));
        }
        self.passes.retain(|pass| !pass.victims.is_empty());
    }
}

/// The list and its lock.
pub struct Listed {
    list: RwLock<List>,
    /// Number of changes of the listed segments.
    serial: AtomicU64,
}

impl Default for Listed {
    fn default() -> Listed {
        Listed {
            list: RwLock::default(),
            serial: AtomicU64::new(1),
        }
    }
}

impl Listed {
    pub fn change(&self) -> RwLockWriteGuard<'_, List> {
        let list = self.list.write().expect("segment list");
        // Changed under the lock. Pairs with Acquire in `serial`.
        self.serial.fetch_add(1, Ordering::Release);
        list
    }

    /// Changes with every change of the segments. Read it before the list: an answer from the list
    /// is then at least as new as this number.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Acquire)
    }

    pub fn needs(&self) -> Required<'_> {
        Required {
            list: self.list.read().expect("segment list"),
        }
    }

    pub fn has(&self, segment: SegmentId) -> bool {
        self.needs().life(segment).is_some()
    }

    /// Adds a pass that begins.
    pub fn announce(&self, pass: Pass) {
        let mut list = self.list.write().expect("segment list");
        list.passes.push(pass);
    }

    /// Adds the passes of the control log that a crash cut off (swap::D4). Called before any
    /// segment is loaded.
    pub fn restore(&self, passes: &[Pass]) {
        self.change().passes.extend_from_slice(passes);
    }
}

/// The list, locked for reading.
pub struct Required<'a> {
    list: RwLockReadGuard<'a, List>,
}

impl Required<'_> {
    /// True if a tombstone with this victim must be kept. `leaving`: segments that the same Swap as
    /// the tombstone's removes (swap::D1, swap::D4).
    pub fn tombstone(&self, victim: SegmentId, leaving: &[SegmentId]) -> bool {
        let stays =
            |id: u64| self.list.segments.contains_key(&id) && !leaving.contains(&SegmentId(id));
        stays(victim.0)
            || self.list.passes.iter().any(|pass| {
                pass.has_survivor(victim.0) && pass.victims.iter().any(|id| stays(id.0))
            })
    }

    /// True if the segment may be a victim of a pass (swap::D3).
    pub fn is_settled(&self, segment: SegmentId) -> bool {
        self.life(segment) == Some(Life::Settled)
    }

    /// `None`: the segment is not listed.
    pub(super) fn life(&self, segment: SegmentId) -> Option<Life> {
        self.list.segments.get(&segment.0).copied()
    }

    pub(super) fn passes(&self) -> &[Pass] {
        &self.list.passes
    }
}
