//! The engine's parts that a member of a cluster uses: side logs, purges, walks over ranges.
//!
//! The consumer, the disk and the plain replay rule are those of `durable`: they judge the
//! state after a crash. Beside each test is one with the rule broken on purpose, which must be
//! detected.

pub(crate) mod cold;
mod cold_model;
mod cold_side;
mod completion;
pub(crate) mod dead_log;
mod purge;
mod range;
mod side;
mod side_flips;
mod steps;
