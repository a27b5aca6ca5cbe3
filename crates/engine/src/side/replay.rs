//! The replay of entries into a side log.

use super::completions::Take;
use super::{SideError, SideLog, close};
use crate::cleaner::pacer::{Waiting, find_memory};
use crate::core::damage::EntryDamage;
use crate::core::flash::{Demotion, Gather};
use crate::core::{Core, Visitor};
use crate::counters::Counters;
use crate::head::Tail;
use crate::index::bucket::{Locking, Slot, View};
use crate::index::change::{Change, Counted, Dropped};
use crate::index::{Index, Partition, Resize};
use crate::load::key_is;
use crate::log::Log;
use crate::space::{Purpose, Space};
use crate::{Error, KeyHash, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Completion, Entry, Kind, NewObject, NewTombstone};
use duramen_format::{mend, segment};
use std::sync::atomic::Ordering;

/// Entries whose cache misses overlap.
const GROUP: usize = 32;
/// Maximum attempts of one entry to get memory for the index: more than it can need.
const INDEX_ATTEMPTS_MAX: u32 = 64;
/// Maximum attempts while segments go to flash to free memory: a device may stand still for ten
/// seconds, as a disk may.
const INDEX_ATTEMPTS_FLASH: u32 = 50_000;

/// A resource that an entry needs before it can be settled; obtained with no lock held, and
/// outside.
#[derive(Clone, Copy)]
enum Need {
    Segment,
    /// Memory for the index or the tombstones.
    Memory,
    /// Entries that are on flash: one of them may be of the same key.
    Flash,
    /// The index has an entry with more damage than one bit, and it may be of the same key: the
    /// side log cannot be filled (sound::V1).
    Sound,
}

/// Result for an entry under its bucket's lock.
enum Settled {
    Done,
    /// The index has no room here: resize the partition.
    Grow,
    Needs(Need),
}

/// The index's slot and entry for a key.
type Rival<'v> = Option<(&'v AtomicU64, Slot, Entry<'v>)>;

/// The effect of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Put,
    /// A tombstone, or an object that has expired.
    Kill,
    Complete,
}

/// An entry that is being looked up.
struct Arrival<'a, 'b> {
    entry: &'a Entry<'b>,
    /// Its bytes as they came.
    raw: &'b [u8],
    table: TableId,
    hash: KeyHash,
    index: &'a Index,
    action: Action,
}

/// An entry, and its bytes as they came.
type Came<'b> = (Entry<'b>, &'b [u8]);

/// side::S7: whether the next entry makes this one have no effect: it is of the same key, and newer
/// or the tombstone of this version.
fn is_outdone(entry: &Entry<'_>, next: &Entry<'_>) -> bool {
    let is_record = entry.kind == Kind::Completion || next.kind == Kind::Completion;
    if is_record || (entry.table, entry.key) != (next.table, next.key) {
        return false;
    }
    let is_killed = next.kind == Kind::Tombstone && next.version == entry.version;
    next.version > entry.version || is_killed || has_bug(Bug::SkipsByPlace)
}

/// Entries that are looked up together.
struct Group<'b> {
    places: [Option<Came<'b>>; GROUP],
    filled: usize,
    /// Number, bytes and highest version of all entries that came, also of those that were outdone.
    count: u64,
    bytes: u64,
    version_max: u64,
}

impl<'b> Group<'b> {
    fn new() -> Group<'b> {
        Group {
            places: [const { None }; GROUP],
            filled: 0,
            count: 0,
            bytes: 0,
            version_max: 0,
        }
    }

    /// Adds an entry, in the place of the last one if that is outdone (side::S7). Returns false if
    /// the group is full.
    fn add(&mut self, came: &Came<'b>) -> bool {
        let (entry, raw) = came;
        let last = self.filled.checked_sub(1);
        let last = last.and_then(|last| self.places[last].as_ref());
        if last.is_some_and(|(last, _)| is_outdone(last, entry)) {
            self.filled -= 1;
        }
        let Some(place) = self.places.get_mut(self.filled) else {
            return false;
        };
        *place = Some((*entry, raw));
        self.filled += 1;
        self.count += 1;
        self.bytes += entry.padded_bytes as u64;
        self.version_max = self.version_max.max(entry.version);
        true
    }
}

