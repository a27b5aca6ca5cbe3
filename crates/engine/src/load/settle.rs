//! Settling: shows the entries of an adopted segment to the index, where one version of each key
//! wins.

use super::revived::REVIVED;
use super::{Loader, Patience};
use crate::core::flash::{Holding, locate_now};
use crate::core::{Core, Visitor};
use crate::counters::Counters;
use crate::index::bucket::{self, Locking, Slot, View};
use crate::index::change::{Change, Counted, Dropped};
use crate::index::{Index, Partition, Resize};
use crate::log::Required;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Entry, Kind};
use std::sync::atomic::Ordering;

/// Entries whose cache misses overlap.
const GROUP: usize = 32;
/// Bytes of views that the end of a load moves into holes; cleaners move the rest.
const CLOSED_BYTES_MAX: usize = 64 << 20;
/// Access count of a slot with a tombstone on which other entries rest (load::R9). This count and
/// the next two stand until the end of the load: no key is read before that, so no other slot has
/// them.
const DEAD: u64 = 7;
/// Access count of a slot with a tombstone that keeps away its victim alone.
const LONE: u64 = 5;
/// Access count of a slot with an object that names no other segment, and on which other entries
/// rest.
const BEARING: u64 = 4;

/// An entry that is being shown to the index.
struct Arrival<'a> {
    entry: Entry<'a>,
    location: u64,
    index: Option<&'a Index>,
    hash: KeyHash,
    /// The segment that it came in.
    segment: SegmentId,
    /// It may have to keep an entry of another segment away.
    kills: bool,
    /// A tombstone that no entry of another segment depends on (load::R3).
    is_spare: bool,
}

impl<'a> Arrival<'a> {
    fn new(
        core: &'a Core,
        entry: Entry<'a>,
        (location, segment): (u64, SegmentId),
        needs: &Required<'_>,
        careless: bool,
    ) -> Arrival<'a> {
        // An entry from before the table was created or cleared does not belong to this table.
        let index = core.tables.index(TableId(entry.table)).ok();
        let index = index.filter(|index| {
            entry.kind == Kind::Completion || entry.version >= index.replay_floor()
        });
        let hash = core.tables.hash(entry.key);
        if let Some(index) = index {
            let view = index.partition(hash).view();
            if view.len() != 0 {
                crate::index::prefetch::prefetch_pair(view.line(view.home(index.tag(hash))));
            }
        }
        let is_tombstone = entry.kind == Kind::Tombstone;
        let kills =
            names_another(&entry, segment) && (!is_tombstone || needs.tombstone(entry.victim, &[]));
        Arrival {
            entry,
            location,
            index,
            hash,
            segment,
            kills,
            is_spare: is_tombstone && (careless || !kills),
        }
    }

    /// Starts fetching the header of the entry that the index has for the key.
    fn prefetch_rival(&self, core: &Core) {
        if let Some(index) = self.index {
            let view = index.partition(self.hash).view();
            if view.len() != 0
                && let Some(location) = view.peek(index.tag(self.hash))
            {
                crate::index::prefetch::prefetch(core.space.at(location));
            }
        }
    }
}

