//! One file per figure of `docs/benchmarks.md`.

pub mod cleaner_latency;
pub mod cluster;
pub mod durability;
pub mod flash;
pub mod growth;
pub mod logging;
pub mod memory;
pub mod memory_cell;
pub mod recovery;
pub mod replay;
pub mod scale;
pub mod server;
pub mod tier;
pub mod two_levels;
pub mod utilization;
pub mod ycsb;
