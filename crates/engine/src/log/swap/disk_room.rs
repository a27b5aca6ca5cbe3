//! For how many segments the disk has room, and who may take it.
//!
//! **Invariants** D9 and D10 of `swap`: heads take room before they open a segment, and a log that
//! was found too long becomes shorter.

use super::Swaps;
use crate::space::Purpose;
use std::sync::atomic::Ordering;

impl Swaps {
    fn limit(&self) -> u64 {
        self.limit_max.min(self.disk_room.load(Ordering::Relaxed))
    }

    /// What a restart found is listed by now (D10).
    pub fn found(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.found.store(count, Ordering::Relaxed);
    }

    /// Segments that survivors may fill, and removals but for the reserve of survivors (D10).
    fn limit_of_cleaning(&self) -> u64 {
        let room = self.room_max.min(self.disk_room.load(Ordering::Relaxed));
        let found = self.found.load(Ordering::Relaxed);
        self.limit().max(room.min(found + self.reserve()))
    }

    /// As many as there may be of a purpose.
    fn limit_for(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.limit(),
            Purpose::Tombstones | Purpose::Survivor => self.limit_of_cleaning(),
            Purpose::Compacted => u64::MAX, // its segment is listed
        }
    }

    /// The disk has space for so many segments, however many there may be.
    pub fn set_disk_room(&self, segments: u64) {
        self.disk_room.store(segments, Ordering::Relaxed);
    }

    /// True if writes were refused last because the disk has no space for another segment.
    pub fn is_short_of_disk(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && !self.has_room(Purpose::Head)
    }

    /// A head got no segment, for want of disk.
    pub fn refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Segments listed, and the number at which heads may not open another.
    pub fn room(&self) -> (u64, u64) {
        (
            self.taken_room(),
            self.limit().saturating_sub(self.reserve()),
        )
    }

    /// Segments that heads leave free when they add data.
    fn reserve(&self) -> u64 {
        self.reserve_of_survivors() + self.reserve_of_removals()
    }

    /// Segments that only survivors may take: without them a full disk could never be cleaned. A
    /// pass of this many less one gains where a quarter of its victims is dead.
    fn reserve_of_survivors(&self) -> u64 {
        (self.limit() / 32).clamp(4, 8)
    }

    /// A restart closes what is open, so each head may need a segment for its first tombstone. With
    /// one more there are two short ones when all are taken, and the cleaner makes one of them.
    fn reserve_of_removals(&self) -> u64 {
        (self.limit() / 32).max(1) + self.heads
    }

    /// True if a head may open another segment for this purpose.
    pub fn has_room(&self, purpose: Purpose) -> bool {
        self.taken_room() + self.spare(purpose) < self.limit_for(purpose)
    }

    /// Segments listed, and those that heads have taken room for.
    pub fn taken_room(&self) -> u64 {
        self.count.load(Ordering::Relaxed) + self.aside.load(Ordering::Relaxed)
    }

    /// Takes room for a segment of a head (D9); false: there is none.
    pub fn take_room(&self, purpose: Purpose) -> bool {
        self.aside.fetch_add(1, Ordering::Relaxed);
        // Own room is counted by now, and so is that of others who ask at the same time.
        let limit = self.limit_for(purpose);
        let has_room = self.taken_room() <= limit.saturating_sub(self.spare(purpose));
        if !has_room {
            self.give_back_room();
        }
        has_room
    }

    /// The segment is listed by now, or is not needed (D9).
    pub fn give_back_room(&self) {
        let before = self.aside.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "room that nobody took (D9)");
    }

    /// Segments that are left free by who opens one for this purpose.
    fn spare(&self, purpose: Purpose) -> u64 {
        match purpose {
            // A rewrite too: it leaves an object dead, but these lie scattered, and cleaning would
            // gain nothing while removals find their room taken.
            Purpose::Head | Purpose::Rewrite | Purpose::Side | Purpose::Promoted => self.reserve(),
            Purpose::Tombstones => self.reserve_of_survivors(),
            Purpose::Survivor | Purpose::Compacted => 0,
        }
    }

    /// Survivors that a pass may open at most.
    pub fn room_for_survivors(&self) -> u64 {
        self.limit_of_cleaning().saturating_sub(self.taken_room())
    }
}
