//! Bugs that tests plant to see whether they would be found. Without feature `planted` there are
//! none, but for random schedules.

/// A way to get it wrong that a paper or its code has been caught with.
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
    /// Trap 3: a Swap does not wait for what killed the objects that the pass dropped.
    SwapBeforeReasons,
    /// Trap 8: the loader passes over what is damaged.
    DamageIsSkipped,
    /// Trap 9: a Swap does not wait for its survivors' frames.
    SwapBeforeFrames,
    /// Dead objects leave no tombstone when they are cleaned.
    NotMaterialised,
    /// A restart forgets what has expired before it has kept older versions away.
    ExpiredIsForgotten,
    /// A restart takes every tombstone for one that nothing of another segment depends on.
    EveryTombstoneIsSpare,
    /// A side log forgets a tombstone for which it has no object yet.
    SideForgetsTombstones,
    /// In a side log what comes last wins, whatever its version.
    SideLastWins,
    /// What a side log replaces is not named by what replaces it.
    SideNamesNoVictim,
    /// A cleaner takes segments of a side log before they are part of the log.
    SideIsCleaned,
    /// A segment of a side log leaves memory before its bytes are anywhere else.
    UnwrittenLeavesMemory,
    /// A side log that is given up takes back only what is in memory.
    AbortForgetsCold,
    /// A side log looks for what it replaces in memory alone.
    SideForgetsCold,
    /// A purge passes over what its step did not reach at once.
    PurgeSkips,
    /// Walks pass over what is on flash.
    WalkLeavesColdOut,
    /// What has expired is shown until a cleaner meets it.
    ExpiredIsShown,
    /// A segment on flash that cannot be read is taken for an empty one.
    UnreadIsEmpty,
    /// After the lock of a range nobody waits for writes that were allowed before.
    QuiesceDoesNotWait,
    /// A watch does not see removals.
    RemovalsAreNotMarked,
    /// A watch sees what is written or removed before anybody else can.
    MarkedBeforeSeen,
}

/// The bug that is planted, if any.
#[derive(Default)]
pub(super) struct Planted {
    #[cfg(any(feature = "planted", shuttle))]
    bug: std::sync::OnceLock<Bug>,
}

impl Planted {
    #[inline(always)]
    pub(super) fn is(&self, bug: Bug) -> bool {
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
