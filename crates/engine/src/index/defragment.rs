//! Keeps the indexes' memory dense: moves views down into holes, so that pages at the high end go back to the system.
//!
//! All partitions of a table grow at about the same time and each leaves a hole a little too small for the next one's
//! larger view. Two moves close such holes: the highest view goes into a hole that it fits, and where none fits, the view
//! just above the lowest hole goes elsewhere, so that the hole grows. A little per call; the effort ends when the spare
//! memory is a small part of the whole.

use super::{Index, Partition, Resize, Resources};
use std::collections::BTreeMap;

/// Spare memory that is left alone: a part of what is committed, and a huge page.
fn tolerated(committed_bytes: u64) -> u64 {
    committed_bytes / 32 + (2 << 20)
}

impl Resources<'_> {
    pub fn is_fragmented(&self) -> bool {
        let committed = self.arena.committed_bytes();
        committed.saturating_sub(self.arena.allocated_bytes()) > tolerated(committed)
    }

    /// Moves up to `bytes` of views of this index. The caller is pinned; `me` is its lock owner number.
    pub fn defragment(self, index: &Index, mut bytes: usize, me: u16) {
        let mut by_address: BTreeMap<usize, &Partition> = index
            .partitions()
            .iter()
            .filter(|partition| partition.view().len() != 0)
            .map(|partition| (partition.view().line(0) as usize, partition))
            .collect();
        while bytes > 0 && self.is_fragmented() {
            let Some((&highest, &partition)) = by_address.last_key_value() else {
                return;
            };
            let lines = partition.view().len();
            let chosen = if self.arena.fits_below(highest as *const _, lines) {
                Some(highest)
            } else {
                // Only holes worth closing: an eighth of a view at least.
                self.arena
                    .end_of_lowest_hole(lines / 8 + 1)
                    .map(|end| end as usize)
                    .filter(|end| by_address.contains_key(end))
            };
            let Some(partition) = chosen.and_then(|address| by_address.remove(&address)) else {
                return;
            };
            if partition.replace(me, self) != Resize::Done {
                return;
            }
            let moved = partition.view();
            by_address.insert(moved.line(0) as usize, partition);
            bytes = bytes.saturating_sub(moved.len() * 64);
            self.arena.reap(self.epochs.quiet_before());
        }
    }
}
