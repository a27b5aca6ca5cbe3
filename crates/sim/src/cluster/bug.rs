//! Bugs of all crates that can be planted in a simulated cluster, by name.

/// A bug, and the crate that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A bug of the coordinator, the server list or recovery.
    Cluster(duramen_cluster::planted::Bug),
    Replication(duramen_cluster::replication::Bug),
    Rifl(duramen_cluster::rifl::Bug),
    /// A bug of a member, or of migrations.
    Node(duramen_node::planted::Bug),
    /// A bug of the execution of native requests.
    Serve(duramen_node::serve::Bug),
    Engine(duramen_engine::Bug),
    Backup(duramen_backup::planted::Bug),
}
