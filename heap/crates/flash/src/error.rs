//! Errors of this crate, by the remedy.

use crate::layout::Owner;
use std::io;

/// Each variant's text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Free objects, or configure more flash: live objects, and the blocks of the last checkpoint,
    /// fill it.
    #[error(
        "flash is full: {live_bytes} bytes of live objects and {held_bytes} bytes held for the last checkpoint, of {capacity_bytes}"
    )]
    Full {
        live_bytes: u64,
        held_bytes: u64,
        capacity_bytes: u64,
    },
    /// The device failed; data that is not on it yet is still in memory. Replace the device, or
    /// give up.
    #[error("{doing}: {source}")]
    Device {
        doing: &'static str,
        source: io::Error,
    },
    /// The bytes on flash differ from the written ones. The object is lost; others may be read.
    #[error("{owner} is damaged on flash (sector {sector})")]
    Damaged { owner: Owner, sector: u32 },
    /// A bug of the caller, or an invalid pointer.
    #[error("{owner} does not exist: its table has {objects} objects")]
    NoSuchOwner { owner: Owner, objects: u32 },
    #[error("table {table} exists already")]
    TableExists { table: u32 },
    #[error("an object of {bytes} bytes; at most {limit} are allowed here")]
    TooLarge { bytes: usize, limit: usize },
    /// Name another path for the checkpoint, or remove what is there: nothing was changed.
    #[error("a checkpoint would replace {path}, and {why}: name another path")]
    Occupied { path: String, why: &'static str },
    /// Use another path, or begin anew.
    #[error("there is no checkpoint {what}: {source}")]
    NoCheckpoint { what: String, source: io::Error },
    /// There is no checkpoint of this format; nothing was changed.
    #[error("{what} holds no checkpoint of an object store")]
    Foreign { what: String },
    /// Use the program that made it, or begin anew.
    #[error("{what} has format {found}, of an older program; this one knows format {known}")]
    Older {
        what: String,
        found: u16,
        known: u16,
    },
    /// Update this program.
    #[error("{what} has format {found}; this program knows formats up to {known}")]
    Newer {
        what: String,
        found: u16,
        known: u16,
    },
    /// Use another checkpoint, or begin anew.
    #[error("checkpoint {what} is damaged: {why}")]
    DamagedCheckpoint { what: String, why: &'static str },
    /// The checkpoint belongs to another device, or the device was used since without it: objects
    /// of the checkpoint may be overwritten.
    #[error("checkpoint {what} cannot be used: {why}")]
    Superseded { what: String, why: &'static str },
}

impl Error {
    pub(crate) fn device(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Device { doing, source }
    }
}
