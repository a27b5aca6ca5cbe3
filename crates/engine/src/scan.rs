//! Walks over a whole table in hash order, step by step, and random places to begin at.
//!
//! **Invariants**
//! - W1: a walk makes progress with room for two values of the maximum length, because
//!   a step can end at any object. So a caller that can fetch only some of a step's missing entries
//!   from flash fetches the first of them, and requests only that part of the step.
//! - W2: a step is bounded work, and reports it. An expired entry costs as much as any other.

use crate::index::bucket::{Slot, View};
use crate::session::Guard;
use crate::{Error, Object, TableId};
use duramen_format::entry::Entry;

/// Empty buckets that cost as much as one entry.
const BUCKETS_PER_ENTRY: usize = 16;
/// A step that wants fewer objects may look at this many entries nevertheless.
const LOOKS_MIN: usize = 64;

/// The work of a step (W2).
pub(crate) struct Looks {
    buckets: usize,
    most: usize,
}

impl Looks {
    /// The work of a step that wants `count` objects, before it begins.
    pub(crate) fn new(count: usize) -> Looks {
        Looks {
            buckets: 0,
            most: count.max(LOOKS_MIN).saturating_mul(BUCKETS_PER_ENTRY),
        }
    }

    pub(crate) fn bucket(&mut self) {
        self.buckets += 1;
    }

    pub(crate) fn entry(&mut self) {
        self.buckets += BUCKETS_PER_ENTRY;
    }

    pub(crate) fn are_many(&self) -> bool {
        self.buckets > self.most
    }

    /// The work so far, in entries.
    pub(crate) fn sum(&self) -> usize {
        self.buckets.div_ceil(BUCKETS_PER_ENTRY)
    }
}

/// Entries of a bucket that are on flash.
pub(crate) struct Lacking {
    /// The error for the first of them.
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

/// Walks of a guard over a table, or a range of one.
pub struct Walks<'g, 's> {
    pub(crate) guard: &'g Guard<'s>,
}

impl<'s> Guard<'s> {
    /// The guard's walks over tables and ranges.
    pub fn walk(&self) -> Walks<'_, 's> {
        Walks { guard: self }
    }
}

impl<'s> Walks<'_, 's> {
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
        let step = self.scan_as(table, cursor, count, false, show);
        step.map(|(next, _)| next)
    }

    /// As [`scan`](Self::scan); returns the number of entries that it looked at, too, where 16
    /// buckets count as one entry. `partly`: ends before the first object on flash, if it has come
    /// further than `cursor`.
    ///
    /// # Errors
    /// Those of [`scan`](Self::scan).
    pub fn scan_as(
        &self,
        table: TableId,
        cursor: u64,
        count: usize,
        partly: bool,
        mut show: impl FnMut(Object<'_>),
    ) -> Result<(u64, usize), Error> {
        let guard = self.guard;
        if let Some(draft) = guard.draft()
            && cursor == 0
        {
            draft.show_new(guard.now_ms(), table, &mut show);
        }
        let (core, index) = (guard.pin.core(), guard.pin.index(table)?);
        let Some((mut partition, mut tag)) = index.at_position(cursor) else {
            return Ok((0, 0));
        };
        let begin = index.position(partition, tag);
        let (mut shown, mut looks) = (0, Looks::new(count));
        let mut cold = None;
        while partition < index.partitions().len() {
            let view = index.partitions()[partition].view();
            let first = if view.len() == 0 { 0 } else { view.home(tag) };
            for bucket in first..view.len() {
                if shown >= count.max(1) || looks.are_many() {
                    guard
                        .seen
                        .observe_gaps(core, index, &index.partitions()[partition]);
                    let next = index.position(partition, view.first_tag(bucket));
                    return cold.map_or(Ok((next, looks.sum())), Err);
                }
                looks.bucket();
                let shows = |slot: Slot, entry| {
                    looks.entry();
                    if core.space.is_undurable(slot.location()) {
                        guard.seen.observe_entry(core, index, slot.location());
                    }
                    if let Some(object) = guard.pin.object(entry) {
                        shown += 1;
                        match guard.draft() {
                            None => show(object),
                            Some(draft) => draft.show(guard, table, object, &mut show),
                        }
                    }
                };
                if let Err(lacking) = self.show_bucket(view, (bucket, tag), shows) {
                    let at = index.position(partition, lacking.first_tag);
                    if partly && cold.is_none() && at > begin {
                        guard
                            .seen
                            .observe_gaps(core, index, &index.partitions()[partition]);
                        guard.pin.take_colds();
                        return Ok((at, looks.sum()));
                    }
                    shown += lacking.entries;
                    cold.get_or_insert(lacking.error);
                }
                tag = 0;
            }
            guard
                .seen
                .observe_gaps(core, index, &index.partitions()[partition]);
            (partition, tag) = (partition + 1, 0);
            looks.bucket();
        }
        cold.map_or(Ok((0, looks.sum())), Err)
    }

    /// Shows the entries whose home is a bucket from a tag on, up to the first that is on flash.
    pub(crate) fn show_bucket(
        &self,
        view: View<'_>,
        (bucket, from): (usize, u64),
        mut show: impl FnMut(Slot, Entry<'s>),
    ) -> Result<(), Lacking> {
        let pin = &self.guard.pin;
        let entries = pin.entries();
        let (mut warm, mut cold): (Vec<Slot>, Vec<Slot>) = Default::default();
        let mut lacking: Option<Lacking> = None;
        let has_tier = pin.core().tier().is_some();
        if let Err(error) = pin.core().slots().check(view, bucket) {
            return Err(Lacking {
                error,
                entries: 0,
                first_tag: view.first_tag(bucket).max(from),
            });
        }
        view.each_homed(bucket, pin.me(), |slot| {
            if slot.tag() < from {
                return; // shown before
            }
            if has_tier && entries.memory_of(slot.location()).is_none() {
                return cold.push(slot);
            }
            if has_tier {
                return warm.push(slot);
            }
            match entries.entry_in_walk(slot.location()) {
                Ok(entry) => show(slot, entry),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        });
        cold.sort_unstable_by_key(|slot| slot.tag());
        for slot in cold {
            match entries.entry_in_walk(slot.location()) {
                Ok(_) => warm.push(slot),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        }
        let end = lacking
            .as_ref()
            .map_or(u64::MAX, |lacking| lacking.first_tag);
        for slot in warm.into_iter().filter(|slot| slot.tag() < end) {
            match entries.entry_in_walk(slot.location()) {
                Ok(entry) => show(slot, entry),
                Err(error) => Lacking::note(&mut lacking, slot, error),
            }
        }
        lacking.map_or(Ok(()), Err)
    }

    /// The cursor of a random bucket of the table.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn random_place(&self, table: TableId, random: u64) -> Result<u64, Error> {
        let index = self.guard.pin.index(table)?;
        let partitions = index.partitions();
        let partition = (random >> 32) as usize % partitions.len();
        let view = partitions[partition].view();
        let tag = match view.len() {
            0 => 0,
            buckets => view.first_tag(random as u32 as usize % buckets),
        };
        Ok(index.position(partition, tag))
    }
}
