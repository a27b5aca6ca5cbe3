//! Positions: how far the log must be durable for a reply to be true.
//!
//! Every head has a stream: the bytes of its segments one after the other, counted from the start
//! of the store. One more stream counts the changes of tables. A position names an offset in each
//! of some streams.

use duramen_base::ids::Level;

/// Streams that a position names without allocating.
const INLINE: usize = 4;

/// The position of a guard's writes and observations. It has reached a level when every stream
/// named has reached its offset at that level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    level: Level0,
    /// Used places of `inline`.
    used: u8,
    streams: [u16; INLINE],
    ends: [u64; INLINE],
    more: Vec<(u16, u64)>,
}

/// A level whose default is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level0(Level);

impl Default for Level0 {
    fn default() -> Level0 {
        Level0(Level::Memory)
    }
}

impl Position {
    /// True if there is nothing to wait for.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.used == 0
    }

    /// The highest level of the tables that were written, or in which an entry was seen that is not
    /// yet durable.
    pub fn level(&self) -> Level {
        self.level.0
    }

    /// Sets the level, whatever the tables have.
    #[must_use]
    pub fn with_level(mut self, level: Level) -> Position {
        self.level = Level0(level);
        self
    }

    /// Makes this position cover `other` as well.
    pub fn join(&mut self, other: &Position) {
        for (stream, end) in other.ends() {
            self.note(stream, end);
        }
        self.level.0 = self.level.0.max(other.level.0);
    }

    /// Makes the position cover `stream` up to `end`, for a table of this level.
    pub(crate) fn add(&mut self, stream: u16, end: u64, level: Level) {
        self.note(stream, end);
        self.level.0 = self.level.0.max(level);
    }

    fn note(&mut self, stream: u16, end: u64) {
        let used = usize::from(self.used);
        if let Some(at) = self.streams[..used].iter().position(|s| *s == stream) {
            self.ends[at] = self.ends[at].max(end);
        } else if let Some((_, known)) = self.more.iter_mut().find(|(s, _)| *s == stream) {
            *known = (*known).max(end);
        } else if used < INLINE {
            (self.streams[used], self.ends[used]) = (stream, end);
            self.used += 1;
        } else {
            self.more.push((stream, end));
        }
    }

    /// The streams named, each with its offset.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u16, u64)> {
        let used = usize::from(self.used);
        let inline = self.streams[..used].iter().zip(&self.ends[..used]);
        inline
            .map(|(stream, end)| (*stream, *end))
            .chain(self.more.iter().copied())
    }
}

/// Bits of a packed place that hold a position in units of 8 bytes.
const END_BITS: u32 = 54;
/// Maximum number of heads of a store, with or without a log: their numbers, and that of the table
/// changes, fit a packed place.
pub(crate) const HEADS_MAX: usize = (1 << (64 - END_BITS)) - 2;

/// Packs a place. The result is not zero, as no entry ends at position 0, and no two removals have
/// the same.
pub(crate) fn pack_place(stream: u16, end: u64) -> u64 {
    u64::from(stream) << END_BITS | end.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_takes_the_later_end_of_each_stream() {
        let mut position = Position::default();
        assert!(position.is_none() && position.level() == Level::Memory);
        for stream in 0..7 {
            position.add(stream, u64::from(stream) * 10, Level::Buffered);
        }
        let mut other = Position::default();
        other.add(2, 5, Level::Memory);
        other.add(6, 99, Level::Synced);
        position.join(&other);
        let mut ends: Vec<_> = position.ends().collect();
        ends.sort_unstable();
        assert_eq!(ends.len(), 7);
        assert_eq!((ends[2], ends[6]), ((2, 20), (6, 99)));
        assert_eq!(position.level(), Level::Synced);
        assert!(!position.is_none());
    }

    #[test]
    fn no_two_places_are_packed_alike() {
        let places = [(0, 8), (3, 64), (3, 72), (HEADS_MAX as u16, 1 << 50)];
        let packed = places.map(|(stream, end)| pack_place(stream, end));
        let distinct = packed.iter().collect::<std::collections::BTreeSet<_>>();
        assert!(distinct.len() == places.len() && !packed.contains(&0));
    }
}
