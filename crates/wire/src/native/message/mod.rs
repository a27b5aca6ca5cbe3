//! Messages as plain Rust, by who asks whom.
//!
//! | question | answer | from → to |
//! |---|---|---|
//! | [`ToCoordinator`] | [`CoordinatorAnswer`] | servers, clients, tools → coordinator |
//! | [`FromCoordinator`] | [`ServerAnswer`] | coordinator → servers |
//! | [`Peer`] | [`PeerAnswer`] | server → server |
//! | [`Request`] | [`Answer`] | client → master |
//!
//! A message may be followed by a **payload**: raw bytes that are not part of the enum, so that
//! nobody copies them (the bytes of a replica, the entries of a migration). Who has one says so in
//! its documentation; for all others it is empty.
//!
//! **Invariants**
//! - M1: the variants of an enum, and the fields of a variant, keep their order within a protocol
//!   version: their numbers are on the wire. A new variant goes to the end.
//! - M2: every question may come twice, late, and after its asker has given up. Answering it again
//!   is harmless, or the message carries the number (version, epoch, recovery, sequence, RPC id) by
//!   which the addressee knows that it is old.
//!
//! Units stand in names: `_ms` milliseconds, `_bytes` bytes. Versions and ids are those of
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
