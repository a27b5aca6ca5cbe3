//! The routing of keys, as this member knows it.
//!
//! A view never changes: new information makes a new view, which is swapped in. Readers load it
//! once per batch of requests.
//!
//! **Invariants**
//! - V1: `Serve` is returned only for ranges that the coordinator listed for this member as served:
//!   the map for the redirection of clients is only used for *other* owners.
//! - V3: each served range has the number of the list since which it is served without a break: a
//!   request that came by an older map may be a late copy (docs/protocols.md, Exactly once, 6).
//!
//! Paper: [Ousterhout15 §3]; differs: redirects for clients of RESP come from the same map as the
//! native clients' cache.

use crate::ranges::{NotATable, Ranges, Tenures};
use duramen_base::ids::{MapVersion, RouteHash, ServerId, TableId, TabletsVersion};
use duramen_wire::native::message::{Addresses, MapStep, TabletMap, TabletRoute};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Another server that serves a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub server: ServerId,
    pub addresses: Addresses,
}

/// The route of a request for a key. There is no redirection for one request (RESP's `ASK`): while
/// a tablet moves, its source serves all of it until it serves none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// This server serves it.
    Serve,
    /// That server serves it, and all later requests too.
    Moved(&'a Owner),
    /// No server serves it at this moment: it is being recovered or moved, or this member is about
    /// to learn its owner. Send it again.
    TryAgain,
    /// The table does not exist, or has no owner yet.
    NoTable,
    /// This server is no member, or has no information about the cluster yet.
    ClusterDown,
}

/// The routing of keys; see the module.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// `NONE`: no member.
    me: ServerId,
    tablets_version: TabletsVersion,
    served: Tenures,
    owned: Ranges,
    map: Arc<Map>,
}

/// The owner of every tablet, ready for look-ups. Shared by views with the same map.
#[derive(Clone, Debug, Default)]
pub struct Map {
    version: MapVersion,
    /// Ordered by table and range.
    routes: Vec<TabletRoute>,
    owners: BTreeMap<ServerId, Owner>,
}

impl Map {
    /// # Errors
    /// [`NotATable`]: its tablets overlap.
    pub fn new(map: &TabletMap) -> Result<Map, NotATable> {
        let owners = map.servers.iter().map(owner).collect();
        Map::whole(map.version, map.tablets.clone(), owners)
    }

    fn whole(
        version: MapVersion,
        mut routes: Vec<TabletRoute>,
        owners: BTreeMap<ServerId, Owner>,
    ) -> Result<Map, NotATable> {
        Ranges::new(routes.iter().map(|route| (route.table, route.range)))?;
        routes.sort_unstable_by_key(|route| (route.table, route.range));
        Ok(Map {
            version,
            routes,
            owners,
        })
    }

    /// The map after a step that begins at its version.
    ///
    /// # Errors
    /// [`NotATable`]: its tablets would overlap, so the map or the step differs from the
    /// coordinator's.
    pub fn step(&self, step: &MapStep) -> Result<Map, NotATable> {
        let touched = Ranges::new(step.ranges.iter().copied())?;
        let is_touched = |route: &TabletRoute| touched.overlaps(route.table, route.range);
        let stay = self
            .routes
            .iter()
            .filter(|route| !is_touched(route))
            .copied();
        let mut owners = self.owners.clone();
        owners.extend(step.servers.iter().map(owner));
        let routes: Vec<TabletRoute> = stay.chain(step.tablets.iter().copied()).collect();
        let named = routes.iter().flat_map(|of| [Some(of.owner), of.moving_to]);
        let named: BTreeSet<ServerId> = named.flatten().collect();
        owners.retain(|server, _| named.contains(server));
        Map::whole(step.version, routes, owners)
    }

    pub fn version(&self) -> MapVersion {
        self.version
    }

