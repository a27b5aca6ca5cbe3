//! Tests of the store of one server on real disks.

mod cache;
mod closing;
mod embedded;
mod faults;
mod flash;
mod full_disk;
mod full_memory;
mod given_up;
mod hanging;
mod heat;
mod loads;
mod lost;
mod member;
mod reads;
mod repair;
mod side;
mod snapshot;
mod stoppable;
mod store;
mod tiered;
