//! Requests of people and tools to the coordinator.

use super::{ClusterSettings, SegmentLoss, ServerEntry, TableEntry, TabletRoute};
use duramen_base::ids::{
    KeyRange, Level, ListVersion, MapVersion, MigrationId, RecoveryId, RouteHash, ServerId, TableId,
};
use serde::{Deserialize, Serialize};

/// A request of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Admin {
    /// Creates a table of `servers` tablets with equal hash ranges, each on a server of its own.
    /// If fewer servers can own tablets now: `NotReady`. If a table has this name: `Invalid`. →
    /// `Table`
    CreateTable {
        name: String,
        servers: u32,
        level: Option<Level>,
    },
    /// → `Done`
    DropTable { name: String },
    /// Splits the tablet that contains `at` before `at`. If a tablet begins there already, nothing
    /// happens. → `Done`
    Split { table: TableId, at: RouteHash },
    /// Moves a range that one server owns, splitting tablets where needed. → `Migrating`
    Migrate {
        table: TableId,
        range: KeyRange,
        to: ServerId,
    },
    /// Aborts a migration. → `Done`
    AbortMigration { migration: MigrationId },
    /// Moves everything off a server, so that it can be stopped. → `Done` when this has begun;
    /// [`Admin::Status`] shows the progress
    Drain { server: ServerId },
    /// → `Done`
    Undrain { server: ServerId },
    /// → `Status`; in a cluster with more than [`STATUS_TABLETS_MAX`] tablets `Invalid`: use
    /// `Overview` and `Tablets`
    Status,
    /// Recoveries in progress and the last ones that ended. → `Recoveries`
    Recoveries,
    /// Treats the server as crashed, even if it answers. → `Done`
    CrashServer { server: ServerId },
    /// → `Overview`
    Overview,
    /// Tablets in the order of table and hash, from `from` on. → `Tablets`
    Tablets {
        /// Only tablets of this table.
        table: Option<TableId>,
        /// The `next` of the previous answer; None in the first request.
        from: Option<(TableId, RouteHash)>,
        /// Maximum number, itself limited by [`PAGE_TABLETS_MAX`].
        most: u32,
    },
    /// → `Settings`
    Settings,
    /// → `Members`. Older coordinators answer that it is not understood.
    Members,
    /// → `Waits`. Older coordinators answer that it is not understood.
    Waits,
    /// Moves tablets until all servers have their shares, unless `is_dry`. → `Moves`, those that
    /// are to come; `NotReady` while a server is recovered or drained. Older coordinators answer
    /// that it is not understood.
    Rebalance { is_dry: bool },
    /// → `Balance`. Older coordinators answer that it is not understood.
    Balance,
    /// The data that the recovery of this server waits for, as no replica has it. → `Losses`. Older
    /// coordinators answer that it is not understood.
    Losses { server: ServerId },
    /// The recovery of this server goes on without the data that this token names. If the token is
    /// not that of the present losses: `Invalid`. → `Done`. Older coordinators answer that it is
    /// not understood.
    AcceptLoss { server: ServerId, token: u32 },
}

/// Maximum tablets that one [`Admin::Status`] reports.
pub const STATUS_TABLETS_MAX: usize = 1 << 16;
/// Maximum tablets that one [`Admin::Tablets`] reports.
pub const PAGE_TABLETS_MAX: usize = 1 << 13;
/// Maximum lines of [`AdminAnswer::Waits`].
pub const WAITS_MAX: usize = 64;
/// Maximum migrations in progress that an [`Overview`] lists.
pub const MIGRATIONS_SHOWN: usize = 1 << 10;

/// The answer to an [`Admin`]; a refusal is
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
    Members(MembersHealth),
    /// The waits, at most [`WAITS_MAX`].
    Waits(Vec<Wait>),
    Moves(Vec<PlannedMove>),
    Balance(Box<BalanceStatus>),
    /// The losses; `token` names all of them together.
    Losses {
        losses: Vec<SegmentLoss>,
        token: u32,
    },
}

/// Something that waits for an operator, or for time, with its reason, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The server that waits, or for which something waits.
    pub server: Option<ServerId>,
    /// Whether something waits now. If not, something will when more is written, or when a server
    /// crashes.
    pub is_now: bool,
    pub reason: String,
}

/// A move for the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    pub table: TableId,
    pub range: KeyRange,
    pub from: ServerId,
    pub to: ServerId,
    /// Approximate bytes.
    pub bytes: u64,
}

/// The balance between the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceStatus {
    /// Whether tablets move without a request.
    pub is_automatic: bool,
    /// Whether all servers are so near to their shares that nothing moves by itself.
    pub is_even: bool,
    /// Moves in progress and planned, and their approximate bytes.
    pub moves_left: u32,
    pub bytes_left: u64,
    /// The reason why nothing moves now, for people.
    pub waits_for: Option<String>,
    /// By server: its weight, in bytes and a little for each hash, and its share.
    pub shares: Vec<(ServerId, u64, u64)>,
}

