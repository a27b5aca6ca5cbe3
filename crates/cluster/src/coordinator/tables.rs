//! Tables and their tablets: created, split, dropped, and told.

use super::map::Changes;
use super::records::{Key, Origin, TabletRecord};
use super::shares::Shares;
use super::{Coordinator, invalid, refused};
use crate::recovery::plan::slices;
use duramen_base::ids::{KeyRange, Level, RouteHash, SegmentId, ServerId, TableId, TabletsVersion};
use duramen_base::limits::TABLES_MAX;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::control::{TABLE_NAME_BYTES_MAX, is_table_name};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, Refusal, TableEntry, TabletEntry, TabletState, Tablets,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most tablets of a new table: one per slot.
const TABLETS_MAX: u32 = 1 << 14;
/// Delay before a repeated request about a tablet that is being recovered or moved.
const BUSY_MS: u32 = 200;

/// The tables, and the owners of their tablets.
pub(super) struct Tables {
    pub entries: BTreeMap<TableId, TableEntry>,
    /// Names of dropped tables, the list without each, and the servers that were UP then: as long
    /// as one of them has not confirmed it, the name may still mean the old table there. No name:
    /// any that the previous leader may have dropped.
    pub dropped: BTreeMap<Option<String>, (TabletsVersion, Vec<ServerId>)>,
    pub tablets: BTreeMap<(TableId, RouteHash), TabletRecord>,
    pub owned: BTreeMap<ServerId, BTreeSet<(TableId, RouteHash)>>,
    pub shares: Shares,
    pub changes: Changes,
}

impl Tables {
    pub(super) fn tablets_owned(&self, id: ServerId) -> usize {
        self.owned.get(&id).map_or(0, BTreeSet::len)
    }
}

impl Coordinator {
    pub(super) fn create_table(
        &mut self,
        name: String,
        servers: u32,
        level: Option<Level>,
    ) -> CoordinatorAnswer {
        if !is_table_name(&name) {
            return invalid(format!(
                "a table's name has 1 to {TABLE_NAME_BYTES_MAX} bytes, no white space and no control characters"
            ));
        }
        if servers == 0 || servers > TABLETS_MAX {
            return invalid(format!("a table has 1 to {TABLETS_MAX} tablets"));
        }
        let named = self
            .state
            .tables
            .entries
            .values()
            .find(|table| table.name == name);
        // The first table always exists, but has no tablets until a command gives the number of its
        // servers.
        let existing = named.map(|table| table.table);
        if existing.is_some_and(|id| self.tablets_in(id, KeyRange::ALL).next().is_some())
            || existing.is_some_and(|id| id != TableId::DEFAULT)
        {
            return invalid(format!("table `{name}` exists"));
        }
        self.forget_dropped();
        let may_be_known = [None, Some(name.clone())];
        let at_once = has_bug(Bug::NameAtOnce);
        let mut known = may_be_known
            .iter()
            .filter_map(|of| self.state.tables.dropped.get(of));
        if let Some((_, servers)) = known.next().filter(|_| existing.is_none() && !at_once) {
            let servers: Vec<String> = servers.iter().map(ServerId::to_string).collect();
            return refused(Refusal::NotReady {
                after_ms: BUSY_MS,
                reason: format!(
                    "server {} has not confirmed the list of tables, and may serve a dropped table `{name}`; \
                     `duramen crash` gives a server up",
                    servers.join(", ")
                ),
            });
        }
        let masters: Vec<ServerId> = self
            .state
            .servers
            .masters()
            .take(servers as usize)
            .collect();
        if masters.len() < servers as usize {
            let up = masters.len();
            return refused(Refusal::NotReady {
                after_ms: BUSY_MS,
                reason: format!(
                    "a table over {servers} servers: {up} are up that can own tablets. \
                     Start more, or name fewer"
                ),
            });
        }
        let Some(table) = existing.or_else(|| self.free_table()) else {
            return invalid(format!(
                "the cluster has {TABLES_MAX} tables, drop one first"
            ));
        };
        if existing.is_none() {
            self.state.meta.next_table.0 = table.0.wrapping_add(1);
            self.state.put_meta();
        }
        let entry = TableEntry { table, name, level };
        self.state.records.put(Key::Table(table), &entry);
        self.state.tables.entries.insert(table, entry.clone());
        let ranges = slices(KeyRange::ALL, u64::from(servers));
        for (range, owner) in ranges.into_iter().zip(&masters) {
            let tablet = TabletRecord {
                last: range.last,
                owner: *owner,
                creation: SegmentId::NONE,
                origin: Origin::Created,
            };
            self.set_tablet(table, range.first, tablet);
        }
        self.state.affect_all(); // all servers have all tables
        CoordinatorAnswer::Admin(AdminAnswer::Table(entry))
    }

