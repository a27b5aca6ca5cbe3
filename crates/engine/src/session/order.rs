//! The head that a guard may append to, and the positions that its replies depend on.
//!
//! **Order** (log::L5): an entry may follow a predecessor that can still be lost only in the same
//! head. A guard that finds such a predecessor in another head goes to that head for its next
//! appends. In the middle of a group it cannot, so it waits for a commit. The predecessor of a
//! created key is the key's last removal: `removals` records, for the class of its hash, the
//! positions where it may be.
//!
//! **Waits**
//! - N1: a guard that goes to another head, or waits for a commit, holds nothing: no
//!   bucket, no head, no pin. A transaction that finds such predecessors when its keys are locked
//!   unlocks the keys and starts again. If it still finds some, which happens a few times in a
//!   million, it waits with its keys locked: for a commit of entries that are collectable, and a
//!   commit waits for nothing in the store (`on_demand`). No guard can wait for the end of a group,
//!   because the group's positions are not shown before (removals::M1).
//!
//! **Observation**: everything that a guard was shown (objects, absences, failed conditions) joins
//! its position if it can still be lost (docs/traps.md, trap 4).

use super::roll::roll;
use super::{Guard, Locked};
use crate::index::{Index, Partition};
use crate::log::{Log, Position, pack_place};
use crate::space::{Purpose, Space};
use crate::{Error, KeyHash, TableChange, TableId};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waits::NOTHING;
use duramen_base::waits::Resource::{Door, Head, Key, Pin};
use duramen_format::entry::NewTombstone;

/// Outcome of a removal.
pub(crate) enum Buried {
    Done,
    /// No window is free: the caller frees memory and starts again.
    NoSpace,
    /// The head has a new segment: the caller looks the key up again.
    LookAgain,
}

impl Log {
    /// Positions where a key with this hash may have been removed, if the removal can still be
    /// lost.
    fn undurable_removals(&self, hash: KeyHash) -> impl Iterator<Item = (u16, u64)> {
        let ends = self.removals.of_class(hash.0);
        ends.filter(|(stream, end)| *end > self.end_of(*stream, Level::Synced))
    }

    /// The position of the entry at `location`, if it can still be lost.
    fn undurable_entry(&self, space: &Space, location: u64) -> Option<(u16, u64)> {
        space
            .is_undurable(location)
            .then(|| self.place_of(space, location))
    }

    /// The level of a table.
    fn level_of(&self, index: &Index) -> Level {
        index.level().unwrap_or_else(|| self.default_level())
    }
}

impl<'s> Guard<'s> {
    /// The position of everything that the guard wrote since it began or since the last
    /// [`take_position`](Self::take_position), and of everything that it saw and that could still
    /// be lost. A reply is true once this position has reached the level it promises.
    pub fn position(&self) -> Position {
        let mut position = self.observed.borrow().clone();
        if let Some((end, level)) = self.own {
            position.add(self.head.number as u16, end, level);
        }
        position
    }

    /// As [`position`](Self::position), and starts anew: for guards that serve several clients in
    /// turn.
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

    /// Makes the position cover everything that was appended so far: for replies about the whole
    /// store.
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

    /// Adds the position of own appends to the observed ones, before the head is changed.
    fn keep_own(&mut self) {
        if let Some((end, level)) = self.own.take() {
            self.seen.set(true);
            let stream = self.head.number as u16;
            self.observed.get_mut().add(stream, end, level);
        }
    }

