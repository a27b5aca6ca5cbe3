//! For this crate's tests: lists of servers that are up, master and backup at once, each with a disk of its own.

use duramen_base::ids::{ListVersion, ServerId};
use duramen_cluster::membership::Members;
use duramen_wire::native::message::{
    Addresses, Roles, ServerEntry, ServerList, ServerListUpdate, ServerStatus,
};

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
        copyset: None,
    }
}

pub(crate) fn list(version: u64, servers: &[ServerId]) -> ServerList {
    ServerList {
        version: ListVersion(version),
        servers: servers.iter().map(|server| entry(*server)).collect(),
    }
}

/// Who knows of these and nobody else.
pub(crate) fn members(servers: &[ServerId]) -> Members {
    let mut members = Members::new();
    members.apply(&ServerListUpdate::Full(list(1, servers).into()));
    members
}
