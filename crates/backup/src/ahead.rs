//! Reads ahead the replicas of a dead master's log, in the order in which recovery masters will
//! request them.
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
//! - A2: a replica that could not be read stays bad: no master waits for it twice.
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
    /// Requested before their turn.
    urgent: BTreeSet<SegmentId>,
    reading: BTreeSet<SegmentId>,
    /// Each with the number of its bytes that were given.
    ready: BTreeMap<SegmentId, (Arc<Sorted>, usize)>,
    bad: BTreeSet<SegmentId>,
    bytes: usize,
    spare: Arc<Spare>,
}

impl ReadAhead {
    /// Will read these segments of a log in this order.
    pub fn new(log: u64, order: Vec<SegmentId>) -> ReadAhead {
        ReadAhead {
            log,
            queue: order.into(),
            urgent: BTreeSet::new(),
            reading: BTreeSet::new(),
            ready: BTreeMap::new(),
            bad: BTreeSet::new(),
            bytes: 0,
            spare: Arc::default(),
        }
    }

    /// The next replica to read; `None` while `bytes_max` bytes are kept in memory or nothing is
    /// left. The caller reports the end of the read to [`done`](Self::done).
    pub fn wanted(&mut self, bytes_max: usize) -> Option<ReplicaId> {
        let segment = match self.urgent.pop_first() {
            Some(segment) => {
                self.make_room(bytes_max);
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
        let ready = self.ready.values().filter(|(_, given)| *given == 0);
        ready.map(|(sorted, _)| sorted.memory_bytes()).sum()
    }

    fn is_known(&self, segment: SegmentId) -> bool {
        self.reading.contains(&segment)
            || self.ready.contains_key(&segment)
            || self.bad.contains(&segment)
    }

    /// The read of a segment has ended.
    pub fn done(&mut self, segment: SegmentId, result: Result<Sorted, Error>) {
        if !self.reading.remove(&segment) {
            return;
        }
        match result {
            Ok(sorted) => {
                self.bytes += sorted.memory_bytes();
                self.ready.insert(segment, (Arc::new(sorted), 0));
            }
            Err(_) => {
                self.bad.insert(segment); // A2
            }
        }
    }

    /// The state of a segment. One that is not in memory is read next.
    pub fn get(&mut self, segment: SegmentId) -> Lookup {
        if let Some((sorted, _)) = self.ready.get(&segment) {
            return Lookup::Ready(sorted.clone());
        }
        if self.bad.contains(&segment) {
            return Lookup::Bad;
        }
        if !self.reading.contains(&segment) {
            self.urgent.insert(segment);
        }
        Lookup::NotYet
    }

    /// Counts `bytes` bytes of a segment that were given to a master (A3).
    pub fn given(&mut self, segment: SegmentId, bytes: usize) {
        let Some((sorted, given)) = self.ready.get_mut(&segment) else {
            return;
        };
        *given += bytes;
        let all = (**sorted).as_ref().len();
        if all > 0 && *given >= all {
            self.drop_segment(segment);
        }
    }

    /// Drops a segment that all masters have.
    pub fn drop_segment(&mut self, segment: SegmentId) {
        if let Some((sorted, _)) = self.ready.remove(&segment) {
            self.bytes -= sorted.memory_bytes();
        }
    }

    /// Bytes kept in memory.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the segment of which most was given: most masters that need it have it. It is read
    /// again for a late request.
    fn make_room(&mut self, bytes_max: usize) {
        while self.bytes >= bytes_max {
            let given = self.ready.iter().max_by_key(|(_, (_, given))| *given);
            let Some(segment) = given.map(|(segment, _)| *segment) else {
                return;
            };
            self.drop_segment(segment);
        }
    }
}