/// One call of [`SideLog::replay`].
struct Replay<'a> {
    side: &'a SideLog,
    core: &'a Core,
    log: &'a Log,
    visitor: Visitor<'a>,
    me: u16,
    tail: Tail,
    kept_objects: u64,
    kept_bytes: u64,
    dead_bytes: u64,
    /// Entries on flash that have the same tag as an entry of the group.
    cold: Gather,
}

impl SideLog {
    /// Replays entries, one after the other without gaps: a segment's bytes without its header, or
    /// any choice of them. Each is verified; one flipped bit of it is put back. Returns their
    /// number. May be called by several threads; the same entries may come again.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn replay(&self, bytes: &[u8]) -> Result<u64, SideError> {
        let tail = self.begin()?;
        let visitor = Visitor::wait(self.core());
        let mut replay = Replay {
            side: self,
            core: self.core(),
            log: self.log(),
            me: visitor.slot.0 as u16 + 1,
            visitor,
            tail,
            kept_objects: 0,
            kept_bytes: 0,
            dead_bytes: 0,
            cold: Gather::default(),
        };
        let result = replay.run(bytes);
        let totals = &self.totals;
        totals
            .kept_objects
            .fetch_add(replay.kept_objects, Ordering::Relaxed);
        totals
            .kept_bytes
            .fetch_add(replay.kept_bytes, Ordering::Relaxed);
        totals
            .dead_bytes
            .fetch_add(replay.dead_bytes, Ordering::Relaxed);
        let failed = matches!(result, Err(SideError::Store(_)));
        self.end(std::mem::take(&mut replay.tail), failed);
        result
    }

    /// The floor of a table, or of its parts.
    fn floor(&self, table: TableId) -> u64 {
        if self.floors.is_empty() {
            return 0;
        }
        self.floors.get(&table.whole()).copied().unwrap_or(0)
    }
}

