//! Whole nodes over a network that loses, repeats and reorders: acknowledged data are on the disks
//! of others, whichever server crashes; a server that is cut off reads nothing.

mod histories;
mod links;
mod membership;
mod migration;
mod net;
mod recovery;
mod replication;
mod slow;
