//! Questions to the coordinator.

use super::{
    Addresses, Admin, AdminAnswer, ClusterFunctions, ClusterSettings, ClusterUsers, MapStep,
    MigrationPhase, RangeLoad, Refusal, Roles, ServerRoom, Shared, SharedList, TabletMap,
};
use duramen_base::ids::{
    ClientId, ListVersion, MapVersion, MigrationId, RecoveryId, SegmentId, ServerId, TableId,
    TabletsVersion,
};
use serde::{Deserialize, Serialize};

/// A question of a server, client or tool to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// A server asks to become a member. → `Enlisted`
    Enlist(Enlist),
    /// `server` did not answer a ping, or refused the connection. The coordinator pings it itself
    /// and then decides. → `Noted`
    Suspect {
        server: ServerId,
        list_version: ListVersion,
    },
    /// From now on, open control segments of the sender's log below `min_open` do not count
    /// (docs/protocols.md, Losing a backup). Accepted only from a member that is UP, which is
    /// checked in the same step in which it is persisted. → `Noted`, after it is persisted
    ControlHead {
        server: ServerId,
        min_open: SegmentId,
    },
    /// The result of a recovery's partition. → `Accepted` or `Stale`
    PartitionDone(PartitionDone),
    /// Progress, for people. → `Noted`
    PartitionProgress(PartitionProgress),
    /// The result of a migration, from its target (`Failed` also from its source). → `Accepted` or
    /// `Stale`
    MigrationDone(MigrationDone),
    /// The sender has this server list and these tablets. It is also sent after each update. →
    /// `Noted`
    Confirm {
        server: ServerId,
        list_version: ListVersion,
        tablets_version: TabletsVersion,
    },
    /// The amount of data in the sender's tablets, sent periodically. Persisted coarsely, some time
    /// later. → `Noted`
    Loads {
        server: ServerId,
        loads: Vec<RangeLoad>,
    },
    /// A client requests a lease (`None`) or renews its lease. → `Lease`
    ClientLease { client: Option<ClientId> },
    /// A master asks which of these clients have a lease, so that it can forget the others. →
    /// `ClientsAlive`
    AreAlive { clients: Vec<ClientId> },
    /// The map of all tables, or of one. → `Map`, or `MapIsCurrent` if `since` is the newest
    /// version
    Map {
        table: Option<TableId>,
        since: MapVersion,
    },
    /// The full server list. → `Servers`
    Servers,
    /// For people and tools. → `Admin`
    Admin(Admin),
    /// Progress, for people, from the target. → `Noted`
    MigrationProgress(MigrationProgress),
    /// The changes of the map since a version that the sender has: for members, of which there may
    /// be thousands. → `MapStep`, `MapIsCurrent`, or `Map` if the changes are not known any more
    MapChanges { since: MapVersion },
    /// The sender's room, sent periodically. Not persisted. → `Noted`
    Room { server: ServerId, room: ServerRoom },
    /// The measured speed of the sender's disk in bytes per second, sent when it has changed much;
    /// the first one is in [`Enlist`]. → `Noted`. Older coordinators answer that it is not
    /// understood.
    ReadSpeed { server: ServerId, bytes_per_s: u64 },
    /// Asks for the users of the cluster. → `Users`. Older coordinators answer that it is not
    /// understood.
    Users,
    /// Replaces the users if their revision follows the newest one. → `Users`, the newest. If these
    /// are other users, another request was first, and this one has changed nothing.
    SetUsers(ClusterUsers),
    /// Asks for the libraries of functions. → `Functions`. Older coordinators answer that it is not
    /// understood.
    Functions,
    /// Replaces the libraries of functions, as `SetUsers` replaces the users. → `Functions`
    SetFunctions(ClusterFunctions),
    /// The frames of the sender's backup, and those that new replicas may still take, sent when
    /// they have changed much. Not persisted. → `Noted`. Older coordinators answer that it is not
    /// understood.
    DiskRoom {
        server: ServerId,
        free: u64,
        frames: u64,
    },
    /// The sender has read a new certificate, which expires at this time, in seconds since the Unix
    /// epoch. Connections that are open still show the certificate before it. For people. →
    /// `Noted`. Older coordinators answer that it is not understood.
    Certificate { server: ServerId, expires_s: i64 },
    /// The memory and flash that the sender was given, by which data is shared out: unlike its
    /// room, it does not depend on the data. Also the number of closed segments of its log that
    /// lack a copy because no backup takes one. Sent when they have changed. Not persisted. →
    /// `Noted`. Older coordinators answer that it is not understood.
    Means(Means),
    /// A backup asks which of these logs, whose servers are not in its list, are not needed any
    /// more. → `Gone`. Older coordinators answer that it is not understood.
    AreGone { logs: Vec<ServerId> },
}

