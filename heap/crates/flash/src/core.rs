//! The state of a store that its callers, its thread and its checkpoints share: the blocks that are
//! filled, the images that wait to be written, and the place of each object.
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

use crate::error::Error;
use crate::image::{Image, Images};
use crate::layout::{
    BLOCK_BYTES, Found, Owner, SECTOR_BYTES, SECTORS_PER_BLOCK, Superblock, block_of, find,
    room_max, span_max,
};
use crate::memory::Scratch;
use crate::space::{Space, State};
use crate::superblock::Unsettled;
use crate::table::{NOWHERE, Old, Table, Tables};
use duramen_disk::{Aligned, Cut, Device};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Free blocks for relocated objects alone.
pub(crate) const RESERVE: usize = 2;
/// Images that may wait to be written beside the filled one: 1 MiB, enough for bursts.
const IMAGES: usize = 8;
/// With fewer free blocks garbage is collected; a greater number would collect blocks that die
/// anyway.
const FREE_LEAST: usize = RESERVE + IMAGES;
/// Attempts of a read that finds unexpected bytes, before it reports the object as damaged.
pub(crate) const ATTEMPTS: u32 = 64;

/// Blocks that are emptied before a writer gets one: unless they are very dense, that makes at
/// least one more free block.
pub(crate) const TURNS: u32 = 8;
/// The blocks to be emptied.
pub(crate) struct Dense {
    pub victims: Vec<u32>,
    /// Blocks emptied since a writer last got a block.
    pub emptied: u32,
}

impl Dense {
    /// Whether writers may have a block now (dense::N2).
    pub fn lets_writers(&self) -> bool {
        self.emptied >= TURNS
    }

    pub fn let_writer(&mut self) {
        self.emptied = 0;
    }
}

/// Next work of the thread.
pub(crate) enum Work {
    Write(Arc<Image>),
    Collect,
    /// For a checkpoint.
    Empty(u32),
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
    pub stop: bool,
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
    /// The image for relocated objects. Writers never fill it, because its block comes out of the
    /// collector's reserve (flusher::F3).
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

/// The place of an object, for a read.
pub(crate) enum Place {
    Nowhere,
    /// The object was copied to the scratch already.
    Here(Found),
    /// The bytes of the device to read; [`Core::check`] then decides whether they are the object's.
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
    pub fn new(
        device: Arc<dyn Device>,
        superblock: Superblock,
        space: Space,
        tables: Tables,
    ) -> Core {
        let queue = Queue {
            spare: (0..IMAGES).map(|_| Aligned::zeroed(BLOCK_BYTES)).collect(),
            ..Queue::default()
        };
        Core {
            device,
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
        }
    }

    pub(crate) fn filling(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        u64::from(self.space.len() - 1) * BLOCK_BYTES as u64
    }

    /// Removes a location.
    pub(crate) fn let_go(&self, old: Old) {
        if old.location == NOWHERE {
            return;
        }
        let is_free = self.space.release(old.location, old.bytes);
        // The count is raised afterwards: a search that has seen this count has seen the release.
        // Pairs with Acquire in `collect`.
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
    pub(crate) fn rotate<'c>(
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
        // Images are written here, and not by the flusher alone, because the flusher may wait for
        // the lock that the caller holds.
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

    /// Takes back the memory of an image that is on flash.
    pub(crate) fn recycle(&self, image: Arc<Image>) {
        // A reader may still hold the image for a moment: then new memory is taken.
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
            return Place::Again; // image::I1: its image has just left the list
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

    pub(crate) fn read(&self, owner: Owner, scratch: &mut Scratch) -> Result<Option<Found>, Error> {
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
                Err(_) => continue, // the object has moved
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
