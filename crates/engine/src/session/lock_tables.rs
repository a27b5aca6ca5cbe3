//! The tables of a step that locks several keys (`crate::transaction`), whose memory its session
//! uses again.

use crate::index::Partition;
use crate::index::bucket::View;

/// The tables of the locks of an open step.
#[derive(Default)]
pub(crate) struct LockTables<'s> {
    /// Partition and tag of each key, in the order of the keys.
    pub(crate) places: Vec<(&'s Partition, u64)>,
    /// Partitions with reserved room, and the number of inserts.
    pub(crate) reserved: Vec<(&'s Partition, i64)>,
    /// The locked home buckets.
    pub(crate) buckets: Vec<(View<'s>, usize)>,
}

impl LockTables<'_> {
    /// The same memory without entries, for another guard.
    pub(crate) fn emptied<'t>(self) -> LockTables<'t> {
        LockTables {
            places: emptied(self.places),
            reserved: emptied(self.reserved),
            buckets: emptied(self.buckets),
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
