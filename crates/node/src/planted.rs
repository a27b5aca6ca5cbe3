//! Bugs that tests plant to see whether they would be found. Without feature `planted` there are
//! none.

/// A rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// N2: what a list takes away is not purged.
    NoPurge,
    /// N3: what a list gives is served before it is made so.
    EarlyServing,
    /// N5, D2: who is not UP goes on serving.
    ServesAfterEnd,
    /// N6: an earlier leader is obeyed.
    OldLeaderObeyed,
    /// N7: what moves in is laid over what was here before.
    NotEmptied,
    /// N8: a list that says nothing new of it lets go what is locked.
    LockLetGo,
    /// Q3: a lease counts from when its question was sent last.
    LateLease,
    /// Q8: a backup that runs, but stores nothing, is waited for.
    SilentWaited,
    /// R3: a partition that belongs to somebody else stays.
    StaleStays,
    /// R4: a list that does not know a table yet drops it beneath a replay.
    TablesNotHeld,
    /// R6: what came of an attempt that was given up counts.
    OldPiecesCount,
    /// B6: a lease begins with the answer, not with what was received.
    LeaseWithAnswer,
    /// B7: a control segment that was freed is opened again by a late copy.
    FreedControlOpens,
    /// B10: an opening that was refused is taken when it comes again.
    RefusedOpeningTaken,
    /// B8: what has changed since its master was asked goes all the same.
    HandBackUncompared,
    /// U1: an answer to an earlier question counts.
    LateAnswerCounts,
    /// U2: a log that the list here does not name is dropped, though it may be newer than the list.
    UnknownIsGone,
    /// M1: the source of a migration serves on after its last look at what was written.
    SourceServesOn,
    /// M1: any newer list ends the lock.
    AnyListUnlocks,
    /// M3: the last message is taken for all of them.
    LastIsEnough,
    /// M3: complete, it is said, before it is durable.
    ReportedBeforeDurable,
    /// V1: the target serves as soon as it has everything.
    ServedBeforeListed,
    /// M6: the target does not hear which versions were given.
    SafeVersionStays,
    /// M7: completion records stay at the source.
    RecordsStay,
    /// What is written beside the copying is sent once, and not what is written beside that.
    RoundsAreLost,
    /// E1: a recovery under way does not count as something of its range.
    RunIsNotHere,
    /// E1: a purge does not.
    PurgeIsNotHere,
    /// E1: a side log that is being taken back does not.
    LeftoverIsNotHere,
    /// N7: what a recovery left of a range that is to come by a migration is not purged.
    IncomingStays,
    /// N9: a range that comes back is served though it waits to be purged.
    PurgedComesBack,
    /// N9: what a recovery leaves behind while its range is being purged counts as purged with it.
    OnePurgeIsEnough,
    /// The source purges when the target has answered the last message.
    PurgedEarly,
    /// M1: the source serves again when it has waited long enough.
    TimeUnlocks,
    /// M8: a target that has refused says later that it is complete.
    RefusesAndReports,
}

/// The bug that is planted, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planted(#[cfg(feature = "planted")] Option<Bug>);

impl Planted {
    #[cfg(feature = "planted")]
    pub(crate) fn one(bug: Bug) -> Planted {
        Planted(Some(bug))
    }

    /// False at compile time without the feature.
    #[inline(always)]
    pub(crate) fn is(self, bug: Bug) -> bool {
        #[cfg(feature = "planted")]
        return self.0 == Some(bug);
        #[cfg(not(feature = "planted"))]
        {
            let _ = bug;
            false
        }
    }
}

#[cfg(feature = "planted")]
impl crate::Node {
    /// From now on with this bug; what concerns a whole life, from the next life on.
    pub fn plant(&mut self, bug: Bug) {
        self.planted = Planted::one(bug);
        self.member.plant(bug);
    }
}
