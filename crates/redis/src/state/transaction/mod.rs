//! The requests and the watched keys of a transaction.

pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod watches;
