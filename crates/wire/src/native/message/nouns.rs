//! Types that several messages contain: servers, tables, tablets, settings.

use duramen_base::ids::{
    KeyRange, Level, ListVersion, MapVersion, MigrationId, SegmentId, ServerId, TableId,
};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// The addresses at which a server listens, each as `host:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "EncodedAddresses", into = "EncodedAddresses")]
pub struct Addresses {
    /// The native protocol: coordinator, peers, native clients.
    pub native: String,
    /// RESP, with TLS if the server has a port with TLS; `None`: the server has no port of RESP.
    pub resp: Option<String>,
    /// RESP without TLS, if `resp` is with TLS and there is such a port too.
    pub plain: Option<String>,
    /// Admin HTTP; `None`: the server has no such port.
    pub admin: Option<String>,
}

impl Addresses {
    /// The RESP address for a client whose connection has TLS, or has none.
    pub fn resp_for(&self, has_tls: bool) -> Option<&str> {
        let plain = self.plain.as_deref().filter(|_| !has_tls);
        plain.or(self.resp.as_deref())
    }
}

/// Addresses in messages and in a coordinator's store. Programs from before `plain` read them too,
/// and only show the text of `admin`: so `plain` stands behind it.
#[derive(Serialize, Deserialize)]
struct EncodedAddresses {
    native: String,
    resp: Option<String>,
    admin: Option<String>,
}

/// Separates the two addresses in `admin`.
const PLAIN: &str = " plain=";

impl From<Addresses> for EncodedAddresses {
    fn from(addresses: Addresses) -> EncodedAddresses {
        let Addresses {
            native,
            resp,
            plain,
            admin,
        } = addresses;
        let admin = match plain {
            Some(plain) => Some(format!("{}{PLAIN}{plain}", admin.unwrap_or_default())),
            None => admin,
        };
        EncodedAddresses {
            native,
            resp,
            admin,
        }
    }
}

impl From<EncodedAddresses> for Addresses {
    fn from(encoded: EncodedAddresses) -> Addresses {
        let EncodedAddresses {
            native,
            resp,
            admin,
        } = encoded;
        let both = admin.as_deref().and_then(|text| text.split_once(PLAIN));
        let (admin, plain) = match both {
            Some((admin, plain)) => (
                Some(admin.to_owned()).filter(|admin| !admin.is_empty()),
                Some(plain.to_owned()),
            ),
            None => (admin, None),
        };
        Addresses {
            native,
            resp,
            plain,
            admin,
        }
    }
}

/// The roles of a server in the cluster; it has at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Owns tablets and serves them.
    pub master: bool,
    /// Stores replicas of other masters' segments.
    pub backup: bool,
}

/// Whether a server is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerStatus {
    Up,
    /// Permanent. The server stays in the list until its log is not needed any more.
    Crashed,
}

/// A server in the server list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    pub server: ServerId,
    pub addresses: Addresses,
    /// Servers of one rack can fail together; `None`: a rack of its own.
    pub rack: Option<String>,
    pub roles: Roles,
    /// Random id that the server's disk got when it was initialized.
    pub disk: u64,
    /// Speed of the backup's disk in bytes per second, as measured by reading: placement prefers
    /// fast disks. 0 = unknown; it counts as the usual one.
    pub read_bytes_per_s: u64,
    pub status: ServerStatus,
    /// Whether the server gets no new tablets and no new replicas, because it is to be stopped.
    pub draining: bool,
    /// A number of older coordinators, without effect: masters compute the copysets themselves.
    pub unused: Option<u32>,
}

/// The whole server list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerList {
    pub version: ListVersion,
    /// Ordered by id.
    pub servers: Vec<ServerEntry>,
}

/// A server list that many messages share: in a large cluster it is sent to thousands at a time. On
/// the wire as [`ServerList`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedList(Arc<ServerList>);

impl From<ServerList> for SharedList {
    fn from(list: ServerList) -> SharedList {
        SharedList(Arc::new(list))
    }
}

