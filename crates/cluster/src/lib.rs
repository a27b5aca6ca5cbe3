//! The rules by which servers are one cluster, as state machines: no thread, clock, socket or file
//! in here.
//!
//! [`control`] is what the control log says; [`replication`] in which order everything reaches the
//! backups; [`rifl`] how each request takes effect once. [`coordinator`] says who is a member and
//! who owns what, and has the dead's tablets recovered (`recovery`); [`membership`] and
//! [`detector`] are a server's side of that. Whoever drives them (the durable store, a node, the
//! simulator) feeds events and executes effects. docs/protocols.md shows the protocols as wholes.
//! Times are microseconds of a monotonic clock of any origin.

pub mod control;
pub mod coordinator;
pub mod detector;
pub mod lease;
pub mod membership;
pub mod placement;
pub mod planted;
pub mod random;
mod recovery;
pub mod replication;
pub mod rifl;
