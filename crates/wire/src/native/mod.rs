//! The native protocol: what coordinators, servers and native clients say to each other. The
//! specification for authors of clients is docs/native-protocol.md.
//!
//! [`message`] is what can be said, as plain Rust; [`codec`] turns it into bytes and untrusted
//! bytes into it.

pub mod codec;
pub mod message;
mod slice;

pub use slice::Slice;
