//! Bugs that tests plant to see whether they would be found. Compiled with feature `planted` alone.

/// A way to get it wrong that a paper or its code has been caught with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 10: the frame's certificate is overwritten in place instead of alternating between two
    /// slots.
    SlotInPlace,
    /// Trap 10: the certificate is written without waiting for the data that it certifies.
    SlotBeforeData,
    /// Trap 11: a close is acknowledged from memory.
    CloseFromMemory,
    /// Trap 8: what does not match its certificate is given out all the same.
    DamageIsSkipped,
    /// Space of the write-ahead log is used again before the new tail is durable.
    TrimBeforeHeader,
    /// A failed sync is tried again, and the second success is believed.
    SyncAgain,
    /// What follows a commit that can't be read is never looked at.
    NoLookAhead,
    /// A commit for which the disk had no room counts as done.
    FullIsStored,
    /// The fence of a log goes with the last of its replicas.
    FenceForgotten,
}
