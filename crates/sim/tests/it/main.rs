//! Tests of the shipped code in simulated worlds.

mod backup;
mod clusters;
mod restore;
mod snapshot;
mod store;
