//! Log-structured memory that scales with cores: windows, heads, an optimistic index, reclaim
//! epochs, a concurrent cleaner. No file, no socket, no async: the engine never blocks on I/O.
//!
//! A [`Store`] holds tables of objects under a hard memory budget. A thread enters it through its
//! own [`Session`]; a [`Guard`] is one batch of operations. Papers: Rumble14, Merritt17,
//! Ousterhout15 §3-4.
//!
//! ```
//! use duramen_engine::{Options, Store, TableId};
//!
//! let store = Store::new(Options::new(64 << 20))?;
//! let mut session = store.session()?;
//! let mut guard = session.pin();
//! let hash = guard.hash(b"answer");
//! let written = guard.write(TableId::DEFAULT, hash, b"answer", b"42", None)?;
//! let object = guard.read(TableId::DEFAULT, hash, b"answer")?.expect("just written");
//! assert_eq!((object.value, Some(object.version)), (&b"42"[..], written.after));
//! # Ok::<(), duramen_engine::Error>(())
//! ```

mod api;
mod cleaner;
mod clear;
mod completion;
mod core;
mod counters;
mod device;
mod draft;
mod epoch;
mod exclusive;
#[cfg(debug_assertions)]
mod flip;
mod head;
mod heat;
mod index;
mod load;
mod log;
mod many;
mod range;
mod report;
mod room;
mod scan;
mod session;
mod side;
mod space;
mod stats;
mod store;
mod table;
mod topology;
mod transaction;
mod write;

pub use api::*;
pub use core::damage::EntryDamage;
pub use core::listeners::Listeners;
pub use core::watches::{Dirty, DirtyKey, MARK_BYTES};
pub use core::workers::bytes_beside_data;
pub use core::writes::Written;
pub use device::{Cold, Fetched, FlashOptions, FlashStats};
#[cfg(debug_assertions)]
pub use flip::{FlipPart, Flips};
pub use load::{LoadError, LoadReport, Loader, MissingSegments, Revived, Unfinished};
pub use log::{
    Collected, DiskRoom, Log, Numbers, Pass, Piece, Position, Refusals, Relocation, SurvivorReady,
    Swap, Swaps,
};
pub use many::{Many, Part};
pub use range::{
    Export, Purge, Purged, RANGE_PARTS, RangeCount, RangePart, RangeStatistics, Ranges, Watch,
};
pub use room::Room;
pub use scan::Walks;
pub use session::draft::Draft;
pub use session::{Guard, Locks, Notes, Observed, Pin, Seen, Session, TypedWrite, Work};
pub use side::{SideCommit, SideError, SideLog, SidePlan, SideReport};
pub use space::segment_bytes;
pub use stats::*;
pub use store::{Heads, Segments, Store, Tables};
pub use transaction::ROOM_ATTEMPTS_MAX;

/// The flash tier, for the owner of its device and for those who read from it themselves.
pub mod flash {
    pub use crate::device::{
        Cold, Device, Fetched, FlashOptions, FlashStats, SECTOR_BYTES, first_within,
    };
    pub use crate::heat::{Flash, Heat, HotKey, Refill, Refilled};
}

/// Parts for the model checkers' tests (`tests/it/loom.rs`, `tests/it/shuttle.rs`).
#[cfg(any(loom, shuttle))]
#[doc(hidden)]
pub mod parts {
    pub use crate::core::flash::tier::warmth::Warmth;
    pub use crate::core::watches::Marks;
    pub use crate::epoch::{Epochs, SlotId};
    pub use crate::exclusive::Door;
    pub use crate::head::Tail;
    pub use crate::index::arena::Arena;
    pub use crate::index::bucket;
    pub use crate::index::{Partition, Resize, Resources};
    pub use crate::log::modelled::OneHead;
    pub use crate::space::segment::State;
    pub use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space};
    pub use crate::topology::Topology;
}
