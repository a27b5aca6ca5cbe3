//! Commands on connections and on clients.

pub(crate) mod client;
pub(crate) mod client_list;
pub(crate) mod commands;
