//! The oldest control segment that counts, of which the coordinator has to know (replication::O10).

use super::replicas::LostControl;
use super::{BackupId, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeSet;

/// The control segments that the coordinator has to note; see the module.
pub(super) struct Floor {
    /// Whether a coordinator has to note it.
    coordinated: bool,
    /// Whether the next control segment must be noted.
    is_due: bool,
    /// The control segment that must be noted.
    wanted: SegmentId,
    asked: SegmentId,
    noted: SegmentId,
    /// Replicas of control segments that were lost before they were closed.
    stale: BTreeSet<(SegmentId, BackupId)>,
}

impl Floor {
    pub fn new(coordinated: bool) -> Floor {
        Floor {
            coordinated,
            is_due: coordinated,
            wanted: SegmentId::NONE,
            asked: SegmentId::NONE,
            noted: SegmentId::NONE,
            stale: BTreeSet::new(),
        }
    }

    /// A control segment begins. It takes the place of one that is to be noted and is not yet: that
    /// one may end before all its replicas are whole.
    pub fn begins(&mut self, id: SegmentId) {
        if std::mem::take(&mut self.is_due) || self.unnoted().is_some() {
            self.wanted = id;
        }
    }

    /// A replica of a control segment is lost while `current` is the newest one.
    pub fn lost(&mut self, lost: LostControl, current: Option<SegmentId>) {
        // A control segment below the noted one does not count, and its holders are not needed.
        if !self.coordinated || !lost.may_look_new || lost.id < self.noted {
            return;
        }
        self.stale.insert((lost.id, lost.backup));
        if Some(lost.id) == current {
            self.is_due = true;
        } else {
            self.wanted = self.wanted.max(current.unwrap_or_default());
        }
    }

    /// The coordinator has noted, durably, that no control segment before `min_open` counts.
    pub fn is_noted(&mut self, min_open: SegmentId) {
        self.noted = self.noted.max(min_open);
        let noted = self.noted;
        self.stale.retain(|(control, _)| *control >= noted);
    }

    /// The control segment that must be noted before the log continues, if it is not yet.
    pub fn unnoted(&self) -> Option<SegmentId> {
        let waits = self.noted < self.wanted && !has_bug(Bug::FloorIgnored);
        waits.then_some(self.wanted)
    }

    /// Whether no control segment was noted yet, and one must be.
    pub fn is_first(&self) -> bool {
        self.unnoted().is_some() && self.noted == SegmentId::NONE
    }

    /// Whether nothing has to be noted.
    pub fn is_settled(&self) -> bool {
        self.noted >= self.wanted
    }

    /// The control segment that the coordinator has to be told, if it was not told yet and is on
    /// all its replicas, so that a recovery will find it.
    pub fn tell(&mut self, is_there: impl FnOnce(SegmentId) -> bool) -> Option<SegmentId> {
        if self.is_settled() || self.asked == self.wanted || !is_there(self.wanted) {
            return None;
        }
        self.asked = self.wanted;
        Some(self.wanted)
    }

    /// Backups that may come back with a control segment that looks like the newest.
    pub fn stale_holders(&self) -> impl Iterator<Item = BackupId> {
        self.stale.iter().map(|(_, backup)| *backup)
    }

    /// The wanted one and the noted one, for people.
    pub fn progress(&self) -> (SegmentId, SegmentId) {
        (self.wanted, self.noted)
    }
}
