//! One head's stream of segments, and the collection of pieces from all streams.

use super::{Log, Pass};
use crate::TableChange;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::sync::{AtomicU64, Mutex, Ordering};
use std::collections::VecDeque;

/// Positions written by the holder of a head's lock, and the consumer's progress, each on a cache
/// line of its own.
#[derive(Default)]
pub(crate) struct Stream {
    pub(super) written: Written,
    pub(super) done: Reached,
    queue: Mutex<Queue>,
}

#[derive(Default)]
#[repr(align(128))]
pub(super) struct Written {
    /// Position behind the last entry, open groups included (log::L4).
    pub(super) appended: AtomicU64,
    /// End of the last whole group (engine::log::L2): entries up to here may be collected.
    shippable: AtomicU64,
}

#[derive(Default)]
#[repr(align(128))]
pub(super) struct Reached {
    pub(super) buffered: AtomicU64,
    pub(super) synced: AtomicU64,
}

/// Segments of the stream that are not durably closed, oldest first.
#[derive(Default)]
struct Queue {
    segments: VecDeque<Open>,
    /// Start of the next segment in the stream.
    next_base: u64,
    /// The position up to which durable bytes are noted: two threads may complete at once.
    noted: u64,
}

/// Changes of tables for which memory is kept.
const CHANGES_KEPT: usize = 64;

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
    /// It begins in the middle of a group that began in the segment before.
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

/// The result of one or several calls of [`Log::collect`], to be committed together.
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

    /// Takes over the positions of another one, whose content is passed on already: to complete both
    /// together.
    pub fn take_ends(&mut self, other: &Collected) {
        for (stream, end) in &other.ends {
            self.note_end(*stream, *end);
        }
    }

    fn note_end(&mut self, stream: u16, end: u64) {
        match self.ends.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, known)) => *known = (*known).max(end),
            None => self.ends.push((stream, end)),
        }
    }
}

impl Log {
    /// Adds to `out` everything new since the last call. Takes only locks that are held for an
    /// instant.
    pub fn collect(&self, out: &mut Collected) {
        self.collect_part(out, u64::MAX);
    }

    /// As [`collect`](Self::collect), up to about `bytes_max` bytes in `out`: no segment is begun
    /// once there are as many. Returns whether something was left for the next call. Each head's
    /// part is a prefix of its stream, cut between segments that share no group. So no group is cut
    /// (engine::log::L2), and no version comes before the one below it (log::L5). If there are
    /// changes of tables, everything is taken: entries that were published together with them stay
    /// together.
    pub fn collect_part(&self, out: &mut Collected, bytes_max: u64) -> bool {
        // While this lock is held, no guard publishes changes together with entries: `collect`
        // finds both, or neither (log::L6).
        let mut changes = self.changes.lock().expect("table changes");
        let before = changes.reserved.unwrap_or(u64::MAX);
        let ready = changes
            .queue
            .partition_point(|(number, _)| *number < before);
        for (number, change) in changes.queue.drain(..ready) {
            out.note_end(self.changes_stream(), number);
            out.changes.push(change);
        }
        changes.queue.shrink_to(CHANGES_KEPT);
        let bytes_max = match out.changes.is_empty() {
            true => bytes_max,
            false => u64::MAX,
        };
        let mut is_cut = false;
        for (number, stream) in self.streams.iter().enumerate() {
            is_cut |= stream.collect(number as u16, out, bytes_max);
        }
        // Last: a pass is announced before anything is written that names one of its survivors.
        self.swaps.take_passes(&mut out.passes);
        is_cut
    }

    /// The pieces in `collected`, which this log filled.
    pub fn pieces<'a>(&'a self, collected: &'a Collected) -> impl Iterator<Item = Piece<'a>> {
        collected.pieces.iter().map(|raw| match *raw {
            Raw::Open(segment, head) => Piece::Open { segment, head },
            Raw::Close(segment, length) => Piece::Close { segment, length },
            Raw::Data(segment, window, offset, length) => Piece::Data {
                segment,
                offset,
                bytes: self.memory.slice(window, offset, length),
            },
        })
    }

    /// Bytes `from..to` of a head's segment, whenever they were collected. `None`: the segment is
    /// durably closed, or these bytes are not collected yet. For the consumer alone: the bytes stay
    /// in place until it completes the segment's closing.
    pub fn unclosed_bytes(&self, segment: SegmentId, from: u32, to: u32) -> Option<&[u8]> {
        let window = self.streams.iter().find_map(|stream| {
            let queue = stream.queue.lock().expect("stream of a head");
            let mut segments = queue.segments.iter();
            let open = segments.find(|open| open.segment == segment && open.taken >= to)?;
            Some(open.window)
        })?;
        Some(self.memory.slice(window, from, to - from))
    }

    /// The content of `collected`, and everything collected before it, has reached `level`:
    /// positions advance, and `collected` is emptied. Several threads may complete at once.
    pub fn complete(&self, collected: &mut Collected, level: Level) {
        for (stream, end) in &collected.ends {
            self.advance(*stream, *end, level);
        }
        *collected = Collected::default();
        self.wake();
    }

    /// Everything that was completed at a lower level has reached `level`.
    pub fn complete_all(&self, level: Level) {
        for stream in 0..=self.streams.len() as u16 {
            self.advance(stream, self.end_of(stream, Level::Buffered), level);
        }
        self.wake();
    }

    fn advance(&self, number: u16, end: u64, level: Level) {
        let (buffered, synced) = match self.streams.get(usize::from(number)) {
            Some(stream) => (&stream.done.buffered, &stream.done.synced),
            None => (&self.changes_buffered, &self.changes_synced),
        };
        match level {
            Level::Memory => {}
            Level::Buffered => {
                buffered.fetch_max(end, Ordering::AcqRel);
            }
            Level::Synced => {
                if let Some(stream) = self.streams.get(usize::from(number)) {
                    stream.note_durable(end, |window, bytes| {
                        self.durable[window as usize].store(bytes, Ordering::Release);
                    });
                }
                synced.fetch_max(end, Ordering::AcqRel);
            }
        }
    }
}

impl Stream {
    /// Takes new pieces, segment by segment, until `out` has `bytes_max` bytes; returns whether
    /// something was left.
    fn collect(&self, number: u16, out: &mut Collected, bytes_max: u64) -> bool {
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

    /// Forgets segments that are durably closed before `end`. Calls `set` with the number of
    /// durable bytes of each window; `u32::MAX` for a closed one.
    fn note_durable(&self, end: u64, mut set: impl FnMut(u32, u32)) {
        let mut queue = self.queue.lock().expect("stream of a head");
        if end <= queue.noted {
            return;
        }
        queue.noted = end;
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Two threads complete in the other order than they collected.
    #[test]
    fn durable_bytes_never_go_back() {
        let stream = Stream::default();
        assert_eq!(stream.open(SegmentId(1), 5), 0);
        stream.close(100);
        assert_eq!(stream.open(SegmentId(2), 6), 100 + CLOSE);
        let noted = |end| {
            let mut noted = Vec::new();
            stream.note_durable(end, |window, bytes| noted.push((window, bytes)));
            noted
        };
        assert_eq!(noted(40), [(5, 40)]);
        assert_eq!(noted(150), [(5, u32::MAX), (6, 150 - 100 - CLOSE as u32)]);
        for late in [60, 108, 120, 150] {
            assert_eq!(noted(late), []);
        }
    }
}
