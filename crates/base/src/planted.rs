//! Bugs that tests plant to prove that they find them: one list and one mechanism for all crates.
//!
//! A test plants a bug in its thread; product code asks [`has_bug`] at the place of the mistake.
//! Release builds (and others without debug assertions, except those of model checkers) have no
//! bugs: [`has_bug`] is false at compile time.

pub use imp::Planted;

use std::fmt::Debug;

/// A mistake: most of them are taken from a paper or its code, others leave out one condition of a
/// rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    // In several crates: the same mistake in each of them.
    /// Trap 8: damaged data is skipped: bytes that do not match their certificate are returned, the
    /// loader ends a segment at its first bad entry, and a restart leaves damaged segments out.
    DamageIsSkipped,
    /// replication::O6, trap 2: victims are freed when the `Swap` record is proposed or written,
    /// although it is not synced and may still be lost.
    FreeBeforeSwap,
    /// An old control segment counts as the newest: on one disk the oldest, in a cluster open ones
    /// below the recorded one.
    OldControlHead,
    /// part::K1: a part goes to the owner of its key's hash, not of its home.
    PartRoutesByKey,

    // duramen-engine: the log in memory, its cleaner, its levels.
    /// table::T4: a clear takes the objects of a table and leaves its parts.
    ClearLeavesParts,
    /// A side log is given up although its Swap was handed to the consumer.
    WithdrawnAfterHanded,
    /// Trap 4: a reply that shows an entry does not wait for it.
    HitsDoNotWait,
    /// Trap 4: a reply that says "absent" does not wait for the removal.
    MissesDoNotWait,
    /// Trap 5: an entry follows a predecessor in another head that can still be lost.
    AnyHead,
    /// waits::W4: the thread that serves commits waits for heads, whose holders may be waiting for
    /// a commit.
    RollsOnNodeThread,
    /// Removals of an open group are known before it ends, so that others wait for a group that may
    /// be waiting for them.
    RemovalsShownEarly,
    /// Entries of a transaction may be collected one by one.
    GroupsInParts,
    /// room::R3: a group in a member's log does not move to the next segment as a whole when its
    /// own is full: its first entries stay behind.
    GroupsOverSegments,
    /// Trap 3: a Swap does not wait for the killers of the objects that the pass dropped.
    SwapBeforeReasons,
    /// Trap 9: a Swap does not wait for its survivors' frames.
    SwapBeforeFrames,
    /// Dead objects leave no tombstone when they are cleaned.
    NotMaterialised,
    /// core::doubt::DC1: an object leaves the index without a trace by a clock that has jumped
    /// ahead.
    ClockBelieved,
    /// core::doubt::DC4: keys that are written after the clock was set back do not name the objects
    /// that had expired by it.
    SetBackUnseen,
    /// A restart forgets an expired object before that object has kept older versions away.
    ExpiredIsForgotten,
    /// A restart treats every tombstone as one that nothing in another segment depends on.
    EveryTombstoneIsSpare,
    /// load::R9: a tombstone leaves the index when it meets its victim, although it has won over
    /// another tombstone of its key whose victim is still to come.
    TombstoneLeavesEarly,
    /// load::R11: a write over an object gets the version after that of the object, whatever else
    /// was loaded.
    LoadLeavesVersions,
    /// A side log drops a tombstone for which it has no object yet.
    SideForgetsTombstones,
    /// In a side log the last entry wins, whatever its version.
    SideLastWins,
    /// side::S7: an entry is skipped if the next one is of the same key, whatever its version.
    SkipsByPlace,
    /// An entry of a side log does not name the victim that it replaces.
    SideNamesNoVictim,
    /// A cleaner takes segments of a side log before they are part of the log.
    SideIsCleaned,
    /// given_up::GU4: a pass takes a segment whose compaction was given up.
    StoppedIsCleaned,
    /// levels::V1: a victim that was filled again since it was looked at is claimed.
    ClaimedUnseen,
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
    /// epoch::E3: while no session is inside, all retired memory counts as having no readers,
    /// whenever it was retired.
    QuietWithoutBound,
    /// index::bucket::B3: a walk shows slots that a transaction has set and that has not ended.
    WalksShowHalves,

    /// sound::V1: a cleaner moves, drops and buries entries that it has not verified.
    CopiesUnverified,
    /// sound::V1: an object expires by a time of expiry that was not verified.
    ExpiresUnverified,
    /// sound::V1: a purge decides by keys that it has not verified.
    PurgesUnverified,
    /// sound::V1: a replay decides by entries of the index that it has not verified.
    RivalsUnverified,
    /// sound::V1: entries of a side log that is given up are taken out of the index by keys that
    /// were not verified.
    AbortsUnverified,
    /// verified::V5: a read shows an object without a look at its sum.
    ReadsUnverified,
    /// verified::V3: an entry with a key's tag and another key is not verified.
    MissesUnverified,
    /// verified::V7: a search passes over a slot of the index in which a bit has flipped.
    SlotsUnverified,
    /// verified::V4: a write continues from a version that it has not verified.
    VersionsUnverified,
    /// verified::V8: a long entry that was verified under one pin is not verified under the next.
    SumsOutlivePins,
    /// mended::M1: a segment goes to flash without being verified.
    DamageGoesToFlash,
    /// remote::Q11: a backup that gets damaged bytes is lost.
    DamageLosesBackups,
    /// recovery::damaged::D2: a recovery leaves lost data out although no operator has accepted the
    /// loss.
    AcceptsUnasked,
    /// A message with damaged bytes ends a move.
    DamageEndsMove,
    /// sound::V1: an export gives a good checksum to an entry that it has not verified.
    ExportsUnverified,
    /// background::B3: a survivor gets its certificate and its swap without being verified.
    SwapBeforeVerified,
    /// load::R2: one flipped bit of an entry that was certified with it stops a start.
    OneBitStopsLoad,

    // duramen-backup: the write-ahead log and the frames of one device.
    /// Trap 10: the frame's certificate is overwritten in place instead of alternating between two
    /// slots.
    SlotInPlace,
    /// Trap 10: the certificate is written without waiting for the data that it certifies.
    SlotBeforeData,
    /// Trap 11: a close is acknowledged from memory.
    CloseFromMemory,
    /// Space of the write-ahead log is used again before the new tail is durable.
    TrimBeforeHeader,
    /// ring::G4: a commit is placed where the write-ahead log's file has no space yet.
    CommitBeyondSpace,
    /// A failed sync is tried again, and the second success counts.
    SyncAgain,
    /// A start after an unclean end reads the page cache, which may hold what a failed sync left.
    StaleCache,
    /// Commits after one that can't be read are never searched.
    NoLookAhead,
    /// A commit for which the disk had no room counts as done.
    FullIsStored,
    /// The fence of a log is dropped with the last of its replicas.
    FenceForgotten,

    // duramen: the store of one server.
    /// Trap 1: a restart replays every replica on the disk, listed or not.
    ReplayEverything,
    /// Written data counts as synced.
    AnswerBeforeSync,
    /// accepted::Z1: any loss counts as accepted once one was.
    AcceptsMore,
    /// accepted::Z2: older versions of lost entries are shown.
    OlderIsShown,
    /// accepted::Z4: entries that name a damaged segment are dropped once that segment is replaced.
    LostNamesForgotten,
    /// accepted::Z5: an open segment ends where an older slot says.
    EndIsBelieved,
    /// recovery::damaged::D4: a replica without its newest slot is the whole segment.
    ShorterCounts,
    /// snapshot::N4: a snapshot copies entries that a start would refuse.
    CopiesDamage,

    /// read::D1: a replica with one flipped bit is lost as a whole.
    OneBitLosesReplica,
    /// read::D1: a replica that was mended counts although it does not match its certificate.
    MendsUnproved,
    /// many::M3: one flipped bit of an entry that was certified with it stops a recovery.
    OneBitStopsRecovery,
    /// scan::S1: one flipped bit of a commit that was durable ends the write-ahead log.
    FlippedIsTorn,
    /// rebuild::U5: one flipped bit of a frame's newest slot loses the replica.
    FlippedSlotIsLost,

    // duramen-cluster: the coordinator, the server list and recovery.
    /// Trap 6: the head of a control log is recorded for a server that is not UP.
    HeadOfTheDead,
    /// Trap 7: tablets go to a recovery master that is not UP.
    OwnerNotUp,
    /// Trap 7: a report of an earlier attempt counts for this one.
    OldAttemptCounts,
    /// recovery::Y7: a report counts although its partition was taken back: its sender drops the
    /// tablets that it is about to own.
    TakenBackCounts,
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
    /// A closed control segment counts as the newest although its successor must exist.
    ClosedControlHead,
    /// A control segment counts as the log's end although a newer segment has data.
    LaterIgnored,
    /// A restarted backup's replica of an open segment counts at once as the newest.
    FirstCopyCounts,
    /// Replicas of an open segment at an older replication epoch count.
    OldEpochs,
    /// A closed segment's replica counts with any certificate.
    AnyCertificate,
    /// New owners serve before the dead server's read lease has run out.
    LeaseIgnored,
    /// New owners serve before the read lease has run out, under a new leader that does not know
    /// its length, or when the next owner has died too.
    LeaseForgotten,
    /// The loads by which a recovery is partitioned end with their leader.
    LoadsNotStored,
    /// recovery::Y4: partitions are given to masters without room.
    RoomIsIgnored,
    /// recovery::Y5: the room of a machine that has come back is given to other logs.
    HomeRoomGiven,
    /// recovery::Y6: partitions are given although backups have no frames for their copies.
    FramesIgnored,
    /// even::E1: moves for the balance take all that two servers differ by.
    BalanceSwings,
    /// balance::N1: tablets are balanced while dead servers' data waits.
    BalancesAlways,
    /// rooms::Q1: what a master has recovered counts beside a report that contains it.
    DoneCountsTwice,
    /// A new leader calls stale what its predecessor had persisted, and the owner drops it.
    CompletionForgotten,
    /// A migration ends at a target that is not UP.
    MigratedToTheDead,
    /// A migration's completion counts although the source was recovered meanwhile.
    MigrationOutlivesSource,
    /// A drained server's tablet whose move was given up is not tried again.
    DrainForgotten,
    /// Owners are sent changed tablets with a version that they already have.
    VersionReused,
    /// A second enlistment with the same request makes a second server.
    EnlistsTwice,
    /// A check of a suspect that was late itself declares it crashed.
    LateVerdict,
    /// Lost copies that are made anew take the last frames of a backup.
    RefillsTakeAll,
    /// The coordinator waits for each answer as long as configured, and forgets late ones.
    PatienceIsFixed,
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

    // duramen-cluster: replication; each leaves out one condition of a rule.
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
    /// replication::O7: a control segment begins although the one before it is not complete.
    RollBeforeComplete,
    /// replication::O7: a control segment is closed before the next one's snapshot is there.
    CloseBeforeSnapshot,
    /// replication::O7, and by it replication::O6's second half: records beyond the snapshot of a
    /// control segment are written before the one before it is closed.
    MoreBeforeClose,
    /// replication::O7: a control segment is freed before the next one is synced.
    FreeControlEarly,
    /// replication::O14: a record counts although no control segment has it.
    TooLongIsWritten,
    /// replication::O14: records that are only in a snapshot count while the control segment before
    /// it is open.
    SnapshotCountsBesideOlder,
    /// replication::O15: a pass is not announced for a victim that is listed later.
    LaterVictimsForgotten,
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
    /// Copies of closed segments count as calls with data, and use up all calls that may carry
    /// data.
    CopiesCrowdWrites,
    /// replication::O11: copies stay planned on a backup that refuses copies, while another backup
    /// takes them.
    RefusedPlansStay,
    /// replica_gc::U4: a backup does not tell the master that a replica was found damaged.
    DamageStays,
    /// A refused opening counts as one that never happened, although a repetition of it may have
    /// been accepted.
    RefusedForgotten,
    /// replication::O12: a refused backup frees its replica of a closed segment, though it may be
    /// the last one.
    LastFreed,
    /// replication::O12: a backup frees its lost replica of an open segment, though it may be the
    /// last one.
    LastOpenFreed,
    /// replication::O12: a replica counts again, though its backup was sent another one since.
    SentAnewCounts,
    /// A sync covers acknowledgements that arrived while it ran.
    SyncCoversAll,

    // duramen-cluster: exactly-once execution of requests.
    /// rifl::L1: a repetition that arrives during the first execution is executed as well.
    InProgressRunsAgain,
    /// rifl::L3: a request that the client has acknowledged is executed again when it arrives once
    /// more.
    AcknowledgedRunsAgain,
    /// rifl::L4: the cleaner drops records that the client has not acknowledged.
    CleanerForgets,
    /// rifl::L5: a client whose lease has ended is served as a new one.
    NoLeaseCheck,
    /// rifl::L6: records stay behind when their tablet moves.
    RecordsStayBehind,
    /// rifl::L7: a record that was found in a log does not count.
    LogForgotten,
    /// rifl::L8: a client is dropped while its lease continues.
    ForgetsTheLiving,
    /// rifl::L9: the closer a lease is to its end, the sooner the coordinator is asked about it
    /// again.
    AsksEverSooner,

    // duramen-node: members, their recoveries and migrations.
    /// builds::BU1: a survivor that was built counts, whatever its certificate is.
    BuildsUnverified,
    /// builds::BU1: a survivor is built from replicas with other certificates.
    BuildsFromStale,
    /// builds::BU2: a survivor that was built counts before it is stored.
    BuiltNotStored,
    /// member::N2: ranges that a list takes away are not purged.
    NoPurge,
    /// member::N3: ranges that a list gives are served before it is applied.
    EarlyServing,
    /// member::N5, node::D2: a server that is not UP continues to serve.
    ServesAfterEnd,
    /// member::N6: an earlier leader's messages are applied.
    OldLeaderObeyed,
    /// assignment::N7: incoming data are added to older data of the range.
    NotEmptied,
    /// assignment::N8: a list without news about a locked range ends the lock.
    LockLetGo,
    /// remote::Q3: a lease counts from the last time that its request was sent.
    LateLease,
    /// remote::Q8: a backup that runs, but stores nothing, is waited for.
    SilentWaited,
    /// remote::Q9: a backup that stores much more slowly than the others sets the pace.
    SlowWaited,
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
    /// replica_gc::U1: an answer to an earlier request counts.
    LateAnswerCounts,
    /// replica_gc::U2: a log that is not in this server's list is dropped, though it may be newer
    /// than the list.
    UnknownIsGone,
    /// older::A1: a log of a server that the store never gave an id counts as gone.
    NeverGivenIsGone,
    /// older::A3: a crashed life is recovered although a later one has written since, which the
    /// coordinator's store never knew.
    FormerLifeServes,
    /// migration::M1: the source of a migration continues to serve after its last check of the
    /// written keys.
    SourceServesOn,
    /// migration::M1: any newer list ends the lock when it is applied.
    AnyListUnlocks,
    /// migration::M3: when the last message has arrived, all messages count as arrived.
    LastIsEnough,
    /// migration::M3: the target reports that it is complete before the data are durable.
    ReportedBeforeDurable,
    /// view::V1: the target serves as soon as it has everything.
    ServedBeforeListed,
    /// migration::M6: the target is not sent the versions that were given.
    SafeVersionStays,
    /// migration::M7: completion records stay at the source.
    RecordsStay,
    /// Keys written between the last round and the lock are not sent.
    RoundsAreLost,
    /// occupancy::E1: a running recovery does not count as part of its range.
    RunIsNotHere,
    /// occupancy::E1: a purge does not count as part of its range.
    PurgeIsNotHere,
    /// occupancy::E1: a side log that is being taken back does not count as part of its range.
    LeftoverIsNotHere,
    /// assignment::N7: a recovery's leftover of a range that is to come by a migration is not
    /// purged.
    IncomingStays,
    /// assignment::N9: a range that comes back is served while it waits to be purged.
    PurgedComesBack,
    /// assignment::N9: a recovery's leftover counts as purged by a purge of its range that was
    /// already running.
    OnePurgeIsEnough,
    /// The source purges when the target has answered the last message.
    PurgedEarly,
    /// migration::M1: the source serves again after a certain wait.
    TimeUnlocks,
    /// migration::M8: a target that has refused reports later that it is complete.
    RefusesAndReports,

    // duramen-redis: turns, steps on drafts.
    /// pace::P1: a turn does not end before its group.
    TurnsHaveNoEnd,
    /// interpreters::S2: any number of scripts is suspended, each with an interpreter.
    ScriptsNeedNoPlace,
    /// computed::C1: the result of values that have changed is stored.
    StaleResultIsStored,
    /// computed::C4: what a request has kept between two parts stays when the request has ended.
    ProgressOutlivesRequests,
    /// verified::V6: with `verify-reads` off, what decides a write is not verified.
    DecisionsUnverified,
    /// verified::V5: a step on several keys meets a damaged one behind its first write.
    DamageIsMetLate,
    /// effects::E4: a subscription begins or ends before the messages of earlier requests leave.
    EffectsAreOvertaken,
    /// drafted::R4: the keys of a draft are not routed again at its commit.
    DraftsAreNotRouted,
    /// drafted::R5: a script goes on behind a write that a limit refused.
    ScriptsStopHalfway,

    // duramen-node: execution of native requests.
    /// Keys of other owners are served too.
    ViewIsNotLookedAt,
    /// serve::X2, rifl::L10: copies from before this server owned the key are executed.
    TenureIsNotLookedAt,
    /// serve::X3: the completion record is in another group than the effect.
    RecordApart,
    /// serve::X3: a request with an effect may be executed again.
    AbandonAfterEffect,
    /// serve::X4: a failed condition is evaluated again for a late copy.
    FailuresAreNotRecorded,
    /// serve::X5: a repetition is answered before the first execution is durable.
    FinishBeforeDurable,
    /// serve::X6: the cursor passes objects that did not fit into an answer.
    CutIsSkipped,
    /// A request that was admitted before `CLIENT PAUSE` takes effect after the pause was
    /// answered.
    PauseIsNotLookedAt,
    /// A client that waits for several keys is told of a move only when the first of them has left
    /// the member.
    FirstKeyIsAll,
    /// keys::K1: a request that has waited takes another table than the one that its client's
    /// rights were checked for.
    RightsAreNotCheckedAgain,
    /// serve::X8: a request that waits for flash counts as being executed.
    ColdIsNotAbandoned,
    /// serve::X8: the operations of a request that need nothing from flash are done before it waits
    /// for the others, and again after it.
    PartsBeforeTheyWait,
}

