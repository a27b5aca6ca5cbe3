//! Objects on flash by direct calls: get and put, with the heap's cache in RAM, without its pages,
//! faults and allocator. It is no product: the figures compare the heap with it, to see what its
//! transparency costs.
//!
//! **Invariants**
//! - D1: the newest content of an object is in the cache if it is there, else on flash.
//!
//! **Concurrency** any thread may call anything; calls for one object are ordered by the caller.
//!
//! Paper: [Badam11 §5.3, Figure 5(a)], which compares with get and put of an earlier paper.

mod c;

use duramen_alloc::measured::Cache;
use duramen_disk::FileDevice;
use duramen_flash::{BLOCK_BYTES, ObjectStore, Owner, Scratch};
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that the flash store holds in RAM at most, bytes of RAM for each block of the device, and
/// RAM of its thread: as the heap counts them.
const IMAGES: u64 = 11;
const BYTES_PER_BLOCK: u64 = 40;
const THREAD_BYTES: u64 = 512 << 10;
/// Bytes of RAM for the place of each object on flash, and as many for its length.
const ENTRY_BYTES: u64 = 4;
/// Smallest useful cache.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The number of the only table.
const TABLE: u32 = 1;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The flash file cannot be used.
    #[error(transparent)]
    Disk(#[from] duramen_disk::Error),
    /// Flash fails, or is full.
    #[error(transparent)]
    Flash(#[from] duramen_flash::Error),
    /// RAM does not suffice.
    #[error("{ram_bytes} bytes of RAM are too few: {needed_bytes} are needed")]
    Budget { ram_bytes: u64, needed_bytes: u64 },
    /// The system refuses memory for the cache.
    #[error("memory for the cache: {0}")]
    Memory(std::io::Error),
}

/// Counts since the objects were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    pub flash_written_bytes: u64,
    /// Bytes of these that the collector wrote.
    pub flash_relocated_bytes: u64,
    /// Objects that left the cache for flash.
    pub written_objects: u64,
    pub from_cache: u64,
    pub from_flash: u64,
}

/// A number of objects, each of any length up to a limit; see the file's head.
pub struct Objects {
    cache: Cache,
    store: ObjectStore,
    object_bytes_max: usize,
    from_cache: AtomicU64,
    from_flash: AtomicU64,
}

impl Objects {
    /// No objects yet, with names below `objects`, of lengths up to the last of `lengths`; if that
    /// is the first as well, all have this length. The data of the flash file are given up.
    ///
    /// # Errors
    /// [`Error::Budget`]; of the file and of the system.
    pub fn create(
        flash_file: &Path,
        flash_bytes: u64,
        ram_bytes: u64,
        objects: u32,
        lengths: RangeInclusive<usize>,
    ) -> Result<Objects, Error> {
        let (one_length, object_bytes_max) = (lengths.start() == lengths.end(), *lengths.end());
        let entry_bytes = if one_length { 1 } else { 2 } * ENTRY_BYTES;
        let blocks = flash_bytes / BLOCK_BYTES as u64;
        let beside = IMAGES * BLOCK_BYTES as u64
            + blocks * BYTES_PER_BLOCK
            + THREAD_BYTES
            + u64::from(objects) * entry_bytes;
        let needed_bytes = beside + CACHE_BYTES_MIN;
        if ram_bytes < needed_bytes {
            return Err(Error::Budget {
                ram_bytes,
                needed_bytes,
            });
        }
        let device = Arc::new(FileDevice::open(flash_file, flash_bytes)?);
        let store = ObjectStore::create(duramen_flash::Options { device })?;
        if one_length {
            store.add_table_of(TABLE, objects, object_bytes_max)?;
        } else {
            store.add_table(TABLE, objects, object_bytes_max)?;
        }
        Ok(Objects {
            cache: Cache::new(ram_bytes - beside).map_err(Error::Memory)?,
            store,
            object_bytes_max,
            from_cache: AtomicU64::new(0),
            from_flash: AtomicU64::new(0),
        })
    }

