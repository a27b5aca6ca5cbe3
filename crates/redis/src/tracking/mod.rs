//! Caches of clients: the commands. The keys that a client has read are in `state::tracking`.

pub(crate) mod commands;

pub use crate::state::tracking::client::{
    ClientTracking, Scope, write_broken, write_invalidation,
};
pub use crate::state::tracking::table::Limits;
