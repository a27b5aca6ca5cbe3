//! The state of a client and of a thread, which outlives a request.

pub(crate) mod client;
pub(crate) mod local;

pub use client::{Client, Mode, Verdict, shown};
