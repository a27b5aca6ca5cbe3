//! Many reads of spans of a device at once, without waiting for each: by io_uring, or by a few
//! threads if the kernel has no io_uring.
//!
//! **Invariants**
//! - P1: memory that was handed to the kernel or to a thread belongs to it until it answers: a
//!   place is free or in flight, and a dropped reader waits for all places in flight.
//! - P2: every read that was begun is reported exactly once, with all its bytes or an error.
//!
//! **Concurrency** a reader belongs to one thread. Its [`descriptor`](SpanReader::descriptor)
//! becomes readable when a read is done.
//!
//! Paper: [Badam11 §4, Figure 2]: flash reaches its full rate only with many requests at once.

use crate::device::Device;
use crate::error::Error;
use crate::memory::{Aligned, Cut};
use crate::pool::Pool;
use crate::ring::{Direction, Request, Ring};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Memory that a place keeps between reads, in bytes; more is released.
const KEPT_BYTES: usize = 16 << 10;

/// Result of a read.
#[derive(Debug)]
pub struct Span<'r> {
    /// The tag that was given to [`SpanReader::submit`].
    pub tag: u64,
    pub result: io::Result<&'r [u8]>,
}

/// A read in flight.
#[derive(Clone, Copy)]
struct Under {
    tag: u64,
    cut: Cut,
    /// Requested bytes.
    wanted: usize,
}

struct Place {
    /// `None`: a thread has it, or none was needed yet.
    buffer: Option<Aligned>,
    under: Option<Under>,
}

/// See the file's head.
pub struct SpanReader {
    device: Arc<dyn Device>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places whose reads have ended, with results.
    done: VecDeque<(u32, io::Result<()>)>,
    way: Way,
}

enum Way {
    Ring(Ring),
    Threads(Pool),
}

impl SpanReader {
    /// A reader of at most `depth` spans at once. `ring`: by io_uring, if the kernel has it.
    ///
    /// # Errors
    /// [`Error::Device`]: no thread can be started.
    pub fn new(device: Arc<dyn Device>, depth: u32, ring: bool) -> Result<SpanReader, Error> {
        let depth = depth.max(1);
        let made = ring.then(|| Ring::cooperative(depth).ok());
        SpanReader::by(device, depth, made.flatten())
    }

