//! Random interleavings of the engine's synchronisation: the scenarios of `loom.rs` without its
//! bounds.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p duramen-engine --test shuttle --target-dir
//! target/shuttle`, or `cargo xtask test`. A failing schedule is printed; `shuttle::replay` runs it
//! again.

#![cfg(shuttle)]

mod schedules;
