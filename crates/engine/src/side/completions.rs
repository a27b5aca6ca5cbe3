//! The completion records that a side log has taken over: each is taken once.
//!
//! **Concurrency**: one lock per shard. Their memory is charged to the store's budget.

use crate::space::Space;
use duramen_base::ids::{ClientId, RpcId};
use duramen_format::entry::Completion;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// There are many shards: a set that grows exists twice meanwhile, and is only a small part of all
/// then.
const SHARDS: usize = 64;
/// Bytes that a record takes: a place in a set that is at most half empty, and the rest of a set
/// that grows.
const PLACE_BYTES: u64 = 48;

/// A client gives each id to one request, so both together name the record.
type Shard = Mutex<HashSet<(ClientId, RpcId)>>;

pub struct Taken {
    shards: Box<[Shard]>,
    charged: AtomicU64,
}

impl Default for Taken {
    fn default() -> Taken {
        Taken {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            charged: AtomicU64::new(0),
        }
    }
}

/// Result for a record.
pub enum Take {
    /// The record is new: the caller takes it over.
    New,
    Known,
    NoMemory,
}

impl Taken {
    pub fn insert(&self, space: &Space, record: &Completion<'_>) -> Take {
        let name = (record.client, record.rpc);
        let shard = &self.shards[(record.client.0 ^ record.rpc.0) as usize % SHARDS];
        let mut shard = shard.lock().expect("completions taken");
        if shard.contains(&name) {
            return Take::Known;
        }
        if !space.charge_beside_segments(PLACE_BYTES) {
            return Take::NoMemory;
        }
        self.charged.fetch_add(PLACE_BYTES, Ordering::Relaxed);
        shard.insert(name);
        Take::New
    }

    /// Forgets all records. No replay is running any more.
    pub fn clear(&self, space: &Space) {
        for shard in &self.shards {
            *shard.lock().expect("completions taken") = HashSet::new();
        }
        space
            .budget
            .release(self.charged.swap(0, Ordering::Relaxed));
    }
}
