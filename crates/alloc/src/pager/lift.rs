//! What dirty pages held at the moment when they were taken away.
//!
//! **Invariants**
//! - L1: the pipe holds references to the pages, not copies: what a thread writes until its processor has forgotten the page is read from the
//!   pipe; afterwards it faults. So no write is lost, and no page has to be write-protected first: that would interrupt the other
//!   processors once for each page instead of once for all of them.
//! - L2: a pipe is empty between two uses.
//!
//! Paper: none; [Badam11 §3.2] protects each page.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

/// Pages of one use.
pub(crate) const PAGES: usize = 32;

/// See the file's head.
pub(crate) struct Lift {
    from: File,
    to: File,
}

impl Lift {
    /// `None`: the kernel does not let us.
    pub fn new() -> Option<Lift> {
        let mut ends = [0; 2];
        // SAFETY: makes two descriptors, which are nobody else's.
        let (from, to) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return None;
            }
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        };
        let bytes = (PAGES * super::PAGE_BYTES) as i32;
        // SAFETY: a plain system call.
        let has = unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
        (has >= bytes).then_some(Lift { from, to })
    }

    /// Refers to these spans (address, bytes), each within a page that is shown and stays so until this returns.
    ///
    /// # Errors
    /// The kernel's: nothing is referred to (L2).
    pub fn refer(&mut self, spans: impl Iterator<Item = (usize, usize)>) -> io::Result<()> {
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

    /// What the next span held, whose page is not shown any more.
    ///
    /// # Panics
    /// If it is not there: the program's data would be lost.
    pub fn next(&mut self, into: &mut [u8]) {
        let read = self.from.read_exact(into);
        read.expect("what a pipe refers to can be read (L1)");
    }
}