/// True if the calling thread runs with this bug; false at compile time in release builds.
#[inline(always)]
pub fn has_bug(bug: Bug) -> bool {
    imp::current() == Some(bug)
}

/// Plants a bug in the calling thread until the result is dropped. Bugs nest: the inner one counts.
///
/// # Panics
/// In release builds.
#[must_use = "the bug ends with the guard"]
pub fn plant(bug: Bug) -> Planted {
    imp::plant(Some(bug))
}

/// Calls `f` with this bug.
///
/// # Panics
/// In release builds.
pub fn with_bug<T>(bug: Bug, f: impl FnOnce() -> T) -> T {
    let _planted = plant(bug);
    f()
}

/// Hands the calling thread's bug to the thread that will call `f`. In release builds the
/// result is `f` itself.
pub fn carry<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    imp::carry(f)
}

/// Checks that a planted bug is found by its recorded seed: `finds` runs one seed with the bug and
/// returns what went wrong. The same seed must pass without the bug; that is for the caller to
/// check, with the result.
///
/// A change of the code under test may change what each seed does. Then the message of the panic
/// names the first of `others` that finds the bug; record that one.
///
/// # Panics
/// If the recorded seed does not find the bug.
pub fn found_by<S: Copy + Debug>(
    recorded: S,
    mut others: impl Iterator<Item = S>,
    finds: impl Fn(S) -> Option<String>,
) -> String {
    if let Some(why) = finds(recorded) {
        return why;
    }
    match others.find(|seed| finds(*seed).is_some()) {
        Some(seed) => panic!("seed {recorded:?} does not find the bug: record seed {seed:?}"),
        None => panic!("no seed finds the bug"),
    }
}

