//! The heads and cleaners that a store's memory bears, and the memory that they take from data.

use crate::space::SEGMENT_BYTES_MIN;

/// Segments of memory for each head and for each cleaner, at least.
const SEGMENTS_EACH: u64 = 8;

/// Numbers of the workers that have open segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    pub heads: usize,
    /// Cleaner threads.
    pub cleaners: usize,
    /// Contexts in which writers help to clean.
    pub helpers: usize,
}

impl Workers {
    /// As many workers as are wanted, or as few as the memory bears. Many of them in little memory
    /// would leave nothing to clean: a head, its survivor and a cleaner take a segment each.
    pub fn borne(
        memory_bytes: u64,
        segment_bytes: u64,
        (heads, cleaners): (usize, usize),
        nodes: usize,
    ) -> Workers {
        let each = SEGMENTS_EACH * segment_bytes.max(SEGMENT_BYTES_MIN);
        let bearable = ((memory_bytes / each) as usize).max(1);
        let heads = heads.min(bearable).clamp(1, crate::log::HEADS_MAX);
        Workers {
            heads,
            cleaners: cleaners
                .min(bearable)
                .max(nodes * usize::from(cleaners > 0)),
            helpers: nodes.max(heads / 4),
        }
    }

    pub fn contexts(&self) -> usize {
        self.cleaners + self.helpers
    }
}

/// Segments that are not for live data, of a store with this number of heads, of cleaning contexts,
/// and of segments in reserve for tombstones. Those in reserve are empty; open ones are half full
/// on average.
pub fn open_segments(heads: usize, contexts: usize, for_tombstones: usize) -> usize {
    contexts + (heads + contexts).div_ceil(2) + for_tombstones
}

/// Bytes that live data and the index cannot have, in a store with a log in this memory.
pub fn bytes_beside_data(
    memory_bytes: u64,
    segment_bytes: u64,
    heads: usize,
    cleaners: usize,
) -> u64 {
    let workers = Workers::borne(memory_bytes, segment_bytes, (heads, cleaners), 1);
    let open = open_segments(workers.heads, workers.contexts(), workers.heads);
    open as u64 * segment_bytes
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use duramen_base::units::MIB;

    /// Long segments once counted as short ones, so their heads and cleaners took all memory.
    #[test]
    fn the_longer_the_segments_the_fewer_heads_and_cleaners() {
        let borne = |memory, segment| {
            let workers = Workers::borne(memory * MIB, segment * MIB, (16, 2), 1);
            (workers.heads, workers.cleaners, workers.helpers)
        };
        assert_eq!(borne(1024, 2), (16, 2, 4));
        assert_eq!(borne(256, 2), (16, 2, 4));
        assert_eq!(borne(256, 8), (4, 2, 1));
        assert_eq!(borne(64, 8), (1, 1, 1));
        for memory in 64..2048 {
            for segment in [2, 4, 8] {
                let memory = memory * MIB;
                let beside = bytes_beside_data(memory, segment * MIB, 64, 64);
                let few = memory < 10 * segment * MIB; // one of each takes five
                assert!(
                    few || beside <= memory * 6 / 10,
                    "{memory} {segment}: {beside}"
                );
            }
        }
    }
}
