//! Where a guard may append, and what its replies depend on.
//!
//! **Order** (L5): an entry may follow a predecessor that can still be lost only in the same head. So a guard that finds one
//! in another head goes there for its next appends; in the middle of a group, where it cannot, it waits for a commit.
//! Removals are the predecessors of creations, and a reader that finds nothing must know where: each partition remembers
//! where its last removal is recorded (`last_removed`), and all removals and creations of the partition follow that
//! one while it can still be lost.
//!
//! **Observation**: whatever a guard was shown (objects, absences, failed conditions) joins its position if it can still be
//! lost (90-traps.md §0.4).

use super::planted::Bug;
use super::{Log, Position};
use crate::index::{Index, Partition};
use crate::session::Guard;
use crate::space::{Purpose, Space};
use crate::write::Locked;
use crate::{Error, TableChange, TableId};
use duramen_base::ids::{Level, SegmentId};
use duramen_format::entry::NewTombstone;

/// `last_removed` packs a stream and a position in units of 8 bytes.
const END_BITS: u32 = 54;
/// Heads of a store with or without a log: their numbers, and that of the table changes, fit a packed place.
pub(crate) const HEADS_MAX: usize = (1 << (64 - END_BITS)) - 2;

/// Packs a place: not zero, as no entry ends at position 0.
pub(crate) fn pack_place(stream: u16, end: u64) -> u64 {
    u64::from(stream) << END_BITS | end.div_ceil(8)
}

fn unpack_place(place: u64) -> (u16, u64) {
    let end = (place & ((1 << END_BITS) - 1)) << 3;
    ((place >> END_BITS) as u16, end)
}

/// How the removal of a key went on.
pub(crate) enum Buried {
    Done,
    /// No window is free: find memory and start again.
    NoSpace,
    /// The head has a new segment now, or another removal of the partition came between.
    LookAgain,
}

impl Log {
    /// The stream and position of a partition's last removal, if it can still be lost.
    fn undurable_removal(&self, partition: &Partition) -> Option<(u16, u64)> {
        let (stream, end) = unpack_place(partition.last_removed());
        (end > self.end_of(stream, Level::Synced)).then_some((stream, end))
    }

    /// Where the entry at `location` is, if it can still be lost.
    fn undurable_entry(&self, space: &Space, location: u64) -> Option<(u16, u64)> {
        space
            .is_undurable(location)
            .then(|| self.place_of(space, location))
    }

    /// The level that a table asks for.
    fn level_of(&self, index: &Index) -> Level {
        index.level().unwrap_or_else(|| self.default_level())
    }
}

impl<'s> Guard<'s> {
    /// Everything that was written, and seen though it could still be lost, since the guard began or since the last
    /// [`take_position`](Self::take_position). A reply is true once this position has reached the level it promises.
    pub fn position(&self) -> Position {
        let mut position = self.observed.borrow().clone();
        if let Some((end, level)) = self.own {
            position.add(self.head.number as u16, end, level);
        }
        position
    }

    /// As [`position`](Self::position), and starts anew: for guards that serve several clients in turn.
    pub fn take_position(&mut self) -> Position {
        self.keep_own();
        self.seen.set(false);
        std::mem::take(self.observed.get_mut())
    }

    /// True if there is a position to wait for.
    #[inline(always)]
    pub fn has_position(&self) -> bool {
        self.own.is_some() || self.seen.get()
    }

    /// Makes the position cover everything that anybody did so far: for replies about the store as a whole.
    pub fn observe_everything(&self) {
        if let Some(log) = &self.core.log {
            self.seen.set(true);
            self.observed.borrow_mut().join(&log.appended());
        }
    }

    /// Records an own append, which ends at the tail.
    #[inline(always)]
    pub(crate) fn note_own(&mut self, log: &Log, index: &Index) {
        if let Some(tail) = &self.tail {
            let level = log.level_of(index);
            let known = self.own.map_or(Level::Memory, |(_, level)| level);
            self.own = Some((tail.position(), level.max(known)));
        }
    }

    /// Moves the position of own appends to the others, before the head is changed.
    fn keep_own(&mut self) {
        if let Some((end, level)) = self.own.take() {
            self.seen.set(true);
            let stream = self.head.number as u16;
            self.observed.get_mut().add(stream, end, level);
        }
    }

