//! Interleavings and memory orders of the engine's synchronisation, all of them within small
//! bounds.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p duramen-engine --test it --target-dir target/loom --
//! loom::`, or `scripts/test interleavings`.

#[path = "schedules/mod.rs"]
mod schedules;
