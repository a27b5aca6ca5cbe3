//! io_uring: numbered reads and writes, and their answers. The only file that knows the kernel's
//! rings.
//!
//! **Invariants**
//! - G1: a ring has as many entries as its owner has requests in flight, so each request finds one.

use duramen_base::open::DESCRIPTOR_MIN;
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Largest batch that the kernel passes to the device request by request; it passes a larger batch
/// as a whole. Passing two requests one by one takes longer than all other work on a request, so a
/// batch of two gets a third request that does nothing.
const ONE_BY_ONE: usize = 2;
/// Ring entries for that no-op.
const PADS: u32 = 1;
/// Number of a no-op, if its completion is reported after all.
const PAD: u64 = u64::MAX;

/// The direction of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A request: these bytes of the file, and their memory. A write only reads from the memory.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub at: u64,
    pub start: *mut u8,
    pub bytes: u32,
}

/// A ring whose descriptor is not a standard one (open::P2). A ring cannot be moved to another
/// descriptor, so those with low ones are held until one has a higher one.
fn build(new: impl Fn() -> io::Result<IoUring>) -> io::Result<IoUring> {
    let mut low = Vec::new();
    loop {
        let ring = new()?;
        if ring.as_raw_fd() >= DESCRIPTOR_MIN {
            return Ok(ring);
        }
        low.push(ring);
    }
}

/// A ring; see the file's head.
pub(crate) struct Ring {
    ring: Box<IoUring>,
    /// Two requests are submitted together with a no-op whose completion the kernel does not
    /// report.
    pads: bool,
}

impl Ring {
    /// A ring for so many requests, by the features that every io_uring has.
    ///
    /// # Errors
    /// The kernel offers none.
    pub fn plain(depth: u32) -> io::Result<Ring> {
        let ring = Box::new(build(|| IoUring::new(depth))?);
        let pads = false;
        Ok(Ring { ring, pads })
    }

    /// A ring whose thread is not interrupted by completions, but finds them when it next enters
    /// the kernel, if the kernel can do that [Linux 5.19]; it pads batches of two.
    ///
    /// # Errors
    /// The kernel offers none.
    pub fn cooperative(depth: u32) -> io::Result<Ring> {
        let entries = depth + PADS;
        let ring = Box::new(build(|| {
            let made = IoUring::builder().setup_coop_taskrun().build(entries);
            made.or_else(|_| IoUring::new(entries))
        })?);
        let pads = ring.params().is_feature_skip_cqe_on_success();
        Ok(Ring { ring, pads })
    }

    /// From now on the ring refers to these files, in place of the previous ones, until the kernel
    /// frees it.
    ///
    /// # Errors
    /// The kernel does not support it.
    pub fn refer(&self, files: &[File]) -> io::Result<()> {
        let _ = self.ring.submitter().unregister_files(); // an error if there were none
        let files: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        if files.is_empty() {
            return Ok(());
        }
        self.ring.submitter().register_files(&files)
    }

    /// Queues a request under a number; [`enter`](Self::enter) passes it to the kernel.
    ///
    /// # Safety
    /// The file stays open, and the memory is the kernel's alone (to write: borrowed), until the
    /// request has been answered.
    pub unsafe fn push(&mut self, to: Direction, fd: RawFd, request: Request, number: u32) {
        let Request { at, start, bytes } = request;
        let fd = types::Fd(fd);
        let entry = match to {
            Direction::Read => opcode::Read::new(fd, start, bytes).offset(at).build(),
            Direction::Write => opcode::Write::new(fd, start, bytes).offset(at).build(),
        };
        // SAFETY: the caller's promise.
        let pushed = unsafe {
            let mut queue = self.ring.submission();
            queue.push(&entry.user_data(u64::from(number)))
        };
        assert!(
            pushed.is_ok(),
            "the ring has as many entries as requests (G1)"
        );
    }

    /// Passes queued requests to the kernel, and waits for so many answers.
    ///
    /// # Errors
    /// The kernel's: some of the requests may stay queued.
    pub fn enter(&mut self, wanted: usize) -> io::Result<()> {
        loop {
            let queued = self.ring.submission().len();
            if wanted == 0 && queued == 0 {
                return Ok(());
            }
            if self.pads && queued == ONE_BY_ONE {
                let nothing = opcode::Nop::new().build().user_data(PAD);
                let nothing = nothing.flags(squeue::Flags::SKIP_SUCCESS);
                // SAFETY: it reads and writes nothing. If there is no place for it, it is not
                // needed.
                let _ = unsafe { self.ring.submission().push(&nothing) };
            }
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The requests that the kernel has ended since the last call: their numbers, and the bytes
    /// that were transferred.
    pub fn answers(&mut self) -> impl Iterator<Item = (u32, io::Result<u32>)> {
        let told = self.ring.completion();
        told.filter(|entry| entry.user_data() != PAD).map(|entry| {
            let result = match entry.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                bytes => Ok(bytes as u32),
            };
            (entry.user_data() as u32, result)
        })
    }
}

/// Becomes readable when there are answers.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it lives, and so as long as this
        // borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}
