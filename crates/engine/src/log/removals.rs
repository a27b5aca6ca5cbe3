//! The positions of the last removals of keys: a creation has to follow them (log::L5), and a reply
//! "absent" depends on them.
//!
//! Keys are put into classes by their hashes. Each class records, for each head, the end of its
//! last removal there. So the creation of a key meets removals of its own class alone, which are
//! those of other keys only by chance.
//!
//! **Invariants**
//! - M1: an end is noted when its entries may be collected, never from inside an open group: a
//!   thread that finds it may wait for it, and that wait ends without the group's guard.
//! - M2: an end is noted before any other thread can find the key absent.
//! - M3: ends only grow, and a class has room for every head: noting one never waits and never
//!   fails.
//!
//! **Concurrency**: the holder of the head's lock stores an end. A thread that finds a key absent
//! has loaded with Acquire a slot that was emptied with Release after that (M2), and so sees the
//! end.

use duramen_base::sync::{AtomicU64, Ordering, Padded};

/// The table of all classes takes at most the memory budget divided by this: 16,384 classes of 256
/// MiB with two heads.
const MEMORY_PART: u64 = 1024;
/// Least number of classes: with fewer, unrelated keys would wait for each other in a store of a
/// few megabytes.
const CLASSES_MIN: u64 = 64;
/// Most classes: far more than there are removals between two commits.
const CLASSES_MAX: u64 = 1 << 16;

pub(crate) struct Removals {
    /// The end of each class's last removal in each head, class by class.
    ends: Box<[AtomicU64]>,
    /// The end of the last removal in each head.
    last: Box<[Padded<AtomicU64>]>,
    classes: u64,
}

impl Removals {
    pub(crate) fn new(memory_bytes: u64, heads: usize) -> Removals {
        let row_bytes = (heads * size_of::<AtomicU64>()) as u64;
        let classes = (memory_bytes / MEMORY_PART / row_bytes).max(1);
        let classes = (classes + 1).next_power_of_two() / 2;
        let classes = classes.clamp(CLASSES_MIN, CLASSES_MAX);
        Removals {
            ends: (0..classes * heads as u64)
                .map(|_| AtomicU64::new(0))
                .collect(),
            last: (0..heads).map(|_| Padded::default()).collect(),
            classes,
        }
    }

    /// The ends of a class, by head.
    fn row(&self, hash: u64) -> &[AtomicU64] {
        let heads = self.last.len();
        let first = (hash & (self.classes - 1)) as usize * heads;
        &self.ends[first..first + heads]
    }

    /// Notes the removal of a key with this hash. It ends at `end` in the stream of this head,
    /// whose lock the caller holds.
    pub(crate) fn note(&self, hash: u64, head: usize, end: u64) {
        // Release pairs with Acquire in `of_class` and `last`.
        self.row(hash)[head].store(end, Ordering::Release);
        self.last[head].0.store(end, Ordering::Release);
    }

    /// The ends of the last removals that may concern a key with this hash, by head; 0 = none.
    pub(crate) fn of_class(&self, hash: u64) -> impl Iterator<Item = (u16, u64)> {
        let ends = self.row(hash).iter().enumerate();
        ends.map(|(head, end)| (head as u16, end.load(Ordering::Acquire)))
    }

    /// The ends of the last removals of all keys, by head; 0 = none.
    pub(crate) fn last(&self) -> impl Iterator<Item = (u16, u64)> {
        let ends = self.last.iter().enumerate();
        ends.map(|(head, end)| (head as u16, end.0.load(Ordering::Acquire)))
    }

    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.ends) + size_of_val(&*self.last)) as u64
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_class_knows_its_last_removal_in_each_head() {
        let removals = Removals::new(256 << 20, 2);
        assert_eq!(removals.classes, 16_384);
        assert!(removals.bytes() <= (256 << 20) / MEMORY_PART + 2 * 128);
        removals.note(5, 0, 80);
        removals.note(5 + removals.classes, 1, 24);
        removals.note(6, 1, 40);
        assert_eq!(removals.of_class(5).collect::<Vec<_>>(), [(0, 80), (1, 24)]);
        assert_eq!(removals.of_class(7).collect::<Vec<_>>(), [(0, 0), (1, 0)]);
        assert_eq!(removals.last().collect::<Vec<_>>(), [(0, 80), (1, 40)]);
    }
}
