//! A durable key-value store in memory, to be embedded in a program.
//!
//! A [`Store`] is opened on a directory with a budget of memory, used from many threads through a
//! [`Session`] each, and closed. Opening it again restores every acknowledged write. Data is in
//! memory, as a log without fragmentation; the disk is written sequentially, in groups that form by
//! themselves, and read at a start. Without a directory the data is in memory alone.
//!
//! ```
//! use duramen::{Condition, Options, Store, Table};
//! use std::time::Duration;
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path().join("store");
//! // 64 MiB of memory; made if it does not exist, otherwise everything is as it was.
//! let store = Store::open(Options::new(&dir, 64 << 20))?;
//! let users = store.table("users")?;
//! let mut session = store.session()?; // one per thread
//!
//! // When a call returns, its effect survives a power cut.
//! session.set(users, "alice", "admin")?;
//! session.set_for(Table::DEFAULT, "token", "secret", Duration::from_secs(60))?;
//! session.increment(Table::DEFAULT, "visits", 1)?;
//!
//! // Optimistic: nobody else has changed it since it was read.
//! let alice = session.get(users, "alice")?.expect("just written");
//! session.set_if(users, "alice", "guest", Condition::Version(alice.version))?;
//!
//! // Several keys in one step: all of it or nothing, for every reader and after every crash.
//! session.transaction(&[(users, "alice"), (users, "bob")], |tx| {
//!     let role = tx.get(users, "alice")?.unwrap_or_default();
//!     tx.remove(users, "alice")?;
//!     tx.set(users, "bob", role)
//! })?;
//!
//! // The directory is free, and every later call of a session answers `Error::Closed`.
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | open, close, copy a store; its tables and figures | [`Store`], [`Options`] |
//! | read and write | [`Session`] |
//! | change several keys at once | [`Session::transaction`] |
//! | change a key only if it is unchanged since a read | [`Condition`], [`Version`] |
//! | choose between speed and safety, per store, table or session | [`Level`] |
//! | handle errors | [`Error`] |
//!
//! There is no order of keys, hence no ranges; keys and values are bytes, at most [`KEY_BYTES_MAX`]
//! and [`VALUE_BYTES_MAX`]. One process at a time has a directory open. The guide:
//! `docs/embedded.md` in the repository.
//!
//! Papers: Rumble14 (log-structured memory), Ousterhout15 (versions, conditions, durability),
//! Merritt17 (many cores), Beineke18 (the disk).

mod accepted;
mod bell;
mod closing;
mod control;
mod demand;
mod directory;
mod durable;
mod error;
mod expiry;
mod gate;
mod heat;
mod hints;
#[doc(hidden)]
pub mod internals;
mod load;
mod member;
mod meter;
mod objects;
mod options;
mod progress;
mod reentrancy;
mod restart;
mod salvage;
mod scan;
mod session;
mod snapshot;
mod stats;
mod store;
mod tables;
mod threads;
mod throttle;
mod transaction;
mod waiters;
mod writer;

pub use duramen_backup::Mode as DiskMode;
#[doc(inline)]
pub use duramen_base::ids::{Level, TableId as Table};
pub use duramen_base::limits::{
    KEY_BYTES_MAX, STORE_BYTES_MIN as MEMORY_BYTES_MIN, TABLES_MAX, VALUE_BYTES_MAX,
};
#[doc(inline)]
pub use duramen_cipher::{KeyId, KeySource};
pub use error::Error;
pub use objects::{Condition, Expiry, Incremented, Outcome, Ttl, Value, Version};
pub use options::Options;
pub use progress::{Phase, Progress, SnapshotReport};
pub use scan::Scan;
pub use session::Session;
pub use stats::{DiskState, DurabilityStats, Latency, MemoryStats, ScrubProgress};
pub use store::Store;
pub use tables::TableInfo;
pub use transaction::Transaction;
