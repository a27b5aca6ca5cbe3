//! Walks over a range: shown to a guard, counted, exported as entries, and sampled for statistics.

use super::cold::{ColdSegments, Look};
use super::{Place, Ranges, contains, entry_at, goes_on_with_parts};
use crate::cleaner::candidate::Candidate;
use crate::core::flash::Gather;
use crate::core::sound::{self, Sound};
use crate::core::{Core, Visitor};
use crate::device::Cold;
use crate::index::Index;
use crate::index::bucket::Slot;
use crate::scan::{Looks, Walks};
use crate::{DirtyKey, Error, Object, Store, TableId};
use duramen_base::ids::{KeyRange, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Entry, Kind, NewObject, NewTombstone};
use duramen_format::hash;
use std::collections::VecDeque;
use std::sync::Arc;

/// Buckets visited under one pin: some 700 entries.
const STEP_BUCKETS: usize = 128;
/// Entries of a segment on flash that are handled under one pin.
const STEP_ENTRIES: usize = 512;
/// Number of equal parts of the space of route hashes in statistics: 64 slots each.
pub const RANGE_PARTS: usize = 256;
/// Objects sampled for the statistics of a table: some 250 per part, so the error of a part is 7 %.
const SAMPLES: u64 = 64 << 10;
/// Limits for sampled objects on flash: number that are read, number that are read together, and
/// bytes. The others are assumed to be like them. That is some 16 per part, in some ten
/// milliseconds.
const COLD_SAMPLES: usize = 4 << 10;
const COLD_SAMPLES_AT_ONCE: usize = 64;
const COLD_SAMPLE_BYTES: usize = 32 << 20;

/// Number and size of a range's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCount {
    /// Parts do not count.
    pub objects: u64,
    /// Bytes of their entries, and of parts.
    pub bytes: u64,
}

/// One part of the hash space; see [`RANGE_PARTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangePart {
    /// Objects, and parts of collections.
    pub entries: u64,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// The distribution of a table's objects over the space of route hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeStatistics {
    pub table: TableId,
    /// [`RANGE_PARTS`] of them.
    pub parts: Vec<RangePart>,
}

impl Walks<'_, '_> {
    /// Shows about `count` objects of a range from `cursor` (0 = start) in the order of the index;
    /// returns the next cursor, or `None` at the end. An object that exists for the whole walk is
    /// shown exactly once, whatever grows or moves meanwhile; objects of equal hash are shown by
    /// one call.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Cold`] if some entries are on flash: the session has noted
    /// all of them, in the same order.
    pub fn scan_range(
        &self,
        table: TableId,
        range: &KeyRange,
        cursor: u64,
        count: usize,
        show: impl FnMut(Object<'_>),
    ) -> Result<Option<u64>, Error> {
        let mut show = show;
        let shows = |object: Object<'_>| {
            show(object);
            true
        };
        let step = self.scan_range_as((table, range), cursor, count, false, shows);
        step.map(|(next, _)| next)
    }

