//! The token that entries of absent keys name while evicted objects are on disk, or objects that
//! have expired by a clock that was set back since (swap::D11).

use super::{Log, Pass, Swaps};
use duramen_base::ids::SegmentId;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl Swaps {
    /// Announces that objects of these segments, which are listed, are evicted outside of the
    /// passes that evict (swap::D11). Called before the first of them is. `new_token`: gives an id
    /// that no segment gets.
    fn evict_from(&self, mut segments: Vec<SegmentId>, new_token: impl FnOnce() -> SegmentId) {
        let mut queues = self.queues();
        let known: HashSet<SegmentId> = queues.evicted.iter().copied().collect();
        segments.retain(|segment| !known.contains(segment));
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

    /// Listed segments of which memory has nothing any more, or soon has.
    fn leaving(&self) -> Vec<SegmentId> {
        let queues = self.queues();
        let pending = queues.pending.iter();
        let victims = pending.flat_map(|pending| &pending.swap.remove);
        let all = queues.empty.iter().chain(&queues.working).chain(victims);
        all.copied().collect()
    }
}

impl Log {
    /// Called at the end of a load, before anything is written, and before a cleaner evicts an
    /// object in a pass or a compaction that does not evict (swap::D11).
    pub(crate) fn announce_evicted(&self, segments: Vec<SegmentId>) {
        let new_token = || self.new_segment_ids(1);
        self.swaps().evict_from(segments, new_token);
    }

    /// Objects of these segments, and of those that memory knows no more, may have expired by a
    /// clock that was set back since: they count as evicted (core::doubt::DC4).
    pub(crate) fn announce_expired(&self, mut segments: Vec<SegmentId>) {
        segments.extend(self.swaps().leaving());
        segments.sort_unstable();
        segments.dedup();
        segments.retain(|segment| self.swaps().is_listed(*segment));
        self.announce_evicted(segments);
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
        swaps.evict_from(vec![SegmentId(1)], || SegmentId(50));
        assert_eq!(token_of(&swaps), 50);
        swaps.evict_from(vec![SegmentId(1), SegmentId(2)], || unreachable!());
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
        swaps.evict_from(vec![SegmentId(5)], || unreachable!());
        swap_out(&swaps, &[4]);
        assert!(token_of(&swaps) == 70 && is_needed(&swaps, 70));
        swap_out(&swaps, &[5]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 70));
    }
}
