//! Bugs of all rooms that can be planted in a simulated cluster, by name.

/// A bug, and the room that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Of the coordinator, the server list and recovery.
    Cluster(duramen_cluster::planted::Bug),
    Replication(duramen_cluster::replication::Bug),
    Rifl(duramen_cluster::rifl::Bug),
    /// Of a member; of how tablets move.
    Node(duramen_node::planted::Bug),
    /// Of what executes native requests.
    Serve(duramen_node::serve::Bug),
    Engine(duramen_engine::Bug),
    Backup(duramen_backup::planted::Bug),
}
