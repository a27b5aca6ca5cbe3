//! Bugs that tests plant to check that they are found. Without feature `planted` there are none.

/// A mistake that was found in a paper or its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 1: a restart replays every replica on the disk, listed or not.
    ReplayEverything,
    /// Trap 2: a victim is freed when its swap is proposed, while the record may still be lost.
    FreeBeforeSwap,
    /// Trap 8: damaged parts are skipped: as a whole, or from the first bad entry on.
    DamageIsSkipped,
    /// Written data counts as synced.
    AnswerBeforeSync,
    /// The oldest of several control segments counts.
    OldControlHead,
    #[cfg(feature = "planted")]
    Engine(duramen_engine::Bug),
    #[cfg(feature = "planted")]
    Backup(duramen_backup::planted::Bug),
    #[cfg(feature = "planted")]
    Replication(duramen_cluster::replication::Bug),
}
