//! The watches of a store and their marks. The rules are in `range::watch`.

use crate::TableId;
use duramen_base::ids::KeyRange;
use duramen_base::sync::{self, Mutex};
use duramen_format::hash::KeyHasher;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// Number of shards; one in runs that explore schedules, because shards differ in nothing but their
/// number.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// Bytes that a mark takes besides its key: a place in the map (at most half empty), the
/// allocation.
pub const MARK_BYTES: usize = 96;
/// The watches of a store, and the other state that guards read while ranges come and go.
pub struct Watches {
    /// Computes the hashes of the keys of all tables.
    pub(crate) hasher: KeyHasher,
    pub(crate) any: AtomicBool,
    pub(crate) list: RwLock<Vec<Arc<Watched>>>,
    /// Bytes of the memory budget charged for marks. Counts only.
    pub(crate) charged: AtomicU64,
    /// Calls of [`Store::quiesce`](crate::Store::quiesce).
    pub(crate) generation: AtomicU64,
}

/// The newest known state of a marked key.
struct Mark {
    /// The highest version that was given to it or removed from it.
    version: u64,
    /// Bytes of its key and value.
    bytes: usize,
}

/// The marks of one shard: those of objects, then those of parts.
struct Shard(Mutex<[HashMap<Box<[u8]>, Mark>; 2]>);

/// Marks that are not taken yet.
pub struct Marks {
    shards: [Shard; SHARDS],
    pub(crate) count: sync::AtomicUsize,
    /// Bytes of the keys, with [`MARK_BYTES`] each. Both numbers only count.
    pub(crate) bytes: sync::AtomicUsize,
    pub(crate) bytes_max: usize,
    /// Bytes of the keys and values that are marked. Only counts.
    pub(crate) object_bytes: sync::AtomicUsize,
    pub(crate) start_again: sync::AtomicBool,
}

pub(crate) struct Watched {
    /// The watched table, whose parts are watched too.
    pub(crate) table: TableId,
    pub(crate) range: KeyRange,
    pub(crate) marks: Marks,
}

/// A key that was written or removed.
#[derive(Clone, Debug)]
pub struct DirtyKey {
    pub key: Box<[u8]>,
    /// Whether it is the key of a part.
    pub is_part: bool,
    /// The highest version that was given to it or removed from it.
    pub version: u64,
}

impl DirtyKey {
    /// The key of an object.
    pub fn of_object(key: &[u8], version: u64) -> DirtyKey {
        DirtyKey {
            key: key.into(),
            is_part: false,
            version,
        }
    }
}

/// Keys that were written or removed since a watch began or was last taken from.
#[derive(Debug, Default)]
pub struct Dirty {
    pub keys: Vec<DirtyKey>,
    /// Some marks are missing (range::watch::W3): discard the copy, and begin with a new watch.
    pub start_again: bool,
}

impl Watches {
    pub fn new(hasher: KeyHasher) -> Watches {
        Watches {
            hasher,
            any: AtomicBool::new(false),
            list: RwLock::default(),
            charged: AtomicU64::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// Bytes of the memory budget charged for marks.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }
}

impl Marks {
    /// No marks, and room for `bytes_max` bytes: of keys, with [`MARK_BYTES`] each.
    pub fn new(bytes_max: usize) -> Marks {
        Marks {
            shards: std::array::from_fn(|_| Shard(Mutex::new(Default::default()))),
            count: sync::AtomicUsize::new(0),
            bytes: sync::AtomicUsize::new(0),
            bytes_max,
            object_bytes: sync::AtomicUsize::new(0),
            start_again: sync::AtomicBool::new(false),
        }
    }

    /// Marks a key with this hash, of an object or of a part (`is_part`); its value has so many
    /// bytes. The caller has published the change (range::watch::W1).
    pub fn mark(&self, hash: u64, (is_part, key): (bool, &[u8]), value_bytes: usize, version: u64) {
        let object_bytes = key.len() + value_bytes;
        let shard = &self.shards[hash as usize % SHARDS];
        let mut both = shard.0.lock().expect("dirty keys");
        let keys = &mut both[usize::from(is_part)];
        if let Some(known) = keys.get_mut(key) {
            if version >= known.version {
                self.object_bytes.fetch_add(object_bytes, Ordering::Relaxed);
                self.object_bytes.fetch_sub(known.bytes, Ordering::Relaxed);
                (known.version, known.bytes) = (version, object_bytes);
            }
            return;
        }
        let bytes = bytes_of(key);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= self.bytes_max {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.object_bytes.fetch_add(object_bytes, Ordering::Relaxed);
            let bytes = object_bytes;
            keys.insert(key.into(), Mark { version, bytes });
        } else {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.start_again.store(true, Ordering::Release);
        }
    }

    /// Takes the marks: later writes are marked anew.
    pub fn take(&self) -> Dirty {
        let mut keys = Vec::with_capacity(self.count.load(Ordering::Relaxed));
        for shard in &self.shards {
            let both = std::mem::take(&mut *shard.0.lock().expect("dirty keys"));
            for (is_part, taken) in [false, true].into_iter().zip(both) {
                let bytes: usize = taken.keys().map(|key| bytes_of(key)).sum();
                self.count.fetch_sub(taken.len(), Ordering::Relaxed);
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                let object_bytes: usize = taken.values().map(|mark| mark.bytes).sum();
                self.object_bytes.fetch_sub(object_bytes, Ordering::Relaxed);
                keys.extend(taken.into_iter().map(|(key, mark)| DirtyKey {
                    key,
                    is_part,
                    version: mark.version,
                }));
            }
        }
        Dirty {
            keys,
            start_again: self.start_again.load(Ordering::Acquire),
        }
    }
}

/// Bytes that a mark takes.
fn bytes_of(key: &[u8]) -> usize {
    key.len() + MARK_BYTES
}