impl std::ops::Deref for SharedList {
    type Target = ServerList;

    fn deref(&self) -> &ServerList {
        &self.0
    }
}

impl Serialize for SharedList {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SharedList {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<SharedList, D::Error> {
        ServerList::deserialize(from).map(SharedList::from)
    }
}

/// A value that many messages share; it is encoded once for all of them. On the wire as `T`.
#[derive(Debug, Default)]
pub struct Shared<T>(Arc<Encoded<T>>);

#[derive(Debug, Default)]
struct Encoded<T> {
    value: T,
    bytes: OnceLock<Vec<u8>>,
}

impl<T: Serialize> Shared<T> {
    /// The encoded value.
    ///
    /// # Panics
    /// Never with the messages of this crate: plain data has a postcard form.
    pub fn encoded(&self) -> &[u8] {
        let encode = || postcard::to_stdvec(&self.0.value).expect("plain data has a postcard form");
        self.0.bytes.get_or_init(encode)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Shared<T> {
        let bytes = OnceLock::new();
        Shared(Arc::new(Encoded { value, bytes }))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Shared<T>) -> bool {
        self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.value.serialize(to)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Shared<T>, D::Error> {
        T::deserialize(from).map(Shared::from)
    }
}

/// The users of a cluster, of which the coordinator keeps the newest revision.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterUsers {
    /// Grows by one with each change. 0: the coordinator has none, so each member has its own.
    pub revision: u64,
    /// A file of users: one line for each user, as `ACL LIST` shows it.
    pub rules: Vec<u8>,
}

/// Maximum bytes of [`ClusterUsers::rules`].
pub const CLUSTER_USERS_BYTES_MAX: usize = 1 << 20;

/// Shows the users without the rules, which contain digests of passwords.
impl std::fmt::Debug for ClusterUsers {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("ClusterUsers")
            .field("revision", &self.revision)
            .field("bytes", &self.rules.len())
            .finish()
    }
}

/// The libraries of functions of a cluster, of which the coordinator keeps the newest revision.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFunctions {
    /// Grows by one with each change.
    pub revision: u64,
    /// The text of each library.
    pub texts: Vec<Vec<u8>>,
}

/// Maximum bytes of all [`ClusterFunctions::texts`].
pub const CLUSTER_FUNCTIONS_BYTES_MAX: usize = 1 << 20;

/// Shows the libraries without their texts, which are long.
impl std::fmt::Debug for ClusterFunctions {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("ClusterFunctions")
            .field("revision", &self.revision)
            .field("libraries", &self.texts.len())
            .finish()
    }
}

/// The server list, or its changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerListUpdate {
    Full(SharedList),
    /// The changes from `version - 1` to `version`, in this order. A server that does not have
    /// `version - 1` answers with its version, which requests the full list.
    Step {
        version: ListVersion,
        changes: Vec<ServerChange>,
    },
}

impl ServerListUpdate {
    /// The version that the list has afterwards.
    pub fn version(&self) -> ListVersion {
        match self {
            ServerListUpdate::Full(list) => list.version,
            ServerListUpdate::Step { version, .. } => *version,
        }
    }
}

/// A change of the server list. When a server comes back, `Crashed` of its old id precedes `Added`
/// of its new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerChange {
    Added(ServerEntry),
    Crashed(ServerId),
    /// Its log is not needed any more: backups free its replicas.
    Removed(ServerId),
    /// Draining or disk speed of a member changed.
    Changed(ServerEntry),
}

