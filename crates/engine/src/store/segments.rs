//! The segments of the log, for the owner of their copies on disk: damage, relocation, survivors
//! that are not swapped in yet.

use crate::Store;
use crate::core::Visitor;
use crate::core::damage::EntryDamage;
use crate::core::flash::Image;
use crate::core::flash::tier::Tier;
use crate::log::{Log, Relocation};
use duramen_base::ids::SegmentId;

/// The segments of a store's log, for the owner of their copies; from [`Store::segments`].
#[derive(Clone, Copy)]
pub struct Segments<'s> {
    store: &'s Store,
}

impl Store {
    /// The segments of its log.
    pub fn segments(&self) -> Segments<'_> {
        Segments { store: self }
    }
}

impl Segments<'_> {
    /// Reports damage that the owner of the log has found in a segment to the listener of
    /// [`Listeners::when_damaged`](crate::Listeners::when_damaged), and counts it.
    pub fn tell_damage(self, segment: SegmentId, what: String) {
        self.tell(segment, false, what);
    }

    /// As [`tell_damage`](Self::tell_damage), for a bit that had flipped and was put back.
    pub fn tell_mended(self, segment: SegmentId, bit: String) {
        self.tell(segment, true, bit);
    }

    fn tell(self, segment: SegmentId, is_mended: bool, what: String) {
        self.store.core.listeners.damages.tell(EntryDamage {
            segment,
            is_mended,
            what,
        });
    }

    /// This survivor of a pass will never be durable: gives its pass up, so that later passes do
    /// not wait for it. Returns false if the segment is no survivor that waits for its Swap.
    pub fn give_up_pass_of(self, survivor: SegmentId, why: &str) -> bool {
        let log = self.store.log();
        let is_first = log.and_then(|log| log.swaps().give_up_pass_of(survivor));
        if is_first == Some(true) {
            self.store
                .core
                .listeners
                .damages
                .tell_given_up(survivor, why);
        }
        is_first.is_some()
    }

    /// The replica of this segment is damaged: the next cleaning pass takes it, whatever that
    /// gains. A repeated call has no effect. An open segment is taken when it is closed
    /// ([`Heads::close_all`](crate::Heads::close_all)). A segment whose cleaning was given up is
    /// never taken.
    pub fn relocate(self, segment: SegmentId) {
        let Some(log) = self.store.log() else {
            return;
        };
        if log.swaps().relocate(segment) {
            self.store.core().cleaners.wake();
        }
    }

    /// Progress of a segment's relocation.
    pub fn relocation(self, segment: SegmentId) -> Relocation {
        let Some(log) = self.store.log() else {
            return Relocation::Done;
        };
        let swaps = log.swaps();
        // These places are looked up first, because a pass that begins meanwhile moves a segment
        // from one of them to another.
        let has_source = swaps.turn().is_taken()
            || swaps.queues().passes().is_victim(segment)
            || swaps.queues().passes().is_emptied(segment)
            || self.has_window(log, segment);
        if !swaps.is_durable_segment(segment) {
            Relocation::Done
        } else if has_source {
            Relocation::Waiting
        } else {
            Relocation::NoSource
        }
    }

    fn has_window(self, log: &Log, segment: SegmentId) -> bool {
        let mut windows = self.store.core().space.segments.iter().enumerate();
        windows.any(|(window, known)| known.is_in_log() && log.segment_of(window) == segment)
    }

    /// Does a step of relocation, for a store without cleaner threads. Returns false if there was
    /// nothing to do.
    pub fn relocation_step(self, quota_bytes: u64) -> bool {
        let log = self.store.log();
        let asks = log.is_some_and(|log| log.swaps().relocations.is_asking());
        asks && self.store.core().cleaners.threads() == 0 && self.store.clean_step(quota_bytes)
    }

    /// Bytes `from..to` of a survivor that is durable and not swapped in yet (swap::D7):
    /// from memory or, if the caller may wait for the device, from flash. `None`: there is no such
    /// segment, or it cannot be read as it was closed.
    pub fn unswapped_bytes(
        self,
        segment: SegmentId,
        from: u32,
        to: u32,
        may_wait: bool,
    ) -> Option<Vec<u8>> {
        let core = self.store.core();
        let log = core.log.as_deref()?;
        let visitor = Visitor::wait(core);
        // The visitor enters without waiting, because the caller may be the thread that an
        // exclusive session waits for.
        core.door.try_enter(visitor.slot, true);
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        // The window is found under the pin. If the side log is given up now, or the segment is
        // compacted, or cleaned after its Swap, the window's memory stays until the pin ends.
        let swaps = log.swaps();
        let window = swaps.queues().survivors().written_window(segment);
        let here = window.and_then(|window| {
            let is_here = |tier: &Tier| tier.is_in_memory(window as usize, stamp);
            let is_here = core.tier().is_none_or(is_here);
            is_here.then(|| log.windows().copy_of(window, from, to))
        });
        let incarnation = window.map(|window| core.space.segments[window as usize].incarnation());
        core.door.leave(visitor.slot);
        drop(visitor);
        if here.is_some() || !may_wait {
            return here;
        }
        let mut image = Image::read(core, window?, incarnation?).ok()??;
        image.verified(core, from as usize, to as usize)
    }
}
