//! Simulated disks and clusters under the shipped code, driven from seeds. Used by tests alone.
//!
//! A run depends on its seed and on nothing else: no thread, clock or address takes part. To replay
//! a failing seed, run the same test with `DURAMEN_SIM_SEED`.

mod bytes;
pub mod cluster;
pub mod disk;

pub use duramen_base::random::Random;
