//! Results of a request beside its reply: messages for other clients, waits, events.

pub(crate) mod effects;
pub(crate) mod wait;

pub use effects::Effects;
pub use wait::{State, Until, Wait};
