//! Caches of clients: commands, and changes of keys. The keys that clients have read are in
//! `state::tracking`.

pub(crate) mod changes;
pub(crate) mod commands;

pub use crate::state::tracking::client::{ClientTracking, Scope, write_broken, write_invalidation};
pub use crate::state::tracking::table::Limits;
pub use changes::tend_tracking;
