//! The keys that one connection watches.
//!
//! **Invariants**
//! 1. A key of a table is there once, with the stamp of its first `WATCH`: what changed since then
//!    cancels `EXEC`.
//! 2. Looking for a key takes the same time however many there are, and both their number and their
//!    bytes have a limit.

use super::client::Db;
use crate::heap;
use duramen_base::ids::TabletsVersion;
use duramen_engine::{Stamp, TableId};
use std::collections::{BTreeMap, HashMap};

/// Keys that one client may watch: each costs the client memory and EXEC a lock.
pub(crate) const WATCHED_MAX: usize = 65_536;
/// Bytes of these keys together, in bytes: a connection must not keep gigabytes by watching long
/// keys.
pub(crate) const WATCHED_BYTES_MAX: usize = 16 << 20;

/// A key under `WATCH`.
pub(crate) struct Watched {
    /// The database through which it was watched.
    pub(crate) db: Db,
    /// [`State::exchanges`](super::state::State::exchanges) of that database then: the table may
    /// come back after two exchanges.
    pub(crate) exchanges: u64,
    pub(crate) stamp: Stamp,
    /// In a cluster: since which of its lists this member serves the key. A member that loses a key
    /// and gets it back cannot know what happened to it meanwhile.
    pub(crate) since: Option<TabletsVersion>,
}

/// All keys under `WATCH` of a connection, by the table that was behind their database then.
#[derive(Default)]
pub(crate) struct Watches {
    tables: BTreeMap<TableId, HashMap<Box<[u8]>, Watched>>,
    len: usize,
    key_bytes: usize,
}

/// What a watched key takes beside its own bytes.
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

    /// Adds a key that is not there yet; false: that would be too many, or too many bytes.
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
