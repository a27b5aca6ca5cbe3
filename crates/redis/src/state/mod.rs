//! The state that outlives a request: of a client, of a thread, and of the whole server.
//!
//! A folder here has what a feature keeps; the feature itself stands above, in a folder of the
//! same name, because its commands need the whole state.

pub(crate) mod access;
pub(crate) mod client;
pub(crate) mod conflicts;
pub(crate) mod db;
pub(crate) mod interpreters;
pub(crate) mod parking;
pub(crate) mod patience;
pub(crate) mod progress;
pub(crate) mod pubsub;
pub(crate) mod script;
pub mod shared;
pub(crate) mod thread;
pub(crate) mod tracking;
pub(crate) mod transaction;

pub use crate::threads::clients::shown;
pub use access::login::Login;
pub use client::{Client, Mode};
pub use shared::{CommandState, ConfigCache, Figures, Settings, Shared, Storage, flash_stats};