#[cfg(any(debug_assertions, loom, shuttle))]
mod imp {
    use super::Bug;
    use std::cell::Cell;
    use std::marker::PhantomData;

    // The standard library's, not the one of `sync`: all threads of a model checker run on one
    // thread of the system, and each of them has the bug.
    std::thread_local! {
        static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// A planted bug; dropping it restores the state before.
    #[derive(Debug)]
    pub struct Planted {
        before: Option<Bug>,
        /// The bug belongs to the thread that planted it.
        not_send: PhantomData<*const ()>,
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            BUG.set(self.before);
        }
    }

    #[inline]
    pub(super) fn current() -> Option<Bug> {
        BUG.get()
    }

    pub(super) fn plant(bug: Option<Bug>) -> Planted {
        Planted {
            before: BUG.replace(bug),
            not_send: PhantomData,
        }
    }

    pub(super) fn carry<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let bug = current();
        move || {
            let _planted = plant(bug);
            f()
        }
    }
}

#[cfg(not(any(debug_assertions, loom, shuttle)))]
mod imp {
    use super::Bug;

    /// No value of this type is made in this build.
    #[derive(Debug)]
    #[non_exhaustive]
    pub struct Planted;

    #[inline(always)]
    pub(super) fn current() -> Option<Bug> {
        None
    }

