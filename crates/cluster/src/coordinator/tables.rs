//! Tables and their tablets: created, split, dropped, and sent to their owners.

use super::records::{Key, MigrationRecord, Origin, TabletRecord};
use super::servers::Servers;
use super::shares::{At, Shares};
use super::{Coordinator, State, invalid, refused};
use crate::recovery::plan::slices;
use duramen_base::ids::{
    KeyRange, Level, MigrationId, RouteHash, SegmentId, ServerId, TableId, TabletsVersion,
};
use duramen_base::limits::TABLES_MAX;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::control::{TABLE_NAME_BYTES_MAX, is_table_name};
use duramen_wire::native::message::{
    AdminAnswer, CoordinatorAnswer, RecoverTablet, Refusal, TableEntry, TabletEntry, TabletState,
    Tablets,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most tablets of a new table: one per slot.
const TABLETS_MAX: u32 = 1 << 14;
/// Delay before a repeated request about a tablet that is being recovered or moved.
const BUSY_MS: u32 = 200;

/// Dropped tables, by name: the version of the lists without the table, and the servers that were
/// UP then. As long as one of these has not confirmed that version, the name may still mean the old
/// table there. The entry without a name stands for tables that the previous leader may have
/// dropped.
type Dropped = BTreeMap<Option<String>, (TabletsVersion, Vec<ServerId>)>;

/// The tables, and the owners of their tablets.
pub(super) struct Tables {
    entries: BTreeMap<TableId, TableEntry>,
    dropped: Dropped,
    tablets: BTreeMap<At, TabletRecord>,
    owned: BTreeMap<ServerId, BTreeSet<At>>,
    /// Tablets that migrate.
    moving: BTreeMap<At, (MigrationId, MigrationRecord)>,
    pub shares: Shares,
}

impl Tables {
    /// The default table, without tablets.
    pub(super) fn new() -> Tables {
        let default = TableEntry {
            table: TableId::DEFAULT,
            name: "default".to_owned(),
            level: None,
        };
        Tables {
            entries: BTreeMap::from([(TableId::DEFAULT, default)]),
            dropped: Dropped::new(),
            tablets: BTreeMap::new(),
            owned: BTreeMap::new(),
            moving: BTreeMap::new(),
            shares: Shares::default(),
        }
    }

    // --- tables

    pub(super) fn entries(&self) -> impl Iterator<Item = &TableEntry> {
        self.entries.values()
    }

    pub(super) fn contains(&self, table: TableId) -> bool {
        self.entries.contains_key(&table)
    }

    fn named(&self, name: &str) -> Option<&TableEntry> {
        self.entries.values().find(|table| table.name == name)
    }

    /// The id of the next table: never given before, and not at a place of the servers' stores that
    /// another table has. `next`: the id after the last that was given.
    fn free(&self, next: TableId) -> Option<TableId> {
        let taken: BTreeSet<usize> = self.entries.keys().map(|id| id.place()).collect();
        let first = match has_bug(Bug::IdsReused) {
            true => TableId(1),
            false => next,
        };
        first.first_free(|place| taken.contains(&place))
    }

    pub(super) fn add(&mut self, entry: TableEntry) {
        self.entries.insert(entry.table, entry);
    }

    /// A table is dropped, or, without a name, any may have been: these servers may still have it
    /// until they confirm a list of this version.
    pub(super) fn note_dropped(
        &mut self,
        name: Option<String>,
        version: TabletsVersion,
        servers: Vec<ServerId>,
    ) {
        self.dropped.insert(name, (version, servers));
    }

    /// Drops names that all servers have confirmed to be free.
    fn forget_dropped(&mut self, among: &Servers) {
        self.dropped.retain(|_, (version, servers)| {
            servers.retain(|server| among.lacks(*server, *version));
            !servers.is_empty()
        });
    }

    /// The servers for which this name may mean a table that was dropped.
    fn known_by(&self, name: &str) -> Option<&[ServerId]> {
        let may_be_known = [None, Some(name.to_owned())];
        let mut known = may_be_known.iter().filter_map(|of| self.dropped.get(of));
        known.next().map(|(_, servers)| servers.as_slice())
    }

    // --- tablets

    pub(super) fn tablet(&self, at: At) -> Option<&TabletRecord> {
        self.tablets.get(&at)
    }

    pub(super) fn tablets(&self) -> impl ExactSizeIterator<Item = (&At, &TabletRecord)> {
        self.tablets.iter()
    }

    /// The tablets at and after this place.
    pub(super) fn tablets_from(&self, at: At) -> impl Iterator<Item = (&At, &TabletRecord)> {
        self.tablets.range(at..)
    }

    fn has_tablets(&self, table: TableId) -> bool {
        self.tablets_in(table, KeyRange::ALL).next().is_some()
    }

    /// The tablet that contains a hash.
    pub(super) fn tablet_of(
        &self,
        table: TableId,
        at: RouteHash,
    ) -> Result<(RouteHash, TabletRecord), Refusal> {
        let found = self
            .tablets
            .range((table, RouteHash::MIN)..=(table, at))
            .next_back();
        match found {
            Some(((_, first), tablet)) if tablet.last >= at => Ok((*first, *tablet)),
            _ if self.entries.contains_key(&table) => Err(Refusal::Invalid(format!(
                "table {table} has no tablets yet: create it over some servers"
            ))),
            _ => Err(Refusal::Invalid(format!("there is no table {table}"))),
        }
    }

    /// The tablets of a table that overlap a range.
    pub(super) fn tablets_in(
        &self,
        table: TableId,
        range: KeyRange,
    ) -> impl Iterator<Item = (RouteHash, &TabletRecord)> {
        let before = self
            .tablets
            .range((table, RouteHash::MIN)..=(table, range.first))
            .next_back()
            .map_or(range.first, |((_, first), _)| *first);
        self.tablets
            .range((table, before)..=(table, range.last))
            .map(|((_, first), tablet)| (*first, tablet))
            .filter(move |(first, tablet)| KeyRange::new(*first, tablet.last).overlaps(&range))
    }

    /// The tablets of this server, in order.
    pub(super) fn owned(&self, id: ServerId) -> impl Iterator<Item = &At> {
        self.owned.get(&id).into_iter().flatten()
    }

    pub(super) fn tablets_owned(&self, id: ServerId) -> usize {
        self.owned.get(&id).map_or(0, BTreeSet::len)
    }

    /// The owners, each with the number of its tablets.
    pub(super) fn owners(&self) -> impl Iterator<Item = (ServerId, usize)> {
        let owners = self.owned.iter();
        owners.map(|(owner, owned)| (*owner, owned.len()))
    }

    /// Whether a report of this origin has made the server the owner of a tablet.
    pub(super) fn is_accepted(&self, server: ServerId, origin: Origin) -> bool {
        let owned = self.owned(server);
        let mut owned = owned.filter_map(|at| self.tablet(*at));
        owned.any(|tablet| tablet.origin == origin)
    }

    pub(super) fn lost_tablets(&self, dead: ServerId) -> Vec<RecoverTablet> {
        let owned = self.owned(dead);
        let tablets = owned.filter_map(|(table, first)| {
            let tablet = self.tablet((*table, *first))?;
            Some(RecoverTablet {
                table: *table,
                range: KeyRange::new(*first, tablet.last),
                creation: tablet.creation,
            })
        });
        tablets.collect()
    }

    /// The complete list of a server.
    pub(super) fn tablets_of(&self, id: ServerId, version: TabletsVersion) -> Tablets {
        let owned = self.owned(id);
        let mut tablets: Vec<TabletEntry> = owned
            .filter_map(|(table, first)| {
                let tablet = self.tablet((*table, *first))?;
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
        let moving = self.moving.values();
        let mut coming: Vec<_> = moving.filter(|(_, record)| record.to == id).collect();
        coming.sort_unstable_by_key(|(migration, _)| *migration);
        tablets.extend(coming.into_iter().map(|(migration, record)| TabletEntry {
            table: record.table,
            range: record.range,
            state: TabletState::Incoming {
                migration: *migration,
                from: record.from,
            },
        }));
        Tablets {
            version,
            tables: self.entries.values().cloned().collect(),
            tablets,
        }
    }

    /// Adds a tablet that is stored, or about to be.
    pub(super) fn insert(&mut self, at: At, tablet: TabletRecord) {
        self.shares.add(at.0, tablet.owner);
        self.owned.entry(tablet.owner).or_default().insert(at);
        self.tablets.insert(at, tablet);
    }

    fn remove(&mut self, at: At) -> Option<TabletRecord> {
        let old = self.tablets.remove(&at)?;
        if let Some(owned) = self.owned.get_mut(&old.owner) {
            owned.remove(&at);
        }
        self.shares.remove(at, old.owner);
        Some(old)
    }

    /// A server is removed.
    ///
    /// # Panics
    /// If it still owns tablets (coordinator::K6).
    pub(super) fn forget_owner(&mut self, dead: ServerId) {
        let owned = self.owned.remove(&dead);
        let owns = owned.is_some_and(|owned| !owned.is_empty());
        assert!(!owns, "K6: tablets wait for the log of server {dead}");
    }

    // --- moves

    /// The migration of the tablet that begins there.
    pub(super) fn migration_of(
        &self,
        table: TableId,
        first: RouteHash,
    ) -> Option<(MigrationId, MigrationRecord)> {
        self.moving.get(&(table, first)).copied()
    }

    /// This tablet migrates.
    pub(super) fn begin_move(&mut self, id: MigrationId, record: MigrationRecord) {
        let at = (record.table, record.range.first);
        self.moving.insert(at, (id, record));
    }

    /// This tablet does not migrate any more.
    pub(super) fn end_move(&mut self, record: &MigrationRecord) {
        self.moving.remove(&(record.table, record.range.first));
    }
}

impl State {
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
        let named = self.tables.named(&name);
        // The first table always exists, but has no tablets until a command gives the number of its
        // servers.
        let existing = named.map(|table| table.table);
        if existing.is_some_and(|id| self.tables.has_tablets(id))
            || existing.is_some_and(|id| id != TableId::DEFAULT)
        {
            return invalid(format!("table `{name}` exists"));
        }
        self.tables.forget_dropped(&self.servers);
        let at_once = has_bug(Bug::NameAtOnce);
        let known_by = self.tables.known_by(&name);
        if let Some(servers) = known_by.filter(|_| existing.is_none() && !at_once) {
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
        let masters: Vec<ServerId> = self.servers.masters().take(servers as usize).collect();
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
        let Some(table) = existing.or_else(|| self.tables.free(self.meta.next_table)) else {
            return invalid(format!(
                "the cluster has {TABLES_MAX} tables, drop one first"
            ));
        };
        if existing.is_none() {
            self.meta.next_table.0 = table.0.wrapping_add(1);
            self.put_meta();
        }
        let entry = TableEntry { table, name, level };
        self.records.put(Key::Table(table), &entry);
        self.tables.add(entry.clone());
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
        self.affect_all(); // all servers have all tables
        CoordinatorAnswer::Admin(AdminAnswer::Table(entry))
    }

    /// Drops a table, none of whose tablets moves.
    fn drop_table(&mut self, table: TableId, name: &str) {
        let firsts: Vec<RouteHash> = self
            .tables
            .tablets_in(table, KeyRange::ALL)
            .map(|(first, _)| first)
            .collect();
        for first in firsts {
            self.unset_tablet(table, first);
        }
        self.tables.entries.remove(&table);
        self.records.delete(Key::Table(table));
        self.affect_all();
        self.tables.forget_dropped(&self.servers);
        let (version, up) = (self.tablets_version(), self.servers.up().to_vec());
        self.tables.note_dropped(Some(name.to_owned()), version, up);
    }

    /// Makes a tablet begin at `at`, if none does.
    pub(super) fn cut(&mut self, table: TableId, at: RouteHash) -> Result<(), Refusal> {
        let (first, tablet) = self.tables.tablet_of(table, at)?;
        if first == at {
            return Ok(());
        }
        self.check_rests(table, first, &tablet)?;
        self.cut_record(table, first, at);
        self.affect(tablet.owner);
        Ok(())
    }

    /// Splits a tablet; both parts keep its state.
    pub(super) fn cut_record(&mut self, table: TableId, first: RouteHash, at: RouteHash) {
        let Some(tablet) = self.tables.tablet((table, first)).copied() else {
            return;
        };
        if let Some((low, _)) = KeyRange::new(first, tablet.last).split(at) {
            let lower = TabletRecord {
                last: low.last,
                ..tablet
            };
            self.set_tablet(table, first, lower);
            self.set_tablet(table, at, tablet);
            let owner = tablet.owner;
            self.tables.shares.split((table, first), (table, at), owner);
        }
    }

    /// Checks that a tablet is neither being recovered nor moved.
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
        if !self.servers.is_up(tablet.owner) {
            return busy("recovered");
        }
        if self.tables.migration_of(table, first).is_some() {
            return busy("moved");
        }
        Ok(())
    }

    pub(super) fn set_tablet(&mut self, table: TableId, first: RouteHash, tablet: TabletRecord) {
        let (at, owner) = ((table, first), tablet.owner);
        let known = self.tables.tablet(at).map(|known| known.owner);
        let fresh = self.tables.shares.is_fresh(at, owner);
        self.unset_tablet(table, first);
        self.records.put(Key::Tablet(table, first), &tablet);
        self.tables.insert(at, tablet);
        self.rank(owner);
        self.change_map(table, KeyRange::new(first, tablet.last));
        let version = self.tablets_version();
        if known != Some(owner) {
            self.tables.shares.give(at, owner, version);
        } else if let Some(version) = fresh {
            self.tables.shares.give(at, owner, version);
        }
    }

    fn unset_tablet(&mut self, table: TableId, first: RouteHash) {
        if let Some(old) = self.tables.remove((table, first)) {
            self.rank(old.owner);
            self.records.delete(Key::Tablet(table, first));
            self.change_map(table, KeyRange::new(first, old.last));
        }
    }

    /// The answer that an earlier report, perhaps to an earlier leader, has got.
    pub(super) fn accepted_before(&self, server: ServerId, origin: Origin) -> CoordinatorAnswer {
        if self.tables.is_accepted(server, origin) && !has_bug(Bug::CompletionForgotten) {
            return CoordinatorAnswer::Accepted {
                since: self.tablets_version(),
            };
        }
        CoordinatorAnswer::Stale
    }
}

impl Coordinator {
    pub(super) fn drop_table(&mut self, name: &str) -> CoordinatorAnswer {
        let named = self.state.tables.named(name);
        let Some(table) = named.map(|table| table.table) else {
            return invalid(format!("there is no table `{name}`"));
        };
        if table == TableId::DEFAULT {
            return invalid("the default table cannot be dropped");
        }
        let is_of_it = |record: &MigrationRecord| record.table == table;
        let state = &mut self.state;
        self.migrations
            .abort_where(state, "its table is dropped", is_of_it);
        self.state.drop_table(table, name);
        self.recoveries.settle_all(&mut self.state);
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    /// The complete list of a server.
    pub fn tablets_of(&self, id: ServerId) -> Tablets {
        let version = self.state.tablets_version();
        self.state.tables.tablets_of(id, version)
    }
}
