//! Counts of tablets by owner, and the tablets that are not served: for people, without a scan of
//! all tablets.
//!
//! **Invariants**
//! - S1: counts are those of the tablets: every tablet is added once, when it gets its owner, and
//!   removed once.
//! - S2: a tablet counts as served when its owner is UP and has confirmed a list with it. Until
//!   then it may be unserved: its owner replays, applies the list, or waits for the end of
//!   another's lease (coordinator::K7). A new leader does not know which lists were confirmed to
//!   the previous one.

use super::State;
use duramen_base::ids::{RouteHash, ServerId, TableId, TabletsVersion};
use std::collections::BTreeMap;

pub(super) type At = (TableId, RouteHash);

/// The counts of tablets; see the file.
#[derive(Default)]
pub(super) struct Shares {
    counts: BTreeMap<TableId, BTreeMap<ServerId, u64>>,
    /// Tablets that their owner got with this version or a later one, and has not confirmed.
    fresh: BTreeMap<ServerId, BTreeMap<At, TabletsVersion>>,
    /// No tablet of these owners counts before they have confirmed this version.
    since: BTreeMap<ServerId, TabletsVersion>,
}

impl Shares {
    pub(super) fn add(&mut self, table: TableId, owner: ServerId) {
        let of_table = self.counts.entry(table).or_default();
        *of_table.entry(owner).or_default() += 1;
    }

    /// # Panics
    /// If the owner has no tablet (S1).
    pub(super) fn remove(&mut self, at: At, owner: ServerId) {
        let of_table = self.counts.entry(at.0).or_default();
        let count = of_table.get_mut(&owner).filter(|count| **count > 0);
        let count = count.unwrap_or_else(|| panic!("S1: server {owner} has no tablet of {}", at.0));
        *count -= 1;
        if *count == 0 {
            of_table.remove(&owner);
        }
        if of_table.is_empty() {
            self.counts.remove(&at.0);
        }
        self.settle(at, owner);
    }

    /// The owner has to confirm the tablet.
    pub(super) fn give(&mut self, at: At, owner: ServerId, version: TabletsVersion) {
        self.fresh.entry(owner).or_default().insert(at, version);
    }

    /// The tablet is as the owner has confirmed it.
    pub(super) fn settle(&mut self, at: At, owner: ServerId) {
        if let Some(fresh) = self.fresh.get_mut(&owner) {
            fresh.remove(&at);
            if fresh.is_empty() {
                self.fresh.remove(&owner);
            }
        }
    }

    /// A tablet was cut at `at`: that part is as confirmed as the first one.
    pub(super) fn split(&mut self, first: At, at: At, owner: ServerId) {
        match self.is_fresh(first, owner) {
            Some(version) => self.give(at, owner, version),
            None => self.settle(at, owner),
        }
    }

    /// The version since which the owner has it, if that is not confirmed.
    pub(super) fn is_fresh(&self, at: At, owner: ServerId) -> Option<TabletsVersion> {
        self.fresh.get(&owner)?.get(&at).copied()
    }

    /// A new leader's first list for this server.
    pub(super) fn begin(&mut self, owner: ServerId, version: TabletsVersion) {
        self.since.insert(owner, version);
    }

    pub(super) fn confirmed(&mut self, owner: ServerId, version: TabletsVersion) {
        if self
            .since
            .get(&owner)
            .is_some_and(|since| *since <= version)
        {
            self.since.remove(&owner);
        }
        if let Some(fresh) = self.fresh.get_mut(&owner) {
            fresh.retain(|_, given| *given > version);
            if fresh.is_empty() {
                self.fresh.remove(&owner);
            }
        }
    }

    /// The server is crashed: it confirms nothing any more.
    pub(super) fn forget(&mut self, owner: ServerId) {
        self.fresh.remove(&owner);
        self.since.remove(&owner);
    }

    /// The number of tables that have tablets.
    pub(super) fn tables(&self) -> usize {
        self.counts.len()
    }

    /// The number of tablets of the table, and of the servers that own them.
    pub(super) fn of_table(&self, table: TableId) -> (u64, u64) {
        let of_table = self.counts.get(&table).into_iter().flatten();
        of_table.fold((0, 0), |(tablets, owners), (_, count)| {
            (tablets + count, owners + 1)
        })
    }

    /// Whether the owner has confirmed a list with the tablet (S2).
    fn is_confirmed(&self, at: At, owner: ServerId) -> bool {
        !self.since.contains_key(&owner) && self.is_fresh(at, owner).is_none()
    }

    /// The number of an UP server's `owned` tablets that it has not confirmed.
    fn unconfirmed(&self, owner: ServerId, owned: usize) -> usize {
        if self.since.contains_key(&owner) {
            return owned;
        }
        self.fresh.get(&owner).map_or(0, BTreeMap::len)
    }
}

impl State {
    /// Whether the tablet's owner serves it, as far as is known (S2), if no migration of it has
    /// locked it.
    pub(super) fn is_opened(&self, at: At, owner: ServerId) -> bool {
        self.servers.is_up(owner) && self.tables.shares.is_confirmed(at, owner)
    }

    /// The number of unserved tablets, as far as is known, but for those that migrations have
    /// locked.
    pub(super) fn unopened(&self) -> usize {
        let each = self.tables.owners().map(|(owner, owned)| {
            if self.servers.is_up(owner) {
                self.tables.shares.unconfirmed(owner, owned)
            } else {
                owned
            }
        });
        each.sum()
    }
}
