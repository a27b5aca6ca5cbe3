//! Messages as plain Rust, by sender and receiver.
//!
//! | question | answer | from → to |
//! |---|---|---|
//! | [`ToCoordinator`] | [`CoordinatorAnswer`] | servers, clients, tools → coordinator |
//! | [`FromCoordinator`] | [`ServerAnswer`] | coordinator → servers |
//! | [`Peer`] | [`PeerAnswer`] | server → server |
//! | [`Request`] | [`Answer`] | client → master |
//!
//! A **payload** may follow a message: raw bytes that are not part of the enum, so that they are
//! not copied (the bytes of a replica, the entries of a migration). A message with a payload says
//! so in its documentation; all others have an empty one.
//!
//! **Invariants**
//! - M1: the variants of an enum, and the fields of a variant, keep their order within a protocol
//!   version: their numbers are on the wire. A new variant goes to the end.
//! - M2: every question may arrive twice, late, and after its sender has given it up. A repeated
//!   answer is harmless, or the message has a number (version, epoch, recovery, sequence, RPC id)
//!   by which the receiver recognizes that it is old.
//!
//! Names contain units: `_ms` milliseconds, `_bytes` bytes. Versions and ids are those of
//! [`duramen_base::ids`].

mod admin;
mod client;
mod coordinator;
mod nouns;
mod orders;
mod peer;

pub use admin::*;
pub use client::*;
pub use coordinator::*;
pub use nouns::*;
pub use orders::*;
pub use peer::*;
