//! Clients that wait for elements of a key.

pub(crate) mod key_wait;
