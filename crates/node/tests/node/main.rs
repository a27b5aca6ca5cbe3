//! Whole nodes over a network that loses, repeats and reorders: acknowledged data are on the disks
//! of others, whichever server crashes; a server that is cut off reads nothing.

#[path = "../common/coordinator.rs"]
mod coordinator;
#[path = "../common/net.rs"]
mod net;
#[path = "../common/settings.rs"]
mod settings;

mod histories;
mod recovery;
mod replication;
mod slow;
