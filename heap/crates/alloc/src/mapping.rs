//! Anonymous memory of our own, which is returned to the system piece by piece.

use std::io;
use std::ptr::NonNull;

/// Memory that reads as zeros until it is written.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory, like a `Box`.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared, it is only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let none = libc::PROT_NONE;
        // SAFETY: new memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, none, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let made = Mapping { start, bytes };
        // This is done before the memory can be written: if the program locks future memory
        // (`mlockall`), the kernel would fill all of it.
        made.unlock();
        // A huge page would be charged whole for each used byte. Kernels without huge pages refuse
        // the advice, which is as good. SAFETY: advice about memory that was just mapped, and its
        // protection.
        let opened = unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(start.as_ptr().cast(), bytes, both) == 0
        };
        if !opened {
            return Err(io::Error::last_os_error());
        }
        Ok(made)
    }

    fn unlock(&self) {
        // SAFETY: does not change the content.
        unsafe { libc::munlock(self.start.as_ptr().cast(), self.bytes) };
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until this is dropped; changed only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped until this is dropped; borrowed by the caller alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Makes these bytes, whole pages, zeros again; they take no memory.
    pub fn discard(&mut self, from: usize, bytes: usize) {
        let part = self.bytes_mut()[from..from + bytes].as_mut_ptr();
        // SAFETY: a part of this mapping.
        let discarded = unsafe { libc::madvise(part.cast(), bytes, libc::MADV_DONTNEED) == 0 };
        if !discarded {
            self.unlock(); // the program has locked it since
            // SAFETY: as above. If it fails, the memory stays: no code relies on the zeros.
            unsafe { libc::madvise(part.cast(), bytes, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer borrowed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Counters that begin as zeros; those that are never written take no memory.
pub(crate) struct Counters<T> {
    mapping: Mapping,
    kind: std::marker::PhantomData<T>,
}

/// Atomic integers for which zero bytes are a valid value.
pub(crate) trait Counter {}
impl Counter for std::sync::atomic::AtomicU16 {}
impl Counter for std::sync::atomic::AtomicU32 {}

impl<T: Counter> Counters<T> {
    pub fn new(count: usize) -> io::Result<Counters<T>> {
        Ok(Counters {
            mapping: Mapping::new(count.max(1) * size_of::<T>())?,
            kind: std::marker::PhantomData,
        })
    }

    pub fn all(&self) -> &[T] {
        let bytes = self.mapping.bytes;
        // SAFETY: a page's alignment is more than enough, zeros are a value of each `Counter`, and
        // they are changed as atomics alone.
        unsafe {
            std::slice::from_raw_parts(self.mapping.start.as_ptr().cast(), bytes / size_of::<T>())
        }
    }
}
