//! The tombstones that a side log has met: they keep out older objects that come after them.
//!
//! **Concurrency**: a key's tombstone is looked up and stored under the lock of the key's bucket,
//! so the shards' locks only protect the maps. Their memory is charged to the store's budget.

use crate::space::Space;
use crate::{KeyHash, TableId};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 64;
/// Bytes that a tombstone takes besides its key: a place in the map (at most half empty), the
/// allocation.
const PLACE_BYTES: u64 = 96;

type Keys = HashMap<Box<[u8]>, u64>;

#[derive(Default)]
struct Shard {
    /// The versions that died, by table, then by key.
    keys: Mutex<HashMap<TableId, Keys>>,
    count: AtomicUsize,
}

pub struct Tombstones {
    shards: Box<[Shard]>,
    charged: AtomicU64,
}

impl Default for Tombstones {
    fn default() -> Tombstones {
        Tombstones {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            charged: AtomicU64::new(0),
        }
    }
}

impl Tombstones {
    fn shard(&self, hash: KeyHash) -> &Shard {
        &self.shards[hash.0 as usize % SHARDS]
    }

    /// True if a tombstone was met that kills this version. The key's bucket is locked.
    pub fn kills(&self, table: TableId, hash: KeyHash, key: &[u8], version: u64) -> bool {
        let shard = self.shard(hash);
        // Relaxed: this key's tombstone was stored under the lock that the caller holds now.
        if shard.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let keys = shard.keys.lock().expect("tombstones");
        let known = keys.get(&table).and_then(|keys| keys.get(key));
        known.is_some_and(|known| version <= *known)
    }

    /// Remembers a tombstone. The key's bucket is locked. Returns false if there is no memory for
    /// it.
    pub fn insert(
        &self,
        space: &Space,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        version: u64,
    ) -> bool {
        let shard = self.shard(hash);
        let mut keys = shard.keys.lock().expect("tombstones");
        let keys = keys.entry(table).or_default();
        if let Some(known) = keys.get_mut(key) {
            *known = version.max(*known);
            return true;
        }
        let bytes = key.len() as u64 + PLACE_BYTES;
        if !space.charge_beside_segments(bytes) {
            return false;
        }
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        keys.insert(key.into(), version);
        shard.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Forgets all tombstones. No replay is running any more.
    pub fn clear(&self, space: &Space) {
        for shard in &self.shards {
            shard.keys.lock().expect("tombstones").clear();
            shard.count.store(0, Ordering::Relaxed);
        }
        space
            .budget
            .release(self.charged.swap(0, Ordering::Relaxed));
    }
}