    /// The guard saw, or based a decision on, an entry that can still be lost.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe_entry(&self, index: &Index, location: u64) {
        if let Some(log) = &self.core.log
            && !has_bug(Bug::HitsDoNotWait)
        {
            self.observe(log, index, log.place_of(&self.core.space, location));
        }
    }

    /// A key with this hash was found absent.
    #[inline(always)]
    pub(crate) fn observe_absence(&self, index: &Index, partition: &Partition, hash: KeyHash) {
        if self.core.log.is_some() && partition.last_removed() != 0 {
            self.observe_removals(index, partition, Some(hash));
        }
    }

    /// The guard saw a part of the partition, and thereby which keys are absent.
    #[inline(always)]
    pub(crate) fn observe_gaps(&self, index: &Index, partition: &Partition) {
        if self.core.log.is_some() && partition.last_removed() != 0 {
            self.observe_removals(index, partition, None);
        }
    }

    /// `hash`: of the key that was looked for, if it was a single one.
    #[cold]
    #[inline(never)]
    fn observe_removals(&self, index: &Index, partition: &Partition, hash: Option<KeyHash>) {
        let Some(log) = &self.core.log else {
            return;
        };
        if has_bug(Bug::MissesDoNotWait) {
            return;
        }
        let seen = partition.last_removed();
        let undurable = |(stream, end): &(u16, u64)| *end > log.end_of(*stream, Level::Synced);
        let cleared = (log.changes_stream(), index.cleared());
        let all = || log.removals.last().chain([cleared]).filter(undurable);
        match hash {
            Some(hash) => {
                let own = log.undurable_removals(hash).chain([cleared]);
                own.filter(undurable)
                    .for_each(|place| self.observe(log, index, place));
            }
            None => all().for_each(|place| self.observe(log, index, place)),
        }
        if all().next().is_none() {
            // All are durable: the next guard that finds no key here need not check.
            partition.forget_removals(seen);
        }
    }

    fn observe(&self, log: &Log, index: &Index, (stream, end): (u16, u64)) {
        let level = log.level_of(index);
        // Entries of a table of level memory may vanish at any time.
        if level > Level::Memory {
            self.seen.set(true);
            self.observed.borrow_mut().add(stream, end, level);
        }
    }

    /// A table is going to change under this exclusive guard. Returns the number of the change, for
    /// guards that find keys absent because of it.
    pub(crate) fn note_change(&self, index: &Index, change: TableChange) -> u64 {
        let Some(log) = &self.core.log else {
            return 0;
        };
        let (stream, number) = log.reserve_change();
        self.changes.borrow_mut().push((number, change));
        self.seen.set(true);
        let level = log.level_of(index);
        self.observed.borrow_mut().add(stream, number, level);
        number
    }

    /// The end of an exclusive guard: its changes of tables and its entries become collectable at
    /// once.
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

    /// log::L5: after this, the guard may append over the entry that it found. False: the bucket
    /// was unlocked, and the caller looks again.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]; the bucket is unlocked then.
    #[inline]
    pub(crate) fn may_append(
        &mut self,
        log: &Log,
        hash: KeyHash,
        locked: &Locked<'s>,
    ) -> Result<bool, Error> {
        // A group that has room is done as a whole, even if the disk fills meanwhile (room::R1).
        if !self.granted
            && let Err(error) = log.check_writable()
        {
            self.unlock(locked);
            return Err(error);
        }
        let space = &self.core.space;
        let is_elsewhere = match locked.found {
            Some((_, slot, _)) if space.is_undurable(slot.location()) => {
                log.place_of(space, slot.location()).0 != self.head.number as u16
            }
            Some(_) => false,
            None => locked.partition.last_removed() != 0,
        };
        if !is_elsewhere || has_bug(Bug::AnyHead) {
            return Ok(true);
        }
        self.settle(log, hash, locked)
    }

    /// Goes to the head where the predecessors are, or waits for them.
    #[cold]
    fn settle(&mut self, log: &Log, hash: KeyHash, locked: &Locked<'s>) -> Result<bool, Error> {
        // room::R1: the guard waited for all possible predecessors before room was granted, and the
        // key is locked since. A removal that is found by hash now is of another key, and waiting
        // for it could fail in the middle of the step.
        if self.granted && (locked.in_transaction || self.alone) {
            return Ok(true);
        }
        let places: Vec<(u16, u64)> = match locked.found {
            Some((_, slot, _)) => log
                .undurable_entry(&self.core.space, slot.location())
                .into_iter()
                .collect(),
            // A change of a table is not among them: it is collected before anything that is
            // appended now (log::L6).
            None => log.undurable_removals(hash).collect(),
        };
        let own = self.head.number as u16;
        let elsewhere = |(stream, _): &&(u16, u64)| *stream != own;
        if !places.iter().any(|place| elsewhere(&place)) {
            return Ok(true);
        }
        // transaction::T4: a transaction keeps its head, whatever it has written so far.
        if self.locks.are_taken() || self.alone {
            // The bucket stays locked, so no other predecessor can come.
            for (stream, end) in places.iter().filter(elsewhere) {
                if let Err(error) = log.wait_synced(*stream, *end, &[Key, Head]) {
                    self.unlock(locked);
                    return Err(error);
                }
            }
            return Ok(true);
        }
        self.unlock(locked);
        self.follow(log, &places).map(|()| false)
    }

    /// Goes to the head of one of these places, and waits for the others. Keeps its own head if it
    /// is among them, or if the guard is alone, as its group is there. No bucket is locked, and
    /// values that were read may not be used again.
    fn follow(&mut self, log: &Log, places: &[(u16, u64)]) -> Result<(), Error> {
        let own = self.head.number as u16;
        let keeps = self.alone || places.iter().any(|(stream, _)| *stream == own);
        let chosen = match places.first() {
            Some((stream, _)) if !keeps => *stream,
            _ => own,
        };
        for (stream, end) in places.iter().filter(|(stream, _)| *stream != chosen) {
            self.wait_synced(log, *stream, *end)?;
        }
        if chosen != own {
            self.go_to(chosen);
        }
        Ok(())
    }

    /// Appends to another head from now on. No group is open.
    fn go_to(&mut self, stream: u16) {
        self.keep_own();
        self.tail = None;
        self.head = &self.core.heads[usize::from(stream)];
    }

    /// Waits for a commit outside of the store, so it holds nothing back. Values that were read may
    /// not be used again.
    fn wait_synced(&mut self, log: &Log, stream: u16, end: u64) -> Result<(), Error> {
        if self.alone {
            return log.wait_synced(stream, end, &[Door, Pin]);
        }
        assert!(
            !self.locks.are_taken(),
            "N1: a transaction lets go first"
        );
        self.keep_own();
        self.tail = None;
        self.left = true;
        self.core.epochs.unpin(self.slot);
        let waited = log.wait_synced(stream, end, NOTHING);
        self.core.enter(self.slot);
        waited
    }

    /// Goes to the head where the predecessors of a transaction's keys are, and waits for those in
    /// others. Called before the keys are locked, or after they were unlocked again.
    pub(crate) fn settle_before(&mut self, keys: &[(TableId, KeyHash)]) {
        let Some(log) = self.core.log.as_deref() else {
            return;
        };
        let places = self.predecessors(log, keys);
        // If nothing can be written now, a later write returns the error. Transactions that only
        // read go on.
        let _ = self.follow(log, &places);
    }

    /// Predecessors of these keys that are in other heads and can still be lost. The keys' buckets
    /// are locked.
    pub(crate) fn unsettled(&self, keys: &[(TableId, KeyHash)]) -> Vec<(u16, u64)> {
        let Some(log) = self.core.log.as_deref() else {
            return Vec::new();
        };
        if has_bug(Bug::AnyHead) {
            return Vec::new();
        }
        let own = self.head.number as u16;
        let mut places = self.predecessors(log, keys);
        places.retain(|(stream, _)| *stream != own);
        places
    }

    /// Waits for the remaining predecessors, with the keys locked and before their step writes
    /// anything (transaction::T7). A commit waits for nothing in the store, so this ends.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    pub(crate) fn settle_locked(&mut self) -> Result<(), Error> {
        let Some(log) = &self.core.log else {
            return Ok(());
        };
        for (stream, end) in self.locks.take_unsettled() {
            log.wait_synced(stream, end, &[Key, Head])?;
        }
        Ok(())
    }

    /// As [`settle_locked`](Self::settle_locked), for a guard that is alone in the store: waits for
    /// everything that others have appended.
    pub(crate) fn settle_alone(&mut self) -> Result<(), Error> {
        let Some(log) = self.core.log.as_deref() else {
            return Ok(());
        };
        let own = self.head.number as u16;
        let heads = self.core.heads.len();
        let appended = log.appended();
        let others = appended
            .ends()
            .filter(|(stream, _)| *stream != own && usize::from(*stream) < heads);
        for (stream, end) in others {
            log.wait_synced(stream, end, &[Door, Pin])?;
        }
        Ok(())
    }

    /// Positions of the predecessors of writes to these keys, as far as they can still be lost.
    /// Found by hashes alone: some may be those of other keys. An object with the key's tag may be
    /// another key's, so it does not show that the key was not removed.
    fn predecessors(&self, log: &Log, keys: &[(TableId, KeyHash)]) -> Vec<(u16, u64)> {
        let mut places: Vec<(u16, u64)> = Vec::new();
        let mut note =
            |(stream, end): (u16, u64)| match places.iter_mut().find(|(known, _)| *known == stream)
            {
                Some((_, known)) => *known = (*known).max(end),
                None => places.push((stream, end)),
            };
        for (table, hash) in keys {
            let Ok(index) = self.index(*table) else {
                continue;
            };
            let partition = index.partition(*hash);
            let view = partition.view();
            if view.len() != 0 {
                view.each_tagged(index.tag(*hash), |slot| {
                    if let Some(place) = log.undurable_entry(&self.core.space, slot.location()) {
                        note(place);
                    }
                });
            }
            if partition.last_removed() != 0 {
                log.undurable_removals(*hash).for_each(&mut note);
            }
        }
        places
    }

    /// Records a removal whose entry may be collected now, before any other thread can find the key
    /// absent (removals::M1, removals::M2).
    fn note_removal(&self, log: &Log, hash: KeyHash, partition: &Partition, end: u64) {
        let head = self.head.number;
        log.removals.note(hash.0, head, end);
        partition.note_removal(pack_place(head as u16, end));
    }

    /// Records the removals of a transaction whose group has ended, while its keys are still locked
    /// (removals::M1, removals::M2).
    pub(crate) fn note_removals(&self, log: &Log, removed: &[(&'s Partition, KeyHash)]) {
        let Some(tail) = self.tail.as_ref().filter(|_| !removed.is_empty()) else {
            return;
        };
        for (partition, hash) in removed {
            self.note_removal(log, *hash, partition, tail.position());
        }
    }

    /// Appends the tombstone of an object that is about to leave the index, and records its
    /// position. The bucket is locked. An absent key needs a tombstone if it may have been evicted
    /// and can still come back from disk.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`].
    pub(crate) fn bury(
        &mut self,
        log: &Log,
        table: TableId,
        (hash, key): (KeyHash, &[u8]),
        locked: &Locked<'s>,
    ) -> Result<Buried, Error> {
        let space = &self.core.space;
        let (version, victim) = match locked.found {
            Some((_, slot, entry)) => {
                let window = space.window_of(slot.location());
                (entry.version, log.segment_of(window))
            }
            // Everything that was evicted from here had a version below the floor (index::X3).
            None => {
                let evicted = locked.partition.floor().saturating_sub(1);
                (evicted, log.eviction_victim())
            }
        };
        if version == 0 || victim == SegmentId::NONE {
            return Ok(Buried::Done);
        }
        let tombstone = NewTombstone {
            table: table.0,
            version,
            key,
            victim,
        };
        self.append_tombstone(log, hash, locked, &tombstone)
    }

    /// Appends a tombstone of the key, and records its position. The bucket is locked.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`].
    pub(crate) fn append_tombstone(
        &mut self,
        log: &Log,
        hash: KeyHash,
        locked: &Locked<'s>,
        tombstone: &NewTombstone<'_>,
    ) -> Result<Buried, Error> {
        let space = &self.core.space;
        let bytes = tombstone.padded_bytes();
        let tail = self.tail.as_mut().expect("locked before the bucket");
        if !tail.fits(bytes) && !self.ahead.is_empty() {
            self.go_on();
            return Ok(Buried::LookAgain);
        }
        if !tail.fits(bytes) {
            let rolled = roll(self.core, self.head, tail, bytes, Purpose::Tombstones);
            return rolled.map(|rolled| match rolled {
                // The entry that was found may have moved with its group.
                true => Buried::LookAgain,
                false => Buried::NoSpace,
            });
        }
        let offset = tail.take(bytes);
        // SAFETY: `take` gave this head `bytes` bytes of its own window (head::H2), which it alone
        // writes while its lock is held.
        tombstone.write_to(unsafe {
            std::slice::from_raw_parts_mut(space.at(Space::location(offset)), bytes)
        });
        tail.record(space);
        let end = tail.position();
        log.streams[self.head.number].publish(end, tail.in_group());
        self.head.counters.note_tombstone(bytes);
        self.carried.appended += bytes as u64;
        // A guard that is alone ends its group before any other guard enters.
        let is_shown = has_bug(Bug::RemovalsShownEarly)
            || !self.locks.note_removed(locked.partition, hash);
        if is_shown {
            self.note_removal(log, hash, locked.partition, end);
        }
        Ok(Buried::Done)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{KeyHash, LogOptions, Options, Store, TableId};
    use std::collections::HashMap;

    /// log::L5: another key with the tag of a removed one is there. The removal was left out, and
    /// a transaction appended the key anew in another head: a crash could keep that alone.
    #[test]
    fn a_key_of_the_same_tag_hides_no_removal() {
        const T: TableId = TableId::DEFAULT;
        let store = Store::new(Options {
            huge_pages: false,
            heads: 2,
            cleaners: 0,
            log: Some(LogOptions::new(7)),
            ..Options::new(64 << 20)
        });
        let store = store.unwrap();
        let (core, log) = (store.core(), store.log().unwrap());
        let index = core.tables.index(T).unwrap();
        let hash_of = |n: u32| KeyHash(core.hasher.hash(&n.to_le_bytes()));
        let mut seen = HashMap::new();
        let (other, removed) = (0..)
            .find_map(|n: u32| {
                let partition = std::ptr::from_ref(index.partition(hash_of(n)));
                let place = (partition as usize, index.tag(hash_of(n)));
                seen.insert(place, n).map(|other| (other, n))
            })
            .unwrap();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        let mut guard = first.pin();
        for n in [other, removed] {
            let key = n.to_le_bytes();
            guard.write(T, hash_of(n), &key, b"value", None).unwrap();
        }
        guard
            .remove(T, hash_of(removed), &removed.to_le_bytes())
            .unwrap();
        let head = guard.head.number;
        drop(guard);
        let guard = second.pin();
        assert_ne!(guard.head.number, head);
        let removals: Vec<(u16, u64)> = log.undurable_removals(hash_of(removed)).collect();
        assert_eq!(removals.len(), 1);
        let places = guard.predecessors(log, &[(T, hash_of(removed))]);
        assert_eq!(places, removals);
    }
}
