//! Ids and ordered kinds that every crate of the durable part shares.

use std::fmt;

/// Names one segment of one server's log, for ever: data heads, survivors and control segments all draw from the same
/// counter, so an id is never given twice, not even across restarts. 0 names no segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// No segment.
    pub const NONE: SegmentId = SegmentId(0);
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an acknowledged write has reached. Ordered: a higher level promises more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// In memory alone: survives nothing.
    Memory = 0,
    /// Handed to the operating system: survives the end of the process, not of the machine.
    Buffered = 1,
    /// On stable storage: survives a power cut.
    #[default]
    Synced = 2,
}

impl Level {
    /// All levels, the weakest first.
    pub const ALL: [Level; 3] = [Level::Memory, Level::Buffered, Level::Synced];

    /// The word that users write and read.
    pub fn name(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Buffered => "buffered",
            Level::Synced => "synced",
        }
    }

    /// The level of that name, whatever its case.
    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL
            .into_iter()
            .find(|level| name.eq_ignore_ascii_case(level.name()))
    }

    /// The inverse of `level as u8`.
    pub fn from_number(number: u8) -> Option<Level> {
        Level::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named() {
        assert!(Level::Memory < Level::Buffered && Level::Buffered < Level::Synced);
        for level in Level::ALL {
            assert_eq!(Level::from_name(level.name()), Some(level));
            assert_eq!(Level::from_number(level as u8), Some(level));
        }
        assert_eq!(Level::from_name("SYNCED"), Some(Level::Synced));
        assert_eq!(Level::from_name("sync"), None);
        assert_eq!(Level::from_number(3), None);
    }
}
