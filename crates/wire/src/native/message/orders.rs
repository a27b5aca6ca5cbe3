//! Questions of the coordinator to servers.

use super::{ClusterSettings, Refusal, ServerListUpdate, Shared, TableEntry, TabletEntry};
use duramen_base::ids::{
    KeyRange, ListVersion, RecoveryId, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use serde::{Deserialize, Serialize};

/// What the coordinator tells servers. The frame's sender is `ServerId::coordinator(term)`: who has
/// heard a higher term refuses with [`Refusal::NotLeader`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// → `Pong`
    Ping { nonce: u64 },
    /// → `Confirmed` with the version that it now has; if that is not the one sent, the coordinator
    /// sends the full list
    Servers(ServerListUpdate),
    /// Everything that the server owns. It makes this so: what is not listed it drops and purges
    /// from its index at once. Older versions than the one it has change nothing. → `Confirmed`
    Tablets(Tablets),
    /// Settings that changed. → `Confirmed`
    Settings(ClusterSettings),
    /// Which replicas of this log are there? From now on opening, writing, closing and freeing
    /// replicas of it is refused, for ever. → `Replicas`; payload: the valid bytes of the control
    /// segment named in it
    StartRead {
        recovery: RecoveryId,
        log: ServerId,
        /// Open control segments below are not eligible.
        min_open: SegmentId,
    },
    /// Replay a partition of a dead server's log. → `Started`, and later `PartitionDone` to the
    /// coordinator; the same recovery and partition again changes nothing
    Recover(Box<Recover>),
    /// Forget a partition: drop what was replayed of it. → `Confirmed`
    AbortRecovery {
        recovery: RecoveryId,
        partition: u32,
    },
}

/// See [`FromCoordinator::Tablets`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tablets {
    pub version: TabletsVersion,
    /// All tables of the cluster.
    pub tables: Vec<TableEntry>,
    /// All tablets of this server.
    pub tablets: Vec<TabletEntry>,
}

/// See [`FromCoordinator::Recover`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recover {
    pub recovery: RecoveryId,
    pub partition: u32,
    /// The dead server.
    pub log: ServerId,
    pub tablets: Vec<RecoverTablet>,
    /// Entries of these tables below these versions are dead (tables that were cleared).
    pub floors: Vec<(TableId, u64)>,
    /// No object version at or below this one is given again.
    pub safe_version: u64,
    pub tables: Vec<TableEntry>,
    /// The log. Nothing else is replayed, and each of them is, wholly.
    pub segments: SharedSegments,
    /// Cleaning passes whose survivors stand for their victims in what names a segment.
    pub passes: Vec<CleaningPass>,
}

/// A tablet of a dead server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverTablet {
    pub table: TableId,
    pub range: KeyRange,
    /// Entries in segments below this one are not the tablet's (in the dead server's log).
    pub creation: SegmentId,
}

/// A segment of a dead server, and who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverSegment {
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    /// What is valid of it. Of an open segment: the longest that a backup holds.
    pub certificate: Certificate,
    pub closed: bool,
    /// Ask in this order.
    pub sources: Vec<ServerId>,
}

/// The segments of a dead server's log: of a long one there are many, and many orders.
pub type SharedSegments = Shared<Vec<RecoverSegment>>;

/// As `duramen_format::control::Pass`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleaningPass {
    pub first: SegmentId,
    pub count: u32,
    pub victims: Vec<SegmentId>,
}

/// What servers answer the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerAnswer {
    Pong {
        nonce: u64,
        list_version: ListVersion,
    },
    Confirmed {
        list_version: ListVersion,
        tablets_version: TabletsVersion,
    },
    Replicas(Box<Replicas>),
    Started,
    /// No space, or too many partitions at once: give it to somebody else.
    Busy,
    Refused(Refusal),
}

/// What a backup has of a dead server's log. Payload: see `control`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    pub log: ServerId,
    pub recovery: RecoveryId,
    /// All replicas that are complete under a certificate.
    pub segments: Vec<ReplicaEntry>,
    /// The newest eligible control segment; its valid bytes are the payload.
    pub control: Option<SegmentId>,
    /// How long the dead server may still serve reads because of this backup's answers, from when
    /// this was sent. 0 if it holds no control segment.
    pub lease_left_ms: u32,
}

/// A replica on a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaEntry {
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    pub certificate: Certificate,
    pub closed: bool,
    /// The one that should be read first: it is spread evenly over the backups.
    pub primary: bool,
}
