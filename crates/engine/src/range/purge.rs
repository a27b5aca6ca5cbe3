//! Purges: take ranges of a table out of the index at once, because they belong to another server
//! now. One pass takes all ranges: it has to read their segments on flash, which takes as long for
//! one range as for all.

use super::cold::{ColdSegments, Look};
use super::{Place, Ranges, contains, entry_at, goes_on_with_parts};
use crate::cleaner::candidate::Candidate;
use crate::core::sound::{self, Sound};
use crate::core::{Core, Visitor};
use crate::counters::Counters;
use crate::index::bucket::{Locking, Slot, View};
use crate::index::change::{Change, Dropped};
use crate::index::{Index, Partition};
use crate::{Error, Store, TableId};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{Entry, Kind};
use std::sync::Arc;

/// Buckets of a step: some 700 entries, less than 0.1 ms.
const STEP_BUCKETS: usize = 128;
/// Entries of a segment on flash that are handled in a step.
const STEP_ENTRIES: usize = 512;

/// Report of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Parts do not count.
    pub objects: u64,
    /// Bytes of their entries and of parts, which the cleaner can free now.
    pub bytes: u64,
}

impl Purged {
    fn count(&mut self, entry: &Entry<'_>) {
        self.objects += u64::from(!TableId(entry.table).is_parts());
        self.bytes += entry.padded_bytes as u64;
    }
}

/// A running purge.
pub struct Purge {
    store: Arc<Store>,
    /// The table, then its parts (range::G5).
    table: TableId,
    ranges: Leaving,
    place: Place,
    cold: ColdSegments,
    purged: Purged,
}

/// Ranges that leave, in their order, without overlaps: so one comparison finds the range of a key.
struct Leaving(Vec<KeyRange>);

impl Leaving {
    fn new(ranges: &[KeyRange]) -> Leaving {
        let mut ranges = ranges.to_vec();
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let overlaps = next.first <= before.last;
            if overlaps {
                before.last = before.last.max(next.last);
            }
            overlaps
        });
        Leaving(ranges)
    }

    fn contains(&self, core: &Core, entry: &Entry<'_>) -> bool {
        match &self.0[..] {
            [range] => contains(core, range, entry),
            _ => self.has(entry.route(core.tables.hasher())),
        }
    }

    fn has(&self, hash: RouteHash) -> bool {
        let after = self.0.partition_point(|range| range.first <= hash);
        let last = after.checked_sub(1).map(|at| self.0[at]);
        last.is_some_and(|range| range.contains(hash))
    }
}

impl Ranges<'_> {
    /// Begins to take every object of these ranges out of a table. No guard may write to them any
    /// more.
    pub fn begin_purge(self, table: TableId, ranges: &[KeyRange]) -> Purge {
        Purge {
            store: self.store.clone(),
            table,
            ranges: Leaving::new(ranges),
            place: Place::START,
            cold: ColdSegments::default(),
            purged: Purged::default(),
        }
    }

    /// Takes every object of a range out of a table, and returns when it is done. No guard may
    /// write to the range any more. Reads all segments that are on flash.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::FlashFailed`]: some objects are still there, try again
    /// later.
    pub fn purge(self, table: TableId, range: KeyRange) -> Result<Purged, Error> {
        let mut purge = self.begin_purge(table, &[range]);
        while purge.step()? {}
        Ok(purge.purged())
    }
}

/// The verified entry at a location that the index has under the caller's pin. `None`: damage that
/// one bit does not explain; the entry stays (sound::V2).
fn sound_at(core: &Core, location: u64) -> Option<Sound<'_>> {
    if has_bug(Bug::PurgesUnverified) {
        let (entry, copy) = (entry_at(core, location), None);
        return Some(Sound { entry, copy });
    }
    sound::at(core, location).ok()
}

/// Result for a bucket.
enum Bucket {
    Done,
    /// The view has been replaced, a transaction holds the bucket, or an entry must be read from
    /// flash first.
    Again,
}

impl Purge {
    /// Report of the purge so far.
    pub fn purged(&self) -> Purged {
        self.purged
    }

    /// Does a bounded step, which may read a segment from flash. Returns false if it was the last
    /// one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::FlashFailed`]: the next step tries again.
    pub fn step(&mut self) -> Result<bool, Error> {
        let store = self.store.clone();
        let core = store.core();
        self.cold.read(core)?;
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let index = core.tables.index(self.table);
        let more = index.and_then(|index| {
            core.actors.as_guest(|counters| {
                if self.passes_cold(core, counters, visitor.me())? {
                    self.some(core, index, counters, &visitor);
                }
                let (table, place) = (&mut self.table, &mut self.place);
                Ok(!place.is_end(index) || goes_on_with_parts(core, table, place))
            })
        });
        core.door.leave(visitor.slot);
        if !matches!(more, Ok(true)) {
            core.cleaners.wake(); // there are dead entries to clean
        }
        more
    }

