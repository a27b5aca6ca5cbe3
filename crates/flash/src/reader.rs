//! Many reads of objects at once, without waiting for each: by io_uring into registered memory, or
//! by a few threads if the kernel has no io_uring.
//!
//! **Invariants**
//! - R1: memory that was handed to the kernel or to a thread belongs to it until it answers: a slot
//!   is free or in flight, and a dropped reader waits for all slots in flight.
//!
//! **Concurrency** a reader belongs to one thread. Its [`descriptor`](Reader::descriptor) becomes
//! readable when a read is done.
//!
//! Paper: [Badam11 §4, Figure 2]: flash reaches its full rate only with many requests at once.

use crate::error::Error;
use crate::layout::{Owner, room_max};
use crate::memory::Aligned;
use crate::pool::Pool;
use crate::store::{Core, Look, ObjectStore, Place};
use crate::table::Table;
use io_uring::{IoUring, opcode, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Result of a read.
#[derive(Debug)]
pub struct Completed<'r> {
    /// The tag that was given to [`Reader::submit`].
    pub tag: u64,
    pub owner: Owner,
    /// `Ok(None)`: the object does not exist.
    pub result: Result<Option<&'r [u8]>, Error>,
}

/// A read in flight.
struct Under {
    tag: u64,
    owner: Owner,
    table: Arc<Table>,
    look: Look,
    missed: u32,
}

/// An answer without a read: the range of the slot's bytes, if the object exists.
struct AtOnce {
    tag: u64,
    owner: Owner,
    number: u32,
    place: Option<(usize, usize)>,
}

struct Slot {
    /// `None`: a thread has it.
    buffer: Option<Aligned>,
    under: Option<Under>,
}

/// See the file's head.
pub struct Reader {
    core: Arc<Core>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose reads have ended, with results.
    done: VecDeque<(u32, io::Result<()>)>,
    /// Answers without a read.
    at_once: VecDeque<AtOnce>,
    way: Way,
    object_bytes_max: usize,
}

enum Way {
    Ring {
        ring: Box<IoUring>,
        /// The slots' memory is registered with the kernel.
        registered: bool,
    },
    Threads(Pool),
}

impl Reader {
    /// A reader of at most `depth` objects at once, each of at most `object_bytes_max` bytes.
    /// `ring`: by io_uring, if the kernel has it.
    ///
    /// # Errors
    /// [`Error::Device`]: no thread can be started.
    pub fn new(
        store: &ObjectStore,
        depth: u32,
        object_bytes_max: usize,
        ring: bool,
    ) -> Result<Reader, Error> {
        let core = Arc::clone(&store.core);
        let mut slots: Vec<Slot> = (0..depth.max(1))
            .map(|_| Slot {
                buffer: Some(Aligned::zeroed(room_max(object_bytes_max))),
                under: None,
            })
            .collect();
        let made = ring && core.device.descriptor().is_some();
        let made = made
            .then(|| IoUring::new(depth.max(1)).ok())
            .flatten()
            .map(Box::new);
        let way = match made {
            Some(ring) => {
                let registered = register(&ring, &mut slots);
                Way::Ring { ring, registered }
            }
            None => Way::Threads({
                let core = Arc::clone(&core);
                Pool::new(move |at, bytes: &mut [u8]| core.device.read(at, bytes))?
            }),
        };
        Ok(Reader {
            free: (0..slots.len() as u32).rev().collect(),
            core,
            slots,
            done: VecDeque::new(),
            at_once: VecDeque::new(),
            way,
            object_bytes_max,
        })
    }

    /// Becomes readable when [`poll`](Self::poll) has a result.
    pub fn descriptor(&self) -> RawFd {
        match &self.way {
            Way::Ring { ring, .. } => ring.as_raw_fd(),
            Way::Threads(pool) => pool.bell.as_raw_fd(),
        }
    }

