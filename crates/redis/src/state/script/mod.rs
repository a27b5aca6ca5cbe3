//! The scripts and functions that a server knows.

pub(crate) mod cache;
pub(crate) mod libraries;