    /// The id of the next table: never given before, and not at a place of the servers' stores that
    /// another table has.
    fn free_table(&self) -> Option<TableId> {
        let taken: BTreeSet<usize> = self
            .state
            .tables
            .entries
            .keys()
            .map(|id| id.place())
            .collect();
        let first = match has_bug(Bug::IdsReused) {
            true => TableId(1),
            false => self.state.meta.next_table,
        };
        first.first_free(|place| taken.contains(&place))
    }

    pub(super) fn drop_table(&mut self, name: &str) -> CoordinatorAnswer {
        let named = self
            .state
            .tables
            .entries
            .values()
            .find(|table| table.name == name);
        let Some(table) = named.map(|table| table.table) else {
            return invalid(format!("there is no table `{name}`"));
        };
        if table == TableId::DEFAULT {
            return invalid("the default table cannot be dropped");
        }
        self.abort_migrations_where("its table is dropped", |record| record.table == table);
        let firsts: Vec<RouteHash> = self
            .tablets_in(table, KeyRange::ALL)
            .map(|(first, _)| first)
            .collect();
        for first in firsts {
            self.unset_tablet(table, first);
        }
        self.state.tables.entries.remove(&table);
        self.state.records.delete(Key::Table(table));
        self.state.affect_all();
        self.forget_dropped();
        let heard_by = (
            self.state.tablets_version(),
            self.state.servers.up().to_vec(),
        );
        self.state
            .tables
            .dropped
            .insert(Some(name.to_owned()), heard_by);
        self.settle_all();
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    /// Drops names that all servers have confirmed to be free.
    fn forget_dropped(&mut self) {
        let mut dropped = std::mem::take(&mut self.state.tables.dropped);
        dropped.retain(|_, (version, servers)| {
            servers.retain(|server| self.state.servers.lacks(*server, *version));
            !servers.is_empty()
        });
        self.state.tables.dropped = dropped;
    }

    pub(super) fn split(&mut self, table: TableId, at: RouteHash) -> CoordinatorAnswer {
        match self.cut(table, at) {
            Ok(()) => CoordinatorAnswer::Admin(AdminAnswer::Done),
            Err(refusal) => refused(refusal),
        }
    }

    /// Makes a tablet begin at `at`, if none does.
    pub(super) fn cut(&mut self, table: TableId, at: RouteHash) -> Result<(), Refusal> {
        let (first, tablet) = self.tablet_of(table, at)?;
        if first == at {
            return Ok(());
        }
        self.check_rests(table, first, &tablet)?;
        self.cut_record(table, first, at);
        self.state.affect(tablet.owner);
        Ok(())
    }

    /// Splits a tablet; both parts keep its state.
    pub(super) fn cut_record(&mut self, table: TableId, first: RouteHash, at: RouteHash) {
        let Some(tablet) = self.state.tables.tablets.get(&(table, first)).copied() else {
            return;
        };
        if let Some((low, _)) = KeyRange::new(first, tablet.last).split(at) {
            let lower = TabletRecord {
                last: low.last,
                ..tablet
            };
            self.set_tablet(table, first, lower);
            self.set_tablet(table, at, tablet);
            match self
                .state
                .tables
                .shares
                .is_fresh((table, first), tablet.owner)
            {
                Some(version) => self
                    .state
                    .tables
                    .shares
                    .give((table, at), tablet.owner, version),
                None => self.state.tables.shares.settle((table, at), tablet.owner),
            }
        }
    }

    /// The tablet that contains a hash.
    pub(super) fn tablet_of(
        &self,
        table: TableId,
        at: RouteHash,
    ) -> Result<(RouteHash, TabletRecord), Refusal> {
        let found = self
            .state
            .tables
            .tablets
            .range((table, RouteHash::MIN)..=(table, at))
            .next_back();
        match found {
            Some(((_, first), tablet)) if tablet.last >= at => Ok((*first, *tablet)),
            _ if self.state.tables.entries.contains_key(&table) => Err(Refusal::Invalid(format!(
                "table {table} has no tablets yet: create it over some servers"
            ))),
            _ => Err(Refusal::Invalid(format!("there is no table {table}"))),
        }
    }

    /// Checks that it is neither being recovered nor moved.
    pub(super) fn check_rests(
        &self,
        table: TableId,
        first: RouteHash,
        tablet: &TabletRecord,
    ) -> Result<(), Refusal> {
        let busy = |reason: &str| {
            Err(Refusal::NotReady {
                after_ms: BUSY_MS,
                reason: format!("tablet {first} of table {table} is being {reason}"),
            })
        };
        if !self.state.servers.is_up(tablet.owner) {
            return busy("recovered");
        }
        if self.migration_of(table, first).is_some() {
            return busy("moved");
        }
        Ok(())
    }

    /// The tablets of a table that overlap a range.
    pub(super) fn tablets_in(
        &self,
        table: TableId,
        range: KeyRange,
    ) -> impl Iterator<Item = (RouteHash, &TabletRecord)> {
        let before = self
            .state
            .tables
            .tablets
            .range((table, RouteHash::MIN)..=(table, range.first))
            .next_back()
            .map_or(range.first, |((_, first), _)| *first);
        self.state
            .tables
            .tablets
            .range((table, before)..=(table, range.last))
            .map(|((_, first), tablet)| (*first, tablet))
            .filter(move |(first, tablet)| KeyRange::new(*first, tablet.last).overlaps(&range))
    }

    pub(super) fn set_tablet(&mut self, table: TableId, first: RouteHash, tablet: TabletRecord) {
        let (at, owner) = ((table, first), tablet.owner);
        let known = self.state.tables.tablets.get(&at).map(|known| known.owner);
        let fresh = self.state.tables.shares.is_fresh(at, owner);
        self.unset_tablet(table, first);
        self.state.tables.shares.add(table, owner);
        self.state.records.put(Key::Tablet(table, first), &tablet);
        let owned = self.state.tables.owned.entry(tablet.owner).or_default();
        owned.insert((table, first));
        self.state.tables.tablets.insert((table, first), tablet);
        self.state.rank(tablet.owner);
        self.state
            .change_map(table, KeyRange::new(first, tablet.last));
        if known != Some(owner) {
            self.state
                .tables
                .shares
                .give(at, owner, self.state.tablets_version());
        } else if let Some(version) = fresh {
            self.state.tables.shares.give(at, owner, version);
        }
    }

    fn unset_tablet(&mut self, table: TableId, first: RouteHash) {
        if let Some(old) = self.state.tables.tablets.remove(&(table, first)) {
            if let Some(owned) = self.state.tables.owned.get_mut(&old.owner) {
                owned.remove(&(table, first));
            }
            self.state.rank(old.owner);
            self.state.tables.shares.remove((table, first), old.owner);
            self.state.records.delete(Key::Tablet(table, first));
            self.state.change_map(table, KeyRange::new(first, old.last));
        }
    }

    /// The complete list of a server.
    pub fn tablets_of(&self, id: ServerId) -> Tablets {
        let owned = self.state.tables.owned.get(&id).into_iter().flatten();
        let mut tablets: Vec<TabletEntry> = owned
            .filter_map(|(table, first)| {
                let tablet = self.state.tables.tablets.get(&(*table, *first))?;
                let creation = tablet.creation;
                let state = match self.migration_of(*table, *first) {
                    Some((migration, record)) => TabletState::Outgoing {
                        creation,
                        migration,
                        to: record.to,
                    },
                    None => TabletState::Normal { creation },
                };
                Some(TabletEntry {
                    table: *table,
                    range: KeyRange::new(*first, tablet.last),
                    state,
                })
            })
            .collect();
        for (migration, under_way) in &self.migrations {
            let record = &under_way.record;
            if record.to == id {
                tablets.push(TabletEntry {
                    table: record.table,
                    range: record.range,
                    state: TabletState::Incoming {
                        migration: *migration,
                        from: record.from,
                    },
                });
            }
        }
        Tablets {
            version: self.state.tablets_version(),
            tables: self.state.tables.entries.values().cloned().collect(),
            tablets,
        }
    }
}
