//! Reads ahead the replicas of a dead master's log, in the order in which recovery masters will
//! request them: the newest segments first.
//!
//! Paper: [Ousterhout15 §7.4] backups read and divide their segments before they are asked;
//! differs: entries are ordered by route hash, so each part of any division of the key space is one
//! slice, and memory is bounded.
//!
//! **Invariants**
//! - A1: segments kept in memory take at most the bytes that the owner allows at each read, and one
//!   segment more for an unexpected request and for each read in progress.
//! - A3: a segment that has been given completely is dropped, and its memory reused; for another
//!   request it is read again. Nothing is read while [`UNASKED_BYTES_MAX`] bytes are in memory that
//!   no master has requested.
//! - A2: a replica that could not be read is bad until the recovery is tried anew: no master waits
//!   for it twice.
//! - A4: a segment that was requested stays until a part of it was given, and for
//!   [`SHARED_US`], in which all masters that wait for it come back. Otherwise masters that wait
//!   for different segments, in memory for one of them, would drop each other's for ever. A master
//!   that does not come back holds the memory for [`KEPT_US`].
//!
//! **Concurrency**: none. The owner reads (without a lock on this) the replicas that
//! [`wanted`](ReadAhead::wanted) names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use duramen_base::ids::SegmentId;

use crate::error::Error;
use crate::many::{Sorted, Spare};
use crate::types::ReplicaId;

/// Bytes read before the first request: enough that the disk is busy while entries are divided.
const UNASKED_BYTES_MAX: usize = 32 << 20;

/// See A4: four times the interval in which masters repeat their requests.
const SHARED_US: u64 = 20_000;
/// See A4.
const KEPT_US: u64 = 1_000_000;

/// The state of a segment.
pub enum Lookup {
    /// Take the ranges from it.
    Ready(Arc<Sorted>),
    /// Request it again later.
    NotYet,
    /// This replica cannot be read: use another backup.
    Bad,
}

/// Replicas that are read ahead; see the module.
pub struct ReadAhead {
    log: u64,
    queue: VecDeque<SegmentId>,
    /// Segments that were requested before their turn; the newest is read first.
    urgent: BTreeSet<SegmentId>,
    reading: BTreeSet<SegmentId>,
    /// Segments that were requested, and are not in memory yet.
    asked: BTreeSet<SegmentId>,
    ready: BTreeMap<SegmentId, Ready>,
    bad: BTreeSet<SegmentId>,
    bytes: usize,
    spare: Arc<Spare>,
}

/// A segment in memory.
struct Ready {
    sorted: Arc<Sorted>,
    /// Bytes that were given.
    given: usize,
    /// Whether a master waited for it.
    asked: bool,
    since_us: u64,
}

impl Ready {
    /// Whether the segment may leave memory (A4).
    fn may_go(&self, now_us: u64) -> bool {
        let age_us = now_us.saturating_sub(self.since_us);
        !self.asked || age_us >= KEPT_US || self.given > 0 && age_us >= SHARED_US
    }
}

impl ReadAhead {
    /// Begins to read these segments of a log ahead, in this order.
    pub fn new(log: u64, order: Vec<SegmentId>) -> ReadAhead {
        ReadAhead {
            log,
            queue: order.into(),
            urgent: BTreeSet::new(),
            reading: BTreeSet::new(),
            asked: BTreeSet::new(),
            ready: BTreeMap::new(),
            bad: BTreeSet::new(),
            bytes: 0,
            spare: Arc::default(),
        }
    }

    /// The next replica to read; `None` while `bytes_max` bytes are kept in memory or nothing is
    /// left. The caller reports the end of the read to [`done`](Self::done).
    pub fn wanted(&mut self, now_us: u64, bytes_max: usize) -> Option<ReplicaId> {
        let segment = match self.urgent.last().copied() {
            Some(segment) => {
                if !self.make_room(now_us, bytes_max) {
                    return None; // A4: requests come again
                }
                self.urgent.remove(&segment);
                self.queue.retain(|queued| *queued != segment);
                segment
            }
            None => loop {
                if self.bytes >= bytes_max || self.unasked_bytes() >= UNASKED_BYTES_MAX {
                    return None; // A1, A3
                }
                let segment = self.queue.pop_front()?;
                if !self.is_known(segment) {
                    break segment;
                }
            },
        };
        self.reading.insert(segment);
        Some(ReplicaId {
            log: self.log,
            segment,
        })
    }

    /// The source of memory for replicas.
    pub fn spare(&self) -> &Arc<Spare> {
        &self.spare
    }

    fn unasked_bytes(&self) -> usize {
        let ready = self.ready.values().filter(|ready| ready.given == 0);
        ready.map(|ready| ready.sorted.memory_bytes()).sum()
    }

    fn is_known(&self, segment: SegmentId) -> bool {
        self.reading.contains(&segment)
            || self.ready.contains_key(&segment)
            || self.bad.contains(&segment)
    }

    /// The read of a segment has ended.
    pub fn done(&mut self, now_us: u64, segment: SegmentId, result: Result<Sorted, Error>) {
        if !self.reading.remove(&segment) {
            return;
        }
        let asked = self.asked.remove(&segment);
        match result {
            Ok(sorted) => {
                self.bytes += sorted.memory_bytes();
                let ready = Ready {
                    sorted: Arc::new(sorted),
                    given: 0,
                    asked,
                    since_us: now_us,
                };
                self.ready.insert(segment, ready);
            }
            Err(_) => {
                self.bad.insert(segment); // A2: no master waits for it again
            }
        }
    }

    /// The recovery is tried anew: replicas that could not be read are read again.
    pub fn retry_bad(&mut self) {
        self.bad.clear();
    }

    /// The state of a segment. One that is not in memory is read next.
    pub fn get(&mut self, segment: SegmentId) -> Lookup {
        if let Some(ready) = self.ready.get(&segment) {
            return Lookup::Ready(ready.sorted.clone());
        }
        if self.bad.contains(&segment) {
            return Lookup::Bad;
        }
        self.asked.insert(segment);
        if !self.reading.contains(&segment) {
            self.urgent.insert(segment);
        }
        Lookup::NotYet
    }

    /// Counts `bytes` bytes of a segment that were given to a master (A3).
    pub fn given(&mut self, segment: SegmentId, bytes: usize) {
        let Some(ready) = self.ready.get_mut(&segment) else {
            return;
        };
        ready.given += bytes;
        let all = (*ready.sorted).as_ref().len();
        if all > 0 && ready.given >= all {
            self.drop_segment(segment);
        }
    }

    /// Drops a segment that all masters have.
    pub fn drop_segment(&mut self, segment: SegmentId) {
        if let Some(ready) = self.ready.remove(&segment) {
            self.bytes -= ready.sorted.memory_bytes();
        }
    }

    /// Bytes kept in memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Drops segments until there is room, first those of which most was given: most masters that
    /// need them have them. A segment is read again for a late request. Returns false if no segment
    /// may go (A4).
    fn make_room(&mut self, now_us: u64, bytes_max: usize) -> bool {
        while self.bytes >= bytes_max {
            let may_go = self.ready.iter().filter(|(_, ready)| ready.may_go(now_us));
            let most = may_go.max_by_key(|(_, ready)| ready.given);
            let Some(segment) = most.map(|(segment, _)| *segment) else {
                return self.bytes == 0; // no memory is allowed
            };
            self.drop_segment(segment);
        }
        true
    }
}
