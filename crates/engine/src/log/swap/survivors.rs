//! Closed survivors that need frames, as the log's writer gets them.
//!
//! **Invariant**: the bytes of a survivor stay in place until the writer reports it durable
//! (swap::D2, swap::D6). Afterwards they can be read until its Swap is durable, as far as swap::D7
//! says.

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
    /// The window of a segment that is durable and not swapped in yet, with all its bytes as they
    /// were closed (swap::D7). A side log may be given up at any time, and the window of a pass's
    /// survivor be compacted: a caller that is pinned reads it all the same.
    pub fn written_window(&self, segment: SegmentId) -> Option<u32> {
        self.queues().written.get(&segment.0).copied()
    }

    /// The segment was compacted, and its window is about to be retired: it cannot be read as it
    /// was closed any more (swap::D7).
    pub fn no_longer_as_closed(&self, segment: SegmentId) {
        self.queues().written.remove(&segment.0);
    }

    /// The survivor's frame is durable. `None`: it was reported before.
    pub(super) fn durable(&self, segment: SegmentId) -> Option<()> {
        let mut queues = self.queues();
        let at = queues
            .survivors
            .iter()
            .position(|waiting| waiting.segment == segment)?;
        let Unwritten {
            window,
            abandoned,
            in_vain,
            ..
        } = queues.survivors.remove(at)?;
        if in_vain {
            let known = &self.windows[window as usize];
            known.unwritten.store(false, Ordering::Release);
            queues.abandoned.push(segment);
            self.progress.fetch_add(1, Ordering::Relaxed);
            return Some(());
        }
        if abandoned {
            queues.released.push(window);
            queues.abandoned.push(segment);
            self.progress.fetch_add(1, Ordering::Relaxed);
            return Some(());
        }
        if let Some(pending) = queues
            .pending
            .iter_mut()
            .find(|pending| pending.swap.add.contains(&segment))
        {
            pending.unwritten -= 1;
        }
        queues.written.insert(segment.0, window); // swap::D7
        let known = &self.windows[window as usize];
        known.unwritten.store(false, Ordering::Release);
        self.progress.fetch_add(1, Ordering::Relaxed);
        Some(())
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
