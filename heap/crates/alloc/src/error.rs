//! Errors, by the remedy; each kind has a number for C.

use std::io;

/// Each variant's text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Call [`init`](crate::init) first.
    #[error("ssd_init has not been called")]
    NotInitialized,
    /// The library is running already: close it first.
    #[error("{0}")]
    State(&'static str),
    /// Correct the argument.
    #[error("{0}")]
    Invalid(String),
    /// Configure more RAM, or allocate less: the data that must stay in RAM for these objects would
    /// not leave enough for a cache.
    #[error(
        "the budget of {budget_bytes} bytes of RAM is too small: {needed_bytes} bytes would be needed"
    )]
    Budget {
        budget_bytes: u64,
        needed_bytes: u64,
    },
    /// Free objects, or configure a larger flash file.
    #[error(
        "no room on flash: {allocated_bytes} bytes are allocated, {wanted_bytes} more are wanted, of {capacity_bytes} that can be used"
    )]
    NoSpace {
        allocated_bytes: u64,
        wanted_bytes: u64,
        capacity_bytes: u64,
    },
    /// No addresses are left in the arena.
    #[error("no room among {arena_bytes} bytes of addresses: raise address_bytes")]
    NoAddresses { arena_bytes: u64 },
    /// A bug of the caller: no object begins at this address.
    #[error("{address:#x} is not the address of an object: {why}")]
    BadPointer { address: usize, why: &'static str },
    /// A bug of the caller.
    #[error("{address:#x} was freed already")]
    DoubleFree { address: usize },
    /// This kernel lacks the call; request the other kind of faults, or use another kernel.
    #[error("{doing}: {source}")]
    Kernel {
        doing: &'static str,
        source: io::Error,
    },
    /// The addresses of a checkpoint's objects are in use in this process: restore earlier, or in
    /// another process.
    #[error(
        "the addresses from {address:#x} on are taken in this process: restore before anything else maps memory"
    )]
    AddressTaken { address: usize },
    /// Use another checkpoint, or begin anew.
    #[error("checkpoint {path}: {why}")]
    Checkpoint { path: String, why: String },
    /// Use the version of this library that made the checkpoint, or begin anew.
    #[error(
        "checkpoint {path} was made by another version: its format is {found}, this library knows {known}"
    )]
    Version {
        path: String,
        found: u32,
        known: u32,
    },
    /// A forked child has no flash memory: allocate in the parent, or initialize anew after exec.
    #[error("this process was forked from the one that initialized it")]
    Forked,
    /// The flash file has a fault: see the error inside.
    #[error(transparent)]
    Disk(#[from] duramen_disk::Error),
    /// The object store on the flash file has a fault: see the error inside.
    #[error(transparent)]
    Flash(#[from] duramen_flash::Error),
}

impl Error {
    pub(crate) fn kernel(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Kernel { doing, source }
    }

    /// The number in `duramen_alloc.h`.
    pub fn code(&self) -> i32 {
        use duramen_disk::Error as Disk;
        use duramen_flash::Error as Flash;
        match self {
            Error::NotInitialized | Error::State(_) => -1,
            Error::Invalid(_) => -2,
            Error::Budget { .. } | Error::NoAddresses { .. } => -3,
            Error::NoSpace { .. } | Error::Flash(Flash::Full { .. }) => -4,
            Error::BadPointer { .. } => -5,
            Error::DoubleFree { .. } => -6,
            Error::Kernel { .. } => -7,
            Error::AddressTaken { .. } => -8,
            Error::Checkpoint { .. }
            | Error::Flash(
                Flash::NoCheckpoint { .. }
                | Flash::DamagedCheckpoint { .. }
                | Flash::Foreign { .. }
                | Flash::Superseded { .. },
            ) => -9,
            Error::Version { .. } | Error::Flash(Flash::Newer { .. } | Flash::Older { .. }) => -10,
            Error::Forked => -11,
            Error::Disk(Disk::InUse { .. }) => -12,
            Error::Disk(
                Disk::TooSmall { .. }
                | Disk::TooLargeDevice { .. }
                | Disk::Alignment { .. }
                | Disk::OfStore { .. },
            )
            | Error::Flash(Flash::Occupied { .. }) => -2,
            Error::Disk(_) | Error::Flash(_) => -13,
        }
    }
}
