//! The owner of each frame, and the free frames.
//!
//! **Invariants**
//! - N1: a frame belongs to one replica or is free; a free one may be written at any time, so a
//!   frame is given back only when no valid slot or commit leads to it.
//! - N2: of a frame's two slots the one that is not `current` is written next (frame::P1).
//! - N3: a frame in which a replica went bad at rest is used again in this run only if there is no
//!   other, and never if the device returned an error there.

use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeSet;
use std::io;

use duramen_format::frame::{BLOCK_BYTES, SLOT_BYTES, Slot, data_at, slot_at};

use crate::error::is_full;
use crate::region::Region;
use crate::replica::{Decay, Replica};
use crate::types::Geometry;

/// Space for frames is allocated in steps: few, large extents, but no more than a quarter of what
/// there is, so that a small store takes little.
const STEP_BYTES: u64 = 64 << 20;
const STEP_PART: u32 = 4;

pub(crate) struct Frames {
    geometry: Geometry,
    free: BTreeSet<u32>,
    /// The number of each frame's valid slot, and the slot's stamp; 0: the frame has none.
    current: Vec<u8>,
    stamps: Vec<u64>,
    /// Frames below this number have space.
    allocated: u32,
    /// Frames in which a replica went bad (N3).
    doubtful: BTreeSet<u32>,
    /// Frames in which a read or a write failed; never used again.
    pub(crate) retired: u32,
    /// Whether the file system had no space for the frame that was requested last.
    lacks_space: bool,
    /// Frames that new copies of lost replicas leave free, for the data of recoveries.
    pub(crate) refills_leave: u32,
}

impl Frames {
    /// `current` and `stamps` have one element per frame; frames in `taken` are not free.
    pub(crate) fn new(
        geometry: Geometry,
        current: Vec<u8>,
        stamps: Vec<u64>,
        taken: &BTreeSet<u32>,
        allocated: u32,
    ) -> Frames {
        Frames {
            geometry,
            free: (0..geometry.frames)
                .filter(|frame| !taken.contains(frame))
                .collect(),
            current,
            stamps,
            allocated,
            doubtful: BTreeSet::new(),
            retired: 0,
            lacks_space: false,
            refills_leave: 0,
        }
    }

