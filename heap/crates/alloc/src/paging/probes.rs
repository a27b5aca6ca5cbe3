//! Looks of tests at the pages.

use super::Paging;
use std::sync::PoisonError;

impl Paging {
    /// Entries in the queue of pages.
    pub fn queued(&self) -> usize {
        self.buffer.queued()
    }

    /// Pages that may be shown.
    pub fn pages_max(&self) -> usize {
        self.buffer.pages_max
    }

    /// Page tables for which RAM was taken, and the number beside them for which none is.
    pub fn kept_tables(&self) -> (u64, u64) {
        let kept = self.kept_tables.lock();
        let kept = kept.unwrap_or_else(PoisonError::into_inner);
        (*kept, crate::regions::BESIDE + self.tables_max)
    }
}