/// The entries of a group from `from`, with their locations, up to the first one whose index has
/// no memory: it waits until those before it are settled. Pinned. Takes the registry of tables, so
/// the caller holds no lock that comes after it (`log`, Lock order).
fn prepare_group(core: &Core, from: usize, end: usize) -> [Option<(Entry<'_>, u64)>; GROUP] {
    let mut group = [const { None }; GROUP];
    let mut at = from;
    for place in &mut group {
        if at >= end {
            break;
        }
        let location = Space::location(at);
        // SAFETY: the window was verified from its header to its end (load::R2) and belongs to
        // this loader until it is closed.
        let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
        if !core.prepare_index(TableId(entry.table)) {
            break;
        }
        at += entry.padded_bytes;
        *place = Some((entry, location));
    }
    group
}

/// True if an entry of this segment names another one as its victim's.
fn names_another(entry: &Entry<'_>, segment: SegmentId) -> bool {
    entry.kind != Kind::Completion && entry.victim != SegmentId::NONE && entry.victim != segment
}

impl Visitor<'_> {
    /// The slot with this tag for whose entry `is_it` holds, and the address of the entry. Reads
    /// the entry from flash if needed; the address is valid while `holding` is kept.
    ///
    /// # Errors
    /// [`Error::FlashFailed`] if an entry cannot be read; [`Error::Damaged`] if a damaged slot may
    /// be the one (load::R10).
    fn find<'i>(
        &self,
        holding: &mut Holding,
        view: View<'i>,
        tag: u64,
        mut is_it: impl FnMut(*const u8) -> bool,
    ) -> Result<Option<(&'i AtomicU64, Slot, *const u8)>, Error> {
        let mut last = Ok(std::ptr::null());
        let stamp = self.core.door.epochs().stamp_of(self.slot);
        let found = view.find_or_damaged(tag, self.me(), |slot| {
            last = match slot.is_whole() {
                true => locate_now(self.core, stamp, holding, slot.location())
                    .map_err(|_| Error::FlashFailed),
                false => Err(Error::Damaged),
            };
            last.as_ref().is_ok_and(|at| is_it(*at)) || last.is_err()
        });
        match found {
            Some((place, slot)) => last.map(|at| Some((place, slot, at))),
            None => Ok(None),
        }
    }
}

impl Loader {
    /// Shows all entries of an adopted window to the index.
    pub(super) fn settle_all(
        &self,
        visitor: &Visitor<'_>,
        window: u32,
        length: u32,
    ) -> Result<(), Error> {
        let core = visitor.core;
        let start = core.space.offset_of(window);
        let end = start + length as usize;
        let mut at = start + SEGMENT_HEADER_BYTES;
        let mut patience = None;
        let mut spare_bytes = 0;
        while at < end {
            core.door.enter(visitor.slot);
            let done = self.settle_group(visitor, at, end, &mut spare_bytes);
            core.door.leave(visitor.slot);
            let done = done?;
            if done == at {
                // A segment that is half shown cannot be taken back: if this fails, the whole load
                // has failed.
                let patience = patience.get_or_insert_with(|| Patience::new(self));
                self.make_room(patience)?;
            }
            at = done;
        }
        if spare_bytes > 0 {
            // For compaction, so that it has the gain of this segment without a scan.
            let swaps = self.log().swaps();
            let incarnation = core.space.segments[window as usize].incarnation();
            let done = swaps.swaps_done();
            swaps
                .rescan()
                .note(window, incarnation, done, 1, spare_bytes);
        }
        Ok(())
    }

