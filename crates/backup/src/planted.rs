//! Bugs that tests plant to check that they are found. Compiled with feature `planted` alone.

/// A bug that was found in a paper or its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Trap 10: the frame's certificate is overwritten in place instead of alternating between two
    /// slots.
    SlotInPlace,
    /// Trap 10: the certificate is written without waiting for the data that it certifies.
    SlotBeforeData,
    /// Trap 11: a close is acknowledged from memory.
    CloseFromMemory,
    /// Trap 8: bytes that do not match their certificate are returned all the same.
    DamageIsSkipped,
    /// Space of the write-ahead log is used again before the new tail is durable.
    TrimBeforeHeader,
    /// A failed sync is tried again, and the second success counts.
    SyncAgain,
    /// Commits after one that can't be read are never searched.
    NoLookAhead,
    /// A commit for which the disk had no room counts as done.
    FullIsStored,
    /// The fence of a log is dropped with the last of its replicas.
    FenceForgotten,
}
