//! Random interleavings of the engine's synchronisation: the scenarios of `loom.rs` without its
//! bounds.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p duramen-engine --test it --target-dir
//! target/shuttle -- shuttle::`, or `scripts/test interleavings`. A failing schedule is printed;
//! `shuttle::replay` runs it again.

#[path = "schedules/mod.rs"]
mod schedules;