    pub(super) fn plant(bug: Option<Bug>) -> Planted {
        panic!("{bug:?} cannot be planted: this build is without debug assertions")
    }

    pub(super) fn carry<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
        f
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_its_threads_until_the_guard_is_dropped() {
        assert!(!has_bug(Bug::AnyHead));
        let outer = plant(Bug::AnyHead);
        with_bug(Bug::PurgeSkips, || {
            assert!(has_bug(Bug::PurgeSkips) && !has_bug(Bug::AnyHead));
        });
        assert!(has_bug(Bug::AnyHead) && !has_bug(Bug::PurgeSkips));
        let other = std::thread::spawn(|| has_bug(Bug::AnyHead));
        assert!(!other.join().expect("a thread without the bug"));
        let carried = std::thread::spawn(carry(|| has_bug(Bug::AnyHead)));
        assert!(carried.join().expect("a thread with the bug"));
        drop(outer);
        assert!(!has_bug(Bug::AnyHead));
    }

    #[test]
    fn a_recorded_seed_must_find_its_bug() {
        let finds = |seed: u64| seed.is_multiple_of(7).then(|| format!("seed {seed}"));
        assert_eq!(found_by(14, 0..0, finds), "seed 14");
        let panic_of = |others: std::ops::Range<u64>| {
            let panic = std::panic::catch_unwind(|| found_by(1, others, finds)).unwrap_err();
            panic.downcast_ref::<String>().cloned().unwrap_or_default()
                + panic.downcast_ref::<&str>().copied().unwrap_or_default()
        };
        assert!(panic_of(3..30).contains("record seed 7"));
        assert!(panic_of(1..6).contains("no seed"));
    }

    #[test]
    fn a_panic_ends_the_bug() {
        let panicked = std::panic::catch_unwind(|| with_bug(Bug::AnyHead, || panic!("found")));
        assert!(panicked.is_err() && !has_bug(Bug::AnyHead));
    }
}