impl Replay<'_> {
    fn run(&mut self, bytes: &[u8]) -> Result<u64, SideError> {
        let (mut at, mut entries) = (0, 0);
        let mut group = Group::new();
        while at < bytes.len() {
            let rest = &bytes[at..];
            match entry::parse(rest) {
                Ok(entry) => {
                    let (raw, _) = rest.split_at(entry.padded_bytes);
                    at += entry.padded_bytes;
                    if !group.add(&(entry, raw)) {
                        self.settle_counted(&mut group)?;
                        group.add(&(entry, raw));
                    }
                }
                Err(damage) => {
                    self.settle_counted(&mut group)?;
                    at += self.settle_mended(rest, at, damage)?;
                }
            }
            entries += 1;
        }
        self.settle_counted(&mut group)?;
        Ok(entries)
    }

    /// Settles a group, counts it and empties it.
    fn settle_counted(&mut self, group: &mut Group<'_>) -> Result<(), SideError> {
        self.settle_group(&group.places)?;
        let totals = &self.side.totals;
        totals.entries.fetch_add(group.count, Ordering::Relaxed);
        totals.bytes.fetch_add(group.bytes, Ordering::Relaxed);
        let version_max = group.version_max;
        totals.version_max.fetch_max(version_max, Ordering::Relaxed);
        *group = Group::new();
        Ok(())
    }

    /// Settles the damaged entry that `rest` begins with, if one flipped bit explains it: a copy in
    /// which the bit is put back. Returns its length.
    #[cold]
    fn settle_mended(
        &mut self,
        rest: &[u8],
        at: usize,
        damage: entry::Damage,
    ) -> Result<usize, SideError> {
        let wrong = SideError::Damaged { offset: at, damage };
        let mut copy = rest.to_vec();
        let mended = mend::entry_at(&mut copy, 0, mend::SURE_BYTES_MAX).ok_or(wrong.clone())?;
        let entry = entry::parse(&copy).map_err(|_| wrong)?;
        let bytes = entry.padded_bytes;
        let mut group = Group::new();
        group.add(&(entry, &copy[..bytes]));
        self.settle_counted(&mut group)?;
        self.core.listeners.damages.tell(EntryDamage {
            segment: SegmentId::NONE,
            is_mended: true,
            what: format!("an entry that came from another server, {mended}"),
        });
        Ok(bytes)
    }

    fn settle_group(&mut self, group: &[Option<Came<'_>>]) -> Result<(), SideError> {
        let (mut done, mut attempts) = (0, 0);
        while done < group.len() {
            self.core.door.enter(self.visitor.slot);
            let (settled, need) = self.settle_some(&group[done..]);
            self.core.door.leave(self.visitor.slot);
            if settled > 0 {
                attempts = 0;
                // bulk::F10; if no entry was settled, all entries that the next one needs must be
                // held together
                self.cold.forget();
            }
            done += settled;
            match need {
                None => {}
                Some(Need::Segment) => self.open_segment()?,
                Some(Need::Memory) => self.find_index_memory(&mut attempts)?,
                Some(Need::Flash) => {
                    self.cold.fetch(self.core)?;
                }
                Some(Need::Sound) => return Err(SideError::Store(Error::Damaged)),
            }
        }
        Ok(())
    }

    /// Settles entries until one needs a resource; returns the number that it has passed. Pinned.
    fn settle_some(&mut self, group: &[Option<Came<'_>>]) -> (usize, Option<Need>) {
        let core = self.core;
        self.cold.look_anew(); // an earlier entry did not need what it noted
        let now_ms = core.clock().now_ms();
        let lacks_index = |came: &Option<Came<'_>>| {
            let table = came.as_ref().map(|(entry, _)| TableId(entry.table));
            table.is_some_and(|table| !core.prepare_index(table))
        };
        let ready = group.iter().position(lacks_index);
        let (group, need) = match ready {
            Some(ready) => (&group[..ready], Some(Need::Memory)),
            None => (group, None),
        };
        let mut arrivals: [Option<Arrival<'_, '_>>; GROUP] = [const { None }; GROUP];
        for (arrival, place) in arrivals.iter_mut().zip(group) {
            *arrival = place
                .as_ref()
                .and_then(|(entry, raw)| self.arrival(entry, raw, now_ms));
        }
        for arrival in arrivals.iter().flatten() {
            let view = arrival.index.partition(arrival.hash).view();
            if view.len() != 0
                && let Some(location) = view.peek(arrival.index.tag(arrival.hash))
            {
                crate::index::prefetch::prefetch(core.space.at(location));
            }
        }
        let settled = core.actors.as_guest(|counters| {
            for (n, arrival) in arrivals.iter().take(group.len()).enumerate() {
                if let Some(arrival) = arrival
                    && let Some(need) = self.settle(counters, n, arrival)
                {
                    return (n, Some(need));
                }
            }
            (group.len(), need)
        });
        if let (done, Some(Need::Flash)) = settled {
            self.look_ahead(&arrivals, done + 1);
        }
        settled
    }

    /// Notes entries that the arrivals from `first` on may need from flash, to be read together
    /// with those of the arrival before. Pinned.
    fn look_ahead(&mut self, arrivals: &[Option<Arrival<'_, '_>>], first: usize) {
        let core = self.core;
        let stamp = core.door.epochs().stamp_of(self.visitor.slot);
        for (n, arrival) in arrivals.iter().enumerate().skip(first) {
            let Some(arrival) = arrival
                .as_ref()
                .filter(|other| other.action != Action::Complete)
            else {
                continue;
            };
            let view = arrival.index.partition(arrival.hash).view();
            if view.len() != 0 {
                view.each_tagged(arrival.index.tag(arrival.hash), |slot| {
                    let _ = self.cold.look(core, stamp, n, slot.location());
                });
            }
        }
    }

    /// `None`: the entry belongs to no table.
    fn arrival<'a, 'b>(
        &self,
        entry: &'a Entry<'b>,
        raw: &'b [u8],
        now_ms: u64,
    ) -> Option<Arrival<'a, 'b>>
    where
        Self: 'a,
    {
        let core: &Core = self.core;
        let table = TableId(entry.table);
        let is_completion = entry.kind == Kind::Completion;
        if !is_completion && entry.version < self.side.floor(table) {
            return None;
        }
        let index = core.tables.index(table).ok()?;
        let hash = core.tables.hash(entry.key);
        let view = index.partition(hash).view();
        if view.len() != 0 {
            crate::index::prefetch::prefetch_pair(view.line(view.home(index.tag(hash))));
        }
        let expired = entry.expires_at_ms != 0 && is_expired(entry.expires_at_ms, now_ms);
        Some(Arrival {
            entry,
            raw,
            table,
            hash,
            index,
            action: match entry.kind {
                Kind::Completion => Action::Complete,
                Kind::Object if !expired => Action::Put,
                Kind::Object | Kind::Tombstone => Action::Kill,
            },
        })
    }

    /// Settles the `n`th arrival of its group (side::S1). `Some`: the entry needs this resource
    /// first, and was not settled.
    fn settle(&mut self, counters: &Counters, n: usize, arrival: &Arrival<'_, '_>) -> Option<Need> {
        if arrival.action == Action::Complete {
            return self.complete(counters, arrival);
        }
        let (partition, tag) = (
            arrival.index.partition(arrival.hash),
            arrival.index.tag(arrival.hash),
        );
        loop {
            let with = self.core.resources();
            let Some((view, home, locking)) = partition.lock(tag, self.me, with) else {
                return Some(Need::Memory);
            };
            debug_assert!(locking == Locking::Taken);
            let change = Change {
                partition,
                view,
                space: &self.core.space,
                counters,
            };
            let settled = match self.rival(n, arrival, view) {
                Err(need) => Settled::Needs(need),
                Ok(rival) if arrival.action == Action::Kill => self.kill(arrival, change, rival),
                Ok(rival) => self.put(arrival, change, rival),
            };
            view.unlock(home);
            match settled {
                Settled::Done => {
                    if partition.wants_growth(view.len()) {
                        // An error is ignored: without memory to grow, the partition takes keys
                        // until it is full.
                        let _ = partition.resize(self.room_for(arrival, partition), self.me, with);
                    }
                    return None;
                }
                Settled::Grow => {
                    let more = self.room_for(arrival, partition);
                    match partition.grow(more, self.me, with) {
                        Resize::NoMemory => return Some(Need::Memory),
                        Resize::Damaged if !self.core.slots().mend_partition(partition) => {
                            return Some(Need::Sound);
                        }
                        Resize::Done | Resize::Damaged | Resize::Busy => {}
                    }
                }
                Settled::Needs(need) => return Some(need),
            }
        }
    }

    /// Number of keys for which a partition of the index is enlarged: its share of the expected
    /// ones, but at most its present number.
    fn room_for(&self, arrival: &Arrival<'_, '_>, partition: &Partition) -> i64 {
        let expected = self.side.expected.load(Ordering::Relaxed);
        let share = expected / arrival.index.partitions().len() as u64;
        (share as i64).min(partition.count()).max(1)
    }

    /// The index's entry for the key. Its bucket is locked, and the caller is pinned.
    ///
    /// # Errors
    /// [`Need::Flash`]: it may be among the entries on flash. [`Need::Sound`].
    fn rival<'v>(
        &mut self,
        n: usize,
        arrival: &Arrival<'_, '_>,
        view: View<'v>,
    ) -> Result<Rival<'v>, Need> {
        let (core, cold) = (self.core, &mut self.cold);
        let stamp = core.door.epochs().stamp_of(self.visitor.slot);
        let (mut rival, mut lacks) = (Ok(std::ptr::null::<u8>()), false);
        let home = view.home(arrival.index.tag(arrival.hash));
        core.slots().check(view, home).map_err(|_| Need::Sound)?;
        let found = view.find(arrival.index.tag(arrival.hash), self.me, |slot| {
            let at = match has_bug(Bug::RivalsUnverified) {
                true => Ok(cold.look(core, stamp, n, slot.location()).map(|it| it.at)),
                false => cold.sound(core, stamp, n, slot.location()),
            };
            match at {
                Ok(Some(at)) => {
                    rival = Ok(at);
                    key_is(at, arrival.entry.key)
                }
                Ok(None) => {
                    lacks = !has_bug(Bug::SideForgetsCold);
                    false
                }
                Err(_) => {
                    rival = Err(Need::Sound);
                    true
                }
            }
        });
        match found {
            // SAFETY: the index pointed to it under our pin, and its bucket is locked: a whole
            // entry, not reused, and in memory as long (core::flash::F2); or a verified copy of
            // it, which is not forgotten before the pin ends.
            Some((place, slot)) => Ok(Some((place, slot, unsafe { entry::parse_trusted(rival?) }))),
            None if lacks => Err(Need::Flash),
            None => Ok(None),
        }
    }

    /// Handles an object. The bucket is locked.
    fn put(&mut self, arrival: &Arrival<'_, '_>, change: Change<'_>, rival: Rival<'_>) -> Settled {
        let (core, log, entry) = (self.core, self.log, arrival.entry);
        let (table, hash) = (arrival.table, arrival.hash);
        let last_wins = has_bug(Bug::SideLastWins);
        let tombstones = &self.side.tombstones;
        if tombstones.kills(table, hash, entry.key, entry.version) {
            return Settled::Done;
        }
        if let Some((_, _, rival)) = &rival
            && rival.version >= entry.version
            && !last_wins
        {
            return Settled::Done;
        }
        let victim = match &rival {
            Some((_, slot, _)) if !has_bug(Bug::SideNamesNoVictim) => {
                log.windows()
                    .victim(&core.space, slot.location(), self.tail.window()) // side::S2
            }
            _ => SegmentId::NONE,
        };
        let object = NewObject {
            table: entry.table,
            version: entry.version,
            expires_at_ms: (entry.expires_at_ms != 0).then_some(entry.expires_at_ms),
            key: entry.key,
            value: entry.value,
            victim,
            is_typed: entry.is_typed,
        };
        let bytes = object.padded_bytes();
        if !self.tail.fits(bytes) {
            return Settled::Needs(Need::Segment);
        }
        if rival.is_none() && !change.partition.count_insert(change.view.len(), false) {
            return Settled::Grow;
        }
        let as_it_came = victim == SegmentId::NONE && entry.victim == SegmentId::NONE;
        let location = self.append(bytes, |out| {
            if as_it_came {
                out.copy_from_slice(arrival.raw);
            } else {
                object.write_to(out);
            }
        });
        if entry.expires_at_ms != 0
            && let Some(window) = self.tail.window()
        {
            let segment = &core.space.segments[window as usize];
            segment.note_expiry(bytes as u32, entry.expires_at_ms);
        }
        change.counters.note_loaded(bytes);
        self.kept_objects += 1;
        let new = Counted::of(entry);
        if let Some((place, slot, rival)) = rival {
            self.dead_bytes += rival.padded_bytes as u64;
            change.replace(
                Dropped::new(place, slot, &rival),
                slot.moved_to(location),
                new,
            );
        } else {
            let tag = arrival.index.tag(hash);
            change.insert(tag, Slot::new(tag, location), new);
        }
        Settled::Done
    }

    /// Handles a tombstone, or an expired object. The bucket is locked.
    fn kill(&mut self, arrival: &Arrival<'_, '_>, change: Change<'_>, rival: Rival<'_>) -> Settled {
        let (core, log, entry) = (self.core, self.log, arrival.entry);
        let (table, hash) = (arrival.table, arrival.hash);
        if let Some((_, _, rival)) = &rival
            && rival.version > entry.version
        {
            return Settled::Done; // it is still there when an entry comes that this one kills
        }
        let tombstone = rival.as_ref().map(|(_, slot, _)| NewTombstone {
            table: entry.table,
            version: entry.version,
            key: entry.key,
            victim: log.segment_of(core.space.window_of(slot.location())), // side::S2
        });
        let bytes = tombstone.as_ref().map_or(0, NewTombstone::padded_bytes);
        if !self.tail.fits(bytes) {
            return Settled::Needs(Need::Segment);
        }
        let forgets = has_bug(Bug::SideForgetsTombstones);
        let tombstones = &self.side.tombstones;
        if !forgets && !tombstones.insert(&core.space, table, hash, entry.key, entry.version) {
            return Settled::Needs(Need::Memory);
        }
        if let (Some((place, slot, rival)), Some(tombstone)) = (rival, tombstone) {
            if !has_bug(Bug::SideNamesNoVictim) {
                self.append(bytes, |out| tombstone.write_to(out));
                change.counters.note_tombstone(bytes);
            }
            self.dead_bytes += (rival.padded_bytes + bytes) as u64;
            let tag = arrival.index.tag(hash);
            change.remove(tag, Dropped::new(place, slot, &rival));
        }
        Settled::Done
    }

    /// Handles a completion record: it is taken over as it is, once.
    fn complete(&mut self, counters: &Counters, arrival: &Arrival<'_, '_>) -> Option<Need> {
        let record = Completion::of(arrival.entry)?;
        let bytes = arrival.raw.len();
        if !self.tail.fits(bytes) {
            return Some(Need::Segment);
        }
        match self.side.completions.insert(&self.core.space, &record) {
            Take::New => {}
            Take::Known => return None,
            Take::NoMemory => return Some(Need::Memory),
        }
        self.dead_bytes += bytes as u64; // for the segments a record counts as dead
        self.append(bytes, |out| out.copy_from_slice(arrival.raw));
        counters.note_tombstone(bytes);
        self.core.listeners.tracker.met(arrival.entry);
        None
    }

    /// Writes an entry for which there is room; returns its location.
    fn append(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> u64 {
        let location = Space::location(self.tail.take(bytes));
        let at = self.core.space.at(location);
        // SAFETY: bytes that this call just took in its own segment, which no other thread writes
        // or reads before `record`.
        write(unsafe { std::slice::from_raw_parts_mut(at, bytes) });
        self.tail.record(&self.core.space);
        self.kept_bytes += bytes as u64;
        location
    }

    /// Closes the segment, if there is one, and opens another. Outside.
    fn open_segment(&mut self) -> Result<(), Error> {
        let (core, log) = (self.core, self.log);
        close(core, log, &mut self.tail);
        let heads = core.actors.heads();
        let helper = &heads[self.visitor.slot.0 % heads.len()];
        let window = loop {
            log.refusals().check()?;
            core.windows().take_back_released();
            if !core.is_cache() && core.is_full() {
                return Err(core.out_of_memory());
            }
            if let Some(window) = core.windows().open(helper.node, Purpose::Side, 0) {
                break window;
            }
            find_memory(core, helper, self.me, Waiting::Outside, Purpose::Side)?;
        };
        let segment = log.numbers().new_segment_id(); // side::S5: an id above earlier positions
        log.windows()
            .give(&core.space, window, segment, segment::Kind::Survivor, 0);
        let careless = has_bug(Bug::SideIsCleaned);
        log.swaps().opened_side(segment, window, careless);
        self.tail.roll(&core.space, window);
        self.side.state().segments.push((segment, window));
        Ok(())
    }

    /// Gives memory of free windows to the index, which lacks some. Outside.
    fn find_index_memory(&mut self, attempts: &mut u32) -> Result<(), Error> {
        let core = self.core;
        *attempts += 1;
        let heads = core.actors.heads();
        let helper = &heads[self.visitor.slot.0 % heads.len()];
        let press = |demotion: Demotion<'_>| demotion.press_and_wait(helper.node);
        let patience = match core.demotion().is_some_and(press) {
            true => INDEX_ATTEMPTS_FLASH,
            false => INDEX_ATTEMPTS_MAX,
        };
        if *attempts > patience {
            return Err(core.out_of_memory());
        }
        if !core.space.release_one(helper.node) {
            find_memory(core, helper, self.me, Waiting::Outside, Purpose::Side)?;
            core.space.release_one(helper.node);
        }
        Ok(())
    }
}
