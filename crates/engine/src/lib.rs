//! Log-structured memory that scales with cores: windows, heads, an optimistic index, reclaim epochs, a concurrent
//! cleaner. No file, no socket, no async: the engine never blocks on I/O.
//!
//! A [`Store`] holds tables of objects under a hard memory budget. A thread enters it through its own [`Session`]; a
//! [`Guard`] is one batch of operations. Papers: Rumble14, Merritt17, Ousterhout15 §3-4.
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
mod core;
mod counters;
mod epoch;
mod head;
mod index;
mod report;
mod session;
mod space;
mod stats;
mod store;
mod table;
mod topology;
mod transaction;
mod write;

pub use api::*;
pub use session::{Guard, Session};
pub use stats::*;
pub use store::Store;
