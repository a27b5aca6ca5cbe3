//! The flash tier: more data than memory, devices that fail, requests that park.

mod background_reads;
mod cache;
mod cleared;
pub(crate) mod device;
mod flips;
mod index;
mod model;
mod refill;
mod scenarios;
mod stuck;
mod threads;
mod vain;
