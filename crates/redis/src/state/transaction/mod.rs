//! The requests and the watched keys of a transaction.

pub(crate) mod client;
pub(crate) mod exec;
pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod watches;
