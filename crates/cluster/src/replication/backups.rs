//! A master's backups: which of them gets a replica, and which of them have refused one.

use super::{BackupId, Config, SegmentId};
use crate::placement::{Member, Placement};
use std::collections::{BTreeMap, BTreeSet};

/// Refused copies of closed segments are sent again once in this many times that other refusals
/// end.
pub(super) const COPIES_FORGIVEN: u64 = 20;

/// The backups.
pub(super) struct Backups {
    placement: Placement,
    /// Backups that have rejected an opening.
    refusing: BTreeSet<BackupId>,
    /// Backups that have rejected a new copy of a closed segment: they keep their last frames for
    /// recoveries, and may take open segments.
    refusing_copies: BTreeSet<BackupId>,
    /// Replicas whose bytes were found damaged repeatedly. Each is sent again when `forgiven` has
    /// reached this number.
    resting: BTreeMap<(SegmentId, BackupId), u64>,
    /// Calls of [`forgive`](Self::forgive).
    forgiven: u64,
}

/// The refusals that have ended.
pub(super) struct Forgiven {
    /// Segments of replicas that have rested.
    pub rested: Vec<SegmentId>,
    /// Copies are asked for again.
    pub copies: bool,
    /// Some backups may be asked again for open segments.
    pub openings: bool,
}

impl Backups {
    pub fn new(config: &Config, backups: &[BackupId]) -> Backups {
        let mut placement = Placement::new(config.layout, config.replicas, config.server);
        for backup in backups {
            placement.add(Member::from(*backup));
        }
        Backups {
            placement,
            refusing: BTreeSet::new(),
            refusing_copies: BTreeSet::new(),
            resting: BTreeMap::new(),
            forgiven: 0,
        }
    }

    pub fn set_master(&mut self, me: Member) {
        self.placement.set_master(me);
    }

    pub fn add(&mut self, member: Member) {
        self.placement.add(member);
    }

    pub fn retire(&mut self, backup: BackupId) {
        self.placement.retire(backup);
    }

    pub fn remove(&mut self, backup: BackupId) {
        self.placement.remove(backup);
        self.refusing.remove(&backup);
        self.refusing_copies.remove(&backup);
    }

    pub fn has(&self, backup: BackupId) -> bool {
        self.placement.has(backup)
    }

    pub fn has_enough(&mut self) -> bool {
        self.placement.has_enough()
    }

    pub fn would_spread(&mut self, holding: &[BackupId]) -> bool {
        self.placement.would_spread(holding)
    }

    pub fn share_rack(&self, holding: impl Iterator<Item = BackupId> + Clone) -> bool {
        self.placement.sharing(holding) > 0
    }

    /// The backup's replica is not the first to be read any more.
    pub fn unload(&mut self, backup: BackupId) {
        self.placement.unload(backup);
    }

    /// The next backup in turn for a replica of the segment, beside those that hold one. None that
    /// is in `avoided` or refuses such replicas.
    pub fn choose(
        &mut self,
        id: SegmentId,
        holding: &[BackupId],
        is_copy: bool,
        avoided: impl Iterator<Item = BackupId>,
    ) -> Option<BackupId> {
        let mut all = self.refusing(is_copy).clone();
        all.extend(avoided);
        self.placement.choose(id, holding, &all)
    }

    /// Whether there is another backup that may take the replica.
    pub fn can_choose(
        &mut self,
        holding: &[BackupId],
        is_copy: bool,
        avoided: impl Iterator<Item = BackupId>,
    ) -> bool {
        let mut all = self.refusing(is_copy).clone();
        all.extend(avoided);
        self.placement.can_choose(holding, &all)
    }

    /// The backups that refuse copies of closed segments, or those that refuse other openings.
    fn refusing(&self, is_copy: bool) -> &BTreeSet<BackupId> {
        match is_copy {
            true => &self.refusing_copies,
            false => &self.refusing,
        }
    }

    pub fn refuses(&self, backup: BackupId, is_copy: bool) -> bool {
        self.refusing(is_copy).contains(&backup)
    }

    /// Whether any backup refuses copies.
    pub fn refuse_copies(&self) -> bool {
        !self.refusing_copies.is_empty()
    }

    pub fn refused(&mut self, backup: BackupId, is_copy: bool) {
        match is_copy {
            true => self.refusing_copies.insert(backup),
            false => self.refusing.insert(backup),
        };
    }

    /// The replica is sent again after so many times that refusals are forgiven.
    pub fn rest(&mut self, id: SegmentId, backup: BackupId, times: u64) {
        self.resting.insert((id, backup), self.forgiven + times);
    }

    pub fn rests(&self, id: SegmentId, backup: BackupId) -> bool {
        self.resting.contains_key(&(id, backup))
    }

    /// Some time has passed, so some refusals end.
    pub fn forgive(&mut self) -> Forgiven {
        self.forgiven += 1;
        let now = self.forgiven;
        let rested = self.resting.extract_if(.., |_, until| *until <= now);
        let rested = rested.map(|((id, _), _)| id).collect();
        let copies = now.is_multiple_of(COPIES_FORGIVEN);
        if copies {
            self.refusing_copies.clear();
        }
        let openings = !std::mem::take(&mut self.refusing).is_empty();
        Forgiven {
            rested,
            copies,
            openings,
        }
    }
}
