//! Whole clusters in one thread, from one seed: real nodes with real engines and real backups on
//! simulated disks, the real coordinator, and a simulated network with simulated clocks and
//! machines.
//!
//! A [`Plan`] lists the faults of a run. [`run`] executes it and judges it: nothing acknowledged is
//! lost, the replies to clients are linearizable, one server at a time answers for a key, and after
//! the last fault everything is served and replicated again within a bounded time.

mod bulk;
mod client;
mod coverage;
mod disks;
mod fault;
mod fill;
mod finish;
mod flash;
mod foreign_coordinator;
pub mod history;
pub mod linear;
mod machine;
mod native;
mod net;
mod phantom;
mod plan;
pub mod planted;
pub mod runs;
mod sim_coordinator;
mod tables;
mod trace;
mod twins;
mod world;

pub use coverage::{Class, Coverage};
pub use finish::{Outcome, run};
pub use plan::{Fault, Fill, Plan, Profile, ZONES};
