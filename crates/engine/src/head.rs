//! Heads: where new entries go. One per core; a session appends to its own.
//!
//! **Invariants**
//! - H1: a head's lock is held from before an entry's append until the index points to it. A segment is closed under the
//!   same lock, so whoever sees it closed sees every entry of it either referenced or dead for good (90-traps.md §B).
//! - H2: an entry never straddles windows; the bytes between `appended` and the window's end hold no entry.

use crate::cleaner::apart::Processor;
use crate::counters::Counters;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_base::sync::Mutex;

/// The open end of a segment, of a head or of a cleaner's survivor.
#[derive(Default)]
pub struct Tail {
    window: Option<u32>,
    /// Offsets in the region.
    start: usize,
    cursor: usize,
    end: usize,
}

impl Tail {
    #[inline(always)]
    pub fn fits(&self, bytes: usize) -> bool {
        self.end - self.cursor >= bytes
    }

    /// Takes the next `bytes`, which must fit, and returns their offset in the region.
    #[inline(always)]
    pub fn take(&mut self, bytes: usize) -> usize {
        debug_assert!(self.fits(bytes));
        let at = self.cursor;
        self.cursor += bytes;
        at
    }

    /// Gives the last `bytes` back: what was copied there died before it was published.
    pub fn give_back(&mut self, bytes: usize) {
        self.cursor -= bytes;
    }

    /// Tells the segment table how far this segment is filled.
    #[inline(always)]
    pub fn record(&self, space: &Space) {
        if let Some(window) = self.window {
            space.segments[window as usize].set_appended((self.cursor - self.start) as u32);
        }
    }

    /// Continues in a fresh window; the old segment, if any, is closed.
    pub fn roll(&mut self, space: &Space, window: u32) {
        self.close(space);
        let bytes = space.segments[window as usize].committed_bytes() as usize;
        self.start = space.offset_of(window);
        self.cursor = self.start + SEGMENT_HEADER_BYTES;
        self.end = self.start + bytes;
        self.window = Some(window);
    }

    /// Closes the segment; the next append needs a window.
    pub fn close(&mut self, space: &Space) -> Option<u32> {
        let window = self.window.take()?;
        let segment = &space.segments[window as usize];
        segment.set_appended((self.cursor - self.start) as u32);
        segment.close();
        *self = Tail::default();
        Some(window)
    }

    pub fn window(&self) -> Option<u32> {
        self.window
    }
}

pub struct Head {
    /// Also the number of its stream in the log.
    pub number: usize,
    pub counters: Counters,
    pub tail: Mutex<Tail>,
    pub node: usize,
    /// Where its writer runs, as far as known.
    pub processor: Processor,
}
