//! The number of segments that the disk has room for, and the reserves of it that are kept.
//!
//! **Invariants** swap::D9 and swap::D10: heads take room before they open a segment, and a log
//! that a start finds too long becomes shorter.

use crate::space::Purpose;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Room for segments on the disk.
pub struct DiskRoom {
    /// Maximum number of segments in the log.
    limit_max: u64,
    /// Number of segments that the disk has room for, if a restart found more than the maximum
    /// (swap::D10).
    room_max: u64,
    /// Segments that a restart found; falls with the length of the log.
    found: AtomicU64,
    heads: u64,
    /// Number of segments that the disk has space for, if it is less.
    space: AtomicU64,
    /// A head was refused a segment because the disk is full, and no head has got one since.
    refused: AtomicBool,
    listed: AtomicU64,
    /// Segments that heads have taken room for and not opened yet (swap::D9).
    aside: AtomicU64,
}

impl DiskRoom {
    pub(super) fn new(limit: u64, room: u64, windows: usize, heads: usize) -> DiskRoom {
        // Windows must remain for heads, for survivors, and for retired ones that readers still
        // pin.
        let limit_max = limit.min((windows - windows / 4) as u64);
        DiskRoom {
            limit_max,
            room_max: room.min((windows - windows / 8) as u64).max(limit_max),
            found: AtomicU64::new(0),
            heads: heads as u64,
            space: AtomicU64::new(u64::MAX),
            refused: AtomicBool::new(false),
            listed: AtomicU64::new(0),
            aside: AtomicU64::new(0),
        }
    }

    fn limit(&self) -> u64 {
        self.limit_max.min(self.space.load(Ordering::Relaxed))
    }

    /// The log has this many segments now.
    pub(super) fn set_listed(&self, segments: u64) {
        self.listed.store(segments, Ordering::Relaxed);
    }

    /// A Swap left this many segments (swap::D10).
    pub(super) fn swapped(&self, segments: u64) {
        self.set_listed(segments);
        self.found.fetch_min(segments, Ordering::Relaxed);
    }

    /// All segments that a restart found are listed (swap::D10).
    pub(crate) fn all_found(&self) {
        let listed = self.listed.load(Ordering::Relaxed);
        self.found.store(listed, Ordering::Relaxed);
    }

    /// Maximum segments for survivors; for removals, less the reserve of survivors (swap::D10).
    fn limit_of_cleaning(&self) -> u64 {
        let room = self.room_max.min(self.space.load(Ordering::Relaxed));
        let found = self.found.load(Ordering::Relaxed);
        self.limit().max(room.min(found + self.reserve()))
    }

    /// Maximum segments, for this purpose.
    fn limit_for(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.limit(),
            Purpose::Tombstones | Purpose::Survivor => self.limit_of_cleaning(),
            Purpose::Compacted => u64::MAX, // its segment is listed already
        }
    }

    /// Sets the number of segments that the file system has space for; `u64::MAX` = enough for all.
    /// Some of them are kept for cleaning, and some for removals.
    pub fn set_space(&self, segments: u64) {
        self.space.store(segments, Ordering::Relaxed);
    }

    /// True if writes are refused because live data fill the disk. Removals are not refused.
    pub fn is_short(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && !self.has_room(Purpose::Head)
    }

    /// Notes whether the last head that asked for a segment got none for lack of disk space.
    pub(crate) fn set_refused(&self, refused: bool) {
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// The segments listed, including those that wait for their Swap, and the number from which on
    /// heads may not open another. Each needs space on the disk.
    pub fn room(&self) -> (u64, u64) {
        let limit = self.limit().saturating_sub(self.reserve());
        (self.taken_room(), limit)
    }

    /// Segments that heads leave free when they append data.
    fn reserve(&self) -> u64 {
        self.reserve_of_survivors() + self.reserve_of_removals()
    }

    /// Segments for survivors only: without them a full disk could never be cleaned. A pass that
    /// fills all of them but one frees a segment if a quarter of its victims' bytes is dead.
    fn reserve_of_survivors(&self) -> u64 {
        (self.limit() / 32).clamp(4, 8)
    }

    /// Segments for tombstones and survivors only. A restart closes open segments, so each head
    /// may need a segment for its first tombstone. The other ones bound the part of the disk that is
    /// dead when they are full: at least a 32nd, which merging passes can gather.
    fn reserve_of_removals(&self) -> u64 {
        (self.limit() / 32).max(1) + self.heads
    }

    /// True if a head may open another segment for this purpose.
    pub(crate) fn has_room(&self, purpose: Purpose) -> bool {
        self.taken_room() + self.spare(purpose) < self.limit_for(purpose)
    }

    /// Segments that are listed, and those that heads have taken room for.
    fn taken_room(&self) -> u64 {
        self.listed.load(Ordering::Relaxed) + self.aside.load(Ordering::Relaxed)
    }

    /// Takes room for a segment of a head (swap::D9). Returns false if there is none.
    pub(crate) fn take_room(&self, purpose: Purpose) -> bool {
        self.aside.fetch_add(1, Ordering::Relaxed);
        // Counted by now: this room, and the room of concurrent callers.
        let limit = self.limit_for(purpose);
        let has_room = self.taken_room() <= limit.saturating_sub(self.spare(purpose));
        if !has_room {
            self.give_back_room();
        }
        has_room
    }

    /// Gives room back: the segment is listed by now, or is not needed (swap::D9).
    pub(crate) fn give_back_room(&self) {
        let before = self.aside.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "room is given back only once (swap::D9)");
    }

    /// Segments that stay free when one is opened for this purpose.
    fn spare(&self, purpose: Purpose) -> u64 {
        match purpose {
            // A rewrite leaves the reserve too: the objects that it leaves dead are scattered, so
            // cleaning would gain little, and removals would find their room taken.
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.reserve(),
            Purpose::Tombstones => self.reserve_of_survivors(),
            Purpose::Survivor | Purpose::Compacted => 0,
        }
    }

    /// Maximum survivors of a pass.
    pub(crate) fn room_for_survivors(&self) -> u64 {
        self.limit_of_cleaning().saturating_sub(self.taken_room())
    }
}
