//! One file per figure of `docs/benchmarks.md`.

pub mod ycsb;