    /// As [`scan_range`](Self::scan_range); returns the number of entries that it looked at, too,
    /// as [`scan_as`](Self::scan_as) does. `partly`: ends before the first object on flash, if it
    /// has come further than `cursor`. `show` returns false to end the step behind this bucket.
    ///
    /// # Errors
    /// Those of [`scan_range`](Self::scan_range).
    pub fn scan_range_as(
        &self,
        (table, range): (TableId, &KeyRange),
        cursor: u64,
        count: usize,
        partly: bool,
        mut show: impl FnMut(Object<'_>) -> bool,
    ) -> Result<(Option<u64>, usize), Error> {
        let guard = self.guard;
        let (core, index) = (guard.pin.core(), guard.pin.index(table)?);
        let Some((partition, tag)) = index.at_position(cursor) else {
            return Ok((None, 0));
        };
        let begin = index.position(partition, tag);
        let mut place = Place { partition, tag };
        let (mut shown, mut looks) = (0, Looks::new(count));
        let mut cold = None;
        while !place.is_end(index) {
            if shown >= count.max(1) || looks.are_many() {
                let at = index.position(place.partition, place.tag);
                return cold.map_or(Ok((Some(at), looks.sum())), Err);
            }
            looks.bucket();
            let partition = &index.partitions()[place.partition];
            let Some((view, bucket)) = place.bucket(index, &core.space) else {
                guard.seen.observe_gaps(core, index, partition);
                continue;
            };
            let shows = |slot: Slot, entry: Entry<'_>| {
                looks.entry();
                if !contains(core, range, &entry) {
                    return;
                }
                if core.space.is_undurable(slot.location()) {
                    guard.seen.observe_entry(core, index, slot.location());
                }
                if let Some(object) = guard.pin.object(entry) {
                    shown += 1;
                    if !show(object) {
                        shown = shown.max(count);
                    }
                }
            };
            if let Err(lacking) = self.show_bucket(view, (bucket, place.tag), shows) {
                let at = index.position(place.partition, lacking.first_tag);
                if partly && cold.is_none() && at > begin {
                    guard.seen.observe_gaps(core, index, partition);
                    guard.pin.take_colds();
                    return Ok((Some(at), looks.sum()));
                }
                shown += lacking.entries;
                cold.get_or_insert(lacking.error);
            }
            // Done after the lookup: a key that was removed before it is recorded by now
            // (removals::M2).
            guard.seen.observe_gaps(core, index, partition);
            place = place.after(view, bucket);
        }
        cold.map_or(Ok((None, looks.sum())), Err)
    }
}

/// Visits every object of a table, then every part, exactly once, step by step (range::G1,
/// range::G2, range::G5).
struct Walk {
    store: Arc<Store>,
    /// The table, then its parts.
    table: TableId,
    place: Place,
    /// Entries of the next buckets that are on flash.
    cold: Gather,
}

impl Walk {
    fn new(store: &Arc<Store>, table: TableId) -> Walk {
        Walk {
            store: store.clone(),
            table,
            place: Place::START,
            cold: Gather::default(),
        }
    }

    /// Calls `visit` with the entries of some buckets. Buckets with missing entries on flash are
    /// visited by the next step; this one reads all these entries at its end. Returns false at the
    /// end of the walk.
    fn step(&mut self, mut visit: impl FnMut(&Core, &Entry<'_>)) -> Result<bool, Error> {
        let store = self.store.clone();
        let core = store.core();
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        let from = (self.table, self.place);
        let walked = core.tables.index(self.table).and_then(|index| {
            let mut ahead = self.place;
            let (mut homed, mut damage) = (Vec::new(), None);
            for bucket_number in 0..STEP_BUCKETS {
                if ahead.is_end(index) || self.cold.is_full() {
                    break;
                }
                let Some((view, bucket)) = ahead.bucket(index, &core.space) else {
                    if !self.cold.lacks() {
                        self.place = ahead; // goes past a partition without buckets
                    }
                    continue;
                };
                homed.clear();
                core.slots().check(view, bucket)?;
                view.each_homed(bucket, visitor.me(), |slot| {
                    if ahead.includes(slot) {
                        let sound = self.cold.sound(core, stamp, bucket_number, slot.location());
                        match sound {
                            Ok(at) => homed.extend(at),
                            Err(error) => damage = Some(error),
                        }
                    }
                });
                if let Some(error) = damage.take() {
                    return Err(error);
                }
                ahead = ahead.after(view, bucket);
                if !self.cold.lacks() {
                    for at in &homed {
                        // SAFETY: the index pointed to it under our pin, a whole entry, not reused
                        // and in memory as long (epoch::E2, engine::space::S3, core::flash::F2);
                        // or a verified copy of it (core::flash::F4), which is held until the end
                        // of the step.
                        visit(core, &unsafe { entry::parse_trusted(*at) });
                    }
                    self.place = ahead;
                }
            }
            let (table, place) = (&mut self.table, &mut self.place);
            Ok(!place.is_end(index) || goes_on_with_parts(core, table, place))
        });
        core.door.leave(visitor.slot);
        drop(visitor);
        // A step that made no progress is at a bucket whose entries must all be held together.
        if (self.table, self.place) != from {
            self.cold.forget();
        }
        self.cold.fetch(core)?;
        walked
    }
}

/// Writes the objects of a range as entries, for a [`SideLog`](crate::SideLog) of another server.
pub struct Export {
    store: Arc<Store>,
    /// The table, then its parts (range::G5).
    table: TableId,
    range: KeyRange,
    place: Place,
    cold: ColdSegments,
    /// Tags and locations of one bucket; kept to be used again.
    here: Vec<(u64, u64)>,
}

impl Ranges<'_> {
    /// Counts the objects of a range. Visits the whole table, in short steps, and reads each entry
    /// that is on flash.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::FlashFailed`], [`Error::Damaged`].
    pub fn count(self, table: TableId, range: KeyRange) -> Result<RangeCount, Error> {
        let mut walk = Walk::new(self.store, table);
        let mut count = RangeCount::default();
        loop {
            let more = walk.step(|core, entry| {
                if contains(core, &range, entry) {
                    count.objects += u64::from(!TableId(entry.table).is_parts());
                    count.bytes += entry.padded_bytes as u64;
                }
            })?;
            if !more {
                return Ok(count);
            }
        }
    }

