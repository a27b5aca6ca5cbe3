//! The object store: the functions for its users.
//!
//! **Concurrency** any thread may call anything.
//!
//! Paper: [Badam11 §3.3, §3.5].

use crate::core::Core;
use crate::error::Error;
use crate::layout::{BLOCK_BYTES, OBJECT_BYTES_MAX, Owner, Superblock, location};
use crate::memory::Scratch;
use crate::space::Space;
use crate::superblock::{drawn, superblock_of, write_superblock};
use crate::table::{NOWHERE, Table, Tables};
use duramen_disk::{Device, quietly};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Configuration of a store.
pub struct Options {
    pub device: Arc<dyn Device>,
}

/// Counts since the store was opened; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub objects_written: u64,
    /// Bytes of the payloads of these objects.
    pub payload_bytes: u64,
    /// All bytes written to flash: blocks, superblocks.
    pub bytes_written: u64,
    /// Bytes that the collector wrote again, headers included.
    pub bytes_relocated: u64,
    /// Read by the collector.
    pub bytes_collected: u64,
    pub reads: u64,
    /// Reads that were answered from an image in memory.
    pub reads_from_memory: u64,
    pub capacity_bytes: u64,
    /// Bytes of live objects, with their share of the bytes that no object can use: see `space`.
    pub live_bytes: u64,
    pub held_bytes: u64,
    pub free_blocks: u64,
    /// Memory of object tables.
    pub table_bytes: u64,
}

/// See the file's head.
pub struct ObjectStore {
    pub(crate) core: Arc<Core>,
    flusher: Option<JoinHandle<()>>,
}

