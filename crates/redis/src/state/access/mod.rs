//! The users of a server, and its audit log.

pub(crate) mod audit;
pub(crate) mod login;
pub(crate) mod users;
