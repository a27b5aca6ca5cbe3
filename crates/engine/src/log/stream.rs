//! One head's stream of segments, and the pieces that are collected from it.

use super::Pass;
use super::windows::Windows;
use crate::TableChange;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::sync::{AtomicU64, Mutex, Ordering};
use std::collections::VecDeque;

/// Positions written by the holder of a head's lock, and the consumer's progress, each on a cache
/// line of its own.
#[derive(Default)]
pub(crate) struct Stream {
    written: Written,
    done: Reached,
    queue: Mutex<Queue>,
}

#[derive(Default)]
#[repr(align(128))]
struct Written {
    /// Position behind the last entry, open groups included (log::L4).
    appended: AtomicU64,
    /// End of the last whole group (engine::log::L2): entries up to here may be collected.
    shippable: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
pub(super) struct Reached {
    buffered: AtomicU64,
    synced: AtomicU64,
}

impl Reached {
    /// The position that is reached at a level.
    pub(super) fn at(&self, level: Level) -> u64 {
        match level {
            Level::Memory => u64::MAX,
            // Bytes that are synced count as buffered too, whichever of the two numbers is stored
            // first.
            Level::Buffered => self
                .buffered
                .load(Ordering::Acquire)
                .max(self.synced.load(Ordering::Acquire)),
            Level::Synced => self.synced.load(Ordering::Acquire),
        }
    }

    pub(super) fn advance(&self, end: u64, level: Level) {
        match level {
            Level::Memory => {}
            Level::Buffered => {
                self.buffered.fetch_max(end, Ordering::AcqRel);
            }
            Level::Synced => {
                self.synced.fetch_max(end, Ordering::AcqRel);
            }
        }
    }
}

/// Segments of the stream that are not durably closed, oldest first.
#[derive(Default)]
struct Queue {
    segments: VecDeque<Open>,
    /// Start of the next segment in the stream.
    next_base: u64,
}

/// Length of a segment's closing in its stream (engine::log::L3).
const CLOSE: u64 = 8;

struct Open {
    segment: SegmentId,
    window: u32,
    base: u64,
    /// Bytes collected so far.
    taken: u32,
    announced: bool,
    /// The segment's length, once it is closed.
    closed: Option<u32>,
    close_taken: bool,
    /// The segment begins in the middle of a group that began in the segment before.
    continues: bool,
}

impl Stream {
    /// Records an append up to `end`; while a group is open it is not collectable yet.
    #[inline(always)]
    pub(crate) fn publish(&self, end: u64, in_group: bool) {
        self.written.appended.store(end, Ordering::Release); // log::L4
        if !in_group {
            // Release pairs with Acquire in `collect`: the bytes are written.
            self.written.shippable.store(end, Ordering::Release);
        }
    }

    /// Ends the present segment at `length` bytes. Called by the holder of the head's lock.
    pub(crate) fn close(&self, length: u32) {
        let mut queue = self.queue.lock().expect("stream of a head");
        let Some(last) = queue.segments.back_mut() else {
            return;
        };
        assert!(last.closed.is_none() && last.taken <= length, "L2");
        last.closed = Some(length);
        queue.next_base = last.base + u64::from(length) + CLOSE; // engine::log::L3
    }

    /// Makes the closing of the last segment collectable when no segment follows it.
    pub(crate) fn publish_close(&self) {
        let end = self.queue.lock().expect("stream of a head").next_base;
        self.publish(end, false);
    }

    /// Continues in a segment; returns the position where it starts.
    pub(crate) fn open(&self, segment: SegmentId, window: u32) -> u64 {
        let mut queue = self.queue.lock().expect("stream of a head");
        let base = queue.next_base;
        debug_assert!(
            queue
                .segments
                .back()
                .is_none_or(|last| last.closed.is_some())
        );
        queue.segments.push_back(Open {
            segment,
            window,
            base,
            taken: 0,
            announced: false,
            closed: None,
            close_taken: false,
            continues: false,
        });
        base
    }

    /// The last segment continues the group that is open in the one before: they are collected
    /// together (engine::log::L2).
    pub(crate) fn continue_group(&self) {
        let mut queue = self.queue.lock().expect("stream of a head");
        if let Some(last) = queue.segments.back_mut() {
            last.continues = true;
        }
    }
}

/// The result of one or several calls of [`Log::collect`](super::Log::collect), to be committed
/// together.
#[derive(Debug, Default)]
pub struct Collected {
    changes: Vec<TableChange>,
    passes: Vec<Pass>,
    pieces: Vec<Raw>,
    /// Streams, with the end of the collected part of each.
    ends: Vec<(u16, u64)>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Raw {
    Open(SegmentId, u16),
    /// Segment, window, offset in it, bytes.
    Data(SegmentId, u32, u32, u32),
    Close(SegmentId, u32),
}

/// A piece of the log. The pieces of a head come in the order in which they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A head continues in this segment. Its data follow, the header first.
    Open { segment: SegmentId, head: u16 },
    /// More bytes of an open segment, at `offset`.
    Data {
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    },
    /// The segment is complete at `length` bytes.
    Close { segment: SegmentId, length: u32 },
}

impl Collected {
    /// True if there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.changes.is_empty() && self.passes.is_empty()
    }

