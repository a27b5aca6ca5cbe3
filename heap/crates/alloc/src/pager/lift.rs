//! Lift: a pipe with the contents of dirty pages at the moment of their eviction.
//!
//! **Invariants**
//! - L1: the pipe holds references to the pages, not copies: a write of a thread before its
//!   processor has flushed the mapping is read from the pipe; afterwards a write faults. So no
//!   write is lost, and no page has to be write-protected first: that would interrupt the other
//!   processors once for each page instead of once for all of them.
//! - L2: a pipe is empty between two uses.
//!
//! Paper: none; [Badam11 §3.2] protects each page.

use duramen_base::open::above_standard;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};

/// Most pages of one use.
pub(crate) const PAGES: usize = 32;

/// Read at once: 32 objects of 512 bytes, or four pages.
const BUFFER_BYTES: usize = 4 * super::PAGE_BYTES;

/// The pipe and a read buffer; see the file's head.
pub(crate) struct Lift {
    from: File,
    to: File,
    /// `read` is the part of it that was read and not yet returned.
    buffer: Box<[u8]>,
    read: Range<usize>,
    /// Bytes that are in the pipe.
    due: usize,
}

impl Lift {
    /// `None`: the kernel refuses.
    pub fn new() -> Option<Lift> {
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors, which have no other owner.
        let (from, to) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return None;
            }
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        };
        let (from, to) = (above_standard(from).ok()?, above_standard(to).ok()?);
        let bytes = (PAGES * super::PAGE_BYTES) as i32;
        // SAFETY: a plain system call.
        let has = unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
        (has >= bytes).then(|| Lift {
            from,
            to,
            buffer: vec![0; BUFFER_BYTES].into(),
            read: 0..0,
            due: 0,
        })
    }

    /// Puts references to these spans (address, bytes) into the pipe; each lies within a page that
    /// is shown and stays so until this returns.
    ///
    /// # Errors
    /// Those of the kernel: no reference was made (L2).
    pub fn refer(&mut self, spans: impl Iterator<Item = (usize, usize)>) -> io::Result<()> {
        assert!(self.due == 0 && self.read.is_empty(), "it is empty (L2)");
        let mut vectors = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; PAGES];
        let (mut count, mut whole) = (0, 0);
        for (address, bytes) in spans {
            vectors[count] = libc::iovec {
                iov_base: address as *mut _,
                iov_len: bytes,
            };
            count += 1;
            whole += bytes;
        }
        let flags = libc::SPLICE_F_NONBLOCK;
        // SAFETY: the kernel reads from spans of pages that the caller owns.
        let done = unsafe { libc::vmsplice(self.to.as_raw_fd(), vectors.as_ptr(), count, flags) };
        if usize::try_from(done) == Ok(whole) {
            self.due = whole;
            return Ok(());
        }
        let error = io::Error::last_os_error();
        let mut thrown_away = [0; 512];
        while self
            .from
            .read(&mut thrown_away)
            .is_ok_and(|bytes| bytes > 0)
        {}
        Err(error)
    }

    /// Content of the next span. None of the referred pages is shown any more.
    ///
    /// # Panics
    /// If it is missing: the program's data would be lost.
    pub fn next(&mut self, bytes: usize) -> &[u8] {
        if self.read.len() < bytes {
            self.read_on(bytes);
        }
        let start = self.read.start;
        self.read.start += bytes;
        &self.buffer[start..start + bytes]
    }

    /// Reads as much as there is room for; at least `bytes` are available then.
    fn read_on(&mut self, bytes: usize) {
        self.buffer.copy_within(self.read.clone(), 0);
        self.read = 0..self.read.len();
        while self.read.len() < bytes {
            let room = (self.buffer.len() - self.read.end).min(self.due);
            let into = &mut self.buffer[self.read.end..self.read.end + room];
            let read = match self.from.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.expect("what a pipe refers to can be read (L1)"),
            };
            assert!(read > 0, "what a pipe refers to is there (L1)");
            self.read.end += read;
            self.due -= read;
        }
    }
}
