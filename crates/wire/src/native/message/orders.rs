//! Questions of the coordinator to servers.

use super::{
    ClusterFunctions, ClusterSettings, ClusterUsers, Refusal, ServerListUpdate, Shared, TableEntry,
    TabletEntry,
};
use duramen_base::ids::{
    KeyRange, ListVersion, RecoveryId, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use serde::{Deserialize, Deserializer, Serialize};

/// A message of the coordinator to servers. The frame's sender is `ServerId::coordinator(term)`: a
/// server that has seen a higher term refuses with [`Refusal::NotLeader`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromCoordinator {
    /// → `Pong`
    Ping { nonce: u64 },
    /// → `Confirmed` with the version that the server now has; if that is not the one sent, the
    /// coordinator sends the full list
    Servers(ServerListUpdate),
    /// All tablets that the server owns. The server applies this: it drops tablets that are not
    /// listed, and purges them from its index, at once. Versions older than its current one change
    /// nothing. → `Confirmed`
    Tablets(Tablets),
    /// Changed settings. → `Confirmed`
    Settings(ClusterSettings),
    /// Asks for the replicas of this log. From now on the backup refuses for ever to open, write,
    /// close and free replicas of it. → `Replicas`; payload: the valid bytes of the control segment
    /// named in it
    StartRead {
        recovery: RecoveryId,
        log: ServerId,
        /// Open control segments below this one are not eligible.
        min_open: SegmentId,
    },
    /// Replay a partition of a dead server's log. → `Started`, and later `PartitionDone` to the
    /// coordinator; repeating the same recovery and partition changes nothing
    Recover(Box<Recover>),
    /// Forget a partition: drop all replayed data of it. → `Confirmed`
    AbortRecovery {
        recovery: RecoveryId,
        partition: u32,
    },
    /// The users of the cluster. An older revision changes nothing. → `Confirmed`. Older members
    /// answer that it is not understood.
    Users(Shared<ClusterUsers>),
    /// The libraries of functions. An older revision changes nothing. → `Confirmed`. Older members
    /// answer that it is not understood.
    Functions(Shared<ClusterFunctions>),
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
    /// No object version up to this one is assigned again.
    pub safe_version: u64,
    pub tables: Vec<TableEntry>,
    /// The segments of the log. Exactly these are replayed, completely.
    pub segments: SharedSegments,
    /// Cleaning passes: a reference to a victim stands for the pass's survivors.
    pub passes: Vec<CleaningPass>,
    /// Tokens of losses that an operator has accepted: these segments are replayed without them.
    /// Sent only if there are any: members built before 2026-11-30 know none.
    #[serde(deserialize_with = "last_field", skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<u32>,
}

/// A tablet of a dead server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverTablet {
    pub table: TableId,
    pub range: KeyRange,
    /// Entries in segments below this one (in the dead server's log) do not belong to the tablet.
    pub creation: SegmentId,
}

/// A segment of a dead server, and the backups that have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverSegment {
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    /// The valid part; for an open segment the longest that a backup has.
    pub certificate: Certificate,
    pub closed: bool,
    /// Servers to ask, in this order.
    pub sources: Vec<ServerId>,
}

/// The segments of a dead server's log: a long log has many of them, and many orders contain them.
pub type SharedSegments = Shared<Vec<RecoverSegment>>;

/// A cleaning pass, as in `duramen_format::control::Pass`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleaningPass {
    pub first: SegmentId,
    pub count: u32,
    pub victims: Vec<SegmentId>,
}

/// A server's answer to the coordinator.
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
    /// The server has no space, or too many partitions at once: assign the partition to another
    /// server.
    Busy,
    Refused(Refusal),
}

/// The replicas of a dead server's log on a backup. Payload: see `control`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    pub log: ServerId,
    pub recovery: RecoveryId,
    /// All replicas that are complete under a certificate.
    pub segments: Vec<ReplicaEntry>,
    /// The newest eligible control segment; its valid bytes are the payload.
    pub control: Option<SegmentId>,
    /// The time for which the dead server may still serve reads because of this backup's answers,
    /// counted from the moment when this was sent. 0 if the backup has no control segment.
    pub lease_left_ms: u32,
    /// Open replicas that an earlier process of this backup wrote: since then the directory may
    /// have been replaced by an older copy of itself. Members built before 2026-11-26 do not send
    /// it: then it is empty.
    #[serde(deserialize_with = "last_field")]
    pub inherited: Vec<SegmentId>,
    /// Replicas of data segments that are known to be damaged here; not sent if there are none.
    /// Members built before 2026-11-30 do not send them.
    #[serde(deserialize_with = "last_field", skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<ReplicaEntry>,
}

/// A field at the end of a message, which older programs do not send.
fn last_field<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(T::deserialize(from).unwrap_or_default())
}

/// A replica on a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaEntry {
    pub segment: SegmentId,
    pub kind: Kind,
    pub epoch: u64,
    pub certificate: Certificate,
    pub closed: bool,
    /// The replica to be read first: primaries are spread evenly over the backups.
    pub primary: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coordinators are updated first, and understand older members.
    #[test]
    fn replicas_of_older_members_have_no_last_field() {
        let replicas = Replicas {
            log: ServerId::new(3, 2),
            recovery: RecoveryId(5),
            segments: Vec::new(),
            control: Some(SegmentId(8)),
            lease_left_ms: 500,
            inherited: Vec::new(),
            damaged: Vec::new(),
        };
        let mut bytes = postcard::to_stdvec(&replicas).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the length of the last field but one");
        let (read, rest) = postcard::take_from_bytes::<Replicas>(&bytes).unwrap();
        assert!(read == replicas && rest.is_empty());
    }
}
