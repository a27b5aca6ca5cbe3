//! State that outlives a request: that of a connection, and that of a thread.

pub(crate) mod client;
pub(crate) mod effects;
pub(crate) mod key_wait;
pub(crate) mod local;
pub(crate) mod meter;
pub(crate) mod parking;
pub(crate) mod scripts;
pub(crate) mod subscribers;
pub(crate) mod tracking;
pub(crate) mod transaction;
pub(crate) mod wait;
pub(crate) mod watches;
