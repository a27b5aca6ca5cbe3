//! Sans-IO codecs: bytes in, bytes out. Nothing in this crate opens a socket, reads a clock or
//! starts a thread.

pub mod native;
pub mod resp;
