//! The flash tier: more data than memory, devices that fail, requests that park.

mod cache;
mod cleared;
mod device;
mod leisure;
mod model;
mod refill;
mod scenarios;
mod threads;
