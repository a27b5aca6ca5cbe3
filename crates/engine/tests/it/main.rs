//! Tests of the engine through its public parts.

#[cfg(not(any(loom, shuttle)))]
mod budget;
#[cfg(not(any(loom, shuttle)))]
mod cluster;
#[cfg(not(any(loom, shuttle)))]
mod draft;
#[cfg(not(any(loom, shuttle)))]
mod durable;
#[cfg(not(any(loom, shuttle)))]
mod flash;
#[cfg(not(any(loom, shuttle)))]
mod flips;
#[cfg(loom)]
mod loom;
#[cfg(not(any(loom, shuttle)))]
mod model;
#[cfg(not(any(loom, shuttle)))]
mod modes;
#[cfg(not(any(loom, shuttle)))]
mod parts;
#[cfg(not(any(loom, shuttle)))]
mod reads;
#[cfg(shuttle)]
mod shuttle;
#[cfg(not(any(loom, shuttle)))]
mod stress;
#[cfg(not(any(loom, shuttle)))]
mod threads;
#[cfg(not(any(loom, shuttle)))]
mod two_levels;
#[cfg(not(any(loom, shuttle)))]
mod waiting;
