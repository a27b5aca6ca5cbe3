//! Two-level cleaning and restart, against a simulated log writer: nothing acknowledged is lost,
//! nothing comes back.

mod disk;
mod model;
#[cfg(feature = "planted")]
mod planted;
mod restart;
mod scenarios;