/// The state of the members that are UP, beside their data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersHealth {
    /// The newest revision of the cluster's users; 0: it has none.
    pub users_revision: u64,
    pub members: Vec<MemberHealth>,
}

/// See [`MembersHealth`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberHealth {
    pub server: ServerId,
    /// The newest revision of the users that it has confirmed; 0: none.
    pub users_revision: u64,
    /// The reason why the member does not understand newer users, for people. The users before them
    /// are in force there.
    pub users_fault: Option<String>,
    /// When the certificate of its newest connection to this coordinator expires, in seconds since
    /// the Unix epoch. `None`: there is no TLS, or it has not connected yet.
    pub certificate_expires_s: Option<i64>,
}

/// A summary of the cluster; its size does not depend on the number of tablets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The status, without tablets and with no more than [`MIGRATIONS_SHOWN`] migrations.
    pub status: Status,
    /// Tablets of all tables, and those of them that no server serves now.
    pub tablets: u64,
    pub tablets_unserved: u64,
    pub migrations: u64,
    /// The distribution of each table.
    pub tables: Vec<TableShare>,
    /// The load of each server.
    pub servers: Vec<ServerShare>,
}

/// The distribution of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShare {
    pub table: TableId,
    pub tablets: u64,
    /// Number of servers that own a tablet of it.
    pub owners: u64,
}

/// The load of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerShare {
    pub server: ServerId,
    pub tablets: u64,
    /// The server's room, as reported by the server itself.
    pub room: Option<ServerRoom>,
    /// The reason why it is not drained further, for people.
    pub waits_for: Option<String>,
}

/// A server's memory for data, and its replicas for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRoom {
    /// The server's live bytes in memory, and their limit if it takes over more.
    pub used_bytes: u64,
    pub limit_bytes: u64,
    /// Replicas of other servers' segments.
    pub replicas: u64,
    /// Number of segments of its own log with two copies in one rack.
    pub segments_sharing_rack: u64,
}

/// One page of tablets: see [`Admin::Tablets`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletPage {
    /// The version of the map: pages of the same version fit together.
    pub map_version: MapVersion,
    pub tablets: Vec<TabletRoute>,
    /// The place at which the next page begins; `None`: there is none.
    pub next: Option<(TableId, RouteHash)>,
}

/// A summary of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub cluster: String,
    /// The coordinator's term, and its address `host:port`.
    pub term: u32,
    pub leader: String,
    pub list_version: ListVersion,
    pub map_version: MapVersion,
    pub servers: Vec<ServerEntry>,
    pub tables: Vec<TableEntry>,
    pub tablets: Vec<TabletRoute>,
    pub recoveries: Vec<RecoveryStatus>,
    /// Migrations in progress, ordered by id.
    pub migrations: Vec<MigrationStatus>,
    /// The migrations that ended last, oldest first.
    pub migrations_ended: Vec<MigrationStatus>,
    /// The settings that all members share.
    pub settings: ClusterSettings,
    /// The amount of data per server, as the servers last reported.
    pub loads: Vec<ServerLoad>,
}

/// Bytes and records in a server's tablets, live and dead, as reported by the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    pub server: ServerId,
    pub bytes: u64,
    pub records: u64,
}

/// Progress of a recovery.
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
    /// Time since the server was declared crashed.
    pub elapsed_ms: u64,
    /// The reason for waiting, for people: segments without a replica, masters without space.
    pub waits_for: Option<String>,
}

/// The current phase of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryPhase {
    /// Backups are fenced and report their replicas.
    Collecting,
    /// Not every segment has a replica on a server that is UP.
    Incomplete,
    Replaying,
    /// Everything is replayed; the dead server's read lease must expire.
    WaitingForLease,
    Done,
}

/// Progress of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStatus {
    pub migration: MigrationId,
    pub table: TableId,
    pub range: KeyRange,
    pub from: ServerId,
    pub to: ServerId,
    pub phase: MigrationPhase,
    /// Bytes of entries that the target has, and their estimated total; 0 while that is unknown.
    pub bytes: u64,
    pub bytes_total: u64,
    pub entries: u64,
    /// Time until now, or until its end.
    pub elapsed_ms: u64,
    /// The reason why it was given up, for people.
    pub reason: Option<String>,
}

/// The current phase of a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationPhase {
    /// Source and target have not begun.
    #[default]
    Waiting,
    /// The source serves, and sends its entries.
    Copying,
    /// No server serves: the target makes the rest durable.
    Switching,
    /// The target owns the range.
    Done,
    /// The source owns the range as before.
    GivenUp,
}
