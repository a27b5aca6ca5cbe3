//! What a member of a cluster asks of its store: side logs, purges, walks over ranges.
//!
//! The consumer, the disk and the plain replay rule are those of `tests/durable`: what is there
//! after a crash is judged by them. Beside each test stands one with the rule broken on purpose,
//! which must be noticed.

mod cold;
mod cold_model;
mod cold_side;
mod completion;
mod dead_log;
#[allow(dead_code)]
#[path = "../durable/disk.rs"]
mod disk;
#[allow(dead_code)]
#[path = "../flash/device.rs"]
mod flash;
mod purge;
mod range;
mod side;
#[allow(dead_code)]
#[path = "../durable/world.rs"]
mod world;