    /// A reader that uses only the features that every io_uring has: to test these on a newer
    /// kernel.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn by_plain_ring(device: Arc<dyn Device>, depth: u32) -> Result<SpanReader, Error> {
        let depth = depth.max(1);
        SpanReader::by(device, depth, Ring::plain(depth).ok())
    }

    fn by(device: Arc<dyn Device>, depth: u32, made: Option<Ring>) -> Result<SpanReader, Error> {
        let made = made.filter(|_| device.descriptor().is_some());
        let way = match made {
            Some(ring) => Way::Ring(ring),
            None => Way::Threads({
                let device = Arc::clone(&device);
                Pool::new(move |at, bytes: &mut [u8]| device.read_at(at, bytes))?
            }),
        };
        let none = || Place {
            buffer: None,
            under: None,
        };
        Ok(SpanReader {
            device,
            places: (0..depth).map(|_| none()).collect(),
            free: (0..depth).rev().collect(),
            done: VecDeque::new(),
            way,
        })
    }

    /// Becomes readable when [`poll`](Self::poll) has a result.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Ring(ring) => ring.as_fd(),
            Way::Threads(pool) => pool.bell.as_fd(),
        }
    }

    /// Whether it reads by io_uring.
    pub fn is_ring(&self) -> bool {
        matches!(self.way, Way::Ring(_))
    }

    /// Whether another read can be begun.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Reads that were begun and not reported yet.
    pub fn under_way(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Begins to read `bytes` bytes from byte `at` of the device on; [`start`](Self::start) passes
    /// it to the device. Returns false if no place is free.
    pub fn submit(&mut self, at: u64, bytes: usize, tag: u64) -> bool {
        let Some(number) = self.free.pop() else {
            return false;
        };
        let cut = Cut::new(at, bytes, self.device.alignment());
        let place = &mut self.places[number as usize];
        let enough = |buffer: &Aligned| buffer.bytes().len() >= cut.bytes;
        if !place.buffer.as_ref().is_some_and(enough) {
            place.buffer = Some(Aligned::zeroed(cut.bytes.max(KEPT_BYTES)));
        }
        place.under = Some(Under {
            tag,
            cut,
            wanted: bytes,
        });
        self.push(number, cut);
        true
    }

    fn push(&mut self, number: u32, cut: Cut) {
        let place = &mut self.places[number as usize];
        match &mut self.way {
            Way::Threads(pool) => {
                let buffer = place.buffer.take().expect("it was just made (P1)");
                pool.give(number, cut.at, cut.bytes, buffer);
            }
            Way::Ring(ring) => {
                let buffer = place.buffer.as_mut().expect("it was just made (P1)");
                let fd = self.device.descriptor().expect("a ring has a file");
                let request = Request {
                    at: cut.at,
                    start: buffer.bytes_mut().as_mut_ptr(),
                    bytes: cut.bytes as u32,
                };
                // SAFETY: the memory belongs to the place, which is neither free nor dropped before
                // the kernel has answered (P1), and has at least `cut.bytes` bytes; the device
                // lives as long as the reader.
                unsafe { ring.push(Direction::Read, fd, request, number) };
            }
        }
    }

    /// Passes submitted reads to the device.
    ///
    /// # Errors
    /// [`Error::Device`]: it may be tried again.
    pub fn start(&mut self) -> Result<(), Error> {
        self.enter(0)
    }

    /// As [`start`](Self::start), and waits until a read is done, if any is in flight.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn wait(&mut self) -> Result<(), Error> {
        self.enter(usize::from(self.done.is_empty() && self.under_way() > 0))
    }

    fn enter(&mut self, wanted: usize) -> Result<(), Error> {
        match &mut self.way {
            Way::Threads(pool) => {
                if wanted > 0 {
                    let (number, buffer, result) = pool.wait()?;
                    self.places[number as usize].buffer = Some(buffer);
                    self.done.push_back((number, result));
                }
                Ok(())
            }
            Way::Ring(ring) => ring
                .enter(wanted)
                .map_err(Error::device("reading from flash")),
        }
    }

    /// Whether [`poll`](Self::poll) has a result. By io_uring that costs no system call.
    pub fn has_done(&mut self) -> bool {
        self.gather();
        !self.done.is_empty()
    }

    /// Reports all finished reads to `tell`; returns their number. Interrupted reads are begun
    /// again: call [`start`](Self::start) afterwards.
    pub fn poll(&mut self, mut tell: impl FnMut(Span<'_>)) -> usize {
        self.gather();
        let mut told = 0;
        while let Some((number, result)) = self.done.pop_front() {
            let place = &mut self.places[number as usize];
            let Under { tag, cut, wanted } =
                place.under.expect("what has ended was under way (P2)");
            if is_passing(&result) {
                self.push(number, cut);
                continue;
            }
            place.under = None;
            let buffer = place.buffer.as_mut().expect("it came back (P1)");
            if result.is_ok() && matches!(self.way, Way::Ring(_)) {
                let read = &mut buffer.bytes_mut()[..cut.bytes];
                self.device.decrypt(cut.at, read); // threads read by `read_at`
            }
            let bytes = buffer.bytes();
            tell(Span {
                tag,
                result: result.map(|()| &bytes[cut.skip..cut.skip + wanted]),
            });
            if bytes.len() > KEPT_BYTES {
                place.buffer = None;
            }
            self.free.push(number);
            told += 1;
        }
        told
    }

    /// Collects the reads that the kernel or the threads have ended.
    fn gather(&mut self) {
        match &mut self.way {
            Way::Ring(ring) => {
                for (number, result) in ring.answers() {
                    let under = self.places[number as usize].under;
                    let whole = under.map_or(0, |under| under.cut.bytes);
                    let result = match result {
                        Ok(bytes) if bytes as usize == whole => Ok(()),
                        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                        Err(error) => Err(error),
                    };
                    self.done.push_back((number, result));
                }
            }
            Way::Threads(pool) => {
                while let Some((number, buffer, result)) = pool.take() {
                    self.places[number as usize].buffer = Some(buffer);
                    self.done.push_back((number, result));
                }
            }
        }
    }
}

/// The read was only interrupted: the device has no fault.
fn is_passing(result: &io::Result<()>) -> bool {
    let kind = result.as_ref().err().map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
    )
}

impl std::fmt::Debug for SpanReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = if self.is_ring() {
            "io_uring"
        } else {
            "threads"
        };
        let places = self.places.len();
        write!(f, "SpanReader({} of {places}, {way})", self.under_way())
    }
}

impl Drop for SpanReader {
    fn drop(&mut self) {
        // P1: the kernel may still write into our memory. The threads are joined by their own end.
        self.gather();
        if let Way::Ring(ring) = &mut self.way {
            let mut under = self.places.len() - self.free.len() - self.done.len();
            while under > 0 {
                if ring.enter(1).is_err() {
                    // Requests that cannot be waited for may still write: leak the memory.
                    return std::mem::forget(std::mem::take(&mut self.places));
                }
                under -= ring.answers().count().min(under);
            }
        }
    }
}
