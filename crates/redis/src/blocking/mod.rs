//! Clients that wait for elements of a key.

pub(crate) mod key_wait;

pub use key_wait::Blocked;
