//! Every byte of Duramen that outlives a process: log entries, segments, certificates, the
//! write-ahead log, the superblock, and the hash that orders keys. The specification is
//! docs/data-on-disk.md.
//!
//! This crate uses no memory of a log, no file and no socket: it converts bytes to values and back.
//! The same entry bytes are used in a DRAM segment, on flash, in a write-ahead log and in a replica
//! frame.

mod bytes;
pub mod certificate;
pub mod checksum;
pub mod control;
pub mod entry;
pub mod frame;
pub mod hash;
pub mod heat;
pub mod loss;
pub mod mend;
pub mod part;
pub mod recipe;
pub mod segment;
pub mod superblock;
pub mod wal;
