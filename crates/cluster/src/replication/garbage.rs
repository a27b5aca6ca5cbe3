//! Replicas that backups may drop, and the requests for it.

use super::{BackupId, Config, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeSet;

/// The replicas that are not needed any more.
pub(super) struct Garbage {
    /// Replicas to be freed as soon as replication::O9 allows. They are out of the log, durably
    /// (replication::O6, replication::O7), or do not count (replication::O12).
    garbage: Vec<(BackupId, SegmentId)>,
    /// Frees in flight.
    freeing: BTreeSet<(BackupId, SegmentId)>,
    /// Unlisted at the restart: garbage when the first control segment is synced.
    leftovers: Vec<(BackupId, SegmentId)>,
    pinned: BTreeSet<SegmentId>,
    /// Most frees in flight; `None`: they are not counted.
    frees_max: Option<usize>,
}

impl Garbage {
    pub fn new(config: &Config) -> Garbage {
        Garbage {
            garbage: Vec::new(),
            freeing: BTreeSet::new(),
            leftovers: Vec::new(),
            pinned: BTreeSet::new(),
            frees_max: (!config.one_stream).then_some(config.frees_max),
        }
    }

    pub fn add(&mut self, backup: BackupId, segment: SegmentId) {
        self.garbage.push((backup, segment));
    }

    pub fn add_leftover(&mut self, backup: BackupId, segment: SegmentId) {
        self.leftovers.push((backup, segment));
    }

    /// The first control segment is synced.
    pub fn take_leftovers(&mut self) {
        self.garbage.append(&mut self.leftovers);
    }

    pub fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty()
    }

    /// The replica is used again, or replaced in its place. Returns whether it was to be freed.
    pub fn take_back(&mut self, backup: BackupId, segment: SegmentId) -> bool {
        let before = self.garbage.len();
        self.garbage.retain(|entry| *entry != (backup, segment));
        self.garbage.len() < before
    }

    /// The backup is gone, with its replicas.
    pub fn lost(&mut self, backup: BackupId) {
        self.freeing.retain(|(at, _)| *at != backup);
        self.garbage.retain(|(at, _)| *at != backup);
        self.leftovers.retain(|(at, _)| *at != backup);
    }

    /// The backup has dropped a replica.
    pub fn freed(&mut self, backup: BackupId, segment: SegmentId) {
        self.freeing.remove(&(backup, segment));
    }

    /// Backups that are told to drop their replica of this segment.
    pub fn freeing_at(&self, segment: SegmentId) -> impl Iterator<Item = BackupId> {
        let freeing = self.freeing.iter().filter(move |(_, of)| *of == segment);
        freeing.map(|(at, _)| *at)
    }

    /// Backups that will be told to drop their replica of this segment.
    pub fn to_free_at(&self, segment: SegmentId) -> impl Iterator<Item = BackupId> {
        let garbage = self.garbage.iter().filter(move |(_, of)| *of == segment);
        garbage.map(|(at, _)| *at)
    }

    /// Keeps these segments from being freed (replication::O9).
    pub fn pin(&mut self, segments: impl Iterator<Item = SegmentId>) {
        self.pinned.extend(segments);
    }

    pub fn unpin(&mut self, segment: SegmentId) {
        self.pinned.remove(&segment);
    }

    pub fn unpin_all(&mut self) {
        self.pinned.clear();
    }

    /// The replicas to be freed now: those that no rule keeps, as far as there are requests for
    /// them.
    pub fn take(
        &mut self,
        is_kept: impl Fn(BackupId, SegmentId) -> bool,
    ) -> Vec<(BackupId, SegmentId)> {
        let careless = has_bug(Bug::PinnedFreed);
        let (pinned, freeing, most) = (&self.pinned, &mut self.freeing, self.frees_max);
        let freed = self.garbage.extract_if(.., |(backup, segment)| {
            let allowed = (careless || !pinned.contains(segment))
                && !is_kept(*backup, *segment)
                && most.is_none_or(|most| freeing.len() < most);
            if allowed && most.is_some() {
                freeing.insert((*backup, *segment));
            }
            allowed
        });
        freed.collect()
    }

    /// Whether nothing is to be freed, or being freed.
    pub fn is_empty(&self) -> bool {
        self.garbage.is_empty() && self.leftovers.is_empty() && self.freeing.is_empty()
    }

    /// Number of replicas to be freed, and of those that are being freed.
    pub fn counts(&self) -> (usize, usize) {
        let to_be_freed = self.garbage.len() + self.leftovers.len();
        (to_be_freed, self.freeing.len())
    }
}
