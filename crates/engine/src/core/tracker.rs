//! The tracker of the clients' requests, as far as the engine knows it. The rules are in
//! `completion`.

use crate::Completions;
use duramen_format::entry::{Completion, Entry};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The tracker of a store; until it is set, all records stay.
#[derive(Default)]
pub struct Tracker {
    completions: OnceLock<Arc<dyn Completions>>,
    /// Bytes of the memory budget charged for it. Counts only.
    charged: AtomicU64,
}

impl Tracker {
    /// Sets the tracker; only the first call counts.
    pub fn set(&self, completions: Arc<dyn Completions>) {
        let _ = self.completions.set(completions);
    }

    /// Shows a record to the tracker (completion::Q3).
    pub fn met(&self, entry: &Entry<'_>) {
        if let (Some(completions), Some(record)) = (self.completions.get(), Completion::of(entry)) {
            completions.met(&record);
        }
    }

    /// Whether the cleaner keeps this record (completion::Q2).
    pub fn keeps(&self, entry: &Entry<'_>) -> bool {
        match (self.completions.get(), Completion::of(entry)) {
            (Some(completions), Some(record)) => completions.keep(&record),
            _ => true,
        }
    }

    pub fn charged_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    pub fn set_charged_bytes(&self, bytes: u64) {
        self.charged.store(bytes, Ordering::Relaxed);
    }
}
