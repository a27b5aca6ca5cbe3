//! Changes of tables, until they are collected.
//!
//! **Invariant** log::L6: a change is collected no later than any entry that was written after it.
//!
//! **Concurrency**: one lock. Streams and queues of passes are locked under it (`log`, Lock order).

use crate::TableChange;
use duramen_base::sync::{Mutex, MutexGuard};

/// Positions are multiples of 8 (engine::log::L3), those of changes too.
const CHANGE_STEP: u64 = 8;

/// Changes for which memory is kept.
const CHANGES_KEPT: usize = 64;

#[derive(Default)]
struct Queue {
    /// The last sequence number given.
    last: u64,
    /// First number that an exclusive guard has reserved and not published yet.
    reserved: Option<u64>,
    changes: Vec<(u64, TableChange)>,
}

impl Queue {
    fn next_number(&mut self) -> u64 {
        self.last += CHANGE_STEP;
        self.last
    }
}

/// The changes that are not collected yet.
#[derive(Default)]
pub struct Changes {
    queue: Mutex<Queue>,
}

/// As long as this value lives, no guard publishes changes together with entries (log::L6).
pub struct Unchanging<'a> {
    _queue: MutexGuard<'a, Queue>,
}

impl Changes {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("table changes")
    }

    /// The last number that was given; it is also a position.
    pub fn last(&self) -> u64 {
        self.queue().last
    }

    /// Queues a change of a table, before any thread can write under it (log::L6).
    pub fn publish(&self, change: TableChange) {
        let mut queue = self.queue();
        let number = queue.next_number();
        queue.changes.push((number, change));
    }

    /// Reserves the number of a change that an exclusive guard publishes when it ends. The number
    /// is also its position.
    pub fn reserve(&self) -> u64 {
        let mut queue = self.queue();
        let number = queue.next_number();
        queue.reserved.get_or_insert(number);
        number
    }

    /// Publishes an exclusive guard's changes of tables together with its entries:
    /// `publish_entries` makes the entries shippable.
    pub fn publish_alone(&self, made: Vec<(u64, TableChange)>, publish_entries: impl FnOnce()) {
        let mut queue = self.queue();
        queue.changes.extend(made);
        queue.changes.sort_by_key(|(number, _)| *number);
        queue.reserved = None;
        publish_entries();
    }

    /// Moves the published changes to `take`, each with its number. While the result lives, no
    /// guard publishes changes together with entries: its owner collects both, or neither
    /// (log::L6).
    pub fn collect(&self, mut take: impl FnMut(u64, TableChange)) -> Unchanging<'_> {
        let mut queue = self.queue();
        let before = queue.reserved.unwrap_or(u64::MAX);
        let ready = queue
            .changes
            .partition_point(|(number, _)| *number < before);
        for (number, change) in queue.changes.drain(..ready) {
            take(number, change);
        }
        queue.changes.shrink_to(CHANGES_KEPT);
        Unchanging { _queue: queue }
    }
}
