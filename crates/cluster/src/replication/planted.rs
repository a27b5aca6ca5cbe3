//! Bugs that tests plant to check that they are found: each leaves out one condition of a rule.
//! Without feature `planted` there are none.

/// A violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// replication::O1: a segment is listed before it is open everywhere.
    ListedBeforeOpen,
    /// replication::O2: data do not wait for the `AddOpen` record.
    DataBeforeListed,
    /// replication::O3: data do not wait until the segment before is whole.
    DataBeforePredecessor,
    /// replication::O4: `Closed` is written when the segment ends, before its replicas are
    /// complete.
    ClosedBeforeWhole,
    /// replication::O5: a `Swap` does not wait for its survivors.
    SwapBeforeSurvivors,
    /// replication::O6, trap 2: victims are freed when the `Swap` record is written, not when it is
    /// synced.
    FreeBeforeSwap,
    /// replication::O7: a control segment begins although the one before it is not complete.
    RollBeforeComplete,
    /// replication::O7: a control segment is closed before the next one's snapshot is there.
    CloseBeforeSnapshot,
    /// replication::O7, and by it replication::O6's second half: records beyond the snapshot of a
    /// control segment are written before the one before it is closed.
    MoreBeforeClose,
    /// replication::O7: a control segment is freed before the next one is synced.
    FreeControlEarly,
    /// replication::O14: a record that is in no control segment counts.
    TooLongIsWritten,
    /// replication::O14: records that are only in a snapshot count while the control segment before
    /// it is open.
    SnapshotCountsBesideOlder,
    /// replication::O3: the record of the epoch of the segment before need not be synced.
    PredecessorMayShrink,
    /// replication::O8: replicas of an older epoch count.
    OldEpochCounts,
    /// replication::O8: a refilled replica counts before the `SegmentEpoch` record is synced.
    CountsBeforeEpoch,
    /// replication::O8: a replica is at a new epoch before it has everything.
    EpochBeforeAll,
    /// replication::O8: the segment's epoch stays when a replica is lost.
    EpochStays,
    /// replication::O8: a control segment that lost a replica continues with the remaining ones.
    ControlGoesOn,
    /// replication::O9: pinned segments are freed.
    PinnedFreed,
    /// replication::O10: a new control segment counts before the coordinator has noted it.
    FloorIgnored,
    /// replication::O12: a replica is dropped although its backup is not known under its new name.
    DroppedUnseen,
    /// replication::O11: lost replicas of a closed segment are not replaced.
    ClosedNotRefilled,
    /// A refused opening counts as one that never happened, although a repetition of it may have
    /// been accepted.
    RefusedForgotten,
    /// replication::O12: a refused backup frees its replica of a closed segment, though it may be
    /// the last one.
    LastFreed,
    /// A sync covers acknowledgements that arrived while it ran.
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
