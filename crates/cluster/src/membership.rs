//! The server list of a member: first whole, then strictly step by step.
//!
//! **Invariants**
//! - V1: the list of version v is what the coordinator persisted as v: a step is applied to v - 1
//!   and to nothing else.
//! - V2: versions only grow; an update that is not newer changes nothing.
//! - V3: a crashed server is never UP again, and one that is gone never comes back.
//! - V4: a server counts as gone only if it was in the list before. One that was never in it may be
//!   too new for this list: its replicas stay. (Replicas that a disk held before its backup
//!   enlisted are older than the list that the backup got then. A backup with replicas of a log
//!   whose server is not in its list asks the coordinator, after the log's first write: a server
//!   that the coordinator's store once had is in the list, or its log is gone. The store may be an
//!   older copy. So a full list alone proves nothing, nor does the absence of a server that the
//!   store never had, `coordinator::older`.)
//!
//! Paper: [Ousterhout15 §3]; docs/traps.md, trap 27 and scenario 28.

use duramen_base::ids::{ListVersion, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    ServerChange, ServerEntry, ServerList, ServerListUpdate, ServerStatus, SharedList,
};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The server list of a member; see the module.
#[derive(Clone, Debug, Default)]
pub struct Members {
    version: ListVersion,
    servers: BTreeMap<ServerId, ServerEntry>,
    /// The list as a message, made at the first request for it.
    listed: OnceLock<SharedList>,
}

/// The effect of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The changes, in this order: existing servers crash and go before any is added. An added
    /// server may be crashed already: check its status.
    Changed(Vec<ServerChange>),
    /// V2: no effect.
    Old,
    /// V1: no effect; the answer with the present version brings the full list.
    NeedsFull,
}

impl Members {
    /// No servers, version 0: any full list is newer.
    pub fn new() -> Members {
        Members::default()
    }

    pub fn version(&self) -> ListVersion {
        self.version
    }

    /// A member, or one that crashed and is still needed.
    pub fn get(&self, server: ServerId) -> Option<&ServerEntry> {
        self.servers.get(&server)
    }

    pub fn is_up(&self, server: ServerId) -> bool {
        self.get(server)
            .is_some_and(|entry| entry.status == ServerStatus::Up)
    }

    /// All servers, by id.
    pub fn iter(&self) -> impl Iterator<Item = &ServerEntry> {
        self.servers.values()
    }

    /// The number of servers.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// The servers that are UP, by id.
    pub fn up(&self) -> impl Iterator<Item = &ServerEntry> {
        self.iter().filter(|entry| entry.status == ServerStatus::Up)
    }

    /// The list as a message.
    pub fn list(&self) -> SharedList {
        let list = || {
            SharedList::from(ServerList {
                version: self.version,
                servers: self.servers.values().cloned().collect(),
            })
        };
        self.listed.get_or_init(list).clone()
    }

    /// Applies an update of the coordinator.
    pub fn apply(&mut self, update: &ServerListUpdate) -> Applied {
        if update.version() <= self.version {
            return Applied::Old; // V2
        }
        self.listed = OnceLock::new();
        match update {
            ServerListUpdate::Full(list) => Applied::Changed(self.replace(list)),
            ServerListUpdate::Step { version, changes } => {
                let next = ListVersion(self.version.0 + 1);
                let follows = *version == next && self.version.0 > 0;
                if !follows && !has_bug(Bug::SkipsVersions) {
                    return Applied::NeedsFull; // V1
                }
                self.step(*version, changes)
            }
        }
    }

    fn step(&mut self, version: ListVersion, changes: &[ServerChange]) -> Applied {
        if !self.fits(changes) {
            return Applied::NeedsFull;
        }
        for change in changes {
            match change {
                ServerChange::Added(entry) | ServerChange::Changed(entry) => {
                    self.servers.insert(entry.server, entry.clone());
                }
                ServerChange::Crashed(id) => {
                    if let Some(entry) = self.servers.get_mut(id) {
                        entry.status = ServerStatus::Crashed;
                    }
                }
                ServerChange::Removed(id) => {
                    self.servers.remove(id);
                }
            }
        }
        self.version = version;
        Applied::Changed(changes.to_vec())
    }

    /// Whether each change applies to an existing server, and adds only new ones (V3).
    fn fits(&self, changes: &[ServerChange]) -> bool {
        let mut there: BTreeMap<ServerId, bool> = BTreeMap::new();
        changes.iter().all(|change| {
            let (id, is_new, stays) = match change {
                ServerChange::Added(entry) => (entry.server, true, true),
                ServerChange::Changed(entry) => (entry.server, false, true),
                ServerChange::Crashed(id) => (*id, false, true),
                ServerChange::Removed(id) => (*id, false, false),
            };
            let was = there
                .insert(id, stays)
                .unwrap_or_else(|| self.servers.contains_key(&id));
            was != is_new
        })
    }

    fn replace(&mut self, list: &ServerList) -> Vec<ServerChange> {
        let new: BTreeMap<ServerId, ServerEntry> = list
            .servers
            .iter()
            .map(|entry| (entry.server, entry.clone()))
            .collect();
        let mut changes = Vec::new();
        for (id, known) in &self.servers {
            let is_up = known.status == ServerStatus::Up;
            let stays = new.get(id);
            if is_up && stays.is_none_or(|entry| entry.status == ServerStatus::Crashed) {
                changes.push(ServerChange::Crashed(*id));
            }
            if stays.is_none() {
                changes.push(ServerChange::Removed(*id)); // V4
            }
        }
        for (id, entry) in &new {
            match self.servers.get(id) {
                None => changes.push(ServerChange::Added(entry.clone())),
                Some(known) if known.status == entry.status && known != entry => {
                    changes.push(ServerChange::Changed(entry.clone()));
                }
                Some(_) => {}
            }
        }
        self.servers = new;
        self.version = list.version;
        changes
    }
}
