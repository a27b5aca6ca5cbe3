//! Bugs that tests plant to see whether they would be found: each leaves out one condition of a
//! rule. Without feature `planted` there are none.

/// A rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// O1: a segment is listed before it is open everywhere.
    ListedBeforeOpen,
    /// O2: data do not wait for the `AddOpen` record.
    DataBeforeListed,
    /// O3: data do not wait for the segment before to be whole.
    DataBeforePredecessor,
    /// O4: `Closed` is written when the segment ends, whatever has arrived of it.
    ClosedBeforeWhole,
    /// O5: a `Swap` does not wait for its survivors.
    SwapBeforeSurvivors,
    /// O6, trap 2: victims are freed when the `Swap` record is written, not when it is synced.
    FreeBeforeSwap,
    /// O7: a control segment begins although the one before it is not complete.
    RollBeforeComplete,
    /// O7: a control segment is closed before the next one's snapshot is there.
    CloseBeforeSnapshot,
    /// O7, and by it O6's second half: a control segment is written on beyond its snapshot before
    /// the one before it is closed.
    MoreBeforeClose,
    /// O7: a control segment is freed before the next one is synced.
    FreeControlEarly,
    /// O14: a record that no control segment has counts.
    TooLongIsWritten,
    /// O14: what a snapshot has beyond the control segment before it counts while that one is open.
    SnapshotCountsBesideOlder,
    /// O3: the record of the epoch of the segment before need not be synced.
    PredecessorMayShrink,
    /// O8: replicas of an older epoch count.
    OldEpochCounts,
    /// O8: what was filled again counts before the `SegmentEpoch` record is synced.
    CountsBeforeEpoch,
    /// O8: a replica is at a new epoch before it has everything.
    EpochBeforeAll,
    /// O8: the segment's epoch stays when a replica is lost.
    EpochStays,
    /// O8: a control segment that lost a replica goes on with those that are left.
    ControlGoesOn,
    /// O9: what is pinned is freed.
    PinnedFreed,
    /// O10: what a new control segment says counts before the coordinator has noted it.
    FloorIgnored,
    /// O12: a replica is given up although its backup is not known under its new name.
    DroppedUnseen,
    /// O11: what a closed segment has lost is not made good for.
    ClosedNotRefilled,
    /// A refused opening is taken for one that never happened, although a repetition of it may
    /// have.
    RefusedForgotten,
    /// O12: a refused backup frees what it has of a closed segment, though others may not have it.
    LastFreed,
    /// A sync covers what was acknowledged while it ran.
    SyncCoversAll,
}

impl super::Config {
    /// True if this bug is planted; false at compile time without the feature.
    #[inline]
    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.planted == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}
