//! Measures the speed of the device, by reads of whole replicas past all caches: those of the
//! scrubber, and a few at a start. A device without data has no speed yet.
//!
//! Paper: [Ousterhout15 §7.1]

use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::read::{ReadMode, Reader};
use crate::replica::Replica;
use crate::types::{Place, ReplicaId};

/// Longest time that the reads of a start take, besides the last one: a start must not wait for a
/// slow disk.
const START_WITHIN: Duration = Duration::from_millis(200);
/// Most reads of a start.
const START_READS: usize = 16;

impl Reader<'_> {
    /// Speed of the device for reads of whole replicas, in bytes per second; 0: unknown, nothing
    /// was read yet.
    pub fn bytes_per_s(&self) -> u64 {
        self.speed().bytes_per_s()
    }

    /// Notes a read of `bytes` bytes from the device, for its speed. A read of less than half a
    /// segment does not count: recoveries read whole ones, and a short read is mostly latency.
    pub fn note_read(&self, bytes: u64, took: Duration) {
        if bytes >= u64::from(self.device().geometry().segment_bytes) / 2 {
            self.speed().note(bytes, took);
        }
    }

    /// Reads some replicas for their time alone: for the start, after which scrubbing measures on.
    /// Returns at once if there are none. A damaged replica is noted as such.
    pub fn measure(&self) {
        let begun = Instant::now();
        let bytes = self.device().geometry().segment_bytes as usize;
        let mut scratch = Buffer::counted(bytes, self.device().held());
        scratch.resize(bytes);
        let mut before = Bound::Unbounded;
        for _ in 0..START_READS {
            let Some(next) = self.whole_before(before) else {
                return;
            };
            // A damaged replica, or one that was freed meanwhile, is no reason not to start.
            let _ = self.read(next, scratch.bytes_mut(), ReadMode::Medium);
            if begun.elapsed() >= START_WITHIN {
                return;
            }
            before = Bound::Excluded(next);
        }
    }

    /// The last replica before this one that lies in its frame and is long enough to count.
    fn whole_before(&self, before: Bound<ReplicaId>) -> Option<ReplicaId> {
        let least = self.device().geometry().segment_bytes / 2;
        let counts = |replica: &Replica| {
            replica.committed
                && replica.place() == Place::Frame
                && replica.damage().is_none()
                && replica.certificate.length >= least
        };
        let state = self.device().state();
        let mut earlier = state.replicas.range((Bound::Unbounded, before)).rev();
        earlier
            .find(|(_, replica)| counts(replica))
            .map(|(id, _)| *id)
    }
}
