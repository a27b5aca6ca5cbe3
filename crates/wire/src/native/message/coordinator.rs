//! Questions to the coordinator.

use super::{
    Addresses, Admin, AdminAnswer, ClusterSettings, MapStep, MigrationPhase, RangeLoad, Refusal,
    Roles, ServerRoom, Shared, SharedList, TabletMap,
};
use duramen_base::ids::{
    ClientId, ListVersion, MapVersion, MigrationId, RecoveryId, SegmentId, ServerId, TableId,
    TabletsVersion,
};
use serde::{Deserialize, Serialize};

/// What servers, clients and tools ask the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// A server wants to be a member. → `Enlisted`
    Enlist(Enlist),
    /// `server` did not answer a ping, or its connection was refused. The coordinator asks it
    /// itself and then decides. → `Noted`
    Suspect {
        server: ServerId,
        list_version: ListVersion,
    },
    /// From now on, open control segments of the sender's log below `min_open` don't count
    /// (docs/protocols.md, Losing a backup). Only from a member that is UP, checked in the same
    /// step as it is persisted. → `Noted`, after it is persisted
    ControlHead {
        server: ServerId,
        min_open: SegmentId,
    },
    /// How a partition of a recovery ended. → `Accepted` or `Stale`
    PartitionDone {
        recovery: RecoveryId,
        partition: u32,
        server: ServerId,
        outcome: PartitionOutcome,
    },
    /// For people who wait. → `Noted`
    PartitionProgress {
        recovery: RecoveryId,
        partition: u32,
        server: ServerId,
        /// Of replicas read so far, and in all.
        bytes: u64,
        bytes_total: u64,
        entries: u64,
    },
    /// How a migration ended, by its target (`Failed` also by its source). → `Accepted` or `Stale`
    MigrationDone {
        migration: MigrationId,
        server: ServerId,
        outcome: MigrationOutcome,
    },
    /// The sender has this server list and these tablets. Also what it says after it was told. →
    /// `Noted`
    Confirm {
        server: ServerId,
        list_version: ListVersion,
        tablets_version: TabletsVersion,
    },
    /// How much lies in the sender's tablets, now and then. Not persisted. → `Noted`
    Loads {
        server: ServerId,
        loads: Vec<RangeLoad>,
    },
    /// A client wants a lease (`None`) or renews the one it has. → `Lease`
    ClientLease { client: Option<ClientId> },
    /// May a master forget what it knows of these clients? → `ClientsAlive`
    AreAlive { clients: Vec<ClientId> },
    /// Where everything is; all tables, or one. → `Map`, or `MapIsCurrent` if `since` is the newest
    /// version
    Map {
        table: Option<TableId>,
        since: MapVersion,
    },
    /// The full server list. → `Servers`
    Servers,
    /// For people and tools. → `Admin`
    Admin(Admin),
    /// For people who wait, by the target. → `Noted`
    MigrationProgress {
        migration: MigrationId,
        server: ServerId,
        /// Of entries taken over so far, and about how many it will be.
        bytes: u64,
        bytes_total: u64,
        entries: u64,
        phase: MigrationPhase,
    },
    /// What changed of the map since a version that the asker has: for members, of which there may
    /// be thousands. → `MapStep`, `MapIsCurrent`, or `Map` if what changed is not known any more
    MapChanges { since: MapVersion },
    /// How much room the sender has, now and then. Not persisted. → `Noted`
    Room { server: ServerId, room: ServerRoom },
}

/// See [`ToCoordinator::Enlist`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlist {
    /// Random, made once per process: when an answer was lost, the same question gets the same id.
    pub nonce: u64,
    pub cluster: String,
    pub addresses: Addresses,
    pub rack: Option<String>,
    pub roles: Roles,
    /// Its id in its last life, if its disk holds replicas from then. The list shows that id as
    /// crashed before it shows the new one.
    pub replaces: Option<ServerId>,
    /// Random id that the disk got when it was made: two servers with the same one are one disk,
    /// copied.
    pub disk: u64,
    /// See [`ServerEntry`](super::ServerEntry).
    pub read_bytes_per_s: u64,
    /// Bytes of its segments; must be those of [`ClusterSettings`].
    pub segment_bytes: u32,
}

/// How a partition ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartitionOutcome {
    /// Everything is replayed and durable. `creation` as in
    /// [`TabletState::Normal`](super::TabletState::Normal).
    Replayed {
        creation: SegmentId,
        bytes: u64,
        entries: u64,
    },
    /// Nothing is left of it on the sender. `retry_elsewhere`: it has no space; else replicas are
    /// missing or damaged.
    Failed {
        retry_elsewhere: bool,
        reason: String,
    },
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationOutcome {
    /// The target has everything, durably. `creation` as in
    /// [`TabletState::Normal`](super::TabletState::Normal).
    Complete {
        creation: SegmentId,
    },
    Failed {
        reason: String,
    },
}

/// What the coordinator answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinatorAnswer {
    Enlisted(Box<Enlisted>),
    Noted,
    /// It counts; the coordinator has persisted what follows from it. From this version on,
    /// `Tablets` speaks about what was accepted; older ones don't know of it.
    Accepted {
        since: TabletsVersion,
    },
    /// It belongs to a recovery or migration that is over, or the sender is not UP: drop everything
    /// of it.
    Stale,
    Lease {
        client: ClientId,
        /// From when the client sent its question.
        ttl_ms: u32,
    },
    /// Those of the asked ones whose lease lasts, and how many milliseconds are left of it at
    /// least. The others have none, for ever. What is told lasts.
    ClientsAlive {
        clients: Vec<(ClientId, u32)>,
    },
    Map(TabletMap),
    MapIsCurrent,
    Servers(SharedList),
    Admin(AdminAnswer),
    Refused(Refusal),
    MapStep(Shared<MapStep>),
}

/// A new member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlisted {
    pub server: ServerId,
    pub list: SharedList,
    pub settings: ClusterSettings,
}