    /// Settles a group of entries from `from`. Returns the end of the settled part: `from` itself
    /// if the index has no memory to grow.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: a rival cannot be read.
    fn settle_group(
        &self,
        visitor: &Visitor<'_>,
        from: usize,
        end: usize,
        spare_bytes: &mut u32,
    ) -> Result<usize, Error> {
        let core = visitor.core;
        let mut group: [Option<Arrival<'_>>; GROUP] = [const { None }; GROUP];
        let mut at = from;
        let careless = has_bug(Bug::EveryTombstoneIsSpare);
        let window = core.space.window_of(Space::location(from));
        let segment = self.log().segment_of(window);
        let entries = prepare_group(core, from, end).into_iter().flatten();
        let needs = self.log().swaps().list().needs();
        for (place, (entry, location)) in group.iter_mut().zip(entries) {
            at += entry.padded_bytes;
            let arrival = Arrival::new(core, entry, (location, segment), &needs, careless);
            *place = Some(arrival);
        }
        drop(needs);
        for arrival in group.iter().flatten() {
            arrival.prefetch_rival(core);
        }
        let heads = core.actors.heads();
        let head = &heads[visitor.slot.0 % heads.len()];
        let _owner = head.tail.lock().expect("head"); // its counters are ours meanwhile
        let counters = &head.counters;
        let mut version_max = 0;
        for arrival in group.iter().flatten() {
            if !self.settle(visitor, counters, arrival, spare_bytes)? {
                at = Space::offset(arrival.location);
                break;
            }
            version_max = version_max.max(arrival.entry.version);
        }
        let totals = &self.totals;
        totals.version_max.fetch_max(version_max, Ordering::Relaxed);
        Ok(at)
    }

    /// Settles an entry (load::R3, load::R4). Returns false if the index has no memory to grow: the
    /// entry was not settled.
    fn settle(
        &self,
        visitor: &Visitor<'_>,
        counters: &Counters,
        arrival: &Arrival<'_>,
        spare_bytes: &mut u32,
    ) -> Result<bool, Error> {
        let core = visitor.core;
        let entry = &arrival.entry;
        let won = match arrival.index {
            Some(index) if entry.kind != Kind::Completion => {
                match self.contend(visitor, counters, index, arrival)? {
                    Some(won) => won,
                    None => return Ok(false),
                }
            }
            _ => false,
        };
        let window = core.space.window_of(arrival.location);
        if entry.kind == Kind::Object {
            counters.note_loaded(entry.padded_bytes);
        }
        match entry.kind {
            Kind::Tombstone => {
                // Alive in its segment until a cleaner meets it; not counted among the live bytes
                // of objects.
                counters.note_tombstone(entry.padded_bytes);
                self.totals.tombstones.fetch_add(1, Ordering::Relaxed);
                if arrival.is_spare && !won {
                    *spare_bytes += entry.padded_bytes as u32;
                }
            }
            Kind::Completion => {
                counters.note_tombstone(entry.padded_bytes);
                if arrival.index.is_some() {
                    core.listeners.tracker.met(entry);
                }
            }
            Kind::Object if won => {
                if entry.expires_at_ms != 0 {
                    let segment = &core.space.segments[window];
                    segment.note_expiry(entry.padded_bytes as u32, entry.expires_at_ms);
                    if self.is_revived(entry) {
                        self.totals.revived.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Kind::Object => counters.note_dead(window, entry.padded_bytes),
        }
        Ok(true)
    }

    /// Puts the entry into the index if it wins. A spare tombstone is put there only in place of
    /// another entry, which may itself keep older ones away. Returns whether the index points to
    /// it now; `None`: no memory to grow.
    fn contend(
        &self,
        visitor: &Visitor<'_>,
        counters: &Counters,
        index: &Index,
        arrival: &Arrival<'_>,
    ) -> Result<Option<bool>, Error> {
        let core = visitor.core;
        let me = visitor.slot.0 as u16 + 1;
        let mut holding = Holding::default();
        let (entry, partition, tag) = (
            &arrival.entry,
            index.partition(arrival.hash),
            index.tag(arrival.hash),
        );
        loop {
            let Some((view, home, locking)) = partition.lock(tag, me, core.resources()) else {
                return Ok(None);
            };
            debug_assert!(locking == Locking::Taken);
            let change = Change {
                partition,
                view,
                space: &core.space,
                counters,
            };
            let found = visitor.find(&mut holding, view, tag, |at| key_is(at, entry.key));
            let found = found.inspect_err(|_| view.unlock(home));
            let Some((place, slot, at)) = found? else {
                if arrival.is_spare {
                    view.unlock(home);
                    return Ok(Some(false));
                }
                if !partition.count_insert(view.len(), false) {
                    view.unlock(home);
                    match self.grow(partition, me) {
                        Resize::NoMemory => return Ok(None),
                        Resize::Damaged => return Err(Error::Damaged),
                        Resize::Done | Resize::Busy => continue,
                    }
                }
                let mark = self.mark(entry, arrival.segment, false);
                let slot = Slot::new(tag, arrival.location).with_access(mark);
                change.insert(tag, slot, Counted::of(entry));
                view.unlock(home);
                if partition.wants_growth(view.len()) {
                    // A refusal does no harm: the next insert tries again, until the view is full.
                    let _ = self.grow(partition, me);
                }
                return Ok(Some(true));
            };
            // SAFETY: the index pointed to it under our pin, and its bucket is locked: a whole
            // entry, not reused; or a verified copy of it, which `holding` has.
            let rival = unsafe { entry::parse_trusted(at) };
            let won = self.meet(change, arrival, (place, slot, &rival));
            view.unlock(home);
            return Ok(Some(won));
        }
    }

    /// The entry meets the one that the index has for its key (load::R3, load::R9). Returns
    /// whether the index points to it now. The bucket is locked.
    fn meet(
        &self,
        change: Change<'_>,
        arrival: &Arrival<'_>,
        (place, slot, rival): (&AtomicU64, Slot, &Entry<'_>),
    ) -> bool {
        let entry = &arrival.entry;
        let wins = (entry.version, entry.kind as u8) > (rival.version, rival.kind as u8);
        let window = change.space.window_of(slot.location());
        let rival_segment = self.log().segment_of(window);
        let (winner, loser, loser_segment, loser_kills) = if wins {
            let kills = names_another(rival, rival_segment);
            (entry, rival, rival_segment, kills)
        } else {
            (rival, entry, arrival.segment, arrival.kills)
        };
        let bears = loser_kills || matches!(slot.access(), DEAD | REVIVED | BEARING);
        let meets_its_victim = winner.kind == Kind::Tombstone
            && winner.version == loser.version
            && winner.victim == loser_segment
            && !self.stands_for_others(winner.victim);
        if meets_its_victim && (!bears || has_bug(Bug::TombstoneLeavesEarly)) {
            change.remove(slot.tag(), Dropped::new(place, slot, rival));
            return false;
        }
        if wins {
            let mark = self.mark(entry, arrival.segment, bears);
            let new = slot.moved_to(arrival.location).with_access(mark);
            change.replace(Dropped::new(place, slot, rival), new, Counted::of(entry));
            return true;
        }
        let mark = self.mark(rival, rival_segment, bears);
        if mark != slot.access() {
            bucket::publish(place, slot.with_access(mark));
        }
        false
    }

    /// The access count of a slot that points to this entry. `bears`: other entries rest on it.
    fn mark(&self, entry: &Entry<'_>, segment: SegmentId, bears: bool) -> u64 {
        match entry.kind {
            Kind::Tombstone if bears => DEAD,
            Kind::Tombstone => LONE,
            _ if self.is_revived(entry) => REVIVED,
            // An object that names another segment stays until something newer comes in any case.
            _ if bears && !names_another(entry, segment) => {
                self.totals.has_bearing.store(true, Ordering::Relaxed);
                BEARING
            }
            _ => 0,
        }
    }

    /// True if entries that name this segment keep entries of several segments away (swap::D4,
    /// swap::D11).
    fn stands_for_others(&self, segment: SegmentId) -> bool {
        let mut survivors = self.survivors.iter();
        survivors.any(|survivors| survivors.contains(&segment.0))
    }

    /// Grows a partition (load::R6). Pinned.
    fn grow(&self, partition: &Partition, me: u16) -> Resize {
        partition.grow(self.keys_to_come(partition), me, self.core().resources())
    }

    /// Estimated number of keys that a partition still gets, at most its present number; 1 when
    /// memory is short.
    fn keys_to_come(&self, partition: &Partition) -> i64 {
        if self.dense.load(Ordering::Relaxed) || self.core().need().is_near_limit() {
            return 1;
        }
        let done = self.totals.segments.load(Ordering::Relaxed);
        let count = partition.count().max(0) as u64;
        let to_come = (count * (self.listed - done)).checked_div(done);
        to_come.unwrap_or(count).clamp(1, count.max(1)) as i64
    }

    /// Shrinks views that had grown for more keys than came (load::R6). The caller is outside.
    pub(super) fn make_dense(&self) {
        let core = self.core();
        let visitor = Visitor::wait(core);
        for table in core.tables.index_ids() {
            let mut next = 0;
            let mut is_over = false;
            while !is_over {
                core.door.enter(visitor.slot);
                let index = core.tables.index(table).ok();
                let partitions = index.map_or(&[][..], |index| index.partitions());
                is_over = next + GROUP >= partitions.len();
                for partition in partitions.iter().skip(next).take(GROUP) {
                    if partition.is_roomy(partition.view().len()) {
                        // Without memory for the move, it stays as it is.
                        let _ = partition.resize(0, visitor.me(), core.resources());
                    }
                }
                core.door.leave(visitor.slot);
                next += GROUP;
            }
        }
        self.close_holes(&visitor);
        core.resources().trim();
    }

    /// Moves views into the holes that growth has left, as cleaners do later: memory of holes is
    /// no room for data, so a store that was full would refuse writes after its start.
    fn close_holes(&self, visitor: &Visitor<'_>) {
        let core = self.core();
        let mut left = CLOSED_BYTES_MAX;
        while left > 0 {
            core.resources().reap();
            let mut moved = 0;
            core.door.enter(visitor.slot);
            core.tables.each_index(|_, index| {
                moved += core.resources().defragment(index, visitor.me());
            });
            core.door.leave(visitor.slot);
            if moved == 0 {
                break;
            }
            left = left.saturating_sub(moved);
        }
        core.resources().reap();
    }

    /// Takes the tombstones that won out of the index, and the marks off the slots of objects.
    /// Returns false if a damaged slot may be one of these (load::R10). The caller is outside.
    pub(super) fn remove_the_dead(&self) -> bool {
        let totals = &self.totals;
        let has_tombstones = totals.tombstones.load(Ordering::Relaxed) > 0;
        if !has_tombstones && !totals.has_bearing.load(Ordering::Relaxed) {
            return true;
        }
        let core = self.core();
        let visitor = Visitor::wait(core);
        let mut are_whole = true;
        for table in core.tables.index_ids() {
            let mut next = 0;
            loop {
                core.door.enter(visitor.slot);
                let index = core.tables.index(table).ok();
                let partition = index.and_then(|index| index.partitions().get(next));
                if let Some(partition) = partition {
                    are_whole &= partition.view().is_whole();
                    remove_marked(partition, visitor.me());
                    if partition.wants_shrinking(partition.view().len()) {
                        let _ = partition.resize(0, visitor.me(), core.resources());
                    }
                }
                core.door.leave(visitor.slot);
                if partition.is_none() {
                    break;
                }
                next += 1;
            }
        }
        are_whole
    }
}

/// Empties the slots of a partition that are marked as [`DEAD`] or [`LONE`], and takes the mark
/// from those that are [`BEARING`]. Pinned.
fn remove_marked(partition: &Partition, me: u16) {
    let is_marked = |slot: Slot| matches!(slot.access(), DEAD | LONE | BEARING);
    let mut view = partition.view();
    let (mut home, mut marked) = (0, Vec::new());
    while home < view.len() {
        view.each_homed(home, me, |slot| {
            if is_marked(slot) {
                marked.push(slot.tag());
            }
        });
        if !marked.is_empty() && view.lock(home, me) != Locking::Taken {
            // A cleaner moved the view to another place.
            partition.wait_for_move(view);
            (view, home) = (partition.view(), 0);
            marked.clear();
            continue;
        }
        if !marked.is_empty() {
            for tag in marked.drain(..) {
                match view.find(tag, me, is_marked) {
                    Some((place, slot)) if slot.access() == BEARING => {
                        bucket::publish(place, slot.with_access(0));
                    }
                    Some((place, _)) => partition.remove(view, tag, place),
                    None => {}
                }
            }
            view.unlock(home);
        }
        home += 1;
    }
}

/// True if the entry at `at` has this key. The index points to the entry under the caller's pin, or
/// it is a verified copy.
pub(crate) fn key_is(at: *const u8, key: &[u8]) -> bool {
    // SAFETY: the index pointed to it under our pin: a whole entry, which includes the key; or it
    // is a verified copy.
    unsafe {
        let header = entry::header_trusted(at);
        header.key_bytes == key.len()
            && std::slice::from_raw_parts(at.add(header.key_start), header.key_bytes) == key
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{LogOptions, Options, Store};
    use duramen_base::ids::PartKey;
    use duramen_format::entry::NewObject;
    use duramen_format::segment::{self, Header};
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    const LOG: u64 = 7;
    const SEGMENT: SegmentId = SegmentId(5);
    const PARTS: TableId = TableId::DEFAULT.parts();
    const PATIENCE: Duration = Duration::from_secs(10);

    /// The bytes of a segment with one part of a collection.
    fn segment_with_a_part() -> Vec<u8> {
        let header = Header {
            kind: segment::Kind::Head,
            segment: SEGMENT,
            log: LOG,
            head: 0,
            capacity: 1 << 20,
        };
        let part = NewObject {
            table: PARTS.0,
            version: 1,
            expires_at_ms: None,
            key: &[1; PartKey::BYTES],
            value: b"its value",
            victim: SegmentId::NONE,
            is_typed: false,
        };
        let mut bytes = header.encode().to_vec();
        let start = bytes.len();
        bytes.resize(start + part.padded_bytes(), 0);
        part.write_to(&mut bytes[start..]);
        bytes
    }

    fn comes_true(is_so: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        while !is_so() {
            if began.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// A load held the list of segments while it waited for the registry of tables. A thread that
    /// makes a table holds the registry and waits for the changes of tables; behind two more locks
    /// the circle was closed.
    #[test]
    fn a_load_that_waits_for_the_registry_does_not_hold_the_list() {
        let store = Store::new(Options {
            huge_pages: false,
            cleaners: 0,
            log: Some(LogOptions::new(LOG)),
            ..Options::new(64 << 20)
        });
        let store = store.expect("a store");
        let (core, bytes) = (store.core(), segment_with_a_part());
        let loader = store.loader(&[SEGMENT], &[]);
        let used = || core.space.budget.used();
        let (is_filled, before) = (AtomicBool::new(false), AtomicU64::new(0));
        let is_changed = AtomicBool::new(false);
        let (loads, changes) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loads.wait();
                let mut fill = |out: &mut [u8]| {
                    out.copy_from_slice(&bytes);
                    before.store(used(), Ordering::Relaxed);
                    is_filled.store(true, Ordering::Release);
                    Ok::<(), ()>(())
                };
                let length = bytes.len() as u32;
                loader.adopt(SEGMENT, length, &mut fill).expect("adopted");
            });
            scope.spawn(|| {
                changes.wait();
                drop(loader.log().swaps().list().change());
                is_changed.store(true, Ordering::Release);
            });
            let (mut has_come, mut is_free) = (false, false);
            core.tables.each(|_, _, _| {
                // The registry is locked.
                loads.wait();
                // The index of parts is charged just before it is put into the registry.
                has_come = comes_true(|| {
                    is_filled.load(Ordering::Acquire) && used() > before.load(Ordering::Relaxed)
                });
                changes.wait();
                is_free = comes_true(|| is_changed.load(Ordering::Acquire));
            });
            assert!(has_come, "the load needs the index of parts");
            assert!(is_free, "the load holds the list");
        });
        let report = loader.finish().expect("a whole log");
        assert_eq!((report.segments, report.entries), (1, 1));
        assert!(core.tables.index(PARTS).is_ok());
    }
}
