//! Why the store could not do it, named by what the caller should do.

use duramen_base::ids::Level;

/// Errors of the durable store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine refused: see its text. Nothing was changed.
    #[error(transparent)]
    Engine(#[from] duramen_engine::Error),
    /// Free some space; writes resume by themselves.
    #[error("the disk is full: {0}; reads go on, writes resume when there is space")]
    DiskFull(String),
    /// The device failed: what was not acknowledged may be lost. Replace it, then restart.
    #[error("the disk failed: {0}; reads go on, writes are refused until a restart")]
    DiskFailed(String),
    /// The directory cannot be opened as it is. Nothing was touched; its text says what to do.
    #[error(transparent)]
    Disk(duramen_backup::Error),
    /// Part of the data is missing or damaged, and no other copy is here. Nothing was touched.
    #[error(
        "`{place}`: {reason}. Nothing was changed; restore from a snapshot, or run `duramen fsck` to see what is left"
    )]
    Damaged { place: String, reason: String },
    /// Memory or disk as configured cannot hold what the directory contains. Nothing was touched.
    #[error("`{place}`: {reason}")]
    Misfit { place: String, reason: String },
    /// The store has no directory, so a level above `memory` cannot be had.
    #[error("this store keeps its data in memory only: level `{0}` needs a directory")]
    NoDirectory(Level),
    /// The log of a cluster's member lies with others.
    #[error("a member of a cluster keeps its log on others: back the cluster up instead")]
    NotHere,
    #[error("a snapshot is being taken already")]
    SnapshotRunning,
    #[error("the store is closed")]
    Closed,
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// While the store runs. (When it is opened, see [`Error::Disk`].)
impl From<duramen_backup::Error> for Error {
    fn from(error: duramen_backup::Error) -> Error {
        match error {
            // A large commit goes to frames, unless there is none: then it has to wait for one.
            duramen_backup::Error::Full { .. } | duramen_backup::Error::CommitTooLarge { .. } => {
                Error::DiskFull(error.to_string())
            }
            other => Error::DiskFailed(other.to_string()),
        }
    }
}
