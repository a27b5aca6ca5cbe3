//! Ids, units, limits and the seams (ticks, synchronisation) that every Duramen crate shares.

pub mod expiry;
pub mod glob;
pub mod ids;
pub mod limits;
pub mod lock;
pub mod number;
pub mod open;
pub mod origin;
pub mod planted;
pub mod private;
pub mod random;
pub mod signals;
pub mod spin;
pub mod sync;
pub mod test_tier;
pub mod ticks;

pub mod units;
pub mod waiters;
pub mod waits;
