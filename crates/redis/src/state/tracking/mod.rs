//! The state of CLIENT TRACKING: the keys that clients have in caches of their own.

pub(crate) mod client;
pub(crate) mod table;
