//! The commands, one file per family, and their table ([`table`]).

pub(crate) mod acl;
mod client;
mod client_list;
mod cluster;
mod cluster_slots;
mod command;
mod config;
mod connection;
mod databases;
mod durability;
mod duramen;
mod expire;
mod float;
mod info;
mod keys;
mod latency;
pub(crate) mod lookup;
mod memory;
pub(crate) mod monitor;
mod multi_key;
mod scan;
mod server;
mod set_options;
mod slowlog;
mod string;
pub(crate) mod table;
mod transaction;
