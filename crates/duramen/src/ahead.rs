//! Space on the disk is taken before it is needed, so that a full disk can be cleaned.
//!
//! To free a frame, the cleaner first writes survivors to frames, and the log records of its swap;
//! a removal writes a tombstone. Where the file system has no space for the frames that come next,
//! the engine is told for how many segments there is some. It keeps a part of these for survivors
//! and for removals, cleans as if the disk had been made so small, and refuses what adds data.
//!
//! **Invariants**
//! - A1: of the segments listed each has a frame, or one with space waits for it. So a commit can
//!   always make room in the write-ahead log, and a swap can be recorded (docs/protocols.md,
//!   "Swapping").

use crate::DiskState;
use crate::commit::Durable;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Space is taken for so many segments more than there are, and for those of the longest group.
const AHEAD: u64 = 16;
/// Frames for control segments, and for victims that are about to be freed; an eighth of all comes
/// to that.
const FEW: u64 = 4;
/// A full disk is asked again after so many milliseconds.
const ASK_AGAIN_MS: u64 = 200;

#[derive(Default)]
pub(crate) struct Ahead {
    /// Frames that have space.
    ready: AtomicU32,
    /// When there was no space for more; 0 = there was.
    refused_ms: AtomicU64,
}

/// Segments that so many frames hold.
fn room_in(frames: u32) -> u64 {
    let frames = u64::from(frames);
    frames.saturating_sub(frames / 8 + FEW)
}

impl Durable {
    /// A1. Before a commit, and in the background. A failure of the device shows in the next write.
    pub fn secure_room(&self) {
        let Some(backup) = &self.backup else {
            return; // a member's segments are others' to place
        };
        let geometry = backup.geometry();
        let group = self
            .log()
            .group_segments_max(u64::from(geometry.segment_bytes));
        let segments = self.log().segments_listed() + AHEAD + group;
        let wanted = segments + segments / 7 + FEW;
        let most = geometry.frames;
        let wanted = wanted.min(u64::from(most)) as u32;
        let ready = self.ahead.ready.load(Ordering::Relaxed);
        let refused_ms = self.ahead.refused_ms.load(Ordering::Relaxed);
        if refused_ms == 0 && wanted <= ready {
            return;
        }
        let now_ms = self.options.engine.clock.now_ms().max(1);
        if refused_ms > 0 && now_ms.abs_diff(refused_ms) < ASK_AGAIN_MS {
            return;
        }
        // What was full has room only when it gives some.
        let wanted = if refused_ms > 0 {
            wanted.max(ready + 1).min(most)
        } else {
            wanted
        };
        let Ok(ready) = backup.secure_frames(wanted) else {
            return;
        };
        self.ahead.ready.store(ready, Ordering::Relaxed);
        let is_short = ready < wanted;
        let refused_ms = if is_short { now_ms } else { 0 };
        self.ahead.refused_ms.store(refused_ms, Ordering::Relaxed);
        let room = if is_short { room_in(ready) } else { u64::MAX };
        self.log().set_disk_room(room);
    }

    /// Whether the disk takes writes that add data.
    pub fn disk_state(&self) -> DiskState {
        match self.health.get() {
            DiskState::Ok if self.log().is_short_of_disk() => DiskState::Full,
            state => state,
        }
    }
}