    /// Reserves space for the frames that exist: a copy of their file may have holes. Frames whose
    /// data get no space now will get it when they are needed. Returns false if not even the slots
    /// of frames get space.
    ///
    /// # Errors
    /// As the device gives them.
    pub(crate) fn fill_holes(&mut self, region: &Region) -> io::Result<bool> {
        let slots = slot_at(self.allocated, 0);
        let has_slots = region.fill_holes(0, slots)? >= slots;
        let begin = self.data_at(0);
        let data = region.fill_holes(begin, self.data_at(self.allocated) - begin)?;
        let with_data = (data / u64::from(self.geometry.segment_bytes)) as u32;
        self.allocated = self.allocated.min(with_data);
        Ok(has_slots)
    }

    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.geometry.frames - (self.free.len() + self.doubtful.len()) as u32
    }

    /// Number of frames that are not used, or only if there is no other (N3).
    pub(crate) fn quarantined(&self) -> u32 {
        self.retired + self.doubtful.len() as u32
    }

    /// Allocates a free frame, with disk space for it. `None`: no frame is free.
    ///
    /// # Errors
    /// `StorageFull` if the file system has no space for it.
    pub(crate) fn take(&mut self, region: &Region) -> io::Result<Option<u32>> {
        match self.take_sound(region) {
            Ok(Some(frame)) => Ok(Some(frame)),
            none => self
                .doubtful
                .pop_first()
                .map_or(none, |frame| Ok(Some(frame))),
        }
    }

    /// The frame of a replica, allocated if it has none yet. `None`: no frame is free, or there is
    /// no space for one, so its bytes go to the write-ahead log.
    ///
    /// # Errors
    /// As the device gives them.
    pub(crate) fn take_for(
        &mut self,
        replica: &mut Replica,
        region: &Region,
    ) -> io::Result<Option<u32>> {
        if replica.frame.is_none() {
            replica.frame = match self.take(region) {
                Err(error) if is_full(&error) => None,
                taken => taken?,
            };
        }
        Ok(replica.frame)
    }

    fn take_sound(&mut self, region: &Region) -> io::Result<Option<u32>> {
        let Some(frame) = self.free.first().copied() else {
            return Ok(None);
        };
        if frame >= self.allocated {
            let wanted = (frame + self.step()).min(self.geometry.frames);
            if self.grow(region, wanted).is_err() {
                // The last bytes of a disk are used too.
                let grown = self.grow(region, frame + 1);
                self.lacks_space = grown.as_ref().is_err_and(is_full);
                grown?;
            }
        }
        self.lacks_space = false;
        self.free.pop_first();
        Ok(Some(frame))
    }

    /// Allocates space for the first `wanted` frames, or for as many as the file system has space
    /// for. Returns how many have space and can be used.
    pub(crate) fn secure(&mut self, region: &Region, wanted: u32) -> io::Result<u32> {
        let wanted = wanted.min(self.geometry.frames);
        let missing = wanted.saturating_sub(self.allocated);
        let mut more = missing.next_multiple_of(self.step());
        while more > 0 && self.allocated < wanted {
            match self.grow(region, self.geometry.frames.min(self.allocated + more)) {
                Ok(()) => {}
                Err(error) if is_full(&error) => more /= 2,
                Err(error) => return Err(error),
            }
        }
        Ok(self.allocated.saturating_sub(self.retired))
    }

    /// Frames to allocate at once.
    fn step(&self) -> u32 {
        let most = STEP_BYTES / 4 / u64::from(self.geometry.segment_bytes);
        (self.allocated / STEP_PART).clamp(1, most.max(1) as u32)
    }

    /// Allocates space for the first `frames` frames, with their slots.
    fn grow(&mut self, region: &Region, frames: u32) -> io::Result<()> {
        let slots = slot_at(self.allocated, 0);
        region.allocate(slots, slot_at(frames, 0) - slots, false)?;
        let from = self.data_at(self.allocated);
        region.allocate(from, self.data_at(frames) - from, false)?;
        self.allocated = frames;
        Ok(())
    }

    /// Gives a frame back after its replica decayed as `decay` describes (N3).
    pub(crate) fn put_after(&mut self, frame: u32, decay: Option<&Decay>) {
        match decay {
            None => self.put(frame),
            Some(decay) if decay.unreadable => self.retired += 1,
            Some(_) => {
                assert!(
                    self.doubtful.insert(frame),
                    "frame {frame} was free already"
                ); // N1
            }
        }
    }

    /// Gives a frame back.
    pub(crate) fn put(&mut self, frame: u32) {
        assert!(self.free.insert(frame), "frame {frame} was free already"); // N1
    }

    /// Place of a frame's data.
    pub(crate) fn data_at(&self, frame: u32) -> u64 {
        data_at(frame, self.geometry.frames, self.geometry.segment_bytes)
    }

    /// Place where the next slot of this frame is to be written (N2).
    pub(crate) fn next_slot_at(&self, frame: u32) -> u64 {
        slot_at(frame, usize::from(self.next(frame)))
    }

    /// The number of the slot that is written next: not the valid one.
    fn next(&self, frame: u32) -> u8 {
        self.current(frame) ^ u8::from(!has_bug(Bug::SlotInPlace))
    }

    /// The number of the valid slot.
    pub(crate) fn current(&self, frame: u32) -> u8 {
        self.current[frame as usize]
    }

    /// Makes the slot at [`next_slot_at`](Self::next_slot_at), which was just written, the valid
    /// one.
    pub(crate) fn flip(&mut self, frame: u32, stamp: u64) {
        self.current[frame as usize] = self.next(frame);
        self.stamps[frame as usize] = stamp;
    }

    /// The stamp of the frame's valid slot.
    pub(crate) fn stamp(&self, frame: u32) -> u64 {
        self.stamps[frame as usize]
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
