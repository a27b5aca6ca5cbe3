//! The flash tier: more data than memory, devices that fail, requests that park.

mod device;
mod model;
mod scenarios;
mod threads;