    /// The owner of each tablet, and whether the tablet is served.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (ServerId, bool)> {
        self.routes.iter().map(|route| (route.owner, route.served))
    }

    /// The tablets of a table, by range.
    pub fn routes(&self, table: TableId) -> &[TabletRoute] {
        let from = self.routes.partition_point(|route| route.table < table);
        let end = self.routes.partition_point(|route| route.table <= table);
        self.routes.get(from..end).unwrap_or_default()
    }

    /// All servers that own tablets, by id.
    pub fn servers(&self) -> impl Iterator<Item = &Owner> {
        self.owners.values()
    }

    pub fn owner(&self, server: ServerId) -> Option<&Owner> {
        self.owners.get(&server)
    }

    fn route(&self, table: TableId, hash: RouteHash) -> Option<&TabletRoute> {
        let next = self
            .routes
            .partition_point(|route| (route.table, route.range.first) <= (table, hash));
        let candidate = self.routes.get(next.checked_sub(1)?)?;
        (candidate.table == table && candidate.range.contains(hash)).then_some(candidate)
    }
}

fn owner((server, addresses): &(ServerId, Addresses)) -> (ServerId, Owner) {
    let owner = Owner {
        server: *server,
        addresses: addresses.clone(),
    };
    (*server, owner)
}

impl View {
    /// The view of member `me`, which owns `owned` and serves `served` of it, from this list on.
    pub fn new(
        me: ServerId,
        tablets_version: TabletsVersion,
        owned: Ranges,
        served: Ranges,
        map: Arc<Map>,
    ) -> View {
        let served = Tenures::new(served, tablets_version);
        View::with_tenures(me, tablets_version, owned, served, map)
    }

    /// As [`View::new`], for a member that has served some ranges for longer.
    pub fn with_tenures(
        me: ServerId,
        tablets_version: TabletsVersion,
        owned: Ranges,
        served: Tenures,
        map: Arc<Map>,
    ) -> View {
        assert_ne!(me, ServerId::NONE, "a view of a member");
        assert!(
            served.ranges().without(&owned).is_empty(),
            "only what is owned is served (V1)"
        );
        View {
            me,
            tablets_version,
            served,
            owned,
            map,
        }
    }

    /// The member of this view; `NONE`: no member, nothing is served.
    pub fn me(&self) -> ServerId {
        self.me
    }

    pub fn tablets_version(&self) -> TabletsVersion {
        self.tablets_version
    }

    pub fn map_version(&self) -> MapVersion {
        self.map.version
    }

    /// The ranges that are served here.
    pub fn served(&self) -> &Ranges {
        self.served.ranges()
    }

    /// The number of the list since which a key is served here without a break; `None`: it is not
    /// served. A native request that came by a map of a lower version is not executed (V3).
    pub fn serves_since(&self, table: TableId, hash: RouteHash) -> Option<TabletsVersion> {
        self.served.since(table, hash)
    }

    /// Whether all ranges that were served in an earlier view are, and were all the time.
    pub fn still_serves_all_of(&self, earlier: &View) -> bool {
        let kept = self.served.ranges_since(earlier.tablets_version);
        earlier.served.ranges().without(&kept).is_empty()
    }

