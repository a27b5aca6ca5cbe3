//! Which frame holds what, and which are free.
//!
//! **Invariants**
//! - N1: a frame belongs to one replica or is free; a free one is written again at any time, so it is given back only when
//!   nothing that counts leads to it.
//! - N2: of a frame's two slots the one that is not `current` is written next (format's P1).

use std::collections::BTreeSet;
use std::io;

use duramen_format::frame::{BLOCK_BYTES, SLOT_BYTES, Slot, data_at, slot_at};

use crate::region::Region;
use crate::types::Geometry;

/// Space for frames is taken from the file system in steps of at least this many bytes: few, large extents.
const STEP_BYTES: u64 = 64 << 20;

pub(crate) struct Frames {
    geometry: Geometry,
    free: BTreeSet<u32>,
    /// The slot of each frame that counts now.
    current: Vec<u8>,
    /// Frames below this number have space.
    allocated: u32,
    /// Frames that a write failed in; never used again.
    pub(crate) retired: u32,
}

impl Frames {
    /// `current` has one element per frame; frames in `taken` are not free.
    pub(crate) fn new(
        geometry: Geometry,
        current: Vec<u8>,
        taken: &BTreeSet<u32>,
        allocated: u32,
    ) -> Frames {
        Frames {
            geometry,
            free: (0..geometry.frames)
                .filter(|frame| !taken.contains(frame))
                .collect(),
            current,
            allocated,
            retired: 0,
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.geometry.frames - self.free.len() as u32
    }

    /// Takes a free frame, with space behind it. `None`: there is none.
    ///
    /// # Errors
    /// `StorageFull` if the file system has no space for it.
    pub(crate) fn take(&mut self, region: &Region) -> io::Result<Option<u32>> {
        let Some(frame) = self.free.first().copied() else {
            return Ok(None);
        };
        if frame >= self.allocated {
            let step = (STEP_BYTES / u64::from(self.geometry.segment_bytes)).max(1) as u32;
            let wanted = frame.saturating_add(step).min(self.geometry.frames);
            if self.grow(region, wanted).is_err() {
                self.grow(region, frame + 1)?; // the last bytes of a disk are worth using
            }
        }
        self.free.pop_first();
        Ok(Some(frame))
    }

    fn grow(&mut self, region: &Region, frames: u32) -> io::Result<()> {
        let from = self.data_at(self.allocated);
        region.allocate(from, self.data_at(frames) - from, false)?;
        self.allocated = frames;
        Ok(())
    }

    /// Gives a frame back.
    pub(crate) fn put(&mut self, frame: u32) {
        assert!(self.free.insert(frame), "frame {frame} was free already"); // N1
    }

    /// Where a frame's data lie.
    pub(crate) fn data_at(&self, frame: u32) -> u64 {
        data_at(frame, self.geometry.frames, self.geometry.segment_bytes)
    }

    /// Where the next slot of this frame is to be written (N2).
    pub(crate) fn next_slot_at(&self, frame: u32) -> u64 {
        slot_at(frame, 1 - usize::from(self.current[frame as usize]))
    }

    /// Where the slot lies that counts now.
    #[cfg(feature = "planted")]
    pub(crate) fn slot_at(&self, frame: u32) -> u64 {
        slot_at(frame, usize::from(self.current[frame as usize]))
    }

    /// The slot at [`next_slot_at`](Self::next_slot_at) was written.
    pub(crate) fn flip(&mut self, frame: u32) {
        self.current[frame as usize] ^= 1;
    }
}

/// The bytes of a slot with its tail: one block, or two if there is a tail.
pub(crate) fn slot_bytes(slot: &Slot, tail: &[u8]) -> Vec<u8> {
    let mut bytes = slot.encode();
    if !tail.is_empty() {
        bytes.extend_from_slice(tail);
        bytes.resize(SLOT_BYTES as usize, 0);
    }
    debug_assert!(tail.len() < BLOCK_BYTES);
    bytes
}
