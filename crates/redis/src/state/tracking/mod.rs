//! The keys that clients have in caches of their own.

pub(crate) mod client;
pub(crate) mod table;
