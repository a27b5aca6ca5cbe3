//! The second tier of the store, and requests that wait for an entry there.

pub(crate) mod encrypted;
pub(crate) mod parking;
pub(crate) mod tier;

pub use parking::{Unfetched, bytes_of};
pub use tier::{Tier, report_read};
