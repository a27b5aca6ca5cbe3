//! For this crate's tests: lists of servers that are up, master and backup at once, each with a
//! disk of its own; and a master that is no backup.

use crate::NodeOptions;
use crate::member::Candidate;
use duramen_base::ids::{ListVersion, ServerId};
use duramen_cluster::membership::Members;
use duramen_wire::native::message::{
    Addresses, ClusterSettings, Enlist, Roles, ServerEntry, ServerList, ServerListUpdate,
    ServerStatus,
};
use std::sync::Arc;

const MEMORY: u64 = 64 << 20;

pub(crate) fn entry(server: ServerId) -> ServerEntry {
    ServerEntry {
        server,
        addresses: Addresses::default(),
        rack: None,
        roles: Roles {
            master: true,
            backup: true,
        },
        disk: server.number(),
        read_bytes_per_s: 0,
        status: ServerStatus::Up,
        draining: false,
        unused: None,
    }
}

pub(crate) fn list(version: u64, servers: &[ServerId]) -> ServerList {
    ServerList {
        version: ListVersion(version),
        servers: servers.iter().map(|server| entry(*server)).collect(),
    }
}

/// A member list with these servers and no others.
pub(crate) fn members(servers: &[ServerId]) -> Members {
    let mut members = Members::new();
    members.apply(&ServerListUpdate::Full(list(1, servers).into()));
    members
}

/// One replica.
pub(crate) fn settings() -> ClusterSettings {
    ClusterSettings {
        replicas: 1,
        segment_bytes: duramen_engine::segment_bytes(MEMORY) as u32,
        partition_bytes: 1 << 30,
        partition_records: 1 << 30,
        ..duramen_harness::settings()
    }
}

fn enlist(rack: Option<&str>) -> Enlist {
    Enlist {
        rack: rack.map(str::to_owned),
        roles: Roles {
            master: true,
            backup: false,
        },
        segment_bytes: settings().segment_bytes,
        ..duramen_harness::enlist(1, String::new())
    }
}

pub(crate) fn options(rack: Option<&str>) -> NodeOptions {
    let mut store = duramen::Options::memory(MEMORY);
    store.engine.heads = 1;
    store.engine.huge_pages = false;
    NodeOptions {
        candidate: Candidate {
            enlist: enlist(rack),
            coordinators: vec!["coordinator:1".to_owned()],
            seed: 1,
        },
        store,
        backup: None,
        ahead_bytes: 0,
        room_us: 0,
        threads: false,
        wake: Arc::new(|| {}),
    }
}
