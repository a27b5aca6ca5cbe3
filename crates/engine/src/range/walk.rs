//! Walks over a range: shown to a guard, counted, exported as entries, and sampled for statistics.

use super::{Place, contains, entry_at};
use crate::core::Core;
use crate::index::Index;
use crate::load::Visitor;
use crate::session::Guard;
use crate::{Error, KeyHash, Object, Store, TableId};
use duramen_base::ids::{KeyRange, SegmentId};
use duramen_format::entry::{Entry, Kind, NewObject, NewTombstone};
use duramen_format::hash;
use std::sync::Arc;

/// Buckets looked at under one pin: some 700 entries.
const STEP_BUCKETS: usize = 128;
/// Equal parts of the space of route hashes that statistics tell apart: 64 slots each.
pub const RANGE_PARTS: usize = 256;
/// Objects looked at for the statistics of a table: some 250 per part, so that a part is known to 7 %.
const SAMPLES: u64 = 64 << 10;

/// What there is of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCount {
    pub objects: u64,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// One part of the hash space; see [`RANGE_PARTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangePart {
    pub entries: u64,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// How a table's objects are spread over the space of route hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeStatistics {
    pub table: TableId,
    /// [`RANGE_PARTS`] of them.
    pub parts: Vec<RangePart>,
}

impl Guard<'_> {
    /// Shows about `count` objects of a range from `cursor` (0 = start) in the order of the index; `None` = that was the end.
    /// An object that is there for the whole walk is shown exactly once, whatever grows or moves meanwhile; objects of equal
    /// hash are shown by one call.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn scan_range(
        &self,
        table: TableId,
        range: &KeyRange,
        cursor: u64,
        count: usize,
        mut show: impl FnMut(Object<'_>),
    ) -> Result<Option<u64>, Error> {
        let index = self.core.tables.index(table)?;
        let Some((partition, tag)) = index.at_position(cursor) else {
            return Ok(None);
        };
        let mut place = Place { partition, tag };
        let (mut shown, mut looked) = (0, 0);
        let mut cold = None;
        while !place.is_end(index) {
            // Many buckets without any of the range also end a step: a step is bounded work.
            if shown >= count.max(1) || looked > count.max(64).saturating_mul(16) {
                let at = index.position(place.partition, place.tag);
                return cold.map_or(Ok(Some(at)), Err);
            }
            looked += 1;
            self.observe_absence(index, &index.partitions()[place.partition]);
            let Some((view, bucket)) = place.bucket(index, &self.core.space) else {
                continue;
            };
            view.each_homed(bucket, self.me, |slot| {
                let entry = match self.entry_now(slot.location()) {
                    Ok(entry) => entry,
                    Err(error) => {
                        shown += 1;
                        cold = Some(error);
                        return;
                    }
                };
                if !place.includes(slot) || !contains(self.core, range, entry.key) {
                    return;
                }
                if self.core.space.is_undurable(slot.location()) {
                    self.observe_entry(index, slot.location());
                }
                if let Some(object) = self.object(entry) {
                    shown += 1;
                    show(object);
                }
            });
            place = place.after(view, bucket);
        }
        cold.map_or(Ok(None), Err)
    }
}

/// Visits every entry of a table, step by step (G1, G2).
struct Walk {
    store: Arc<Store>,
    table: TableId,
    place: Place,
}

impl Walk {
    fn new(store: &Arc<Store>, table: TableId) -> Walk {
        Walk {
            store: store.clone(),
            table,
            place: Place::START,
        }
    }

    /// Calls `visit` with some entries, until a bucket is at its end and `is_enough`. False: that was the end.
    fn step(
        &mut self,
        mut visit: impl FnMut(&Core, &Entry<'_>),
        mut is_enough: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let core = self.store.core();
        let visitor = Visitor::wait(core);
        core.enter(visitor.slot);
        let walked = core.tables.index(self.table).map(|index| {
            for _ in 0..STEP_BUCKETS {
                if self.place.is_end(index) {
                    break;
                }
                let Some((view, bucket)) = self.place.bucket(index, &core.space) else {
                    continue;
                };
                view.each_homed(bucket, visitor.me(), |slot| {
                    if self.place.includes(slot) {
                        visit(core, &entry_at(core, slot));
                    }
                });
                self.place = self.place.after(view, bucket);
                if is_enough() {
                    break;
                }
            }
            !self.place.is_end(index)
        });
        core.epochs.unpin(visitor.slot);
        walked
    }
}

/// Writes what is in a range as entries, for a [`SideLog`](crate::SideLog) of another server.
pub struct Export {
    walk: Walk,
    range: KeyRange,
}

impl Store {
    /// Counts what there is of a range. Visits the whole table, in short steps.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn count_range(
        self: &Arc<Self>,
        table: TableId,
        range: KeyRange,
    ) -> Result<RangeCount, Error> {
        let mut walk = Walk::new(self, table);
        let mut count = RangeCount::default();
        loop {
            let more = walk.step(
                |core, entry| {
                    if contains(core, &range, entry.key) {
                        count.objects += 1;
                        count.bytes += entry.padded_bytes as u64;
                    }
                },
                || false,
            )?;
            if !more {
                return Ok(count);
            }
        }
    }

