//! The long entries of which a guard has taken the sum under its pin (verified::V8).
//!
//! **Concurrency**: none; the list is a part of a guard, which one thread uses.

use duramen_base::planted::{Bug, has_bug};
use std::cell::RefCell;
use std::collections::HashSet;

/// Entries of at least this many bytes are remembered. The sum of a shorter one takes less than a
/// microsecond, hardly more than the search for the entry.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// The most entries that a guard remembers, in some 100 KiB. Together they have at least 64 MiB, so
/// a request that names more of them reads that much memory anyway.
const ENTRIES_MAX: usize = 4_096;

/// Empty, and without memory, until the guard meets a long entry.
#[derive(Default)]
pub(crate) struct Summed(RefCell<Option<Box<Known>>>);

#[derive(Default)]
struct Known {
    /// The pin under which the sums were taken.
    stamp: u64,
    /// The addresses of the entries, or of their copies.
    places: HashSet<usize>,
}

impl Summed {
    /// Whether the entry here was found sound under the pin of `stamp`.
    pub(crate) fn has(&self, at: *const u8, stamp: u64) -> bool {
        let known = self.0.borrow();
        known.as_ref().is_some_and(|known| {
            let is_of_pin = known.stamp == stamp || has_bug(Bug::SumsOutlivePins);
            is_of_pin && known.places.contains(&(at as usize))
        })
    }

    /// Notes that the entry at this address is sound.
    pub(crate) fn add(&self, at: *const u8, stamp: u64) {
        let mut known = self.0.borrow_mut();
        let known = known.get_or_insert_default();
        if known.stamp != stamp {
            known.places.clear();
            known.stamp = stamp;
        }
        if known.places.len() < ENTRIES_MAX {
            known.places.insert(at as usize);
        }
    }

    /// Forgets all entries: the guard has been outside, or copies that it held are gone.
    pub(crate) fn forget(&mut self) {
        if !has_bug(Bug::SumsOutlivePins) {
            *self.0.get_mut() = None;
        }
    }
}
