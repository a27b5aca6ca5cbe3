//! Caches of clients: which keys a client has read, invalidations, commands.

pub(crate) mod client;
pub(crate) mod commands;
pub(crate) mod table;

pub use client::{ClientTracking, Scope, write_broken, write_invalidation};
pub use table::Limits;