    /// The route of a request.
    pub fn route(&self, table: TableId, hash: RouteHash) -> Route<'_> {
        if self.served.ranges().contains(table, hash) {
            return Route::Serve; // V1
        }
        if self.me == ServerId::NONE {
            return Route::ClusterDown;
        }
        if self.owned.contains(table, hash) {
            return Route::TryAgain;
        }
        if self.map.version == MapVersion(0) {
            return Route::ClusterDown;
        }
        let Some(route) = self.map.route(table, hash) else {
            return Route::NoTable;
        };
        if !route.served || route.owner == self.me {
            return Route::TryAgain; // the map is older or newer than this member's list
        }
        self.map
            .owners
            .get(&route.owner)
            .map_or(Route::TryAgain, Route::Moved)
    }

    /// The owners of all tablets, for `CLUSTER` commands.
    pub fn map(&self) -> &Map {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::{KeyRange, MigrationId, SegmentId};
    use duramen_wire::native::message::{TabletEntry, TabletState, Tablets};

    const ME: ServerId = ServerId::new(0, 1);
    const OTHER: ServerId = ServerId::new(1, 1);
    const TABLE: TableId = TableId(3);

    fn range(first: u64, last: u64) -> KeyRange {
        KeyRange::new(RouteHash(first), RouteHash(last))
    }

    fn ranges(of: &[(u64, u64)]) -> Ranges {
        Ranges::new(of.iter().map(|(first, last)| (TABLE, range(*first, *last)))).unwrap()
    }

    fn route(first: u64, last: u64, owner: ServerId, served: bool) -> TabletRoute {
        TabletRoute {
            table: TABLE,
            range: range(first, last),
            owner,
            served,
            moving_to: None,
        }
    }

    fn map() -> TabletMap {
        let address = |native: &str| Addresses {
            native: native.to_owned(),
            ..Addresses::default()
        };
        TabletMap {
            version: MapVersion(9),
            tablets: vec![
                route(0, 99, ME, true),
                route(100, 199, OTHER, true),
                route(200, 299, OTHER, false),
                route(300, u64::MAX, ServerId::new(2, 1), true),
            ],
            servers: vec![(ME, address("me")), (OTHER, address("other"))],
            ..TabletMap::default()
        }
    }

    fn view(owned: Ranges, served: Ranges) -> View {
        View::new(
            ME,
            TabletsVersion(1),
            owned,
            served,
            Arc::new(Map::new(&map()).unwrap()),
        )
    }

    #[test]
    fn only_what_was_listed_is_served_whatever_the_map_says() {
        let view = view(ranges(&[(0, 49), (400, 499)]), ranges(&[(0, 49)]));
        let at = |hash| view.route(TABLE, RouteHash(hash));
        assert_eq!(at(0), Route::Serve);
        assert_eq!(at(49), Route::Serve);
        assert_eq!(at(50), Route::TryAgain, "the map says that it is ours");
        assert!(matches!(at(100), Route::Moved(owner) if owner.server == OTHER));
        assert_eq!(at(200), Route::TryAgain, "no server serves it");
        assert_eq!(at(300), Route::TryAgain, "its owner has no address");
        assert_eq!(at(400), Route::TryAgain, "ours, and not served yet");
        assert_eq!(view.route(TableId(4), RouteHash(0)), Route::NoTable);
        assert_eq!(view.route(TableId(2), RouteHash(0)), Route::NoTable);
        let map = view.map();
        assert_eq!(map.routes(TABLE).len(), 4);
        assert!(map.routes(TableId(2)).is_empty() && map.routes(TableId(4)).is_empty());
        let owners: Vec<ServerId> = map.servers().map(|owner| owner.server).collect();
        assert_eq!(owners, [ME, OTHER]);
        assert!(map.owner(OTHER).is_some() && map.owner(ServerId::new(2, 1)).is_none());
    }

    #[test]
    fn a_range_that_has_left_is_not_served_all_the_time() {
        let map = Arc::new(Map::new(&map()).unwrap());
        let all = ranges(&[(0, 99)]);
        let of = |version, served: Tenures| {
            View::with_tenures(
                ME,
                TabletsVersion(version),
                all.clone(),
                served,
                map.clone(),
            )
        };
        let start = of(3, Tenures::new(all.clone(), TabletsVersion(2)));
        assert!(start.still_serves_all_of(&start));
        let less = Tenures::new(ranges(&[(0, 49)]), TabletsVersion(2));
        assert!(!of(3, less.clone()).still_serves_all_of(&start));
        // It is served again, after others may have served it.
        assert!(!of(5, less.renewed(&all, TabletsVersion(5))).still_serves_all_of(&start));
    }

    /// Changed ranges are replaced, and the rest stays; a step that does not fit is refused.
    #[test]
    fn a_step_leads_from_one_map_to_the_next() {
        let address = |name: &str| Addresses {
            native: name.to_owned(),
            ..Addresses::default()
        };
        let old = Map::new(&map()).unwrap();
        let third = ServerId::new(3, 1);
        let mut step = MapStep {
            since: MapVersion(9),
            version: MapVersion(11),
            ranges: vec![(TABLE, range(100, 299))],
            tablets: vec![route(100, 149, ME, true), route(150, 299, third, true)],
            servers: vec![(ME, address("me")), (third, address("third"))],
        };
        let new = old.step(&step).unwrap();
        let whole = Map::new(&TabletMap {
            version: step.version,
            tablets: vec![
                route(0, 99, ME, true),
                route(100, 149, ME, true),
                route(150, 299, third, true),
                route(300, u64::MAX, ServerId::new(2, 1), true),
            ],
            servers: vec![(ME, address("me")), (third, address("third"))],
            ..TabletMap::default()
        });
        let whole = whole.unwrap();
        assert_eq!(new.version(), MapVersion(11));
        assert_eq!(new.routes(TABLE), whole.routes(TABLE));
        assert!(
            new.servers().eq(whole.servers()),
            "a server without tablets is gone"
        );
        step.tablets.push(route(290, 400, ME, true));
        assert!(old.step(&step).is_err());
        step.ranges.push((TABLE, range(200, 300)));
        assert!(old.step(&step).is_err());
        // A table that was dropped.
        let dropped = MapStep {
            ranges: vec![(TABLE, KeyRange::ALL)],
            ..MapStep::default()
        };
        assert!(old.step(&dropped).unwrap().routes(TABLE).is_empty());
    }

    #[test]
    fn who_is_no_member_serves_nothing() {
        let none = View::default();
        assert_eq!(none.route(TABLE, RouteHash(0)), Route::ClusterDown);
        let map = Arc::new(Map::default());
        let new = View::new(
            ME,
            TabletsVersion(1),
            ranges(&[(5, 9)]),
            ranges(&[(5, 5)]),
            map,
        );
        assert_eq!(new.route(TABLE, RouteHash(0)), Route::ClusterDown);
        assert_eq!(new.route(TABLE, RouteHash(5)), Route::Serve);
        assert_eq!(new.route(TABLE, RouteHash(6)), Route::TryAgain);
    }

    #[test]
    fn a_list_that_overlaps_is_refused() {
        let new = |of: &[(u64, u64)]| {
            Ranges::new(of.iter().map(|(first, last)| (TABLE, range(*first, *last))))
        };
        assert!(new(&[(10, 19), (0, 9), (20, u64::MAX)]).is_ok());
        assert!(new(&[(0, 9), (9, 12)]).is_err());
        assert!(new(&[(0, 100), (5, 6)]).is_err());
        assert!(new(&[(9, 8)]).is_err());
        let mut twice = map();
        twice.tablets.push(route(150, 160, ME, true));
        assert!(Map::new(&twice).is_err());
        // An incoming tablet may not overlap a served one.
        let entry = |first, last, state| TabletEntry {
            table: TABLE,
            range: range(first, last),
            state,
        };
        let normal = TabletState::Normal {
            creation: SegmentId::NONE,
        };
        let incoming = TabletState::Incoming {
            migration: MigrationId(1),
            from: OTHER,
        };
        let mut tablets = Tablets {
            tablets: vec![entry(0, 9, normal), entry(10, 19, incoming)],
            ..Tablets::default()
        };
        assert_eq!(Ranges::served_of(&tablets), Ok(ranges(&[(0, 9)])));
        tablets.tablets = vec![entry(0, 9, normal), entry(5, 19, incoming)];
        assert!(Ranges::served_of(&tablets).is_err());
    }
}
