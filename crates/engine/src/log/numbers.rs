//! Numbers that the log gives once: ids of segments, and the floor of versions.

use crate::LogOptions;
use duramen_base::ids::SegmentId;
use duramen_base::sync::{AtomicU64, Ordering};

/// The next id of a segment, and the version below which others may be in use.
pub struct Numbers {
    next_segment: AtomicU64,
    version_floor: AtomicU64,
}

impl Numbers {
    pub(super) fn new(options: &LogOptions) -> Numbers {
        Numbers {
            next_segment: AtomicU64::new(options.first_segment.max(1)),
            version_floor: AtomicU64::new(options.version_floor),
        }
    }

    /// A new segment id, never used before.
    pub fn new_segment_id(&self) -> SegmentId {
        self.new_segment_ids(1)
    }

    /// As [`new_segment_id`](Self::new_segment_id), `count` ids in a row; returns the first.
    pub(crate) fn new_segment_ids(&self, count: u64) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(count, Ordering::Relaxed))
    }

    /// The id of the next segment.
    pub fn next_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.load(Ordering::Relaxed))
    }

    /// New segment ids are not below this.
    pub(crate) fn raise_next_segment(&self, next: SegmentId) {
        self.next_segment.fetch_max(next.0, Ordering::Relaxed);
    }

    /// All versions that were given before this store was made are below this floor.
    pub(crate) fn version_floor(&self) -> u64 {
        self.version_floor.load(Ordering::Relaxed)
    }

    /// A restart found this floor: new versions are not below it.
    pub(crate) fn raise_version_floor(&self, floor: u64) {
        self.version_floor.fetch_max(floor, Ordering::Relaxed);
    }
}
