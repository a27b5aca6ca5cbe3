//! The token that entries of absent keys name while evicted objects are on disk, or objects that
//! have expired by a clock that was set back since (swap::D11).

use super::{List, Log, Pass, Queues, Swaps};
use duramen_base::ids::SegmentId;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl List {
    /// These segments are not listed any more, and no pass cleans them.
    pub(super) fn remove(&mut self, gone: &[SegmentId]) {
        for segment in gone {
            self.segments.remove(&segment.0);
        }
        for pass in &mut self.passes {
            pass.victims.retain(|victim| !gone.contains(victim));
        }
        self.passes.retain(|pass| !pass.victims.is_empty());
    }
}

impl Queues {
    /// Listed segments of which memory has nothing any more, or soon has.
    pub(super) fn leaving(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let pending = self.pending.iter();
        let victims = pending.flat_map(|pending| &pending.swap.remove);
        let all = self.empty.iter().chain(&self.working).chain(victims);
        all.chain(&self.stranded).copied()
    }
}

impl Swaps {
    /// Announces that objects of these segments are evicted outside of the passes that evict
    /// (swap::D11). Called before the first of them is. `with_leaving`: also of those that memory
    /// soon knows no more. `new_token`: gives an id that no segment gets.
    fn evict_from(
        &self,
        mut segments: Vec<SegmentId>,
        with_leaving: bool,
        new_token: impl FnOnce() -> SegmentId,
    ) {
        let mut queues = self.queues(); // until then no segment leaves the list
        let known: HashSet<SegmentId> = queues.evicted.iter().copied().collect();
        let needs = self.needs();
        // Until its Swap is durable, the objects of a survivor are in its victims too (swap::D12).
        if with_leaving || segments.iter().any(|segment| !needs.is_settled(*segment)) {
            segments.extend(queues.leaving());
            segments.sort_unstable();
            segments.dedup();
        }
        segments.retain(|it| !known.contains(it) && needs.list.segments.contains_key(&it.0));
        drop(needs);
        if segments.is_empty() {
            return;
        }
        queues.evicted.extend(&segments);
        // A token that entries may name already stands for these segments too.
        let token = match self.eviction_victim.load(Ordering::Acquire) {
            0 => new_token(),
            token => SegmentId(token),
        };
        let pass = Pass {
            first: token,
            count: 1,
            victims: segments,
        };
        self.note_announced(&mut queues, pass);
        self.eviction_victim.store(token.0, Ordering::Release);
    }

    /// The segments for which a token stands, but for those of passes that evict.
    pub fn evicted(&self) -> HashSet<SegmentId> {
        self.queues().evicted.iter().copied().collect()
    }

    /// Segments have left the list: the token ends with the last one that it stands for
    /// (swap::D11).
    pub(super) fn end_token(&self, queues: &mut Queues, gone: &[SegmentId]) {
        queues.evicted.retain(|segment| !gone.contains(segment));
        let evicting = queues.evicting.is_some() || !queues.evicted.is_empty();
        if !evicting && !queues.pending.iter().any(|pending| pending.evicted) {
            self.eviction_victim.store(0, Ordering::Release);
        }
    }
}

impl Log {
    /// Called at the end of a load, before anything is written, and before a cleaner evicts an
    /// object in a pass or a compaction that does not evict (swap::D11).
    pub(crate) fn announce_evicted(&self, segments: Vec<SegmentId>) {
        let new_token = || self.new_segment_ids(1);
        self.swaps().evict_from(segments, false, new_token);
    }

    /// Objects of these segments, and of those that memory knows no more, may have expired by a
    /// clock that was set back since: they count as evicted (core::doubt::DC4).
    pub(crate) fn announce_expired(&self, segments: Vec<SegmentId>) {
        let new_token = || self.new_segment_ids(1);
        self.swaps().evict_from(segments, true, new_token);
    }

