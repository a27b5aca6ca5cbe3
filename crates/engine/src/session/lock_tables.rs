//! The tables of a step that locks several keys (`crate::transaction`), whose memory its session
//! uses again.

use crate::Error;
use crate::core::Core;
use crate::index::bucket::{Locking, View};
use crate::index::{Partition, Resize};
use duramen_base::waits::{LongWait, Resource};

/// The tables of the locks of an open step.
#[derive(Default)]
pub(crate) struct LockTables<'s> {
    /// Partition and tag of each key, in the order of the keys.
    places: Vec<(&'s Partition, u64)>,
    /// Partitions with reserved room, and the number of inserts.
    reserved: Vec<(&'s Partition, i64)>,
    /// The locked home buckets.
    buckets: Vec<(View<'s>, usize)>,
}

impl<'s> LockTables<'s> {
    /// The same memory without entries, for another guard.
    pub(crate) fn emptied<'t>(self) -> LockTables<'t> {
        LockTables {
            places: emptied(self.places),
            reserved: emptied(self.reserved),
            buckets: emptied(self.buckets),
        }
    }

    /// Number of keys for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Adds a key. Keys are added in the order in which they are locked (transaction::T1).
    pub(crate) fn add(&mut self, partition: &'s Partition, tag: u64) {
        self.places.push((partition, tag));
    }

    /// The keys.
    pub(crate) fn places(&self) -> &[(&'s Partition, u64)] {
        &self.places
    }

    /// transaction::T2: reserves room in every partition, and grows those that have too little.
    /// Returns false if there is no memory to grow: nothing is reserved then.
    ///
    /// # Errors
    /// [`Error::Damaged`]: a partition cannot grow (bucket::B7), and nothing is reserved.
    pub(crate) fn reserve_room(&mut self, core: &Core, me: u16) -> Result<bool, Error> {
        for group in self.places.chunk_by(|a, b| std::ptr::eq(a.0, b.0)) {
            let (partition, inserts) = (group[0].0, group.len() as i64);
            let mut waiting = LongWait::new(Resource::Partition, &[Resource::Pin, Resource::Head]);
            while partition.view().len() == 0 || !partition.reserve(inserts) {
                match partition.resize(inserts, me, core.resources()) {
                    Resize::Damaged if core.slots().mend_partition(partition) => {}
                    Resize::Damaged => {
                        self.unreserve();
                        return Err(Error::Damaged);
                    }
                    Resize::NoMemory => {
                        self.unreserve();
                        return Ok(false);
                    }
                    Resize::Done | Resize::Busy => waiting.wait(),
                }
            }
            self.reserved.push((partition, inserts));
        }
        Ok(true)
    }

    /// Whether all partitions still have the room that was reserved.
    pub(crate) fn have_room(&self) -> bool {
        let mut reserved = self.reserved.iter();
        reserved.all(|(partition, _)| partition.has_its_room())
    }

    /// Gives the reserved room back.
    pub(crate) fn unreserve(&self) {
        self.reserved
            .iter()
            .for_each(|(partition, inserts)| partition.unreserve(*inserts));
    }

    /// Locks all home buckets in order (transaction::T1). Returns false if a partition was resized
    /// meanwhile: no bucket is locked then.
    pub(crate) fn lock_buckets(&mut self, me: u16) -> bool {
        for (partition, tag) in &self.places {
            let view = partition.view();
            let home = view.home(*tag);
            if let Some((last, bucket)) = self.buckets.last()
                && *bucket == home
                && std::ptr::eq(last.line(0), view.line(0))
            {
                continue;
            }
            match view.lock(home, me) {
                Locking::Taken => {
                    view.begin_transaction(home);
                    self.buckets.push((view, home));
                }
                Locking::Moved | Locking::Mine | Locking::Busy => {
                    self.unlock_buckets();
                    return false;
                }
            }
        }
        true
    }

    fn unlock_buckets(&self) {
        self.buckets
            .iter()
            .for_each(|(view, bucket)| view.unlock(*bucket));
    }

    /// True if a key that does not exist yet would be refused ([`Error::Crowded`]).
    pub(crate) fn are_crowded(&self) -> bool {
        let mut buckets = self.buckets.iter();
        buckets.any(|(view, home)| view.is_crowded_at(*home))
    }

    /// Unlocks all buckets; then lets those partitions grow or shrink that have waited for this.
    pub(crate) fn unlock(&self, core: &Core, me: u16) {
        self.unlock_buckets();
        for (partition, inserts) in &self.reserved {
            partition.unreserve(*inserts);
            let buckets = partition.view().len();
            if partition.wants_growth(buckets) || partition.wants_shrinking(buckets) {
                core.resize(partition, me);
            }
        }
    }
}

/// An empty table in the memory of another one, whose entries are as large.
fn emptied<A, B>(mut table: Vec<A>) -> Vec<B> {
    table.clear();
    // `collect` keeps the memory of a table whose entries are as large.
    let none = table.into_iter();
    none.map(|_| -> B { unreachable!("it is empty") }).collect()
}

#[cfg(test)]
mod tests {
    use super::emptied;

    #[test]
    fn an_emptied_table_keeps_its_memory() {
        let table: Vec<(&str, u64)> = vec![("a", 1); 9];
        let (at, capacity) = (table.as_ptr() as usize, table.capacity());
        let other: Vec<(&[u8], i64)> = emptied(table);
        assert_eq!((other.as_ptr() as usize, other.capacity()), (at, capacity));
    }
}
