//! The state that outlives a request: of a client, of a thread, and of the whole server.

pub(crate) mod client;
pub(crate) mod conflicts;
pub(crate) mod db;
pub(crate) mod local;
mod parked_client;
pub(crate) mod parking;
pub(crate) mod progress;
pub mod shared;

pub use client::{Client, Mode, Verdict, shown};
pub use shared::{Changes, CommandState, ConfigCache, Shared};
