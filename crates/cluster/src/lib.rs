//! What a log's replicas and its list of segments must obey, as state machines: no thread, clock, socket or file in here.
//!
//! [`control`] is what the control log says; [`replication`] in which order everything reaches the backups. Whoever drives them
//! (the durable store, the simulator) feeds events and executes effects. docs/protocols.md shows the protocols as wholes.

pub mod control;
pub mod replication;
