//! The number of segments that the disk has room for, and their reserves.
//!
//! **Invariants** swap::D9 and swap::D10: heads take room before they open a segment, and a log
//! that a start finds too long becomes shorter.

use super::Swaps;
use crate::space::Purpose;
use std::sync::atomic::Ordering;

impl Swaps {
    fn limit(&self) -> u64 {
        self.limit_max.min(self.disk_room.load(Ordering::Relaxed))
    }

    /// All segments that a restart found are listed (swap::D10).
    pub fn found(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.found.store(count, Ordering::Relaxed);
    }

    /// Maximum segments for survivors; for removals, less the reserve of survivors (swap::D10).
    fn limit_of_cleaning(&self) -> u64 {
        let room = self.room_max.min(self.disk_room.load(Ordering::Relaxed));
        let found = self.found.load(Ordering::Relaxed);
        self.limit().max(room.min(found + self.reserve()))
    }

    /// Maximum segments, for this purpose.
    fn limit_for(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.limit(),
            Purpose::Tombstones | Purpose::Survivor => self.limit_of_cleaning(),
            Purpose::Compacted => u64::MAX, // its segment is listed
        }
    }

    /// Sets the number of segments that the file system has space for.
    pub fn set_disk_room(&self, segments: u64) {
        self.disk_room.store(segments, Ordering::Relaxed);
    }

    /// True if the last refusal of a write had this cause: no space on disk for another segment.
    pub fn is_short_of_disk(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && !self.has_room(Purpose::Head)
    }

    /// Notes that a head got no segment for lack of disk space.
    pub fn refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// The listed segments, and the number from which on heads may not open another.
    pub fn room(&self) -> (u64, u64) {
        (
            self.taken_room(),
            self.limit().saturating_sub(self.reserve()),
        )
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
    pub fn has_room(&self, purpose: Purpose) -> bool {
        self.taken_room() + self.spare(purpose) < self.limit_for(purpose)
    }

    /// Segments that are listed, and those that heads have taken room for.
    pub fn taken_room(&self) -> u64 {
        self.count.load(Ordering::Relaxed) + self.aside.load(Ordering::Relaxed)
    }

    /// Takes room for a segment of a head (swap::D9); false: there is none.
    pub fn take_room(&self, purpose: Purpose) -> bool {
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
    pub fn give_back_room(&self) {
        let before = self.aside.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "room is given back only once (swap::D9)");
    }

    /// Segments that stay free when one is opened for this purpose.
    fn spare(&self, purpose: Purpose) -> u64 {
        match purpose {
            // A rewrite too: the objects that it leaves dead are scattered, so cleaning would gain
            // little, and removals would find their room taken.
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.reserve(),
            Purpose::Tombstones => self.reserve_of_survivors(),
            Purpose::Survivor | Purpose::Compacted => 0,
        }
    }

    /// Maximum survivors of a pass.
    pub fn room_for_survivors(&self) -> u64 {
        self.limit_of_cleaning().saturating_sub(self.taken_room())
    }
}
