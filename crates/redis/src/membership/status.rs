//! The status of a member: its node's thread writes it periodically, INFO and admin HTTP show it.

use duramen_base::ids::{ListVersion, ServerId, TabletsVersion};
use duramen_node::{HeldHint, Node, PartitionProgress};
use duramen_wire::native::message::Addresses;

/// A member's status as its node saw it, at most some hundred milliseconds ago.
#[derive(Clone, Debug, Default)]
pub struct MemberStatus {
    pub cluster: String,
    pub server: ServerId,
    /// Addresses at which other servers and clients reach it.
    pub addresses: Addresses,
    /// The coordinator that answers, or that is tried: `host:port`.
    pub coordinator: String,
    /// Time since a leading coordinator answered, or sent an order.
    pub coordinator_silent_us: u64,
    pub list_version: ListVersion,
    /// The newest list of its tablets that is in effect here.
    pub tablets_version: TabletsVersion,
    /// Replicas of each segment, by the cluster's settings.
    pub replicas: u32,
    /// Servers in the list that are up, this one included; and those that have crashed and are not
    /// yet recovered.
    pub servers_up: usize,
    pub servers_crashed: usize,
    /// Whether enough other servers are up for all replicas of new writes, by placement's rules:
    /// if not, writes wait.
    pub enough_backups: bool,
    /// Number of segments of its log with two copies in one rack.
    pub segments_sharing_rack: usize,
    /// Number of closed segments of its log that lack a copy, because no backup takes it.
    pub segments_short: usize,
    /// Number of other members that store its writes much more slowly than the rest. They get no
    /// new replicas now, unless there are not enough other members.
    pub slow_backups: usize,
    /// Whether its disk has no room for other members' replicas: their writes wait.
    pub backup_full: bool,
    /// Replicas on this member's disk that were found damaged in this life.
    pub damaged_replicas: u64,
    /// Damaged replicas that are not replaced yet.
    pub damaged_left: usize,
    /// Rounds of its scrubber that had ended when `damaged_left` was counted.
    pub scrub_rounds: u64,
    /// Bytes written to its disk for other members since the start.
    pub backup_written_bytes: u64,
    /// Frames on its disk, and the number of them that more replicas may take.
    pub backup_frames: u32,
    pub backup_frames_free: u32,
    /// Partitions of crashed servers that are replayed here.
    pub recoveries: Vec<PartitionProgress>,
    /// Hot-key hints of other members that are stored here.
    pub hints: Vec<HeldHint>,
    /// Number of other servers' hellos and frames that were refused or malformed.
    pub offences: u64,
    /// Number of native connections, of both directions, that TLS ended.
    pub tls_failures: u64,
    /// Longest round of the node's thread so far, in microseconds: a ping may have waited as long.
    pub slowest_round_us: u64,
}

impl MemberStatus {
    /// Copies the node's state.
    pub fn look_at(&mut self, node: &Node, now_us: u64) {
        let members = node.member().members();
        self.server = node.member().id();
        node.member()
            .coordinator()
            .clone_into(&mut self.coordinator);
        self.coordinator_silent_us = node.member().coordinator_silent_us(now_us);
        self.list_version = members.version();
        self.servers_up = members.up().count();
        self.servers_crashed = members.iter().count() - self.servers_up;
        let placed = node.placed();
        self.enough_backups = placed.has_enough;
        self.segments_sharing_rack = placed.segments_sharing_rack;
        self.segments_short = placed.segments_short;
        self.slow_backups = node.slow_backups();
        (self.damaged_left, self.scrub_rounds) = node.damaged_replicas();
        if let Some(disk) = node.backup_stats() {
            self.backup_written_bytes = disk.wal_written_bytes + disk.frame_written_bytes;
            self.backup_frames = disk.frames;
            self.backup_frames_free = disk.frames_free();
        }
        self.recoveries = node.recoveries();
        self.hints = node.hints(now_us);
    }
}
