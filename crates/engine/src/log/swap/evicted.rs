//! The token that entries of absent keys name while evicted objects are on disk (swap::D11).

use super::{Log, Pass, Swaps};
use duramen_base::ids::SegmentId;
use std::sync::atomic::Ordering;

impl Swaps {
    /// Announces that the load evicted the objects of these segments, which are listed (swap::D11).
    /// `token`: an id that no segment gets.
    fn evicted_by_load(&self, token: SegmentId, segments: Vec<SegmentId>) {
        let mut queues = self.queues();
        queues.evicted_by_load.clone_from(&segments);
        self.eviction_victim.store(token.0, Ordering::Release);
        let pass = Pass {
            first: token,
            count: 1,
            victims: segments,
        };
        self.note_announced(&mut queues, pass);
    }
}

impl Log {
    /// Called at the end of a load, before anything is written (swap::D11).
    pub(crate) fn announce_evicted(&self, segments: Vec<SegmentId>) {
        let token = self.new_segment_ids(1);
        self.swaps().evicted_by_load(token, segments);
    }

    /// The victim that an entry of an absent key names while evicted objects can still come
    /// back from disk (swap::D11); 0 = none.
    pub fn eviction_victim(&self) -> SegmentId {
        SegmentId(self.swaps().eviction_victim.load(Ordering::Acquire))
    }
}
