//! The part of a member's log that is on its way to the backups.

use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::replication::{BackupId, Master};
use duramen_format::certificate::Certificate;
use duramen_wire::native::Slice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// In-flight replication state.
#[derive(Default)]
pub(crate) struct Flight {
    /// The level that the present group must reach; `None`: there is no group
    /// (durable::remote::J1).
    pub level: Option<Level>,
    pub part: Part,
    /// Reported as buffered, and not yet as synced (durable::remote::J3).
    pub behind: Part,
    /// Requested level, beyond the present group.
    pub demanded: Level,
    pub wants_sync: bool,
    pub syncing: BTreeSet<BackupId>,
    /// Survivors that are being written.
    pub survivors: BTreeMap<SegmentId, Survivor>,
    /// Memory for the next ones, because fresh memory is slow to touch.
    pub spare: Vec<Arc<Vec<u8>>>,
    /// The bytes of the last call: all replicas get the same bytes.
    pub last: Option<(SegmentId, u32, u32, Slice)>,
    /// A backup got bytes of these that did not match their certificates (durable::remote::J5).
    pub suspects: BTreeSet<SegmentId>,
}

/// A survivor that is being written.
pub(crate) struct Survivor {
    pub certificate: Certificate,
    pub bytes: Slice,
    /// Its recipe and victims, if the origin of its entries is known.
    pub recipe: Option<(Slice, Vec<SegmentId>)>,
    /// It is a side log's, no pass filled it.
    pub is_side: bool,
}

/// The data and records that must reach the replicas.
#[derive(Default)]
pub(crate) struct Part {
    pub ends: BTreeMap<SegmentId, u32>,
    pub closed: BTreeSet<SegmentId>,
    /// End of its records in the control log.
    pub records: u64,
}

impl Part {
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty() && self.closed.is_empty() && self.records == 0
    }

    /// durable::remote::J2.
    pub fn has_reached(&self, master: &Master, level: Level) -> bool {
        let data = self.ends.iter();
        let closed = self.closed.iter();
        master.control().reached(master.segments()) >= self.records
            && data
                .into_iter()
                .all(|(id, end)| master.durable_bytes(*id, level) >= *end || master.is_safe(*id))
            && (level < Level::Synced || closed.into_iter().all(|id| master.is_safe(*id)))
    }

    pub fn join(&mut self, other: Part) {
        self.ends.extend(other.ends);
        self.closed.extend(other.closed);
        self.records = self.records.max(other.records);
    }
}

impl Flight {
    pub fn is_pass_survivor(&self, segment: SegmentId) -> bool {
        let survivor = self.survivors.get(&segment);
        survivor.is_some_and(|survivor| !survivor.is_side)
    }
}
