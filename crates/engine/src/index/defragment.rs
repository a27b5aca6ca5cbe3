//! Keeps the indexes' memory dense: moves views down into holes, so that pages at the high end go
//! back to the system.
//!
//! All partitions of a table grow at about the same time and each leaves a hole a little too small
//! for the next one's larger view. Two moves close such holes: the highest view goes into a hole
//! that it fits, and where none fits, the view just above the lowest hole goes elsewhere, so that
//! the hole grows. A little per call; the effort ends when the spare memory is a small part of the
//! whole.

use super::bucket::Bucket;
use super::{Index, Partition, Resize, Resources};
use std::collections::BTreeMap;

/// Holes are closed from an eighth of a view on (what growth leaves behind); when there is none
/// such, smaller ones.
const HOLES_WORTH_CLOSING: [usize; 3] = [8, 16, 64];

/// Spare memory that is left alone: a part of what is committed, and a huge page.
fn tolerated(committed_bytes: u64) -> u64 {
    committed_bytes / 32 + (2 << 20)
}

impl Resources<'_> {
    pub fn is_fragmented(&self) -> bool {
        let committed = self.arena.committed_bytes();
        committed.saturating_sub(self.arena.allocated_bytes()) > tolerated(committed)
    }

    /// Spare memory over what is left alone: 1 or less asks for nothing.
    pub fn fragmentation(&self) -> u64 {
        let committed = self.arena.committed_bytes();
        committed.saturating_sub(self.arena.allocated_bytes()) / tolerated(committed)
    }

    /// Moves one view of this index and returns its bytes; 0: there is nothing to do, or it can't
    /// be done now. The caller is pinned, and leaves before it calls again, so that the range that
    /// the view left becomes a hole; `me` is its lock owner number.
    pub fn defragment(self, index: &Index, me: u16) -> usize {
        if !self.is_fragmented() {
            return 0;
        }
        let by_address: BTreeMap<usize, &Partition> = index
            .partitions()
            .iter()
            .filter(|partition| partition.view().len() != 0)
            .map(|partition| (partition.view().line(0) as usize, partition))
            .collect();
        let Some((&highest, &partition)) = by_address.last_key_value() else {
            return 0;
        };
        let lines = partition.view().len();
        let chosen = if self.arena.fits_below(highest as *const _, lines) {
            Some(partition)
        } else {
            // The holes most worth closing first: a close costs two moves, whatever it gains.
            HOLES_WORTH_CLOSING.iter().find_map(|part| {
                let is_view = |end: *const Bucket| by_address.contains_key(&(end as usize));
                let end = self.arena.end_of_lowest_hole(lines / part + 1, is_view)?;
                by_address.get(&(end as usize)).copied()
            })
        };
        match chosen {
            Some(partition) if partition.replace(me, self) == Resize::Done => {
                partition.view().len() * size_of::<Bucket>()
            }
            _ => 0,
        }
    }
}
