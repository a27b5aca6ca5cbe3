//! The cluster settings that a test's coordinator sends to its members.

use duramen_wire::native::message::ClusterSettings;

/// Two replicas, segments of 1 MiB, pings every 100 ms, leases of half a second.
pub fn settings() -> ClusterSettings {
    ClusterSettings {
        replicas: 2,
        segment_bytes: 1 << 20,
        hash_seed: 1,
        ping_interval_ms: 100,
        ping_timeout_ms: 50,
        verdict_timeout_ms: 250,
        read_lease_ms: 500,
        client_lease_ms: 10_000,
        partition_bytes: 1 << 20,
        partition_records: 1 << 20,
        rpc_window: 512,
        copyset_scatter: None,
    }
}
