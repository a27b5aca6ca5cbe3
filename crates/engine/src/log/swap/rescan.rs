//! Results of searches for tombstones that may be dropped.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Result of the last search of a window.
#[derive(Default)]
struct Searched {
    /// Incarnation of the window that was searched. If the window has another one now, the result
    /// is void.
    incarnation: AtomicU32,
    /// Bytes of tombstones that had to stay, and bytes of tombstones that may be dropped.
    kept: AtomicU32,
    droppable: AtomicU32,
    /// Number of Swaps done at the time of the search, plus one; 0 = never searched.
    at: AtomicU64,
}

/// The results for all windows.
pub struct Rescan {
    windows: Box<[Searched]>,
    /// Window at which the search continues.
    cursor: AtomicUsize,
}

impl Rescan {
    pub fn new(windows: usize) -> Rescan {
        Rescan {
            windows: (0..windows).map(|_| Searched::default()).collect(),
            cursor: AtomicUsize::new(0),
        }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.windows) as u64
    }

    /// Notes the result of a search of a window, made after `done` Swaps.
    pub fn note(&self, window: u32, incarnation: u32, done: u64, kept: u32, droppable: u32) {
        let known = &self.windows[window as usize];
        known.incarnation.store(incarnation, Ordering::Relaxed);
        known.kept.store(kept, Ordering::Relaxed);
        known.droppable.store(droppable, Ordering::Relaxed);
        known.at.store(done + 1, Ordering::Relaxed);
    }

    /// Bytes of tombstones in a closed window that may be dropped, by the last search.
    pub fn droppable(&self, window: u32, incarnation: u32) -> u32 {
        let known = &self.windows[window as usize];
        if known.incarnation.load(Ordering::Relaxed) == incarnation
            && known.at.load(Ordering::Relaxed) != 0
        {
            known.droppable.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// True if a new search of the closed window could find more than the last one. `done`: Swaps
    /// done by now.
    pub fn is_wanted(&self, window: u32, incarnation: u32, done: u64) -> bool {
        let known = &self.windows[window as usize];
        let at = known.at.load(Ordering::Relaxed);
        if at == 0 || known.incarnation.load(Ordering::Relaxed) != incarnation {
            return true;
        }
        known.kept.load(Ordering::Relaxed) > 0 && at <= done
    }

    /// The window, counted from the first of `windows`, at which the search continues.
    pub fn cursor(&self, windows: usize) -> usize {
        self.cursor.load(Ordering::Relaxed) % windows.max(1)
    }

    pub fn set_cursor(&self, at: usize) {
        self.cursor.store(at, Ordering::Relaxed);
    }
}
