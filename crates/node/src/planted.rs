//! Bugs that tests plant to check that they are found. Without feature `planted` there are none.

/// A violation of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// member::N2: ranges that a list takes away are not purged.
    NoPurge,
    /// member::N3: ranges that a list gives are served before it is applied.
    EarlyServing,
    /// member::N5, node::D2: a server that is not UP continues to serve.
    ServesAfterEnd,
    /// member::N6: an earlier leader's messages are applied.
    OldLeaderObeyed,
    /// owned::N7: incoming data are added to older data of the range.
    NotEmptied,
    /// owned::N8: a list without news about a locked range ends the lock.
    LockLetGo,
    /// remote::Q3: a lease counts from the last time that its request was sent.
    LateLease,
    /// remote::Q8: a backup that runs, but stores nothing, is waited for.
    SilentWaited,
    /// recovery::R3: a partition of another owner stays.
    StaleStays,
    /// recovery::R4: a list without a new table drops it during a replay.
    TablesNotHeld,
    /// recovery::R6: results of an attempt that was given up count.
    OldPiecesCount,
    /// backup_service::B6: a lease begins with the answer, not with the received bytes.
    LeaseWithAnswer,
    /// backup_service::B7: a late copy opens a freed control segment again.
    FreedControlOpens,
    /// backup_service::B10: a refused opening is accepted when it arrives again.
    RefusedOpeningTaken,
    /// backup_service::B8: a replica that changed after the request is dropped all the same.
    HandBackUncompared,
    /// needed::U1: an answer to an earlier request counts.
    LateAnswerCounts,
    /// needed::U2: a log that is not in the list here is dropped, though it may be newer than the
    /// list.
    UnknownIsGone,
    /// migration::M1: the source of a migration continues to serve after its last check of the
    /// written keys.
    SourceServesOn,
    /// migration::M1: any newer list ends the lock.
    AnyListUnlocks,
    /// migration::M3: the last message is taken for all of them.
    LastIsEnough,
    /// migration::M3: the target reports that it is complete before the data are durable.
    ReportedBeforeDurable,
    /// view::V1: the target serves as soon as it has everything.
    ServedBeforeListed,
    /// migration::M6: the target is not sent the versions that were given.
    SafeVersionStays,
    /// migration::M7: completion records stay at the source.
    RecordsStay,
    /// Keys written during the copying are sent once, and not those written during that.
    RoundsAreLost,
    /// here::E1: a running recovery does not count as part of its range.
    RunIsNotHere,
    /// here::E1: a purge does not.
    PurgeIsNotHere,
    /// here::E1: a side log that is being taken back does not.
    LeftoverIsNotHere,
    /// owned::N7: a recovery's leftover of a range that is to come by a migration is not purged.
    IncomingStays,
    /// owned::N9: a range that comes back is served while it waits to be purged.
    PurgedComesBack,
    /// owned::N9: a recovery's leftover counts as purged by a purge of its range that was already
    /// running.
    OnePurgeIsEnough,
    /// The source purges when the target has answered the last message.
    PurgedEarly,
    /// migration::M1: the source serves again after a certain wait.
    TimeUnlocks,
    /// migration::M8: a target that has refused reports later that it is complete.
    RefusesAndReports,
}

/// The planted bug, if there is one.
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
