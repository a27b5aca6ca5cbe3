//! Large reads and writes in several parts at once: by io_uring, or by threads where the kernel
//! offers none.
//!
//! **Invariants**
//! - Q1: a call returns only after every part that was handed to the kernel has completed, even
//!   after a failure: the kernel never holds a pointer into memory that the caller has back.
//! - Q2: the directory stays locked until the last request has ended, also when the process was
//!   killed: the kernel frees a ring, and the files registered with it, after its requests. A
//!   killed server's write cannot come after its successor's.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ring::{Direction, Request, Ring};

/// Bytes of a part: large enough for full bandwidth, small enough that a segment has several.
const PART_BYTES: usize = 512 << 10;
/// Parts in flight at once; measured: fewer already reach the device's bandwidth.
const DEPTH: usize = 16;
/// Threads where there is no io_uring.
const THREADS: usize = 4;

/// Reads and writes in parts; see the module.
pub struct Parallel {
    /// Rings that are not in use now.
    rings: Mutex<Vec<Ring>>,
    /// Q2: the locked files.
    locked: Mutex<Vec<File>>,
    uring: bool,
}

impl Request {
    /// The rest of the request after its first `done` bytes have been transferred; `done` is less
    /// than its length.
    fn after(self, done: u32) -> Request {
        assert!(done < self.bytes, "something is left");
        Request {
            at: self.at + u64::from(done),
            // `done < bytes`, so the address stays within the memory.
            start: self.start.wrapping_add(done as usize),
            bytes: self.bytes - done,
        }
    }
}

/// Adds the parts of the memory at `start`, of `length` bytes.
fn split(parts: &mut Vec<Request>, at: u64, start: *mut u8, length: usize) {
    for from in (0..length).step_by(PART_BYTES) {
        parts.push(Request {
            at: at + from as u64,
            // `from < length`, so the address stays within the memory.
            start: start.wrapping_add(from),
            bytes: PART_BYTES.min(length - from) as u32,
        });
    }
}

impl Parallel {
    /// `uring`: use it if the kernel offers it.
    pub fn new(uring: bool) -> Parallel {
        let ring = if uring {
            Ring::plain(DEPTH as u32).ok()
        } else {
            None // the caller wants threads
        };
        Parallel {
            uring: ring.is_some(),
            rings: Mutex::new(ring.into_iter().collect()),
            locked: Mutex::new(Vec::new()),
        }
    }

    /// Q2: from now on every ring refers to these locked files. To be called before the disk is
    /// used.
    ///
    /// # Errors
    /// The kernel does not support it.
    pub fn hold(&self, locked: Vec<File>) -> io::Result<()> {
        for ring in &*lock(&self.rings) {
            ring.refer(&locked)?;
        }
        *lock(&self.locked) = locked;
        Ok(())
    }

    /// A ring that is not in use, or a new one. `None`: threads are wanted, or the process has no
    /// descriptor or memory for a ring now, which is no failure of the disk.
    fn ring(&self) -> Option<Ring> {
        if !self.uring {
            return None;
        }
        let kept = lock(&self.rings).pop();
        kept.or_else(|| {
            let ring = Ring::plain(DEPTH as u32).ok()?;
            ring.refer(&lock(&self.locked)).ok()?;
            Some(ring)
        })
    }

    /// Whether it uses io_uring.
    pub fn is_uring(&self) -> bool {
        self.uring
    }

    /// Whether a transfer of so many bytes is worth splitting.
    pub fn pays(bytes: usize) -> bool {
        bytes > PART_BYTES
    }

    /// Reads the whole range.
    ///
    /// # Errors
    /// The first part's that failed.
    pub fn read(&self, file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
        let Some(ring) = self.ring() else {
            return read_by_threads(file, at, into);
        };
        let mut waiting = Vec::new();
        split(&mut waiting, at, into.as_mut_ptr(), into.len());
        self.by_ring(ring, file, waiting, Direction::Read)
    }

    /// Writes slices one after another, from `at` on.
    ///
    /// # Errors
    /// The first part's that failed.
    pub fn write(&self, file: &File, mut at: u64, slices: &[&[u8]]) -> io::Result<()> {
        let ring = self.ring();
        let mut waiting = Vec::new();
        for bytes in slices {
            if ring.is_some() {
                split(&mut waiting, at, bytes.as_ptr().cast_mut(), bytes.len());
            } else {
                write_by_threads(file, at, bytes)?;
            }
            at += bytes.len() as u64;
        }
        match ring {
            Some(ring) => self.by_ring(ring, file, waiting, Direction::Write),
            None => Ok(()),
        }
    }

