//! Pools: the free objects of each size.
//!
//! **Concurrency** each pool has a lock; the list of pools one of its own, taken before it and for
//! a moment.
//!
//! Paper: [Badam11 §3.4]: pools start with 128 objects, double, and grow by 10,000 from then on;
//! the run of addresses with the most free objects is used next. Beyond the paper, a run without
//! objects is removed: its tables take RAM.
//!
//! **Invariants**
//! - L1: a pool without objects has at most one chunk, of at most [`FIRST_OBJECTS`] objects; it is
//!   removed as well when an allocation finds no RAM for tables.

use crate::chunk::Chunk;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const FIRST_OBJECTS: u32 = 128;
const STEP_OBJECTS: u32 = 10_000;

/// Pools by the size with which their objects are stored.
#[derive(Default)]
pub(crate) struct Pools(Mutex<BTreeMap<u32, Arc<Mutex<Pool>>>>);

#[derive(Default)]
pub(crate) struct Pool {
    pub chunks: Vec<Arc<Chunk>>,
    /// The chunk from which objects are handed out.
    current: usize,
}

impl Pools {
    pub fn of(&self, bytes: u32) -> Arc<Mutex<Pool>> {
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(pools.entry(bytes).or_default())
    }

    pub fn all(&self) -> Vec<Arc<Mutex<Pool>>> {
        let pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pools.values().cloned().collect()
    }

    /// Adds a chunk from a checkpoint.
    pub fn restore(&self, chunk: Arc<Chunk>) {
        let pool = self.of(chunk.object_bytes);
        lock(&pool).chunks.push(chunk);
    }
}

pub(crate) fn lock(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A free object; `None`: the pool must grow.
    pub fn take(&mut self) -> Option<(Arc<Chunk>, u32, bool)> {
        let current = self.chunks.get(self.current);
        if current.is_none_or(|chunk| chunk.free() == 0) {
            let chunks = self.chunks.iter().enumerate();
            self.current = chunks.max_by_key(|(_, chunk)| chunk.free())?.0;
        }
        let chunk = &self.chunks[self.current];
        let (object, again) = chunk.take()?;
        Some((Arc::clone(chunk), object, again))
    }

    /// An empty chunk that is to be removed, with its tables. It is the largest one, if other
    /// chunks have enough free objects, or if it is alone and larger than a first chunk (L1).
    pub fn spare(&self) -> Option<Arc<Chunk>> {
        let empty = self.chunks.iter().filter(|chunk| chunk.is_empty());
        let largest = empty.max_by_key(|chunk| chunk.objects)?;
        let free: u32 = self.chunks.iter().map(|chunk| chunk.free()).sum();
        let is_alone = self.chunks.len() == 1 && largest.objects > FIRST_OBJECTS;
        let can_go = is_alone || free - largest.objects >= FIRST_OBJECTS;
        can_go.then(|| Arc::clone(largest))
    }

    /// An empty chunk.
    pub fn empty(&self) -> Option<Arc<Chunk>> {
        let mut chunks = self.chunks.iter();
        chunks.find(|chunk| chunk.is_empty()).cloned()
    }

    /// Notes that a chunk was removed.
    pub fn forget(&mut self, chunk: &Chunk) {
        self.chunks.retain(|other| other.first != chunk.first);
        self.current = 0;
    }

    pub fn next_objects(&self) -> u32 {
        let largest = self.chunks.iter().map(|chunk| chunk.objects).max();
        largest.map_or(FIRST_OBJECTS, |largest| (largest * 2).min(STEP_OBJECTS))
    }
}
