//! What people and tools ask the coordinator.

use super::{ClusterSettings, ServerEntry, TableEntry, TabletRoute};
use duramen_base::ids::{
    KeyRange, Level, ListVersion, MapVersion, MigrationId, RecoveryId, RouteHash, ServerId, TableId,
};
use serde::{Deserialize, Serialize};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admin {
    /// A table of `servers` tablets of equal hash ranges. A table of that name: `Invalid`. →
    /// `Table`
    CreateTable {
        name: String,
        servers: u32,
        level: Option<Level>,
    },
    /// → `Done`
    DropTable { name: String },
    /// Cuts the tablet that contains `at` in front of it. If it is cut there already, nothing
    /// happens. → `Done`
    Split { table: TableId, at: RouteHash },
    /// Moves what is owned by one server, splitting where needed. → `Migrating`
    Migrate {
        table: TableId,
        range: KeyRange,
        to: ServerId,
    },
    /// Gives up a migration. → `Done`
    AbortMigration { migration: MigrationId },
    /// Moves everything off a server, so that it can be stopped. → `Done` when it has begun;
    /// [`Admin::Status`] shows the progress
    Drain { server: ServerId },
    /// → `Done`
    Undrain { server: ServerId },
    /// → `Status`; of a cluster with more than [`STATUS_TABLETS_MAX`] tablets `Invalid`: ask for
    /// `Overview` and `Tablets`
    Status,
    /// Recoveries under way and the last ones that ended. → `Recoveries`
    Recoveries,
    /// Treat it as crashed, whatever it says. → `Done`
    CrashServer { server: ServerId },
    /// → `Overview`
    Overview,
    /// Tablets in the order of table and hash, from this one on. → `Tablets`
    Tablets {
        /// Of this table alone.
        table: Option<TableId>,
        /// The `next` of the answer before; none at first.
        from: Option<(TableId, RouteHash)>,
        /// At most so many, and never more than [`PAGE_TABLETS_MAX`].
        most: u32,
    },
    /// → `Settings`
    Settings,
}

/// More tablets than this are not told in one [`Admin::Status`].
pub const STATUS_TABLETS_MAX: usize = 1 << 16;
/// More than this are not told in one [`Admin::Tablets`].
pub const PAGE_TABLETS_MAX: usize = 1 << 13;
/// More migrations under way are not listed in an [`Overview`].
pub const MIGRATIONS_SHOWN: usize = 1 << 10;

/// What comes of it; a refusal is
/// [`CoordinatorAnswer::Refused`](super::CoordinatorAnswer::Refused).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminAnswer {
    Done,
    Table(TableEntry),
    Migrating(Vec<MigrationId>),
    Status(Box<Status>),
    Recoveries(Vec<RecoveryStatus>),
    Overview(Box<Overview>),
    Tablets(TabletPage),
    Settings(ClusterSettings),
}

/// The cluster at a glance, whose size does not depend on how many tablets there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// Without tablets, and with no more than [`MIGRATIONS_SHOWN`] migrations.
    pub status: Status,
    /// Of all tables, and those of them that nobody serves now.
    pub tablets: u64,
    pub tablets_unserved: u64,
    pub migrations: u64,
    /// By table.
    pub tables: Vec<TableShare>,
    /// By server.
    pub servers: Vec<ServerShare>,
}

/// How a table is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShare {
    pub table: TableId,
    pub tablets: u64,
    /// Servers that own one.
    pub owners: u64,
}

/// What a server has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerShare {
    pub server: ServerId,
    pub tablets: u64,
    /// By its own word.
    pub room: Option<ServerRoom>,
    /// Why it is not drained further, for people.
    pub waits_for: Option<String>,
}

/// How much room a server has, and what it keeps for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRoom {
    /// Live bytes of its own in memory, and how many there may be if it takes over more.
    pub used_bytes: u64,
    pub limit_bytes: u64,
    /// Replicas of other servers' segments.
    pub replicas: u64,
    /// Segments of its own log of which two copies lie in one rack.
    pub segments_sharing_rack: u64,
}

/// See [`Admin::Tablets`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletPage {
    /// Pages of one version fit together.
    pub map_version: MapVersion,
    pub tablets: Vec<TabletRoute>,
    /// None: there are no more.
    pub next: Option<(TableId, RouteHash)>,
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
