//! Bugs that tests plant to prove that they find them. Without feature `planted` there are none,
//! except in random schedules.

/// A mistake, most of them taken from a paper or its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 4: a reply that shows an entry does not wait for it.
    HitsDoNotWait,
    /// Trap 4: a reply that says "absent" does not wait for the removal.
    MissesDoNotWait,
    /// Trap 5: an entry follows a predecessor in another head that can still be lost.
    AnyHead,
    /// Removals of an open group are known before it ends, so that others wait for a group that may
    /// be waiting for them.
    RemovalsShownEarly,
    /// Entries of a transaction may be collected one by one.
    GroupsInParts,
    /// Trap 3: a Swap does not wait for the killers of the objects that the pass dropped.
    SwapBeforeReasons,
    /// Trap 8: the loader skips damaged data.
    DamageIsSkipped,
    /// Trap 9: a Swap does not wait for its survivors' frames.
    SwapBeforeFrames,
    /// Dead objects leave no tombstone when they are cleaned.
    NotMaterialised,
    /// A restart forgets an expired object before that object has kept older versions away.
    ExpiredIsForgotten,
    /// A restart treats every tombstone as one that nothing in another segment depends on.
    EveryTombstoneIsSpare,
    /// A side log drops a tombstone for which it has no object yet.
    SideForgetsTombstones,
    /// In a side log the last entry wins, whatever its version.
    SideLastWins,
    /// An entry of a side log does not name the victim that it replaces.
    SideNamesNoVictim,
    /// A cleaner takes segments of a side log before they are part of the log.
    SideIsCleaned,
    /// A segment of a side log leaves memory before its bytes are stored elsewhere.
    UnwrittenLeavesMemory,
    /// A side log that is given up removes only its entries in memory from the index.
    AbortForgetsCold,
    /// A side log looks for the entries that it replaces in memory alone.
    SideForgetsCold,
    /// A purge skips entries that its step did not reach at once.
    PurgeSkips,
    /// Walks skip entries on flash.
    WalkLeavesColdOut,
    /// Expired objects are shown until a cleaner meets them.
    ExpiredIsShown,
    /// A segment on flash that cannot be read is treated as empty.
    UnreadIsEmpty,
    /// After the lock of a range, no thread waits for writes that were allowed before.
    QuiesceDoesNotWait,
    /// A watch does not see removals.
    RemovalsAreNotMarked,
    /// A watch sees a write or a removal before any other thread can.
    MarkedBeforeSeen,
}

/// The bug that is planted, if any.
#[derive(Default)]
pub(crate) struct Planted {
    #[cfg(any(feature = "planted", shuttle))]
    bug: std::sync::OnceLock<Bug>,
}

impl Planted {
    #[inline(always)]
    pub(crate) fn is(&self, bug: Bug) -> bool {
        #[cfg(any(feature = "planted", shuttle))]
        return self.bug.get() == Some(&bug);
        #[cfg(not(any(feature = "planted", shuttle)))]
        {
            let _ = bug;
            false
        }
    }
}

impl super::Log {
    /// True if this bug is planted; false at compile time in other builds.
    #[inline(always)]
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.planted.is(bug)
    }

    /// Makes the log wrong in this way from now on.
    #[cfg(any(feature = "planted", shuttle))]
    pub fn plant(&self, bug: Bug) {
        assert!(self.planted.bug.set(bug).is_ok(), "one bug at a time");
    }
}
