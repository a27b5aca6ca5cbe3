//! A server as a member of a cluster: what its threads know of it.
//!
//! A server that belongs to no cluster has none of this, and pays one load per batch for it.

mod membership;

pub use membership::{Membership, ViewCache};
