//! Signs that this coordinator's store is older than its cluster: an operator has restored a copy.
//!
//! **Invariants**
//! - A1: a log counts as gone only if this store gave its server's id and has left that server out
//!   of the list since. A log of a life that it never gave is newer than the store: backups keep
//!   it.
//! - A2: no id is given while a backup has a log of a later life of that slot: two logs would have
//!   the same id. The coordinator knows the logs that backups have asked about since it leads, and
//!   the lives that servers claimed to follow when they enlisted. Backups ask again and again.
//! - A3: a crashed life is not recovered while a later life of its slot is known that this store
//!   never gave. Its log lacks what the later life acknowledged: its tablets would be served with
//!   old values, and clients would write over these. An attempt that has begun is given up.

use super::Coordinator;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::CoordinatorAnswer;
use std::collections::BTreeMap;

/// Slots above those of this store that are noted: a copy lacks a few members. A number far above
/// would make placement slow.
const SLOTS_MORE: u32 = 1024;

/// The ids of servers: those that this store gave, and later lives of which it knows.
#[derive(Default)]
pub(super) struct Lives {
    /// The highest generation given to each slot.
    given: BTreeMap<u32, u32>,
    /// The newest lives that this store never gave and whose logs backups have: generations by
    /// slot.
    newer: BTreeMap<u32, u32>,
}

impl Lives {
    /// Whether no server was ever a member.
    pub(super) fn is_new(&self) -> bool {
        self.given.is_empty()
    }

    /// The highest generation given to a slot; 0: none.
    pub(super) fn given(&self, slot: u32) -> u32 {
        self.given.get(&slot).copied().unwrap_or(0)
    }

    /// Whether no server with this id was ever a member.
    pub(super) fn never_gave(&self, id: ServerId) -> bool {
        let given = self.given(id.slot);
        id.generation > given && !id.is_coordinator()
    }

    /// Notes that this id is given.
    pub(super) fn give(&mut self, id: ServerId) {
        self.given.insert(id.slot, id.generation);
    }

    /// The slot after all that were given.
    fn next_slot(&self) -> u32 {
        self.given.last_key_value().map_or(0, |(slot, _)| slot + 1)
    }

    /// The id of a server that is added now. `replaces`: the life that it follows.
    pub(super) fn next_id(&self, replaces: Option<ServerId>) -> ServerId {
        let slot = match replaces {
            Some(old) => old.slot,
            None => {
                let newer = self.newer.last_key_value().map_or(0, |(slot, _)| slot + 1);
                self.next_slot().max(newer) // A2
            }
        };
        ServerId::new(slot, self.given(slot) + 1)
    }

    /// Notes a log or a life. Returns whether it is newer than this store and than all that were
    /// known in its slot.
    pub(super) fn note(&mut self, life: ServerId) -> bool {
        let end = self.next_slot().saturating_add(SLOTS_MORE);
        if !self.never_gave(life) || life.slot >= end {
            return false;
        }
        let newest = self.newer.entry(life.slot).or_default();
        let is_newer = *newest < life.generation;
        *newest = life.generation.max(*newest);
        is_newer
    }

    /// The newest life in this slot that is known (A2), if this store never gave it.
    pub(super) fn newer_life(&self, slot: u32) -> Option<ServerId> {
        let generation = self.newer.get(&slot)?;
        let life = ServerId::new(slot, *generation);
        self.never_gave(life).then_some(life)
    }

    /// The newest such lives of all slots: see [`newer_life`](Self::newer_life).
    pub(super) fn newer_lives(&self) -> impl Iterator<Item = ServerId> {
        let slots = self.newer.keys();
        slots.filter_map(move |slot| self.newer_life(*slot))
    }

    /// For people: this life proves that the store is older than the cluster.
    pub(super) fn why_older(&self, life: ServerId) -> String {
        let given = self.given(life.slot);
        format!(
            "this coordinator's store is older than the cluster, or another cluster's: it never \
             had a server {life}, only generations up to {given} of slot {}. Restore the newest \
             store",
            life.slot
        )
    }
}

impl Coordinator {
    /// Tells which of the logs are gone (A1).
    pub(super) fn are_gone(&mut self, sender: ServerId, logs: Vec<ServerId>) -> CoordinatorAnswer {
        let state = &mut self.state;
        state.ask_store(); // logs that are gone are dropped (coordinator::K8)
        if state.servers.is_up(sender) {
            for log in &logs {
                self.recoveries.note_newer(state, *log);
            }
        }
        let is_gone = |log: &ServerId| {
            let was_given = !state.lives.never_gave(*log) || has_bug(Bug::NeverGivenIsGone);
            let is_listed = self.pushes.list().get(*log).is_some() || state.servers.contains(log);
            was_given && !is_listed
        };
        let gone = logs.into_iter().filter(is_gone);
        CoordinatorAnswer::Gone {
            logs: gone.collect(),
        }
    }
}
