//! The positions in the log that a guard's replies depend on.
//!
//! **Observation**: everything that a guard was shown (objects, absences, failed conditions) joins
//! its position if it can still be lost (docs/traps.md, trap 4).

use super::Locked;
use crate::core::Core;
use crate::index::{Index, Partition};
use crate::log::{Log, Position};
use crate::{KeyHash, TableChange, TableId};
use duramen_base::ids::Level;
use duramen_base::planted::{Bug, has_bug};
use std::cell::{Cell, RefCell};

/// Positions where a key with this hash may have been removed, if the removal can still be lost.
pub(super) fn undurable_removals(log: &Log, hash: KeyHash) -> impl Iterator<Item = (u16, u64)> {
    let ends = log.removals().of_class(hash.0);
    ends.filter(|(stream, end)| *end > log.streams().end_of(*stream, Level::Synced))
}

/// The level of a table.
pub(super) fn level_of(log: &Log, index: &Index) -> Level {
    index.level().unwrap_or_else(|| log.default_level())
}

/// The changes that the replies of a guard depend on, in a store with a log.
#[derive(Default)]
pub struct Observed {
    /// The head, the end of the guard's last append to it, and the highest level of the tables
    /// written.
    own: Cell<Option<(u16, u64, Level)>>,
    /// Whether `places` is not empty.
    any: Cell<bool>,
    places: RefCell<Position>,
    /// Changes that this exclusive guard made to tables, with their numbers in the log.
    changes: RefCell<Vec<(u64, TableChange)>>,
}

impl Observed {
    /// The position of everything that the guard wrote since it began or since the last
    /// [`take_position`](Self::take_position), and of everything that it saw and that could still
    /// be lost. A reply is true once this position has reached the level it promises.
    pub fn position(&self) -> Position {
        let mut position = self.places.borrow().clone();
        if let Some((stream, end, level)) = self.own.get() {
            position.add(stream, end, level);
        }
        position
    }

    /// As [`position`](Self::position), but the next position begins anew: for guards that serve
    /// several clients in turn.
    pub fn take_position(&self) -> Position {
        self.keep_own();
        self.any.set(false);
        self.places.take()
    }

    /// True if there is a position to wait for.
    #[inline(always)]
    pub fn has_position(&self) -> bool {
        self.own.get().is_some() || self.any.get()
    }

    /// Makes the position cover another one too: all that a log has
    /// [appended](Log::appended) so far, for replies about the whole store.
    pub fn observe(&self, position: &Position) {
        self.any.set(true);
        self.places.borrow_mut().join(position);
    }

    /// Notes that an append of this guard ends at `end` of this stream, in a table of this level.
    #[inline(always)]
    pub(super) fn note_own(&self, stream: u16, end: u64, level: Level) {
        let known = self.own.get().map_or(Level::Memory, |(_, _, level)| level);
        self.own.set(Some((stream, end, level.max(known))));
    }

    /// Adds the position of own appends to the observed ones, before the head is changed.
    pub(super) fn keep_own(&self) {
        if let Some((stream, end, level)) = self.own.take() {
            self.any.set(true);
            self.places.borrow_mut().add(stream, end, level);
        }
    }

    /// Notes that the guard saw, or based a decision on, this entry, if the entry can still be
    /// lost.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe_entry(&self, core: &Core, index: &Index, location: u64) {
        if let Some(log) = &core.log
            && !has_bug(Bug::HitsDoNotWait)
        {
            self.observe_place(log, index, log.windows().place_of(&core.space, location));
        }
    }

    /// Notes that a key with this hash was found absent.
    #[inline(always)]
    pub(crate) fn observe_absence(
        &self,
        core: &Core,
        index: &Index,
        partition: &Partition,
        hash: KeyHash,
    ) {
        if core.log.is_some() && partition.last_removed() != 0 {
            self.observe_removals(core, index, partition, Some(hash));
        }
    }

    /// Notes that the guard saw a part of the partition, and thereby which keys are absent.
    #[inline(always)]
    pub(crate) fn observe_gaps(&self, core: &Core, index: &Index, partition: &Partition) {
        if core.log.is_some() && partition.last_removed() != 0 {
            self.observe_removals(core, index, partition, None);
        }
    }

    /// Notes that the entry, or its absence, decided the result: the reply depends on it.
    #[inline]
    pub(crate) fn observe_locked(
        &self,
        core: &Core,
        index: &Index,
        hash: KeyHash,
        locked: &Locked<'_>,
    ) {
        match locked.found {
            Some((_, slot, _)) if core.space.is_undurable(slot.location()) => {
                self.observe_entry(core, index, slot.location());
            }
            Some(_) => {}
            None => self.observe_absence(core, index, locked.partition, hash),
        }
    }

    /// Adds the positions of removals. `hash`: the hash of the key that was looked for, if it was a
    /// single key.
    #[cold]
    #[inline(never)]
    fn observe_removals(
        &self,
        core: &Core,
        index: &Index,
        partition: &Partition,
        hash: Option<KeyHash>,
    ) {
        let Some(log) = &core.log else {
            return;
        };
        if has_bug(Bug::MissesDoNotWait) {
            return;
        }
        let seen = partition.last_removed();
        let undurable =
            |(stream, end): &(u16, u64)| *end > log.streams().end_of(*stream, Level::Synced);
        let cleared = (log.streams().of_changes(), index.cleared());
        let all = || log.removals().last().chain([cleared]).filter(undurable);
        match hash {
            Some(hash) => {
                let own = undurable_removals(log, hash).chain([cleared]);
                own.filter(undurable)
                    .for_each(|place| self.observe_place(log, index, place));
            }
            None => all().for_each(|place| self.observe_place(log, index, place)),
        }
        if all().next().is_none() {
            // All removals are durable: the next guard that finds no key here need not check.
            partition.forget_removals(seen);
        }
    }

    fn observe_place(&self, log: &Log, index: &Index, (stream, end): (u16, u64)) {
        let level = level_of(log, index);
        // Entries of a table of level memory may vanish at any time.
        if level > Level::Memory {
            self.any.set(true);
            self.places.borrow_mut().add(stream, end, level);
        }
    }

    /// Notes a change of a table that this exclusive guard is about to make. Returns the number of
    /// the change, for guards that find keys absent because of it.
    pub(crate) fn note_change(&self, core: &Core, index: &Index, change: TableChange) -> u64 {
        let Some(log) = &core.log else {
            return 0;
        };
        let number = log.changes().reserve();
        self.changes.borrow_mut().push((number, change));
        self.any.set(true);
        let level = level_of(log, index);
        let stream = log.streams().of_changes();
        self.places.borrow_mut().add(stream, number, level);
        number
    }

    /// Whether this exclusive guard has cleared the table.
    pub(crate) fn has_cleared(&self, table: TableId) -> bool {
        self.changes.borrow().iter().any(
            |(_, change)| matches!(change, TableChange::Clear { table: done, .. } if *done == table),
        )
    }

    /// Ends an exclusive guard: its changes of tables, and the entries of the group that
    /// `end_group` ends, become collectable at one instant.
    pub(super) fn publish_alone(&self, log: &Log, end_group: impl FnOnce()) {
        log.changes().publish_alone(self.changes.take(), end_group);
    }
}
