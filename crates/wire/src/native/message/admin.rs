//! What people and tools ask the coordinator.

use super::{ClusterSettings, ServerEntry, TableEntry, TabletRoute};
use duramen_base::ids::{
    KeyRange, Level, ListVersion, MapVersion, MigrationId, RecoveryId, RouteHash, ServerId, TableId,
};
use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admin {
    /// A table of `servers` tablets of equal hash ranges. A table of that name: `Invalid`. → `Table`
    CreateTable {
        name: String,
        servers: u32,
        level: Option<Level>,
    },
    /// → `Done`
    DropTable { name: String },
    /// Cuts the tablet that contains `at` in front of it. If it is cut there already, nothing happens. → `Done`
    Split { table: TableId, at: RouteHash },
    /// Moves what is owned by one server, splitting where needed. → `Migrating`
    Migrate {
        table: TableId,
        range: KeyRange,
        to: ServerId,
    },
    /// Gives up a migration. → `Done`
    AbortMigration { migration: MigrationId },
    /// Moves everything off a server, so that it can be stopped. → `Done` when it has begun; [`Admin::Status`] shows the progress
    Drain { server: ServerId },
    /// → `Done`
    Undrain { server: ServerId },
    /// → `Status`
    Status,
    /// Recoveries under way and the last ones that ended. → `Recoveries`
    Recoveries,
    /// Treat it as crashed, whatever it says. → `Done`
    CrashServer { server: ServerId },
}

/// What comes of it; a refusal is [`CoordinatorAnswer::Refused`](super::CoordinatorAnswer::Refused).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminAnswer {
    Done,
    Table(TableEntry),
    Migrating(Vec<MigrationId>),
    Status(Box<Status>),
    Recoveries(Vec<RecoveryStatus>),
}

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub cluster: String,
    /// The coordinator's term, and `host:port` of it.
    pub term: u32,
    pub leader: String,
    pub list_version: ListVersion,
    pub map_version: MapVersion,
    pub servers: Vec<ServerEntry>,
    pub tables: Vec<TableEntry>,
    pub tablets: Vec<TabletRoute>,
    pub recoveries: Vec<RecoveryStatus>,
    /// Under way, by id.
    pub migrations: Vec<MigrationStatus>,
    /// The last ones that ended, oldest first.
    pub migrations_ended: Vec<MigrationStatus>,
    /// What all members agree on.
    pub settings: ClusterSettings,
    /// How much lies where, as the servers last said.
    pub loads: Vec<ServerLoad>,
}

/// How much lies in a server's tablets, live and dead, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    pub server: ServerId,
    pub bytes: u64,
    pub records: u64,
}

/// How far a recovery is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    pub recovery: RecoveryId,
    pub server: ServerId,
    pub phase: RecoveryPhase,
    pub partitions: u32,
    pub partitions_done: u32,
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
    /// Since the server was called crashed.
    pub elapsed_ms: u64,
    /// What it waits for, for people: segments without a replica, masters without space.
    pub waits_for: Option<String>,
}

/// What a recovery does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryPhase {
    /// Backups are fenced and say what they have.
    Collecting,
    /// Not every segment has a replica on a server that is UP.
    Incomplete,
    Replaying,
    /// Everything is replayed; the dead server's read lease runs out.
    WaitingForLease,
    Done,
}

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStatus {
    pub migration: MigrationId,
    pub table: TableId,
    pub range: KeyRange,
    pub from: ServerId,
    pub to: ServerId,
    pub phase: MigrationPhase,
    /// Of entries that the target has, and about how many it will be; 0 as long as nobody knows.
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
    /// Until its end.
    pub elapsed_ms: u64,
    /// Why it was given up, for people.
    pub reason: Option<String>,
}

/// What a migration does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationPhase {
    /// Source and target have not begun.
    #[default]
    Waiting,
    /// The source serves, and sends what it has.
    Copying,
    /// Nobody serves: the target makes the rest durable.
    Switching,
    /// The target owns it.
    Done,
    /// The source owns it as before.
    GivenUp,
}
