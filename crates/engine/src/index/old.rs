//! The buckets that a table had when it was cleared: kept until the entries that they point to are
//! counted as dead (`cleared`). No key is added or moved; a thread that counts an entry empties its
//! slot.
//!
//! **Concurrency**: as with the views of a table, a reader is pinned (index::X2).

use super::bucket::{Slot, View};
use super::{Resources, unpack};
use crate::KeyHash;
use duramen_base::sync::{AtomicU64, Ordering};

pub struct OldViews {
    /// The views of all partitions, packed as in `Partition`; 0 = given back, or never there.
    views: Box<[AtomicU64]>,
    shift: u32,
}

impl OldViews {
    pub(super) fn new(views: Box<[AtomicU64]>, shift: u32) -> OldViews {
        OldViews { views, shift }
    }

    /// Number of partitions, with or without a view.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    pub fn view(&self, partition: usize) -> View<'_> {
        View::new(unpack(self.views[partition].load(Ordering::Acquire)))
    }

    /// Takes the slot that points to this location. Returns false if there is none, or if another
    /// thread took it.
    pub fn take(&self, hash: KeyHash, location: u64) -> bool {
        let view = self.view((hash.0 >> self.shift) as usize);
        if view.len() == 0 {
            return false;
        }
        let tag = super::tag_of(hash, self.shift);
        let found = view.find_location(tag, location);
        found.is_some_and(|(place, slot)| Self::take_at(place, slot))
    }

    /// Takes the slot that was seen at a place of these views. Returns false if another thread took
    /// it.
    pub fn take_at(place: &AtomicU64, slot: Slot) -> bool {
        let taken = place.compare_exchange(slot.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Gives the buckets of a partition back, once no reader can be using them.
    pub fn give_back(&self, partition: usize, with: Resources<'_>) {
        let view = View::new(unpack(self.views[partition].swap(0, Ordering::AcqRel)));
        if view.len() != 0 {
            let stamp = with.epochs.retire_stamp();
            with.arena
                .retire(stamp, view.line(0).cast_mut(), view.len());
        }
    }
}