    /// Takes out entries of the segment that was read from flash. Returns true if the walk may go
    /// on.
    fn passes_cold(&mut self, core: &Core, counters: &Counters, me: u16) -> Result<bool, Error> {
        let (table, ranges, purged) = (self.table.whole(), &self.ranges, &mut self.purged);
        self.cold.show(core, STEP_ENTRIES, |location, entry| {
            let of = TableId(entry.table);
            let is_of = entry.kind == Kind::Object && of.whole() == table;
            if !is_of || !ranges.contains(core, entry) {
                return true;
            }
            let Ok(index) = core.tables.index(of) else {
                return true; // the entry belongs to no table
            };
            let candidate = Candidate::new(core, index, location, *entry, false);
            match candidate.drop_from_index(core, counters, me) {
                Some(true) => purged.count(entry),
                None => {}
                Some(false) => return false, // a transaction holds the bucket: in the next step
            }
            true
        })
    }

    fn some(&mut self, core: &Core, index: &Index, counters: &Counters, visitor: &Visitor<'_>) {
        let me = visitor.me();
        for _ in 0..STEP_BUCKETS {
            if self.place.is_end(index) {
                return;
            }
            let partition = &index.partitions()[self.place.partition];
            let Some((view, bucket)) = self.place.bucket(index, &core.space) else {
                continue;
            };
            if let Bucket::Again = self.bucket(counters, partition, view, bucket, visitor) {
                // continued by the next step, which reads the missing entries, and pins anew
                return;
            }
            let skips = has_bug(Bug::PurgeSkips);
            let after = self.place.after(view, bucket);
            if after.partition != self.place.partition
                && partition.wants_shrinking(partition.view().len())
            {
                let _ = partition.resize(0, me, core.resources());
            }
            self.place = after;
            if skips && after.tag != 0 && after.tag.is_multiple_of(3) {
                self.place = after.after(view, view.home(after.tag));
            }
        }
    }

    fn bucket(
        &mut self,
        counters: &Counters,
        partition: &Partition,
        view: View<'_>,
        bucket: usize,
        visitor: &Visitor<'_>,
    ) -> Bucket {
        let (core, me) = (visitor.core, visitor.me());
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        let (place, ranges, cold) = (self.place, &self.ranges, &mut self.cold);
        let (mut leaving, mut lacks) = (Vec::new(), false);
        let mut is_leaving =
            |slot: Slot, lacks: &mut bool| match cold.look(core, stamp, slot.location()) {
                Look::Here => sound_at(core, slot.location())
                    .is_some_and(|sound| ranges.contains(core, &sound.entry)),
                Look::Passed => false,
                Look::Lacking => {
                    *lacks = true;
                    false
                }
            };
        // A slot that stays damaged is left: it leads to no key.
        let _ = core.slots().check(view, bucket);
        view.each_homed(bucket, me, |slot| {
            if place.includes(slot) && is_leaving(slot, &mut lacks) {
                leaving.push(slot.tag());
            }
        });
        if lacks {
            return Bucket::Again;
        }
        if leaving.is_empty() {
            return Bucket::Done;
        }
        match view.try_lock(bucket, me) {
            Locking::Taken => {}
            Locking::Moved => {
                partition.wait_for_move(view);
                return Bucket::Again;
            }
            Locking::Mine | Locking::Busy => return Bucket::Again,
        }
        let change = Change {
            partition,
            view,
            space: &core.space,
            counters,
        };
        leaving.sort_unstable();
        leaving.dedup();
        for tag in leaving {
            // A cleaner may have moved the entry, so it is looked up again; it may also have turned
            // cold.
            while let Some((place, slot)) = view.find(tag, me, |slot| is_leaving(slot, &mut lacks))
            {
                let Some(Sound { entry, copy: _copy }) = sound_at(core, slot.location()) else {
                    break;
                };
                change.remove(tag, Dropped::new(place, slot, &entry));
                self.purged.count(&entry);
            }
        }
        view.unlock(bucket);
        if lacks { Bucket::Again } else { Bucket::Done }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of a range that overlapped with one that began after it once stayed behind.
    #[test]
    fn ranges_that_overlap_leave_as_a_whole() {
        let range = |first, last| KeyRange::new(RouteHash(first), RouteHash(last));
        let ranges = [
            range(0, 100),
            range(10, 20),
            range(90, 120),
            range(200, 300),
        ];
        let leaving = Leaving::new(&ranges);
        for hash in 0..=400 {
            let is_in = ranges.iter().any(|range| range.contains(RouteHash(hash)));
            assert_eq!(leaving.has(RouteHash(hash)), is_in, "{hash}");
        }
    }
}
