//! Preallocation: space on the disk is taken before it is needed, so that a full disk can be
//! cleaned.
//!
//! To free a frame, the cleaner first writes survivors to frames, and the log records of its swap;
//! a removal writes a tombstone. If the file system has no space for the next frames, the engine
//! gets the number of segments for which there is space. It keeps a part of these for survivors and
//! for removals, cleans as if the disk had that smaller size, and refuses writes that add data.
//!
//! **Invariants**
//! - A1: each listed segment has a frame, or a frame with space waits for it. So a commit can
//!   always make room in the write-ahead log, and a swap can be recorded (docs/protocols.md,
//!   "Swapping").

use super::{Common, Local};
use duramen_backup::Backup;
use duramen_engine::Log;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Space is taken for this many segments beyond the existing ones, and for those of the longest
/// group.
const SEGMENTS_AHEAD: u64 = 16;
/// Segments for which an empty store has space.
const SEGMENTS_OF_EMPTY: u64 = 4;
/// Frames for control segments, and for victims that are about to be freed; an eighth of all is
/// added.
const FEW: u64 = 4;
/// Interval of retries on a full disk, in milliseconds.
const ASK_AGAIN_MS: u64 = 200;

#[derive(Default)]
pub(crate) struct Preallocation {
    /// Frames with space on the disk.
    ready: AtomicU32,
    /// The time at which there was no space for more; 0 = there was space.
    refused_ms: AtomicU64,
}

/// Segments that this many frames hold.
fn room_in(frames: u32) -> u64 {
    let frames = u64::from(frames);
    frames.saturating_sub(frames / 8 + FEW)
}

impl Local {
    /// A1. Called before a commit, and in the background. A failure of the device shows in the next
    /// write.
    pub fn secure_room(&self, common: &Common) {
        let now_ms = || self.clock.now_ms();
        self.preallocation
            .take_frames(&self.backup, common.log(), now_ms);
        common.health.tell(common.log());
    }
}

impl Preallocation {
    fn take_frames(&self, backup: &Backup, log: &Log, now_ms: impl Fn() -> u64) {
        let geometry = backup.geometry();
        let group = log
            .options()
            .group_segments_max(u64::from(geometry.segment_bytes));
        let segments = match log.swaps().disk().room().0 {
            0 => SEGMENTS_OF_EMPTY, // the first write lists some, and its commit takes the rest
            listed => listed + SEGMENTS_AHEAD + group,
        };
        let wanted = segments + segments / 7 + FEW;
        let most = geometry.frames;
        let wanted = wanted.min(u64::from(most)) as u32;
        let ready = self.ready.load(Ordering::Relaxed);
        let refused_ms = self.refused_ms.load(Ordering::Relaxed);
        if refused_ms == 0 && wanted <= ready {
            return;
        }
        let now_ms = now_ms().max(1);
        if refused_ms > 0 && now_ms.abs_diff(refused_ms) < ASK_AGAIN_MS {
            return;
        }
        // A full disk has room only after it has given some.
        let wanted = if refused_ms > 0 {
            wanted.max(ready + 1).min(most)
        } else {
            wanted
        };
        let Ok(ready) = backup.flusher().secure_frames(wanted) else {
            return;
        };
        self.ready.store(ready, Ordering::Relaxed);
        let is_short = ready < wanted;
        let refused_ms = if is_short { now_ms } else { 0 };
        self.refused_ms.store(refused_ms, Ordering::Relaxed);
        let room = if is_short { room_in(ready) } else { u64::MAX };
        log.swaps().disk().set_space(room);
    }
}