    /// Whether another read can be begun.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Reads that were begun and not reported yet.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Begins to read an object; [`start`](Self::start) passes it to the device. False: no slot is
    /// free.
    ///
    /// # Errors
    /// [`Error::NoSuchOwner`], [`Error::TooLarge`].
    pub fn submit(&mut self, owner: Owner, tag: u64) -> Result<bool, Error> {
        let table = self.core.tables.of(owner)?;
        if table.bytes_max as usize > self.object_bytes_max {
            return Err(Error::TooLarge {
                bytes: table.bytes_max as usize,
                limit: self.object_bytes_max,
            });
        }
        let Some(number) = self.free.pop() else {
            return Ok(false);
        };
        self.begin(number, owner, tag, table, 0);
        Ok(true)
    }

    fn begin(&mut self, number: u32, owner: Owner, tag: u64, table: Arc<Table>, missed: u32) {
        let slot = &mut self.slots[number as usize];
        let buffer = slot
            .buffer
            .as_mut()
            .expect("a free slot has its memory (R1)");
        loop {
            match self.core.look(&table, owner, buffer.bytes_mut()) {
                place @ (Place::Nowhere | Place::Here(_)) => {
                    let place = match place {
                        Place::Here(found) => Some((found.from, found.to)),
                        _ => None,
                    };
                    let known = AtOnce {
                        tag,
                        owner,
                        number,
                        place,
                    };
                    return self.at_once.push_back(known);
                }
                Place::Again => std::hint::spin_loop(),
                Place::Flash(look) => {
                    slot.under = Some(Under {
                        tag,
                        owner,
                        table,
                        look,
                        missed,
                    });
                    return self.push(number, look);
                }
            }
        }
    }

    fn push(&mut self, number: u32, look: Look) {
        let slot = &mut self.slots[number as usize];
        match &mut self.way {
            Way::Threads(pool) => {
                let buffer = slot.buffer.take().expect("it was just looked at (R1)");
                pool.give(number, look.cut.at, look.cut.bytes, buffer);
            }
            Way::Ring { ring, registered } => {
                let buffer = slot.buffer.as_mut().expect("it was just looked at (R1)");
                let start = buffer.bytes_mut().as_mut_ptr();
                let fd = types::Fd(self.core.device.descriptor().expect("a ring has a file"));
                let (at, bytes) = (look.cut.at, look.cut.bytes as u32);
                let entry = if *registered {
                    opcode::ReadFixed::new(fd, start, bytes, number as u16)
                        .offset(at)
                        .build()
                } else {
                    opcode::Read::new(fd, start, bytes).offset(at).build()
                };
                let entry = entry.user_data(u64::from(number));
                // SAFETY: the memory belongs to the slot, which is neither free nor dropped before
                // the kernel has answered (R1); the device lives as long as `core`. There are as
                // many places in the ring as slots.
                let pushed = unsafe { ring.submission().push(&entry) };
                assert!(pushed.is_ok(), "the ring has as many places as slots");
            }
        }
    }

