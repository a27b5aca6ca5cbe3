//! Windows that have to stay as they are.
//!
//! **Invariants** swap::D6 and swap::D8: a window stays while the log's writer needs its bytes, and
//! while its side log can be given up.

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct Mark {
    /// Whether the window holds a survivor without a frame.
    unwritten: AtomicBool,
    /// Whether the window is part of a side log whose Swap is not durable (swap::D6).
    held: AtomicBool,
}

/// The marks of all windows.
pub struct Marks {
    windows: Box<[Mark]>,
}

impl Marks {
    pub fn new(windows: usize) -> Marks {
        Marks {
            windows: (0..windows).map(|_| Mark::default()).collect(),
        }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.windows) as u64
    }

    /// Whether the window holds no survivor that lacks a frame. One that does must stay as it is.
    pub fn is_written(&self, window: u32) -> bool {
        !self.windows[window as usize]
            .unwritten
            .load(Ordering::Acquire)
    }

    pub fn set_written(&self, window: u32, is_written: bool) {
        self.windows[window as usize]
            .unwritten
            .store(!is_written, Ordering::Release);
    }

    /// True if the window is part of a side log whose Swap is not durable (swap::D6).
    #[inline]
    pub fn is_held(&self, window: u32) -> bool {
        self.windows[window as usize].held.load(Ordering::Acquire)
    }

    /// Notes that the window becomes part of a side log.
    pub fn hold(&self, window: u32) {
        self.windows[window as usize]
            .held
            .store(true, Ordering::Release);
    }

    pub fn let_go(&self, window: u32) {
        self.set_written(window, true);
        self.windows[window as usize]
            .held
            .store(false, Ordering::Release);
    }
}
