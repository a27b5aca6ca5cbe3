//! Tests of the logic of clusters: no I/O, no threads, no clock.

mod coordinator;
mod placement;
mod replication;
mod rifl;
mod rifl_moves;
mod zones;
