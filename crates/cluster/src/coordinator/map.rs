//! The tablet map for all askers: whole, or its changes.
//!
//! **Invariants**
//! - W1: a version names one state of the map. After it was shown, the next change gets another
//!   version.
//! - W2: a member with a version from which changes are kept, which applies the changes since, has
//!   the newest map.
//!
//! Members ask again and again, and there may be thousands of them: the changes since a version are
//! put together once for all.

use super::State;
use super::records::TabletRecord;
use duramen_base::ids::{KeyRange, MapVersion, RouteHash, TableId};
use duramen_wire::native::message::{CoordinatorAnswer, MapStep, Shared, TabletMap, TabletRoute};
use std::collections::{BTreeMap, VecDeque};

/// Changes that are kept: a member that is further behind gets the whole map.
const CHANGES_KEPT: usize = 1 << 14;

/// The recent changes of the map.
#[derive(Default)]
pub(super) struct Changes {
    /// A member with this version or a newer one gets changes instead of the whole map.
    from: MapVersion,
    /// Ranges that differ since these versions, in the order of the versions.
    ranges: VecDeque<(MapVersion, TableId, KeyRange)>,
    /// The map has its next version already, and was not shown in it.
    is_new: bool,
    /// The steps that were sent in this version, by the asker's version.
    told: BTreeMap<MapVersion, Shared<MapStep>>,
}

impl Changes {
    /// Begins at this version: earlier changes are not known.
    pub(super) fn begin(&mut self, from: MapVersion) {
        self.from = from;
    }

    /// The map changes. Returns whether it gets another version (W1).
    pub(super) fn touch(&mut self) -> bool {
        self.told.clear();
        !std::mem::replace(&mut self.is_new, true)
    }

    /// The map was shown, or its version is stored (W1).
    pub(super) fn show(&mut self) {
        self.is_new = false;
    }

    /// Whether the present version was not shown: it may name another state of the map (W1).
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The map differs in this range since this version.
    pub(super) fn add(&mut self, version: MapVersion, table: TableId, range: KeyRange) {
        self.ranges.push_back((version, table, range));
        if self.ranges.len() > CHANGES_KEPT
            && let Some((version, ..)) = self.ranges.pop_front()
        {
            self.from = version;
        }
    }

    /// The ranges that differ since that version, ordered and without overlaps; none if that is
    /// unknown.
    fn since(&self, since: MapVersion) -> Option<Vec<(TableId, KeyRange)>> {
        if since < self.from {
            return None;
        }
        let from = self
            .ranges
            .partition_point(|(version, ..)| *version <= since);
        let changed = self.ranges.range(from..);
        let mut all: Vec<(TableId, KeyRange)> =
            changed.map(|(_, table, range)| (*table, *range)).collect();
        all.sort_unstable();
        let mut merged: Vec<(TableId, KeyRange)> = Vec::new();
        for (table, range) in all {
            match merged.last_mut() {
                Some((of, last)) if *of == table && last.last >= range.first => {
                    last.last = last.last.max(range.last);
                }
                _ => merged.push((table, range)),
            }
        }
        Some(merged)
    }
}

impl State {
    pub(super) fn map(&mut self, only: Option<TableId>, since: MapVersion) -> CoordinatorAnswer {
        if since == self.meta.map_version && since.0 > 0 {
            return CoordinatorAnswer::MapIsCurrent;
        }
        self.changes.show(); // W1
        let wanted = |table: TableId| only.is_none_or(|only| only == table);
        let tables = self.tables.entries().filter(|t| wanted(t.table));
        let tablets = self.tables.tablets();
        let tablets: Vec<TabletRoute> = tablets
            .filter(|((table, _), _)| wanted(*table))
            .map(|((table, first), tablet)| self.route(*table, *first, tablet))
            .collect();
        CoordinatorAnswer::Map(TabletMap {
            version: self.meta.map_version,
            hash_seed: self.meta.settings.hash_seed,
            tables: tables.cloned().collect(),
            servers: self.servers.addresses(&tablets),
            tablets,
        })
    }

    /// The changes of the map since this version, or the whole map (W2).
    pub(super) fn map_changes(&mut self, since: MapVersion) -> CoordinatorAnswer {
        let version = self.meta.map_version;
        if since == version && since.0 > 0 {
            return CoordinatorAnswer::MapIsCurrent;
        }
        if let Some(told) = self.changes.told.get(&since) {
            return CoordinatorAnswer::MapStep(told.clone());
        }
        let ranges = self
            .changes
            .since(since)
            .filter(|_| (1..version.0).contains(&since.0));
        let Some(ranges) = ranges else {
            return self.map(None, MapVersion(0));
        };
        self.changes.show(); // W1
        let mut tablets = Vec::new();
        for (table, range) in &ranges {
            let overlapping = self.tables.tablets_in(*table, *range);
            let routes = overlapping.map(|(first, tablet)| self.route(*table, first, tablet));
            for route in routes {
                // A tablet may reach from one range into the next.
                if tablets.last() != Some(&route) {
                    tablets.push(route);
                }
            }
        }
        let step = Shared::from(MapStep {
            since,
            version,
            ranges,
            servers: self.servers.addresses(&tablets),
            tablets,
        });
        self.changes.told.insert(since, step.clone());
        CoordinatorAnswer::MapStep(step)
    }

    pub(super) fn route(
        &self,
        table: TableId,
        first: RouteHash,
        tablet: &TabletRecord,
    ) -> TabletRoute {
        TabletRoute {
            table,
            range: KeyRange::new(first, tablet.last),
            owner: tablet.owner,
            served: self.servers.is_up(tablet.owner),
            moving_to: self
                .tables
                .migration_of(table, first)
                .map(|(_, record)| record.to),
        }
    }
}
