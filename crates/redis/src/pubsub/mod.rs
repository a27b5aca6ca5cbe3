//! Publish and subscribe: the registry of subscriptions, delivery, commands.

pub(crate) mod commands;
pub(crate) mod registry;
pub(crate) mod release;
pub(crate) mod subscribers;

pub use registry::Publisher;
pub use release::release;
pub use subscribers::Encoded;
