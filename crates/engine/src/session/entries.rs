//! The entries that a guard finds: where their bytes are, and whether they are sound.

use super::summed::Summed;
use super::work::Work;
use crate::core::Core;
use crate::core::flash::Holding;
use crate::core::sound::InMemory;
use crate::epoch::SlotId;
use duramen_format::entry::{self, Entry};

/// The state that a session keeps from one guard to the next for its reads.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) work: Work,
    /// Copies of entries that are on flash.
    pub(super) holding: Holding,
}

/// The entries that are seen under a pin.
pub(crate) struct Entries<'s> {
    core: &'s Core,
    slot: SlotId,
    /// The long entries that were verified under the pin (verified::V8).
    summed: Summed,
    carried: &'s mut Carried,
}

impl<'s> Entries<'s> {
    #[inline(always)]
    pub(super) fn new(core: &'s Core, slot: SlotId, carried: &'s mut Carried) -> Entries<'s> {
        Entries {
            core,
            slot,
            summed: Summed::default(),
            carried,
        }
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &'s Core {
        self.core
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    /// Owner number of the locks under this pin.
    #[inline(always)]
    pub(crate) fn me(&self) -> u16 {
        self.slot.0 as u16 + 1
    }

    /// The stamp of the pin.
    #[inline(always)]
    pub(crate) fn stamp(&self) -> u64 {
        self.core.door.epochs().stamp_of(self.slot)
    }

    #[inline(always)]
    pub(super) fn work(&self) -> &Work {
        &self.carried.work
    }

    #[inline(always)]
    pub(super) fn holding(&self) -> &Holding {
        &self.carried.holding
    }

    pub(super) fn summed(&self) -> &Summed {
        &self.summed
    }

    /// Called when the pin was, or will be, taken anew.
    #[inline]
    pub(super) fn part_ends(&mut self) {
        self.summed.forget();
        self.carried.holding.part_ends();
    }

    /// Forgets the copies that were handed in.
    pub(super) fn forget_fetched(&mut self) {
        self.summed.forget();
        self.carried.holding.forget();
    }

    /// The entry of a location found in the index under this pin, which was verified, or is trusted
    /// (verified::V6).
    #[inline(always)]
    pub(crate) fn entry_at(&self, here: InMemory) -> Entry<'s> {
        // SAFETY: the index pointed to this location under our pin, so a whole entry was published
        // there (Acquire in `find`), and neither writer nor cleaner changes or reuses it before the
        // pin ends (epoch::E2, engine::space::S3); or it is a verified copy that the session holds,
        // or that is promoted (core::flash::F4).
        unsafe { entry::parse_trusted(here.at) }
    }
}
