//! Every byte of Duramen that outlives a process: log entries and the hash that orders keys.
//!
//! This crate knows no memory, file or socket: it turns bytes into meaning and back.
//! The same entry stands in a DRAM segment, on flash, in a write-ahead log and in a replica frame.

pub mod certificate;
pub mod entry;
pub mod hash;
