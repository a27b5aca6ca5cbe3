//! Entries that come to the log by a load or in side logs, and not from its heads.

use duramen_base::sync::{AtomicBool, AtomicUsize, Ordering};

/// Whether such entries come now.
#[derive(Default)]
pub struct Arrivals {
    /// Segments are being loaded.
    loading: AtomicBool,
    /// Side logs that are being filled.
    sides: AtomicUsize,
}

impl Arrivals {
    /// True while segments are being loaded.
    pub fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire)
    }

    pub fn set_loading(&self, loading: bool) {
        self.loading.store(loading, Ordering::Release);
    }

    /// True while a side log is being filled.
    pub fn has_sides(&self) -> bool {
        self.sides.load(Ordering::Relaxed) > 0
    }

    /// True while segments are being loaded, or a side log is being filled.
    pub fn are_there(&self) -> bool {
        self.is_loading() || self.has_sides()
    }

    pub fn side_began(&self) {
        self.sides.fetch_add(1, Ordering::Relaxed);
    }

    /// Called once for each side log that began.
    pub fn side_ended(&self) {
        self.sides.fetch_sub(1, Ordering::Relaxed);
    }
}