    /// Transfers all waiting parts. A write only reads from the memory. The caller borrows the
    /// memory of all parts until this returns.
    fn by_ring(
        &self,
        mut ring: Ring,
        file: &File,
        mut waiting: Vec<Request>,
        direction: Direction,
    ) -> io::Result<()> {
        waiting.reverse();
        let mut under_way: [Option<Request>; DEPTH] = [None; DEPTH];
        let mut count = 0;
        let mut failure: Option<io::Error> = None;
        while count > 0 || failure.is_none() && !waiting.is_empty() {
            for (number, place) in under_way.iter_mut().enumerate() {
                if place.is_some() || failure.is_some() {
                    continue;
                }
                let Some(part) = waiting.pop() else {
                    break;
                };
                // SAFETY: the parts lie in slices that are borrowed until we return, and we return
                // after all answers (Q1); the file is borrowed as well.
                unsafe { ring.push(direction, file.as_raw_fd(), part, number as u32) };
                *place = Some(part);
                count += 1;
            }
            match ring.enter(1) {
                Ok(()) => {}
                // The kernel is short of memory for the moment: parts that it accepted complete,
                // the rest is submitted again.
                Err(error) if matches!(error.raw_os_error(), Some(EBUSY | EAGAIN)) => {}
                Err(error) => panic!("io_uring can't be waited on: {error}"), // Q1 could not be kept
            }
            for (number, result) in ring.answers() {
                let Some(part) = under_way[number as usize].take() else {
                    continue;
                };
                count -= 1;
                match result {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => waiting.push(part),
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                    Ok(0) => {
                        failure.get_or_insert(io::ErrorKind::UnexpectedEof.into());
                    }
                    Ok(done) if done < part.bytes => waiting.push(part.after(done)),
                    Ok(_) => {}
                }
            }
        }
        lock(&self.rings).push(ring);
        failure.map_or(Ok(()), Err)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const EBUSY: i32 = 16;
const EAGAIN: i32 = 11;

/// Bytes that one thread transfers at once.
fn share(bytes: usize) -> usize {
    bytes.div_ceil(THREADS).max(1).next_multiple_of(PART_BYTES)
}

fn write_by_threads(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    let share = share(bytes.len());
    by_threads(at, share, bytes.chunks(share), |part, at| {
        file.write_all_at(part, at)
    })
}

fn read_by_threads(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
    let share = share(into.len());
    by_threads(at, share, into.chunks_mut(share), |part, at| {
        file.read_exact_at(part, at)
    })
}

/// Transfers parts of `share` bytes from `at` on: by this thread, and by others as far as the
/// system allows more threads.
fn by_threads<P: Send>(
    at: u64,
    share: usize,
    parts: impl ExactSizeIterator<Item = P> + Send,
    transfer: impl Fn(P, u64) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let others = parts.len().clamp(1, THREADS) - 1;
    let parts = Mutex::new(parts.enumerate());
    let work = || {
        loop {
            let next = lock(&parts).next();
            let Some((index, part)) = next else {
                return Ok(());
            };
            transfer(part, at + (index * share) as u64)?;
        }
    };
    std::thread::scope(|scope| {
        let new = || std::thread::Builder::new().spawn_scoped(scope, work);
        let threads: Vec<_> = (0..others).map_while(|_| new().ok()).collect();
        let mine = work();
        threads.into_iter().map(joined).fold(mine, Result::and)
    })
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, io::Result<()>>) -> io::Result<()> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where io_uring is forbidden, as in many containers, one value of 700 KB ended the server:
    /// such a write has a part that may be empty, and no thread has a share of it.
    #[test]
    fn parts_may_be_empty() {
        for uring in [true, false] {
            let file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..3 * PART_BYTES + 4096).map(|n| (n / 7) as u8).collect();
            let (front, back) = bytes.split_at(PART_BYTES);
            let parallel = Parallel::new(uring);
            parallel
                .write(&file, 0, &[&[], front, &[], back, &[]])
                .unwrap();
            let mut found = vec![0; bytes.len()];
            parallel.read(&file, 0, &mut found).unwrap();
            assert!(found == bytes, "{uring}");
            parallel.read(&file, 0, &mut []).unwrap();
        }
    }

    /// A process without a free descriptor got an error from the ring that it could not make. The
    /// store took it for one of its disk, and wrote nothing more until a restart.
    #[test]
    fn no_room_for_another_ring_is_no_failure_of_the_disk() {
        let name = "parallel::tests::no_room_for_another_ring";
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", name])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&alone.stdout);
        assert!(said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "leaves no descriptors for other tests: run by the one above, in its own process"]
    fn no_room_for_another_ring() {
        let file = tempfile::tempfile().unwrap();
        let parallel = Parallel::new(true);
        let bytes = vec![7; 3 * PART_BYTES];
        let in_use = std::mem::take(&mut *lock(&parallel.rings));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let none = rustix::process::Rlimit {
            current: Some(0),
            ..limit
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let written = parallel.write(&file, 0, &[&bytes]);
        let mut found = vec![0; bytes.len()];
        let read = parallel.read(&file, 0, &mut found);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        assert!(written.is_ok() && read.is_ok(), "{written:?} {read:?}");
        assert!(found == bytes);
        drop(in_use);
    }
}
