//! Closed survivors that need frames, as the log's writer gets them.
//!
//! **Invariant**: the bytes of a survivor stay in place until the writer reports it durable
//! (swap::D2, swap::D6). Afterwards they can be read until its Swap is durable, as far as swap::D7
//! says.

use super::marks::Marks;
use crate::log::windows::Windows;
use duramen_base::ids::SegmentId;
use duramen_format::recipe::Parts;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A closed survivor that needs a frame.
#[derive(Clone, Debug)]
pub struct SurvivorReady<'a> {
    pub segment: SegmentId,
    /// The entries of other segments' replicas that the survivor consists of; `None`: that is not
    /// known.
    pub parts: Option<Arc<Parts>>,
    /// It is part of a side log.
    pub is_side: bool,
    /// The whole segment, header included; stable until it is reported durable.
    pub bytes: &'a [u8],
}

/// A closed survivor without a frame.
#[derive(Clone)]
pub struct Unwritten {
    segment: SegmentId,
    parts: Option<Arc<Parts>>,
    window: u32,
    length: u32,
    /// The consumer has got its bytes, and may be reading them.
    handed: bool,
    /// Part of a side log that was given up (swap::D6).
    abandoned: bool,
    /// Survivor of a pass that was given up (given_up::GU1).
    in_vain: bool,
}

impl Unwritten {
    pub fn bytes<'a>(&self, windows: &'a Windows) -> &'a [u8] {
        windows.slice(self.window, 0, self.length)
    }

    pub fn ready<'a>(self, marks: &Marks, windows: &'a Windows) -> SurvivorReady<'a> {
        SurvivorReady {
            bytes: self.bytes(windows),
            is_side: marks.is_held(self.window),
            segment: self.segment,
            parts: self.parts,
        }
    }
}

/// A survivor whose frame is durable, with its window.
pub(super) enum Written {
    /// It waits for its Swap.
    Waits(u32),
    /// Its pass was given up.
    InVain(u32),
    /// Its side log was given up.
    Abandoned,
}

#[derive(Default)]
pub struct Survivors {
    /// Closed and not durable, in the order of closing.
    unwritten: VecDeque<Unwritten>,
    /// Durable segments that are not swapped in, and their windows, as they were closed (swap::D7).
    written: HashMap<u64, u32>,
    /// Segments of side logs and passes that were given up: their frames may be freed.
    abandoned: Vec<SegmentId>,
    /// Windows of such segments that the consumer has finished reading.
    released: Vec<u32>,
}

impl Survivors {
    pub(super) fn closed(
        &mut self,
        segment: SegmentId,
        window: u32,
        length: u32,
        parts: Option<Parts>,
    ) {
        self.unwritten.push_back(Unwritten {
            segment,
            parts: parts.map(Arc::new),
            window,
            length,
            handed: false,
            abandoned: false,
            in_vain: false,
        });
    }

    /// True if no survivor waits for its frame.
    pub(super) fn is_empty(&self) -> bool {
        self.unwritten.is_empty()
    }

    fn place(&self, segment: SegmentId) -> Option<usize> {
        let mut unwritten = self.unwritten.iter();
        unwritten.position(|survivor| survivor.segment == segment)
    }

    /// The next survivor without a frame; the same one until it is reported durable.
    pub fn next(&mut self) -> Option<Unwritten> {
        let front = self.unwritten.front_mut()?;
        front.handed = true;
        Some(front.clone())
    }

    /// A survivor without a frame that was not handed out yet.
    pub fn another(&mut self) -> Option<Unwritten> {
        let mut unwritten = self.unwritten.iter_mut();
        let next = unwritten.find(|survivor| !survivor.handed)?;
        next.handed = true;
        Some(next.clone())
    }

    /// The closed survivor with this id; `None`: it has a frame, or is no closed survivor.
    pub fn unwritten(&self, segment: SegmentId) -> Option<&Unwritten> {
        self.place(segment).map(|at| &self.unwritten[at])
    }

    /// Number of segments of which `is_one` is true that are closed and not durable.
    pub fn count_unwritten(&self, is_one: impl Fn(SegmentId) -> bool) -> usize {
        let unwritten = self.unwritten.iter();
        unwritten
            .filter(|survivor| is_one(survivor.segment))
            .count()
    }

    /// Notes that the survivor's frame is durable. `None`: that was reported before.
    pub(super) fn durable(&mut self, segment: SegmentId) -> Option<Written> {
        let survivor = self.unwritten.remove(self.place(segment)?)?;
        let window = survivor.window;
        Some(if survivor.in_vain {
            self.abandoned.push(segment);
            Written::InVain(window)
        } else if survivor.abandoned {
            self.released.push(window);
            self.abandoned.push(segment);
            Written::Abandoned
        } else {
            self.written.insert(segment.0, window); // swap::D7: still readable
            Written::Waits(window)
        })
    }

    /// The window of a segment that is durable and not swapped in yet, with all its bytes as they
    /// were closed (swap::D7). A side log may be given up at any time, and the survivor of a pass
    /// be compacted: a caller that is pinned may still read the window.
    pub fn written_window(&self, segment: SegmentId) -> Option<u32> {
        self.written.get(&segment.0).copied()
    }

    /// Notes that the segment must not be read as it was closed any more (swap::D7): it was
    /// compacted and its window is about to be retired, or its Swap is durable.
    pub fn no_longer_as_closed(&mut self, segment: SegmentId) {
        self.written.remove(&segment.0);
    }

    /// Notes that the survivor's pass is given up. Returns its window, if nobody needs the bytes
    /// there as they are any more.
    pub(super) fn give_up(&mut self, segment: SegmentId) -> Option<u32> {
        self.written.remove(&segment.0);
        let Some(at) = self.place(segment) else {
            self.abandoned.push(segment);
            return None;
        };
        if self.unwritten[at].handed {
            self.unwritten[at].in_vain = true; // the consumer may be reading its bytes
            return None;
        }
        self.unwritten.remove(at).map(|survivor| survivor.window)
    }

    /// Notes that the segment's side log is given up. Returns true if its window is free; if not,
    /// the consumer may be reading it.
    pub(super) fn abandon(&mut self, segment: SegmentId) -> bool {
        self.written.remove(&segment.0);
        let Some(at) = self.place(segment) else {
            self.abandoned.push(segment);
            return true;
        };
        if self.unwritten[at].handed {
            self.unwritten[at].abandoned = true;
            return false;
        }
        self.unwritten.remove(at);
        true
    }

    pub(super) fn take_abandoned(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.abandoned)
    }

    pub(super) fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }
}
