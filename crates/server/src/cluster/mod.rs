//! A server as a member of a cluster: what its threads know of it.
//!
//! A server that belongs to no cluster has none of this, and pays one load per batch for it.

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