    /// The victim that an entry of an absent key names while evicted objects can still come
    /// back from disk (swap::D11); 0 = none.
    pub fn eviction_victim(&self) -> SegmentId {
        SegmentId(self.swaps().eviction_victim.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Swap;

    const HEADS: usize = 1;

    fn token_of(swaps: &Swaps) -> u64 {
        swaps.eviction_victim.load(Ordering::Acquire)
    }

    fn is_needed(swaps: &Swaps, token: u64) -> bool {
        swaps.needs().tombstone(SegmentId(token), &[])
    }

    fn swap_out(swaps: &Swaps, remove: &[u64]) {
        let swap = Swap {
            add: Vec::new(),
            remove: remove.iter().map(|id| SegmentId(*id)).collect(),
            version_floor: 0,
        };
        swaps.scanned(swap.clone(), Default::default());
        swaps.finished(&swap);
    }

    /// One token is named from the first eviction until the last segment has left, whether passes
    /// that evict, or compactions without room, take them.
    #[test]
    fn a_token_stands_until_every_segment_has_left() {
        let swaps = Swaps::new(100, 100, 4, 100, HEADS);
        (1..=4).for_each(|id| swaps.opened(SegmentId(id)));
        assert_eq!(token_of(&swaps), 0);
        swaps.evict_from(vec![SegmentId(1)], false, || SegmentId(50));
        assert_eq!(token_of(&swaps), 50);
        swaps.evict_from(vec![SegmentId(1), SegmentId(2)], false, || unreachable!());
        let pass = Pass {
            first: SegmentId(60),
            count: 4,
            victims: vec![SegmentId(1), SegmentId(3)],
        };
        swaps.announce(pass, true);
        assert_eq!(
            token_of(&swaps),
            50,
            "the present token gets the victims too"
        );
        swap_out(&swaps, &[1]);
        assert!(token_of(&swaps) == 50 && is_needed(&swaps, 50));
        swap_out(&swaps, &[2]);
        assert!(is_needed(&swaps, 50), "a victim of the pass is listed");
        swap_out(&swaps, &[3]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 50));
        let mut announced = Vec::new();
        swaps.take_passes(&mut announced);
        assert_eq!(announced.len(), 4, "{announced:?}");
        // The other order: the token of a pass stands for a segment that is evicted alone.
        let pass = Pass {
            first: SegmentId(70),
            count: 4,
            victims: vec![SegmentId(4)],
        };
        swaps.opened(SegmentId(5));
        swaps.announce(pass, true);
        swaps.evict_from(vec![SegmentId(5)], false, || unreachable!());
        swap_out(&swaps, &[4]);
        assert!(token_of(&swaps) == 70 && is_needed(&swaps, 70));
        swap_out(&swaps, &[5]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 70));
    }

    /// The clock was set back while a survivor waited for its Swap: objects that had left memory
    /// came back with the survivor, or its victim, if only the other one was announced.
    #[test]
    fn a_survivor_and_its_victims_are_announced_together() {
        let swaps = Swaps::new(100, 100, 4, 100, HEADS);
        (1..=2).for_each(|id| swaps.opened(SegmentId(id)));
        swaps.opened_survivor(SegmentId(9));
        let swap = Swap {
            add: vec![SegmentId(9)],
            remove: vec![SegmentId(1)],
            version_floor: 0,
        };
        swaps.scanned(swap.clone(), Default::default());
        // As a compaction without room does; a step back names all that leaves anyway.
        swaps.evict_from(vec![SegmentId(9), SegmentId(7)], false, || SegmentId(50));
        let mut announced = Vec::new();
        swaps.take_passes(&mut announced);
        assert_eq!(announced[0].victims, [SegmentId(1), SegmentId(9)]);
        swaps.finished(&swap);
        assert!(token_of(&swaps) == 50 && is_needed(&swaps, 50));
        swap_out(&swaps, &[9]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 50));
    }

    /// A token for a side log that was given up stood for ever.
    #[test]
    fn a_token_ends_with_a_side_log_that_is_given_up() {
        let swaps = Swaps::new(100, 100, 4, 100, HEADS);
        swaps.opened_side(SegmentId(3), 3, false);
        swaps.evict_from(vec![SegmentId(3)], true, || SegmentId(50));
        assert!(token_of(&swaps) == 50 && is_needed(&swaps, 50));
        swaps.abandon(&[(SegmentId(3), 3)]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 50));
    }
}
