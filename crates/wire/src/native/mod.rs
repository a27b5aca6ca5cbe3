//! The native protocol between coordinators, servers and native clients. The specification for
//! authors of clients is docs/native-protocol.md.
//!
//! [`message`] has the messages as plain Rust; [`codec`] encodes them to bytes, and decodes
//! untrusted bytes.

pub mod codec;
pub mod message;
mod slice;

pub use slice::Slice;
