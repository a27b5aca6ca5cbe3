//! The object store: objects are written into the filled block, and read from it, from images or
//! from flash.
//!
//! **Invariants**
//! - O1: an object's bytes are in an image before its location is set, and on flash before the
//!   image goes.
//! - O2: a read returns only bytes whose checksum is valid for the owner and for the block's
//!   sequence, and only if the owner's location was the same after the read as before: the read
//!   bytes are those that the location named at one moment.
//! - O3: memory is bounded: object tables, a fixed number of images, one block for collecting.
//!
//! **Concurrency** any thread may call anything. The lock of the filled blocks (`filling`) is taken
//! first, then at most one of the short ones: the queue of images, the list of images, an image,
//! the free list. No read allocates memory: it may run in a fault handler.
//!
//! Paper: [Badam11 §3.3, §3.5].

use crate::checkpoint::Unsettled;
use crate::dense::Dense;
use crate::error::Error;
use crate::flusher::{RESERVE, Work};
use crate::image::{Image, Images};
use crate::layout::{
    BLOCK_BYTES, Found, OBJECT_BYTES_MAX, Owner, SECTOR_BYTES, SECTORS_PER_BLOCK, Superblock,
    block_of, find, location, room_max, span_max,
};
use crate::memory::Scratch;
use crate::space::{Space, State};
use crate::table::{NOWHERE, Old, Table, Tables};
use duramen_disk::{Aligned, Cut, Device, quietly};
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Images that may wait to be written beside the filled one: 1 MiB, enough for bursts.
const IMAGES: usize = 8;
/// With fewer free blocks garbage is collected; a greater number would collect blocks that die
/// anyway.
const FREE_LEAST: usize = RESERVE + IMAGES;
/// Attempts of a read that finds unexpected bytes, before it reports the object as damaged.
pub(crate) const ATTEMPTS: u32 = 64;

/// Configuration of a store.
pub struct Options {
    pub device: Arc<dyn Device>,
}

/// Counts since the store was opened; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub objects_written: u64,
    /// Their payloads.
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
    /// With the bytes that no object can use: see `space`.
    pub live_bytes: u64,
    pub held_bytes: u64,
    pub free_blocks: u64,
    /// Memory of object tables.
    pub table_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub objects_written: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub bytes_written: AtomicU64,
    pub bytes_relocated: AtomicU64,
    pub bytes_collected: AtomicU64,
    pub reads: AtomicU64,
    pub reads_from_memory: AtomicU64,
    /// Removed locations: more may be collected than before.
    pub released: AtomicU64,
}

/// Work of the flusher.
#[derive(Default)]
pub(crate) struct Queue {
    images: VecDeque<Arc<Image>>,
    /// Images being written now.
    writing: usize,
    /// Memory for images.
    spare: Vec<Aligned>,
    stop: bool,
    /// Value of `released` at which no block was worth collecting.
    stuck_at: Option<u64>,
    pub failure: Option<Arc<Error>>,
    /// Blocks that are emptied before a checkpoint.
    pub dense: Option<Dense>,
}

impl Queue {
    /// Whether a writer may have a block now (dense::N2).
    fn lets_writers(&self) -> bool {
        self.dense.as_ref().is_none_or(Dense::lets_writers)
    }
}

/// The blocks that are being filled.
#[derive(Default)]
pub(crate) struct Filling {
    pub writers: Option<Arc<Image>>,
    /// For relocated objects. Writers never fill it: it comes out of the collector's reserve
    /// (flusher::F3).
    pub collector: Option<Arc<Image>>,
}

/// State that the store and its thread share.
pub(crate) struct Core {
    pub device: Arc<dyn Device>,
    pub tables: Tables,
    pub images: Images,
    pub space: Space,
    pub counters: Counters,
    pub superblock: Mutex<Superblock>,
    /// Unfinished work of the last checkpoint, to be done before the next one.
    pub unsettled: Mutex<Unsettled>,
    /// A sync failed: earlier writes may be lost, and no later sync would report that.
    is_unsynced: AtomicBool,
    filling: Mutex<Filling>,
    queue: Mutex<Queue>,
    /// For the flusher: there is work.
    pub work: Condvar,
    /// For writers: there may be room.
    pub room: Condvar,
}