    /// Begins to export a range: objects in memory in the order of the index, and each segment on
    /// flash when it is met (range::G4).
    pub fn export(self, table: TableId, range: KeyRange) -> Export {
        Export {
            store: self.store.clone(),
            table,
            range,
            place: Place::START,
            cold: ColdSegments::default(),
            here: Vec::new(),
        }
    }

    /// Appends the present state of these keys to `out`, as entries: the object, or a tombstone of
    /// the version that the key is known to have had ([`Watch::take`](crate::Watch::take)).
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::FlashFailed`], [`Error::Damaged`]: `out` is incomplete.
    pub fn export_keys(
        self,
        table: TableId,
        keys: &[DirtyKey],
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.export_some_keys(table, &mut keys.iter().cloned().collect(), usize::MAX, out)
    }

    /// As [`export_keys`](Self::export_keys), until `out` has `bytes_max` bytes, or one object
    /// more; takes the exported keys out of `keys`.
    ///
    /// # Errors
    /// Those of [`export_keys`](Self::export_keys).
    pub fn export_some_keys(
        self,
        table: TableId,
        keys: &mut VecDeque<DirtyKey>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let core = self.store.core();
        let mut cold = Gather::default();
        while !keys.is_empty() && out.len() < bytes_max {
            let visitor = Visitor::wait(core);
            core.door.enter(visitor.slot);
            let before = keys.len();
            let (mut again, mut written) = (Vec::new(), Ok(()));
            for number in 0..STEP_BUCKETS {
                if cold.is_full() || out.len() >= bytes_max {
                    break;
                }
                let Some(wanted) = keys.pop_front() else {
                    break;
                };
                match export_key(&visitor, table, &mut cold, number, &wanted, out) {
                    Ok(true) => {}
                    Ok(false) => again.push(wanted),
                    Err(error) => {
                        again.push(wanted);
                        written = Err(error);
                        break;
                    }
                }
            }
            again.into_iter().rev().for_each(|key| keys.push_front(key));
            core.door.leave(visitor.slot);
            drop(visitor);
            written?;
            // If no key could be exported, all entries of one key must be held together.
            if keys.len() < before {
                cold.forget();
            }
            cold.fetch(core)?;
        }
        Ok(())
    }

    /// The distribution of a table's objects over the hash space; for a large table from a sample,
    /// in some ten milliseconds. Computed on request, and not counted by writers: the slot of a key
    /// is costly, and only recovery needs this. For objects on flash a smaller sample is read, at
    /// most 32 MiB; objects that cannot be read are assumed to be spread evenly.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn statistics(self, table: TableId) -> Result<RangeStatistics, Error> {
        let every = (self.store.core().actors.entries(table) / SAMPLES).max(1);
        let mut sample = Sample {
            parts: vec![RangePart::default(); RANGE_PARTS],
            every,
            buckets: 0,
            cold: Vec::new(),
            colds: 0,
        };
        let (mut of, mut place) = (table, Place::START);
        // Hashes are spread evenly, so any choice of buckets is a fair one.
        while sample.step(self.store.core(), &mut of, &mut place)? {}
        self.sample_cold(&mut sample);
        let parts = sample.parts;
        Ok(RangeStatistics { table, parts })
    }

    /// Reads some of the sampled entries on flash, as a sample for all of them.
    fn sample_cold(self, sample: &mut Sample) {
        let core = self.store.core();
        let mut found = vec![RangePart::default(); RANGE_PARTS];
        let (mut gather, mut read, mut bytes) = (Gather::default(), 0, 0);
        for some in sample.cold.chunks(COLD_SAMPLES_AT_ONCE) {
            some.iter().for_each(|cold| gather.note(0, *cold));
            match gather.fetch(core) {
                Ok(more) if bytes < COLD_SAMPLE_BYTES => bytes += more,
                _ => break,
            }
            for at in some.iter().filter_map(|cold| gather.held(cold)) {
                // SAFETY: a verified copy of an entry, which is held until it is forgotten below.
                note(&mut found, 1, &unsafe { entry::parse_trusted(at) });
                read += 1;
            }
            gather.forget();
        }
        let each = sample.every as f64 * sample.colds as f64;
        if read == 0 {
            let tables = self.store.tables().list();
            let entries: u64 = tables
                .iter()
                .map(|table| core.actors.entries(table.id))
                .sum();
            let bytes = core.actors.live_bytes() as f64 / entries.max(1) as f64;
            for part in &mut sample.parts {
                part.entries += (each / RANGE_PARTS as f64) as u64;
                part.bytes += (bytes * each / RANGE_PARTS as f64) as u64;
            }
            return;
        }
        let weight = each / f64::from(read);
        for (part, found) in sample.parts.iter_mut().zip(found) {
            part.entries += (found.entries as f64 * weight).round() as u64;
            part.bytes += (found.bytes as f64 * weight).round() as u64;
        }
    }
}

/// Counts an entry that stands for `every` entries.
fn note(parts: &mut [RangePart], every: u64, entry: &Entry<'_>) {
    let part = entry.part_key();
    let slot = part.map_or_else(|| hash::slot(entry.key), |part| part.home().slot());
    let slot = usize::from(slot);
    if let Some(part) = parts.get_mut(slot * RANGE_PARTS / usize::from(hash::SLOTS)) {
        part.entries += every;
        part.bytes += every * entry.padded_bytes as u64;
    }
}

/// A sample of a table: every `every`th bucket.
struct Sample {
    parts: Vec<RangePart>,
    every: u64,
    /// Buckets passed.
    buckets: u64,
    /// The first entries met that are on flash: they are as good as any others.
    cold: Vec<Cold>,
    /// Number of all such entries.
    colds: u64,
}

impl Sample {
    /// Visits some buckets. Returns false at the end of the table.
    fn step(&mut self, core: &Core, table: &mut TableId, place: &mut Place) -> Result<bool, Error> {
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        let walked = core.tables.index(*table).map(|index| {
            let mut looked = 0;
            while looked < STEP_BUCKETS && !place.is_end(index) {
                let view = index.partitions()[place.partition].view();
                let bucket = if view.len() == 0 {
                    0
                } else {
                    view.home(place.tag)
                };
                self.buckets += 1;
                if view.len() != 0 && self.buckets.is_multiple_of(self.every) {
                    looked += 1;
                    view.each_homed(bucket, visitor.me(), |slot| {
                        self.look(core, stamp, slot.location());
                    });
                }
                *place = place.after(view, bucket);
            }
            !place.is_end(index) || goes_on_with_parts(core, table, place)
        });
        core.door.leave(visitor.slot);
        walked
    }

    /// Samples an entry. Pinned by `stamp`.
    fn look(&mut self, core: &Core, stamp: u64, location: u64) {
        let window = core.space.window_of(location);
        match core.tier() {
            Some(tier) if !tier.is_in_memory(window, stamp) => {
                self.colds += 1;
                if self.cold.len() < COLD_SAMPLES {
                    self.cold.push(tier.cold(&core.space, location, 0));
                }
            }
            _ => {
                // The sample is an estimate, so an entry with damage is left out.
                if let Ok(sound) = sound::at(core, location) {
                    note(&mut self.parts, self.every, &sound.entry);
                }
            }
        }
    }
}

impl Export {
    /// Appends entries to `out` until it has `bytes_max` bytes, or one object more (all objects of
    /// its hash). Returns early to let other work go on, and may read a segment from flash. Returns
    /// false at the end of the walk.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::Damaged`]; [`Error::FlashFailed`]: the next step tries
    /// again.
    pub fn step(&mut self, bytes_max: usize, out: &mut Vec<u8>) -> Result<bool, Error> {
        let store = self.store.clone();
        let core = store.core();
        self.cold.read(core)?;
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let more = core.tables.index(self.table).and_then(|index| {
            if self.passes_cold(core, bytes_max, out)? {
                self.some(&visitor, index, bytes_max, out)?;
            }
            let (table, place) = (&mut self.table, &mut self.place);
            Ok(!place.is_end(index) || goes_on_with_parts(core, table, place))
        });
        core.door.leave(visitor.slot);
        more
    }

    /// Writes the live entries of the segment that was read from flash. Returns true if the walk
    /// may go on.
    fn passes_cold(
        &mut self,
        core: &Core,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let (table, range) = (self.table.whole(), self.range);
        self.cold.show(core, STEP_ENTRIES, |location, entry| {
            if out.len() >= bytes_max {
                return false;
            }
            let of = TableId(entry.table);
            let is_of = entry.kind == Kind::Object && of.whole() == table;
            if is_of
                && contains(core, &range, entry)
                && let Ok(index) = core.tables.index(of)
            {
                let candidate = Candidate::new(core, index, location, *entry, false);
                // An entry in doubt is exported too: of several versions the newest wins at the
                // receiver.
                if candidate.find().is_some() || candidate.is_in_doubt(core) {
                    write(entry, out);
                }
            }
            true
        })
    }

    /// Writes those entries of some buckets that are in memory.
    fn some(
        &mut self,
        visitor: &Visitor<'_>,
        index: &Index,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let core = visitor.core;
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        for _ in 0..STEP_BUCKETS {
            if self.place.is_end(index) || out.len() >= bytes_max {
                break;
            }
            let Some((view, bucket)) = self.place.bucket(index, &core.space) else {
                continue;
            };
            let (place, cold, here) = (self.place, &mut self.cold, &mut self.here);
            let mut lacks = false;
            here.clear();
            core.slots().check(view, bucket)?;
            view.each_homed(bucket, visitor.me(), |slot| {
                if place.includes(slot) {
                    match cold.look(core, stamp, slot.location()) {
                        Look::Here => here.push((slot.tag(), slot.location())),
                        Look::Passed => {}
                        Look::Lacking => lacks = true,
                    }
                }
            });
            if lacks {
                break; // the next step reads it, and visits this bucket again
            }
            // Entries are exported in the order of their tags, so that a step can end within a
            // bucket of large objects (range::G1).
            here.sort_unstable();
            let mut before = None;
            for (tag, location) in here.drain(..) {
                if out.len() >= bytes_max && before.is_some_and(|before| before != tag) {
                    self.place.tag = tag;
                    return Ok(());
                }
                before = Some(tag);
                let sound = sound_at(core, location)?;
                if contains(core, &self.range, &sound.entry) {
                    write(&sound.entry, out);
                }
            }
            self.place = self.place.after(view, bucket);
        }
        Ok(())
    }
}

