//! Publish and subscribe: the registry of subscriptions, delivery, commands.

pub(crate) mod commands;
pub(crate) mod registry;
pub(crate) mod subscribers;

pub use registry::Publisher;
pub use subscribers::Encoded;
