//! The balancer of a store with a log: chooses the level of cleaning, memory alone or memory and
//! disk together.
//!
//! Pure arithmetic over the figures of one moment, so every boundary has a test. Paper: [Rumble14
//! §5.2] with the constants of RAMCloud's sources (docs/traps.md, trap 17): compaction is
//! preferred, because it costs no disk bandwidth. Combined cleaning runs when the disk's log nears
//! its limit, when undead tombstones take too large a part of the memory that cleaning could free,
//! or when compaction found nothing to free.

/// Memory is short when this part of it is in use, however much is live [Rumble14 §5.2].
const USED_PART_MIN: f64 = 0.90;
/// Each further thread starts at a part that is higher by this (RAMCloud), so that a light load
/// keeps one core busy and not several.
const USED_PART_PER_THREAD: f64 = 0.02;
const USED_PART_CAP: f64 = 0.99;
/// The log on disk is cleaned when it takes this part of its maximum number of segments.
pub const DISK_PART_MAX: f64 = 0.95;
/// Maximum part of undead tombstones in the memory that live objects do not take.
const TOMBSTONE_PART_MAX: f64 = 0.40;

/// Figures of one moment; parts are of the memory that segments can have.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Memory in use. Memory that waits for readers to leave counts as free.
    pub used_part: f64,
    pub live_part: f64,
    /// Tombstones that the cleaner has not met yet, or had to keep.
    pub tombstone_part: f64,
    /// Segments that the disk holds or will hold.
    pub disk_segments: u64,
    /// Number of segments at which heads may not open another.
    pub disk_segments_max: u64,
    /// The last search for segments to compact found none that would free a seglet.
    pub compaction_is_dry: bool,
    /// Whether compaction is used; off for comparison alone.
    pub two_levels: bool,
}

/// The cleaning to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Nothing,
    /// One segment at a time, in memory only.
    Compact,
    /// Several segments, in memory and on disk.
    Combine,
}

impl Load {
    /// True if the given cleaner thread (0 = the first) should free memory: T >= max(90 %, (1 + L)
    /// / 2).
    pub fn memory_is_low(&self, thread: usize) -> bool {
        let start = USED_PART_MIN.max((1.0 + self.live_part) / 2.0);
        let start = (start + USED_PART_PER_THREAD * thread as f64).min(USED_PART_CAP);
        self.used_part >= start
    }

    pub fn disk_is_low(&self) -> bool {
        self.disk_segments as f64 >= DISK_PART_MAX * self.disk_segments_max as f64
    }

    /// Undead tombstones take the place of dead objects: only combined cleaning makes them
    /// droppable.
    pub fn tombstones_accumulate(&self) -> bool {
        let freeable = (1.0 - self.live_part).max(0.0);
        self.tombstone_part > 0.0 && self.tombstone_part >= TOMBSTONE_PART_MAX * freeable
    }

    /// Chooses the level of cleaning. `low`: memory is short by the caller's measure, which may be
    /// stricter than [`memory_is_low`](Self::memory_is_low).
    pub fn decide(&self, low: bool) -> Work {
        let memory_asks =
            low && (self.tombstones_accumulate() || self.compaction_is_dry || !self.two_levels);
        if self.disk_is_low() || memory_asks {
            Work::Combine
        } else if low {
            Work::Compact
        } else {
            Work::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EASY: Load = Load {
        used_part: 0.5,
        live_part: 0.4,
        tombstone_part: 0.0,
        disk_segments: 100,
        disk_segments_max: 200,
        compaction_is_dry: false,
        two_levels: true,
    };

    #[test]
    fn memory_is_low_from_ninety_percent_or_half_of_what_is_not_live() {
        let at = |used_part, live_part| Load {
            used_part,
            live_part,
            ..EASY
        };
        assert!(!at(0.899, 0.5).memory_is_low(0));
        assert!(at(0.90, 0.5).memory_is_low(0));
        assert!(!at(0.94, 0.9).memory_is_low(0), "(1 + 0.9) / 2 = 0.95");
        assert!(at(0.95, 0.9).memory_is_low(0));
        // The second thread joins 2 points later, and no thread waits for more than 99 %.
        assert!(!at(0.91, 0.5).memory_is_low(1) && at(0.92, 0.5).memory_is_low(1));
        assert!(at(0.99, 0.99).memory_is_low(7));
    }

    #[test]
    fn compaction_is_preferred() {
        assert_eq!(EASY.decide(false), Work::Nothing);
        assert_eq!(EASY.decide(true), Work::Compact);
    }

    #[test]
    fn the_disk_asks_at_95_percent_even_when_memory_is_easy() {
        let full = |disk_segments| Load {
            disk_segments,
            ..EASY
        };
        assert_eq!(full(189).decide(false), Work::Nothing);
        assert_eq!(full(190).decide(false), Work::Combine);
        assert_eq!(full(190).decide(true), Work::Combine);
    }

    #[test]
    fn tombstones_ask_at_forty_percent_of_what_is_freeable() {
        let with = |tombstone_part, live_part| Load {
            tombstone_part,
            live_part,
            ..EASY
        };
        assert_eq!(with(0.07, 0.8).decide(true), Work::Compact);
        assert_eq!(with(0.0801, 0.8).decide(true), Work::Combine);
        assert_eq!(with(0.0801, 0.8).decide(false), Work::Nothing);
        assert_eq!(with(0.0, 1.0).decide(true), Work::Compact, "none at all");
    }

    #[test]
    fn what_compaction_cannot_free_combined_cleaning_may() {
        let dry = Load {
            compaction_is_dry: true,
            ..EASY
        };
        assert_eq!(dry.decide(true), Work::Combine);
        assert_eq!(dry.decide(false), Work::Nothing);
        let one_level = Load {
            two_levels: false,
            ..EASY
        };
        assert_eq!(one_level.decide(true), Work::Combine);
    }
}
