//! Publish and subscribe: messages and events, commands. The subscriptions are in `state::pubsub`.

pub(crate) mod commands;
mod publish;
pub(crate) mod release;

pub use crate::state::pubsub::registry::Publisher;
pub use crate::state::pubsub::subscribers::Encoded;
pub use commands::may_keep_subscriptions;
pub use publish::is_crowded;
pub use release::release;
