//! The parts that all simulated clusters in tests share: future [events](Queue), the [`Leader`],
//! the settings and requests of a small cluster. A test adds its servers, and the faults of its
//! network.

mod leader;
mod queue;

pub use leader::{Leader, config};
pub use queue::Queue;

use duramen_wire::native::message::{Addresses, ClusterSettings, Enlist, ReplicaLayout, Roles};

/// Two replicas, small segments and partitions, pings every 100 ms, leases of half a second.
pub fn settings() -> ClusterSettings {
    ClusterSettings {
        replicas: 2,
        segment_bytes: 1 << 17,
        hash_seed: 1,
        ping_interval_ms: 100,
        ping_timeout_ms: 50,
        verdict_timeout_ms: 250,
        read_lease_ms: 500,
        client_lease_ms: 10_000,
        partition_bytes: 1 << 20,
        partition_records: 1 << 20,
        rpc_window: 512,
        layout: ReplicaLayout::Scatter,
    }
}

/// The request of a new server with this disk, whose number is its nonce too.
pub fn enlist(disk: u64, address: String) -> Enlist {
    Enlist {
        nonce: disk,
        cluster: "test".to_owned(),
        addresses: Addresses {
            native: address,
            ..Addresses::default()
        },
        rack: None,
        roles: Roles {
            master: true,
            backup: true,
        },
        replaces: None,
        disk,
        read_bytes_per_s: 0,
        segment_bytes: settings().segment_bytes,
    }
}
