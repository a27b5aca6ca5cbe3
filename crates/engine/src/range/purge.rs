//! Taking a range out of the index at once: it belongs to another server now.

use super::{Place, contains, entry_at};
use crate::core::Core;
use crate::counters::Counters;
use crate::index::bucket::{Locking, View};
use crate::index::{Index, Partition};
use crate::load::Visitor;
use crate::log::Bug;
use crate::{Error, Store, TableId};
use duramen_base::ids::KeyRange;
use std::sync::Arc;

/// Buckets of a step: some 700 entries, less than 0.1 ms.
const STEP_BUCKETS: usize = 128;

/// What was purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub objects: u64,
    /// Bytes of their entries, which the cleaner can have now.
    pub bytes: u64,
}

/// A purge under way.
pub struct Purge {
    store: Arc<Store>,
    table: TableId,
    range: KeyRange,
    place: Place,
    purged: Purged,
}

impl Store {
    /// Begins to take every object of a range out of a table. No guard may write to the range any more.
    pub fn begin_purge(self: &Arc<Self>, table: TableId, range: KeyRange) -> Purge {
        Purge {
            store: self.clone(),
            table,
            range,
            place: Place::START,
            purged: Purged::default(),
        }
    }

    /// Takes every object of a range out of a table, and returns when it is done. No guard may write to the range any more.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn purge(self: &Arc<Self>, table: TableId, range: KeyRange) -> Result<Purged, Error> {
        let mut purge = self.begin_purge(table, range);
        while purge.step()? {}
        Ok(purge.purged())
    }
}

/// What became of a bucket.
enum Bucket {
    Done,
    /// The view has been replaced, or a transaction holds the bucket.
    Again,
}

impl Purge {
    /// What was purged so far.
    pub fn purged(&self) -> Purged {
        self.purged
    }

    /// A bounded step. False: it was the last one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn step(&mut self) -> Result<bool, Error> {
        let store = self.store.clone();
        let core = store.core();
        let visitor = Visitor::wait(core);
        core.enter(visitor.slot);
        let more = match core.tables.index(self.table) {
            Ok(index) => {
                core.as_guest(|counters| self.some(core, index, counters, visitor.me()));
                Ok(!self.place.is_end(index))
            }
            Err(error) => Err(error),
        };
        core.epochs.unpin(visitor.slot);
        if !matches!(more, Ok(true)) {
            core.wakeup.ring(); // there is something to clean
        }
        more
    }

    fn some(&mut self, core: &Core, index: &Index, counters: &Counters, me: u16) {
        for _ in 0..STEP_BUCKETS {
            if self.place.is_end(index) {
                return;
            }
            let partition = &index.partitions()[self.place.partition];
            let Some((view, bucket)) = self.place.bucket(index, &core.space) else {
                continue;
            };
            if let Bucket::Again = self.bucket(core, counters, partition, view, bucket, me) {
                return; // the next step, which pins anew
            }
            let skips = core
                .log
                .as_ref()
                .is_some_and(|log| log.has_bug(Bug::PurgeSkips));
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
        core: &Core,
        counters: &Counters,
        partition: &Partition,
        view: View<'_>,
        bucket: usize,
        me: u16,
    ) -> Bucket {
        let mut leaving = Vec::new();
        view.each_homed(bucket, me, |slot| {
            if self.place.includes(slot) && contains(core, &self.range, entry_at(core, slot).key) {
                leaving.push(slot.tag());
            }
        });
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
        leaving.sort_unstable();
        leaving.dedup();
        for tag in leaving {
            // A cleaner may have moved what was seen, so it is looked for anew.
            while let Some((place, slot)) = view.find(tag, me, |slot| {
                contains(core, &self.range, entry_at(core, slot).key)
            }) {
                let entry = entry_at(core, slot);
                partition.raise_floor(entry.version); // X3
                view.remove(tag, place);
                partition.count_remove();
                counters.note_dead(core.space.window_of(slot.location()), entry.padded_bytes);
                counters.note_objects(self.table, -1);
                counters.note_expiring(self.table, -i64::from(entry.expires_at_ms != 0));
                self.purged.objects += 1;
                self.purged.bytes += entry.padded_bytes as u64;
            }
        }
        view.unlock(bucket);
        Bucket::Done
    }
}
