//! Questions between servers.

use super::{RecoverTablet, Refusal, ReplicaEntry};
use duramen_base::ids::{
    Level, ListVersion, MigrationId, RecoveryId, SegmentId, ServerId, TabletsVersion,
};
use duramen_format::certificate::Certificate;
use duramen_format::segment::Kind;
use serde::{Deserialize, Serialize};

/// What servers ask each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// → `Pong`
    Ping { nonce: u64 },
    /// Write a piece of a segment. Payload: its bytes. → `Stored`, `Fenced`, `OldEpoch`, `Full` or
    /// `Busy`. The answer renews the master's read lease if the segment is a control segment
    WriteReplica(WriteReplica),
    /// Make everything of this log reach stable storage. → `Synced`
    SyncReplicas { log: ServerId },
    /// These segments are not needed any more. → `Freed`, or `Fenced`
    FreeReplicas {
        log: ServerId,
        segments: Vec<SegmentId>,
    },
    /// Entries of a partition in a dead server's segment, from a backup. → `Entries` with them as
    /// payload, `NotYet` or `Bad`
    ReadReplica(ReadReplica),
    /// A backup asks a log's master which of these replicas it may free: those from before it was
    /// restarted, and now and then all that it has. → `NotNeeded`
    Needed {
        log: ServerId,
        replicas: Vec<ReplicaEntry>,
    },
    /// Entries of a tablet that moves. Payload: whole entries, one after the other. → `Migrated`,
    /// `NotYet` or `MigrationRefused`
    MigrateEntries(MigrateEntries),
    /// The holder of a control segment lets its master serve reads, when nothing is being written.
    /// → `Leased`, or `Fenced`
    RenewLease { log: ServerId, control: SegmentId },
    /// The bytes of a whole closed segment, for its master, which does not have them any more and
    /// lacks a replica. → `Segment` with them as payload, `Bad`, or `Fenced`
    ReadSegment {
        log: ServerId,
        segment: SegmentId,
        /// A replica that doesn't have just that is `Bad`.
        certificate: Certificate,
    },
    /// What is read often at the server that says it, in place of what it said before: advice for
    /// those that recover its data, to be kept until some time after that. Payload: blocks of
    /// `duramen_format::heat`, at most `HINT_BYTES_MAX`. → `Heat`
    PutHeat,
    /// What is known to have been read often at a server. → `Heat`
    GetHeat { server: ServerId },
}

/// See [`Peer::WriteReplica`]. Idempotent: bytes that are there already are not written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReplica {
    pub log: ServerId,
    pub segment: SegmentId,
    pub kind: Kind,
    /// Replication epoch of the segment; an older one than the replica's is refused.
    pub epoch: u64,
    /// Where the payload begins, in bytes from the segment's beginning.
    pub offset: u32,
    /// What is valid once these bytes are there. `None`: they only count with the next certificate.
    pub certificate: Option<Certificate>,
    /// Make the replica first. A backup that has no room to spare answers `Busy`.
    pub open: bool,
    /// No bytes follow.
    pub close: bool,
    /// This replica is the one that recovery reads first.
    pub primary: bool,
    /// What it must reach before the answer.
    pub level: Level,
    /// Bytes that the segment may grow to; of interest with `open`.
    pub capacity: u32,
}

/// See [`Peer::ReadReplica`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReplica {
    pub recovery: RecoveryId,
    pub partition: u32,
    pub log: ServerId,
    pub segment: SegmentId,
    /// What the asker knows to be valid: a replica that doesn't have just that is `Bad`.
    pub certificate: Certificate,
    /// Only entries of these are wanted, and none from before their creation.
    pub tablets: Vec<RecoverTablet>,
    /// Go on from here: the `next` of the answer before; 0 first.
    pub offset: u32,
    /// Most bytes of payload; at least one entry always fits.
    pub bytes_max: u32,
}

/// See [`Peer::MigrateEntries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateEntries {
    pub migration: MigrationId,
    /// From 0, by one; in any order, and repeated until answered.
    pub sequence: u64,
    /// No object version at or below this one is given again.
    pub safe_version: u64,
    /// The source serves nothing any more, and this is the highest sequence: once all is durable,
    /// the target reports `MigrationDone`.
    pub last: bool,
    /// About how many bytes of entries there are.
    pub bytes_total: u64,
}

/// What servers answer each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswer {
    Pong {
        nonce: u64,
        list_version: ListVersion,
        tablets_version: TabletsVersion,
    },
    /// The bytes, and all before them of that log, have reached this level. `leased`: the answer
    /// renews the read lease.
    Stored {
        level: Level,
        leased: bool,
    },
    Synced,
    Freed,
    /// The log belongs to a server that was called crashed: whoever writes it must stop at once.
    Fenced,
    /// The replica has this epoch, which is higher.
    OldEpoch {
        has: u64,
    },
    /// No space for another replica: choose another backup.
    Full,
    /// No replica is opened now: choose another backup, or ask again later.
    Busy,
    /// The backup doesn't have this replica, or not up to where the bytes begin: start it anew
    /// elsewhere.
    Unknown,
    /// Payload: entries. `next`: where to go on; `None`: that was all.
    Entries {
        next: Option<u32>,
        entries: u32,
    },
    /// The backup is still reading it from disk. Ask again after this time.
    NotYet {
        after_ms: u32,
    },
    /// Missing or damaged here: ask another one.
    Bad {
        reason: String,
    },
    /// Those of the asked ones that may be freed, if they still are what was asked about; and those
    /// that count. About the others ask again.
    NotNeeded {
        segments: Vec<SegmentId>,
        counted: Vec<SegmentId>,
    },
    /// The target has these entries. That they are durable it tells the coordinator.
    Migrated {
        sequence: u64,
    },
    /// The target has no space: the source gives it up.
    MigrationRefused {
        reason: String,
    },
    Leased,
    Refused(Refusal),
    /// Payload: all bytes of the segment, as certified.
    Segment,
    /// Payload: what was asked for, as it was put; empty: nothing is known, or nothing was asked
    /// for.
    Heat,
}
