//! Settling: shows the entries of an adopted segment to the index, where one version of each key
//! wins.

use super::revived::REVIVED;
use super::{Loader, Patience};
use crate::core::{Core, Visitor};
use crate::counters::Counters;
use crate::flash::locate_now;
use crate::index::bucket::{Locking, Slot, View};
use crate::index::change::{Change, Counted, Dropped};
use crate::index::{Index, Partition, Resize};
use crate::log::Required;
use crate::session::holding::Holding;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::{Error, KeyHash, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Entry, Kind};
use std::sync::atomic::Ordering;

/// Entries whose cache misses overlap.
const GROUP: usize = 32;
/// Bytes of views that the end of a load moves into holes; cleaners move the rest.
const CLOSED_BYTES_MAX: usize = 64 << 20;
/// Access count of a slot with a tombstone, until the end of the load. No key is read before that,
/// so no other slot has this count.
const DEAD: u64 = 7;

/// An entry that is being shown to the index.
struct Arrival<'a> {
    entry: Entry<'a>,
    location: u64,
    index: Option<&'a Index>,
    hash: KeyHash,
    /// A tombstone that no entry of another segment depends on (load::R3).
    is_spare: bool,
}

impl<'a> Arrival<'a> {
    fn new(
        core: &'a Core,
        entry: Entry<'a>,
        location: u64,
        needs: &Required<'_>,
        careless: bool,
    ) -> Arrival<'a> {
        // An entry from before the table was created or cleared does not belong to this table.
        let index = core.tables.index(TableId(entry.table)).ok();
        let index = index.filter(|index| {
            entry.kind == Kind::Completion || entry.version >= index.replay_floor()
        });
        let hash = KeyHash(core.hasher.hash(entry.key));
        if let Some(index) = index {
            let view = index.partition(hash).view();
            if view.len() != 0 {
                crate::index::prefetch::prefetch_pair(view.line(view.home(index.tag(hash))));
            }
        }
        Arrival {
            entry,
            location,
            index,
            hash,
            is_spare: entry.kind == Kind::Tombstone
                && (careless || !needs.tombstone(entry.victim, &[])),
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

/// An entry cannot be read from the flash device.
struct Unreadable;

impl Visitor<'_> {
    /// The slot with this tag for whose entry `is_it` holds, and the address of the entry. Reads
    /// the entry from flash if needed; the address is valid while `holding` is kept.
    fn find<'i>(
        &self,
        holding: &mut Holding,
        view: View<'i>,
        tag: u64,
        mut is_it: impl FnMut(*const u8) -> bool,
    ) -> Result<Option<(&'i AtomicU64, Slot, *const u8)>, Unreadable> {
        let mut last = Ok(std::ptr::null());
        let stamp = self.core.epochs.stamp_of(self.slot);
        let found = view.find(tag, self.me(), |slot| {
            last = locate_now(self.core, stamp, holding, slot.location()).map_err(|_| Unreadable);
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
            core.enter(visitor.slot);
            let done = self.settle_group(visitor, at, end, &mut spare_bytes);
            core.epochs.unpin(visitor.slot);
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
            swaps.note_rescan(window, incarnation, swaps.swaps_done(), 1, spare_bytes);
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
        let needs = self.log().swaps().needs();
        for place in &mut group {
            if at >= end {
                break;
            }
            let location = Space::location(at);
            // SAFETY: the window was verified from its header to its end (load::R2) and belongs to
            // this loader until it is closed.
            let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
            at += entry.padded_bytes;
            *place = Some(Arrival::new(core, entry, location, &needs, careless));
        }
        drop(needs);
        for arrival in group.iter().flatten() {
            arrival.prefetch_rival(core);
        }
        let head = &core.heads[visitor.slot.0 % core.heads.len()];
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

    /// load::R3, load::R4. False: the index has no memory to grow, and the entry was not settled.
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
                    core.met_completion(entry);
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
    /// another entry, which may itself keep older ones away. `None`: no memory to grow.
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
        let mark = match entry.kind {
            Kind::Tombstone => DEAD,
            _ if self.is_revived(entry) => REVIVED,
            _ => 0,
        };
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
            let found = found.map_err(|_| {
                view.unlock(home);
                Error::FlashFailed
            });
            let Some((place, slot, at)) = found? else {
                if arrival.is_spare {
                    view.unlock(home);
                    return Ok(Some(false));
                }
                if !partition.count_insert(view.len(), false) {
                    view.unlock(home);
                    match self.grow(partition, me) {
                        Resize::NoMemory => return Ok(None),
                        Resize::Done | Resize::Busy => continue,
                    }
                }
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
            let wins = (entry.version, entry.kind as u8) > (rival.version, rival.kind as u8);
            if wins {
                let new = slot.moved_to(arrival.location).with_access(mark);
                change.replace(Dropped::new(place, slot, &rival), new, Counted::of(entry));
            }
            view.unlock(home);
            return Ok(Some(wins));
        }
    }

    /// Grows a partition (load::R6). Pinned.
    fn grow(&self, partition: &Partition, me: u16) -> Resize {
        partition.grow(self.keys_to_come(partition), me, self.core().resources())
    }

    /// Estimated number of keys that a partition still gets, at most its present number; 1 when
    /// memory is short.
    fn keys_to_come(&self, partition: &Partition) -> i64 {
        if self.dense.load(Ordering::Relaxed) || self.core().is_short_of_memory() {
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
        let mut tables = Vec::new();
        core.tables.each(|table, _, _| tables.push(table));
        for table in tables {
            let mut next = 0;
            let mut is_over = false;
            while !is_over {
                core.enter(visitor.slot);
                let index = core.tables.index(table).ok();
                let partitions = index.map_or(&[][..], |index| index.partitions());
                is_over = next + GROUP >= partitions.len();
                for partition in partitions.iter().skip(next).take(GROUP) {
                    if partition.is_roomy(partition.view().len()) {
                        // Without memory for the move, it stays as it is.
                        let _ = partition.resize(0, visitor.me(), core.resources());
                    }
                }
                core.epochs.unpin(visitor.slot);
                next += GROUP;
            }
        }
        self.close_holes(&visitor);
        core.arena.trim(&core.space.budget);
    }

    /// Moves views into the holes that growth has left, as cleaners do later: memory of holes is
    /// no room for data, so a store that was full would refuse writes after its start.
    fn close_holes(&self, visitor: &Visitor<'_>) {
        let core = self.core();
        let mut left = CLOSED_BYTES_MAX;
        while left > 0 {
            core.arena.reap(core.epochs.quiet_before());
            let mut moved = 0;
            core.enter(visitor.slot);
            core.tables.each(|_, _, index| {
                moved += core.resources().defragment(index, visitor.me());
            });
            core.epochs.unpin(visitor.slot);
            if moved == 0 {
                break;
            }
            left = left.saturating_sub(moved);
        }
        core.arena.reap(core.epochs.quiet_before());
    }

    /// Takes the tombstones that won out of the index. The caller is outside.
    pub(super) fn remove_the_dead(&self) {
        if self.totals.tombstones.load(Ordering::Relaxed) == 0 {
            return;
        }
        let core = self.core();
        let visitor = Visitor::wait(core);
        let mut tables = Vec::new();
        core.tables.each(|table, _, _| tables.push(table));
        for table in tables {
            let mut next = 0;
            loop {
                core.enter(visitor.slot);
                let index = core.tables.index(table).ok();
                let partition = index.and_then(|index| index.partitions().get(next));
                if let Some(partition) = partition {
                    remove_marked(partition, visitor.me());
                    if partition.wants_shrinking(partition.view().len()) {
                        let _ = partition.resize(0, visitor.me(), core.resources());
                    }
                }
                core.epochs.unpin(visitor.slot);
                if partition.is_none() {
                    break;
                }
                next += 1;
            }
        }
    }
}

/// Empties the slots of a partition that are marked as [`DEAD`]. Pinned.
fn remove_marked(partition: &Partition, me: u16) {
    let mut view = partition.view();
    let (mut bucket, mut dead) = (0, Vec::new());
    while bucket < view.len() {
        view.each_homed(bucket, me, |slot| {
            if slot.access() == DEAD {
                dead.push(slot.tag());
            }
        });
        if !dead.is_empty() && view.lock(bucket, me) != Locking::Taken {
            // A cleaner moved the view to another place.
            partition.wait_for_move(view);
            (view, bucket) = (partition.view(), 0);
            dead.clear();
            continue;
        }
        if !dead.is_empty() {
            for tag in dead.drain(..) {
                if let Some((place, _)) = view.find(tag, me, |slot| slot.access() == DEAD) {
                    partition.remove(view, tag, place);
                }
            }
            view.unlock(bucket);
        }
        bucket += 1;
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
