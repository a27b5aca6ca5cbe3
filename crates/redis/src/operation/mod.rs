//! Commands and figures for those who operate a server.

pub(crate) mod absent;
pub(crate) mod cluster;
pub(crate) mod cluster_slots;
pub(crate) mod command;
pub(crate) mod config;
pub mod configure;
pub(crate) mod duramen;
pub mod figures;
pub(crate) mod footprint;
pub(crate) mod info;
pub(crate) mod latency;
pub(crate) mod latency_graph;
pub(crate) mod memory;
pub(crate) mod persistence;
pub(crate) mod server;
pub(crate) mod slowlog;
pub mod written;

pub use footprint::Footprint;
