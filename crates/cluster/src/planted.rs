//! Bugs that tests plant to see whether they would be found. Without feature `planted` there are
//! none.

/// A way to get it wrong that a paper or its code has been caught with, or that we were close to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 6: the head of a control log is recorded for a server that is not UP.
    HeadOfTheDead,
    /// Trap 7: tablets go to a recovery master that is not UP.
    OwnerNotUp,
    /// Trap 7: what an earlier attempt reports counts for this one.
    OldAttemptCounts,
    /// Others are told before it is persisted.
    TellsBeforePersisting,
    /// What a leader does not know it denies without asking the store whether it still leads.
    DeniesAtOnce,
    /// A server that comes back is added before its old id is crashed.
    AddedBeforeCrashed,
    /// A step of the server list is applied whatever version came before.
    SkipsVersions,
    /// A dead server is removed from the list while tablets wait for its log.
    RemovedTooEarly,
    /// A listed segment without a replica is passed over.
    RecoversInParts,
    /// Open control segments below the recorded one count.
    OldControlHead,
    /// A closed control segment counts as the newest although its successor must exist.
    ClosedControlHead,
    /// A control segment counts as the log's end although a newer segment has data.
    LaterIgnored,
    /// Replicas of an open segment at an older replication epoch count.
    OldEpochs,
    /// A closed segment's replica counts whatever its certificate is.
    AnyCertificate,
    /// New owners serve before the dead server's read lease has run out.
    LeaseIgnored,
    /// As before, by a new leader that does not know of the lease.
    LeaseForgotten,
    /// A new leader calls stale what its predecessor had persisted, and the owner drops it.
    CompletionForgotten,
    /// A migration ends at a target that is not UP.
    MigratedToTheDead,
    /// A migration's completion counts although the source was recovered meanwhile.
    MigrationOutlivesSource,
    /// Tablets are told to owners in a version that they have already.
    VersionReused,
    /// A second enlistment with the same request makes a second server.
    EnlistsTwice,
    /// A check of a suspect that was late itself calls it crashed.
    LateVerdict,
    /// Any failure of the coordinator's own connection is a sign that the server is dead.
    OwnFaultIsDeath,
    /// A leader that hears nobody gives verdicts.
    JudgesAlone,
    /// Who is suspected by another server is crashed: nobody asks it.
    SuspicionIsVerdict,
    /// A table that is made has the id of one that was dropped.
    IdsReused,
    /// The name of a dropped table is free before everybody who is UP has heard of it.
    NameAtOnce,
}

/// The bug that is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

impl Planted {
    /// This one bug.
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
