//! Whole nodes over a network that loses, repeats and reorders: what is acknowledged is on the
//! disks of others, whoever crashes; who is cut off reads nothing.

#[path = "../common/coordinator.rs"]
mod coordinator;
#[path = "../common/net.rs"]
mod net;
#[path = "../common/settings.rs"]
mod settings;

mod histories;
mod recovery;
mod replication;
