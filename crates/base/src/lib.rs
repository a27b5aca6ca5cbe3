//! Ids, units, limits and the seams (clock, synchronisation) that every Duramen crate shares.

pub mod limits;
pub mod units;
