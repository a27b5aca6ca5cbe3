//! The rules of a cluster, as state machines: no thread, clock, socket or file in here.
//!
//! [`control`] is the state of the control log; [`replication`] the order in which everything
//! reaches the backups; [`rifl`] makes each request take effect once. [`coordinator`] manages
//! membership and the ownership of tablets, and has dead servers' tablets recovered (`recovery`);
//! [`membership`] and [`detector`] are a server's side of that; [`speed`] judges measurements of
//! disks. Their driver (the durable store, a node, the simulator) passes in events and executes
//! effects. docs/protocols.md shows the protocols as wholes. Times are microseconds of a monotonic
//! clock of any origin.

pub mod control;
pub mod coordinator;
pub mod detector;
pub mod lease;
pub mod membership;
pub mod placement;
mod recovery;
pub mod replication;
pub mod rifl;
pub mod speed;
