//! The segments that rules have to check.

use super::SegmentId;
use super::segments::Segments;
use std::collections::BTreeSet;

/// The segments that are not done.
#[derive(Default)]
pub(super) struct Agenda {
    /// Checked in each poll.
    active: BTreeSet<SegmentId>,
    /// Segments with planned copies, of which none is under way because all calls are taken
    /// (replication::O11). They are checked when a call is free.
    waiting: BTreeSet<SegmentId>,
    /// Segments with copies that no backup takes now (replication::O11). They are checked when that
    /// may have changed.
    parked: BTreeSet<SegmentId>,
}

impl Agenda {
    /// A segment has new work.
    pub fn add(&mut self, id: SegmentId) {
        self.active.insert(id);
    }

    /// A segment that is whole on all replicas needs no more checks.
    pub fn is_done(&mut self, id: SegmentId) {
        self.active.remove(&id);
    }

    /// A segment needs no more checks, and waits for nothing.
    pub fn remove(&mut self, id: SegmentId) {
        self.active.remove(&id);
        self.waiting.remove(&id);
        self.parked.remove(&id);
    }

    /// As [`add`](Self::add), for a segment that may wait.
    pub fn look_at(&mut self, id: SegmentId) {
        self.waiting.remove(&id);
        self.parked.remove(&id);
        self.active.insert(id);
    }

    /// A segment that waits is checked in the next poll.
    pub fn wake(&mut self, id: SegmentId) {
        if self.waiting.remove(&id) || self.parked.remove(&id) {
            self.active.insert(id);
        }
    }

    /// No backup takes the segment's copies now.
    pub fn park(&mut self, id: SegmentId) {
        self.active.remove(&id);
        self.parked.insert(id);
    }

    /// The segment's copies wait for calls.
    pub fn let_wait(&mut self, id: SegmentId) {
        self.active.remove(&id);
        self.waiting.insert(id);
    }

    /// Copies that no backup took may be taken now.
    pub fn try_parked(&mut self) {
        self.waiting.append(&mut self.parked);
    }

    /// The next segment whose copies wait for calls, in turn from `first` on.
    pub fn next_waiting(&self, first: SegmentId) -> Option<SegmentId> {
        let next = self.waiting.range(first..).next();
        next.or(self.waiting.first()).copied()
    }

    pub fn is_active(&self, id: SegmentId) -> bool {
        self.active.contains(&id)
    }

    pub fn active(&self) -> impl Iterator<Item = &SegmentId> {
        self.active.iter()
    }

    /// Segments with work that is not done.
    pub fn unfinished(&self) -> impl Iterator<Item = &SegmentId> {
        let waiting = self.waiting.iter().chain(&self.parked);
        self.active.iter().chain(waiting)
    }

    /// Number of those that wait for calls, and of those that wait for backups.
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.parked.len())
    }

    /// The segments that rules have to check, from `first` on and then those before it: only those
    /// whose replicas are copies (replication::O11), or all others.
    pub fn turns(&self, first: SegmentId, copies: bool, segments: &Segments) -> Vec<SegmentId> {
        let later = self.active.range(first..);
        let all = later.chain(self.active.range(..first)).copied();
        let is_copied = |id: &SegmentId| {
            let segment = segments.get(*id);
            segment.is_some_and(|segment| segment.close_recorded)
        };
        all.filter(|id| is_copied(id) == copies).collect()
    }
}
