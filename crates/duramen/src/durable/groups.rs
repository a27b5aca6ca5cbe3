//! Groups of a member's appends: one is on its way to the backups at a time.

use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::replication::{BackupId, Master};
use duramen_engine::Piece;
use std::collections::{BTreeMap, BTreeSet};

/// The group in flight, and the requests for the next one (durable::remote::J1 to
/// durable::remote::J3).
#[derive(Default)]
pub(crate) struct Groups {
    /// The level that the present group must reach; `None`: there is no group.
    level: Option<Level>,
    part: Part,
    /// Reported as buffered, and not yet as synced.
    behind: Part,
    /// Requested level, beyond the present group.
    demanded: Level,
    wants_sync: bool,
    syncing: BTreeSet<BackupId>,
}

/// The data and records that must reach the replicas.
#[derive(Default)]
pub(crate) struct Part {
    ends: BTreeMap<SegmentId, u32>,
    closed: BTreeSet<SegmentId>,
    /// End of its records in the control log.
    records: u64,
}

impl Part {
    /// `records`: end of its records in the control log; 0: it has none.
    pub fn new<'a>(pieces: impl Iterator<Item = Piece<'a>>, records: u64) -> Part {
        let mut part = Part {
            records,
            ..Part::default()
        };
        for piece in pieces {
            match piece {
                Piece::Open { .. } => {}
                Piece::Data {
                    segment,
                    offset,
                    bytes,
                } => {
                    part.ends.insert(segment, offset + bytes.len() as u32);
                }
                Piece::Close { segment, .. } => {
                    part.closed.insert(segment);
                }
            }
        }
        part
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.closed.is_empty() && self.records == 0
    }

    /// Whether all of it has reached the level (durable::remote::J2).
    fn has_reached(&self, master: &Master, level: Level) -> bool {
        let data = self.ends.iter();
        let closed = self.closed.iter();
        master.control().reached(master.segments()) >= self.records
            && data
                .into_iter()
                .all(|(id, end)| master.durable_bytes(*id, level) >= *end || master.is_safe(*id))
            && (level < Level::Synced || closed.into_iter().all(|id| master.is_safe(*id)))
    }

    fn join(&mut self, other: Part) {
        self.ends.extend(other.ends);
        self.closed.extend(other.closed);
        self.records = self.records.max(other.records);
    }
}

impl Groups {
    /// Requests a level for all appends so far.
    pub fn demand(&mut self, level: Level) {
        self.demanded = self.demanded.max(level);
        self.wants_sync |= level == Level::Synced;
    }

    /// Requests all appends so far to be synced. Returns false if that is under way.
    pub fn demand_sync(&mut self) -> bool {
        let is_under_way = self.level == Some(Level::Synced)
            || self.demanded == Level::Synced
            || self.wants_sync && !self.behind.is_empty();
        self.demand(Level::Synced);
        !is_under_way
    }

    /// The level of the group that may begin now, once.
    pub fn take_demand(&mut self) -> Option<Level> {
        let may_begin = self.level.is_none() && self.demanded > Level::Memory;
        may_begin.then(|| std::mem::replace(&mut self.demanded, Level::Memory))
    }

    pub fn begin(&mut self, level: Level, part: Part) {
        self.level = Some(level);
        self.part = part;
    }

    /// The level of the present group.
    pub fn level(&self) -> Option<Level> {
        self.level
    }

    /// Ends the present group if it has reached its level, which is returned.
    pub fn end(&mut self, master: &Master) -> Option<Level> {
        let level = self
            .level
            .take_if(|level| self.part.has_reached(master, *level))?;
        let part = std::mem::take(&mut self.part);
        if level < Level::Synced {
            self.behind.join(part);
        }
        Some(level)
    }

    /// Ends the wait for all that was reported as buffered, if it is synced. Returns whether it is.
    pub fn end_behind(&mut self, master: &Master) -> bool {
        let is_synced = !self.behind.is_empty() && self.behind.has_reached(master, Level::Synced);
        if is_synced {
            self.behind = Part::default();
        }
        is_synced
    }

    /// Calls `sync` for each backup that has to sync, and does not yet.
    pub fn sync(&mut self, master: &mut Master, mut sync: impl FnMut(BackupId)) {
        let is_behind = self.wants_sync && !self.behind.is_empty();
        if !is_behind && !master.wants_sync() {
            self.wants_sync = false;
            return;
        }
        for backup in master.replicas().unsynced_backups() {
            if self.syncing.insert(backup) {
                master.segments_mut().sync_begins(backup);
                sync(backup);
            }
        }
    }

    /// A backup has ended its sync, or is lost. Returns whether it was to sync.
    pub fn end_sync(&mut self, backup: BackupId) -> bool {
        self.syncing.remove(&backup)
    }
}