/// See the file's head.
pub struct ObjectStore {
    pub(crate) core: Arc<Core>,
    flusher: Option<JoinHandle<()>>,
}

/// Random enough that no two lives and no two devices are the same.
pub(crate) fn drawn() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

impl ObjectStore {
    /// An empty store: all data of the device is given up, checkpoints included.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn create(options: Options) -> Result<ObjectStore, Error> {
        let blocks = (options.device.bytes() / BLOCK_BYTES as u64) as u32;
        let found = crate::checkpoint::superblock_of(&*options.device)?;
        let superblock = Superblock {
            store: drawn(),
            blocks,
            version: found.map_or(1, |found| found.version + 1),
            checkpoint: 0,
            next: 1,
        };
        crate::checkpoint::write_superblock(&*options.device, &superblock)?;
        let space = Space::new(blocks, drawn() as u32);
        ObjectStore::start(options, superblock, space, Tables::default())
    }

    pub(crate) fn start(
        options: Options,
        superblock: Superblock,
        space: Space,
        tables: Tables,
    ) -> Result<ObjectStore, Error> {
        let queue = Queue {
            spare: (0..IMAGES).map(|_| Aligned::zeroed(BLOCK_BYTES)).collect(),
            ..Queue::default()
        };
        let core = Arc::new(Core {
            device: options.device,
            tables,
            images: Images::default(),
            space,
            counters: Counters::default(),
            superblock: Mutex::new(superblock),
            unsettled: Mutex::default(),
            is_unsynced: AtomicBool::new(false),
            filling: Mutex::default(),
            queue: Mutex::new(queue),
            work: Condvar::new(),
            room: Condvar::new(),
        });
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

    /// Frees all objects of a table, and the table. No thread writes to it meanwhile. False: there
    /// is no such table.
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
        let old = table.set(owner.index, location(image.block, at), bytes.len()); // O1
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

    /// Frees the object. False: it did not exist.
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

/// The place of an object, for a read.
pub(crate) enum Place {
    Nowhere,
    /// Copied to the scratch already.
    Here(Found),
    /// These bytes of the device; then [`Core::check`] decides whether they are the object's.
    Flash(Look),
    /// The object moves: look it up again.
    Again,
}

/// The place of an object at the time of its lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub location: u32,
    pub sequence: u64,
    /// The range of the device to read: around the object, aligned for the device.
    pub cut: Cut,
}

impl Core {
    pub(crate) fn filling(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capacity_bytes(&self) -> u64 {
        u64::from(self.space.len() - 1) * BLOCK_BYTES as u64
    }

    /// Removes a location.
    fn let_go(&self, old: Old) {
        if old.location == NOWHERE {
            return;
        }
        let is_free = self.space.release(old.location, old.bytes);
        // Afterwards: a search that has seen this count has seen the release. Pairs with Acquire in
        // `collect`.
        self.counters.released.fetch_add(1, Ordering::Release);
        if is_free {
            self.made_room();
        }
    }

    /// Wakes writers that wait for room, and the collector.
    pub(crate) fn made_room(&self) {
        self.counters.released.fetch_add(1, Ordering::Release);
        drop(self.queue()); // a thread about to wait has looked, or will see it
        self.room.notify_all();
    }

    /// Memory and a block for another image; `None`: no more than `spare` blocks are free.
    pub(crate) fn new_image(&self, spare: usize) -> Option<Arc<Image>> {
        let mut queue = self.queue();
        let is_writers = spare > 0;
        if is_writers && !queue.lets_writers() {
            return None;
        }
        let bytes = queue.spare.pop()?;
        let Some((block, sequence)) = self.space.take(spare) else {
            queue.spare.push(bytes);
            return None;
        };
        if let Some(dense) = queue.dense.as_mut().filter(|_| is_writers) {
            dense.let_writer();
        }
        drop(queue);
        let image = Arc::new(Image::new(block, sequence, bytes));
        self.images.add(Arc::clone(&image));
        if self.space.free_blocks() < FREE_LEAST {
            self.work.notify_one();
        }
        Some(image)
    }

    /// Queues a complete image for writing. `is_full`: the next object has no room in it.
    pub(crate) fn hand_over(&self, image: Arc<Image>, is_full: bool) {
        let store = self.superblock().store;
        let used = image.seal(store);
        if is_full {
            self.space.filled(image.block, used);
        }
        self.queue().images.push_back(image);
        self.work.notify_one();
    }

    /// Replaces the block that writers fill, which has no room. Waits for memory and free blocks.
    fn rotate<'c>(
        &'c self,
        mut filling: MutexGuard<'c, Filling>,
    ) -> Result<MutexGuard<'c, Filling>, Error> {
        if let Some(full) = filling.writers.take() {
            self.hand_over(full, true);
        }
        filling.writers = self.new_image(RESERVE);
        if filling.writers.is_some() {
            return Ok(filling);
        }
        drop(filling);
        let mut queue = self.queue();
        loop {
            if queue.failure.is_some() {
                drop(queue);
                return Err(self.failure());
            }
            let released = self.counters.released.load(Ordering::Relaxed);
            let has_room = self.space.free_blocks() > RESERVE && !queue.spare.is_empty();
            if has_room && queue.lets_writers() {
                break;
            }
            let idle = queue.images.is_empty() && queue.writing == 0 && queue.dense.is_none();
            if idle && queue.stuck_at == Some(released) && !queue.spare.is_empty() {
                drop(queue);
                let (live_bytes, held_bytes) = self.space.kept_bytes();
                return Err(Error::Full {
                    live_bytes,
                    held_bytes,
                    capacity_bytes: self.capacity_bytes(),
                });
            }
            self.work.notify_one();
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        Ok(self.filling())
    }

