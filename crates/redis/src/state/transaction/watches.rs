//! The keys that one connection watches.
//!
//! **Invariants**
//! - I1: a key of a table is stored once, with the stamp of its first `WATCH`: any change since
//!   then cancels `EXEC`.
//! - I2: the lookup of a key takes the same time for any number of keys, and both their number and
//!   their bytes are limited.

use crate::state::db::Db;
use duramen_base::ids::TabletsVersion;
use duramen_config::heap;
use duramen_engine::{Stamp, TableId};
use std::collections::{BTreeMap, HashMap};

/// Maximum keys that one client may watch: each costs the client memory and EXEC a lock.
pub(crate) const WATCHED_MAX: usize = 65_536;
/// Maximum total length of these keys, in bytes: a connection must not keep gigabytes by watching
/// long keys.
pub(crate) const WATCHED_BYTES_MAX: usize = 16 << 20;

/// A key under `WATCH`.
pub(crate) struct Watched {
    /// The database through which it was watched.
    pub(crate) db: Db,
    /// `CommandState::exchanges` of that database at that time: the table may come back after two
    /// exchanges.
    pub(crate) exchanges: u64,
    pub(crate) stamp: Stamp,
    /// In a cluster: the version of the tablet list since which this member serves the key. A
    /// member that loses a key and gets it back cannot know the changes meanwhile.
    pub(crate) since: Option<TabletsVersion>,
}

/// All watched keys of a connection, by the table that was behind their database when they were
/// watched.
#[derive(Default)]
pub(crate) struct Watches {
    tables: BTreeMap<TableId, HashMap<Box<[u8]>, Watched>>,
    len: usize,
    key_bytes: usize,
}

/// Memory of a watched key beside its own bytes.
const WATCHED_BYTES: usize = size_of::<Watched>() + 48;

impl Drop for Watches {
    fn drop(&mut self) {
        heap::freed(self.key_bytes + self.len * WATCHED_BYTES);
    }
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has(&self, table: TableId, key: &[u8]) -> bool {
        let keys = self.tables.get(&table);
        keys.is_some_and(|keys| keys.contains_key(key))
    }

    /// Adds a key that is not stored yet; returns false if there would be too many keys, or too
    /// many bytes.
    pub(crate) fn add(&mut self, table: TableId, key: &[u8], watched: Watched) -> bool {
        if self.len >= WATCHED_MAX || self.key_bytes + key.len() > WATCHED_BYTES_MAX {
            return false;
        }
        let keys = self.tables.entry(table).or_default();
        if keys.insert(key.into(), watched).is_none() {
            self.len += 1;
            self.key_bytes += key.len();
        }
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TableId, &[u8], &Watched)> {
        self.tables
            .iter()
            .flat_map(|(table, keys)| keys.iter().map(|(key, watched)| (*table, &**key, watched)))
    }
}
