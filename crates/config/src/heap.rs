//! The C library's heap: its settings, made once when the process starts, and its figures.
//!
//! A server's large allocations are few and live for a short time: values that are received or
//! sent, and data that waits for a frame. By default glibc keeps them after they are freed. It
//! raises the size from which an allocation is mapped alone (to 32 MiB), and gives each thread its
//! own arena, which it seldom trims. After seconds of writes that was twice the memory budget.
//!
//! Small allocations are freed between others, and glibc gives back only free memory at the end of
//! a heap. Queues of `MULTI`, watched keys, the slow log and the buffers of connections report the
//! bytes that they free (`freed`, [`Freed`]). After many such bytes, a thread gives back whole
//! pages.
//!
//! **Concurrency**: [`settle`] is called before any thread starts; any thread may call the others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// An allocation of at least this many bytes is mapped alone, and goes back to the system when it
/// is freed. Smaller ones are buffers of connections and batches, which are kept and used again.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;
/// Free memory at the end of a heap goes back to the system above this many bytes.
#[cfg(target_env = "gnu")]
const FREE_BYTES: libc::c_int = 1 << 20;
/// Number of heaps that all threads share: reactors keep their buffers, so they seldom contend.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 4;

/// Sets the heap to give freed memory back to the system. Other C libraries do so by default.
pub fn settle() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
        (libc::M_TRIM_THRESHOLD, FREE_BYTES),
        (libc::M_ARENA_MAX, ARENAS),
    ] {
        // SAFETY: it takes two integers and may be called at any time. A setting that is refused
        // stays as it was.
        let _ = unsafe { libc::mallopt(setting, value) };
    }
}

/// Smaller amounts are not counted.
const COUNTED_BYTES: usize = 4 << 10;
/// A thread reports its small amounts when they are this many bytes together.
const REPORTED_BYTES: usize = 64 << 10;
/// After this many bytes were freed in small allocations, free pages are given back, if the heap
/// keeps as many bytes.
const TRIM_BYTES: usize = 8 << 20;
/// The thread waits this long before it trims: more is often freed soon, or used again.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

static FREED: AtomicUsize = AtomicUsize::new(0);
static TRIMMING: AtomicBool = AtomicBool::new(false);

/// Counts bytes that were freed, or are about to be, in small allocations.
pub fn freed(bytes: usize) {
    if bytes < COUNTED_BYTES || FREED.fetch_add(bytes, Ordering::Relaxed) + bytes < TRIM_BYTES {
        return;
    }
    if TRIMMING.swap(true, Ordering::Relaxed) {
        return;
    }
    let thread = std::thread::Builder::new().name("heap".to_owned());
    if thread.spawn(trim).is_err() {
        TRIMMING.store(false, Ordering::Relaxed); // the next call tries again
    }
}

/// One thread's freed bytes: small amounts are collected, and reported together.
#[derive(Debug, Default)]
pub struct Freed {
    bytes: usize,
}

impl Freed {
    /// As [`freed`], for amounts of any size.
    #[inline]
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= REPORTED_BYTES {
            freed(std::mem::take(&mut self.bytes));
        }
    }
}

/// Gives back pages until little is freed.
fn trim() {
    loop {
        std::thread::sleep(TRIM_PAUSE);
        FREED.store(0, Ordering::Relaxed);
        #[cfg(target_env = "gnu")]
        if figures().free_bytes >= TRIM_BYTES as u64 {
            // SAFETY: it takes a number, locks what it changes, and gives back free pages only.
            unsafe { libc::malloc_trim(0) };
        }
        TRIMMING.store(false, Ordering::Relaxed);
        let more = FREED.load(Ordering::Relaxed) >= TRIM_BYTES;
        if !more || TRIMMING.swap(true, Ordering::Relaxed) {
            return;
        }
    }
}

/// Figures of the heap, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub used_bytes: u64,
    /// Freed but kept.
    pub free_bytes: u64,
}

/// Zeros where the C library has no such figures.
pub fn figures() -> Figures {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes nothing, locks what it reads, and returns numbers.
        let info = unsafe { libc::mallinfo2() };
        Figures {
            used_bytes: (info.uordblks + info.hblkhd) as u64,
            free_bytes: info.fordblks as u64,
        }
    }
    #[cfg(not(target_env = "gnu"))]
    Figures::default()
}