    /// An entry was shown, or decided something, that can still be lost.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe_entry(&self, index: &Index, location: u64) {
        if let Some(log) = &self.core.log
            && !log.planted.is(Bug::HitsDoNotWait)
        {
            self.observe(log, index, log.place_of(&self.core.space, location));
        }
    }

    /// A key of this partition was found absent.
    #[inline(always)]
    pub(crate) fn observe_absence(&self, index: &Index, partition: &Partition) {
        if self.core.log.is_some() && partition.last_removed() != 0 {
            self.observe_removal(index, partition);
        }
    }

    #[cold]
    #[inline(never)]
    fn observe_removal(&self, index: &Index, partition: &Partition) {
        let Some(log) = &self.core.log else {
            return;
        };
        let seen = partition.last_removed();
        let (stream, end) = unpack_place(seen);
        if log.planted.is(Bug::MissesDoNotWait) {
            return;
        }
        if end > log.end_of(stream, Level::Synced) {
            self.observe(log, index, (stream, end));
        } else {
            // Durable: the next one who finds nothing here need not look.
            partition.set_last_removed(seen, 0);
        }
    }

    fn observe(&self, log: &Log, index: &Index, (stream, end): (u16, u64)) {
        let level = log.level_of(index);
        // What a table of level memory shows may vanish.
        if level > Level::Memory {
            self.seen.set(true);
            self.observed.borrow_mut().add(stream, end, level);
        }
    }

    /// A table is going to change under this exclusive guard; returns what its partitions get for `last_removed`.
    pub(crate) fn note_change(&self, index: &Index, change: TableChange) -> u64 {
        let Some(log) = &self.core.log else {
            return 0;
        };
        let (stream, number) = log.reserve_change();
        self.changes.borrow_mut().push((number, change));
        self.seen.set(true);
        let level = log.level_of(index);
        self.observed.borrow_mut().add(stream, number, level);
        pack_place(stream, number)
    }

    /// The end of an exclusive guard: its changes of tables and its entries become collectable at once.
    pub(crate) fn publish_alone(&mut self) {
        let Some(log) = self.core.log.as_deref() else {
            return;
        };
        let made = std::mem::take(self.changes.get_mut());
        let (tail, head) = (&mut self.tail, self.head);
        log.publish_alone(made, || {
            if let Some(tail) = tail {
                log.end_group(head.number, tail);
            }
        });
    }

    /// L5: makes this guard one that may append over what was found. False: the bucket was unlocked, look again.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]; the bucket is unlocked then.
    #[inline]
    pub(crate) fn may_append(
        &mut self,
        log: &Log,
        locked: &Locked<'s>,
        removes: bool,
    ) -> Result<bool, Error> {
        if let Err(error) = log.check_writable() {
            self.unlock(locked);
            return Err(error);
        }
        let space = &self.core.space;
        let found = locked.found.map(|(_, slot, _)| slot.location());
        let version = found.and_then(|location| log.undurable_entry(space, location));
        let removal = if found.is_none() || removes {
            log.undurable_removal(locked.partition)
                // A change of a table is collected before whatever is appended now (L6).
                .filter(|(stream, _)| usize::from(*stream) != log.heads())
        } else {
            None
        };
        let own = self.head.number as u16;
        let elsewhere = |place: Option<(u16, u64)>| place.is_some_and(|(stream, _)| stream != own);
        if !elsewhere(version) && !elsewhere(removal) || log.planted.is(Bug::AnyHead) {
            return Ok(true);
        }
        self.unlock(locked);
        self.settle(log, version, removal)?;
        Ok(false)
    }

    /// Goes to the head where the predecessors are, or waits for them.
    #[cold]
    fn settle(
        &mut self,
        log: &Log,
        version: Option<(u16, u64)>,
        removal: Option<(u16, u64)>,
    ) -> Result<(), Error> {
        let own = self.head.number as u16;
        // T4: a transaction keeps its head, whatever it has written so far.
        let in_group =
            self.transaction.is_some() || self.tail.as_ref().is_some_and(|tail| tail.in_group());
        let torn = match (version, removal) {
            (Some((a, _)), Some((b, _))) => a != b,
            _ => false,
        };
        let mut places = version.into_iter().chain(removal);
        if in_group || torn {
            let Some((stream, end)) = places.find(|(stream, _)| *stream != own) else {
                return Ok(());
            };
            self.wait_synced(log, stream, end)
        } else {
            if let Some((stream, _)) = places.next() {
                self.go_to(stream);
            }
            Ok(())
        }
    }

    /// From now on appends to another head. No group is open.
    fn go_to(&mut self, stream: u16) {
        self.keep_own();
        self.tail = None;
        self.head = &self.core.heads[usize::from(stream)];
    }

    /// Waits for a commit. Outside if that is possible: so it holds nothing back. What was read may not be used again.
    fn wait_synced(&mut self, log: &Log, stream: u16, end: u64) -> Result<(), Error> {
        if self.transaction.is_some() || self.alone {
            return log.wait_synced(stream, end);
        }
        self.keep_own();
        self.tail = None;
        self.left = true;
        self.core.epochs.unpin(self.slot);
        let waited = log.wait_synced(stream, end);
        self.core.enter(self.slot);
        waited
    }

    /// Before a transaction locks its keys: goes to the head where their predecessors are, and waits for those in others.
    /// A guess, by hashes alone: what it misses is waited for when it is met, with the keys locked.
    pub(crate) fn settle_before(
        &mut self,
        keys: &[(TableId, crate::KeyHash)],
    ) -> Result<(), Error> {
        let Some(log) = self.core.log.as_deref() else {
            return Ok(());
        };
        let mut places: Vec<(u16, u64)> = Vec::new();
        for (table, hash) in keys {
            let index = self.index(*table)?;
            let partition = index.partition(*hash);
            let view = partition.view();
            let found = (view.len() != 0).then(|| view.peek(index.tag(*hash)));
            let place = match found.flatten() {
                Some(location) => log.undurable_entry(&self.core.space, location),
                None => log.undurable_removal(partition),
            };
            places.extend(place.filter(|(stream, _)| usize::from(*stream) != log.heads()));
        }
        let Some((chosen, _)) = places.first().copied() else {
            return Ok(());
        };
        for (stream, end) in &places {
            // If nothing can be written now, whoever wants to write is told so. Reading transactions go on.
            if *stream != chosen && self.wait_synced(log, *stream, *end).is_err() {
                break;
            }
        }
        if chosen != self.head.number as u16 {
            self.go_to(chosen);
        }
        Ok(())
    }

    /// Appends the tombstone of an object that is about to leave the index, and records where. The bucket is locked. A key
    /// that is absent needs one if it may have been evicted and can still come back from disk.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`].
    pub(crate) fn bury(
        &mut self,
        log: &Log,
        table: TableId,
        key: &[u8],
        locked: &Locked<'s>,
    ) -> Result<Buried, Error> {
        let space = &self.core.space;
        let (version, victim) = match locked.found {
            Some((_, slot, entry)) => {
                let window = space.window_of(slot.location());
                (entry.version, log.segment_of(window))
            }
            // Whatever was evicted from here had a version below the floor (X3).
            None => {
                let evicted = locked.partition.floor().saturating_sub(1);
                (evicted, log.eviction_victim())
            }
        };
        if version == 0 || victim == SegmentId::NONE {
            return Ok(Buried::Done);
        }
        let seen = locked.partition.last_removed();
        let tombstone = NewTombstone {
            table: table.0,
            version,
            key,
            victim,
        };
        let bytes = tombstone.padded_bytes();
        let tail = self.tail.as_mut().expect("locked before the bucket");
        if !tail.fits(bytes) {
            let rolled = super::group::roll(self.core, self.head, tail, bytes, Purpose::Tombstones);
            return rolled.map(|rolled| match rolled {
                // What was found may have moved with its group.
                true => Buried::LookAgain,
                false => Buried::NoSpace,
            });
        }
        // Claimed before it is there: nobody may find the key absent earlier.
        let place = pack_place(self.head.number as u16, tail.position() + bytes as u64);
        let (stream, end) = unpack_place(seen);
        let is_elsewhere = !log.planted.is(Bug::AnyHead)
            && usize::from(stream) != self.head.number
            && usize::from(stream) != log.heads()
            && end > log.end_of(stream, Level::Synced);
        if is_elsewhere || !locked.partition.set_last_removed(seen, place) {
            return Ok(Buried::LookAgain);
        }
        let offset = tail.take(bytes);
        // SAFETY: `take` gave this head `bytes` bytes of its own window (H2), which it alone writes while its lock is held.
        tombstone.write_to(unsafe {
            std::slice::from_raw_parts_mut(space.at(Space::location(offset)), bytes)
        });
        tail.record(space);
        log.streams[self.head.number].publish(tail.position(), tail.in_group());
        self.head.counters.note_tombstone(bytes);
        self.carried.appended += bytes as u64;
        Ok(Buried::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_packing() {
        for (stream, end) in [(0, 8), (3, 64), (HEADS_MAX as u16, 1 << 50)] {
            assert_ne!(pack_place(stream, end), 0);
            assert_eq!(unpack_place(pack_place(stream, end)), (stream, end));
        }
        assert_eq!(unpack_place(0), (0, 0));
    }
}
