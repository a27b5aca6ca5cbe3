//! The chronicle: logs the cluster's events for people. It takes them from the state machine's
//! messages to the members.

use duramen_base::ids::{ListVersion, RecoveryId, ServerId};
use duramen_cluster::coordinator::Output;
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, RecoveryPhase, RecoveryStatus, ServerChange,
    ServerListUpdate,
};
use std::collections::{BTreeMap, BTreeSet};

/// The events of one leadership that were logged already.
#[derive(Default)]
pub(super) struct Chronicle {
    /// Time of the next look at recoveries, in microseconds.
    pub due_us: u64,
    list: ListVersion,
    greeted: BTreeSet<ServerId>,
    recoveries: BTreeMap<RecoveryId, RecoveryPhase>,
}

impl Chronicle {
    /// Logs an output before it is executed.
    pub(super) fn read(&mut self, output: &Output) {
        match output {
            Output::Answer {
                answer: CoordinatorAnswer::Enlisted(enlisted),
                ..
            } => {
                let id = enlisted.server;
                let mut listed = enlisted.list.servers.iter();
                let entry = listed.find(|entry| entry.server == id);
                let address = entry.map_or("", |entry| entry.addresses.native.as_str());
                if self.greeted.insert(id) {
                    tracing::info!(server = %id, address, "a server is a member");
                }
            }
            Output::Ask {
                question: FromCoordinator::Servers(ServerListUpdate::Step { version, changes }),
                ..
            } if *version > self.list => {
                self.list = *version;
                changes.iter().for_each(|change| self.changed(change));
            }
            _ => {}
        }
    }

    fn changed(&mut self, change: &ServerChange) {
        match change {
            // Its enlistment was logged.
            ServerChange::Added(_) => {}
            ServerChange::Crashed(id) => {
                self.greeted.remove(id);
                tracing::warn!(server = %id, "a server crashed: its tablets are recovered on other servers");
            }
            ServerChange::Removed(id) => {
                tracing::info!(server = %id, "nothing of a crashed server is needed any more");
            }
            ServerChange::Changed(entry) => {
                tracing::info!(
                    server = %entry.server,
                    draining = entry.draining,
                    read_bytes_per_s = entry.read_bytes_per_s,
                    "a server is used differently"
                );
            }
        }
    }

    /// Logs the changed phases of recoveries.
    pub(super) fn recover(&mut self, recoveries: &[RecoveryStatus]) {
        for now in recoveries {
            let before = self.recoveries.insert(now.recovery, now.phase);
            if before == Some(now.phase) {
                continue;
            }
            let (server, ms) = (now.server, now.elapsed_ms);
            let (partitions, bytes, entries) = (now.partitions, now.bytes, now.entries);
            match now.phase {
                RecoveryPhase::Collecting => tracing::info!(%server, "recovery: collecting"),
                RecoveryPhase::Incomplete => {
                    let waits_for = now.waits_for.as_deref().unwrap_or("more servers");
                    tracing::warn!(%server, ms, waits_for, "recovery: incomplete");
                }
                RecoveryPhase::Replaying => {
                    tracing::info!(%server, ms, partitions, "recovery: replaying");
                }
                RecoveryPhase::WaitingForLease => {
                    tracing::info!(%server, ms, bytes, entries, "recovery: the old read lease runs out");
                }
                RecoveryPhase::Done => {
                    tracing::info!(%server, ms, partitions, bytes, entries, "recovery: done");
                }
            }
        }
        let is_there = |id: &RecoveryId| recoveries.iter().any(|now| now.recovery == *id);
        self.recoveries.retain(|id, _| is_there(id));
    }
}
