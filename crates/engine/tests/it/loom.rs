//! Interleavings and memory orders of the engine's synchronisation, all of them within small
//! bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p duramen-engine --test loom --target-dir target/loom`, or
//! `cargo xtask test`.

#![cfg(loom)]

mod schedules;