    /// Passes submitted reads to the device.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn start(&mut self) -> Result<(), Error> {
        self.enter(0)
    }

    /// As [`start`](Self::start), and waits until a read is done, if any is in flight.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait(&mut self) -> Result<(), Error> {
        let nothing = self.at_once.is_empty() && self.done.is_empty();
        self.enter(usize::from(nothing && self.under_way() > 0))
    }

    fn enter(&mut self, wanted: usize) -> Result<(), Error> {
        match &mut self.way {
            Way::Threads(pool) => {
                if wanted > 0 {
                    let (number, buffer, result) = pool.wait()?;
                    self.slots[number as usize].buffer = Some(buffer);
                    self.done.push_back((number, result));
                }
                Ok(())
            }
            Way::Ring { ring, .. } => loop {
                match ring.submit_and_wait(wanted) {
                    Ok(_) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::device("reading from flash")(error)),
                }
            },
        }
    }

    /// Reports all finished reads to `tell`; returns their number. Reads that found their object
    /// moved are begun again: call [`start`](Self::start) afterwards.
    pub fn poll(&mut self, mut tell: impl FnMut(Completed<'_>)) -> usize {
        self.gather();
        let mut told = 0;
        while let Some(known) = self.at_once.pop_front() {
            let AtOnce {
                tag,
                owner,
                number,
                place,
            } = known;
            let buffer = self.slots[number as usize].buffer.as_ref();
            let bytes = place.zip(buffer);
            let bytes = bytes.and_then(|((from, to), buffer)| buffer.bytes().get(from..to));
            tell(Completed {
                tag,
                owner,
                result: Ok(bytes),
            });
            self.free.push(number);
            told += 1;
        }
        while let Some((number, result)) = self.done.pop_front() {
            told += usize::from(self.settle(number, result, &mut tell));
        }
        told
    }

    /// Ends one read. False: it was begun again.
    fn settle(
        &mut self,
        number: u32,
        result: io::Result<()>,
        tell: &mut impl FnMut(Completed<'_>),
    ) -> bool {
        let slot = &mut self.slots[number as usize];
        let Under {
            tag,
            owner,
            table,
            look,
            mut missed,
        } = slot
            .under
            .take()
            .expect("what has ended was under way (R1)");
        let buffer = slot.buffer.as_ref().expect("it came back (R1)");
        let bytes = &buffer.bytes()[..look.cut.bytes];
        let result = match result {
            Err(error) => Err(Error::device("reading an object from flash")(error)),
            Ok(()) => match self.core.check(&table, owner, &look, bytes) {
                Some(found) => Ok(bytes.get(found.from..found.to)),
                None => {
                    missed += u32::from(self.core.is_still(&table, owner, &look));
                    if missed < crate::store::ATTEMPTS {
                        self.begin(number, owner, tag, table, missed);
                        return false;
                    }
                    Err(Error::Damaged {
                        owner,
                        sector: look.location,
                    })
                }
            },
        };
        tell(Completed { tag, owner, result });
        self.free.push(number);
        true
    }

    /// Collects the reads that the kernel or the threads have ended.
    fn gather(&mut self) {
        match &mut self.way {
            Way::Ring { ring, .. } => {
                for entry in ring.completion() {
                    let number = entry.user_data() as u32;
                    let wanted = self.slots[number as usize].under.as_ref();
                    let wanted = wanted.map_or(0, |under| under.look.cut.bytes);
                    let result = match entry.result() {
                        error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                        bytes if bytes as usize == wanted => Ok(()),
                        _ => Err(io::ErrorKind::UnexpectedEof.into()),
                    };
                    self.done.push_back((number, result));
                }
            }
            Way::Threads(pool) => {
                while let Some((number, buffer, result)) = pool.take() {
                    self.slots[number as usize].buffer = Some(buffer);
                    self.done.push_back((number, result));
                }
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // R1: the kernel may still write into our memory.
        if let Way::Ring { ring, .. } = &mut self.way {
            let mut under = self
                .slots
                .iter()
                .filter(|slot| slot.under.is_some())
                .count();
            under -= self.done.len().min(under);
            while under > 0 {
                match ring.submit_and_wait(1) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // Requests that cannot be waited for may still write: leak the memory.
                    Err(_) => return std::mem::forget(std::mem::take(&mut self.slots)),
                }
                under -= ring.completion().count().min(under);
            }
        }
    }
}

/// Registers the slots' memory with the kernel, which then need not look it up for each read.
fn register(ring: &IoUring, slots: &mut [Slot]) -> bool {
    let vectors: Vec<libc::iovec> = slots
        .iter_mut()
        .filter_map(|slot| slot.buffer.as_mut())
        .map(|buffer| {
            let bytes = buffer.bytes_mut();
            libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            }
        })
        .collect();
    // SAFETY: the memory belongs to the slots, whose buffers are never replaced while the ring
    // exists: with a ring they are never given away.
    unsafe { ring.submitter().register_buffers(&vectors) }.is_ok()
}
