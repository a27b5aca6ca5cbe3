//! The assignment of tablets to this member: those that it was told to own, and how far they are
//! applied.
//!
//! **Invariants** member::N2 to member::N4, and
//! - N7: a range that is to come here from elsewhere is empty when its first object arrives, also
//!   if this server had it before and was never told that it had left.
//! - N8: a locked range is not served until a newer list contains the result of its migration, or
//!   the migration has failed (migration::M1, migration::M8).
//! - N9: a purge never removes a key that this server serves. A range is doomed from the moment
//!   that it must go until a purge that began later has passed the whole table. No order is issued
//!   while a range of its list is doomed.
//!
//! A purge takes as long as reading all of its table's entries on flash. So it does not belong to
//! an order: it waits for no list, and only a list, recovery or migration that brings one of its
//! ranges waits for it.
//!
//! Paper: [Ousterhout15 §3]; differs: tablets are assigned declaratively (docs/traps.md, trap 28).

use crate::ranges::{NotATable, Ranges, Tenures};
use crate::reconciliation::{Purge, Reconciliation};
use crate::view::{Map, View};
use duramen_base::ids::{KeyRange, MigrationId, ServerId, TableId, TabletsVersion};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{TableEntry, TabletEntry, TabletState, Tablets};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tablets assigned to a member; see the module.
#[derive(Default)]
pub(crate) struct Assignment {
    /// The list that was read last; its removals are applied.
    latest: Tablets,
    owned: Ranges,
    /// The version of the list that is completely applied.
    done: TabletsVersion,
    served: Tenures,
    /// Ranges that were owned in this life, and are not doomed: they may have objects.
    stained: Ranges,
    /// N9: ranges that must go, without a purge yet; also if a later list gives them back.
    doomed: Ranges,
    /// N9: the ranges of the purge in progress. One at a time.
    purging: Ranges,
    order: Option<Reconciliation>,
    /// Tables that no list drops: entries are being replayed into them.
    held: Vec<TableEntry>,
    /// N8: ranges that migrations have locked.
    locked: BTreeMap<MigrationId, Ranges>,
}

impl Assignment {
    /// The list that was read last.
    pub fn latest(&self) -> &Tablets {
        &self.latest
    }

    /// The version of the list that is completely applied.
    pub fn done(&self) -> TabletsVersion {
        self.done
    }

    /// Reads a newer list, and applies its removals at once (member::N2, member::N3).
    ///
    /// # Errors
    /// The list is invalid: nothing has changed.
    ///
    /// # Panics
    /// If it is not newer (member::N4).
    pub fn tell(&mut self, tablets: Tablets) -> Result<(), NotATable> {
        assert!(tablets.version > self.latest.version, "N4");
        let owned = Ranges::all_of(&tablets)?;
        let served = Ranges::served_of(&tablets)?;
        let stays = self.staying(&tablets);
        self.owned = owned;
        self.served = match has_bug(Bug::EarlyServing) {
            true => self.served.renewed(&served, tablets.version),
            false => self.served.kept(&served),
        };
        self.latest = tablets;
        let lost = match has_bug(Bug::NoPurge) {
            true => Ranges::default(),
            false => self.stained.without(&stays),
        };
        self.stained = self.stained.without(&lost);
        self.doomed = self.doomed.union(&lost);
        let latest = &self.latest.tablets;
        let goes_on = |migration: &MigrationId| {
            let is_it = |entry: &TabletEntry| matches!(entry.state, TabletState::Outgoing { migration: of, .. } if of == *migration);
            latest.iter().any(is_it)
        };
        let lets_go = has_bug(Bug::LockLetGo);
        self.locked
            .retain(|migration, _| goes_on(migration) && !lets_go);
        Ok(())
    }

    /// N7: the part of a list whose objects stay: ranges that are served, and those that come by
    /// the migration by which they came so far.
    fn staying(&self, tablets: &Tablets) -> Ranges {
        let incoming = |entry: &TabletEntry| match entry.state {
            TabletState::Incoming { migration, .. } => Some(migration),
            _ => None,
        };
        let mut known: BTreeMap<MigrationId, Vec<(TableId, KeyRange)>> = BTreeMap::new();
        for entry in &self.latest.tablets {
            if let Some(migration) = incoming(entry) {
                let ranges = known.entry(migration).or_default();
                ranges.push((entry.table, entry.range));
            }
        }
        let (mut stays, mut comes) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for entry in &tablets.tablets {
            match incoming(entry) {
                Some(migration) if !has_bug(Bug::NotEmptied) => {
                    let ranges = comes.entry(migration).or_default();
                    ranges.push((entry.table, entry.range));
                }
                _ => stays.push((entry.table, entry.range)),
            }
        }
        let cut = "they are cut from a list without overlaps";
        for (migration, ranges) in comes {
            let known = known.remove(&migration).unwrap_or_default();
            let known = Ranges::new(known).expect(cut);
            stays.extend(Ranges::new(ranges).expect(cut).intersection(&known).iter());
        }
        Ranges::new(stays).expect(cut)
    }

