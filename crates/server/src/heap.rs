//! The C library's heap: its settings, made once at the start of the process, and what it holds.
//!
//! A server's large pieces of memory are few and live for a short time: values on their way in and
//! out, what waits for a frame. By default glibc keeps what was freed of them: it raises the size
//! from which on a piece is mapped alone (to 32 MiB), and gives each thread an arena of its own
//! that it seldom trims. After seconds of writes that was twice the budget of memory.
//!
//! **Concurrency**: [`settle`] is called before any thread is started, [`figures`] from any thread.

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
