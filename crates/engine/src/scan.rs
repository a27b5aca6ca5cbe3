//! Walks over a whole table in hash order, step by step, and draws of a random object.
//!
//! **Invariant**
//! - W1: a walk makes progress with room for two values of the maximum length, because
//!   a step can end at any object. So a caller that can fetch only some of a step's missing entries
//!   from flash fetches the first of them, and requests only that part of the step.

use crate::index::bucket::{Slot, View};
use crate::session::Guard;
use crate::{Error, Object, TableId};
use duramen_format::entry::Entry;

/// Entries of a bucket that are on flash.
pub(crate) struct Lacking {
    /// For the first of them.
    pub(crate) error: Error,
    pub(crate) entries: usize,
    pub(crate) first_tag: u64,
}

impl Lacking {
    fn note(lacking: &mut Option<Lacking>, slot: Slot, error: Error) {
        let first = lacking.get_or_insert(Lacking {
            error,
            entries: 0,
            first_tag: slot.tag(),
        });
        first.entries += 1;
    }
}

impl<'s> Guard<'s> {
    /// Shows about `count` objects from `cursor` (0 = start) in hash order; returns the next
    /// cursor, 0 = finished. An object that exists for the whole scan is shown at least once,
    /// whatever grows or moves meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Cold`] if some entries are on flash: the session has noted
    /// all of them, in hash order.
    pub fn scan(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        show: impl FnMut(Object<'_>),
    ) -> Result<u64, Error> {
        self.scan_as(table, cursor, count, false, show)
    }

    /// As [`scan`](Self::scan). `partly`: ends before the first object on flash, if it has come
    /// further than `cursor`.
    ///
    /// # Errors
    /// As there.
    pub fn scan_as(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        partly: bool,
        mut show: impl FnMut(Object<'_>),
    ) -> Result<u64, Error> {
        let index = self.index(table)?;
        let Some((mut partition, mut tag)) = index.at_position(cursor) else {
            return Ok(0);
        };
        let begin = index.position(partition, tag);
        let (mut shown, mut looked) = (0, 0);
        let mut cold = None;
        while partition < index.partitions().len() {
            let view = index.partitions()[partition].view();
            let first = if view.len() == 0 { 0 } else { view.home(tag) };
            for bucket in first..view.len() {
                // Many empty or expired buckets also end a step: a step is bounded work.
                if shown >= count.max(1) || looked > count.max(64).saturating_mul(16) {
                    self.observe_gaps(index, &index.partitions()[partition]);
                    let next = index.position(partition, view.first_tag(bucket));
                    return cold.map_or(Ok(next), Err);
                }
                looked += 1;
                let shows = |slot: Slot, entry| {
                    if self.core.space.is_undurable(slot.location()) {
                        self.observe_entry(index, slot.location());
                    }
                    if let Some(object) = self.object(entry) {
                        shown += 1;
                        show(object);
                    }
                };
                if let Err(lacking) = self.show_bucket(view, (bucket, tag), shows) {
                    let at = index.position(partition, lacking.first_tag);
                    if partly && cold.is_none() && at > begin {
                        self.observe_gaps(index, &index.partitions()[partition]);
                        self.take_colds();
                        return Ok(at);
                    }
                    shown += lacking.entries;
                    cold.get_or_insert(lacking.error);
                }
                tag = 0;
            }
            self.observe_gaps(index, &index.partitions()[partition]);
            (partition, tag) = (partition + 1, 0);
            looked += 1;
        }
        cold.map_or(Ok(0), Err)
    }

    /// Shows the entries whose home is a bucket from a tag on, up to the first that is on flash.
    pub(crate) fn show_bucket(
        &self,
        view: View<'_>,
        (bucket, from): (usize, u64),
        mut show: impl FnMut(Slot, Entry<'s>),
    ) -> Result<(), Lacking> {
        let (mut warm, mut cold): (Vec<Slot>, Vec<Slot>) = Default::default();
        let mut lacking: Option<Lacking> = None;
        let has_tier = self.core.space.tier.is_some();
        view.each_homed(bucket, self.me, |slot| {
            if slot.tag() < from {
                return; // shown before
            }
            if has_tier && self.memory_of(slot.location()).is_none() {
                return cold.push(slot);
            }
            if has_tier {
                return warm.push(slot);
            }
            match self.entry_now(slot.location()) {
                Ok(entry) => show(slot, entry),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        });
        cold.sort_unstable_by_key(|slot| slot.tag());
        for slot in cold {
            match self.entry_now(slot.location()) {
                Ok(_) => warm.push(slot),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        }
        let end = lacking
            .as_ref()
            .map_or(u64::MAX, |lacking| lacking.first_tag);
        for slot in warm.into_iter().filter(|slot| slot.tag() < end) {
            match self.entry_now(slot.location()) {
                Ok(entry) => show(slot, entry),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        }
        lacking.map_or(Ok(()), Err)
    }

    /// A random object of the table, chosen by `random`; `None` if the table has none.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::Cold`].
    pub fn random(&self, table: TableId, random: u64) -> Result<Option<Object<'_>>, Error> {
        let index = self.index(table)?;
        let partitions = index.partitions();
        // Start anywhere, then take the first bucket with an entry; visit the starting partition
        // twice.
        let start = (random >> 32) as usize % partitions.len();
        for n in 0..=partitions.len() {
            let partition = &partitions[(start + n) % partitions.len()];
            let view = partition.view();
            let skip = if n == 0 && view.len() != 0 {
                random as u32 as usize % view.len()
            } else {
                0
            };
            for bucket in skip..view.len() {
                let mut slots: Vec<Slot> = Vec::new();
                view.each_homed(bucket, self.me, |slot| slots.push(slot));
                let first = (random >> 7) as usize % slots.len().max(1);
                let (before, after) = slots.split_at(first);
                for slot in after.iter().chain(before) {
                    let entry = self.entry_now(slot.location())?;
                    if self.core.space.is_undurable(slot.location()) {
                        self.observe_entry(index, slot.location());
                    }
                    if let Some(object) = self.object(entry) {
                        return Ok(Some(object));
                    }
                }
            }
            self.observe_gaps(index, partition);
        }
        Ok(None)
    }
}
