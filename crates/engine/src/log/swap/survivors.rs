//! Closed survivors that need frames, as the log's writer gets them.
//!
//! **Invariant**: the bytes of a survivor stay in place until the writer reports it durable
//! (swap::D2, swap::D6), and until its Swap is durable if they may be needed again (swap::D7).

use super::{Log, Swaps, Unwritten};
use duramen_base::ids::SegmentId;
use duramen_format::recipe::Parts;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

impl Swaps {
    /// True if the window holds a durable survivor that must stay as it is (swap::D7).
    pub fn is_kept(&self, window: u32) -> bool {
        self.windows[window as usize].stays.load(Ordering::Acquire)
    }

    /// The window of a segment that is durable and not swapped in yet (swap::D7). A side log may be
    /// given up at any time.
    pub fn written_window(&self, segment: SegmentId) -> Option<u32> {
        self.queues().written.get(&segment.0).copied()
    }
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
        (next.handed, next.kept) = (true, true);
        Some(self.ready(next.clone()))
    }

    /// All bytes of a closed survivor that is not reported durable yet.
    pub fn unwritten_survivor(&self, segment: SegmentId) -> Option<&[u8]> {
        let queues = self.swaps.queues();
        let mut waiting = queues.survivors.iter();
        let known = waiting.find(|survivor| survivor.segment == segment)?;
        Some(self.memory.slice(known.window, 0, known.length))
    }

    /// The survivor's frame is closed and durable. Or the side log was abandoned meanwhile, and the
    /// caller no longer reads its bytes.
    pub fn survivor_durable(&self, segment: SegmentId) {
        let _ = self.swaps.durable(segment); // a repeated report has no effect
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
