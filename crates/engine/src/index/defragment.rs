//! Defragmentation of the indexes' memory: moves views down into holes, so that pages at the high
//! end go back to the system.
//!
//! All partitions of a table grow at about the same time, and each leaves a hole slightly too small
//! for the next one's larger view. Two moves close such holes. The highest view goes into a hole
//! that it fits. If it fits none, the view just above the lowest hole goes elsewhere, so that the
//! hole grows. Each call does a little; the effort ends when the spare memory is a small part of
//! the whole.

use super::bucket::Bucket;
use super::{Index, Partition, Resize, Resources};
use std::collections::BTreeMap;

/// The sizes of holes that are closed, as parts of a view: first holes of at least an eighth, as
/// growth leaves them, then smaller ones if there are none.
const HOLES_WORTH_CLOSING: [usize; 3] = [8, 16, 64];

/// Spare memory that is tolerated: a part of the committed memory, and a huge page.
fn tolerated(committed_bytes: u64) -> u64 {
    committed_bytes / 32 + (2 << 20)
}

impl Resources<'_> {
    /// Frees the memory that views have left and no reader uses any more.
    pub fn reap(&self) {
        self.arena.reap(self.epochs.quiet_before());
    }

    /// Gives free pages of the index back to the system, if there are many.
    pub fn trim(&self) {
        self.arena.trim(&self.space.budget);
    }

    pub fn is_fragmented(&self) -> bool {
        let committed = self.arena.committed_bytes();
        committed.saturating_sub(self.arena.allocated_bytes()) > tolerated(committed)
    }

    /// Spare memory in multiples of the tolerated amount: 1 or less needs no work.
    pub fn fragmentation(&self) -> u64 {
        let committed = self.arena.committed_bytes();
        committed.saturating_sub(self.arena.allocated_bytes()) / tolerated(committed)
    }

    /// Moves one view of this index and returns its bytes; 0: there is nothing to do, or it cannot
    /// be done now. The caller is pinned, and leaves before it calls again, so that the range that
    /// the view left becomes a hole. `me`: its lock owner number.
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
            // The largest holes first: closing one costs two moves, whatever it gains.
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
