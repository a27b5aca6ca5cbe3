//! The subscriptions of a server, of a thread and of a client.

pub(crate) mod client;
pub(crate) mod registry;
pub(crate) mod subscribers;