/// Settings that all members of a cluster share. The coordinator stores them; a member gets them
/// when it enlists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Replicas of each segment, each on another server than the master.
    pub replicas: u32,
    /// Bytes of a segment, a power of two: equal on all servers; otherwise one could not store
    /// another's replicas.
    pub segment_bytes: u32,
    /// Seed of the key hash. All members and clients route with it.
    pub hash_seed: u64,
    /// Interval at which each server pings another server.
    pub ping_interval_ms: u32,
    /// If the answer takes longer, the pinged server is suspected.
    pub ping_timeout_ms: u32,
    /// The time for which the coordinator waits for a suspect before it declares that server
    /// crashed.
    pub verdict_timeout_ms: u32,
    /// The time for which an answer from the holder of a control segment allows the master to serve
    /// reads.
    pub read_lease_ms: u32,
    /// The time for which a client's lease lasts without renewal.
    pub client_lease_ms: u32,
    /// Maximum bytes and records of a partition, the share of one recovery master.
    pub partition_bytes: u64,
    pub partition_records: u64,
    /// Maximum RPC ids per client that are not acknowledged.
    pub rpc_window: u32,
    /// Places of each master's replicas.
    pub layout: ReplicaLayout,
}

/// Places of the replicas of a master's segments.
///
/// As bytes it is the scatter width of copysets, as in builds without zones: a width above
/// [`ZONES`](Self::ZONES) stands for zones of the size above it in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<u32>", into = "Option<u32>")]
pub enum ReplicaLayout {
    /// On any servers.
    #[default]
    Scatter,
    /// Fixed groups of servers, so that this many others share a server's replicas.
    Copysets { scatter: u32 },
    /// The same servers for each part of a log of so many MiB; they clean it on their own.
    Zones { mib: u32 },
}

impl ReplicaLayout {
    /// Widths up to this one are copysets.
    const ZONES: u32 = 1 << 31;

    /// Bytes of a zone; `None`: there are no zones.
    pub fn zone_bytes(self) -> Option<u64> {
        match self {
            ReplicaLayout::Zones { mib } => Some(u64::from(mib) << 20),
            ReplicaLayout::Scatter | ReplicaLayout::Copysets { .. } => None,
        }
    }

    /// The scatter width of copysets; `None`: there are no copysets.
    pub fn copyset_scatter(self) -> Option<u32> {
        match self {
            ReplicaLayout::Copysets { scatter } => Some(scatter),
            ReplicaLayout::Scatter | ReplicaLayout::Zones { .. } => None,
        }
    }
}

impl From<Option<u32>> for ReplicaLayout {
    fn from(width: Option<u32>) -> ReplicaLayout {
        match width {
            None => ReplicaLayout::Scatter,
            Some(width) if width <= Self::ZONES => ReplicaLayout::Copysets { scatter: width },
            Some(width) => ReplicaLayout::Zones {
                mib: width - Self::ZONES,
            },
        }
    }
}

impl From<ReplicaLayout> for Option<u32> {
    fn from(layout: ReplicaLayout) -> Option<u32> {
        match layout {
            ReplicaLayout::Scatter => None,
            ReplicaLayout::Copysets { scatter } => Some(scatter.min(ReplicaLayout::ZONES)),
            ReplicaLayout::Zones { mib } => Some(ReplicaLayout::ZONES.saturating_add(mib.max(1))),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEntry {
    pub table: TableId,
    pub name: String,
    /// The level of acknowledged writes, unless the request names another; `None`: the server's
    /// default.
    pub level: Option<Level>,
}

/// The state of a tablet at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TabletState {
    /// Served. Entries of the tablet in segments below `creation` do not belong to it: they are
    /// from an earlier time of ownership.
    Normal { creation: SegmentId },
    /// It is being recovered from the log of a dead server: nothing is served yet.
    Recovering,
    /// It comes from `from`: accept its entries, serve nothing yet.
    Incoming {
        migration: MigrationId,
        from: ServerId,
    },
    /// Served, and meanwhile sent to `to`.
    Outgoing {
        creation: SegmentId,
        migration: MigrationId,
        to: ServerId,
    },
}

impl TabletState {
    /// Whether the tablet's owner serves it.
    pub fn is_served(self) -> bool {
        matches!(
            self,
            TabletState::Normal { .. } | TabletState::Outgoing { .. }
        )
    }
}

/// A tablet, as sent to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletEntry {
    pub table: TableId,
    pub range: KeyRange,
    pub state: TabletState,
}

/// The server for a range of a table, for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletRoute {
    pub table: TableId,
    pub range: KeyRange,
    pub owner: ServerId,
    /// Whether the owner serves it. If not, it is being recovered: wait, and get the map again.
    pub served: bool,
    /// The destination of a moving range. Only `CLUSTER` commands use it: native clients use the
    /// owner.
    pub moving_to: Option<ServerId>,
}

