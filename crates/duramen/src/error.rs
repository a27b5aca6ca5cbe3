//! Why the store could not do it, named by what the caller should do.

use duramen_base::ids::Level;
use std::path::PathBuf;

/// Errors of the durable store.
#[derive(Debug, thiserror::Error)]
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
    /// Nothing was touched; do what the text says.
    #[error("{}: {reason}", path.display())]
    Directory { path: PathBuf, reason: String },
    /// Part of the data is missing or damaged, and no other copy is here. Nothing was touched.
    #[error("{reason}")]
    Damaged { reason: String },
    /// The store has no directory, so a level above `memory` cannot be had.
    #[error("this store keeps its data in memory only: level `{0}` needs a directory")]
    NoDirectory(Level),
    #[error("a snapshot is being taken already")]
    SnapshotRunning,
    #[error("the store is closed")]
    Closed,
}
