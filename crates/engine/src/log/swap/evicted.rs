//! The token that entries of absent keys name while evicted objects are on disk, or objects that
//! have expired by a clock that was set back since (swap::D11).

use super::{Pass, Queues, Swaps};
use crate::log::numbers::Numbers;
use duramen_base::ids::SegmentId;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// The evictions that a token stands for, beside those of passes that wait for their Swap.
#[derive(Default)]
pub(super) struct Eviction {
    /// The running pass evicts.
    at_work: bool,
    /// Listed segments of which objects were evicted outside of the passes that evict
    /// (swap::D11).
    segments: Vec<SegmentId>,
}

impl Eviction {
    /// Notes that a pass that evicts begins.
    pub fn begin(&mut self) {
        self.at_work = true;
    }

    /// Notes that the running pass has ended. Returns whether it evicted.
    pub fn end_work(&mut self) -> bool {
        std::mem::take(&mut self.at_work)
    }

    /// True if objects were evicted outside of the passes that evict.
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    pub fn add(&mut self, segment: SegmentId) {
        if !self.segments.contains(&segment) {
            self.segments.push(segment);
        }
    }
}

/// The id that entries of absent keys name as their victim; 0 = none.
#[derive(Default)]
pub(super) struct Token(AtomicU64);

impl Token {
    #[inline]
    pub fn get(&self) -> SegmentId {
        SegmentId(self.0.load(Ordering::Acquire))
    }

    pub fn set(&self, token: SegmentId) {
        self.0.store(token.0, Ordering::Release);
    }
}

impl Queues {
    /// The segments for which a token stands, but for those of passes that evict.
    pub fn evicted(&self) -> HashSet<SegmentId> {
        self.eviction.segments.iter().copied().collect()
    }

    /// Segments have left the list: ends the token if it stands for none of the others (swap::D11).
    pub(super) fn end_token(&mut self, token: &Token, gone: &[SegmentId]) {
        let eviction = &mut self.eviction;
        eviction.segments.retain(|segment| !gone.contains(segment));
        let stands = eviction.at_work || eviction.has_segments() || self.passes.has_evicted();
        if !stands {
            token.set(SegmentId::NONE);
        }
    }
}

impl Swaps {
    /// Announces that objects of these segments are evicted (swap::D11). Called at the end of a
    /// load, before anything is written, and before a cleaner evicts an object in a pass or a
    /// compaction that was not begun to evict.
    pub(crate) fn announce_evicted(&self, segments: Vec<SegmentId>, numbers: &Numbers) {
        self.evict_from(segments, false, || numbers.new_segment_ids(1));
    }

    /// Objects of these segments, and of those that memory knows no more, may have expired by a
    /// clock that was set back since: they count as evicted (core::doubt::DC4).
    pub(crate) fn announce_expired(&self, segments: Vec<SegmentId>, numbers: &Numbers) {
        self.evict_from(segments, true, || numbers.new_segment_ids(1));
    }

    /// Announces that objects of these segments are evicted outside of the passes that evict
    /// (swap::D11). Called before the first object is evicted. `with_leaving`: the same holds for
    /// segments that memory soon knows no more. `new_token`: gives an id that no segment gets.
    fn evict_from(
        &self,
        mut segments: Vec<SegmentId>,
        with_leaving: bool,
        new_token: impl FnOnce() -> SegmentId,
    ) {
        let mut queues = self.queues(); // no segment leaves the list before this returns
        let known = queues.evicted();
        let needs = self.list.needs();
        // Until its Swap is durable, the objects of a survivor are in its victims too (swap::D12).
        if with_leaving || segments.iter().any(|segment| !needs.is_settled(*segment)) {
            segments.extend(queues.passes.leaving());
            segments.sort_unstable();
            segments.dedup();
        }
        segments.retain(|it| !known.contains(it) && needs.life(*it).is_some());
        drop(needs);
        if segments.is_empty() {
            return;
        }
        queues.eviction.segments.extend(&segments);
        // A token that entries may name already stands for these segments too.
        let token = match self.token.get() {
            SegmentId::NONE => new_token(),
            token => token,
        };
        let pass = Pass {
            first: token,
            count: 1,
            victims: segments,
        };
        queues.passes.announce(&self.list, pass);
        self.token.set(token);
    }

    /// The victim that an entry of an absent key names while evicted objects can still come
    /// back from disk (swap::D11); 0 = none.
    #[inline]
    pub fn eviction_victim(&self) -> SegmentId {
        self.token.get()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::tests::swaps;
    use super::*;
    use crate::log::Swap;

    fn token_of(swaps: &Swaps) -> u64 {
        swaps.eviction_victim().0
    }

    fn is_needed(swaps: &Swaps, token: u64) -> bool {
        swaps.list().needs().tombstone(SegmentId(token), &[])
    }

    fn swap_out(swaps: &Swaps, remove: &[u64]) {
        let swap = Swap {
            add: Vec::new(),
            remove: remove.iter().map(|id| SegmentId(*id)).collect(),
            version_floor: 0,
        };
        swaps.scanned(swap.clone(), Default::default());
        swaps.swapped(&swap);
    }

    /// One token is named from the first eviction until the last segment has left, whether passes
    /// that evict, or compactions without room, take them.
    #[test]
    fn a_token_stands_until_every_segment_has_left() {
        let swaps = swaps();
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
        swaps.queues().passes.take_announced(&mut announced);
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
        let swaps = swaps();
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
        swaps.queues().passes.take_announced(&mut announced);
        assert_eq!(announced[0].victims, [SegmentId(1), SegmentId(9)]);
        swaps.swapped(&swap);
        assert!(token_of(&swaps) == 50 && is_needed(&swaps, 50));
        swap_out(&swaps, &[9]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 50));
    }

    /// A token for a side log that was given up stood for ever.
    #[test]
    fn a_token_ends_with_a_side_log_that_is_given_up() {
        let swaps = swaps();
        swaps.opened_side(SegmentId(3), 3, false);
        swaps.evict_from(vec![SegmentId(3)], true, || SegmentId(50));
        assert!(token_of(&swaps) == 50 && is_needed(&swaps, 50));
        swaps.abandon(&[(SegmentId(3), 3)]);
        assert!(token_of(&swaps) == 0 && !is_needed(&swaps, 50));
    }
}
