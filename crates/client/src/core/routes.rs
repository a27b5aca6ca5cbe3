//! Owners of keys, by the client's copy of the tablet map.

use duramen_base::ids::{KeyRange, MapVersion, RouteHash, ServerId, TableId};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::TabletMap;
use std::collections::HashMap;
use std::sync::Arc;

/// The destination of requests for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Owner {
        server: ServerId,
        address: Arc<str>,
        /// The tablet's range.
        range: KeyRange,
    },
    /// No server is needed, because the map has the answer: the id of a table.
    Here(TableId),
    /// The tablet is being recovered.
    NotServed,
    NoSuchTable,
    /// The table exists, but its tablets were not created: the first table of a cluster begins like
    /// this.
    NoTablets,
}

/// The tablet map, prepared for lookup.
#[derive(Debug)]
pub struct Routes {
    version: MapVersion,
    hasher: KeyHasher,
    tables: HashMap<String, TableId>,
    /// Per table, ordered by range.
    tablets: HashMap<TableId, Vec<Tablet>>,
    addresses: HashMap<ServerId, Arc<str>>,
}

#[derive(Debug)]
struct Tablet {
    range: KeyRange,
    owner: ServerId,
    served: bool,
}

impl Routes {
    /// An empty map.
    pub(super) fn new() -> Routes {
        Routes {
            version: MapVersion(0),
            hasher: KeyHasher::new(0),
            tables: HashMap::new(),
            tablets: HashMap::new(),
            addresses: HashMap::new(),
        }
    }

    /// Installs a map of all tables. A map older than the current one changes nothing (answers may
    /// overtake each other).
    pub(super) fn install(&mut self, map: TabletMap) {
        if map.version < self.version {
            return;
        }
        self.version = map.version;
        self.hasher = KeyHasher::new(map.hash_seed);
        let tables = map.tables.into_iter();
        self.tables = tables.map(|entry| (entry.name, entry.table)).collect();
        let servers = map.servers.into_iter();
        self.addresses = servers
            .map(|(server, addresses)| (server, addresses.native.into()))
            .collect();
        self.tablets = self.tables.values().map(|id| (*id, Vec::new())).collect();
        for tablet in map.tablets {
            self.tablets.entry(tablet.table).or_default().push(Tablet {
                range: tablet.range,
                owner: tablet.owner,
                served: tablet.served,
            });
        }
        for tablets in self.tablets.values_mut() {
            tablets.sort_unstable_by_key(|tablet| tablet.range.first);
        }
    }

    /// Version of the map; 0 if there is none.
    pub fn version(&self) -> MapVersion {
        self.version
    }

    pub fn table(&self, name: &str) -> Option<TableId> {
        self.tables.get(name).copied()
    }

    /// The name of a table; its number, if the name is not known.
    pub fn name(&self, table: TableId) -> String {
        let mut names = self.tables.iter();
        let found = names.find(|(_, id)| **id == table);
        found.map_or_else(|| table.to_string(), |(name, _)| name.clone())
    }

    /// The route hash of a key.
    pub fn hash(&self, key: &[u8]) -> RouteHash {
        self.hasher.route(key)
    }

    /// The route to the owner of a hash.
    pub fn route(&self, table: TableId, hash: RouteHash) -> Route {
        let Some(tablets) = self.tablets.get(&table) else {
            return Route::NoSuchTable;
        };
        if tablets.is_empty() {
            return Route::NoTablets;
        }
        let after = tablets.partition_point(|tablet| tablet.range.first <= hash);
        let tablet = after.checked_sub(1).and_then(|index| tablets.get(index));
        match tablet {
            Some(tablet) if tablet.served && tablet.range.contains(hash) => {
                match self.addresses.get(&tablet.owner) {
                    Some(address) => Route::Owner {
                        server: tablet.owner,
                        address: address.clone(),
                        range: tablet.range,
                    },
                    None => Route::NotServed,
                }
            }
            // A correct map has no gap; wait for the next map.
            _ => Route::NotServed,
        }
    }
}