impl ObjectStore {
    /// An empty store: all data of the device is given up, checkpoints included.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn create(options: Options) -> Result<ObjectStore, Error> {
        let store = ObjectStore::prepare(options)?;
        store.give_up_old()?;
        Ok(store)
    }

    /// As [`create`](Self::create), but the device is unchanged until
    /// [`give_up_old`](Self::give_up_old), before which nothing is written.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn prepare(options: Options) -> Result<ObjectStore, Error> {
        let blocks = (options.device.bytes() / BLOCK_BYTES as u64) as u32;
        let found = superblock_of(&*options.device)?;
        let superblock = Superblock {
            store: drawn(),
            blocks,
            version: found.map_or(1, |found| found.version + 1),
            checkpoint: 0,
            next: 1,
        };
        let space = Space::new(blocks, drawn() as u32);
        ObjectStore::start(options, superblock, space, Tables::default())
    }

    /// Makes a prepared store the device's: all data of the device is given up.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn give_up_old(&self) -> Result<(), Error> {
        write_superblock(&*self.core.device, &self.core.superblock())
    }

    pub(crate) fn start(
        options: Options,
        superblock: Superblock,
        space: Space,
        tables: Tables,
    ) -> Result<ObjectStore, Error> {
        let core = Arc::new(Core::new(options.device, superblock, space, tables));
        let shared = Arc::clone(&core);
        let named = std::thread::Builder::new().name("flash".to_owned());
        let flusher = quietly(|| named.spawn(move || shared.flush_until_stopped()))
            .map_err(Error::device("starting the thread that writes to flash"))?;
        Ok(ObjectStore {
            core,
            flusher: Some(flusher),
        })
    }

    /// Adds a table of `objects` places for objects of at most `object_bytes_max` bytes. No object
    /// exists yet.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TooLarge`].
    pub fn add_table(
        &self,
        table: u32,
        objects: u32,
        object_bytes_max: usize,
    ) -> Result<(), Error> {
        self.add(table, objects, object_bytes_max, false)
    }

    /// As [`add_table`](Self::add_table), for objects of exactly this many bytes: it takes half of
    /// the memory. A shorter object is counted as if it were as long.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::TooLarge`].
    pub fn add_table_of(&self, table: u32, objects: u32, object_bytes: usize) -> Result<(), Error> {
        self.add(table, objects, object_bytes, true)
    }

    fn add(
        &self,
        table: u32,
        objects: u32,
        object_bytes_max: usize,
        one_length: bool,
    ) -> Result<(), Error> {
        if object_bytes_max > OBJECT_BYTES_MAX {
            return Err(Error::TooLarge {
                bytes: object_bytes_max,
                limit: OBJECT_BYTES_MAX,
            });
        }
        let new = Table::new(objects, object_bytes_max as u32, one_length);
        self.core.tables.add(table, new)
    }

    /// Places of a table; `None`: there is no such table.
    pub fn objects_of(&self, table: u32) -> Option<u32> {
        self.core.tables.objects_of(table)
    }

    /// Frees all objects of a table, and the table. No thread writes to it meanwhile. Returns false
    /// if there is no such table.
    pub fn remove_table(&self, table: u32) -> bool {
        let Some(table) = self.core.tables.remove(table) else {
            return false;
        };
        for index in 0..table.len() {
            if table.get(index) == Some(NOWHERE) {
                continue; // no thread writes to it; the collector moves no missing object
            }
            let filling = self.core.filling();
            let old = table.set(index, NOWHERE, 0);
            drop(filling);
            self.core.let_go(old);
        }
        true
    }

    /// Writes the object, which replaces its former value. It is in memory when this returns, and
    /// on flash later; a checkpoint makes it durable. Waits while flash is short of room.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::NoSuchOwner`], [`Error::TooLarge`], [`Error::Device`].
    pub fn write(&self, owner: Owner, bytes: &[u8]) -> Result<(), Error> {
        let table = self.core.tables.of(owner)?;
        if bytes.len() > table.bytes_max as usize {
            return Err(Error::TooLarge {
                bytes: bytes.len(),
                limit: table.bytes_max as usize,
            });
        }
        let mut filling = self.core.filling();
        let image = loop {
            match filling.writers.as_ref() {
                Some(image) if image.has_room(bytes.len()) => break image,
                _ => filling = self.core.rotate(filling)?,
            }
        };
        let at = image.append(owner, bytes);
        let old = table.set(owner.index, location(image.block, at), bytes.len()); // core::O1
        let footprint = table.footprint(owner.index);
        self.core.space.appended(image.block, footprint);
        drop(filling);
        let counters = &self.core.counters;
        counters.objects_written.fetch_add(1, Ordering::Relaxed);
        counters
            .payload_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.core.let_go(old);
        Ok(())
    }

    /// The object's bytes; `None`: it was never written, or was freed. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::NoSuchOwner`], [`Error::Device`]; [`Error::TooLarge`] if
    /// `scratch` was made for shorter objects.
    pub fn read<'s>(
        &self,
        owner: Owner,
        scratch: &'s mut Scratch,
    ) -> Result<Option<&'s [u8]>, Error> {
        match self.core.read(owner, scratch)? {
            Some(found) => Ok(scratch.0.bytes().get(found.from..found.to)),
            None => Ok(None),
        }
    }

    /// Whether the object exists.
    pub fn contains(&self, owner: Owner) -> bool {
        let table = self.core.tables.of(owner).ok();
        let location = table.and_then(|table| table.get(owner.index));
        location.is_some_and(|location| location != NOWHERE)
    }

    /// Frees the object. Returns false if it did not exist.
    ///
    /// # Errors
    /// [`Error::NoSuchOwner`].
    pub fn free(&self, owner: Owner) -> Result<bool, Error> {
        let table = self.core.tables.of(owner)?;
        let filling = self.core.filling();
        let old = table.set(owner.index, NOWHERE, 0);
        drop(filling);
        self.core.let_go(old);
        Ok(old.location != NOWHERE)
    }

    /// Waits until all written objects are on flash, though not synced.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn flush(&self) -> Result<(), Error> {
        let mut filling = self.core.filling();
        self.core.flush(&mut filling)
    }

    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (live_bytes, held_bytes) = core.space.kept_bytes();
        Stats {
            objects_written: of(&core.counters.objects_written),
            payload_bytes: of(&core.counters.payload_bytes),
            bytes_written: of(&core.counters.bytes_written),
            bytes_relocated: of(&core.counters.bytes_relocated),
            bytes_collected: of(&core.counters.bytes_collected),
            reads: of(&core.counters.reads),
            reads_from_memory: of(&core.counters.reads_from_memory),
            capacity_bytes: core.capacity_bytes(),
            live_bytes,
            held_bytes,
            free_blocks: core.space.free_blocks() as u64,
            table_bytes: core.tables.bytes(),
        }
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.core.queue().stop = true;
        self.core.work.notify_all();
        if let Some(flusher) = self.flusher.take() {
            // The thread has reported its own panic.
            let _ = flusher.join();
        }
    }
}
