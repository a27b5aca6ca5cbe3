//! One device's side of durability: segment replicas, behind a write-ahead log.
//!
//! Every byte arrives as a [`Chunk`] of a segment. Chunks that arrive together are committed
//! together: one write and at most one sync of the write-ahead log. Full or closed segments are
//! written once more, in large aligned writes, to their frame, and then leave the log. The master's
//! decisions (the chunks to send, the segments that are listed or free) are not made here.
//!
//! **Concurrency**: `stage` and `commit` have one caller, the log writer; `flush_step` and
//! `Scrubber::step` have one each, a background thread; any thread may call the other functions. No
//! function here starts a thread that outlives the call.
//!
//! Paper: [Beineke18 §IV-V] two-level logging; differs: synchronous acknowledgement, certificates
//! instead of zero terminators, nothing is rewritten in place (docs/traps.md, trap 19).

mod ahead;
mod backup;
mod buffer;
mod clock;
mod commits;
mod create;
mod device;
pub mod disk;
mod encrypted_file;
mod encryption;
mod error;
mod figures;
mod flush;
mod frames;
mod group;
pub mod inspect;
mod many;
mod marks;
mod measure;
mod open;
pub mod os;
mod read;
mod rebuild;
mod region;
mod replica;
pub mod restore;
mod ring;
mod rotation;
pub mod salvage;
mod scan;
mod scrub;
mod speed;
mod staging;
mod state;
mod types;

pub use ahead::{Lookup, ReadAhead};
pub use backup::Backup;
pub use clock::Clock;
pub use error::Error;
pub use figures::Figures;
pub use flush::Flusher;
pub use group::{Answered, Group};
pub use many::{Sorted, Spare, WantedKeys};
pub use read::Reader;
pub use rotation::{Rotated, key_of, rotate};
pub use scrub::Scrubber;
pub use types::{
    Chunk, Committed, Copies, Damaged, Expected, Geometry, Identity, KnownDamage, LogDamage, Mode,
    Options, Place, ReplicaId, ReplicaInfo, ScrubStep, Stats, WAL_BYTES_MIN,
};