/// See [`ToCoordinator::Enlist`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlist {
    /// Random, made once per process: if an answer was lost, the repeated question gets the same
    /// id.
    pub nonce: u64,
    pub cluster: String,
    pub addresses: Addresses,
    pub rack: Option<String>,
    pub roles: Roles,
    /// The server's id in its last life, if its disk has replicas from then. The list shows that id
    /// as crashed before it shows the new one.
    pub replaces: Option<ServerId>,
    /// Random id that the disk got when it was initialized: two servers with the same id use copies
    /// of one disk.
    pub disk: u64,
    /// See [`ServerEntry`](super::ServerEntry).
    pub read_bytes_per_s: u64,
    /// Bytes of its segments; must equal those of [`ClusterSettings`].
    pub segment_bytes: u32,
}

/// See [`ToCoordinator::PartitionDone`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionDone {
    pub recovery: RecoveryId,
    pub partition: u32,
    pub server: ServerId,
    pub outcome: PartitionOutcome,
}

/// See [`ToCoordinator::PartitionProgress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionProgress {
    pub recovery: RecoveryId,
    pub partition: u32,
    pub server: ServerId,
    /// Bytes of replicas read so far, and in total.
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
}

/// See [`ToCoordinator::MigrationDone`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationDone {
    pub migration: MigrationId,
    pub server: ServerId,
    pub outcome: MigrationOutcome,
}

/// See [`ToCoordinator::MigrationProgress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationProgress {
    pub migration: MigrationId,
    pub server: ServerId,
    /// Bytes of entries taken over so far, and their estimated total.
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
    pub phase: MigrationPhase,
}

/// See [`ToCoordinator::Means`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Means {
    pub server: ServerId,
    pub given_bytes: u64,
    pub segments_short: u64,
}

/// Result of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartitionOutcome {
    /// Everything is replayed and durable. `creation` as in
    /// [`TabletState::Normal`](super::TabletState::Normal).
    Replayed {
        creation: SegmentId,
        bytes: u64,
        entries: u64,
    },
    /// The sender has dropped all data of the partition. `retry_elsewhere`: the sender has no
    /// space; otherwise replicas are missing or damaged.
    Failed {
        retry_elsewhere: bool,
        reason: String,
    },
    /// The sender has dropped all data of the partition: no replica of these segments is whole, nor
    /// do all replicas together give the whole.
    Lost { losses: Vec<SegmentLoss> },
}

/// The lost part of a segment (`duramen_format::loss`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentLoss {
    pub segment: SegmentId,
    pub token: u32,
    /// For people: the lost bytes and entries.
    pub lines: Vec<String>,
}

/// Most lines of a [`SegmentLoss`].
pub const LOSS_LINES_MAX: usize = 64;

/// Result of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationOutcome {
    /// The target has all entries, durably. `creation` as in
    /// [`TabletState::Normal`](super::TabletState::Normal).
    Complete { creation: SegmentId },
    /// A reason that begins with [`NO_ROOM`] means that a part of the tablet may fit.
    Failed { reason: String },
}

/// The beginning of the reason of a target that has no room.
pub const NO_ROOM: &str = "no room";

/// The coordinator's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorAnswer {
    Enlisted(Box<Enlisted>),
    Noted,
    /// The report counts; the coordinator has persisted its consequences. `Tablets` of this version
    /// or later include it; older ones do not.
    Accepted {
        since: TabletsVersion,
    },
    /// The report is for a recovery or migration that is over, or the sender is not UP: drop all
    /// data of that recovery or migration.
    Stale,
    Lease {
        client: ClientId,
        /// The length of the lease, counted from the time when the client sent its question.
        ttl_ms: u32,
    },
    /// Those of the given clients that have a lease, with the least remaining time in milliseconds.
    /// The others have none, for ever. A member can rely on the answer: leases never become
    /// shorter.
    ClientsAlive {
        clients: Vec<(ClientId, u32)>,
    },
    Map(TabletMap),
    MapIsCurrent,
    Servers(SharedList),
    Admin(AdminAnswer),
    Refused(Refusal),
    MapStep(Shared<MapStep>),
    Users(Shared<ClusterUsers>),
    Functions(Shared<ClusterFunctions>),
    /// Those of the given logs whose servers were members once and have left the list for good. A
    /// log of a server that was never a member is not among them: the store may be older than it.
    Gone {
        logs: Vec<ServerId>,
    },
}

/// A new member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlisted {
    pub server: ServerId,
    pub list: SharedList,
    pub settings: ClusterSettings,
}
