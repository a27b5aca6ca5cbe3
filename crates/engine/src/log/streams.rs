//! The streams of all heads, and how far they and the changes of tables are durable.
//!
//! **Concurrency**: the holder of a head's lock enters, closes and publishes segments and groups of
//! its stream. One consumer collects and completes.

use super::Position;
use super::stream::{Collected, Reached, Stream};
use super::windows::Windows;
use crate::head::Tail;
use crate::space::Space;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};

pub struct Streams {
    heads: Box<[Stream]>,
    /// The stream of table changes has the number behind those of heads.
    changes: Reached,
}

impl Streams {
    pub fn new(heads: usize) -> Streams {
        Streams {
            heads: (0..heads).map(|_| Stream::default()).collect(),
            changes: Reached::default(),
        }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.heads) as u64
    }

    /// The stream of a head.
    #[inline(always)]
    pub fn of_head(&self, head: usize) -> &Stream {
        &self.heads[head]
    }

    /// The number of the stream of table changes.
    pub fn of_changes(&self) -> u16 {
        self.heads.len() as u16
    }

    fn reached_by(&self, stream: u16) -> &Reached {
        let head = self.heads.get(usize::from(stream));
        head.map_or(&self.changes, Stream::done)
    }

    /// The position that a stream has reached at a level.
    pub fn end_of(&self, stream: u16, level: Level) -> u64 {
        self.reached_by(stream).at(level)
    }

    /// The level that everything in a position has reached.
    pub fn reached(&self, position: &Position) -> Level {
        let reaches = |level| {
            let mut ends = position.ends();
            ends.all(|(stream, end)| end <= self.end_of(stream, level))
        };
        if reaches(Level::Synced) {
            Level::Synced
        } else if reaches(Level::Buffered) {
            Level::Buffered
        } else {
            Level::Memory
        }
    }

    /// Everything that was appended so far, open groups included (log::L4).
    pub fn appended(&self) -> Position {
        let mut position = Position::default();
        for (number, stream) in self.heads.iter().enumerate() {
            let end = stream.appended();
            if end > stream.done().at(Level::Synced) {
                position.add(number as u16, end, Level::Synced);
            }
        }
        position
    }

    /// The changes of tables up to this number.
    pub fn changed(&self, last: u64) -> Position {
        let mut position = Position::default();
        if last > self.changes.at(Level::Synced) {
            position.add(self.of_changes(), last, Level::Synced);
        }
        position
    }

    /// Approximate number of bytes appended and not yet synced.
    pub fn undurable_bytes(&self) -> u64 {
        self.heads.iter().map(Stream::undurable_bytes).sum()
    }

    /// Grows with every sync of a stream.
    pub fn progress(&self) -> u64 {
        let synced = |stream: &Stream| stream.done().at(Level::Synced);
        self.heads.iter().map(synced).fold(0, u64::wrapping_add)
    }

    /// Takes new pieces of all heads; returns whether something was left.
    pub fn collect(&self, out: &mut Collected, bytes_max: u64) -> bool {
        let mut is_cut = false;
        for (number, stream) in self.heads.iter().enumerate() {
            is_cut |= stream.collect(number as u16, out, bytes_max);
        }
        is_cut
    }

    /// The window of a segment that is not durably closed, and of which `bytes` are collected.
    pub fn window_of(&self, segment: SegmentId, bytes: u32) -> Option<u32> {
        let mut heads = self.heads.iter();
        heads.find_map(|stream| stream.window_of(segment, bytes))
    }

    /// The content of `collected`, and everything collected before it, has reached `level`.
    pub fn complete(&self, collected: &Collected, level: Level, windows: &Windows) {
        for (stream, end) in collected.ends() {
            self.advance(stream, end, level, windows);
        }
    }

    /// Everything that was completed at a lower level has reached `level`.
    pub fn complete_all(&self, level: Level, windows: &Windows) {
        for stream in 0..=self.of_changes() {
            self.advance(stream, self.end_of(stream, Level::Buffered), level, windows);
        }
    }

    fn advance(&self, number: u16, end: u64, level: Level, windows: &Windows) {
        match self.heads.get(usize::from(number)) {
            Some(stream) => stream.advance(end, level, windows),
            None => self.changes.advance(end, level),
        }
    }

    /// Continues in `window`, which the open group has set aside: the group has a part in each
    /// segment, and is still collected as a whole (engine::log::L2).
    pub fn span(
        &self,
        windows: &Windows,
        space: &Space,
        head: usize,
        tail: &mut Tail,
        window: u32,
    ) {
        let has_begun = !tail.group().is_empty();
        tail.end_group();
        self.enter(windows, space, head, tail, window);
        if has_begun {
            self.heads[head].continue_group();
        }
        begin_group(tail);
        self.publish(head, tail);
    }

    /// Closes the head's segment, if it has one, and continues in `window`.
    pub fn enter(
        &self,
        windows: &Windows,
        space: &Space,
        head: usize,
        tail: &mut Tail,
        window: u32,
    ) {
        self.close(space, head, tail);
        tail.roll(space, window);
        let segment = windows.segment_of(window as usize);
        let base = self.heads[head].open(segment, window);
        windows.enter(window, head, base);
        tail.set_base(base);
    }

    /// Ends the group and makes its entries collectable.
    pub fn end_group(&self, head: usize, tail: &mut Tail) {
        tail.end_group();
        if tail.window().is_some() {
            self.heads[head].publish(tail.position(), false);
        }
    }

    /// Publishes the appends of the holder of the head's lock to the stream.
    #[inline(always)]
    pub fn publish(&self, head: usize, tail: &Tail) {
        self.heads[head].publish(tail.position(), tail.in_group());
    }

    /// Ends the head's segment.
    fn close(&self, space: &Space, head: usize, tail: &mut Tail) -> bool {
        let length = tail.length();
        let closed = tail.close(space).is_some();
        if closed {
            self.heads[head].close(length);
        }
        closed
    }

    /// Ends the segment of a head whose lock the caller holds; the next append opens another.
    pub fn close_head(&self, space: &Space, head: usize, tail: &mut Tail) {
        assert!(!tail.in_group(), "H3");
        if self.close(space, head, tail) {
            self.heads[head].publish_close();
        }
    }
}

/// Entries that the holder of the head's lock appends from now on form one group.
pub fn begin_group(tail: &mut Tail) {
    if !has_bug(Bug::GroupsInParts) {
        tail.begin_group();
    }
}
