//! Changes of the index together with their accounting: dead bytes of windows, objects of tables,
//! and how many of these expire. Two kinds of changes are elsewhere: moves, which change no count,
//! and the removal of whole tables and side logs, which is counted in bulk.
//!
//! The caller holds the lock of the key's home bucket and counts with counters that it alone
//! writes. An insert was counted by [`Partition::count_insert`].

use super::Partition;
use super::bucket::{self, Slot, View};
use crate::TableId;
use crate::counters::Counters;
use crate::space::Space;
use duramen_base::sync::{AtomicU64, Backoff};
use duramen_format::entry::{Entry, Kind};

/// An entry as the counters of its table see it. Tombstones, which a loader keeps in the index for
/// a while, are not counted.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    table: TableId,
    objects: i64,
    expiring: i64,
}

impl Counted {
    #[inline(always)]
    pub fn object(table: TableId, expires: bool) -> Counted {
        Counted {
            table,
            objects: 1,
            expiring: i64::from(expires),
        }
    }

    #[inline(always)]
    pub fn of(entry: &Entry<'_>) -> Counted {
        let objects = i64::from(entry.kind == Kind::Object);
        Counted {
            table: TableId(entry.table),
            objects,
            expiring: objects * i64::from(entry.expires_at_ms != 0),
        }
    }
}

/// An entry that a change takes out of the index.
#[derive(Clone, Copy)]
pub(crate) struct Dropped<'a> {
    place: &'a AtomicU64,
    slot: Slot,
    version: u64,
    bytes: usize,
    counted: Counted,
}

impl<'a> Dropped<'a> {
    #[inline(always)]
    pub fn new(place: &'a AtomicU64, slot: Slot, entry: &Entry<'_>) -> Dropped<'a> {
        Dropped {
            place,
            slot,
            version: entry.version,
            bytes: entry.padded_bytes,
            counted: Counted::of(entry),
        }
    }
}

/// Changes in one view of a partition.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub partition: &'a Partition,
    pub view: View<'a>,
    pub space: &'a Space,
    pub counters: &'a Counters,
}

impl Change<'_> {
    /// Adds a key.
    #[inline(always)]
    pub fn insert(self, tag: u64, slot: Slot, new: Counted) {
        // A slot may be emptied and taken again during the search: counted room (index::X1) means
        // that one becomes free.
        let mut backoff = Backoff::new();
        while !self.view.insert(tag, slot) {
            backoff.wait();
        }
        self.counters.note_objects(new.table, new.objects);
        self.counters.note_expiring(new.table, new.expiring);
    }

    /// Points the key to another entry; the old one is dead.
    #[inline(always)]
    pub fn replace(self, old: Dropped<'_>, slot: Slot, new: Counted) {
        bucket::publish(old.place, slot);
        self.note_dead(old);
        let objects = new.objects - old.counted.objects;
        self.counters.note_objects(new.table, objects);
        let expiring = new.expiring - old.counted.expiring;
        self.counters.note_expiring(new.table, expiring);
    }

    /// Removes a key.
    #[inline(always)]
    pub fn remove(self, tag: u64, old: Dropped<'_>) {
        self.partition.raise_floor(old.version); // index::X3, before the key can be seen absent
        self.partition.remove(self.view, tag, old.place);
        self.note_dead(old);
        self.counters
            .note_objects(old.counted.table, -old.counted.objects);
        self.counters
            .note_expiring(old.counted.table, -old.counted.expiring);
    }

    #[inline(always)]
    fn note_dead(self, old: Dropped<'_>) {
        if old.counted.objects != 0 {
            let window = self.space.window_of(old.slot.location());
            self.counters.note_dead(window, old.bytes);
        }
    }
}
