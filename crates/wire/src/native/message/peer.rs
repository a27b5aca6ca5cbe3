//! Questions between servers.

use super::{RecoverTablet, Refusal, ReplicaEntry};
use duramen_base::ids::{
    Level, ListVersion, MigrationId, RecoveryId, SegmentId, ServerId, TabletsVersion,
};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use serde::{Deserialize, Serialize};

/// A question of one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// → `Pong`
    Ping { nonce: u64 },
    /// Write a piece of a segment. Payload: its bytes. → `Stored`, `Fenced`, `OldEpoch`, `Full` or
    /// `Busy`. If the segment is a control segment, the answer renews the master's read lease
    WriteReplica(WriteReplica),
    /// Bring everything of this log to stable storage. → `Synced`
    SyncReplicas { log: ServerId },
    /// These segments are not needed any more. → `Freed`, or `Fenced`
    FreeReplicas {
        log: ServerId,
        segments: Vec<SegmentId>,
    },
    /// Entries of a partition in a dead server's segment, read from a backup. → `Entries` with them
    /// as payload, `NotYet` or `Bad`
    ReadReplica(ReadReplica),
    /// A backup asks a log's master which of these replicas it may free: those from before the
    /// backup's restart, and periodically all that it has. → `NotNeeded`
    Needed {
        log: ServerId,
        replicas: Vec<ReplicaEntry>,
    },
    /// Entries of a tablet that moves. Payload: whole entries, one after another. → `Migrated`,
    /// `NotYet` or `MigrationRefused`
    MigrateEntries(MigrateEntries),
    /// The holder of a control segment extends the master's right to serve reads, when nothing is
    /// being written. → `Leased`, or `Fenced`
    RenewLease { log: ServerId, control: SegmentId },
    /// The bytes of a whole closed segment, for its master, which does not have them any more and
    /// lacks a replica. → `Segment` with them as payload, `Bad`, or `Fenced`
    ReadSegment {
        log: ServerId,
        segment: SegmentId,
        /// A replica with another certificate is `Bad`.
        certificate: Certificate,
    },
    /// Hot keys of the sender, replacing its earlier ones: advice for the servers that recover its
    /// data, to be kept until some time after a recovery. Payload: blocks of
    /// `duramen_format::heat`, at most `HINT_BYTES_MAX`. → `Heat`
    PutHeat,
    /// The stored hot keys of a server. → `Heat`
    GetHeat { server: ServerId },
    /// Build a whole survivor from replicas of its victims here, and store it as a `WriteReplica`
    /// of its bytes would. Payload: a recipe of `duramen_format`. → as `WriteReplica`, or `Bad`: it
    /// cannot be built here, send the bytes
    BuildReplica(WriteReplica),
    /// A backup reports to a log's master that these replicas were found damaged, until the master
    /// answers that they are not needed. → `NotNeeded` with those that still count. Older members
    /// answer that it is not understood.
    Damaged {
        log: ServerId,
        segments: Vec<SegmentId>,
    },
    /// Messages of PUBLISH, for the receiver's subscribers. Payload: one message after another
    /// (`codec::Publications`). → `Heard`. The numbers of one sender grow by one; messages with an
    /// earlier number were delivered already. Older members answer that it is not understood.
    Publish { number: u64 },
    /// The bytes of a dead server's segment as they are on this backup, damaged or not, from
    /// `offset` on, with zeros where the device gives an error. Asked only if no replica is whole.
    /// → `Raw` with a piece of them as payload, or `Bad`. Older members answer that it is not
    /// understood.
    ReadRaw {
        log: ServerId,
        segment: SegmentId,
        offset: u32,
    },
}

/// The connections of one server to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// No request on it waits for a disk: pings and leases are answered in time.
    Control,
    /// Replicas are written and read on it.
    Replica,
}

impl Peer {
    /// The connection on which the message is sent.
    pub fn link(&self) -> Link {
        match self {
            Peer::Ping { .. }
            | Peer::Needed { .. }
            | Peer::Damaged { .. }
            | Peer::MigrateEntries(_)
            | Peer::PutHeat
            | Peer::GetHeat { .. }
            | Peer::Publish { .. }
            | Peer::RenewLease { .. } => Link::Control,
            Peer::WriteReplica(_)
            | Peer::BuildReplica(_)
            | Peer::SyncReplicas { .. }
            | Peer::FreeReplicas { .. }
            | Peer::ReadReplica(_)
            | Peer::ReadRaw { .. }
            | Peer::ReadSegment { .. } => Link::Replica,
        }
    }

