//! Heads: the open segments that new entries are appended to. One per core; a session appends to
//! its own.
//!
//! **Invariants**
//! - H1: a head's lock is held from before an entry's append until the index points to it. A
//!   segment is closed under the same lock, so a thread that sees it closed sees every entry of it
//!   either referenced or dead for good (docs/traps.md, trap 15).
//! - H2: an entry never straddles windows; the bytes between `appended` and the window's end hold
//!   no entry.
//! - H3: with a log, an open group belongs to the holder of the lock, and ends before the lock is
//!   released.

use crate::counters::Counters;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_base::sync::Mutex;
use rustix::thread::sched_getcpu;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open end of a segment, either of a head or of a cleaner's survivor.
#[derive(Default)]
pub struct Tail {
    window: Option<u32>,
    /// Offsets in the region.
    start: usize,
    cursor: usize,
    end: usize,
    /// Start of the window in the head's stream (with a log).
    base: u64,
    /// Offset in the region at which the open group starts (engine::log::L2).
    group: Option<usize>,
    /// The window was given for tombstones alone.
    deletes_only: bool,
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

    /// Gives the last `bytes` back, because the entry that was copied there died before it was
    /// published.
    pub fn give_back(&mut self, bytes: usize) {
        self.cursor -= bytes;
    }

    /// Records in the segment table how far this segment is filled.
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

    /// Bytes from the window's start to the last entry's end.
    pub fn length(&self) -> u32 {
        (self.cursor - self.start) as u32
    }

    /// Position behind the last entry in the head's stream.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.base + (self.cursor - self.start) as u64
    }

    #[inline(always)]
    pub fn in_group(&self) -> bool {
        self.group.is_some()
    }

    /// Entries from now on, up to `end_group`, are collected in one piece.
    pub fn begin_group(&mut self) {
        self.group.get_or_insert(self.cursor);
    }

    pub fn end_group(&mut self) {
        self.group = None;
    }

    /// Offsets in the region at which the open group starts and ends.
    pub fn group(&self) -> std::ops::Range<usize> {
        self.group.unwrap_or(self.cursor)..self.cursor
    }

    /// Gives the entries of the open group back: they are going to be written elsewhere.
    pub fn cut_group(&mut self) {
        self.cursor = self.group().start;
    }

    /// Sets the start in the stream of the window that was just entered.
    pub fn set_base(&mut self, base: u64) {
        self.base = base;
    }

    #[inline(always)]
    pub fn is_for_deletes(&self) -> bool {
        self.deletes_only
    }

    pub fn set_for_deletes(&mut self, deletes_only: bool) {
        self.deletes_only = deletes_only;
    }
}

pub struct Head {
    /// The head's number, which is also that of its stream in the log.
    pub number: usize,
    pub counters: Counters,
    pub tail: Mutex<Tail>,
    pub node: usize,
    /// The processor on which its writer last ran.
    pub processor: Processor,
}

/// The processor on which a head's writer last ran: a hint, ordered with nothing else.
#[derive(Default)]
pub struct Processor(AtomicUsize);

impl Processor {
    /// Called by the writer now and then.
    pub fn note(&self) {
        let here = sched_getcpu() + 1;
        // The number rarely changes. Without a change nothing is written, so the cache line stays
        // shared.
        if self.0.load(Ordering::Relaxed) != here {
            self.0.store(here, Ordering::Relaxed);
        }
    }

    pub fn last(&self) -> Option<usize> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}