/// The owners of all tablets, as clients cache them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletMap {
    pub version: MapVersion,
    /// Seed of the key hash.
    pub hash_seed: u64,
    /// Ordered by id.
    pub tables: Vec<TableEntry>,
    /// Ordered by table and range; without gaps or overlaps.
    pub tablets: Vec<TabletRoute>,
    /// The owners of these tablets.
    pub servers: Vec<(ServerId, Addresses)>,
}

/// Changes of the map: a receiver that has version `since` drops all tablets that overlap the
/// ranges and adds these instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapStep {
    pub since: MapVersion,
    /// The version that the map has afterwards.
    pub version: MapVersion,
    /// Ordered, without overlaps.
    pub ranges: Vec<(TableId, KeyRange)>,
    /// All tablets that overlap the ranges; ordered by table and range.
    pub tablets: Vec<TabletRoute>,
    /// The owners of these tablets, and the servers to which they move.
    pub servers: Vec<(ServerId, Addresses)>,
}

/// Amount of data in a part of a tablet, live and dead; used to cut a dead server's tablets into
/// partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeLoad {
    pub table: TableId,
    pub range: KeyRange,
    pub bytes: u64,
    pub records: u64,
}

/// Reason why the receiver does not do what was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Ask the leader.
    #[error("not the leading coordinator; it is {}", leader.as_deref().unwrap_or("not known"))]
    NotLeader { leader: Option<String> },
    /// Ask again after this time: the coordinator has just started, or another operation must end
    /// first.
    #[error("not ready: {reason}")]
    NotReady { after_ms: u32, reason: String },
    /// The sender is not an UP member (any more). A server ends its life and enlists again.
    #[error("server {0} is not a member of the cluster")]
    NotUp(ServerId),
    #[error("this is cluster `{expected}`, not `{found}`")]
    WrongCluster { expected: String, found: String },
    #[error("protocol {min} to {max} is spoken here")]
    WrongProtocol { min: u16, max: u16 },
    /// Asking again does not help: a person must decide.
    #[error("{0}")]
    Invalid(String),
    /// The coordinator's store failed or cannot be reached. Ask again later.
    #[error("the coordinator's store: {0}")]
    Store(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain client was redirected to the TLS port, because the other one was not known.
    #[test]
    fn a_plain_address_beside_tls_is_encoded_so_that_older_programs_read_the_rest() {
        let text = |text: &str| Some(text.to_owned());
        for (plain, admin, older) in [
            (None, None, None),
            (None, text("a:3"), text("a:3")),
            (text("a:4"), text("a:3"), text("a:3 plain=a:4")),
            (text("[::1]:4"), None, text(" plain=[::1]:4")),
        ] {
            let addresses = Addresses {
                native: "a:1".to_owned(),
                resp: text("a:2"),
                plain: plain.clone(),
                admin,
            };
            let bytes = postcard::to_allocvec(&addresses).expect("it has no unknown length");
            assert_eq!(postcard::from_bytes(&bytes), Ok(addresses.clone()));
            let read: (String, Option<String>, Option<String>) =
                postcard::from_bytes(&bytes).expect("three texts");
            assert_eq!(read, ("a:1".to_owned(), text("a:2"), older));
            assert_eq!(addresses.resp_for(true), Some("a:2"));
            let plain = plain.as_deref().unwrap_or("a:2");
            assert_eq!(addresses.resp_for(false), Some(plain));
        }
    }
}
