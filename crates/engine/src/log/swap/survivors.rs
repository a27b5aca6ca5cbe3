//! Closed survivors that need frames, as the log's writer gets them.
//!
//! **Invariant**: the bytes of a survivor stay in place until the writer reports it durable
//! (swap::D2, swap::D6).

use super::{Log, Unwritten};
use duramen_base::ids::SegmentId;
use duramen_format::recipe::Parts;
use std::sync::Arc;

/// A closed survivor that needs a frame.
#[derive(Clone, Debug)]
pub struct SurvivorReady<'a> {
    pub segment: SegmentId,
    /// The entries of other segments' replicas that it consists of; `None`: that is not known.
    pub parts: Option<Arc<Parts>>,
    /// It is part of a side log.
    pub is_side: bool,
    /// The whole segment, header included; stable until it is reported durable.
    pub bytes: &'a [u8],
}

impl Log {
    /// The next closed survivor without a frame; the same one until
    /// [`survivor_durable`](Self::survivor_durable).
    pub fn next_survivor(&self) -> Option<SurvivorReady<'_>> {
        let mut queues = self.swaps.queues();
        let front = queues.survivors.front_mut()?;
        front.handed = true;
        Some(self.ready(front.clone()))
    }

    /// A closed survivor that was not handed out yet, for a consumer that writes several at once.
    /// Each is returned once; [`survivor_durable`](Self::survivor_durable) may be called in any
    /// order.
    pub fn another_survivor(&self) -> Option<SurvivorReady<'_>> {
        let mut queues = self.swaps.queues();
        let mut waiting = queues.survivors.iter_mut();
        let next = waiting.find(|survivor| !survivor.handed)?;
        next.handed = true;
        Some(self.ready(next.clone()))
    }

    /// All bytes of a closed survivor that is not reported durable yet.
    pub fn unwritten_survivor(&self, segment: SegmentId) -> Option<&[u8]> {
        let queues = self.swaps.queues();
        let mut waiting = queues.survivors.iter();
        let known = waiting.find(|survivor| survivor.segment == segment)?;
        Some(self.memory.slice(known.window, 0, known.length))
    }

    fn ready(&self, survivor: Unwritten) -> SurvivorReady<'_> {
        SurvivorReady {
            segment: survivor.segment,
            parts: survivor.parts,
            is_side: self.swaps.is_held(survivor.window),
            bytes: self.memory.slice(survivor.window, 0, survivor.length),
        }
    }
}