    /// Begins to export a range, in the order of the index.
    pub fn export(self: &Arc<Self>, table: TableId, range: KeyRange) -> Export {
        Export {
            walk: Walk::new(self, table),
            range,
        }
    }

    /// Appends what there is now of these keys to `out`, as entries: the object, or a tombstone of the version that the key
    /// is known to have had ([`Watch::take`](crate::Watch::take)).
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn export_keys(
        &self,
        table: TableId,
        keys: &[(Box<[u8]>, u64)],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let core = self.core();
        let visitor = Visitor::wait(core);
        for some in keys.chunks(STEP_BUCKETS) {
            core.enter(visitor.slot);
            let written = core.tables.index(table).map(|index| {
                for (key, version) in some {
                    export_key(core, index, table, visitor.me(), key, *version, out);
                }
            });
            core.epochs.unpin(visitor.slot);
            written?;
        }
        Ok(())
    }

    /// How a table's objects are spread over the hash space: of a large table, from a sample, in some ten milliseconds. It is
    /// made when it is asked for, and not counted by writers: the slot of a key is costly, and only recovery asks.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn range_statistics(self: &Arc<Self>, table: TableId) -> Result<RangeStatistics, Error> {
        let every = (self.objects(table) / SAMPLES).max(1);
        let mut parts = vec![RangePart::default(); RANGE_PARTS];
        let mut walk = Walk::new(self, table);
        let mut bucket = 0;
        loop {
            // Hashes are spread evenly, so any choice of buckets is a fair one.
            let more = walk.sampled(every, &mut bucket, |entry| {
                let slot = usize::from(hash::slot(entry.key));
                if let Some(part) = parts.get_mut(slot * RANGE_PARTS / usize::from(hash::SLOTS)) {
                    part.entries += every;
                    part.bytes += every * entry.padded_bytes as u64;
                }
            })?;
            if !more {
                return Ok(RangeStatistics { table, parts });
            }
        }
    }
}

impl Walk {
    /// As `step`, of every so manieth bucket.
    fn sampled(
        &mut self,
        every: u64,
        bucket_number: &mut u64,
        mut visit: impl FnMut(&Entry<'_>),
    ) -> Result<bool, Error> {
        let core = self.store.core();
        let visitor = Visitor::wait(core);
        core.enter(visitor.slot);
        let walked = core.tables.index(self.table).map(|index| {
            let mut looked = 0;
            while looked < STEP_BUCKETS && !self.place.is_end(index) {
                let view = index.partitions()[self.place.partition].view();
                let bucket = if view.len() == 0 {
                    0
                } else {
                    view.home(self.place.tag)
                };
                *bucket_number += 1;
                if view.len() != 0 && bucket_number.is_multiple_of(every) {
                    looked += 1;
                    view.each_homed(bucket, visitor.me(), |slot| visit(&entry_at(core, slot)));
                }
                self.place = self.place.after(view, bucket);
            }
            !self.place.is_end(index)
        });
        core.epochs.unpin(visitor.slot);
        walked
    }
}

impl Export {
    /// Appends entries to `out` until it has about `bytes_max` bytes; a bucket is never cut. Returns early for others' sake.
    /// False: that was the end.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn step(&mut self, bytes_max: usize, out: &mut Vec<u8>) -> Result<bool, Error> {
        let range = self.range;
        let out = std::cell::RefCell::new(out);
        self.walk.step(
            |core, entry| {
                if contains(core, &range, entry.key) {
                    write(entry, &mut out.borrow_mut());
                }
            },
            || out.borrow().len() >= bytes_max,
        )
    }
}

/// Appends an object as it goes to another server: what it names is of this log, and stays.
fn write(entry: &Entry<'_>, out: &mut Vec<u8>) {
    let object = NewObject {
        table: entry.table,
        version: entry.version,
        expires_at_ms: (entry.expires_at_ms != 0).then_some(entry.expires_at_ms),
        key: entry.key,
        value: entry.value,
        victim: SegmentId::NONE,
    };
    let start = out.len();
    out.resize(start + object.padded_bytes(), 0);
    object.write_to(&mut out[start..]);
}

fn export_key(
    core: &Core,
    index: &Index,
    table: TableId,
    me: u16,
    key: &[u8],
    version: u64,
    out: &mut Vec<u8>,
) {
    let hash = KeyHash(core.hasher.hash(key));
    let view = index.partition(hash).view();
    let found = if view.len() == 0 {
        None
    } else {
        view.find(index.tag(hash), me, |slot| entry_at(core, slot).key == key)
    };
    if let Some((_, slot)) = found {
        let entry = entry_at(core, slot);
        debug_assert!(entry.kind == Kind::Object);
        write(&entry, out);
        return;
    }
    let tombstone = NewTombstone {
        table: table.0,
        version,
        key,
        victim: SegmentId::NONE,
    };
    let start = out.len();
    out.resize(start + tombstone.padded_bytes(), 0);
    tombstone.write_to(&mut out[start..]);
}
