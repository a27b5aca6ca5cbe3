//! The second tier of the store, and the entries on flash that requests need.

pub(crate) mod encrypted;
pub(crate) mod tier;
pub(crate) mod unfetched;

pub use tier::{Tier, report_read};
pub use unfetched::{Unfetched, bytes_of};