    /// The next order, if one is due and no range of its list is doomed (N9): one at a time.
    pub fn next_order(&mut self) -> Option<Reconciliation> {
        let waits = self.is_doomed(&self.owned) && !has_bug(Bug::PurgedComesBack);
        if self.order.is_some() || self.done >= self.latest.version || waits {
            return None;
        }
        let mut tables = self.latest.tables.clone();
        let is_new = |held: &&TableEntry| self.latest.tables.iter().all(|t| t.table != held.table);
        tables.extend(self.held.iter().filter(is_new).cloned());
        let order = Reconciliation {
            version: self.latest.version,
            tables,
        };
        self.order = Some(order.clone());
        Some(order)
    }

    /// Handles the end of an order; returns whether the list is completely applied by it.
    pub fn obeyed(&mut self, version: TabletsVersion) -> bool {
        let Some(order) = self.order.take_if(|order| order.version == version) else {
            return false;
        };
        if order.version != self.latest.version {
            return false;
        }
        self.done = version;
        if has_bug(Bug::AnyListUnlocks) {
            self.locked.clear();
        }
        let served = Ranges::served_of(&self.latest).expect("it was read");
        let comes_back = has_bug(Bug::PurgedComesBack);
        assert!(comes_back || !self.is_doomed(&served), "N9");
        self.served = self.served.renewed(&served, version);
        // Owned ranges may be written to, served or not.
        self.stained = self.owned.clone();
        true
    }

    /// The next purge, if one is due: one table at a time, first the one that an order waits for.
    pub fn next_purge(&mut self) -> Option<Purge> {
        if !self.purging.is_empty() {
            return None;
        }
        let wanted = self.doomed.intersection(&self.owned);
        let (table, _) = wanted.iter().next().or(self.doomed.iter().next())?;
        let ranges: Vec<KeyRange> = self.doomed.of(table).collect();
        let whole = ranges.iter().map(|range| (table, *range));
        self.purging = Ranges::new(whole).expect("they were cut");
        self.doomed = self.doomed.without(&self.purging);
        Some(Purge { table, ranges })
    }

    /// Handles the end of the purge in progress. Ranges doomed meanwhile stay so: their objects may
    /// be where the purge had already been.
    pub fn purged(&mut self) {
        let purged = std::mem::take(&mut self.purging);
        if has_bug(Bug::OnePurgeIsEnough) {
            self.doomed = self.doomed.without(&purged);
        }
    }

    /// Handles the failure of an order. The next one is issued when a newer list arrives, or when
    /// it is time for a retry.
    pub fn failed(&mut self, version: TabletsVersion) {
        self.order.take_if(|order| order.version == version);
    }

    /// The view for readers.
    pub fn view(&self, me: ServerId, map: Arc<Map>) -> View {
        let mut served = self.served.clone();
        for locked in self.locked.values() {
            served = served.kept(&served.ranges().without(locked)); // N8
        }
        View::with_tenures(me, self.done, self.owned.clone(), served, map)
    }

    /// N8: locks these ranges.
    pub fn lock(&mut self, migration: MigrationId, ranges: Ranges) {
        self.locked.insert(migration, ranges);
    }

    /// The migration has failed according to its target.
    pub fn unlock(&mut self, migration: MigrationId) {
        let was_locked = self.locked.remove(&migration).is_some();
        if !was_locked && has_bug(Bug::ServedBeforeListed) {
            self.served = self.served.renewed(&self.owned, self.done);
        }
    }

    /// Whether any of these ranges is listed, served or not.
    pub fn has(&self, ranges: &Ranges) -> bool {
        !self.owned.intersection(ranges).is_empty()
    }

    /// N9: whether any of these ranges is doomed or being purged.
    pub fn is_doomed(&self, ranges: &Ranges) -> bool {
        let mut going = self.doomed.iter().chain(self.purging.iter());
        going.any(|(table, range)| ranges.overlaps(table, range))
    }

    /// Whether an order, which may drop tables, is in progress, or one of these ranges is
    /// [doomed](Self::is_doomed).
    pub fn takes_away(&self, ranges: &Ranges) -> bool {
        self.order.is_some() || self.is_doomed(ranges)
    }

    /// From now on these tables are held, and no others.
    pub fn hold(&mut self, tables: Vec<TableEntry>) {
        self.held = tables;
    }

    /// A recovery left objects of these ranges. Ranges that no list assigns to this server are
    /// doomed, also while a purge of them is in progress: the recovery may have committed behind
    /// it. A range that is to come by a migration belongs to another server, and comes whole (N7).
    pub fn stain(&mut self, ranges: &Ranges) {
        let own = match has_bug(Bug::IncomingStays) {
            true => self.owned.clone(),
            false => Ranges::served_of(&self.latest).expect("it was read"),
        };
        self.stained = self.stained.union(&ranges.intersection(&own));
        self.doomed = self.doomed.union(&ranges.without(&own));
    }
}

#[cfg(test)]
mod tests;
