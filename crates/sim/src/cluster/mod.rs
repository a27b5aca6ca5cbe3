//! Whole clusters in one thread, from one seed: real nodes with real engines and real backups on
//! simulated disks, the real coordinator, and a network, clocks and machines that do what they may
//! do.
//!
//! A [`Plan`] says what will happen; [`run`] lets it happen and judges: nothing acknowledged is
//! lost, what clients saw is linearizable, one server at a time answers for a key, and when all
//! faults are over everything is served and replicated again within a bounded time.

mod bug;
mod chair;
mod client;
mod coverage;
mod disks;
mod fault;
mod finish;
mod flash;
pub mod history;
pub mod linear;
mod machine;
mod native;
mod net;
mod phantom;
mod plan;
pub mod planted;
pub mod runs;
mod stranger;
mod tables;
mod trace;
mod world;

pub use bug::Bug;
pub use coverage::{Class, Coverage};
pub use finish::{Outcome, run};
pub use plan::{Fault, Plan, Profile};
