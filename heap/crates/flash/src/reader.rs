//! Many reads of objects at once, without waiting for each.
//!
//! **Invariants**
//! - R1: every read that was begun is reported exactly once: a place is free, in flight, or has an
//!   answer that is not reported yet.
//!
//! **Concurrency** a reader belongs to one thread. Its [`descriptor`](Reader::descriptor) becomes
//! readable when a read of the device is done.
//!
//! Paper: [Badam11 §4, Figure 2]: flash reaches its full rate only with many requests at once.

use crate::core::{ATTEMPTS, Core, Look, Place};
use crate::error::Error;
use crate::layout::{Owner, room_max};
use crate::store::ObjectStore;
use crate::table::Table;
use duramen_disk::{Aligned, SpanReader};
use std::os::fd::BorrowedFd;
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

/// An object that is being read.
struct Request {
    tag: u64,
    owner: Owner,
    table: Arc<Table>,
    /// Reads that found unexpected bytes.
    missed: u32,
}

/// A request without a read of the device: the object's bytes, if it exists.
type Answered = (Request, Option<Box<[u8]>>);

/// See the file's head.
pub struct Reader {
    core: Arc<Core>,
    spans: SpanReader,
    /// Requests in flight, by the tags of their spans.
    in_flight: Vec<Option<(Request, Look)>>,
    free: Vec<usize>,
    answered: Vec<Answered>,
    /// Memory for objects that are not on flash yet.
    copy: Aligned,
    object_bytes_max: usize,
}

impl Reader {
    /// A reader of at most `depth` objects at once, each of at most `object_bytes_max` bytes.
    /// `ring`: by io_uring, if the kernel has it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(
        store: &ObjectStore,
        depth: u32,
        object_bytes_max: usize,
        ring: bool,
    ) -> Result<Reader, duramen_disk::Error> {
        let depth = depth.max(1);
        let core = Arc::clone(&store.core);
        Ok(Reader {
            spans: SpanReader::new(Arc::clone(&core.device), depth, ring)?,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            answered: Vec::new(),
            copy: Aligned::zeroed(room_max(object_bytes_max)),
            object_bytes_max,
            core,
        })
    }

    /// Becomes readable when [`poll`](Self::poll) has a result of the device.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.spans.descriptor()
    }

    /// Whether another read can be begun.
    pub fn has_room(&self) -> bool {
        self.under_way() < self.in_flight.len()
    }

    /// Reads that were begun and not reported yet.
    pub fn under_way(&self) -> usize {
        self.in_flight.len() - self.free.len() + self.answered.len()
    }

    /// Begins to read an object; [`start`](Self::start) passes the read to the device. Returns
    /// false if no place is free.
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
        if !self.has_room() {
            return Ok(false);
        }
        self.begin(Request {
            tag,
            owner,
            table,
            missed: 0,
        });
        Ok(true)
    }

    /// Begins a request. The caller has found a free place.
    fn begin(&mut self, request: Request) {
        loop {
            let copy = self.copy.bytes_mut();
            match self.core.look(&request.table, request.owner, copy) {
                Place::Again => std::hint::spin_loop(),
                Place::Nowhere => return self.answered.push((request, None)),
                Place::Here(found) => {
                    let bytes = copy[found.from..found.to].into();
                    return self.answered.push((request, Some(bytes)));
                }
                Place::Flash(look) => {
                    let number = self.free.pop().expect("the caller has looked (R1)");
                    let (at, bytes) = (look.cut.at, look.cut.bytes);
                    let begun = self.spans.submit(at, bytes, number as u64);
                    assert!(begun, "there are as many spans as places (R1)");
                    self.in_flight[number] = Some((request, look));
                    return;
                }
            }
        }
    }

    /// Passes submitted reads to the device.
    ///
    /// # Errors
    /// As [`SpanReader::start`].
    pub fn start(&mut self) -> Result<(), duramen_disk::Error> {
        self.spans.start()
    }

    /// As [`start`](Self::start), and waits until a read is done, if any is in flight.
    ///
    /// # Errors
    /// As [`SpanReader::wait`].
    pub fn wait(&mut self) -> Result<(), duramen_disk::Error> {
        if self.answered.is_empty() {
            self.spans.wait()
        } else {
            self.spans.start()
        }
    }

    /// Reports all finished reads to `tell`; returns their number. Reads that found their object
    /// moved are begun again: call [`start`](Self::start) afterwards.
    pub fn poll(&mut self, mut tell: impl FnMut(Completed<'_>)) -> usize {
        let mut told = self.answered.len();
        for (Request { tag, owner, .. }, bytes) in self.answered.drain(..) {
            let result = Ok(bytes.as_deref());
            tell(Completed { tag, owner, result });
        }
        let (core, in_flight, free) = (&self.core, &mut self.in_flight, &mut self.free);
        let mut again = Vec::new();
        self.spans.poll(|span| {
            let number = span.tag as usize;
            let ended = in_flight[number].take();
            let (mut request, look) = ended.expect("what has ended was in flight (R1)");
            free.push(number);
            let Request { tag, owner, .. } = request;
            let result = match span.result {
                Err(error) => Err(Error::device("reading an object from flash")(error)),
                Ok(bytes) => match core.check(&request.table, owner, &look, bytes) {
                    Some(found) => Ok(bytes.get(found.from..found.to)),
                    None => {
                        let is_still = core.is_still(&request.table, owner, &look);
                        request.missed += u32::from(is_still);
                        if request.missed < ATTEMPTS {
                            return again.push(request);
                        }
                        let sector = look.location;
                        Err(Error::Damaged { owner, sector })
                    }
                },
            };
            tell(Completed { tag, owner, result });
            told += 1;
        });
        for request in again {
            self.begin(request);
        }
        told
    }
}
