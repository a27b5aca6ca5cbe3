//! The state of a client and of a thread, which outlives a request.

pub(crate) mod client;
pub(crate) mod conflicts;
pub(crate) mod local;
mod parked_client;
pub(crate) mod parking;
pub(crate) mod progress;

pub use client::{Client, Mode, Verdict, shown};
