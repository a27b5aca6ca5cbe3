//! Tests of nodes over simulated networks and disks.

mod backup_service;
mod builds;
mod disk;
mod node;
mod orders;
mod probe;
mod serve;
