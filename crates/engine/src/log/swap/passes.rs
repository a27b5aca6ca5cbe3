//! The passes: those that wait for their Swap, and the segments that the running one removes.

use super::list::Listed;
use super::{Pass, Position, Swap};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A pass whose scan has ended, or a side log that is complete.
pub struct Pending {
    pub swap: Swap,
    /// Survivors of the pass that are not durable yet.
    pub unwritten: usize,
    /// Position of the heads when the scan ended (swap::D2).
    pub position: Position,
    pub evicted: bool,
    /// Windows of a side log, held until the Swap is durable (swap::D6).
    pub held: Vec<u32>,
    /// For a side log: set when its Swap is durable.
    pub done: Option<Arc<AtomicBool>>,
    /// The consumer has got its Swap (swap::D6).
    pub handed: bool,
}

impl Pending {
    fn is_pass(&self) -> bool {
        self.done.is_none()
    }
}

#[derive(Default)]
pub struct Passes {
    /// Announcements that the consumer has not taken yet.
    announced: Vec<Pass>,
    /// In the order of their scans (swap::D5).
    pending: VecDeque<Pending>,
    /// Victims of the running pass.
    working: Vec<SegmentId>,
    /// Listed segments of which memory holds nothing any more.
    empty: Vec<SegmentId>,
    /// Victims of passes that were given up (given_up::GU3).
    stranded: Vec<SegmentId>,
    /// Survivors that will never be durable, until their passes are given up.
    hopeless: Vec<SegmentId>,
}

impl Passes {
    /// Announces a pass to the cleaners, and to the consumer (swap::D4).
    pub(super) fn announce(&mut self, list: &Listed, pass: Pass) {
        list.announce(pass.clone());
        self.announced.push(pass);
    }

    /// Moves the announcements made so far to `out`. The consumer calls it after it has decided
    /// which data it takes.
    pub fn take_announced(&mut self, out: &mut Vec<Pass>) {
        out.append(&mut self.announced);
    }

    /// Notes that a pass with these victims begins.
    pub(super) fn begin(&mut self, victims: &[SegmentId]) {
        self.working = victims.to_vec();
    }

    /// Notes that the scan of the running pass has ended, or that the pass is given up.
    pub(super) fn end_work(&mut self) {
        self.working.clear();
    }