    /// Whether the receiver's backup answers it: all about replicas, and the leases of their
    /// masters.
    pub fn is_for_backup(&self) -> bool {
        self.link() == Link::Replica || matches!(self, Peer::RenewLease { .. })
    }
}

/// See [`Peer::WriteReplica`]. Idempotent: bytes that are stored already are not written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReplica {
    pub log: ServerId,
    pub segment: SegmentId,
    pub kind: Kind,
    /// Replication epoch of the segment; an epoch older than the replica's is refused.
    pub epoch: u64,
    /// Start of the payload, in bytes from the segment's beginning.
    pub offset: u32,
    /// The valid part once these bytes are stored. `None`: they count only with the next
    /// certificate.
    pub certificate: Option<Certificate>,
    /// Create the replica first. A backup that has no room to spare answers `Busy`.
    pub open: bool,
    /// No more bytes follow.
    pub close: bool,
    /// Recovery reads this replica first.
    pub primary: bool,
    /// The level that the bytes must reach before the answer.
    pub level: Level,
    /// Bytes to which the segment may grow; used with `open`.
    pub capacity: u32,
}

/// See [`Peer::ReadReplica`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReplica {
    pub recovery: RecoveryId,
    pub partition: u32,
    pub log: ServerId,
    pub segment: SegmentId,
    /// The part that is valid by the sender's information: a replica with another certificate is
    /// `Bad`.
    pub certificate: Certificate,
    /// Only entries of these tablets are wanted, and none from before their creation.
    pub tablets: Vec<RecoverTablet>,
    /// Continue from here: the `next` of the previous answer; 0 in the first request.
    pub offset: u32,
    /// Maximum bytes of payload; at least one entry always fits.
    pub bytes_max: u32,
}

/// See [`Peer::MigrateEntries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateEntries {
    pub migration: MigrationId,
    /// Starts at 0 and grows by one; sent in any order, and repeated until answered.
    pub sequence: u64,
    /// No object version up to this one is assigned again.
    pub safe_version: u64,
    /// The source serves nothing any more, and this is the highest sequence number: once everything
    /// is durable, the target reports `MigrationDone`.
    pub last: bool,
    /// Estimated bytes of all entries.
    pub bytes_total: u64,
}

/// The answer of one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswer {
    Pong {
        nonce: u64,
        list_version: ListVersion,
        tablets_version: TabletsVersion,
    },
    /// The bytes, and all earlier bytes of that log, have reached this level. `leased`: the answer
    /// renews the read lease.
    Stored {
        level: Level,
        leased: bool,
    },
    Synced,
    Freed,
    /// The log belongs to a server that was declared crashed: its writer must stop at once.
    Fenced,
    /// The replica has this higher epoch.
    OldEpoch {
        has: u64,
    },
    /// No space for another replica: choose another backup.
    Full,
    /// No replica is opened now: choose another backup, or ask again later.
    Busy,
    /// The backup does not have this replica, or not all bytes before these: start the replica anew
    /// on another backup.
    Unknown,
    /// Payload: entries. `next`: the position from which to continue; `None`: these were the last.
    Entries {
        next: Option<u32>,
        entries: u32,
    },
    /// The backup is still reading the segment from disk. Ask again after this time.
    NotYet {
        after_ms: u32,
    },
    /// The replica is missing or damaged here: ask another backup.
    Bad {
        reason: String,
    },
    /// The given replicas that may be freed, if they have not changed since the question, and those
    /// that count. The backup asks again about the others.
    NotNeeded {
        segments: Vec<SegmentId>,
        counted: Vec<SegmentId>,
    },
    /// The target has these entries. It reports to the coordinator when they are durable.
    Migrated {
        sequence: u64,
    },
    /// The target has no space: the source gives the migration up.
    MigrationRefused {
        reason: String,
    },
    Leased,
    Refused(Refusal),
    /// Payload: all bytes of the segment, as certified.
    Segment,
    /// Payload: the stored hot keys, as they were sent; empty: none are stored, or none were
    /// requested.
    Heat,
    Heard,
    /// Payload: bytes of the replica, which has this length here.
    Raw {
        length: u32,
        /// Whether the replica's newest slot is lost: the replica was longer then, and nobody knows
        /// by how much.
        lacks_end: bool,
    },
}
