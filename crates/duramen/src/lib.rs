//! The durable store: the engine's memory, the control log's rules and a backup's disk, joined.
//!
//! A [`Store`] is opened on a directory, used from many threads and closed; opening it again brings back everything that was
//! acknowledged. Without a directory it keeps its data in memory alone and costs nothing more than the engine.

mod ahead;
mod background;
mod commit;
mod error;
mod figures;
mod health;
mod heat;
mod hints;
mod load;
mod member;
mod meter;
mod options;
mod planted;
mod progress;
mod repair;
mod restart;
mod salvage;
mod scrub;
mod session;
mod snapshot;
mod stats;
mod store;
mod threads;
mod throttle;
mod writer;

pub use duramen_backup::Copies;
pub use duramen_backup::os::{is_store, remove_store};
pub use duramen_base::ids::Level;
pub use duramen_engine::{self as engine, Position};
pub use error::Error;
pub use member::{Backups, Bytes, Call, MemberOptions};
pub use options::{Mode, Options};
#[cfg(feature = "planted")]
pub use planted::Bug;
pub use progress::{Phase, Progress, SnapshotReport};
pub use repair::{Repair, RepairStep};
pub use salvage::{Lost, Salvaged, salvage};
pub use scrub::ScrubProgress;
pub use session::{Session, Value};
pub use stats::{DiskState, DurabilityStats, Latency};
pub use store::Store;
pub use writer::LogWriter;