    /// Waits until no data is in memory alone. The caller holds the lock of the filled blocks.
    pub(crate) fn flush(&self, filling: &mut Filling) -> Result<(), Error> {
        let filled = [filling.writers.take(), filling.collector.take()];
        for image in filled.into_iter().flatten() {
            self.hand_over(image, false);
        }
        // Here and not by the flusher alone: the flusher may wait for the lock that the caller
        // holds.
        self.write_waiting()?;
        let mut queue = self.queue();
        while queue.writing > 0 && queue.failure.is_none() {
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let failed = queue.failure.is_some();
        drop(queue);
        if failed { Err(self.failure()) } else { Ok(()) }
    }

    /// Makes all writes to the device durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        if self.is_unsynced.load(Ordering::Relaxed) {
            return Err(Error::Device {
                doing: "syncing the flash file, which failed before: restore the last checkpoint",
                source: std::io::ErrorKind::Other.into(),
            });
        }
        self.device.sync().map_err(|error| {
            self.is_unsynced.store(true, Ordering::Relaxed);
            Error::device("syncing the flash file")(error)
        })
    }

    /// The error for every caller after a failure.
    pub(crate) fn failure(&self) -> Error {
        let kind = match self.queue().failure.as_deref() {
            Some(Error::Device { source, .. }) => source.kind(),
            _ => std::io::ErrorKind::Other,
        };
        Error::Device {
            doing: "writing to flash, which failed before",
            source: kind.into(),
        }
    }

    /// The flusher cannot continue: data in memory stays there, no more is taken.
    pub(crate) fn fail(&self, error: Error) {
        self.queue().failure = Some(Arc::new(error));
        self.room.notify_all();
    }

    /// For the flusher: the next work; `None`: the store is gone, and everything is written.
    pub(crate) fn wait_for_work(&self) -> Option<Work> {
        let mut queue = self.queue();
        loop {
            if let Some(image) = queue.images.pop_front() {
                queue.writing += 1;
                return Some(Work::Write(image));
            }
            if queue.stop {
                return None;
            }
            let released = self.counters.released.load(Ordering::Relaxed);
            if self.space.free_blocks() < FREE_LEAST && queue.stuck_at != Some(released) {
                return Some(Work::Collect);
            }
            if let Some(dense) = &mut queue.dense {
                if let Some(number) = dense.victims.pop() {
                    return Some(Work::Empty(number));
                }
                queue.dense = None;
                self.room.notify_all();
            }
            queue = self
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// For the flusher, while it collects: a waiting image.
    pub(crate) fn next_image(&self) -> Option<Arc<Image>> {
        let mut queue = self.queue();
        let image = queue.images.pop_front()?;
        queue.writing += 1;
        Some(image)
    }

    /// The image is on flash.
    pub(crate) fn recycle(&self, image: Arc<Image>) {
        // A reader may hold it for a moment.
        let bytes = Image::into_bytes(image).unwrap_or_else(|| Aligned::zeroed(BLOCK_BYTES));
        let mut queue = self.queue();
        queue.writing -= 1;
        queue.spare.push(bytes);
        drop(queue);
        self.room.notify_all();
    }

    /// Records that no block was worth collecting at this value of `released`.
    pub(crate) fn nothing_to_collect(&self, released: u64) {
        self.queue().stuck_at = Some(released);
        self.room.notify_all();
    }

    /// The place of an object; copies it if it is in memory.
    pub(crate) fn look(&self, table: &Table, owner: Owner, into: &mut [u8]) -> Place {
        let location = table.get(owner.index).unwrap_or(NOWHERE);
        if location == NOWHERE {
            return Place::Nowhere;
        }
        let number = block_of(location);
        let Some(block) = self.space.get(number) else {
            return Place::Again;
        };
        let sequence = block.sequence();
        let sector = location % SECTORS_PER_BLOCK;
        let from = sector as usize * SECTOR_BYTES;
        let bytes = span_max(table.bytes_max as usize).min(BLOCK_BYTES - from);
        if block.state() != State::Buffered {
            let at = u64::from(number) * BLOCK_BYTES as u64 + from as u64;
            return Place::Flash(Look {
                location,
                sequence,
                cut: Cut::new(at, bytes, self.device.alignment()),
            });
        }
        let Some(image) = self.images.of(number) else {
            return Place::Again; // image::I1
        };
        let content = image.read();
        into[..bytes].copy_from_slice(&content.bytes()[from..from + bytes]);
        drop(content);
        drop(image);
        let look = Look {
            location,
            sequence,
            cut: Cut {
                at: 0,
                bytes,
                skip: 0,
            },
        };
        match self.check(table, owner, &look, &into[..bytes]) {
            Some(found) => {
                self.counters
                    .reads_from_memory
                    .fetch_add(1, Ordering::Relaxed);
                Place::Here(found)
            }
            None => Place::Again,
        }
    }

    /// Position of the object in the read bytes, if it is still at the place where it was looked up
    /// (O2).
    pub(crate) fn check(
        &self,
        table: &Table,
        owner: Owner,
        look: &Look,
        bytes: &[u8],
    ) -> Option<Found> {
        let skip = look.cut.skip;
        let found = find(bytes.get(skip..)?, look.location, look.sequence, owner)?;
        let same = table.get(owner.index) == Some(look.location);
        same.then_some(Found {
            from: found.from + skip,
            to: found.to + skip,
            ..found
        })
    }

    fn read(&self, owner: Owner, scratch: &mut Scratch) -> Result<Option<Found>, Error> {
        let table = self.tables.of(owner)?;
        let into = scratch.0.bytes_mut();
        let needed = room_max(table.bytes_max as usize);
        if into.len() < needed {
            return Err(Error::TooLarge {
                bytes: table.bytes_max as usize,
                limit: into.len(),
            });
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        let mut missed = 0;
        loop {
            let look = match self.look(&table, owner, into) {
                Place::Nowhere => return Ok(None),
                Place::Here(found) => return Ok(Some(found)),
                Place::Again => {
                    std::hint::spin_loop();
                    continue;
                }
                Place::Flash(look) => look,
            };
            let bytes = &mut into[..look.cut.bytes];
            match self.device.read_at(look.cut.at, bytes) {
                Ok(()) => {}
                Err(error) if self.is_still(&table, owner, &look) => {
                    return Err(Error::device("reading an object from flash")(error));
                }
                Err(_) => continue, // it has moved
            }
            if let Some(found) = self.check(&table, owner, &look, bytes) {
                return Ok(Some(found));
            }
            missed += u32::from(self.is_still(&table, owner, &look));
            if missed >= ATTEMPTS {
                return Err(Error::Damaged {
                    owner,
                    sector: look.location,
                });
            }
        }
    }

    /// Whether an object is still at the place where it was looked up: then the bytes read there
    /// should have been the object.
    pub(crate) fn is_still(&self, table: &Table, owner: Owner, look: &Look) -> bool {
        let block = self.space.block(block_of(look.location));
        table.get(owner.index) == Some(look.location) && block.sequence() == look.sequence
    }
}
