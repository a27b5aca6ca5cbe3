//! A simulated disk under the real code of backup and master, driven from seeds. Used by tests
//! alone.
//!
//! A run is decided by its seed and by nothing else: no thread, clock or address takes part. A
//! failing seed is replayed by running the same test with `DURAMEN_SIM_SEED`.

pub mod cluster;
pub mod disk;
mod random;

pub use random::Random;
