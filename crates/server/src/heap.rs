//! The C library's heap: its settings, made once at the start of the process, and what it holds.
//!
//! A server's large pieces of memory are few and live for a short time: values on their way in and
//! out, what waits for a frame. By default glibc keeps what was freed of them: it raises the size
//! from which on a piece is mapped alone (to 32 MiB), and gives each thread an arena of its own
//! that it seldom trims. After seconds of writes that was twice the budget of memory.
//!
//! Small pieces are freed in the midst of others, and glibc gives back only what lies at the end of
//! a heap. Queues of `MULTI`, watched keys and the slow log say how much they free ([`freed`]);
//! after a lot of it a thread gives back whole pages.
//!
//! **Concurrency**: [`settle`] is called before any thread is started, the others from any thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// From this many bytes on a piece of memory is mapped alone, and goes back to the system when it
/// is freed. Smaller pieces are what buffers of connections and batches keep and use again.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;
/// More free memory than this at the end of a heap goes back to the system.
#[cfg(target_env = "gnu")]
const FREE_BYTES: libc::c_int = 1 << 20;
/// Threads share so many heaps: reactors keep their buffers, so they seldom meet in one.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 4;

/// Lets freed memory go back to the system. Other C libraries do so by themselves.
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

/// Less than this is not worth counting.
const COUNTED_BYTES: usize = 4 << 10;
/// After so many bytes were freed in small pieces, pages are given back, if the heap keeps as much.
const TRIM_BYTES: usize = 8 << 20;
/// Before that the thread waits, as more is freed in a moment, or used again.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

static FREED: AtomicUsize = AtomicUsize::new(0);
static TRIMMING: AtomicBool = AtomicBool::new(false);

/// So many bytes were, or are about to be, freed in small pieces.
pub(crate) fn freed(bytes: usize) {
    if bytes < COUNTED_BYTES || FREED.fetch_add(bytes, Ordering::Relaxed) + bytes < TRIM_BYTES {
        return;
    }
    if TRIMMING.swap(true, Ordering::Relaxed) {
        return;
    }
    let thread = std::thread::Builder::new().name("heap".to_owned());
    if thread.spawn(trim).is_err() {
        TRIMMING.store(false, Ordering::Relaxed); // the next one tries again
    }
}

/// Gives back pages as long as much is freed.
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

/// What the heap holds, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub used_bytes: u64,
    /// Freed and kept.
    pub free_bytes: u64,
}

/// Zeros where the C library does not tell.
pub(crate) fn figures() -> Figures {
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