    /// Changes of tables, in order. Their records belong before the data, or in the same atomic
    /// commit.
    pub fn changes(&self) -> &[TableChange] {
        &self.changes
    }

    /// Cleaning passes that began. Their records belong before the data, or in the same atomic
    /// commit.
    pub fn passes(&self) -> &[Pass] {
        &self.passes
    }

    /// Number of data bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a change of a table, whose number is a position in `stream`.
    pub(super) fn take_change(&mut self, stream: u16, number: u64, change: TableChange) {
        self.note_end(stream, number);
        self.changes.push(change);
    }

    pub(super) fn passes_mut(&mut self) -> &mut Vec<Pass> {
        &mut self.passes
    }

    /// The ends of the collected part of each stream.
    pub(super) fn ends(&self) -> impl Iterator<Item = (u16, u64)> {
        self.ends.iter().copied()
    }

    /// The pieces, whose bytes are in `windows`.
    pub(super) fn pieces<'a>(&'a self, windows: &'a Windows) -> impl Iterator<Item = Piece<'a>> {
        self.pieces.iter().map(|raw| match *raw {
            Raw::Open(segment, head) => Piece::Open { segment, head },
            Raw::Close(segment, length) => Piece::Close { segment, length },
            Raw::Data(segment, window, offset, length) => Piece::Data {
                segment,
                offset,
                bytes: windows.slice(window, offset, length),
            },
        })
    }

    fn note_end(&mut self, stream: u16, end: u64) {
        match self.ends.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, known)) => *known = (*known).max(end),
            None => self.ends.push((stream, end)),
        }
    }
}

impl Stream {
    /// Takes new pieces, segment by segment, until `out` has `bytes_max` bytes; returns whether
    /// something was left.
    pub(super) fn collect(&self, number: u16, out: &mut Collected, bytes_max: u64) -> bool {
        let end = self.written.shippable.load(Ordering::Acquire);
        let mut queue = self.queue.lock().expect("stream of a head");
        for open in &mut queue.segments {
            if end <= open.base {
                break;
            }
            if out.bytes >= bytes_max && !open.continues {
                return true;
            }
            if !open.announced {
                open.announced = true;
                out.pieces.push(Raw::Open(open.segment, number));
            }
            let length = (end - open.base).min(u64::from(open.closed.unwrap_or(u32::MAX))) as u32;
            if length > open.taken {
                let bytes = length - open.taken;
                let data = Raw::Data(open.segment, open.window, open.taken, bytes);
                out.pieces.push(data);
                out.bytes += u64::from(bytes);
                open.taken = length;
                out.note_end(number, open.base + u64::from(length));
            }
            if open.closed == Some(length)
                && end > open.base + u64::from(length)
                && !open.close_taken
            {
                open.close_taken = true;
                out.pieces.push(Raw::Close(open.segment, length));
                out.note_end(number, open.base + u64::from(length) + CLOSE);
            }
        }
        false
    }

    /// How far the stream is durable.
    pub(super) fn done(&self) -> &Reached {
        &self.done
    }

    /// The position behind the last entry, open groups included (log::L4).
    pub(super) fn appended(&self) -> u64 {
        self.written.appended.load(Ordering::Acquire)
    }

    /// The bytes appended and not yet synced.
    pub(super) fn undurable_bytes(&self) -> u64 {
        let synced = self.done.synced.load(Ordering::Relaxed);
        let appended = self.written.appended.load(Ordering::Relaxed);
        appended.saturating_sub(synced)
    }

    /// The window of a segment that is not durably closed, and of which `bytes` are collected.
    pub(super) fn window_of(&self, segment: SegmentId, bytes: u32) -> Option<u32> {
        let queue = self.queue.lock().expect("stream of a head");
        let mut segments = queue.segments.iter();
        let open = segments.find(|open| open.segment == segment && open.taken >= bytes)?;
        Some(open.window)
    }

    /// Everything up to `end` has reached the level.
    pub(super) fn advance(&self, end: u64, level: Level, windows: &Windows) {
        if level == Level::Synced {
            self.note_durable(end, |window, bytes| windows.set_durable(window, bytes));
        }
        self.done.advance(end, level);
    }

    /// Forgets segments that are durably closed before `end`. Calls `set` with the number of
    /// durable bytes of each window; `u32::MAX` for a closed one.
    fn note_durable(&self, end: u64, mut set: impl FnMut(u32, u32)) {
        let mut queue = self.queue.lock().expect("stream of a head");
        while let Some(open) = queue.segments.front()
            && end > open.base
        {
            let length = (end - open.base).min(u64::from(open.closed.unwrap_or(u32::MAX))) as u32;
            if open.closed == Some(length) && end > open.base + u64::from(length) {
                set(open.window, u32::MAX);
                queue.segments.pop_front();
            } else {
                set(open.window, length);
                return;
            }
        }
    }
}