    fn spill(&self) -> impl Fn(u64, &[u8]) -> Result<(), Error> {
        |name, bytes| Ok(self.store.write(owner(name as u32), bytes)?)
    }

    /// Writes an object, which has no content yet or one of the same length.
    ///
    /// # Errors
    /// Of flash.
    pub fn put(&self, name: u32, bytes: &[u8]) -> Result<(), Error> {
        self.cache.put(u64::from(name), bytes, true, &self.spill())
    }

    /// Reads an object of exactly this length. Returns false if it does not exist.
    ///
    /// # Errors
    /// Of flash.
    pub fn get(&self, name: u32, into: &mut [u8]) -> Result<bool, Error> {
        thread_local! {
            static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
        }
        if self.cache.get(u64::from(name), 0, into) {
            self.from_cache.fetch_add(1, Ordering::Relaxed);
            return Ok(true);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let scratch = scratch.get_or_insert_with(|| Scratch::new(self.object_bytes_max));
            let Some(found) = self.store.read(owner(name), scratch)? else {
                return Ok(false);
            };
            into.copy_from_slice(found);
            self.from_flash.fetch_add(1, Ordering::Relaxed);
            // Caching it is optional; no data is lost, so the error is ignored.
            let _ = self.cache.put(u64::from(name), found, false, &self.spill());
            Ok(true)
        })
    }

    /// Frees an object; its name may be used again.
    ///
    /// # Errors
    /// Of flash.
    pub fn remove(&self, name: u32) -> Result<(), Error> {
        self.cache.remove(u64::from(name));
        self.store.free(owner(name))?;
        Ok(())
    }

    pub fn stats(&self) -> Stats {
        let flash = self.store.stats();
        Stats {
            flash_written_bytes: flash.bytes_written,
            flash_relocated_bytes: flash.bytes_relocated,
            written_objects: self.cache.counts().spilled,
            from_cache: self.from_cache.load(Ordering::Relaxed),
            from_flash: self.from_flash.load(Ordering::Relaxed),
        }
    }
}

fn owner(index: u32) -> Owner {
    Owner {
        table: TABLE,
        index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: u32 = 20_000;
    const LONGEST: usize = 900;

    fn value(name: u32, life: u32) -> Vec<u8> {
        let bytes = 100 + (name.wrapping_mul(7919) % 800) as usize;
        (0..bytes)
            .map(|at| (name + life) as u8 ^ at as u8)
            .collect()
    }

    /// Four times as much data as RAM, so that most objects are on flash.
    #[test]
    fn objects_are_what_was_put_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("flash");
        let objects = Objects::create(&file, 64 << 20, 5 << 20, OBJECTS, 1..=LONGEST).unwrap();
        for name in 0..OBJECTS {
            objects.put(name, &value(name, 0)).unwrap();
        }
        for name in (0..OBJECTS).step_by(3) {
            objects.remove(name).unwrap();
            assert!(!objects.get(name, &mut [0; 4]).unwrap(), "object {name}");
            if name % 2 == 0 {
                objects.put(name, &value(name, 1)).unwrap();
            }
        }
        for name in 0..OBJECTS {
            let expected = match (name % 3, name % 2) {
                (0, 0) => Some(value(name, 1)),
                (0, _) => None,
                _ => Some(value(name, 0)),
            };
            let mut found = vec![0; value(name, 0).len()];
            let exists = objects.get(name, &mut found).unwrap();
            assert_eq!(exists.then_some(found), expected, "object {name}");
        }
        assert!(objects.stats().from_flash > u64::from(OBJECTS) / 2);
    }

    #[test]
    fn too_little_ram_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("flash");
        let refused = Objects::create(&file, 64 << 20, 2 << 20, OBJECTS, 1..=LONGEST);
        assert!(matches!(refused, Err(Error::Budget { .. })));
        assert!(!file.exists(), "nothing was made");
    }
}
