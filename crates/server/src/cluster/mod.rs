//! A server as a member of a cluster: the state that its threads share.
//!
//! A server outside of a cluster has none of this state; it costs one load per batch.

mod clock;
mod home;
mod identity;
mod keeper;
mod life;
mod membership;
mod node_thread;
mod status;
mod workers;

pub use clock::Clock;
pub use membership::{Membership, ViewCache};
pub use status::MemberStatus;

pub(crate) use home::is_home;
pub(crate) use life::{Lifeline, Ports};
