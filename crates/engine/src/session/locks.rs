//! The keys that a guard has locked as one step (`crate::transaction`), and what the step has met
//! since.

use super::lock_tables::LockTables;
use crate::KeyHash;
use crate::core::Core;
use crate::index::Partition;

/// A session keeps the tables of at most this many keys between its steps.
const KEYS_KEPT: usize = 256;
/// Steps of more keys are not checked by [`Locks::may_read`].
const CHECKED_KEYS_MAX: usize = 1024;

/// The locks of a guard.
pub struct Locks<'s> {
    step: Option<Step<'s>>,
    /// Memory for the tables of the next step.
    spare: &'s mut LockTables<'static>,
}

/// A step between `lock_keys` and `unlock_keys`.
pub(crate) struct Step<'s> {
    tables: LockTables<'s>,
    /// The keys that the step has removed, for `removals`.
    removed: Vec<(&'s Partition, KeyHash)>,
    /// Predecessors of the step's keys that may still be lost in other heads, after the step has
    /// unlocked its keys as often as it may (transaction::T7).
    unsettled: Vec<(u16, u64)>,
    /// The step has waited for memory in vain (transaction::T5) and does not wait again.
    is_starved: bool,
    /// The step waits for memory for a moment only: its caller unlocks the keys, and tries again.
    is_brief: bool,
}

impl<'s> Locks<'s> {
    #[inline(always)]
    pub(super) fn new(spare: &'s mut LockTables<'static>) -> Locks<'s> {
        Locks { step: None, spare }
    }

    /// Whether keys are locked.
    #[inline(always)]
    pub(crate) fn are_taken(&self) -> bool {
        self.step.is_some()
    }

    /// True if the open step has looked for memory in vain.
    pub fn was_starved(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.is_starved)
    }

    /// Notes that the open step has looked for memory in vain.
    pub(crate) fn starve(&mut self) {
        if let Some(step) = &mut self.step {
            step.is_starved = true;
        }
    }

    /// Whether the open step waits for memory for a moment only.
    pub(crate) fn are_brief(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.is_brief)
    }

    /// From now on the open step waits for memory for a moment only.
    pub(crate) fn make_brief(&mut self) {
        if let Some(step) = &mut self.step {
            step.is_brief = true;
        }
    }

    /// Whether the open step may read this key (transaction::T8), for an assertion.
    pub(crate) fn may_read(&self, partition: &Partition, tag: u64) -> bool {
        let places = self.places();
        let is =
            |(one, its_tag): &(&Partition, u64)| std::ptr::eq(*one, partition) && *its_tag == tag;
        !self.are_taken() || places.len() > CHECKED_KEYS_MAX || places.iter().any(is)
    }

    /// Partition and tag of each locked key.
    pub(crate) fn places(&self) -> &[(&'s Partition, u64)] {
        self.step.as_ref().map_or(&[], |step| step.tables.places())
    }

    /// True if a key that does not exist yet would be refused ([`crate::Error::Crowded`]).
    pub(crate) fn are_crowded(&self) -> bool {
        let step = self.step.as_ref();
        step.is_some_and(|step| step.tables.are_crowded())
    }

    /// Empty tables, in memory that the session has kept.
    pub(crate) fn take_tables(&mut self) -> LockTables<'s> {
        std::mem::take(self.spare).emptied()
    }

    /// Opens a step, whose keys are those of these tables and are locked. Returns whether they
    /// still have the room that was reserved for them: a resize that was in progress at that time
    /// may not have seen the reservation. No resize begins from now on.
    pub(crate) fn open(&mut self, tables: LockTables<'s>) -> bool {
        let have_room = tables.have_room();
        self.step = Some(Step {
            tables,
            removed: Vec::new(),
            unsettled: Vec::new(),
            is_starved: false,
            is_brief: false,
        });
        have_room
    }

    /// Predecessors that the open step has to wait for before it writes (transaction::T7).
    pub(crate) fn set_unsettled(&mut self, places: Vec<(u16, u64)>) {
        if let Some(step) = &mut self.step {
            step.unsettled = places;
        }
    }

    pub(crate) fn take_unsettled(&mut self) -> Vec<(u16, u64)> {
        let step = self.step.as_mut();
        step.map_or_else(Vec::new, |step| std::mem::take(&mut step.unsettled))
    }

    /// Notes that the open step has removed a key. Returns false if there is no step.
    pub(crate) fn note_removed(&mut self, partition: &'s Partition, hash: KeyHash) -> bool {
        let Some(step) = &mut self.step else {
            return false;
        };
        step.removed.push((partition, hash));
        true
    }

    /// Takes the step out, to be ended.
    pub(crate) fn take(&mut self) -> Option<Step<'s>> {
        self.step.take()
    }

    /// Ends a step: other sessions see its keys again.
    pub(crate) fn end(&mut self, step: Step<'s>, core: &Core, me: u16) {
        step.tables.unlock(core, me);
        if step.tables.capacity() <= KEYS_KEPT {
            *self.spare = step.tables.emptied();
        }
    }
}

impl<'s> Step<'s> {
    /// The keys that it has removed.
    pub(crate) fn removed(&self) -> &[(&'s Partition, KeyHash)] {
        &self.removed
    }
}
