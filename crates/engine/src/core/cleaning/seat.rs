//! The place of a cleaning context in its store.

use super::Tally;
use crate::core::Core;
use crate::counters::Counters;
use crate::epoch::SlotId;

/// The numbers of a context, and its slot.
#[derive(Clone, Copy)]
pub struct Seat {
    number: usize,
    node: usize,
    slot: SlotId,
}

impl Seat {
    pub fn new(number: usize, node: usize, slot: SlotId) -> Seat {
        Seat { number, node, slot }
    }

    pub fn number(self) -> usize {
        self.number
    }

    pub fn node(self) -> usize {
        self.node
    }

    pub fn slot(self) -> SlotId {
        self.slot
    }

    /// The lock owner number of the context.
    pub fn me(self) -> u16 {
        self.slot.0 as u16 + 1
    }

    /// The counters of the context, for its holder.
    pub fn counters(self, core: &Core) -> &Counters {
        core.actors.of_context(self.number)
    }

    /// The figures of the context, for its holder.
    pub fn tally(self, core: &Core) -> &Tally {
        core.cleaners.tally(self.number)
    }

    /// Pins the slot. Returns false if another guard is alone in the store, or wants to be.
    pub fn enter(self, core: &Core) -> bool {
        core.door.try_enter(self.slot, false)
    }

    pub fn leave(self, core: &Core) {
        core.door.leave(self.slot);
    }
}
