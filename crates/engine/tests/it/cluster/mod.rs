//! The engine's parts that a member of a cluster uses: side logs, purges, walks over ranges.
//!
//! The consumer, the disk and the plain replay rule are those of `tests/durable`: they judge the
//! state after a crash. Beside each test is one with the rule broken on purpose, which must be
//! detected.

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
mod steps;
#[allow(dead_code)]
#[path = "../durable/world.rs"]
mod world;
