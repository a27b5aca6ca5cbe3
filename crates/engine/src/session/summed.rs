//! The long entries of which a guard has taken the sum under its pin (verified::V8).
//!
//! A thread's own: part of its guard.

use duramen_base::planted::{Bug, has_bug};
use std::cell::RefCell;
use std::collections::HashSet;

/// The sum of an entry of so many bytes takes less than a microsecond, hardly more than to find it.
pub(crate) const LONG_BYTES: usize = 16 << 10;
/// The most entries that a guard remembers, some 100 KiB: together they are 64 MiB at least, so
/// a request that names more of them does meet much memory.
const ENTRIES_MAX: usize = 4_096;

/// Empty, and without memory, until the guard meets a long entry.
#[derive(Default)]
pub(crate) struct Summed(RefCell<Option<Box<Known>>>);

#[derive(Default)]
struct Known {
    /// The pin under which the sums were taken.
    stamp: u64,
    /// Where the entries are, or the copies of them.
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

    /// The entry here is sound.
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

    /// The guard has been outside, or copies that it held are gone.
    pub(crate) fn forget(&mut self) {
        if !has_bug(Bug::SumsOutlivePins) {
            *self.0.get_mut() = None;
        }
    }
}
