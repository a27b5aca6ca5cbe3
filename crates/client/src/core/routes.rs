//! Who owns which key, as far as the client knows.

use duramen_base::ids::{KeyRange, MapVersion, RouteHash, ServerId, TableId};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::TabletMap;
use std::collections::HashMap;
use std::sync::Arc;

/// Where to send what concerns a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Owner {
        server: ServerId,
        address: Arc<str>,
        /// The tablet's.
        range: KeyRange,
    },
    /// The tablet is being recovered.
    NotServed,
    NoSuchTable,
    /// The table is known, and nobody has created its tablets: the first table of a cluster begins
    /// so.
    NoTablets,
}

/// The tablet map, ready for look-up.
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
    /// Nothing is known.
    pub(super) fn new() -> Routes {
        Routes {
            version: MapVersion(0),
            hasher: KeyHasher::new(0),
            tables: HashMap::new(),
            tablets: HashMap::new(),
            addresses: HashMap::new(),
        }
    }

    /// Takes a map of all tables. Older ones than the one known change nothing (answers may
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

    /// 0: none is known.
    pub fn version(&self) -> MapVersion {
        self.version
    }

    pub fn table(&self, name: &str) -> Option<TableId> {
        self.tables.get(name).copied()
    }

    /// What people call a table; its number, if the name is not known.
    pub fn name(&self, table: TableId) -> String {
        let mut names = self.tables.iter();
        let found = names.find(|(_, id)| **id == table);
        found.map_or_else(|| table.to_string(), |(name, _)| name.clone())
    }

    /// Where a key lives.
    pub fn hash(&self, key: &[u8]) -> RouteHash {
        self.hasher.route(key)
    }

    /// Who has it.
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
            // A gap is none of a correct map; wait for the next one.
            _ => Route::NotServed,
        }
    }
}
