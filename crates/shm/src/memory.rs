//! The shared memory: made by the server, mapped by both sides.
//!
//! **Invariants**
//! - M3: the memory object has its size for ever: it is sealed against change of its size before it
//!   is mapped, and the side that did not make it verifies that.
//! - M6: every access is within the mapping: positions are taken modulo the ring's size, and a copy
//!   is at most as long as the ring.

use crate::control::Control;
use crate::{RING_BYTES_MAX, RING_BYTES_MIN};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// The control words are in the first page.
const HEAD_BYTES: usize = 4 << 10;
const CONTROL_BYTES: usize = 512;
const _: () = assert!(size_of::<Control>() == CONTROL_BYTES);

/// A ring of the memory, by the side that writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    Client = 0,
    Server = 1,
}

/// The mapping; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    ring_bytes: usize,
}

// SAFETY: the mapping belongs to no thread; `Memory` is its only handle in this process.
unsafe impl Send for Memory {}

/// Bytes of the memory for one client.
pub const fn memory_bytes(ring_bytes: usize) -> usize {
    HEAD_BYTES + 2 * ring_bytes
}

impl Memory {
    /// Makes the memory, all of it at once: it is charged to this process's group now, and a lack
    /// of memory shows here.
    pub(crate) fn make(ring_bytes: usize) -> Result<(Memory, OwnedFd), Errno> {
        check(ring_bytes)?;
        let bytes = memory_bytes(ring_bytes) as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("duramen-rings", flags)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Memory::map(&fd, ring_bytes)?, fd))
    }

    /// Maps memory that the other side has made.
    pub(crate) fn adopt(fd: &OwnedFd, ring_bytes: usize) -> Result<Memory, Errno> {
        check(ring_bytes)?;
        // M3: memory without this seal could shrink under the mapping.
        let is_sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        let bytes = rustix::fs::fstat(fd)?.st_size;
        if !is_sealed || usize::try_from(bytes) != Ok(memory_bytes(ring_bytes)) {
            return Err(Errno::INVAL);
        }
        Memory::map(fd, ring_bytes)
    }

    /// All pages are mapped at once: they are resident from now on, and no request waits for a
    /// page fault.
    fn map(fd: impl AsFd, ring_bytes: usize) -> Result<Memory, Errno> {
        let (null, access) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        let (bytes, flags) = (
            memory_bytes(ring_bytes),
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe { rustix::mm::mmap(null, bytes, access, flags, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Memory { base, ring_bytes })
    }

    /// Gives all pages back to the system; both sides read zeros afterwards.
    pub(crate) fn give_back(&self) {
        // SAFETY: the mapping is this handle's, and shared: its bytes may change at any time
        // (shm::M2), and its words are atomics. It fails only for other kinds of mappings.
        let _ = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().cast(),
                memory_bytes(self.ring_bytes),
                rustix::mm::Advice::LinuxRemove,
            )
        };
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// The shared words of a ring.
    #[inline]
    pub(crate) fn control(&self, ring: Ring) -> &Control {
        // SAFETY: M6: both are in the first page of the mapping, which lives as long as `self`, and
        // are aligned. They are atomics, so that the other process may write them meanwhile.
        unsafe {
            self.base
                .add(ring as usize * CONTROL_BYTES)
                .cast::<Control>()
                .as_ref()
        }
    }

    /// The address of position `at` of a ring, and the bytes from there to the ring's end.
    #[inline]
    fn place(&self, ring: Ring, at: u64) -> (*mut u8, usize) {
        let within = at as usize & (self.ring_bytes - 1);
        let start = HEAD_BYTES + ring as usize * self.ring_bytes;
        (
            // `wrapping`: it is within the mapping (M6).
            self.base.as_ptr().wrapping_add(start + within),
            self.ring_bytes - within,
        )
    }

    /// Copies bytes into a ring, from position `at` on.
    ///
    /// # Panics
    /// If `bytes` is longer than the ring (M6).
    #[inline]
    pub(crate) fn put(&self, ring: Ring, at: u64, bytes: &[u8]) {
        assert!(bytes.len() <= self.ring_bytes);
        let (place, to_end) = self.place(ring, at);
        let (head, tail) = bytes.split_at(bytes.len().min(to_end));
        let (start, _) = self.place(ring, 0);
        // SAFETY: M6: both parts are within this ring. There is no reference to its bytes; the
        // other process may write them meanwhile, which spoils its own message only (shm::M2).
        unsafe {
            place.copy_from_nonoverlapping(head.as_ptr(), head.len());
            start.copy_from_nonoverlapping(tail.as_ptr(), tail.len());
        }
    }

    /// Copies bytes out of a ring, from position `at` on.
    ///
    /// # Panics
    /// If more bytes are wanted than the ring has (M6).
    #[inline]
    pub(crate) fn get(&self, ring: Ring, at: u64, out: &mut [u8]) {
        assert!(out.len() <= self.ring_bytes);
        let (place, to_end) = self.place(ring, at);
        let head_bytes = out.len().min(to_end);
        let (head, tail) = out.split_at_mut(head_bytes);
        let (start, _) = self.place(ring, 0);
        // SAFETY: as in `put`; the copies are whatever the other process wrote (shm::M2).
        unsafe {
            place.copy_to_nonoverlapping(head.as_mut_ptr(), head.len());
            start.copy_to_nonoverlapping(tail.as_mut_ptr(), tail.len());
        }
    }
}

fn check(ring_bytes: usize) -> Result<(), Errno> {
    let fits = (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes);
    if fits && ring_bytes.is_power_of_two() {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this handle's alone, and no reference into it outlives `self`.
        // It fails only for an address that is no mapping.
        let _ =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), memory_bytes(self.ring_bytes)) };
    }
}