    pub(super) fn wait_for_swap(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    /// Number of passes that wait for their Swap. Side logs wait for theirs too, but hold no
    /// victims.
    pub(super) fn waiting(&self) -> usize {
        let pending = self.pending.iter();
        pending.filter(|pending| pending.is_pass()).count()
    }

    /// True if nothing waits for a Swap.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Notes that compaction left nothing of a segment: it has no window any more, and a pass has
    /// to remove it from the list.
    pub fn emptied(&mut self, segment: SegmentId) {
        self.empty.push(segment);
    }

    /// Takes those emptied segments that may be victims.
    pub(super) fn take_empty(&mut self, may_be: impl Fn(SegmentId) -> bool) -> Vec<SegmentId> {
        let empty = std::mem::take(&mut self.empty).into_iter();
        let (taken, rest) = empty.partition(|segment| may_be(*segment));
        self.empty = rest;
        taken
    }

    /// True if the segment has no window any more and waits for a pass to remove it.
    pub fn is_emptied(&self, segment: SegmentId) -> bool {
        self.empty.contains(&segment)
    }

    /// True if a pass of this run has, or had, the segment as a victim: the pass's Swap will remove
    /// the segment, or the pass was given up and none of this run removes it (given_up::GU3).
    pub fn is_victim(&self, segment: SegmentId) -> bool {
        let mut pending = self.pending.iter();
        self.working.contains(&segment)
            || self.stranded.contains(&segment)
            || pending.any(|pending| pending.swap.remove.contains(&segment))
    }

    /// Listed segments of which memory has nothing any more, or soon has.
    pub(super) fn leaving(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let pending = self.pending.iter();
        let victims = pending.flat_map(|pending| &pending.swap.remove);
        let all = self.empty.iter().chain(&self.working).chain(victims);
        all.chain(&self.stranded).copied()
    }

    /// True if a pass that evicted waits for its Swap.
    pub(super) fn has_evicted(&self) -> bool {
        self.pending.iter().any(|pending| pending.evicted)
    }

    /// Victims of the passes that evicted and wait for their Swap.
    pub(super) fn evicted_victims(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let evicted = self.pending.iter().filter(|pending| pending.evicted);
        evicted.flat_map(|pending| &pending.swap.remove).copied()
    }

    /// Notes that a survivor is durable.
    pub(super) fn survivor_written(&mut self, segment: SegmentId) {
        let mut pending = self.pending.iter_mut();
        if let Some(its) = pending.find(|pending| pending.swap.add.contains(&segment)) {
            its.unwritten -= 1;
        }
    }

    /// The next Swap, in order (swap::D5), if its survivors are durable and the position is
    /// `reached` (swap::D2).
    pub fn next(&mut self, reached: impl Fn(&Position) -> bool) -> Option<Swap> {
        let pending = self.pending.front_mut()?;
        let written = pending.unwritten == 0 || has_bug(Bug::SwapBeforeFrames);
        let careless = has_bug(Bug::SwapBeforeReasons);
        pending.handed |= written && (careless || reached(&pending.position));
        pending.handed.then(|| pending.swap.clone())
    }

    /// The position of the next Swap, if all its survivors are durable.
    pub fn next_position(&self) -> Option<Position> {
        let pending = self.pending.front()?;
        (pending.unwritten == 0).then(|| pending.position.clone())
    }

    /// Notes that the next Swap is durable, and takes its pass.
    pub(super) fn swapped(&mut self, swap: &Swap) -> Option<Pending> {
        let front = self.pending.pop_front();
        assert_eq!(
            front.as_ref().map(|pending| &pending.swap),
            Some(swap),
            "swaps are made in order" // swap::D5
        );
        self.forget_hopeless(&swap.add);
        front
    }

    /// Takes back the Swap of a complete side log that is to be given up (swap::D6); `done`
    /// identifies it. Returns false if the Swap was handed to the consumer.
    pub fn withdraw(&mut self, done: &Arc<AtomicBool>) -> bool {
        let is_it = |pending: &Pending| {
            let its = pending.done.as_ref();
            its.is_some_and(|its| Arc::ptr_eq(its, done))
        };
        let Some(at) = self.pending.iter().position(is_it) else {
            return false;
        };
        if self.pending[at].handed && !has_bug(Bug::WithdrawnAfterHanded) {
            return false;
        }
        self.pending.remove(at);
        true
    }

    /// Notes that the consumer will not record this Swap: its pass may be given up.
    pub(super) fn handed_back(&mut self, swap: &Swap) {
        let mut pending = self.pending.iter_mut();
        if let Some(pending) = pending.find(|pending| pending.swap == *swap) {
            pending.handed = false;
        }
    }

    /// Notes that a survivor will never be durable.
    pub(super) fn lose(&mut self, survivor: SegmentId) {
        self.hopeless.push(survivor);
    }

    /// True if a survivor of this pass is hopeless. Passes are not compared by their victims: a
    /// pass that evicts announces those of others too (swap::D11).
    pub(super) fn is_lost(&self, pass: &Pass) -> bool {
        let mut hopeless = self.hopeless.iter();
        hopeless.any(|known| pass.has_survivor(known.0))
    }

    /// Forgets these hopeless survivors, whose pass was given up.
    pub(super) fn forget_hopeless(&mut self, survivors: &[SegmentId]) {
        self.hopeless.retain(|known| !survivors.contains(known));
    }

    /// Takes a pass that waits for its Swap and has a hopeless survivor, unless the consumer has
    /// got the Swap.
    pub(super) fn take_hopeless(&mut self) -> Option<Pending> {
        let is_hopeless = |pending: &Pending| {
            let mut survivors = pending.swap.add.iter();
            let is_open = pending.is_pass() && !pending.handed;
            is_open && survivors.any(|segment| self.hopeless.contains(segment))
        };
        let at = self.pending.iter().position(is_hopeless)?;
        self.pending.remove(at)
    }

    /// Adds a victim of a pass that was given up (given_up::GU3).
    pub(super) fn strand(&mut self, victim: SegmentId) {
        self.stranded.push(victim);
    }

    #[cfg(test)]
    pub(super) fn has_hopeless(&self) -> bool {
        !self.hopeless.is_empty()
    }
}
