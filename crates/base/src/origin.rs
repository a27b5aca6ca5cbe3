//! Tells that this process is a fork of the one that made something. The threads of the thing do
//! not exist here, its locks may be held for ever, and its files are the parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process of the program and this one. Relaxed: a child begins with one
/// thread, and its number never changes again.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        static AT_FORK: Once = Once::new();
        // SAFETY: the handler only adds to an atomic.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(count_fork));
        });
        Origin(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a fork of that one.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}
