//! What people may see of a member: the node's thread writes it down now and then, INFO and admin
//! HTTP show it.

use duramen_base::ids::{ListVersion, ServerId, TabletsVersion};
use duramen_node::{HeldHint, Node, PartitionProgress};
use duramen_wire::native::message::Addresses;

/// A member as its node saw it last, some hundred milliseconds ago at most.
#[derive(Clone, Debug, Default)]
pub struct MemberStatus {
    pub cluster: String,
    pub server: ServerId,
    /// Where others find it.
    pub addresses: Addresses,
    /// The coordinator that answers, or is tried: `host:port`.
    pub coordinator: String,
    pub list_version: ListVersion,
    /// Newest list of its tablets that is made so.
    pub tablets_version: TabletsVersion,
    /// Replicas of each segment, as the cluster's settings say.
    pub replicas: u32,
    /// Servers in the list that are up, this one included, and those that have crashed and are not
    /// recovered yet.
    pub servers_up: usize,
    pub servers_crashed: usize,
    /// Whether there are enough others for all replicas of what is written now, as placement
    /// counts them: if not, writes wait.
    pub enough_backups: bool,
    /// Segments of its log of which two copies lie in one rack.
    pub segments_sharing_rack: usize,
    /// Whether the own disk has no room for other members' replicas: what they write waits.
    pub backup_full: bool,
    /// What is replayed here of crashed servers.
    pub recoveries: Vec<PartitionProgress>,
    /// What is known here of what is read often at others.
    pub hints: Vec<HeldHint>,
    /// Hellos and frames of others that were refused or made no sense.
    pub offences: u64,
    /// Longest round of the node's thread so far, in microseconds: as long may a ping have waited.
    pub slowest_round_us: u64,
}

impl MemberStatus {
    /// Takes over what the node knows.
    pub(super) fn look_at(&mut self, node: &Node, now_us: u64) {
        let members = node.member().members();
        self.server = node.member().id();
        node.member()
            .coordinator()
            .clone_into(&mut self.coordinator);
        self.list_version = members.version();
        self.servers_up = members.up().count();
        self.servers_crashed = members.iter().count() - self.servers_up;
        let placed = node.placed();
        self.enough_backups = placed.has_enough;
        self.segments_sharing_rack = placed.segments_sharing_rack;
        self.recoveries = node.recoveries();
        self.hints = node.hints(now_us);
    }
}