/// The verified entry at a location that the index has under the caller's pin (sound::V1): it gets
/// a new checksum when it is exported.
fn sound_at(core: &Core, location: u64) -> Result<Sound<'_>, Error> {
    if has_bug(Bug::ExportsUnverified) {
        let (entry, copy) = (entry_at(core, location), None);
        return Ok(Sound { entry, copy });
    }
    sound::at(core, location).map_err(|_| Error::Damaged)
}

/// Appends an object as it goes to another server, without the victim that it names, which is of
/// this log.
fn write(entry: &Entry<'_>, out: &mut Vec<u8>) {
    let object = NewObject {
        table: entry.table,
        version: entry.version,
        expires_at_ms: (entry.expires_at_ms != 0).then_some(entry.expires_at_ms),
        key: entry.key,
        value: entry.value,
        victim: SegmentId::NONE,
        is_typed: entry.is_typed,
    };
    let start = out.len();
    out.resize(start + object.padded_bytes(), 0);
    object.write_to(&mut out[start..]);
}

/// Writes the present state of a key of this table or of its parts. Returns false if an entry must
/// be read from flash first: nothing was written.
///
/// # Errors
/// [`Error::NoSuchTable`], [`Error::Damaged`].
fn export_key(
    visitor: &Visitor<'_>,
    table: TableId,
    cold: &mut Gather,
    number: usize,
    wanted: &DirtyKey,
    out: &mut Vec<u8>,
) -> Result<bool, Error> {
    let core = visitor.core;
    let table = match wanted.is_part {
        true => table.parts(),
        false => table,
    };
    let (index, key) = (core.tables.index(table)?, &wanted.key);
    let stamp = core.door.epochs().stamp_of(visitor.slot);
    let hash = core.tables.hash(key);
    let view = index.partition(hash).view();
    let (mut found, mut lacks, mut is_there) = (Ok(None), false, false);
    if view.len() != 0 {
        core.slots().check(view, view.home(index.tag(hash)))?; // else it might look removed
        let place = view.find(index.tag(hash), visitor.me(), |slot| {
            let at = match cold.sound(core, stamp, number, slot.location()) {
                Ok(Some(at)) => at,
                Ok(None) => {
                    lacks = true;
                    return false;
                }
                Err(error) => {
                    found = Err(error);
                    return true;
                }
            };
            // SAFETY: the index pointed to it under our pin: a whole entry, not reused and in
            // memory as long (epoch::E2, engine::space::S3, core::flash::F2); or a verified copy
            // of it (core::flash::F4), which is held until it is forgotten outside.
            let entry = unsafe { entry::parse_trusted(at) };
            let is_it = *entry.key == **key;
            if is_it {
                found = Ok(Some(entry));
            }
            is_it
        });
        is_there = place.is_some();
    }
    if is_there && let Some(entry) = found? {
        debug_assert!(entry.kind == Kind::Object);
        write(&entry, out);
        return Ok(true);
    }
    if lacks {
        return Ok(false);
    }
    let tombstone = NewTombstone {
        table: table.0,
        version: wanted.version,
        key,
        victim: SegmentId::NONE,
    };
    let start = out.len();
    out.resize(start + tombstone.padded_bytes(), 0);
    tombstone.write_to(&mut out[start..]);
    Ok(true)
}
