//! Bugs that tests plant to check that they are found. Without feature `planted` there are none.

/// A bug that was found in a paper or its code, or that we nearly made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 6: the head of a control log is recorded for a server that is not UP.
    HeadOfTheDead,
    /// Trap 7: tablets go to a recovery master that is not UP.
    OwnerNotUp,
    /// Trap 7: a report of an earlier attempt counts for this one.
    OldAttemptCounts,
    /// Outputs leave before their change is persisted.
    TellsBeforePersisting,
    /// A leader denies something unknown without asking the store whether it still leads.
    DeniesAtOnce,
    /// A server that comes back is added before its old id is crashed.
    AddedBeforeCrashed,
    /// A step of the server list is applied to any version.
    SkipsVersions,
    /// A dead server is removed from the list while tablets wait for its log.
    RemovedTooEarly,
    /// A listed segment without a replica is skipped.
    RecoversInParts,
    /// Open control segments below the recorded one count.
    OldControlHead,
    /// A closed control segment counts as the newest although its successor must exist.
    ClosedControlHead,
    /// A control segment counts as the log's end although a newer segment has data.
    LaterIgnored,
    /// Replicas of an open segment at an older replication epoch count.
    OldEpochs,
    /// A closed segment's replica counts with any certificate.
    AnyCertificate,
    /// New owners serve before the dead server's read lease has run out.
    LeaseIgnored,
    /// As before, by a new leader without the lease's length.
    LeaseForgotten,
    /// A new leader calls stale what its predecessor had persisted, and the owner drops it.
    CompletionForgotten,
    /// A migration ends at a target that is not UP.
    MigratedToTheDead,
    /// A migration's completion counts although the source was recovered meanwhile.
    MigrationOutlivesSource,
    /// Owners are sent changed tablets with a version that they already have.
    VersionReused,
    /// A second enlistment with the same request makes a second server.
    EnlistsTwice,
    /// A check of a suspect that was late itself declares it crashed.
    LateVerdict,
    /// Any failure of the coordinator's own connection is a sign that the server is dead.
    OwnFaultIsDeath,
    /// A leader that no server answers gives verdicts.
    JudgesAlone,
    /// A server that another one suspects is declared crashed without a check.
    SuspicionIsVerdict,
    /// A new table gets the id of a dropped one.
    IdsReused,
    /// The name of a dropped table is free before all UP servers have confirmed the drop.
    NameAtOnce,
}

/// The planted bug, if there is one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

impl Planted {
    /// Plants this one bug.
    #[cfg(feature = "planted")]
    pub fn one(bug: Bug) -> Planted {
        Planted { bug: Some(bug) }
    }

    /// True if this bug is planted; false at compile time without the feature.
    #[inline(always)]
    pub fn is(self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}
